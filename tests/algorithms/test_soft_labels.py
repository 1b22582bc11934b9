"""The algorithms, turn by turn. A turn is a generator, so a test can play the engine and send
answers by hand.
"""

import math

import numpy as np
import pytest
import torch

import fedsift
from fedsift.algorithms.averages import average
from fedsift.algorithms.soft_label_downlink import DownlinkMemory
from fedsift.algorithms.soft_label_uplink import check_picks, fit_to_bytes
from fedsift.algorithms.soft_labels import ClientMemory, ServerMemory
from fedsift.algorithms.students import apply_ema
from fedsift.algorithms.weights import ServerMemory as FedAvgMemory
from fedsift.codecs import CODECS, WEIGHT_CODECS, WireError
from fedsift.memory import is_empty
from fedsift.models import initial_state
from fedsift.types import Fit, Link, Predict, Recipe, Server, SoftLabels, UserError
from tests.helpers import toys
from tests.helpers.toys import upload, weights
from tests.helpers.turns import finish

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
F32, W32 = CODECS["float32"], WEIGHT_CODECS["float32"]


def at(value):
    """A server whose student has these weights and which remembers nothing."""
    return Server({"linear": weights(value)}, ServerMemory())


# --- FedAvg ---


def test_the_average_is_weighted_by_data_size():
    """(1 x 10 + 3 x 20 + 6 x 30) / 10 = 25; a counter is not averaged but kept at its largest."""
    states = [
        ({"w": torch.tensor([v]), "count": torch.tensor(n)}, d)
        for v, n, d in ((10.0, 4, 1), (20.0, 9, 3), (30.0, 7, 6))
    ]
    joint = average(iter(states))
    assert joint["w"].tolist() == [25.0] and joint["w"].dtype == torch.float32
    assert joint["count"].item() == 9 and joint["count"].dtype == torch.int64


def test_averaging_nothing_is_an_error():
    with pytest.raises(UserError, match="nothing to average"):
        average([({"w": torch.ones(1)}, 0)])


def test_a_fedavg_client_trains_what_it_downloads_and_tells_how_many_samples_it_has():
    fedavg, r, client = fedsift.fedavg(local=LOCAL), toys.a_round(3), toys.client(7)
    before = Server({"linear": weights(1)}, FedAvgMemory())
    download = fedavg.prepare_downloads(before, [client], r)[7]
    turn = fedavg.client_turn(client, toys.no_memory(fedavg), download, r)
    work = next(turn)
    assert isinstance(work, Fit) and torch.equal(work.state["1.weight"], weights(1)["1.weight"])
    assert work.data is client.data and work.recipe == LOCAL and work.epoch == 6
    memory, message = finish(turn, weights(5))
    state, count = W32.decode(message, 3, weights(0))
    assert (
        is_empty(memory) and count == 2 and torch.equal(state["1.weight"], weights(5)["1.weight"])
    )


def test_the_fedavg_server_averages_the_uploads():
    fedavg, r = fedsift.fedavg(), toys.a_round(2)
    uploads = {4: W32.encode(weights(1), 2, samples=1), 9: W32.encode(weights(5), 2, samples=3)}
    before = Server({"linear": weights(0)}, FedAvgMemory())
    server = finish(toys.serve(fedavg, before, uploads, r), None)
    assert torch.equal(
        server.students["linear"]["1.weight"], weights(4)["1.weight"]
    )  # (1 + 15) / 4


def test_fedavg_carries_and_averages_batch_norm_statistics():
    model = toys.model(toys.with_batch_norm)
    r = toys.a_round(models=[model])
    states = [
        initial_state(model, 0) | {"0.running_mean": torch.tensor([m, 0.0])} for m in (1.0, 5.0)
    ]
    uploads = {i: W32.encode(state, 0, samples=1) for i, state in enumerate(states)}
    before = Server({model.name: states[0]}, FedAvgMemory())
    server = finish(toys.serve(fedsift.fedavg(), before, uploads, r), None)
    assert server.students[model.name]["0.running_mean"].tolist() == [3.0, 0.0]


