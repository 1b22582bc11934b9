"""Liu, Zhang, Song and Letaief, ICC 2022: federated distillation with active sampling (FAS).

experiments/    its curves, for CIFAR-10 and for a quick version on 8x8 digits
items.py        its tables and figures, with the published figures and claims
theory.py       its Theorem 1, in closed form and by simulation
theorem.py      verdicts on the theorem
"""

from importlib import resources

from fedsift.papers.fas_icc2022 import theorem
from fedsift.papers.fas_icc2022.items import ITEMS, MAIN
from fedsift.reproduction.paper import ExtraReport, Paper

PAPER = Paper(
    name="fas-icc2022",
    title="Communication-Efficient Federated Distillation with Active Data Sampling",
    citation="L. Liu, J. Zhang, S. H. Song, K. B. Letaief. IEEE ICC 2022. arXiv:2203.06900",
    experiments=resources.files(__name__) / "experiments",
    items=ITEMS,
    setting="cifar10",
    quick="digits",
    extras={
        "theory": ExtraReport("Theorem 1", theorem.make_report, theorem.markdown, theorem.draw)
    },
    main=(*MAIN, "theory"),
)
