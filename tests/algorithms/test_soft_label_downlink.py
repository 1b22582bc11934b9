"""Soft labels down: what a client hears when it returns, what it costs, and that both ends never
lose step.
"""

import struct

import numpy as np
import pytest
import torch

import fedsift
from fedsift.algorithms import cfd, ds_fl, fd
from fedsift.algorithms.soft_label_downlink import SoftLabelDownlink
from fedsift.codecs import CODECS, WireError, soft_label_codec
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation
from fedsift.types import Link, Predict, Recipe, Server, SoftLabels, Tree, UserError
from tests.algorithms.test_soft_labels import finish, upload, weights
from tests.helpers import toys
from tests.test_federation import a_federation, equal, play

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
RECIPE = Recipe(epochs=4, batch=4, lr=0.01)
F32 = CODECS["float32"]
LENGTH = struct.Struct("<I")


def labels(number):
    """A lesson that says its round: one row on sample number % 4."""
    return SoftLabels(np.array([number % 4]), np.array([[0.1 * number, 1 - 0.1 * number]]))


def posted(lessons, rounds, heard_by):
    """The server's notes after some rounds; heard_by[number] took part in round `number`."""
    notes: Tree = {}
    for number in range(rounds):
        notes = lessons.record(
            notes, labels(number), heard_by.get(number, []), toys.a_round(number)
        )
    return notes


def heard_in(lessons, notes, memory, client, number):
    r = toys.a_round(number)
    return lessons.decode(memory, lessons.encode_for(notes, client, r), r)


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_nothing_is_heard_in_the_first_round(absent):
    lessons = SoftLabelDownlink(F32, absent)
    assert lessons.encode_for({}, 3, toys.a_round(0)) == b""
    assert heard_in(lessons, {}, {}, 3, 0) == ({}, {})


@pytest.mark.parametrize(("absent", "numbers"), [("latest", [4]), ("missed", [2, 3, 4])])
def test_a_client_that_returns_hears_the_latest_or_all_it_missed_oldest_first(absent, numbers):
    """Client 3 took part in round 2, where it heard lesson 1; it returns in round 5."""
    lessons = SoftLabelDownlink(F32, absent)
    _, memory = heard_in(lessons, posted(lessons, 2, {}), {}, 3, 2)
    heard, after = heard_in(lessons, posted(lessons, 5, {2: [3]}), memory, 3, 5)
    assert list(heard) == numbers and int(after["last"]) == 4
    assert all(np.allclose(heard[n].probs, labels(n).probs) for n in numbers)
    assert all(heard[n].index.tolist() == [n % 4] for n in numbers)


@pytest.mark.parametrize(("absent", "numbers"), [("latest", [2]), ("missed", [0, 1, 2])])
def test_a_client_that_comes_late_for_the_first_time(absent, numbers):
    lessons = SoftLabelDownlink(F32, absent)
    assert list(heard_in(lessons, posted(lessons, 3, {}), {}, 9, 3)[0]) == numbers


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_a_client_that_is_always_there_hears_every_lesson_once(absent):
    lessons = SoftLabelDownlink(F32, absent)
    memory: Tree = {}
    order = []
    for number in range(4):
        notes = posted(lessons, number, {n: [5] for n in range(number)})
        heard, memory = heard_in(lessons, notes, memory, 5, number)
        order.append(list(heard))
    assert order == [[], [0], [1], [2]]