def test_fedavg_refuses_mixed_models_and_names_what_works():
    r = toys.a_round(models=[toys.model(), toys.model(toys.with_batch_norm)])
    with pytest.raises(UserError, match="one model, not linear, with_batch_norm; use fd or fas"):
        fedsift.fedavg().start(r)


# --- the meta-algorithm: a client's turn ---


def test_an_fd_client_trains_predicts_picks_and_uploads():
    """Outputs (2, 0) etc. at temperature 2 become softmax(1, 0) = (e / (e + 1), 1 / (e + 1)).
    Entropies order the samples 3 (5, 0), 0 (2, 0), 2 (0, 1), 1 (0, 0), so a budget of 2 picks 0 and
    3."""
    fas = fedsift.fas(2, sampler="low-entropy", temperature=2.0, local=LOCAL, distill=DISTILL)
    r, client = toys.a_round(1), toys.client(7)
    download = fas.prepare_downloads(Server({"linear": weights(1)}, ServerMemory()), [client], r)[7]
    turn = fas.client_turn(client, ClientMemory(), download, r)
    fit = next(turn)
    assert (
        isinstance(fit, Fit) and fit.data is client.data and fit.recipe == LOCAL and fit.epoch == 2
    )
    assert torch.equal(fit.state["1.weight"], weights(1)["1.weight"])
    predict = turn.send(weights(8))
    assert isinstance(predict, Predict) and predict.samples is r.public
    assert torch.equal(predict.state["1.weight"], weights(8)["1.weight"])
    logits = np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [5.0, 0.0]], np.float32)
    memory, message = finish(turn, logits)
    labels = F32.decode(message, r.link(7))
    e, f = math.e / (math.e + 1), math.exp(2.5) / (math.exp(2.5) + 1)
    assert isinstance(memory, ClientMemory) and is_empty(memory)
    assert labels.index.tolist() == [0, 3]
    assert np.allclose(labels.probs, [[e, 1 - e], [f, 1 - f]], atol=1e-7)


def test_local_batches_are_named_after_the_client_not_its_place_in_the_cohort():
    fd, r = fedsift.fd(2), toys.a_round(1, seed=5)
    server = Server({"linear": weights(1)}, ServerMemory())
    cohorts = ([toys.client(7)], [toys.client(2), toys.client(7)])
    keys = []
    for cohort in cohorts:
        downloads = fd.prepare_downloads(server, cohort, r)
        keys.append(next(fd.client_turn(cohort[-1], ClientMemory(), downloads[7], r)).key)
    assert keys == [(5, 1, "local", 7)] * 2


@pytest.mark.parametrize("picks", [[0, 0], [4, 1], [-1, 2], [0, 1, 2], []])
def test_a_sampler_that_breaks_its_promise_is_told_so(picks):
    fas = fedsift.fas(2, sampler=lambda probs, counts, budget, draws: np.array(picks, int))
    r, client = toys.a_round(), toys.client(0)
    download = fas.prepare_downloads(Server({"linear": weights(1)}, ServerMemory()), [client], r)[0]
    turn = fas.client_turn(client, ClientMemory(), download, r)
    next(turn)
    turn.send(weights(1))
    with pytest.raises(UserError, match="1 to 2 distinct indexes below 4"):
        turn.send(np.zeros((4, 2), np.float32))


def test_a_sampler_cannot_change_what_is_sent():
    def careless(probs, counts, budget, draws):
        probs[:, 0] = 0
        return np.arange(budget)

    fas, r, client = fedsift.fas(2, sampler=careless), toys.a_round(), toys.client(0)
    download = fas.prepare_downloads(Server({"linear": weights(1)}, ServerMemory()), [client], r)[0]
    turn = fas.client_turn(client, ClientMemory(), download, r)
    next(turn)
    turn.send(weights(1))
    with pytest.raises(ValueError, match="read-only"):
        turn.send(np.zeros((4, 2), np.float32))


# --- the meta-algorithm: the server's turn ---


