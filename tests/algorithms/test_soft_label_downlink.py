"""Soft labels down: what a client receives when it returns, what it costs, and that both ends never
lose step.
"""

import struct

import numpy as np
import pytest
import torch

import fedsift
from fedsift.algorithms import cfd, ds_fl, fd
from fedsift.algorithms.soft_label_downlink import DownlinkMemory, Received, SoftLabelDownlink
from fedsift.algorithms.soft_labels import ClientMemory, ServerMemory
from fedsift.codecs import CODECS, WireError, soft_label_codec
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation
from fedsift.types import Link, Predict, Recipe, Server, SoftLabels, UserError
from tests.helpers import toys
from tests.helpers.federations import a_federation, equal, run_rounds
from tests.helpers.toys import upload, weights
from tests.helpers.turns import finish

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
RECIPE = Recipe(epochs=4, batch=4, lr=0.01)
F32 = CODECS["float32"]
LENGTH = struct.Struct("<I")


def download_for(downlink, memory, client, r):
    return downlink.encode(memory, [client], r)[client]


def labels(number):
    """Labels that tell their round: one row on sample number % 4."""
    return SoftLabels(np.array([number % 4]), np.array([[0.1 * number, 1 - 0.1 * number]]))


def posted(downlink, rounds, cohorts):
    """The server's memory after some rounds; cohorts[number] took part in round `number`."""
    memory = DownlinkMemory()
    for number in range(rounds):
        cohort = cohorts.get(number, [])
        memory = downlink.record(memory, labels(number), cohort, toys.a_round(number))
    return memory


def received_in(downlink, memory, received, client, number):
    r = toys.a_round(number)
    return downlink.decode(received, download_for(downlink, memory, client, r), r)


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_nothing_is_received_in_the_first_round(absent):
    downlink = SoftLabelDownlink(F32, absent)
    assert download_for(downlink, DownlinkMemory(), 3, toys.a_round(0)) == b""
    found, received = received_in(downlink, DownlinkMemory(), Received(), 3, 0)
    assert found == {} and equal(received, Received())


@pytest.mark.parametrize(("absent", "numbers"), [("latest", [4]), ("missed", [2, 3, 4])])
def test_a_client_that_returns_receives_the_latest_or_all_it_missed_oldest_first(absent, numbers):
    """Client 3 took part in round 2 and received the labels of round 1; it returns in round 5."""
    downlink = SoftLabelDownlink(F32, absent)
    _, received = received_in(downlink, posted(downlink, 2, {}), Received(), 3, 2)
    found, after = received_in(downlink, posted(downlink, 5, {2: [3]}), received, 3, 5)
    assert list(found) == numbers and after.last == 4
    assert all(np.allclose(found[n].probs, labels(n).probs) for n in numbers)
    assert all(found[n].index.tolist() == [n % 4] for n in numbers)


@pytest.mark.parametrize(("absent", "numbers"), [("latest", [2]), ("missed", [0, 1, 2])])
def test_a_client_that_comes_late_for_the_first_time(absent, numbers):
    downlink = SoftLabelDownlink(F32, absent)
    found, _ = received_in(downlink, posted(downlink, 3, {}), Received(), 9, 3)
    assert list(found) == numbers


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_a_client_that_is_always_there_receives_all_labels_once(absent):
    downlink = SoftLabelDownlink(F32, absent)
    received = Received()
    order = []
    for number in range(4):
        memory = posted(downlink, number, {n: [5] for n in range(number)})
        found, received = received_in(downlink, memory, received, 5, number)
        order.append(list(found))
    assert order == [[], [0], [1], [2]]


def test_missed_labels_cost_their_messages_and_four_bytes_each():
    downlink, r = SoftLabelDownlink(F32, "missed"), toys.a_round(3)
    sizes = [len(F32.encode(labels(n), Link(3, 4, 2, ((0, n, "pick"),)))) for n in range(3)]
    assert len(download_for(downlink, posted(downlink, 3, {}), 0, r)) == sum(sizes) + 3 * 4
    later = download_for(downlink, posted(downlink, 3, {1: [0]}), 0, r)  # it has those of round 0
    assert len(later) == sum(sizes[1:]) + 2 * 4


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_the_ledger_counts_all_labels_a_returning_client_receives(absent):
    """Without a sampler a round's subset is drawn from a seed both ends know: its labels are 18 +
    10 x 3 x 4 bytes, with a length of 4 where there may be several."""
    absent_fd = fd(10, download="soft-labels", absent=absent, local=LOCAL, distill=DISTILL)
    records = run_rounds(a_federation(absent_fd, cohort=2), 6, SequentialEngine("cpu", threads=2))
    due, several = dict.fromkeys(range(6), 0), 0  # the first round whose labels a client lacks
    for number, record in enumerate(records):
        for client, size in record.bytes.down.items():
            count = number - due[client] if absent == "missed" else min(1, number)
            several += count > 1
            assert size == count * (18 + 120 + (4 if absent == "missed" else 0))
            due[client] = number
    assert bool(several) == (absent == "missed")


