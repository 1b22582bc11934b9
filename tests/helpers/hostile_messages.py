"""Whole uploads and downloads, taken from small federations, and what an attacker makes of them.

A message has fields: lengths, claims, answers, headers, payloads. An attacker who knows the format
changes one field and puts the rest right: lengths, and the checksum. To have every checksum right,
the reader does not look at it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsift.algorithms import (
    cfd,
    ds_fl,
    fas,
    fd,
    fd_jeong,
    fedavg,
    fedpaq,
    gossip,
    mix2fld,
    sift,
)
from fedsift.algorithms.audits import Audits, _find_checksum
from fedsift.codecs import WireError, wire
from fedsift.engines import choose_engine
from fedsift.models import initial_state
from fedsift.turns import run_turn
from fedsift.types import Client, Fit, Predict, Recipe, Round, Server, Weights
from tests.helpers import toys

SAMPLES, CLASSES, FEATURES, CLIENTS = 40, 4, 6, 3
BUDGET, ROUNDS = 12, 3
ONCE = Recipe(epochs=2, batch=4, lr=0.5)  # weights that differ from round to round
NUMBERS = (0, 1, 2, 5, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


class Field(NamedTuple):
    """A part of a message. `close` makes the bytes that are sent: a length or a checksum joins."""

    parts: tuple[bytes, ...]
    close: Callable[[bytes], bytes] = bytes


class Kind(NamedTuple):
    """`read` takes a message; WireError, or something that `check` finds right."""

    read: Callable[[bytes], Any]
    check: Callable[[Any], None]
    message: bytes  # an honest one
    fields: Callable[[bytes], list[Field]]
    others: tuple[bytes, ...]  # honest ones of other clients
    copies: int = 2  # what reading may take, in lengths of the message: parts of it are copied


# --- damage ---


def damage_bytes(code: bytes, generator: np.random.Generator) -> bytes:
    """One part, changed: bits, a number, some bytes, the end, the length, or all of it."""
    if not code:
        return generator.bytes(int(generator.integers(1, 9)))
    how, at = int(generator.integers(8)), int(generator.integers(len(code)))
    changed = bytearray(code)
    if how < 2:
        for bit in generator.integers(0, 8 * len(code), generator.integers(1, 5)).tolist():
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
    if how == 2:  # a number, as one writes it who looks for overflows
        size = int(generator.choice((1, 2, 3, 4)))
        number = NUMBERS[generator.integers(len(NUMBERS))] % 256**size
        return (code[:at] + number.to_bytes(size, "little") + code[at + size :])[: len(code)]
    if how == 3:
        size = int(generator.integers(1, 9))
        other = (generator.bytes(size), bytes(size), b"\xff" * size)[generator.integers(3)]
        return (code[:at] + other + code[at + size :])[: len(code)]
    if how == 4:
        return code[:at] + generator.bytes(len(code) - at)
    if how == 5:
        return code[:at]
    if how == 6:
        return code + generator.bytes(int(generator.integers(1, 40)))
    return generator.bytes(int(generator.integers(2 * len(code) + 1)))


def join(fields: Sequence[Field]) -> bytes:
    return b"".join(one.close(b"".join(one.parts)) for one in fields)


def damage_fields(kind: Kind, generator: np.random.Generator) -> bytes:
    """One field is changed, left out, sent twice, moved, or taken from another client."""
    fields = kind.fields(kind.message)
    which, how = int(generator.integers(len(fields))), int(generator.integers(10))
    if how == 0:
        return join(fields[:which] + fields[which + 1 :])
    if how == 1:
        return join(fields[: which + 1] + fields[which:])
    if how == 2:
        return join([fields[i] for i in generator.permutation(len(fields))])
    if how == 3 and kind.others:
        other = kind.fields(kind.others[generator.integers(len(kind.others))])
        return join(fields[:which] + other[which : which + 1] + fields[which + 1 :])
    parts = list(fields[which].parts)
    part = int(generator.integers(len(parts)))
    parts[part] = damage_bytes(parts[part], generator)
    return join([*fields[:which], fields[which]._replace(parts=tuple(parts)), *fields[which + 1 :]])


def list_hostile(kind: Kind, count: int, seed: int) -> Iterator[tuple[bytes, bool]]:
    """Messages, and whether their checksums are right: three in five are, by an attacker's hand."""
    generator = np.random.default_rng(seed)
    for i in range(count):
        if i % 5 < 2:
            yield damage_bytes(kind.message, generator), False
        else:
            yield damage_fields(kind, generator), True