def test_the_server_distils_per_index_means_on_the_union():
    """Sample 0: one vote (1, 0). Sample 2: votes (.6, .4) and (.2, .8), mean (.4, .6). Sample 3:
    one vote (.5, .5). Sample 1 was uploaded by nobody and is not distilled."""
    fd, r = fedsift.fd(2, sampler="low-entropy", distill=DISTILL), toys.a_round(4)
    uploads = {
        3: upload([0, 2], [[1, 0], [0.6, 0.4]], r, 3),
        5: upload([2, 3], [[0.2, 0.8], [0.5, 0.5]], r, 5),
    }
    turn = toys.serve(fd, at(1), uploads, r)
    (fit,) = next(turn)
    assert fit.data.samples.rows.tolist() == [0, 2, 3]
    assert torch.allclose(fit.data.targets, torch.tensor([[1.0, 0.0], [0.4, 0.6], [0.5, 0.5]]))
    assert (
        fit.epoch == 12
        and fit.recipe == DISTILL
        and torch.equal(fit.state["1.weight"], weights(1)["1.weight"])
    )
    server = finish(turn, [weights(9)])
    assert torch.equal(server.students["linear"]["1.weight"], weights(9)["1.weight"])
    assert isinstance(server.memory, ServerMemory) and is_empty(server.memory)


def test_a_moving_average_by_hand():
    """A quarter of the old: .25 x 8 + .75 x 4 = 5. A counter is the new one, to the bit."""
    old = {"w": torch.tensor([8.0, -4.0]), "seen": torch.tensor(3)}
    new = {"w": torch.tensor([4.0, 4.0]), "seen": torch.tensor(7)}
    between = apply_ema(old, new, 0.25)
    assert list(between) == ["w", "seen"]
    assert between["w"].tolist() == [5.0, 2.0]
    assert (between["seen"].item(), between["seen"].dtype) == (7, torch.int64)
    assert (old["w"].tolist(), new["w"].tolist()) == ([8.0, -4.0], [4.0, 4.0])


def test_a_moving_average_that_keeps_nothing_is_the_new_state_bit_for_bit():
    old, new = {"w": torch.tensor([float("nan")])}, {"w": torch.tensor([0.1])}
    assert apply_ema(old, new, 0.0) is new


@pytest.mark.parametrize(("ema", "value"), [(0.0, 9.0), (0.5, 5.0), (0.75, 3.0)])
def test_the_server_keeps_a_share_of_each_students_old_weights(ema, value):
    """From 1 to 9: half way is 5."""
    fd, r = fedsift.fd(1, sampler="low-entropy", ema=ema), toys.a_round()
    turn = toys.serve(fd, at(1), {0: upload([1], [[1, 0]], r, 0)}, r)
    (fit,) = next(turn)
    assert torch.equal(fit.state["1.weight"], weights(1)["1.weight"])
    server = finish(turn, [weights(9)])
    assert torch.equal(server.students["linear"]["1.weight"], weights(value)["1.weight"])


def test_with_several_architectures_each_student_moves_from_its_own_weights():
    models = [toys.model(), toys.model(toys.with_batch_norm)]
    fd, r = fedsift.fd(1, sampler="low-entropy", ema=0.5), toys.a_round(models=models)
    server = fd.start(r)
    turn = toys.serve(fd, server, {0: upload([1], [[0.3, 0.7]], r, 0)}, r)
    next(turn)
    taught = [{name: w + 2 for name, w in server.students[m.name].items()} for m in models]
    students = finish(turn, taught).students
    for m in models:
        for name, old in server.students[m.name].items():
            step = 1 if old.is_floating_point() else 2
            torch.testing.assert_close(students[m.name][name], old + step)


def test_predictions_sent_down_are_those_of_the_moved_student():
    fd, r = fedsift.cfd(1, sampler="low-entropy", ema=0.5), toys.a_round()
    labels = SoftLabels(np.array([1]), np.array([[1.0, 0.0]]))
    message, _ = fd.up.encode_stateful(labels, r.link(0), None)
    turn = toys.serve(fd, at(1), {0: message}, r)
    next(turn)
    (asked,) = turn.send([weights(9)])
    assert isinstance(asked, Predict)
    assert torch.equal(asked.state["1.weight"], weights(5)["1.weight"])


