"""Hostile messages, 100,000 and more of each kind: every decoder raises WireError or gives
something valid, always.

Half of the inputs and more are damaged payloads under a right checksum: what an attacker who knows
the format sends.
"""

import contextlib
import itertools
import struct
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import seeding
from fedsift.aggregators.sums import add_up, divide
from fedsift.algorithms import Gossip, fd, fd_jeong, fedavg, gossip, mix2fld
from fedsift.algorithms.per_label import MixtureSent
from fedsift.algorithms.soft_label_downlink import DownlinkMemory, Received, SoftLabelDownlink
from fedsift.algorithms.weight_bounds import LARGEST as LARGEST_WEIGHT
from fedsift.codecs import (
    Qsgd,
    Updates,
    delta,
    grid,
    indexes,
    soft_label_codec,
    soft_labels,
    sums,
    updates,
    weight_codec,
    wire,
)
from fedsift.codecs.estimates import ESTIMATE_CODECS, LARGEST
from fedsift.codecs.mixtures import MixtureCodec, Mixtures
from fedsift.codecs.sums import ExactSums
from fedsift.codecs.wire import WireError
from fedsift.types import Link, Server, SoftLabels
from tests.helpers import toys
from tests.helpers.hostile_messages import check_error
from tests.helpers.tiers import slow_but

ROUND, MEGABYTES = 3, 2**20
MESSAGES = 40_000  # hostile ones, over all codecs of a kind

# --- damage ---


def flip(code, generator):
    damaged = bytearray(code)
    for bit in generator.integers(0, 8 * len(code), generator.integers(1, 5)).tolist():
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def cut(code, generator):
    return code[: generator.integers(len(code))]


def extend(code, generator):
    return code + generator.bytes(generator.integers(1, 40))


def noise(code, generator):
    return generator.bytes(generator.integers(0, 2 * len(code) + 1))


def overwrite(code, generator):
    """Some bytes in the middle are others: random, all zero or all one."""
    start = int(generator.integers(len(code)))
    size = int(generator.integers(1, 9))
    other = (generator.bytes(size), bytes(size), b"\xff" * size)[generator.integers(3)]
    return (code[:start] + other + code[start + size :])[: len(code)]


def tail(code, generator):
    """The end is random, so that what comes first is often right."""
    start = int(generator.integers(len(code)))
    return code[:start] + generator.bytes(len(code) - start)


DAMAGE = (flip, flip, overwrite, overwrite, tail, cut, extend, noise)


def hostile(messages, reseal, count, seed):
    """Two in five damaged as they travel; three in five damaged by someone who seals them again."""
    generator = np.random.default_rng(seed)
    for i in range(count):
        message = messages[i % len(messages)]
        damage = DAMAGE[generator.integers(len(DAMAGE))]
        if i % 5 < 2:
            yield damage(message, generator)
        else:
            yield reseal(damage(message[wire.HEADER_BYTES :], generator))


def oversized(message, reseal):
    """Megabytes, with the right beginning and without, sealed and not."""
    payload = message[wire.HEADER_BYTES :]
    for filler in (b"\0", b"\xff", b"\1"):
        much = filler * (4 * MEGABYTES)
        yield from (
            much,
            message + much,
            reseal(much),
            reseal(payload + much),
            reseal(payload[:5] + much),
        )


def survive(decode, check, messages, reseal, count, seed=0):
    """Decodes `count` hostile messages; how many were refused and how many taken, all of them
    valid.
    """
    taken = refused = 0
    for message in itertools.chain(
        oversized(messages[0], reseal), hostile(messages, reseal, count, seed)
    ):
        try:
            result = decode(message)
        except WireError as error:
            check_error(error)
            refused += 1
            continue
        check(result)
        taken += 1
    assert taken + refused >= count
    assert (
        taken > 0
    )  # resealed values that are other valid values get through: the inner parsers were reached
    assert refused > count / 10


def peak(decode, messages, reseal, count=1000):
    """The most memory that decoding took, in bytes; the messages themselves are made before."""
    inputs = [*oversized(messages[0], reseal), *hostile(messages, reseal, count, 9)]
    tracemalloc.start()
    try:
        for message in inputs:
            try:
                decode(message)
            except WireError:
                continue
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- soft labels ---

