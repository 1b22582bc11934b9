"""Clients that fail again and again are not asked for some rounds, so that others need not wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Rests:
    """What happened, not what was planned: it is kept in memory, and a resumed run starts fresh."""

    after: int  # failures in a row; 0: nobody is rested
    length: int  # rounds
    failures: Counter[int] = field(default_factory=Counter)
    until: dict[int, int] = field(default_factory=dict)  # client -> first round it is asked again

    def find(self, clients: Iterable[int], round: int, needed: int) -> dict[int, str]:
        """Who rests in a round, and why. Nobody does if fewer than `needed` would be left."""
        clients = list(clients)
        resting = [client for client in clients if self.until.get(client, 0) > round]
        if len(clients) - len(resting) < needed:
            return {}
        return {
            client: f"rested after {self.failures[client]} failures, until round "
            f"{self.until[client]}"
            for client in resting
        }

    def note(self, round: int, answered: Iterable[int], failed: Iterable[int]) -> dict[int, str]:
        """The outcome of a round. Returns whom it sends to rest, with the reason.

        Whoever fails in the first round after a rest is rested again.
        """
        for client in answered:
            self.failures.pop(client, None)
        sent = {}
        for client in failed:
            self.failures[client] += 1
            if 0 < self.after <= self.failures[client]:
                self.until[client] = round + 1 + self.length
                sent[client] = (
                    f"failed {self.failures[client]} times in a row and rests until round "
                    f"{self.until[client]}"
                )
        return sent