def test_missed_lessons_cost_their_messages_and_four_bytes_each():
    lessons, r = SoftLabelDownlink(F32, "missed"), toys.a_round(3)
    sizes = [len(F32.encode(labels(n), Link(3, 4, 2, ((0, n, "pick"),)))) for n in range(3)]
    assert len(lessons.encode_for(posted(lessons, 3, {}), 0, r)) == sum(sizes) + 3 * 4
    assert (
        len(lessons.encode_for(posted(lessons, 3, {1: [0]}), 0, r)) == sum(sizes[1:]) + 2 * 4
    )  # it has heard lesson 0


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_the_ledger_counts_every_lesson_of_a_returning_client(absent):
    """Without a sampler a round's subset is drawn from a seed both ends know: a lesson is 18 + 10 x
    3 x 4 bytes, with a length of 4 where there may be several."""
    absent_fd = fd(10, download="soft-labels", absent=absent, local=LOCAL, distill=DISTILL)
    records = play(a_federation(absent_fd, cohort=2), 6, SequentialEngine("cpu", threads=2))
    due, several = dict.fromkeys(range(6), 0), 0  # the first lesson each client has not heard
    for number, record in enumerate(records):
        for client, size in record.bytes.down.items():
            count = number - due[client] if absent == "missed" else min(1, number)
            several += count > 1
            assert size == count * (18 + 120 + (4 if absent == "missed" else 0))
            due[client] = number
    assert bool(several) == (absent == "missed")


def test_a_client_distils_what_it_missed_in_order_before_it_trains():
    soft = fd(1, download="soft-labels", absent="missed", local=LOCAL, distill=DISTILL)
    lessons, r, client = SoftLabelDownlink(F32, "missed"), toys.a_round(3), toys.client(1)
    server = Server({"linear": weights(0)}, posted(lessons, 3, {1: [1]}))
    memory = {"model": weights(3), "heard": heard_in(lessons, posted(lessons, 1, {}), {}, 1, 1)[1]}
    turn = soft.client_turn(client, memory, soft.prepare_downloads(server, [client], r)[1], r)
    first = next(turn)
    second = turn.send(weights(4))
    local = turn.send(weights(5))
    assert [first.data.samples.rows.tolist(), second.data.samples.rows.tolist()] == [[1], [2]]
    assert [first.key, second.key] == [(0, n, "distill", 1, "linear") for n in (1, 2)]
    assert [first.epoch, second.epoch] == [3, 6]
    assert (
        equal(first.state, weights(3))
        and equal(second.state, weights(4))
        and equal(local.state, weights(5))
    )
    assert local.data is client.data


# --- delta: references that live at both ends ---