LINK = Link(ROUND, 24, 5, ((7, ROUND, "pick"), (7, ROUND, "pick", 4)))
SOFT = [
    "float32",
    "float16",
    "hard",
    "quantized(1)",
    "quantized(4)",
    "topk(3)",
    "delta(quantized(1))",
    "delta(float16)",
]


def rows(size, seed):
    return (
        np.random.default_rng(seed).dirichlet(np.full(LINK.classes, 0.4), size).astype(np.float32)
    )


def reference_of(codec):
    """What both ends hold already: rows of three quarters of the public set, where the codec keeps
    any.
    """
    if not codec.keeps_reference:
        return None
    arrived = codec.values.inner.unpack(
        codec.values.inner.pack(rows(18, 1), None), 18, LINK.classes, None
    )
    return SoftLabels(np.arange(18), arrived)


def soft_messages(codec):
    """With indexes drawn from either seed, coded, of all samples, and with votes; with a reference
    some rows are unchanged.
    """
    reference = reference_of(codec)
    everything = rows(LINK.samples, 2)
    if reference is not None:
        everything[:12] = reference.probs[:12]
    sets = [seeding.subset(seeding.rng(*names), LINK.samples, 10) for names in LINK.drawn_from]
    sets += [np.array([1, 2, 5, 14, 20]), np.arange(LINK.samples), np.arange(12)]
    labels = [SoftLabels(index, everything[index]) for index in sets]
    labels += [replace(some, weight=np.linspace(0.1, 1, len(some))) for some in labels[:3]]
    return [codec.encode(some, LINK, reference) for some in labels]


def soft_reseal(codec):
    """A right checksum for any payload, with what the receiver will find implied by it, if it gets
    that far.
    """
    reference = reference_of(codec)

    def implied(payload):
        if len(payload) < 5:
            return b""
        mode, count = struct.unpack_from("<BI", payload)
        count %= 2**31  # the highest bit says that votes are sent
        if count > LINK.samples:
            return b""
        try:
            index, _ = codec._indexes(payload[5:], mode, count, LINK)
        except WireError:
            return b""
        return soft_labels._implied(index, LINK, codec._known(index, LINK, reference))

    return lambda payload: wire.seal(
        wire.SOFT_LABELS, codec.values.id, ROUND, payload, implied(payload)
    )


def soft_decode(codec):
    reference = reference_of(codec)
    return lambda message: codec.decode(message, LINK, reference)


def check_soft(labels):
    assert labels.index.dtype == np.int64
    assert (np.diff(labels.index) > 0).all()
    assert len(labels.index) == 0 or (labels.index[0] >= 0 and labels.index[-1] < LINK.samples)
    assert labels.probs.shape == (len(labels.index), LINK.classes)
    assert labels.probs.dtype == np.float32
    assert (labels.probs >= 0).all()
    votes = np.ones(len(labels)) if labels.weight is None else labels.weight
    assert votes.shape == (len(labels),) and ((votes > 0) & (votes <= LINK.votes)).all()
    assert (np.abs(labels.probs.sum(1) - 1) < 0.011).all()


@pytest.mark.parametrize("text", slow_but(SOFT, "float16", "topk(3)", "delta(quantized(1))"))
def test_hostile_soft_labels_are_refused_or_valid(text):
    codec = soft_label_codec(text)
    survive(
        soft_decode(codec),
        check_soft,
        soft_messages(codec),
        soft_reseal(codec),
        MESSAGES // len(SOFT),
    )


@pytest.mark.parametrize("text", SOFT)
def test_hostile_soft_labels_take_little_memory(text):
    codec = soft_label_codec(text)
    assert peak(soft_decode(codec), soft_messages(codec), soft_reseal(codec)) < MEGABYTES


@pytest.mark.parametrize("text", SOFT)
def test_soft_labels_resealed_unchanged_are_the_message(text):
    codec = soft_label_codec(text)
    for message in soft_messages(codec):
        assert soft_reseal(codec)(message[wire.HEADER_BYTES :]) == message
        check_soft(soft_decode(codec)(message))


def test_a_hostile_message_leaves_the_reference_as_it_was():
    codec = delta("quantized(1)")
    labels = SoftLabels(np.arange(LINK.samples), rows(LINK.samples, 3))
    _, reference = codec.encode_stateful(labels, LINK, None)
    assert reference is not None
    before = reference.index.tobytes(), reference.probs.tobytes()
    for message in hostile(soft_messages(codec), soft_reseal(codec), 2000, 5):
        try:
            codec.decode_stateful(message, LINK, reference)
        except WireError:
            continue
    assert (reference.index.tobytes(), reference.probs.tobytes()) == before


