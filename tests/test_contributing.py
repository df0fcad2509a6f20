"""What CONTRIBUTING says is true: its files exist, and its walk-throughs work when followed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "resemblance"


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def test_twenty_four_changes_begin_in_files_that_exist():
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \|$", section("Where do I change …?"), re.M)
    assert len(rows) == 24
    assert len({file for _, file in rows}) == 24
    for change, file in rows:
        assert (SOURCE / file).is_file(), change
        folder, name = file.removeprefix("_").rsplit("/", 1)
        assert (ROOT / "tests" / folder / f"test_{name}").is_file(), change


def test_the_architecture_names_files_that_exist():
    page = (ROOT / "docs" / "reference/architecture.md").read_text(encoding="utf-8")
    found = re.findall(r"`((?!tests)\w+/\w+\.py)`", page)
    assert len(found) >= 12
    assert all((SOURCE / file).is_file() for file in found)


@pytest.mark.parametrize("what", ["an index", "a kernel", "a target"])
def test_following_a_walk_through_works(what, tmp_path):
    """Its diff applies to a copy of the package, and its example then runs."""
    if shutil.which("git") is None:
        pytest.skip("git applies the diff, and is not here")
    text = section(f"How to add {what}")
    (diff,) = re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    shutil.copytree(SOURCE, tmp_path / "src" / "resemblance")
    apply = ["git", "apply", "--unidiff-zero", "-"]
    subprocess.run(apply, input=diff, text=True, check=True, cwd=tmp_path)
    for name in ("a.rsm", "b.rsm"):
        shutil.copy(ROOT / "tests" / "golden" / name, tmp_path)
    code = f"import sys; sys.path.insert(0, 'src')\n{example}"
    code += "\nimport resemblance\nassert 'src/resemblance' in resemblance.__file__"
    code += f"\nassert {str(tmp_path)!r} in resemblance.__file__"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
