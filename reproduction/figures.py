from pathlib import Path


def draw(out: Path) -> None:
    pass
