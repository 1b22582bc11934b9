"""Whose upload spoiled a round: each that spoils it when it is the only one heard.

So a server whose own training diverges blames nobody: it diverges whoever is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedsift.turns import batch_turns
from fedsift.types import Turn

FIRST = 5  # clients tried alone before the search: if all of them spoil it, nobody is to blame

Spoils = Callable[[Sequence[int]], Turn[bool]]  # whether a round with only these clients is bad


def find_guilty(senders: Sequence[int], spoils: Spoils) -> Turn[list[int]]:
    """Those who spoil a round alone, found by halving; none where they are more than half.

    `spoils` of all senders is known to be true.
    """
    if len(senders) < 2:
        return []
    places = np.linspace(0, len(senders) - 1, min(FIRST, len(senders))).astype(int)
    first = [senders[place] for place in places]
    alone = yield from batch_turns([spoils([client]) for client in first])
    if all(alone):
        return []
    guilty = yield from _search(list(senders), dict(zip(first, alone, strict=True)), spoils)
    return guilty if 2 * len(guilty) <= len(senders) else []


def _search(group: list[int], alone: dict[int, bool], spoils: Spoils) -> Turn[list[int]]:
    """The guilty in a group that spoils a round."""
    if len(group) == 1:
        return group
    halves = [group[: len(group) // 2], group[len(group) // 2 :]]
    unknown = [half for half in halves if len(half) > 1 or half[0] not in alone]
    found = iter((yield from batch_turns([spoils(half) for half in unknown])))
    guilty = []
    for half in halves:
        bad = next(found) if half in unknown else alone[half[0]]
        guilty += (yield from _search(half, alone, spoils)) if bad else []
    return guilty