# --- partial sums of edge servers ---

EDGE_LINK = Link(ROUND, 24, 5, votes=9.0)
SUMS = ExactSums()


def sums_messages():
    """Of soft, hard and faded votes, on some samples and on all."""
    sets = [np.arange(24), np.array([1, 2, 5, 14, 20])]
    some = [SoftLabels(index, rows(24, 4)[index]) for index in sets]
    hard = [replace(one, probs=np.eye(5, dtype=np.float32)[one.probs.argmax(1)]) for one in some]
    faded = [replace(one, weight=np.full(len(one), 0.49)) for one in some]
    lots = [some, hard, faded, some[1:], hard[1:]]
    return [SUMS.encode(add_up(enumerate(lot), 24, 5), EDGE_LINK) for lot in lots]


def sums_reseal(payload):
    def implied():
        if len(payload) < 8:
            return b""
        count, length = struct.unpack_from("<II", payload)
        if count > EDGE_LINK.samples or len(payload) < 8 + length:
            return b""
        try:
            index = indexes.decode(payload[8 : 8 + length], EDGE_LINK.samples, count)
        except WireError:
            return b""
        return sums._implied(index, EDGE_LINK)

    return wire.seal(wire.SUMS, sums.ID, ROUND, payload, implied())


def sums_decode(message):
    return SUMS.decode(message, EDGE_LINK)


def check_sums(found):
    assert (np.diff(found.index) > 0).all() and set(found.index) <= set(range(24))
    assert found.high.shape == found.low.shape == (len(found), 6)
    assert (found.high >= 0).all() and (found.low >= 0).all() and (found.low < 2**32).all()
    labels = divide(found)
    votes = np.asarray(labels.weight)
    assert ((votes > 0) & (votes <= EDGE_LINK.votes)).all()
    assert (np.abs(labels.probs.sum(1) - 1) < 0.012).all()


def test_hostile_sums_are_refused_or_valid():
    survive(sums_decode, check_sums, sums_messages(), sums_reseal, 10_000)


def test_hostile_sums_take_little_memory():
    assert peak(sums_decode, sums_messages(), sums_reseal) < MEGABYTES


def test_sums_resealed_unchanged_are_the_message():
    for message in sums_messages():
        assert sums_reseal(message[wire.HEADER_BYTES :]) == message
        check_sums(sums_decode(message))


# --- weights ---

WEIGHTS = ["float32", "float16", "qsgd(4)", "qsgd(2)"]


def state(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": scale * torch.randn(4, 3, generator=generator),
        "running_var": torch.rand(3, generator=generator),
        "seen": torch.tensor(seed),
        "b": torch.cat(
            [scale * torch.randn(3, generator=generator), torch.zeros(90)]
        ),  # short when entropy-coded
    }


BASE = state(0)


def weight_messages(codec):
    news = [{**BASE, **state(seed)} for seed in (1, 2)]
    if isinstance(codec, Qsgd):
        messages = [codec.encode(new, ROUND, 9, BASE, (seed,)) for seed, new in enumerate(news)]
        return [*messages, codec.encode(BASE, ROUND, 9, BASE, (9,))]
    return [codec.encode(new, ROUND, 9) for new in news]


def weight_reseal(codec):
    unsaid = updates.implied(BASE) if isinstance(codec, Qsgd) else b""
    return lambda payload: wire.seal(wire.WEIGHTS, codec.id, ROUND, payload, unsaid)


def weight_decode(codec):
    return lambda message: codec.decode(message, ROUND, BASE)


def check_weights(result):
    found, samples = result
    assert list(found) == list(BASE)
    for name, expected in BASE.items():
        assert found[name].shape == expected.shape
        assert found[name].dtype == expected.dtype
        assert not found[name].is_floating_point() or torch.isfinite(found[name]).all()
    assert 0 <= samples < 2**32


@pytest.mark.parametrize("text", slow_but(WEIGHTS, "float16", "qsgd(2)"))
def test_hostile_weights_are_refused_or_valid(text):
    codec = weight_codec(text)
    base = {name: value.clone() for name, value in BASE.items()}
    survive(
        weight_decode(codec),
        check_weights,
        weight_messages(codec),
        weight_reseal(codec),
        MESSAGES // len(WEIGHTS),
    )
    assert all(torch.equal(BASE[name], base[name]) for name in base)