@pytest.mark.parametrize("number", [0, 1])
def test_students_are_asked_about_clients_once_they_have_been_taught(number):
    # As drawn they know nothing, and agree with a client by luck.
    system = fedsift.fd(1, sampler="low-entropy", aggregator="trust")
    r = toys.a_round(number=number)
    turn = toys.serve(system, system.start(r), {0: upload([1], [[0.3, 0.7]], r, 0)}, r)
    (first,) = next(turn)
    assert isinstance(first, Fit if number == 0 else Predict)


@pytest.mark.parametrize("ema", [1.0, -0.1, 2, math.nan])
def test_an_ema_outside_zero_to_one_is_an_error(ema):
    with pytest.raises(
        UserError, match=f"ema is a share of the old weights, from 0 to below 1, not {ema}"
    ):
        fedsift.fd(1, ema=ema)


@pytest.mark.parametrize(
    ("picks", "kind"), [(None, "NoneType"), ("abc", "str"), ([[1], [2, 3]], "list")]
)
def test_a_sampler_that_returns_no_indexes_is_told_so(picks, kind):
    with pytest.raises(
        UserError, match=f"the sampler returned {kind}, not indexes of public samples"
    ):
        check_picks(picks, 2, 4)


# --- a pool of public samples for every round ---


def with_pool(pool, samples=20, number=0):
    public = np.stack(
        [np.arange(samples), np.zeros(samples)], 1
    )  # a sample's first figure is its number
    return fedsift.fd(2, sampler="low-entropy", pool=pool), toys.a_round(number, public.tolist())


def pool_of(fd, r, client=0):
    """The samples a client is asked about."""
    download = W32.encode(weights(1), r.number)
    turn = fd.client_turn(toys.client(client), ClientMemory(), download, r)
    next(turn)
    return turn, turn.send(weights(1)).samples


def test_all_clients_of_a_round_choose_from_one_pool_and_the_next_round_has_another():
    fd, first = with_pool(5)
    pools = [
        pool_of(fd, r, c)[1].rows.tolist()
        for r in (first, with_pool(5, number=1)[1])
        for c in (0, 3)
    ]
    assert pools[0] == pools[1] != pools[2] == pools[3]
    assert all(len(set(pool)) == 5 and set(pool) <= set(range(20)) for pool in pools)


def test_what_was_chosen_from_a_pool_is_taught_on_the_same_samples_and_its_indexes_are_the_pools():
    """Sure of the pool's second and fourth sample: 2 of 5 is one of ten sets, a byte; 2 of 2,000
    take three.
    """
    fd, r = with_pool(5)
    turn, pool = pool_of(fd, r)
    logits = np.zeros((5, 2), np.float32)
    logits[[1, 3], 0] = 9
    _, message = finish(turn, logits)
    (fit,) = next(toys.serve(fd, at(1), {0: message}, r))
    assert fit.data.samples.rows.tolist() == pool.rows[[1, 3]].tolist()
    assert fit.data.samples.tensor()[:, 0].tolist() == [float(row) for row in pool.rows[[1, 3]]]
    assert (
        len(F32.encode(SoftLabels(np.array([1, 3]), np.ones((2, 2))), Link(0, 2000, 2)))
        == len(message) + 2
    )


def test_a_pool_has_the_samples_that_are_replayed():
    fd, r = fedsift.fd(2, pool=5, replay=6), with_pool(5)[1]
    with pytest.raises(UserError, match=r"replay 6 is larger than the public set \(5 samples\)"):
        fd.start(r)


def test_a_memory_of_labels_needs_the_same_public_samples_every_round():
    with pytest.raises(UserError, match=r"a pool .* an aggregator that is not memory"):
        fedsift.fd(2, pool=5, aggregator="memory(mean)")


@pytest.mark.parametrize("pool", [1, 21])
def test_a_pool_is_at_least_the_budget_and_at_most_the_public_set(pool):
    fd, r = with_pool(pool)
    with pytest.raises(
        UserError,
        match=(
            rf"a pool of {pool} samples does not fit; give the budget \(2\) to the "
            rf"public set \(20"
        ),
    ):
        fd.start(r)


