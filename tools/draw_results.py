"""Draw the pictures of all kept results again, from their JSON: when colours or layouts change.

python tools/draw_results.py            # every results/PAPER/SETTING/ITEM.png
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fedsift.papers import PAPERS
from fedsift.reproduction import pictures

RESULTS = Path(__file__).resolve().parent.parent / "results"


def find_pictures(results: Path) -> Iterator[tuple[str, Path]]:
    """The paper and the file of every picture that has its figures beside it."""
    for picture in sorted(results.glob("*/*/*.png")):
        if picture.with_suffix(".json").is_file():
            yield picture.relative_to(results).parts[0], picture


def draw_again(name: str, picture: Path) -> None:
    paper, item = PAPERS[name], picture.stem
    report = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
    if item in paper.extras:
        paper.extras[item].draw(report, picture)
    else:
        (paper.items[item].draw or pictures.draw)(report, picture)


if __name__ == "__main__":
    for name, picture in find_pictures(RESULTS):
        draw_again(name, picture)
        print(f"wrote {picture.relative_to(RESULTS.parent)}")
