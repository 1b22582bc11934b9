"""Whose uploads spoiled a round: those that spoil it alone, then those that do so together.

A server whose own training diverges blames nobody: it diverges whoever is heard, so more than half
of the clients would be to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsift.turns import batch_turns
from fedsift.types import Turn

FIRST = 5  # clients tried alone before the search: if all of them spoil it, nobody is to blame
MOST_TRIES = 200  # of rounds in the search for those who spoil it together

Spoils = Callable[[Sequence[int]], Turn[bool]]  # whether a round with only these clients is bad


def find_guilty(senders: Sequence[int], spoils: Spoils) -> Turn[list[int]]:
    """The uploads to leave out, in the order of the senders; none where they are more than half.

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
    rest = [client for client in senders if client not in guilty]
    if not guilty or (yield from spoils(rest)):
        guilty += yield from _Together(rest, spoils).find()
    return [c for c in senders if c in guilty] if 2 * len(guilty) <= len(senders) else []


def _search(group: list[int], alone: dict[int, bool], spoils: Spoils) -> Turn[list[int]]:
    """Those who spoil a round alone, by halving a group that spoils it."""
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


@dataclass
class _Together:
    """The search for uploads that spoil a round only together.

    Clients are heard one group after another, as long as the round stays good. One that cannot be
    added is to blame, and with it all without whom it could have been added.
    """

    senders: Sequence[int]
    spoils: Spoils
    heard: list[int] = field(default_factory=list)
    guilty: list[int] = field(default_factory=list)
    tries: int = 0

    def find(self) -> Turn[list[int]]:
        yield from self._hear(list(self.senders))
        return list(self.senders) if self.tries >= MOST_TRIES else self.guilty

    def _hear(self, group: list[int]) -> Turn[None]:
        if not (yield from self._try([*self.heard, *group])):
            self.heard += group
        elif len(group) == 1:
            partners = yield from self._find_partners(group[0], list(self.heard))
            self.guilty += [*group, *partners]
            self.heard = [client for client in self.heard if client not in partners]
        else:
            yield from self._hear(group[: len(group) // 2])
            yield from self._hear(group[len(group) // 2 :])

    def _find_partners(self, last: int, group: list[int]) -> Turn[list[int]]:
        """Those of a group without each of whom `last` could have been heard."""
        others = [client for client in self.heard if client not in group]
        if not group or (yield from self._try([*others, last])):
            return []
        if len(group) == 1:
            return group
        half = len(group) // 2
        first = yield from self._find_partners(last, group[:half])
        return first + (yield from self._find_partners(last, group[half:]))

    def _try(self, clients: list[int]) -> Turn[bool]:
        """Whether they spoil a round; when there have been too many tries, nothing does."""
        self.tries += 1
        return self.tries <= MOST_TRIES and (yield from self.spoils(clients))
