"""Who is there: which node is which client, and who was refused and why."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import fedsift
from fedsift.flower import messages
from fedsift.flower.logs import complain, say, warn
from fedsift.flower.messages import NEVER, PROTOCOL, REFUSED, Hello, Objection
from fedsift.flower.seats import Seats
from fedsift.flower.site import Site
from fedsift.flower.transport import Limits, Transport
from fedsift.types import Model

CALLS = 3
FORGET = 5  # rounds after which a refused node is asked again: it may be fixed


@dataclass(frozen=True)
class Refused:
    why: str
    client: int  # that it says it is; NEVER if it does not say
    round: int  # in which it was refused


@dataclass
class Membership:
    """Nodes come and go; a new one is asked who it is before it may take part."""

    transport: Transport
    here: Site
    seats: Seats
    nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    models: dict[int, Model] = field(default_factory=dict)  # of clients that have said hello
    refused: dict[int, Refused] = field(default_factory=dict)  # by node
    spare: dict[int, Hello] = field(default_factory=dict)  # nodes whose client has another node
    silent: Counter[int] = field(default_factory=Counter)  # node -> how often
    round: int = 0

    def wait_for(self, wanted: set[int], wait: float) -> None:
        """Ask who nodes are until all wanted clients are in or refused, or for `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            self.refresh(wait)
            away = {refused.client for refused in self.refused.values()}
            if wanted <= self.nodes.keys() | away or time.monotonic() >= until:
                return
            time.sleep(self.transport.poll)

    def why_absent(self, client: int) -> str:
        """For the ledger: why no node can be asked for this client."""
        reasons = [refused.why for refused in self.refused.values() if refused.client == client]
        return reasons[-1] if reasons else "no node of this client is there"

    def refresh(self, deadline: float) -> None:
        present = set(self.transport.grid.get_node_ids())
        if self.seats.refresh():
            self.refused.clear()
        self._forget(present)
        new = present - self.refused.keys() - set(self.nodes.values()) - self.spare.keys()
        replies = self.transport.exchange(
            messages.HELLO, dict.fromkeys(sorted(new)), Hello, Limits(deadline)
        )
        for node, hello in replies.messages.items():
            self._receive(node, hello)
        for node, refusal in replies.refusals.items():
            says = NEVER if self.seats.find_objection(node, refusal.client) else refusal.client
            self._note(node, refusal.why, says)
        for node, why in replies.too_large.items():
            self.refuse(node, why)
        for node, why in replies.silent.items():
            self._count_silence(node, why)

    def refuse(self, node: int, why: str, client: int = NEVER) -> None:
        """Not asked again for some rounds; the node is told why."""
        self._note(node, why, client)
        self.transport.notify(REFUSED, node, Objection(messages.one_line(why)))

    def _forget(self, present: set[int]) -> None:
        """Who has left may come back fixed, and under the same name: names belong to keys.

        Silence is remembered by key, or a node could come and go and hold up every round.
        """
        lasting = present | self.seats.list_nodes()
        self.silent = Counter({node: n for node, n in self.silent.items() if node in lasting})
        self.nodes = {
            client: node
            for client, node in self.nodes.items()
            if node in present and not self.seats.find_objection(node, client)
        }
        self.refused = {
            node: refused
            for node, refused in self.refused.items()
            if (node in present or self.silent[node] >= CALLS)
            and self.round < refused.round + FORGET
        }
        waiting, self.spare = self.spare, {}
        for node, hello in waiting.items():
            if node in present and not self.seats.find_objection(node, hello.client):
                self._seat(node, hello, told=True)

    def _receive(self, node: int, hello: Hello) -> None:
        if seated := self.seats.find_objection(node, hello.client):
            self.refuse(node, seated)  # it says nothing about the client that it names
            return
        why = self._find_objection(hello)
        if why:
            self.refuse(node, why, hello.client)
            return
        if hello.version != fedsift.__version__:
            warn(
                f"node {node} has fedsift {messages.one_line(hello.version)[:40]}, the server "
                f"{fedsift.__version__}; the protocol is the same",
                node=node,
            )
        self._seat(node, hello)

    def _seat(self, node: int, hello: Hello, told: bool = False) -> None:
        """Its client's old node may be gone without Flower having noticed: then it waits."""
        if hello.client not in self.nodes:
            self._admit(node, hello)
            return
        self.spare[node] = hello
        if not told:
            why = f"client {hello.client}, who is here already"
            warn(f"node {node} says it is {why}", node=node, client=hello.client)
            told_why = f"this node says it is {why} with another node; check partition-id"
            self.transport.notify(REFUSED, node, Objection(told_why))

    def _find_objection(self, hello: Hello) -> str | None:
        """Why this node cannot take part; None if it can."""
        if hello.protocol != PROTOCOL:
            return (
                f"it has wire protocol {hello.protocol} (fedsift "
                f"{messages.one_line(hello.version)[:40]}), the server {PROTOCOL} (fedsift "
                f"{fedsift.__version__}); install a version with the same protocol"
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
        self.silent.pop(node, None)
        self.models[hello.client] = next(
            model for model in self.here.models if model.name == hello.model
        )
        say(
            f"node {node} is client {hello.client} with model {hello.model}",
            node=node,
            client=hello.client,
        )

    def _count_silence(self, node: int, why: str) -> None:
        """It may speak the next time; one that never does must not hold up every round."""
        self.silent[node] += 1
        if self.silent[node] < CALLS:
            warn(f"node {node} has not said who it is: {why}", node=node)
        else:
            self.refuse(node, f"asked {CALLS} times, it has not said who it is: {why}")

    def _note(self, node: int, why: str, client: int) -> None:
        self.refused[node] = Refused(why, client, self.round)
        self.nodes = {id: other for id, other in self.nodes.items() if other != node}
        who = f" (client {client})" if 0 <= client < len(self.here.models) else ""
        complain(f"node {node}{who} is refused: {why}", node=node, client=client)