@pytest.mark.parametrize("text", WEIGHTS)
def test_hostile_weights_take_little_memory(text):
    codec = weight_codec(text)
    assert peak(weight_decode(codec), weight_messages(codec), weight_reseal(codec)) < 2 * MEGABYTES


# --- updates down ---

HELD = {name: np.arange(value.numel()) << 18 for name, value in sorted(BASE.items())}
UPDATES = Updates(4)


def update_messages():
    news = [{**BASE, **state(seed)} for seed in (1, 2)]
    updates = [UPDATES.choose(BASE, HELD, new, "local.lr") for new in news]
    wide = {name: np.full_like(value, 12345678901) for name, value in HELD.items()}
    updates += [grid.nothing(BASE), {**wide, "running_var": HELD["running_var"]}]
    return [UPDATES.seal(u, grid.move(BASE, grid.add(HELD, u)), ROUND, 9) for u in updates]


def update_reseal(payload):
    """A right checksum for wherever the update leads, if it leads anywhere."""
    try:
        ticks = grid.add(HELD, grid.decode(payload[4:], BASE))
        unsaid = updates.implied(grid.move(BASE, ticks))
    except WireError:
        unsaid = b""
    return wire.seal(wire.WEIGHTS, UPDATES.id, ROUND, payload, unsaid)


def update_decode(message):
    weights, _, samples = UPDATES.open(message, BASE, HELD, ROUND)
    assert (weights["running_var"] >= 0).all()
    return weights, samples


def test_hostile_updates_are_refused_or_valid():
    survive(update_decode, check_weights, update_messages(), update_reseal, 12_000)


def test_hostile_updates_take_little_memory():
    assert peak(update_decode, update_messages(), update_reseal) < 2 * MEGABYTES


def test_updates_resealed_unchanged_are_the_message():
    for message in update_messages():
        assert update_reseal(message[wire.HEADER_BYTES :]) == message


# --- mixtures ---

MIXTURES = MixtureCodec(shape=(2, 3), classes=4, most=5)


def mixture_messages():
    generator = np.random.default_rng(0)
    made = [(generator.normal(size=(n, 2, 3)), generator.integers(0, 4, n)) for n in (1, 3, 5)]
    return [MIXTURES.encode(Mixtures(x, a, (a + 1) % 4), ROUND) for x, a in made]


def mixture_reseal(payload):
    return wire.seal(wire.MIXTURES, 1, ROUND, payload)


def mixture_decode(message):
    return MIXTURES.decode(message, ROUND)


def check_mixtures(mixtures):
    assert len(mixtures.x) <= MIXTURES.most
    assert mixtures.x.shape == (len(mixtures.a), 2, 3)
    assert np.isfinite(mixtures.x).all()
    assert mixtures.a.shape == mixtures.b.shape
    assert (
        (mixtures.a != mixtures.b)
        & (np.minimum(mixtures.a, mixtures.b) >= 0)
        & (np.maximum(mixtures.a, mixtures.b) < 4)
    ).all()


def test_hostile_mixtures_are_refused_or_valid():
    survive(mixture_decode, check_mixtures, mixture_messages(), mixture_reseal, MESSAGES)


def test_hostile_mixtures_take_little_memory():
    assert peak(mixture_decode, mixture_messages(), mixture_reseal) < MEGABYTES


# --- estimates ---


def estimate_messages(codec):
    generator = np.random.default_rng(0)
    return [codec.encode(generator.normal(0.3, 0.5, (4, 3)), ROUND) for _ in range(3)]


def estimate_reseal(codec):
    return lambda payload: wire.seal(wire.ESTIMATES, codec.id, ROUND, payload)


def estimate_decode(codec):
    return lambda message: codec.decode(message, ROUND, 4, 3)


def check_estimates(table):
    assert table.shape == (4, 3)
    assert table.dtype == np.float64
    assert (np.abs(table) <= LARGEST).all()


@pytest.mark.parametrize("name", ESTIMATE_CODECS)
def test_hostile_estimates_are_refused_or_valid(name):
    codec = ESTIMATE_CODECS[name]
    survive(
        estimate_decode(codec),
        check_estimates,
        estimate_messages(codec),
        estimate_reseal(codec),
        15_000,
    )


