"""What crosses on Flower: a codec's bytes and a few plain values, all treated as hostile."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsift.codecs import WireError
from fedsift.codecs.wire import one_line as one_line

HELLO, TURN, REFUSED = "query.hello", "train.turn", "query.refused"  # as Flower routes them
# Of what crosses: messages here, bytes of codecs, and what a turn does with them. A change of any
# of them needs another number; nodes with another one are refused. tests/flower/test_protocol.py
# fails where bytes change under the same number.
PROTOCOL = 2
NEVER = -1  # in the place of a round

_VALUES, _PAYLOAD, _BYTES = "fedsift", "payload", "bytes"
_TOKEN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Hello:
    """Who a node is and what it has: the server decides whether they fit together."""

    client: int
    protocol: int
    version: str  # of fedsift; another one is allowed where the protocol is the same
    experiment: str  # digest
    public: str  # fingerprint
    model: str


@dataclass(frozen=True)
class Call:
    """The server's call for a client's turn. `last`: the latest round with an accepted answer."""

    run: str  # names the run across restarts
    round: int
    last: int
    payload: bytes


@dataclass(frozen=True)
class Answer:
    """A client's turn. If it keeps its own model, also the accuracy of that on its test samples."""

    round: int
    remembers: bool  # whether the next turn will need what this one left behind
    payload: bytes
    accuracy: float = float("nan")


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer. `lost`: the client does not have the memory the server builds on."""

    why: str
    lost: bool = False
    client: int = NEVER  # which client the node is by its settings, if they say


@dataclass(frozen=True)
class Objection:
    """Why the server does not let a node take part: for the node's own log."""

    why: str


FedsiftMessage = Hello | Call | Answer | Refusal | Objection


def write(message: FedsiftMessage) -> RecordDict:
    values = asdict(message)
    payload = values.pop("payload", None)
    records = RecordDict({_VALUES: ConfigRecord({"kind": type(message).__name__} | values)})
    if payload is not None:
        records[_PAYLOAD] = ArrayRecord({_BYTES: Array("uint8", (len(payload),), "bytes", payload)})
    return records


def read(records: RecordDict, *expected: type[FedsiftMessage]) -> Any:
    """The message, if it is one of the expected kinds and every value is what it should be."""
    values = dict(records.config_records.get(_VALUES, {}))
    name = values.pop("kind", None)
    kind = next((kind for kind in expected if kind.__name__ == name), None)
    if kind is None:
        raise WireError("foreign message: it is not the message that was expected")
    types = {name: field.type for name, field in kind.__dataclass_fields__.items()}
    if records.keys() != {_VALUES} | ({_PAYLOAD} if "payload" in types else set()):
        raise WireError("malformed message: it has other records than its kind needs")
    if "payload" in types:
        if "payload" in values:
            raise WireError("malformed message: it has no payload, or more than one")
        values["payload"] = _payload(records)
    if values.keys() != types.keys() or any(
        type(values[name]).__name__ != types[name] for name in types
    ):
        raise WireError("malformed message: its values are not those of its kind")
    message = kind(**values)  # type: ignore[arg-type]
    _check(message)
    return message


def _payload(records: RecordDict) -> bytes:
    arrays = records.array_records.get(_PAYLOAD)
    if arrays is None or arrays.keys() != {_BYTES}:
        raise WireError("malformed message: it has no payload, or more than one")
    return arrays[_BYTES].data


def _check(message: FedsiftMessage) -> None:
    if isinstance(message, Call) and not (
        is_token(message.run) and message.round > message.last >= NEVER
    ):
        raise WireError("malformed message: an impossible run or round")
    if isinstance(message, Answer) and not (isnan(message.accuracy) or 0 <= message.accuracy <= 1):
        raise WireError("malformed message: an impossible accuracy")
    if isinstance(message, Refusal | Objection) and message.why != one_line(message.why):
        raise WireError("malformed message: a refusal of many lines or without end")


def is_token(text: str) -> bool:
    """Whether a text is the name of a run: it becomes the name of a folder on a node."""
    return _TOKEN.fullmatch(text) is not None


def nothing() -> RecordDict:
    """For a message that needs no values beside its type."""
    return RecordDict()