@pytest.mark.parametrize("absent", ["latest", "missed"])
@pytest.mark.parametrize("inner", ["float32", "quantized(4)", "quantized(1)"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_ends_keep_step_while_clients_come_and_go(absent, inner, seed):
    """What is decoded is what the inner code alone would have brought, and the server knows what
    each client holds.
    """
    generator = np.random.default_rng(seed)
    plain, lessons = (
        soft_label_codec(inner),
        SoftLabelDownlink(soft_label_codec(f"delta({inner})"), absent),
    )
    said: dict[int, SoftLabels] = {}
    notes: Tree = {}
    memories: dict[int, Tree] = {}
    told = 0
    for number in range(6):
        r, link = toys.a_round(number), Link(number, 4, 2)
        cohort = np.flatnonzero(generator.random(4) < 0.5).tolist()
        for client in cohort:
            heard, memories[client] = lessons.decode(
                memories.get(client, {}), lessons.encode_for(notes, client, r), r
            )
            assert not heard or max(heard) == number - 1
            for n, lesson in heard.items():
                assert lesson.index.tolist() == said[n].index.tolist()
                assert np.array_equal(
                    lesson.probs, plain.decode(plain.encode(said[n], link), link).probs
                )
                told += 1
        index = np.sort(generator.choice(4, 2, replace=False))
        said[number] = SoftLabels(index, generator.dirichlet([1, 1], 2))
        notes = lessons.record(notes, said[number], cohort, r)
        assert all(equal(notes["heard"][str(client)], memories[client]) for client in cohort)
    assert told > 4


def test_a_lesson_that_did_not_change_costs_less_the_second_time():
    lessons = SoftLabelDownlink(soft_label_codec("delta(float32)"), "latest")
    same = SoftLabels(np.arange(4), np.full((4, 2), 0.5))
    notes = lessons.record({}, same, [0], toys.a_round(0))
    first = lessons.encode_for(notes, 0, toys.a_round(1))
    notes = lessons.record(notes, same, [0], toys.a_round(1))
    again, stranger = (lessons.encode_for(notes, client, toys.a_round(2)) for client in (0, 1))
    assert len(first) - len(again) >= 4 * 2 * 4 - 1  # all rows are spared
    assert len(stranger) == len(first)  # who never heard it hears all of it


def test_a_lesson_is_never_read_against_another_memory():
    """Client 0 has heard sample 0 and is told only what changed; a client that lost its memory
    cannot read that.
    """
    lessons = SoftLabelDownlink(soft_label_codec("delta(float32)"), "latest")
    notes = lessons.record(
        lessons.record({}, labels(0), [], toys.a_round(0)), labels(4), [0], toys.a_round(1)
    )
    told = lessons.encode_for(notes, 0, toys.a_round(2))
    _, memory = lessons.decode(
        {}, lessons.encode_for(posted(lessons, 1, {}), 0, toys.a_round(1)), toys.a_round(1)
    )
    assert np.allclose(lessons.decode(memory, told, toys.a_round(2))[0][1].probs, labels(4).probs)
    with pytest.raises(WireError, match="checksum"):
        lessons.decode({}, told, toys.a_round(2))


# --- downloads that are not right ---


def a_bundle():
    lessons, r = SoftLabelDownlink(F32, "missed"), toys.a_round(3)
    return lessons, lessons.encode_for(posted(lessons, 3, {}), 0, r), r


def test_a_truncated_bundle_is_refused_wherever_it_is_cut():
    lessons, bundle, r = a_bundle()
    for keep in range(len(bundle)):
        with pytest.raises(WireError):
            lessons.decode({}, bundle[:keep], r)


def test_a_bundle_with_something_after_it_is_refused():
    lessons, bundle, r = a_bundle()
    with pytest.raises(WireError, match="2 bytes after the last lesson"):
        lessons.decode({}, bundle + b"xx", r)


def test_a_length_beyond_the_download_is_refused():
    lessons, bundle, r = a_bundle()
    with pytest.raises(WireError, match="cut short"):
        lessons.decode({}, LENGTH.pack(2**32 - 1) + bundle[4:], r)


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_a_download_where_nothing_was_due_is_refused(absent):
    with pytest.raises(WireError):
        SoftLabelDownlink(F32, absent).decode({}, b"lesson", toys.a_round(0))


def test_an_empty_download_where_a_lesson_was_due_is_refused():
    with pytest.raises(WireError, match="1 lessons were due"):
        SoftLabelDownlink(F32, "latest").decode({}, b"", toys.a_round(1))


def test_an_unknown_way_to_treat_the_absent_is_refused_by_the_nearest():
    with pytest.raises(UserError, match="did you mean 'missed'"):
        fd(1, download="soft-labels", absent="mised")
    with pytest.raises(UserError, match="did you mean 'predictions'"):
        fd(1, download="soft-labels", teach="prediction")


# --- DS-FL
#
#
# --------------------------------------------------------------------------------------------------------------


def test_ds_fl_sharpens_what_it_distils_and_what_it_teaches():
    """Votes (.8, .2) and (.4, .6) have the mean (.6, .4); ERA at 0.1 makes it softmax(6, 4) =
    (.881, .119).
    """
    ds, r = ds_fl(1, distill=DISTILL), toys.a_round()
    turn = ds.server_turn(
        ds.start(r), {0: upload([2], [[0.8, 0.2]], r, 0), 1: upload([2], [[0.4, 0.6]], r, 1)}, r
    )
    (fit,) = next(turn)
    first = 1 / (1 + np.exp(-2))
    assert torch.allclose(
        fit.data.targets, torch.tensor([[first, 1 - first]], dtype=torch.float32), atol=1e-6
    )
    server = finish(turn, [weights(1)])
    heard = ds.prepare_downloads(server, [toys.client(5)], toys.a_round(1))[5]
    taught = next(ds.client_turn(toys.client(5), {}, heard, toys.a_round(1)))
    assert torch.allclose(taught.data.targets, fit.data.targets, atol=1e-6)


# --- CFD
#
#
# --------------------------------------------------------------------------------------------------------------


def test_cfd_teaches_the_students_predictions_not_the_aggregate():
    """All votes are for class 0; the student says (0, ln 3) on all of P: (1/4, 3/4) is what clients
    will hear.
    """
    soft = fd(2, download="soft-labels", teach="predictions", distill=DISTILL)
    r = toys.a_round()
    turn = soft.server_turn(soft.start(r), {0: upload([1, 3], [[1, 0], [1, 0]], r, 0)}, r)
    (fit,) = next(turn)
    assert torch.equal(fit.data.targets, torch.tensor([[1.0, 0.0]] * 2))
    (predict,) = turn.send([weights(2)])
    assert (
        isinstance(predict, Predict)
        and equal(predict.state, weights(2))
        and predict.samples is r.public
    )
    server = finish(turn, [np.array([[0.0, np.log(3)]] * 4, np.float32)])
    heard = soft.prepare_downloads(server, [toys.client(1)], toys.a_round(1))[1]
    lesson = F32.decode(heard, Link(1, 4, 2, ((0, 0, "pick"),)))
    assert lesson.index.tolist() == [0, 1, 2, 3] and np.allclose(lesson.probs, [[0.25, 0.75]] * 4)


def test_students_of_several_architectures_teach_their_mean():
    soft = fd(1, download="soft-labels", teach="predictions")
    r = toys.a_round(models=[toys.model(name="one"), toys.model(name="two")])
    turn = soft.server_turn(soft.start(r), {0: upload([1], [[1, 0]], r, 0)}, r)
    next(turn)
    assert [work.model.name for work in turn.send([weights(2), weights(3)])] == ["one", "two"]
    answers = [np.array([[0.0, np.log(3)]] * 4, np.float32), np.zeros((4, 2), np.float32)]
    server = finish(turn, answers)
    assert np.allclose(server.notes["lessons"]["0"]["probs"], [[0.375, 0.625]] * 4)


def test_cfd_is_both_ways_one_bit_deltas_and_predictions():
    system = cfd(5)
    assert (
        system.up == system.down == soft_label_codec("delta(quantized(1))")
        and system.teach == "predictions"
    )


def cfd_records(**axes):
    """Three clients in every round, one-bit labels on all of 400 public samples."""
    x, y = toys.gaussians(600)
    task = fedsift.split(fedsift.make_dataset(x, y), private=60, public=400)
    clients = fedsift.make_clients(task.private, 3, fedsift.iid, "mlp")
    recipe = Recipe(epochs=2, batch=8, lr=0.02)
    system = cfd(400, local=recipe, distill=recipe, **axes)
    return play(Federation(system, clients, task, 3, 0), 5, SequentialEngine("cpu", threads=2))


def test_cfds_later_rounds_are_cheaper_than_its_first():
    """Measured: 267 bytes up in the first round, under 100 from the third on; 321 and under 100
    down.
    """
    records = cfd_records()
    up, down = (
        [getattr(record, way) for record in records] for way in ("uplink_bytes", "downlink_bytes")
    )
    assert max(up[3:]) < 0.5 * up[0]
    assert down[0] == 0 and max(down[3:]) < 0.5 * down[1]


def test_deltas_cost_no_accuracy():
    """One-bit labels arrive the same whether only changes are sent or all: the same training, fewer
    bytes.
    """
    changes, everything = (
        cfd_records(codec=codec) for codec in ("delta(quantized(1))", "quantized(1)")
    )
    assert [record.accuracies for record in changes] == [record.accuracies for record in everything]
    assert sum(r.uplink_bytes for r in changes) < 0.8 * sum(r.uplink_bytes for r in everything)


def test_cfd_server_and_clients_agree_on_what_was_said_while_clients_come_and_go():
    federation = a_federation(cfd(20, local=RECIPE, distill=RECIPE, absent="missed"), cohort=3)
    for record in play(federation, 6, SequentialEngine("cpu", threads=2)):
        notes, memories = record.state.server.notes, record.state.memories
        for client, memory in memories.items():
            assert equal(notes["heard"][str(client)], memory.get("heard", {}))
            assert equal(notes["sent"][str(client)], memory["sent"])
