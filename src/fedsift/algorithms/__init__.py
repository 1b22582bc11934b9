"""The algorithms by name. Each value takes the axes it has as keywords; FD's family are presets of one class."""

from collections.abc import Callable

from fedsift.algorithms.softlabels import SoftLabelFD, fas, fd
from fedsift.algorithms.weights import FedAvg, fedavg
from fedsift.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {"fd": fd, "fas": fas, "fedavg": fedavg}

__all__ = ["ALGORITHMS", "FedAvg", "SoftLabelFD", "fas", "fd", "fedavg"]
