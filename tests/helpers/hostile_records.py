"""Hostile messages as they travel on Flower: records of named values, and objects in bytes.

Records are written here as text=type=value, so that an attacker changes a name, a type or a value
and puts the rest right. In the other form they are the objects that Flower sends, each named by
its checksum: as `{0}`, `{1}` and so on here, so that the names of changed objects are right.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedsift.codecs import WireError
from fedsift.flower import messages, transport
from fedsift.flower.messages import NEVER, Answer, Call, Objection, Refusal
from fedsift.flower.postbox import OBJECTS
from tests.helpers.hostile_messages import Field, Kind, counted
from tests.helpers.layouts import FLOWER

FLOWER_COPIES = 4  # lengths of a reply that Flower takes to put it together
Value = memoryview


def list_kinds() -> dict[str, Kind]:
    """Each of the five messages, in both forms."""
    kinds = {}
    for one in FLOWER:
        others = [other for other in FLOWER if other is not one]
        name, expected = type(one).__name__, type(one)
        kinds[f"Flower, {name}"] = Kind(
            partial(read_values, expected=expected),
            check_message,
            pack_values(messages.write(one)),
            split_values,
            tuple(pack_values(messages.write(other)) for other in others),
        )
        kinds[f"Flower, {name}, in bytes"] = Kind(
            partial(read_objects, expected=expected),
            check_message,
            pack_objects(one),
            split_objects,
            tuple(map(pack_objects, others)),
            FLOWER_COPIES,
        )
    return kinds


def check_message(found: Any) -> None:
    """Every value has its type and its range, and the whole can be sent on as it is."""
    for name, field in type(found).__dataclass_fields__.items():
        assert type(getattr(found, name)).__name__ == field.type
    if isinstance(found, Call):
        assert len(found.run) == 32 and set(found.run) <= set("0123456789abcdef")
        assert found.round > found.last >= NEVER
    if isinstance(found, Answer):
        assert isnan(found.accuracy) or 0 <= found.accuracy <= 1
        found = replace(found, accuracy=0.0)  # nan is not itself
    if isinstance(found, Refusal | Objection):
        assert found.why.isprintable() and len(found.why) <= 500
    assert messages.read(messages.write(found), type(found)) == found


# --- records of values ---


def make_text(value: Value) -> str:
    return str(value, "latin-1")


def make_number(value: Value) -> int:
    return int.from_bytes(value[:8], "little", signed=True)


def make_large_number(value: Value) -> int:
    return int.from_bytes(value[:8], "little")


def make_float(value: Value) -> float:
    return float(struct.unpack("<d", bytes(value[:8]).ljust(8, b"\0"))[0])


def make_truth(value: Value) -> bool:
    return any(value[:1])


def make_array(value: Value) -> Array:
    return Array("uint8", (len(value),), "bytes", bytes(value))


def make_odd_array(value: Value) -> Array:
    return Array("float64", (2**40, 0, -1), "numpy.ndarray", bytes(value))


def list_of(make: Callable[[Value], Any]) -> Callable[[Value], list[Any]]:
    """One for each eight bytes; none for none."""
    return lambda value: [make(value[i : i + 8]) for i in range(0, len(value), 8)]


PLAIN: tuple[Callable[[Value], Any], ...] = (make_text, make_number, make_float, make_truth)
TYPES = (
    *PLAIN,
    make_array,
    *(bytes, make_large_number, make_odd_array),
    *(list_of(make) for make in (*PLAIN, bytes, make_large_number)),
)
CODES = {str: 0, int: 1, float: 2, bool: 3, Array: 4}


def pack_values(records: RecordDict) -> bytes:
    """Every value of every record: its name, "=", a byte for its type, its bytes."""
    fields = []
    for place, record in records.items():
        for name, value in record.items():
            code = {
                str: lambda v: v.encode("latin-1"),
                int: lambda v: v.to_bytes(8, "little", signed=True),
                float: lambda v: struct.pack("<d", v),
                bool: lambda v: bytes([v]),
                Array: lambda v: v.data,
            }[type(value)](value)
            head = f"{place}/{name}=".encode() + bytes([CODES[type(value)]])
            fields.append(counted(4)(head + code))
    return b"".join(fields)


def split_values(message: bytes) -> list[Field]:
    fields = []
    for body in _split_counted(message):
        name, _, rest = bytes(body).partition(b"=")
        fields.append(Field((name + b"=", rest[:1], rest[1:]), counted(4)))
    return fields


def read_values(message: bytes, expected: type[Any]) -> Any:
    return messages.read(_build_records(message), expected)


def _build_records(message: bytes) -> RecordDict:
    """What Flower does not hold in records cannot be sent."""
    places: dict[str, dict[str, Any]] = {}
    for body in _split_counted(message):
        head, _, _ = bytes(body[:80]).partition(b"=")
        place, _, name = head.decode("latin-1").partition("/")
        value = body[len(head) + 1 :]
        make = TYPES[value[0] % len(TYPES)] if len(value) else make_text
        places.setdefault(place, {})[name] = make(value[1:])
    try:
        return RecordDict({place: _make_record(values) for place, values in places.items()})
    except (TypeError, ValueError) as error:
        raise WireError("not a record") from error


def _make_record(values: dict[str, Any]) -> ArrayRecord | MetricRecord | ConfigRecord:
    if any(isinstance(value, Array) for value in values.values()):
        return ArrayRecord(values)
    if values and all(type(value) is float for value in values.values()):
        return MetricRecord(values)
    return ConfigRecord(values)


# --- objects in bytes ---


def pack_objects(message: messages.FedsiftMessage) -> bytes:
    """A whole reply: what holds others comes after them."""
    where = Metadata(1, "", 7, 1, "asked", "5", 0.0, 60.0, messages.TURN)
    found = get_all_nested_objects(make_message(where, messages.write(message)))
    packed = b""
    for thing in found.values():
        part = thing.deflate()
        for number, id in enumerate(found):
            part = part.replace(id.encode(), b"{%d}" % number)
        packed += counted(4)(part)
    return packed


def split_objects(message: bytes) -> list[Field]:
    """Each object: its head, the beginning, and the rest."""
    fields = []
    for body in _split_counted(message):
        head, zero, rest = bytes(body).partition(b"\0")
        fields.append(Field((head + zero, rest[:24], rest[24:]), counted(4)))
    return fields


def read_objects(message: bytes, expected: type[Any]) -> Any:
    """As the server does: what Flower cannot put together costs its sender the round."""
    try:
        reply = _put_together(_split_counted(message))
    except Exception as error:
        raise WireError("its reply cannot be read") from error
    if reply.has_error():
        raise WireError("an error in the place of a message")
    assert transport.size(reply) > 0
    return messages.read(reply.content, expected)


def _put_together(parts: Sequence[Value]) -> Message:
    contents: dict[str, bytes] = {}
    for one in parts:
        part = bytes(one)
        for number, id in enumerate(list(contents)):
            part = part.replace(b"{%d}" % number, id.encode())
        contents[get_object_id(part)] = part
    reply = inflate_object_from_contents(list(contents)[-1], contents)
    if not isinstance(reply, Message):
        raise TypeError(type(reply).__name__)
    return reply


def _split_counted(message: bytes) -> list[Value]:
    """The last one may be cut. Of such a reply the server fetches so many objects at most."""
    view, at, found = memoryview(message), 0, list[Value]()
    while at < len(view):
        if len(found) == OBJECTS:
            raise WireError("too many parts")
        end = at + 4 + int.from_bytes(view[at : at + 4], "little")
        found.append(view[at + 4 : end])
        at = end
    return found