def list_oversized(kind: Kind, size: int = 4 * 2**20) -> Iterator[tuple[bytes, bool]]:
    """Megabytes: alone, after an honest message, and in each field with all lengths right."""
    fields = kind.fields(kind.message)
    for filler in (b"\0", b"\xff", b"\1"):
        much = filler * size
        yield from ((much, False), (much, True), (kind.message + much, True))
        for i, one in enumerate(fields):
            large = one._replace(parts=(*one.parts, much))
            yield join([*fields[:i], large, *fields[i + 1 :]]), True


@contextmanager
def every_checksum_right() -> Iterator[None]:
    """What the receiver finds implied is not known to whoever damages a message."""
    verify = wire.verify
    wire.verify = lambda message, implied=b"": None  # a mock would take more memory than reading
    try:
        yield
    finally:
        wire.verify = verify


def survive(kind: Kind, message: bytes, sealed: bool) -> bool:
    """Whether it was taken. Anything but a WireError or a right result is an error."""
    try:
        with every_checksum_right() if sealed else nullcontext():
            found = kind.read(message)
    except WireError as error:
        check_error(error)
        return False
    kind.check(found)
    return True


def check_error(error: WireError) -> None:
    """Its text goes into logs and ledgers: one line of bounded length, whatever it quotes."""
    assert len(str(error)) <= 500 and str(error).isprintable()


# --- small federations ---


@dataclass(frozen=True, eq=False)
class Scene:
    """A federation before round `r`, with what clients and server send each other in it."""

    system: Any
    server: Server
    r: Round
    memories: dict[int, Any]
    downloads: dict[int, bytes]
    uploads: dict[int, bytes] = field(default_factory=dict)


def make_client(id: int) -> Client:
    generator = np.random.default_rng(id)
    labels = np.array([id % CLASSES, (id + 1) % CLASSES] * 5)
    values = np.eye(CLASSES, FEATURES)[labels] + 0.3 * generator.standard_normal((10, FEATURES))
    model = toys.model(toys.linear, (FEATURES,), CLASSES)
    return Client(id, model, toys.labelled(values.tolist(), labels, CLASSES))


PUBLIC = toys.samples(toys.gaussians(SAMPLES, CLASSES, FEATURES)[0].tolist())
COHORT = tuple(make_client(id) for id in range(CLIENTS))


def make_round(number: int, start: dict[str, Weights] | None = None) -> Round:
    model = COHORT[0].model
    return Round(number, 0, PUBLIC, CLASSES, (model,), lambda id: model, CLIENTS, CLIENTS, start)


def play(system: Any, rounds: int, starts: bool = False, engine: Any = None) -> Scene:
    """So many rounds with all clients, and the messages of the next one."""
    engine = engine or choose_engine("sequential")[0]
    first = {COHORT[0].model.name: initial_state(COHORT[0].model, 5)} if starts else None
    server = system.start(make_round(0, first))
    memories = {client.id: toys.no_memory(system) for client in COHORT}
    for number in range(rounds + 1):
        r = make_round(number, {} if starts else None)
        downloads = system.prepare_downloads(server, COHORT, r)
        scene = Scene(system, server, r, dict(memories), downloads)
        for client in COHORT:
            turn = system.client_turn(client, memories[client.id], downloads[client.id], r)
            memories[client.id], scene.uploads[client.id] = run_turn(turn, engine)
        if number < rounds:
            server = run_turn(toys.serve(system, server, scene.uploads, r), engine)
    return scene


def read_upload(scene: Scene) -> Callable[[bytes], Any]:
    return lambda message: scene.system.check_upload(scene.server, 0, message, scene.r)


def read_download(scene: Scene) -> Callable[[bytes], Any]:
    """What the client is about to compute once it has read its download."""

    def read(message: bytes) -> Any:
        turn = scene.system.client_turn(COHORT[0], scene.memories[0], message, scene.r)
        return next(turn)

    return read


# --- fields ---


def split_message(message: bytes, close: Callable[[bytes], bytes] = bytes) -> Field:
    """Header, numbers at the beginning, and the rest."""
    head = wire.HEADER_BYTES
    return Field((message[:head], message[head : head + 5], message[head + 5 :]), close)


def whole(message: bytes) -> list[Field]:
    return [split_message(message)]


