"""Messages out and answers in over Flower's grid, before a deadline. It counts Flower's bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsift.codecs import WireError
from fedsift.flower import messages
from fedsift.flower.messages import FedsiftMessage, Refusal


@dataclass
class Traffic:
    """Bytes as Flower serialises them, with payloads, and replies to nothing that was asked."""

    sent: int = 0
    received: int = 0
    ignored: int = 0


@dataclass
class Answers:
    """By node: a message of the expected kind, or why there is none."""

    messages: dict[int, Any] = field(default_factory=dict)
    refusals: dict[int, Refusal] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)  # nothing came from the node itself


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
        deadline: float,
        group: str = "",
    ) -> Answers:
        """One message per node; the answers that come before the deadline, when messages expire."""
        answers, until = Answers(), time.monotonic() + deadline
        waiting: dict[str, int] = {}
        for node, asked in out.items():
            content = messages.write(asked) if asked else messages.nothing()
            message = Message(
                content, dst_node_id=node, message_type=kind, ttl=deadline, group_id=group
            )
            self.traffic.sent += size(message)
            id = next(iter(self.grid.push_messages([message])), None)
            if id:
                waiting[id] = node
            else:
                answers.silent[node] = "Flower did not take the message"
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                self.traffic.received += size(reply)
                if reply.metadata.reply_to_message_id in waiting:
                    _sort(answers, waiting.pop(reply.metadata.reply_to_message_id), reply, expected)
                else:
                    self.traffic.ignored += 1
            if waiting:
                time.sleep(self.poll)
        answers.silent |= dict.fromkeys(waiting.values(), f"no reply within {deadline:g} s")
        return answers


def _sort(answers: Answers, node: int, reply: Message, expected: type[FedsiftMessage]) -> None:
    if reply.has_error():
        answers.silent[node] = messages.one_line(
            f"Flower error {reply.error.code}: {reply.error.reason}"
        )
        return
    try:
        answer = messages.read(reply.content, expected, Refusal)
    except WireError as error:
        answer = Refusal(str(error))
    if isinstance(answer, Refusal):
        answers.refusals[node] = answer
    else:
        answers.messages[node] = answer


def size(thing: Any) -> int:
    """The bytes of a message, and of all records and arrays in it, as Flower sends them."""
    return len(thing.deflate()) + sum(size(child) for child in (thing.children or {}).values())