def test_a_client_distils_what_it_missed_in_order_before_it_trains():
    soft = fd(1, download="soft-labels", absent="missed", local=LOCAL, distill=DISTILL)
    downlink, r, client = SoftLabelDownlink(F32, "missed"), toys.a_round(3), toys.client(1)
    after = ServerMemory(downlink=posted(downlink, 3, {1: [1]}))
    _, received = received_in(downlink, posted(downlink, 1, {}), Received(), 1, 1)
    memory = ClientMemory(weights(3), received=received)
    download = soft.prepare_downloads(Server({"linear": weights(0)}, after), [client], r)[1]
    turn = soft.client_turn(client, memory, download, r)
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
    plain = soft_label_codec(inner)
    downlink = SoftLabelDownlink(soft_label_codec(f"delta({inner})"), absent)
    sent: dict[int, SoftLabels] = {}
    memory = DownlinkMemory()
    received: dict[int, Received] = {}
    count = 0
    for number in range(6):
        r, link = toys.a_round(number), Link(number, 4, 2)
        cohort = np.flatnonzero(generator.random(4) < 0.5).tolist()
        for client in cohort:
            download = download_for(downlink, memory, client, r)
            found, received[client] = downlink.decode(received.get(client, Received()), download, r)
            assert not found or max(found) == number - 1
            for n, arrived in found.items():
                assert arrived.index.tolist() == sent[n].index.tolist()
                alone = plain.decode(plain.encode(sent[n], link), link)
                assert np.array_equal(arrived.probs, alone.probs)
                count += 1
        index = np.sort(generator.choice(4, 2, replace=False))
        sent[number] = SoftLabels(index, generator.dirichlet([1, 1], 2))
        memory = downlink.record(memory, sent[number], cohort, r)
        assert all(equal(memory.received[client], received[client]) for client in cohort)
    assert count > 4


def test_labels_that_did_not_change_cost_less_the_second_time():
    downlink = SoftLabelDownlink(soft_label_codec("delta(float32)"), "latest")
    same = SoftLabels(np.arange(4), np.full((4, 2), 0.5))
    memory = downlink.record(DownlinkMemory(), same, [0], toys.a_round(0))
    first = download_for(downlink, memory, 0, toys.a_round(1))
    memory = downlink.record(memory, same, [0], toys.a_round(1))
    again, stranger = (download_for(downlink, memory, client, toys.a_round(2)) for client in (0, 1))
    assert len(first) - len(again) >= 4 * 2 * 4 - 1  # all rows are spared
    assert len(stranger) == len(first)  # who never received them receives all of them


def test_labels_are_never_read_against_another_memory():
    """Client 0 has a row of sample 0 and is sent only what changed; a client that lost its memory
    cannot read that.
    """
    downlink = SoftLabelDownlink(soft_label_codec("delta(float32)"), "latest")
    memory = downlink.record(DownlinkMemory(), labels(0), [], toys.a_round(0))
    memory = downlink.record(memory, labels(4), [0], toys.a_round(1))
    download = download_for(downlink, memory, 0, toys.a_round(2))
    _, received = received_in(downlink, posted(downlink, 1, {}), Received(), 0, 1)
    found, _ = downlink.decode(received, download, toys.a_round(2))
    assert np.allclose(found[1].probs, labels(4).probs)
    with pytest.raises(WireError, match="checksum"):
        downlink.decode(Received(), download, toys.a_round(2))


# --- downloads that are not right ---


def a_bundle():
    downlink, r = SoftLabelDownlink(F32, "missed"), toys.a_round(3)
    return downlink, download_for(downlink, posted(downlink, 3, {}), 0, r), r


def test_a_truncated_bundle_is_refused_wherever_it_is_cut():
    downlink, bundle, r = a_bundle()
    for keep in range(len(bundle)):
        with pytest.raises(WireError):
            downlink.decode(Received(), bundle[:keep], r)


def test_a_bundle_with_something_after_it_is_refused():
    downlink, bundle, r = a_bundle()
    with pytest.raises(WireError, match="2 bytes after the last labels"):
        downlink.decode(Received(), bundle + b"xx", r)


def test_a_length_beyond_the_download_is_refused():
    downlink, bundle, r = a_bundle()
    with pytest.raises(WireError, match="cut short"):
        downlink.decode(Received(), LENGTH.pack(2**32 - 1) + bundle[4:], r)


@pytest.mark.parametrize("absent", ["latest", "missed"])
def test_a_download_where_nothing_was_due_is_refused(absent):
    with pytest.raises(WireError):
        SoftLabelDownlink(F32, absent).decode(Received(), b"labels", toys.a_round(0))