def counted(size: int) -> Callable[[bytes], bytes]:
    """A length of so many bytes stands before."""
    return lambda body: (len(body) % 256**size).to_bytes(size, "little") + body


def split_counted(message: bytes, size: int) -> tuple[bytes, bytes]:
    end = size + int.from_bytes(message[:size], "little")
    return message[size:end], message[end:]


def counted_messages(message: bytes) -> list[Field]:
    """Messages after their lengths: of mix2fld, and of labels of missed rounds."""
    fields = []
    while message:
        one, message = split_counted(message, 4)
        fields.append(split_message(one, counted(4)))
    return fields


def means_and_mixtures(message: bytes) -> list[Field]:
    means, mixtures = split_counted(message, 4)
    return [split_message(means, counted(4)), *([split_message(mixtures)] if mixtures else [])]


def first_weights_and_labels(message: bytes) -> list[Field]:
    weights, labels = split_counted(message, 4)
    return [split_message(weights, counted(4)), *([split_message(labels)] if labels else [])]


def after_expertise(message: bytes) -> list[Field]:
    claims, labels = split_counted(message, 3)
    return [Field((claims,), counted(3)), split_message(labels)]


def after(size: int, rest: Callable[[bytes], list[Field]]) -> Callable[[bytes], list[Field]]:
    """So many bytes without a length, then the rest."""
    return lambda message: [Field((message[:size],)), *rest(message[size:])]


def after_audit(audits: Audits, r: Round) -> Callable[[bytes], list[Field]]:
    """The samples asked about, under a checksum of their own, then the rest."""

    def split(message: bytes) -> list[Field]:
        rows, rest = audits.split_download(message, r)
        end = len(audits.encode_rows(rows, r)) - 4

        def close(listed: bytes) -> bytes:
            return listed + struct.pack("<I", _find_checksum(listed, r))

        return [Field((message[:1], message[1:end]), close), *whole(rest)]

    return split


def equal_messages(size: int) -> Callable[[bytes], list[Field]]:
    return lambda mail: [split_message(mail[i : i + size]) for i in range(0, len(mail), size)]


# --- what is right ---


def check_labels(labels: Any, most: int, samples: int = SAMPLES) -> None:
    index, probs = labels.index, labels.probs
    assert 1 <= len(index) <= most and (np.diff(index) > 0).all()
    assert index[0] >= 0 and index[-1] < samples
    assert probs.shape == (len(index), CLASSES) and (probs >= 0).all()
    assert (np.abs(probs.sum(1) - 1) < 0.011).all()
    if labels.weight is not None:
        assert labels.weight.shape == index.shape
        assert ((labels.weight > 0) & (labels.weight <= 4)).all()


def check_label_upload(upload: Any, most: int = BUDGET) -> None:
    check_labels(upload.labels, most)
    if upload.answers is not None:
        said, asked = upload.answers.classes, upload.answers.rows
        assert said.shape == asked.shape and ((said >= 0) & (said < CLASSES)).all()


def check_any_label_upload(upload: Any) -> None:
    check_label_upload(upload, SAMPLES)


def check_weights(weights: Any) -> None:
    expected = initial_state(COHORT[0].model, 0)
    assert list(weights) == list(expected)
    for name, value in weights.items():
        assert value.shape == expected[name].shape and value.dtype == expected[name].dtype
        assert torch.isfinite(value).all()


def check_weight_upload(upload: Any) -> None:
    weights, samples = upload
    check_weights(weights)
    assert 0 < samples < 2**32


def check_mix2fld_upload(upload: Any) -> None:
    check_labels(upload.means, CLASSES, CLASSES)
    if upload.mixtures is not None:
        mixtures = upload.mixtures
        assert len(mixtures.x) == len(mixtures.a) == len(mixtures.b) <= 10
        assert np.isfinite(mixtures.x).all() and (mixtures.a != mixtures.b).all()
        assert max(mixtures.a.max(initial=0), mixtures.b.max(initial=0)) < CLASSES


def check_work(work: Any) -> None:
    """What a download makes a client compute: from weights that are finite, on right targets."""
    assert isinstance(work, Fit | Predict)
    check_weights(work.state)
    if isinstance(work, Fit):
        targets = work.data.targets
        assert targets.shape == (len(work.data), CLASSES) and torch.isfinite(targets).all()
        assert (targets >= 0).all()


# --- the kinds ---