@pytest.mark.parametrize(
    "settings", [{"download": "soft-labels"}, {"codec": "delta(quantized(2))"}]
)
def test_a_pool_cannot_go_with_what_looks_back_at_earlier_rounds(settings):
    with pytest.raises(UserError, match="a pool changes every round"):
        fedsift.fd(2, pool=5, **settings)


def test_the_temperature_reaches_the_students_loss():
    fd, r = fedsift.fd(1, sampler="low-entropy", temperature=3.0), toys.a_round()
    (fit,) = next(toys.serve(fd, at(1), {0: upload([1], [[1, 0]], r, 0)}, r))
    assert fit.temperature == 3.0


def test_one_student_per_architecture_learns_from_the_same_aggregate():
    models = [toys.model(), toys.model(toys.with_batch_norm)]
    fd, r = fedsift.fd(1, sampler="low-entropy"), toys.a_round(models=models)
    server = fd.start(r)
    fits = next(toys.serve(fd, server, {0: upload([1], [[0.3, 0.7]], r, 0)}, r))
    assert [fit.model for fit in fits] == models
    assert all(torch.allclose(fit.data.targets, torch.tensor([[0.3, 0.7]])) for fit in fits)


def test_every_client_downloads_the_student_of_its_own_architecture():
    models = [toys.model(), toys.model(toys.with_batch_norm)]
    fd, r = fedsift.fd(1, sampler="low-entropy"), toys.a_round(models=models)
    server = fd.start(r)
    clients = [toys.client(0), toys.client(1, factory=toys.with_batch_norm), toys.client(2)]
    downloads = fd.prepare_downloads(server, clients, r)
    assert downloads[0] == downloads[2] != downloads[1]
    state, _ = W32.decode(downloads[1], 0, server.students["with_batch_norm"])
    assert torch.equal(state["1.weight"], server.students["with_batch_norm"]["1.weight"])
    assert "0.running_mean" in state


# --- soft labels down ---


def soft_down():
    return fedsift.fd(2, download="soft-labels", local=LOCAL, distill=DISTILL)


def test_in_the_first_round_nothing_is_downloaded_and_a_client_starts_from_the_shared_weights():
    fd, r, client = soft_down(), toys.a_round(), toys.client(1)
    assert fd.prepare_downloads(fd.start(r), [client], r) == {1: b""}
    fit = next(fd.client_turn(client, ClientMemory(), b"", r))
    assert torch.equal(fit.state["1.weight"], initial_state(client.model, r.seed)["1.weight"])


def test_with_soft_labels_down_the_server_remembers_and_sends_the_aggregate():
    fd, r = soft_down(), toys.a_round(0)
    uploads = {0: upload([1, 3], [[0.9, 0.1], [0.2, 0.8]], r, 0)}
    turn = toys.serve(fd, fd.start(r), uploads, r)
    next(turn)
    server = finish(turn, [weights(2)])
    downloads = fd.prepare_downloads(server, [toys.client(1), toys.client(2)], toys.a_round(1))
    assert downloads[1] == downloads[2]
    labels = F32.decode(downloads[1], Link(1, 4, 2, ((0, 0, "pick"),)))
    assert labels.index.tolist() == [1, 3]
    assert np.allclose(labels.probs, [[0.9, 0.1], [0.2, 0.8]])