@pytest.mark.parametrize("name", ESTIMATE_CODECS)
def test_hostile_estimates_take_little_memory(name):
    codec = ESTIMATE_CODECS[name]
    assert (
        peak(estimate_decode(codec), estimate_messages(codec), estimate_reseal(codec)) < MEGABYTES
    )


# --- large messages, where entropy coders and large index sets are reached ---

WIDE = Link(ROUND, 20_000, 10)
WIDE_INDEX = np.flatnonzero(
    np.random.default_rng(0).random(20_000) < 0.4
)  # about 8,000, through the ANS coder
SKEWED = np.random.default_rng(1).dirichlet([8.0] + [0.05] * 9, len(WIDE_INDEX)).astype(np.float32)


@pytest.mark.parametrize("name", ["hard", "quantized(2)", "delta(quantized(1))"])
def test_large_hostile_soft_labels_are_refused_or_valid(name):
    """The checksum is made right for what is implied by the *undamaged* message: indexes stay,
    everything else moves.
    """
    codec = soft_label_codec(name)
    message = codec.encode(SoftLabels(WIDE_INDEX, SKEWED), WIDE)
    assert not indexes._is_ranked(WIDE.samples, len(WIDE_INDEX))
    unsaid = soft_labels._implied(WIDE_INDEX, WIDE, codec._known(WIDE_INDEX, WIDE, None))
    payload = message[wire.HEADER_BYTES :]
    prefix = 9 + int.from_bytes(
        payload[5:9], "little"
    )  # mode, rows, length and code of the indexes
    generator = np.random.default_rng(2)
    refused = 0
    for i in range(400):
        damage = DAMAGE[generator.integers(len(DAMAGE))]
        bad = (
            damage(payload, generator)
            if i % 4 == 0
            else payload[:prefix] + damage(payload[prefix:], generator)
        )
        try:
            labels = codec.decode(
                wire.seal(wire.SOFT_LABELS, codec.values.id, ROUND, bad, unsaid), WIDE
            )
        except WireError:
            refused += 1
            continue
        assert np.array_equal(labels.index, WIDE_INDEX)
        assert np.allclose(labels.probs.sum(1), 1, atol=1e-5) and (labels.probs >= 0).all()
    assert refused > 0


def test_damaged_index_codes_of_large_sets_are_refused_or_canonical():
    code, generator = indexes.encode(WIDE_INDEX, WIDE.samples), np.random.default_rng(3)
    assert np.array_equal(indexes.decode(code, WIDE.samples, len(WIDE_INDEX)), WIDE_INDEX)
    refused = 0
    for _ in range(2000):
        bad = DAMAGE[generator.integers(len(DAMAGE))](code, generator)
        try:
            index = indexes.decode(bad, WIDE.samples, len(WIDE_INDEX))
        except WireError:
            refused += 1
            continue
        assert indexes.encode(index, WIDE.samples) == bad
    assert refused > 1900  # some damage puts the same bytes in their place


# --- containers: several messages in one ---


def test_hostile_mix2fld_uploads_are_refused_or_valid():
    fld, r = mix2fld(lam=0.25), toys.a_round()
    client = toys.client(4)
    server = fld.start(r)
    download = fld.prepare_downloads(server, [client], r)[4]
    turn = fld.client_turn(client, MixtureSent(), download, r)
    next(turn)
    turn.send({"1.weight": torch.zeros(2, 2)})
    with pytest.raises(StopIteration) as end:
        turn.send(np.zeros((2, 2), np.float32))
    _, upload = end.value.value
    generator = np.random.default_rng(4)
    taken = []
    for _ in range(8_000):
        bad = DAMAGE[generator.integers(len(DAMAGE))](upload, generator)
        with contextlib.suppress(WireError):
            checked = fld.check_upload(server, 4, bad, r)
            assert checked.means.index.tolist() == [0, 1] and checked.mixtures is not None
            taken.append(bad)
    assert set(taken) == {upload}  # some damage puts the same bytes in their place


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_hostile_downloads_are_refused_or_valid(absent):
    downlink, r = SoftLabelDownlink(soft_label_codec("float32"), absent), toys.a_round(2)
    posted = {n: SoftLabels(np.array([n, 3]), np.full((2, 2), 0.5)) for n in (0, 1)}
    download = downlink.encode(DownlinkMemory(posted), [7], r)[7]
    generator = np.random.default_rng(5)
    taken = []
    for _ in range(8_000):
        bad = DAMAGE[generator.integers(len(DAMAGE))](download, generator)
        with contextlib.suppress(WireError):
            found, _ = downlink.decode(Received(), bad, r)
            assert list(found) == ([1] if absent == "latest" else [0, 1])
            taken.append(bad)
    assert set(taken) == {download}  # some damage puts the same bytes in their place