def list_systems() -> dict[str, Any]:
    same: dict[str, Any] = {"local": ONCE, "distill": ONCE}
    return {
        "mix2fld": mix2fld(**same),
        "sift, labels": sift(mode="labels", bytes=60, **same),
        "sift, weights": sift(mode="weights", bytes=60, **same),
        "ds-fl": ds_fl(BUDGET, **same),
        "cfd": cfd(BUDGET, **same),
        "cfd, missed": cfd(BUDGET, absent="missed", **same),
        "ds-fl, first weights": ds_fl(BUDGET, **same),
        "fas, expertise": fas(BUDGET, votes="expertise", **same),
        "fas, histogram": fas(BUDGET, votes="histogram", **same),
        "fas, audit": fas(BUDGET, aggregator="trust", audit=8, **same),
        "fas, audit and expertise": fas(
            BUDGET, aggregator="trust", audit=8, votes="expertise", codec="quantized(4)", **same
        ),
        "fd, float16 down": fd(BUDGET, down_codec="float16", **same),
        "fd, updates down": fd(BUDGET, down_codec="updates(4)", **same),
        "fedavg, updates": fedavg(codec="updates(4)", down_codec="updates(4)", local=ONCE),
        "fedpaq": fedpaq(local=ONCE),
        "fd-jeong": fd_jeong(local=ONCE),
        "gossip": gossip(BUDGET, graph="complete", **same),
    }


def list_kinds() -> dict[str, Kind]:
    """By name: whole uploads that a server reads, and whole downloads that a client reads."""
    kinds: dict[str, Kind] = {}
    for name, system in list_systems().items():
        rounds = 0 if name == "ds-fl, first weights" else ROUNDS - 1
        scene = play(system, rounds, starts=name == "ds-fl, first weights")
        if name == "cfd, missed":  # as if client 0 had been away since the first round
            scene = miss_rounds(scene)
        if name in UPLOADS:
            check, fields = UPLOADS[name]
            kinds[f"upload of {name}"] = _make(scene, scene.uploads, read_upload, check, fields)
        if name == "mix2fld":
            first = play(system, 0)
            kinds["upload of mix2fld, first"] = _make(
                first, first.uploads, read_upload, *UPLOADS[name]
            )
        kinds[f"download of {name}"] = _make(
            scene, scene.downloads, read_download, check_work, _fields_down(name, scene)
        )
    return kinds


def miss_rounds(scene: Scene) -> Scene:
    """The next round for a client that has missed all but the first."""
    system, away = scene.system, play(scene.system, 0)
    memory = replace(scene.server.memory, downlink=scene.server.memory.downlink)
    received = dict(memory.downlink.received)
    received.pop(0, None)
    downlink = replace(memory.downlink, received=received)
    server = replace(scene.server, memory=replace(memory, downlink=downlink))
    downloads = system.prepare_downloads(server, COHORT, scene.r)
    return replace(scene, server=server, downloads=downloads, memories=away.memories)


def _make(
    scene: Scene,
    messages: dict[int, bytes],
    read: Callable[[Scene], Callable[[bytes], Any]],
    check: Callable[[Any], None],
    fields: Callable[[bytes], list[Field]],
) -> Kind:
    others = tuple(message for id, message in messages.items() if id and message)
    return Kind(read(scene), check, messages[0], fields, others)


ANSWERS = 2  # bytes: eight answers of four classes

UPLOADS: dict[str, tuple[Callable[[Any], None], Callable[[bytes], list[Field]]]] = {
    "mix2fld": (check_mix2fld_upload, means_and_mixtures),
    "sift, labels": (check_any_label_upload, whole),
    "sift, weights": (check_weight_upload, whole),
    "ds-fl": (check_label_upload, whole),
    "cfd": (check_label_upload, whole),
    "fas, expertise": (check_label_upload, after_expertise),
    "fas, histogram": (check_label_upload, after(CLASSES, whole)),
    "fas, audit": (check_label_upload, after(ANSWERS, whole)),
    "fas, audit and expertise": (check_label_upload, after(ANSWERS, after_expertise)),
    "fedavg, updates": (check_weight_upload, whole),
}


def _fields_down(name: str, scene: Scene) -> Callable[[bytes], list[Field]]:
    if "audit" in name:
        return after_audit(scene.system.audits, scene.r)
    if name == "gossip":
        return equal_messages(scene.system.codec.size(BUDGET, CLASSES))
    special = {"cfd, missed": counted_messages, "ds-fl, first weights": first_weights_and_labels}
    return special.get(name, whole)