def test_an_empty_download_where_labels_were_due_is_refused():
    with pytest.raises(WireError, match="a download of 0 bytes where 1 were due"):
        SoftLabelDownlink(F32, "latest").decode(Received(), b"", toys.a_round(1))


def test_an_unknown_way_to_treat_the_absent_is_refused_by_the_nearest():
    with pytest.raises(UserError, match="did you mean 'missed'"):
        fd(1, download="soft-labels", absent="mised")
    with pytest.raises(UserError, match="did you mean 'predictions'"):
        fd(1, download="soft-labels", teach="prediction")


# --- DS-FL ---


def test_ds_fl_sharpens_what_it_distils_and_what_it_teaches():
    """Votes (.8, .2) and (.4, .6) have the mean (.6, .4); ERA at 0.1 makes it softmax(6, 4) =
    (.881, .119).
    """
    ds, r = ds_fl(1, distill=DISTILL), toys.a_round()
    uploads = {0: upload([2], [[0.8, 0.2]], r, 0), 1: upload([2], [[0.4, 0.6]], r, 1)}
    turn = toys.serve(ds, ds.start(r), uploads, r)
    (fit,) = next(turn)
    first = 1 / (1 + np.exp(-2))
    assert torch.allclose(
        fit.data.targets, torch.tensor([[first, 1 - first]], dtype=torch.float32), atol=1e-6
    )
    server = finish(turn, [weights(1)])
    download = ds.prepare_downloads(server, [toys.client(5)], toys.a_round(1))[5]
    taught = next(ds.client_turn(toys.client(5), ClientMemory(), download, toys.a_round(1)))
    assert torch.allclose(taught.data.targets, fit.data.targets, atol=1e-6)


# --- CFD ---


def test_cfd_teaches_the_students_predictions_not_the_aggregate():
    """All votes are for class 0; the student answers (0, ln 3) on all of P: (1/4, 3/4) is what
    clients receive.
    """
    soft = fd(2, download="soft-labels", teach="predictions", distill=DISTILL)
    r = toys.a_round()
    turn = toys.serve(soft, soft.start(r), {0: upload([1, 3], [[1, 0], [1, 0]], r, 0)}, r)
    (fit,) = next(turn)
    assert torch.equal(fit.data.targets, torch.tensor([[1.0, 0.0]] * 2))
    (predict,) = turn.send([weights(2)])
    assert (
        isinstance(predict, Predict)
        and equal(predict.state, weights(2))
        and predict.samples is r.public
    )
    server = finish(turn, [np.array([[0.0, np.log(3)]] * 4, np.float32)])
    download = soft.prepare_downloads(server, [toys.client(1)], toys.a_round(1))[1]
    found = F32.decode(download, Link(1, 4, 2, ((0, 0, "pick"),)))
    assert found.index.tolist() == [0, 1, 2, 3] and np.allclose(found.probs, [[0.25, 0.75]] * 4)


def test_students_of_several_architectures_teach_their_mean():
    soft = fd(1, sampler="low-entropy", download="soft-labels", teach="predictions")
    r = toys.a_round(models=[toys.model(name="one"), toys.model(name="two")])
    turn = toys.serve(soft, soft.start(r), {0: upload([1], [[1, 0]], r, 0)}, r)
    next(turn)
    assert [work.model.name for work in turn.send([weights(2), weights(3)])] == ["one", "two"]
    answers = [np.array([[0.0, np.log(3)]] * 4, np.float32), np.zeros((4, 2), np.float32)]
    server = finish(turn, answers)
    assert np.allclose(server.memory.downlink.posted[0].probs, [[0.375, 0.625]] * 4)


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
    return run_rounds(
        Federation(system, clients, task, 3, 0), 5, SequentialEngine("cpu", threads=2)
    )


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


@pytest.mark.slow
def test_deltas_cost_no_accuracy():
    """One-bit labels arrive the same whether only changes are sent or all: the same training, fewer
    bytes.
    """
    changes, everything = (
        cfd_records(codec=codec) for codec in ("delta(quantized(1))", "quantized(1)")
    )
    assert [record.accuracies for record in changes] == [record.accuracies for record in everything]
    assert sum(r.uplink_bytes for r in changes) < 0.8 * sum(r.uplink_bytes for r in everything)


def test_cfd_server_and_clients_agree_on_what_was_sent_while_clients_come_and_go():
    federation = a_federation(cfd(20, local=RECIPE, distill=RECIPE, absent="missed"), cohort=3)
    for record in run_rounds(federation, 6, SequentialEngine("cpu", threads=2)):
        server, memories = record.state.server.memory, record.state.memories
        assert server.downlink.received.keys() == server.sent.keys() == memories.keys()
        for client, memory in memories.items():
            assert equal(server.downlink.received[client], memory.received)
            assert equal(server.sent[client], memory.sent)
