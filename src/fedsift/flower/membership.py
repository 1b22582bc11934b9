"""Who is there: which node is which client, and who was refused and why."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

import fedsift
from fedsift.flower import messages
from fedsift.flower.messages import Hello
from fedsift.flower.seats import Seats
from fedsift.flower.site import Site
from fedsift.flower.transport import Transport
from fedsift.types import Model

LOG = logging.getLogger("flwr")
CALLS = 3


@dataclass
class Membership:
    """Nodes come and go; a new one is asked who it is before it may take part."""

    transport: Transport
    here: Site
    seats: Seats
    nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    models: dict[int, Model] = field(default_factory=dict)  # of clients that have said hello
    refused: dict[int, str] = field(default_factory=dict)  # node -> why
    away: set[int] = field(default_factory=set)  # clients whose nodes were refused
    silent: Counter[int] = field(default_factory=Counter)  # node -> how often

    def wait_for(self, wanted: set[int], wait: float) -> None:
        """Ask who nodes are until all wanted clients are in or refused, or for `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            self.refresh(wait)
            if wanted <= self.nodes.keys() | self.away or time.monotonic() >= until:
                return
            time.sleep(self.transport.poll)

    def refresh(self, deadline: float) -> None:
        present = set(self.transport.grid.get_node_ids())
        if self.seats.refresh():
            self.refused.clear()
        self.nodes = {
            client: node
            for client, node in self.nodes.items()
            if node in present and not self.seats.find_objection(node, client)
        }
        new = present - self.refused.keys() - set(self.nodes.values())
        replies = self.transport.exchange(
            messages.HELLO, dict.fromkeys(sorted(new)), Hello, deadline
        )
        for node, hello in replies.messages.items():
            why = self._find_objection(hello)
            if seated := self.seats.find_objection(node, hello.client):
                self._refuse(node, seated)  # it says nothing about the client that it names
            elif why:
                self._refuse(node, why)
                self.away.add(hello.client)
            elif (
                hello.client in self.nodes
            ):  # its old node may be gone without Flower having noticed: ask again
                LOG.warning(
                    "fedsift: node %s says it is client %s, who is here already", node, hello.client
                )
            else:
                self._admit(node, hello)
        for node, refusal in replies.refusals.items():
            self._refuse(node, refusal.why)
        for node, why in replies.silent.items():
            self._count_silence(node, why)

    def _find_objection(self, hello: Hello) -> str | None:
        """Why this node cannot take part; None if it can."""
        if hello.version != fedsift.__version__:
            return (
                f"it has fedsift {messages.one_line(hello.version)[:40]}, the server "
                f"{fedsift.__version__}; install the same version"
            )
        if hello.experiment != self.here.digest:
            return "its experiment is not the server's; give both the same project"
        if not 0 <= hello.client < len(self.here.models):
            return (
                f"there is no client {hello.client}; partition-id goes from 0 to "
                f"{len(self.here.models) - 1}"
            )
        if hello.public != self.here.fingerprint:
            return (
                "its public set is not the server's: other samples, or another order; give it "
                "the same file"
            )
        if hello.model not in {model.name for model in self.here.models}:
            return "its model is not in the experiment; add it to clients.models"
        return None

    def _admit(self, node: int, hello: Hello) -> None:
        self.nodes[hello.client] = node
        self.models[hello.client] = next(
            model for model in self.here.models if model.name == hello.model
        )
        LOG.info("fedsift: node %s is client %s with model %s", node, hello.client, hello.model)

    def _count_silence(self, node: int, why: str) -> None:
        """It may speak the next time; one that never does must not hold up every round."""
        self.silent[node] += 1
        if self.silent[node] < CALLS:
            LOG.warning("fedsift: node %s has not said who it is: %s", node, why)
        else:
            self._refuse(node, f"asked {CALLS} times, it has not said who it is: {why}")

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = why
        LOG.error("fedsift: node %s is refused: %s", node, why)
