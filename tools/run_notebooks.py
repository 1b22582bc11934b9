"""Run the notebooks and write their outputs into them.

    python tools/run_notebooks.py [FILE...]      # default: all of notebooks/

Each starts in a new kernel. Times and other things that differ between equal runs are not kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SECONDS = 900  # for a cell, on a machine with much else to do


def main(arguments: list[str]) -> None:
    for file in [Path(name) for name in arguments] or sorted(FOLDER.glob("*.ipynb")):
        import nbformat

        notebook = run(file)
        nbformat.write(notebook, file)
        print(f"wrote {file.name}: {file.stat().st_size / 1e3:.0f} kB")


def run(file: Path) -> Any:
    """The notebook of a file, run from its first cell to its last."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    place = {"metadata": {"path": str(file.parent)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def printed(notebook: Any) -> list[str]:
    """What the cells print, one text per cell that prints."""
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    texts = ["".join(out["text"] for out in some if "text" in out) for some in outputs]
    return [text for text in texts if text]


def compare(one: list[str], other: list[str], tolerance: float) -> list[str]:
    """Lines that differ by more than rounding: other words, or numbers further apart."""
    left, right = ("\n".join(texts).splitlines() for texts in (one, other))
    if len(left) != len(right):
        return [f"{len(left)} lines instead of {len(right)}"]
    return [a for a, b in zip(left, right, strict=True) if not alike(a, b, tolerance)]


NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def alike(one: str, other: str, tolerance: float) -> bool:
    """The same words, and numbers within the tolerance: of themselves, if they are above 1."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= tolerance * max(1, float(b)) for a, b in pairs)


if __name__ == "__main__":
    main(sys.argv[1:])
