"""The papers that fedsift reproduces, by name. Each is a folder here: a `Paper`, its items and the
TOML files of its curves.
"""

from fedsift.papers import fas_icc2022, robustness, sift
from fedsift.reproduction.paper import Paper

PAPERS: dict[str, Paper] = {
    paper.name: paper for paper in (fas_icc2022.PAPER, sift.PAPER, robustness.PAPER)
}
