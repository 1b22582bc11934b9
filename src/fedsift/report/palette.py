"""Colours that people with any colour vision can tell apart, the same for a method everywhere.

They are Okabe and Ito's without black and yellow, which a dark or a white page swallows, and four
that differ from them in lightness.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from fedsift.report import Method

PALETTE = (
    "#0072b2",  # blue
    "#e69f00",  # orange
    "#009e73",  # green
    "#d55e00",  # vermilion
    "#56b4e9",  # sky
    "#cc79a7",  # pink
    "#332288",  # indigo
    "#882255",  # wine
    "#8c8c8c",  # grey
    "#999933",  # olive
)
ALGORITHMS = (  # each has the colour of its place
    "fedavg",
    "fd",
    "fas",
    "sift",
    "cfd",
    "ds-fl",
    "feddf",
    "gossip",
    "fedpaq",
    "fd-jeong",
)


def colours() -> Iterator[str]:
    """Ten, then a lighter one of each; then the same again."""
    return itertools.cycle((*PALETTE, *map(_lighten, PALETTE)))


def colour_methods(compared: Sequence[Method]) -> list[str]:
    """A colour each. The first of an algorithm has that algorithm's; others have one of those
    that are left.
    """
    return _colour([method.runs[0].experiment.algorithm.name for method in compared])


def colour_systems(names: Sequence[str]) -> dict[str, str]:
    """The same for systems by the names that papers give them: "FedAvg with parts", "DS-FL"."""
    plain = [name.lower().removesuffix(" with parts") for name in names]
    known = ["fd-jeong" if name == "fd of jeong" else name for name in plain]
    return dict(zip(names, _colour(known), strict=True))


def _colour(algorithms: Sequence[str]) -> list[str]:
    own = dict(zip(ALGORITHMS, PALETTE, strict=True))
    wanted = [own.get(name) for name in algorithms]
    firsts = [colour if colour not in wanted[:n] else None for n, colour in enumerate(wanted)]
    free = (colour for colour in colours() if colour not in firsts)
    return [colour or next(free) for colour in firsts]


def _lighten(colour: str) -> str:
    """Half-way to white."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)
