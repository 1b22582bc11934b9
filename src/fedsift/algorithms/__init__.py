"""Algorithms by name. Each value takes its axes as keywords; a family is presets of one class."""

from collections.abc import Callable

from fedsift.algorithms.fd import cfd, ds_fl, fas, fd
from fedsift.algorithms.gossip import Gossip, gossip
from fedsift.algorithms.per_label import JeongFD, Mix2FLD, fd_jeong, mix2fld
from fedsift.algorithms.sift import Sift, sift
from fedsift.algorithms.soft_labels import SoftLabelFD
from fedsift.algorithms.weights import FedAvg, fedavg, feddf, fedpaq
from fedsift.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fd": fd,
    "fas": fas,
    "sift": sift,
    "ds-fl": ds_fl,
    "cfd": cfd,
    "fedavg": fedavg,
    "fedpaq": fedpaq,
    "feddf": feddf,
    "fd-jeong": fd_jeong,
    "mix2fld": mix2fld,
    "gossip": gossip,
}

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "Gossip",
    "JeongFD",
    "Mix2FLD",
    "Sift",
    "SoftLabelFD",
    "cfd",
    "ds_fl",
    "fas",
    "fd",
    "fd_jeong",
    "fedavg",
    "feddf",
    "fedpaq",
    "gossip",
    "mix2fld",
    "sift",
]
