"""Messages out and answers in over Flower's grid, before a deadline. It counts Flower's bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsift.codecs import WireError
from fedsift.flower import messages, postbox
from fedsift.flower.messages import FedsiftMessage, Refusal

GREETING = 100_000  # bytes of a reply that has no payload, at most
NOTICE = 600.0  # seconds after which a notice expires that a node has not read


@dataclass
class Traffic:
    """Bytes as Flower serialises them, with payloads, and replies to nothing that was asked."""

    sent: int = 0
    received: int = 0
    ignored: int = 0


@dataclass(frozen=True)
class Limits:
    """When an exchange ends, and how large a reply may be."""

    deadline: float  # seconds
    enough: int = 0  # good answers after which the others have `patience` seconds left; 0: all
    patience: float = 0.0
    largest: int = GREETING  # bytes of a reply as Flower serialises it
    heard: int = 0  # good answers of an earlier exchange, which count for `enough`


@dataclass
class Outcomes:
    """By node: a message of the expected kind, or why there is none."""

    messages: dict[int, Any] = field(default_factory=dict)
    refusals: dict[int, Refusal] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)  # nothing came from the node itself
    too_large: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # until the reply was here


Judge = Callable[[int, Any], bool]  # whether the answer of a node is good


@dataclass
class Transport:
    grid: Grid
    poll: float
    traffic: Traffic = field(default_factory=Traffic)

    def exchange(
        self,
        kind: str,
        out: Mapping[int, FedsiftMessage | None],
        expected: type[FedsiftMessage],
        limits: Limits,
        group: str = "",
        is_good: Judge = lambda node, answer: True,
    ) -> Outcomes:
        """One message per node; the answers that come before the deadline, when messages expire.

        `is_good` is asked only where some answers may be enough, and often of the same one.
        """
        outcomes, begun = Outcomes(), time.monotonic()
        until, why = begun + limits.deadline, f"no reply within {limits.deadline:g} s"
        waiting: dict[str, int] = {}
        for node, asked in out.items():
            if id := self._push(kind, node, asked, limits.deadline, group):
                waiting[id] = node
            else:
                outcomes.silent[node] = "Flower did not take the message"
        closing = False
        while waiting and time.monotonic() < until:
            came = self._pull(outcomes, waiting, limits.largest)
            for reply in came:
                self._receive(outcomes, waiting, reply, expected, limits.largest, begun)
            if not closing and _has_enough(outcomes, limits, is_good):
                closing = True
                until = min(until, time.monotonic() + limits.patience)
                why = f"no reply within {limits.patience:g} s after {limits.enough} had answered"
            if waiting and not came:
                time.sleep(min(self.poll, max(0.0, until - time.monotonic())))
        outcomes.silent |= dict.fromkeys(waiting.values(), why)
        return outcomes

    def notify(self, kind: str, node: int, told: FedsiftMessage) -> None:
        """A message whose reply nobody waits for."""
        self._push(kind, node, told, NOTICE, "")

    def _push(
        self, kind: str, node: int, asked: FedsiftMessage | None, ttl: float, group: str
    ) -> str | None:
        content = messages.write(asked) if asked else messages.nothing()
        message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)
        self.traffic.sent += size(message)
        return next(iter(self.grid.push_messages([message])), None)

    def _pull(self, outcomes: Outcomes, waiting: dict[str, int], largest: int) -> list[Message]:
        try:
            return postbox.pull(self.grid, list(waiting), largest)
        except postbox.Unreadable as error:
            node = waiting.pop(error.reply_to, None)
            if node is not None:
                outcomes.refusals[node] = Refusal(str(error))
            return []

    def _receive(
        self,
        outcomes: Outcomes,
        waiting: dict[str, int],
        reply: Message,
        expected: type[FedsiftMessage],
        largest: int,
        begun: float,
    ) -> None:
        bytes = size(reply)
        self.traffic.received += bytes
        node = waiting.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            self.traffic.ignored += 1
            return
        outcomes.seconds[node] = time.monotonic() - begun
        if postbox.is_too_large(reply):
            outcomes.too_large[node] = f"its reply has more than {largest} bytes"
        elif bytes > largest:
            outcomes.too_large[node] = f"its reply has {bytes} bytes, at most {largest} are right"
        else:
            _sort(outcomes, node, reply, expected)


def _has_enough(outcomes: Outcomes, limits: Limits, is_good: Judge) -> bool:
    if not 0 < limits.enough <= limits.heard + len(outcomes.messages):
        return False
    good = sum(is_good(*pair) for pair in outcomes.messages.items())
    return limits.heard + good >= limits.enough


def _sort(outcomes: Outcomes, node: int, reply: Message, expected: type[FedsiftMessage]) -> None:
    if reply.has_error():
        outcomes.silent[node] = messages.one_line(
            f"Flower error {reply.error.code}: {reply.error.reason}"
        )
        return
    try:
        answer = messages.read(reply.content, expected, Refusal)
    except WireError as error:
        answer = Refusal(str(error))
    if isinstance(answer, Refusal):
        outcomes.refusals[node] = answer
    else:
        outcomes.messages[node] = answer


def size(thing: Any) -> int:
    """The bytes of a message, and of all records and arrays in it, as Flower sends them."""
    return len(thing.deflate()) + sum(size(child) for child in (thing.children or {}).values())
