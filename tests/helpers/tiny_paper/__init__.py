"""A second paper, as small as one can be: a folder with one item and two curves."""

from importlib import resources

from fedsift.reproduction.paper import Item, Paper
from fedsift.reproduction.plans import Cell, make_cells
from fedsift.reproduction.verdicts import Above, Claim

SURE, PLAIN = Cell("sure", 1.0), Cell("plain", 1.0)  # curve, alpha
CLAIM = Claim("Sure samples are better", (Above(SURE, PLAIN),))

PAPER = Paper(
    name="tiny",  # fedsift reproduce tiny fig1
    title="A Tiny Paper",
    citation="N. N. 2026",
    experiments=resources.files(__name__) / "experiments",
    items={
        "fig1": Item(
            "Figure 1: two samplers",
            lambda plan: make_cells(["plain", "sure"], [1.0]),  # what is run
            lambda plan: [CLAIM],  # what is judged
            published={PLAIN: 0.5, SURE: 0.6},
        )
    },
    setting="digits",
)