def test_a_returning_client_distils_the_latest_labels_into_its_own_model_before_it_trains():
    fd, r, client = soft_down(), toys.a_round(5), toys.client(1)
    labels = SoftLabels(np.array([2]), np.array([[0.4, 0.6]]))
    memory = ServerMemory(downlink=DownlinkMemory({4: labels}))
    download = fd.prepare_downloads(Server({"linear": weights(0)}, memory), [client], r)[1]
    turn = fd.client_turn(client, ClientMemory(weights(3)), download, r)
    distil = next(turn)
    assert (
        torch.equal(distil.state["1.weight"], weights(3)["1.weight"]) and distil.recipe == DISTILL
    )
    assert distil.data.samples.rows.tolist() == [2] and torch.allclose(
        distil.data.targets, torch.tensor([[0.4, 0.6]])
    )
    local = turn.send(weights(4))
    assert (
        torch.equal(local.state["1.weight"], weights(4)["1.weight"]) and local.data is client.data
    )
    turn.send(weights(6))
    after, _ = finish(turn, np.zeros((4, 2), np.float32))
    assert torch.equal(after.model["1.weight"], weights(6)["1.weight"])
    assert after.received.last == 4


# --- errors ---


def test_a_budget_must_fit_the_public_set():
    with pytest.raises(UserError, match=r"budget 5 is larger than the public set \(4 samples\)"):
        fedsift.fd(5).start(toys.a_round())
    with pytest.raises(UserError, match="uploads nothing"):
        fedsift.fd(0)


def test_parts_are_found_by_name_or_refused_by_the_nearest():
    with pytest.raises(
        UserError, match="unknown sampler 'low-entropi'; did you mean 'low-entropy'"
    ):
        fedsift.fd(1, sampler="low-entropi")
    with pytest.raises(UserError, match="unknown download 'weight'; did you mean 'weights'"):
        fedsift.fd(1, download="weight")
    with pytest.raises(UserError, match="temperature must be above 0"):
        fedsift.fd(1, temperature=0)
    assert fedsift.fd(1, aggregator="era(0.2)").aggregate == fedsift.Era(0.2)
    assert (
        fedsift.fas(1).sampler is fedsift.SAMPLERS["mixed"]
        and fedsift.fd(1).sampler is fedsift.SAMPLERS["none"]
    )


def test_a_message_of_another_round_is_refused_by_the_server():
    fd, r = fedsift.fd(1), toys.a_round(4)
    message = upload([1], [[1, 0]], toys.a_round(3), 0)
    with pytest.raises(fedsift.WireError, match="round 3 where round 4 was expected"):
        fd.check_upload(at(1), 0, message, r)


# --- a cap on the bytes of an upload ---


@pytest.mark.parametrize("most", [13, 100, 257, 999, 4000])
def test_as_many_labels_are_sent_as_fit_the_bytes(most):
    """A message of 12 bytes and 4 for each label: (most - 12) / 4 labels fit, up to the budget."""
    tried = []

    def encode(budget):
        tried.append(budget)
        return bytes(12 + 4 * budget), None

    if most < 16:
        with pytest.raises(UserError, match="one soft label takes 16 bytes; bytes = 13"):
            fit_to_bytes(encode, 500, most)
        return
    message, _ = fit_to_bytes(encode, 500, most)
    largest = min(500, (most - 12) // 4)
    assert len(message) <= most and len(message) >= min(12 + 4 * largest, 0.98 * most)
    assert len(tried) <= 10


@pytest.mark.parametrize("budget", [4000, 5000, 10**5])
def test_a_sampler_that_cannot_fill_its_budget_still_fills_the_bytes(budget):
    """It finds 1500 samples of a byte each: budgets beyond that are all as long, and too long."""

    def encode(budget):
        return bytes(12 + min(budget, 1500)), None

    assert 1400 <= len(fit_to_bytes(encode, budget, 1500)[0]) <= 1500


def test_a_budget_that_fits_is_encoded_once():
    tried = []

    def encode(budget):
        tried.append(budget)
        return b"", None

    fit_to_bytes(encode, 7, 10)
    fit_to_bytes(encode, 7, None)
    assert tried == [7, 7]


def test_a_longer_upload_than_allowed_is_refused():
    fas, r = fedsift.fas(4, bytes=40), toys.a_round()
    short, long = (upload(range(n), [[0.5, 0.5]] * n, r, 3) for n in (2, 4))
    assert len(short) <= 40 < len(long)
    assert len(fas.check_upload(at(0), 3, short, r).labels) == 2
    with pytest.raises(WireError, match="bytes where 40 are allowed"):
        fas.check_upload(at(0), 3, long, r)
