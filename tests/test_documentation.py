"""The pages that a newcomer reads: short, and their examples run as they stand."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a block that belongs into a file


def run_examples(page: Path, folder: Path) -> None:
    """Run the Python blocks of a page in their order; write those that name a file into it."""
    names: dict[str, object] = {"__name__": "example"}
    for block in BLOCK.findall(page.read_text()):
        if named := FILE.match(block):
            with open(folder / named.group(1), "a") as file:
                file.write(block)
        else:
            exec(compile(block, str(page), "exec"), names)


def test_the_readme_has_at_most_700_words():
    assert len((ROOT / "README.md").read_text().split()) <= 700


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/your-own.md"])
def test_the_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_examples(ROOT / page, tmp_path)
    for file in tmp_path.glob("*.py"):
        compile(file.read_text(), str(file), "exec")
        sys.modules.pop(file.stem, None)
