"""fedsift's own study: the best result for the bytes given, against opponents with the same parts.

experiments/    its curves, for CIFAR-10 and for a quick version on 8x8 digits
items.py        its tables, and what it must show
"""

from importlib import resources

from fedsift.papers.sift.items import ITEMS, MAIN
from fedsift.reproduction.paper import Paper

PAPER = Paper(
    name="sift",
    title="sift: the best result for the bytes you have, at every label skew",
    citation="fedsift's own study (docs/sift.md)",
    experiments=resources.files(__name__) / "experiments",
    items=ITEMS,
    setting="cifar10",
    quick="digits",
    recipe="main",
    main=MAIN,
)
