"""Print how many words each section of the documentation has: python docs/words.py"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent
LIMIT = 22_000  # words of what is read from the beginning: all but Reference and Evidence
LOOKED_UP = ("reference", "evidence")


def has_letter_or_digit(word: str) -> bool:
    return any(map(str.isalnum, word))


def words() -> dict[str, int]:
    """Words by section: what has a letter or a digit, so no rules of tables; `index` is home."""
    count: dict[str, int] = {}
    for page in sorted(DOCS.rglob("*.md")):
        section = page.relative_to(DOCS).parts[0].removesuffix(".md")
        text = page.read_text(encoding="utf-8").split()
        count[section] = count.get(section, 0) + sum(map(has_letter_or_digit, text))
    return count


def limited(count: dict[str, int]) -> int:
    """The words that the limit is on."""
    return sum(number for section, number in count.items() if section not in LOOKED_UP)


if __name__ == "__main__":
    count = words()
    for section, number in count.items():
        print(f"{section:12} {number:7,}")
    print(f"{'limited':12} {limited(count):7,} of {LIMIT:,}")
