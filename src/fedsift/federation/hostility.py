"""How hostile clients act in a simulated round: on altered data, or with altered answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedsift.attacks import Threat
from fedsift.codecs import WireError
from fedsift.types import Algorithm, Attackable, Client, Round, Server, Turn


@dataclass(frozen=True, eq=False)
class Hostility:
    """The hostile clients of a federation, and what becomes of their turns."""

    algorithm: Algorithm
    threat: Threat | None  # None: all are honest
    ids: frozenset[int]

    def poison(self, cohort: Iterable[Client], r: Round) -> list[Client]:
        """The cohort, with the data that hostile clients train on."""
        if self.threat is None:
            return list(cohort)
        return [self.threat.poison(c, r) if c.id in self.ids else c for c in cohort]

    def client_turn(self, client: Client, memory: Any, download: bytes, r: Round) -> Turn[Any]:
        """A client's turn; of one whose answer will be altered, the half before it is encoded."""
        algorithm = self.algorithm
        if self._alters(client) and isinstance(algorithm, Attackable):
            return algorithm.answer_turn(client, memory, download, r)
        return algorithm.client_turn(client, memory, download, r)

    def alter_turn(
        self, server: Server, cohort: Sequence[Client], outcomes: list[Any], r: Round
    ) -> Turn[list[Any]]:
        """The outcomes of all turns, once the hostile clients have heard the honest ones."""
        answers = {c.id: o for c, o in zip(cohort, outcomes, strict=True) if self._alters(c)}
        if not answers or self.threat is None or not isinstance(self.algorithm, Attackable):
            return outcomes
        found = dict(zip((c.id for c in cohort), outcomes, strict=True))
        uploads = {id: outcome[1] for id, outcome in found.items() if id not in answers}
        hear = partial(self._overhear, self.algorithm, server, uploads, r)
        clients = {c.id: c for c in cohort}
        found |= yield from self.threat.alter_turn(self.algorithm, clients, answers, hear, r)
        return [found[c.id] for c in cohort]

    def _alters(self, client: Client) -> bool:
        return self.threat is not None and self.threat.alters_answers and client.id in self.ids

    def _overhear(
        self, algorithm: Attackable, server: Server, uploads: Mapping[int, bytes], r: Round
    ) -> dict[int, Any]:
        """What is in these uploads; one that the server will refuse says nothing."""
        heard: dict[int, Any] = {}
        for id, upload in uploads.items():
            with suppress(WireError):
                heard[id] = algorithm.overhear(
                    self.algorithm.check_upload(server, id, upload, r), r
                )
        return heard
