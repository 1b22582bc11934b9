"""fedsift's own study of hostile clients: every attack against every rule that applies.

experiments/    its curves on 8x8 digits, and a small version of them
items.py        its tables, and what it must show
tables.py       how a grid of attacks and rules is told and drawn
"""

from importlib import resources

from fedsift.papers.robustness.items import ITEMS
from fedsift.reproduction.paper import Paper

PAPER = Paper(
    name="robustness",
    title="Hostile clients: which attacks get through, and which rules stop them",
    citation="fedsift's own study (docs/robustness.md)",
    experiments=resources.files(__name__) / "experiments",
    items=ITEMS,
    setting="digits",
    quick="digits-small",
    recipe="main",
    main=("must", "grid"),
)