# --- whole uploads, as the server of an algorithm checks them ---

UPLOAD_ROUND = toys.a_round(1, public=[[float(i % 3), i / 9] for i in range(9)])


def upload_kinds():
    """By name: (check, is it right, honest uploads, how an attacker seals a payload again)."""
    r = UPLOAD_ROUND
    kinds: dict[str, Any] = {}
    system: Any
    for sampler in ("none", "random", "mixed"):
        system = fd(3, sampler=sampler)
        names = () if sampler == "none" else (0,)
        index = seeding.subset(r.rng("pick", *names), 9, 3)
        message = system.up.encode(SoftLabels(index, np.full((3, 2), 0.5)), r.link(0))
        kinds[f"fd, sampler {sampler}"] = (system, check_budget, [message], reseal_rows(r.link(0)))
    for codec in ("float32", "qsgd(4)"):
        system = fedavg(codec=codec)
        base = system.start(r).students["linear"]
        new = {name: value + 0.5 for name, value in base.items()}
        args = (base, (1,)) if codec != "float32" else ()
        unsaid = updates.implied(base) if args else b""
        messages = [system.up.encode(new, 1, 7, *args)]
        kinds[f"fedavg, {codec}"] = (system, check_claim, messages, seal_weights(system, unsaid))
    system = fd_jeong()
    link = Link(1, 2, 2)
    message = system.up.encode(SoftLabels(np.array([0, 1]), np.full((2, 2), 0.5)), link)
    kinds["fd-jeong"] = (system, check_labels, [message], reseal_rows(link))
    system = gossip(2, graph="complete")
    message = system.codec.encode(np.array([[0.5, 0.5], [1.2, -0.2]]), 1)
    seal = partial(wire.seal, wire.ESTIMATES, system.codec.id, 1)
    kinds["gossip"] = (system, check_rows, [message], seal)
    return {
        name: (partial(_check, system), right, messages, reseal)
        for name, (system, right, messages, reseal) in kinds.items()
    }


def _check(system, upload):
    r = UPLOAD_ROUND
    server = Server({}) if isinstance(system, Gossip) else system.start(r)
    return system.check_upload(server, 0, upload, r)


def reseal_rows(link):
    codec = soft_label_codec("float32")

    def implied(payload):
        if len(payload) < 5:
            return b""
        mode, count = struct.unpack_from("<BI", payload)
        if (count := count % 2**31) > link.samples:
            return b""
        try:
            index, _ = codec._indexes(payload[5:], mode, count, link)
        except WireError:
            return b""
        return soft_labels._implied(index, link, None)

    return lambda payload: wire.seal(wire.SOFT_LABELS, 1, 1, payload, implied(payload))


def seal_weights(system, unsaid):
    return lambda payload: wire.seal(wire.WEIGHTS, system.up.id, 1, payload, unsaid)


def check_budget(upload):
    assert 1 <= len(upload.labels) <= 3


def check_labels(labels):
    assert 1 <= len(labels) <= 2


def check_claim(upload):
    weights, samples = upload
    assert samples > 0
    assert all((value.abs() <= LARGEST_WEIGHT).all() for value in weights.values())


def check_rows(message):
    table = np.frombuffer(message[wire.HEADER_BYTES :], "<f4").reshape(2, 2)
    assert (np.abs(table.sum(1) - 1) <= 0.5).all() and (np.abs(table) <= LARGEST).all()


@pytest.mark.parametrize("name", upload_kinds())
def test_hostile_uploads_are_refused_or_within_the_bounds(name):
    check, right, messages, reseal = upload_kinds()[name]
    survive(check, right, messages, reseal, 1500)


@pytest.mark.parametrize("name", upload_kinds())
def test_hostile_uploads_take_little_memory(name):
    check, _, messages, reseal = upload_kinds()[name]
    check(messages[0])  # what is made once, such as first weights
    assert peak(check, messages, reseal, count=300) < MEGABYTES
