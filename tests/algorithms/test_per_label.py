"""FD of Jeong et al. and Mix2FLD: what is sent per label, who receives what, and how mixtures come
apart again.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedsift import training
from fedsift.aggregators import mean
from fedsift.algorithms.per_label import (
    JeongClientMemory,
    JeongServerMemory,
    MixtureSent,
    MixturesReceived,
    fd_jeong,
    mean_by_label,
    mean_of_others,
    mix2fld,
    mix_samples,
    pull_targets,
    unmix,
)
from fedsift.codecs import CODECS, WEIGHT_CODECS, WireError, indexes
from fedsift.codecs.mixtures import MixtureCodec, Mixtures
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Clients, Federation
from fedsift.models import initial_state
from fedsift.types import (
    Client,
    Fit,
    Labelled,
    Link,
    Predict,
    Recipe,
    Server,
    SoftLabels,
    UserError,
)
from tests.helpers import toys
from tests.helpers.federations import a_federation, a_task, equal, run_rounds
from tests.helpers.toys import weights
from tests.helpers.turns import finish

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
F32, W32 = CODECS["float32"], WEIGHT_CODECS["float32"]
MEANS = {  # client 0 has both labels, clients 1 and 2 only label 0
    0: SoftLabels(np.array([0, 1]), np.array([[0.9, 0.1], [0.3, 0.7]])),
    1: SoftLabels(np.array([0]), np.array([[0.6, 0.4]])),
    2: SoftLabels(np.array([0]), np.array([[0.3, 0.7]])),
}


def link(number):
    """A per-label message: the "samples" are the two classes."""
    return Link(number, 2, 2)


def with_means():
    """A server that keeps these means of the last round."""
    return Server({}, JeongServerMemory(MEANS))


def means(index, probs, number=0):
    return F32.encode(SoftLabels(np.array(index), np.array(probs)), link(number))


# --- per-label means ---


def test_per_label_means_by_hand():
    """Label 2: (.2, .2, .6) and (.0, .4, .6) have the mean (.1, .3, .6); label 0 has one row; label
    1 does not occur.
    """
    probs = np.array([[0.2, 0.2, 0.6], [0.7, 0.2, 0.1], [0.0, 0.4, 0.6]])
    labels = mean_by_label(probs, np.array([2, 0, 2]))
    assert labels.index.tolist() == [0, 2]
    assert np.allclose(labels.probs, [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])


@pytest.mark.parametrize(
    ("client", "index", "probs"),
    [
        (0, [0], [[0.45, 0.55]]),  # label 1 nobody else has
        (1, [0, 1], [[0.6, 0.4], [0.3, 0.7]]),
        (2, [0, 1], [[0.75, 0.25], [0.3, 0.7]]),
        (7, [0, 1], [[0.6, 0.4], [0.3, 0.7]]),  # was absent: the plain average
    ],
)
def test_a_client_receives_the_mean_of_the_others_by_hand(client, index, probs):
    labels = mean_of_others(MEANS, client, toys.a_round(1))
    assert labels.index.tolist() == index and np.allclose(labels.probs, probs)


@given(st.integers(0, 100))
def test_the_mean_of_the_others_is_the_mean_less_ones_own_part(seed):
    """(n_l G_l - F_il) / (n_l - 1), wherever n_l > 1 and the client has the label."""
    generator = np.random.default_rng(seed)
    has = generator.random((4, 2)) < 0.7
    table = generator.dirichlet([1, 1], (4, 2))
    by_client = {
        i: SoftLabels(np.flatnonzero(has[i]), table[i][has[i]]) for i in range(4) if has[i].any()
    }
    r = toys.a_round(1)
    joint = mean(by_client.items(), 2, 2)
    assert joint.weight is not None
    for client in range(4):
        others = mean_of_others(by_client, client, r)
        for label, g, n in zip(joint.index, joint.probs, joint.weight, strict=True):
            place = others.index.tolist().index(label) if label in others.index else None
            if not has[client, label]:
                assert place is not None and np.allclose(others.probs[place], g)
            elif n == 1:
                assert place is None
            else:
                assert place is not None
                assert np.allclose(others.probs[place], (n * g - table[client, label]) / (n - 1))


def test_pulled_targets_by_hand():
    """y + gamma G_y; label 1 has no G."""
    data = toys.labelled([[0.0, 0.0]] * 3, [0, 1, 0])
    targets = pull_targets(data, SoftLabels(np.array([0]), np.array([[0.6, 0.4]])), gamma=0.5)
    assert torch.allclose(targets, torch.tensor([[1.3, 0.2], [0.0, 1.0], [1.3, 0.2]]))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 2.0])
def test_the_loss_on_pulled_targets_is_the_two_cross_entropies(gamma):
    data = toys.labelled([[0.0, 0.0]] * 4, [0, 1, 1, 0])
    table = torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    logits = torch.tensor([[1.0, -1.0], [0.5, 0.2], [-2.0, 0.1], [0.0, 3.0]])
    labels = torch.from_numpy(data.labels)
    expected = F.cross_entropy(logits, labels) + gamma * F.cross_entropy(logits, table[labels])
    targets = pull_targets(data, SoftLabels(np.array([0, 1]), table.numpy()), gamma)
    assert training.loss(logits, targets).item() == pytest.approx(expected.item(), abs=1e-6)


# --- FD of Jeong et al. ---


def test_in_the_first_round_nobody_pulls():
    fd, r, client = fd_jeong(local=LOCAL), toys.a_round(), toys.client(1)
    download = fd.prepare_downloads(fd.start(r), [client], r)[1]
    assert len(F32.decode(download, link(0))) == 0
    fit = next(fd.client_turn(client, JeongClientMemory(), download, r))
    assert (
        isinstance(fit, Fit)
        and torch.equal(fit.data.targets, client.data.targets)
        and fit.epoch == 0
    )
    assert equal(fit.state, initial_state(client.model, r.seed))


def test_a_jeong_client_is_pulled_to_the_others_and_sends_its_means():
    """Client 1 receives (.6, .4) for label 0 and (.3, .7) for label 1: with gamma 2 its targets are
    (1, 0) + 2 (.6, .4) and (0, 1) + 2 (.3, .7). Its outputs on its own two samples, (0, 0) and (0,
    ln 3), are (1/2, 1/2) and (1/4, 3/4)."""
    fd, r, client = fd_jeong(local=LOCAL, gamma=2.0), toys.a_round(3), toys.client(1)
    download = fd.prepare_downloads(with_means(), [client], r)[1]
    turn = fd.client_turn(client, JeongClientMemory(weights(3)), download, r)
    fit = next(turn)
    assert torch.allclose(fit.data.targets, torch.tensor([[2.2, 0.8], [0.6, 2.4]]))
    assert equal(fit.state, weights(3)) and fit.epoch == 6 and fit.recipe == LOCAL
    predict = turn.send(weights(4))
    assert (
        isinstance(predict, Predict)
        and predict.samples is client.data.samples
        and equal(predict.state, weights(4))
    )
    memory, message = finish(turn, np.array([[0.0, 0.0], [0.0, np.log(3)]], np.float32))
    assert equal(memory, JeongClientMemory(weights(4)))
    assert np.allclose(F32.decode(message, link(3)).probs, [[0.5, 0.5], [0.25, 0.75]])


def test_a_client_alone_with_a_label_is_not_pulled_there():
    fd, r, client = fd_jeong(local=LOCAL), toys.a_round(1), toys.client(0)
    download = fd.prepare_downloads(with_means(), [client], r)[0]
    fit = next(fd.client_turn(client, JeongClientMemory(), download, r))
    assert torch.allclose(fit.data.targets, torch.tensor([[1.45, 0.55], [0.0, 1.0]]))


def test_the_jeong_server_keeps_the_last_rounds_means_only():
    fd, r = fd_jeong(), toys.a_round(4)
    turn = toys.serve(fd, with_means(), {5: means([1], [[0.2, 0.8]], 4)}, r)
    server = finish(turn, None)
    assert server.students == {} and list(server.memory.means) == [5]
    kept = server.memory.means[5]
    assert kept.index.tolist() == [1] and np.allclose(kept.probs, [[0.2, 0.8]])


def test_jeongs_accuracy_is_the_mean_over_the_clients_that_took_part():
    records = run_rounds(a_federation(fd_jeong(local=LOCAL)), 2, SequentialEngine("cpu", threads=2))
    seen = sorted(set(records[0].bytes.up) | set(records[1].bytes.up))
    assert list(records[0].accuracies) == [f"client {id}" for id in sorted(records[0].bytes.up)]
    assert list(records[1].accuracies) == [f"client {id}" for id in seen]
    assert records[1].accuracy == pytest.approx(np.mean(list(records[1].accuracies.values())))


# --- mixtures ---


def basis_client(labels, id=0):
    """Sample i is the i-th unit vector, so a mixture shows what it is made of."""
    eye = np.eye(len(labels)).tolist()
    return Client(id, toys.model(shape=(len(labels),)), toys.labelled(eye, labels, 3))


def test_a_mixture_has_lam_of_one_label_and_the_rest_of_another():
    labels = np.array([0, 0, 1, 2, 2])
    mixtures = mix_samples(basis_client(labels), 40, 0.3, toys.a_round())
    assert len(mixtures.x) == 40
    for x, a, b in zip(mixtures.x, mixtures.a, mixtures.b, strict=True):
        (small,), (large,) = (
            np.flatnonzero(x == np.float32(0.3)),
            np.flatnonzero(x == np.float32(0.7)),
        )
        assert np.count_nonzero(x) == 2 and labels[small] == a != b == labels[large]


def test_mixtures_are_a_function_of_seed_and_client():
    def drawn(id, seed):
        return mix_samples(basis_client([0, 1, 2], id), 20, 0.3, toys.a_round(seed=seed)).x

    assert np.array_equal(drawn(0, 0), drawn(0, 0))
    assert not np.array_equal(drawn(0, 0), drawn(1, 0)) and not np.array_equal(
        drawn(0, 0), drawn(0, 1)
    )


def test_a_client_with_a_single_class_mixes_nothing():
    mixtures = mix_samples(basis_client([1, 1, 1]), 10, 0.3, toys.a_round())
    assert mixtures.x.shape == (0, 3) and len(mixtures.a) == len(mixtures.b) == 0


def mixtures_of(*rows):
    """(x, a, b) each."""
    return Mixtures(*(np.array(part) for part in zip(*rows, strict=True)))


def test_mirrored_mixtures_of_two_clients_come_apart_by_hand():
    """lam = 0.2, mu = -1/3. Both clients mixed the same p = (1, 0) of class 0 and q = (0, 1) of
    class 1: .2 p + .8 q and .2 q + .8 p. mu (.8, .2) + (1 - mu) (.2, .8) = (-4 + 4, -1 + 16) / 15 =
    (0, 1) = q, and by exchange p."""
    x, y, alone = unmix(
        {3: mixtures_of(([0.2, 0.8], 0, 1)), 8: mixtures_of(([0.8, 0.2], 1, 0))}, 0.2, 2
    )
    assert alone == 0
    assert np.allclose(x, [[0, 1], [1, 0]], atol=1e-7) and np.array_equal(y, [[0, 1], [1, 0]])


def test_different_originals_come_apart_to_the_right_label_but_not_to_an_original():
    """The labels add up to one-hot, but the two clients' samples of a class differ, so a blend of
    both comes out.
    """
    p, q, u, v = np.array([1.0, 0]), np.array([0, 1.0]), np.array([3.0, 0]), np.array([0, 5.0])
    x, y, _ = unmix(
        {0: mixtures_of((0.2 * p + 0.8 * q, 0, 1)), 1: mixtures_of((0.2 * v + 0.8 * u, 1, 0))},
        0.2,
        2,
    )
    assert np.array_equal(y, [[0, 1], [1, 0]])
    assert all(np.abs(made - original).max() > 0.01 for made in x for original in (p, q, u, v))


@given(st.floats(0.01, 0.49))
def test_the_label_is_one_hot_again(lam):
    mu = lam / (2 * lam - 1)
    assert mu * lam + (1 - mu) * (1 - lam) == pytest.approx(1)
    assert mu * (1 - lam) + (1 - mu) * lam == pytest.approx(0, abs=1e-9)


@given(st.floats(0.05, 0.45), st.integers(0, 30))
def test_shared_originals_are_recovered_exactly_whatever_lam(lam, seed):
    generator = np.random.default_rng(seed)
    p, q = generator.standard_normal((2, 5))
    lots = {
        0: mixtures_of((lam * p + (1 - lam) * q, 2, 1)),
        1: mixtures_of((lam * q + (1 - lam) * p, 1, 2)),
    }
    x, y, alone = unmix(lots, lam, 3)
    assert alone == 0 and np.allclose(x, np.stack([q, p]), atol=1e-4)
    assert y.argmax(1).tolist() == [1, 2] and np.array_equal(y.max(1), [1, 1])


def test_a_client_is_not_paired_with_itself():
    x, y, alone = unmix({0: mixtures_of(([0.2, 0.8], 0, 1), ([0.8, 0.2], 1, 0))}, 0.2, 2)
    assert alone == 2 and np.allclose(x, [[0.2, 0.8], [0.8, 0.2]])
    assert np.allclose(y, [[0.2, 0.8], [0.8, 0.2]])  # lam on a, the rest on b


def test_a_mixture_without_a_partner_stays_mixed_and_is_counted():
    """(0, 1) of client 0 meets (1, 0) of client 1; (0, 2) of client 1 meets nobody: (2, 0) is what
    it would need.
    """
    lots = {
        0: mixtures_of(([0.2, 0.8], 0, 1)),
        1: mixtures_of(([5.0, 6.0], 0, 2), ([0.8, 0.2], 1, 0)),
    }
    x, y, alone = unmix(lots, 0.2, 3)
    assert alone == 1 and len(x) == 3
    assert np.allclose(x[2], [5, 6]) and np.allclose(
        y, [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.0, 0.8]]
    )


@given(st.integers(0, 60))
def test_no_mixture_is_lost_or_used_twice(seed):
    generator = np.random.default_rng(seed)
    clients = [basis_client(generator.permutation([0, 1, 2, 0, 1]), i) for i in range(4)]
    lots = {c.id: mix_samples(c, 6, 0.3, toys.a_round(seed=seed)) for c in clients}
    x, y, alone = unmix(lots, 0.3, 3)
    assert len(x) == len(y) == 24 and np.allclose(y.sum(1), 1)
    assert np.count_nonzero(y.max(1) < 1) == alone and (24 - alone) % 2 == 0
    assert np.allclose(
        x.sum(0), sum(lot.x.sum(0) for lot in lots.values()), atol=1e-4
    )  # a pair keeps its sum


# --- Mix2FLD ---


def later_upload(message):
    """Means alone, after their length."""
    return len(message).to_bytes(4, "little") + message


def first_upload(r, probs, mixtures, most=10):
    message = later_upload(means([0, 1], probs, r.number))
    return message + MixtureCodec((2,), 2, most).encode(mixtures, r.number)


def at(value):
    """A server whose student has these weights, before the first upload."""
    return Server({"linear": weights(value)}, MixturesReceived())


def a_pair(r):
    """Two first uploads whose mixtures come apart to q = (0, 1) and p = (1, 0).
    lam = 1/4 is exact in float16.
    """
    return {
        0: first_upload(r, [[0.9, 0.1], [0.5, 0.5]], mixtures_of(([0.25, 0.75], 0, 1))),
        1: first_upload(r, [[0.5, 0.5], [0.3, 0.7]], mixtures_of(([0.75, 0.25], 1, 0))),
    }


def test_a_soft_label_is_pulled_to_its_mixture_by_hand():
    """y = (.2, .8), G_0 = (.7, .3), G_1 = (.4, .6), gamma 2: pull 2 (.2 G_0 + .8 G_1) = (.92,
    1.08).
    """
    data = Labelled(toys.samples([[0.0, 0.0]]), torch.tensor([[0.2, 0.8]]))
    pull = SoftLabels(np.array([0, 1]), np.array([[0.7, 0.3], [0.4, 0.6]]))
    assert torch.allclose(pull_targets(data, pull, 2.0), torch.tensor([[1.12, 1.88]]))


def test_the_mix2fld_server_learns_on_unmixed_samples_pulled_to_the_mean_by_hand():
    """G_0 = (.7, .3), G_1 = (.4, .6). q is of class 1: (0, 1) + 2 (.4, .6); p of class 0: (1, 0) +
    2 (.7, .3).
    """
    fld, r = mix2fld(gamma=2.0, lam=0.25, distill=DISTILL), toys.a_round(2)
    turn = toys.serve(fld, at(1), a_pair(r), r)
    (fit,) = next(turn)
    assert torch.allclose(
        fit.data.samples.tensor(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), atol=1e-6
    )
    assert torch.allclose(fit.data.targets, torch.tensor([[0.8, 2.2], [2.4, 0.6]]), atol=1e-6)
    assert equal(fit.state, weights(1)) and fit.recipe == DISTILL and fit.epoch == 6
    server = finish(turn, [weights(6)])
    assert equal(server.students, {"linear": weights(6)})
    assert sorted(server.memory.mixtures) == [0, 1]
    assert server.counts == {"unpaired_mixtures": 0}


def test_later_rounds_learn_on_the_mixtures_of_the_first():
    fld, r = mix2fld(gamma=0.0, lam=0.25), toys.a_round(0)
    turn = toys.serve(fld, fld.start(r), a_pair(r), r)
    next(turn)
    server = finish(turn, [weights(6)])
    later = toys.a_round(1)
    again = later_upload(means([0], [[0.5, 0.5]], 1))
    (fit,) = next(toys.serve(fld, server, {1: again}, later))
    assert torch.allclose(
        fit.data.samples.tensor(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), atol=1e-6
    )


def test_with_mixed_models_each_architecture_has_a_student_and_all_learn_the_same():
    models = [toys.model(name="one"), toys.model(name="two")]
    fld, r = mix2fld(lam=0.25), toys.a_round(models=models)
    server = Server({"one": weights(1), "two": weights(2)}, MixturesReceived())
    turn = toys.serve(fld, server, a_pair(r), r)
    fits = next(turn)
    assert (
        [fit.model for fit in fits] == models
        and equal(fits[1].state, weights(2))
        and fits[0].key != fits[1].key
    )
    assert torch.equal(fits[0].data.targets, fits[1].data.targets)
    assert equal(
        finish(turn, [weights(3), weights(4)]).students, {"one": weights(3), "two": weights(4)}
    )


def test_a_mix2fld_client_sends_mixtures_with_its_first_upload_only():
    fld, r, client = mix2fld(local=LOCAL, mixtures=7), toys.a_round(3), toys.client(1)
    download = fld.prepare_downloads(at(1), [client], r)[1]
    sizes: list[int] = []
    memory = MixtureSent()
    for _ in range(2):
        turn = fld.client_turn(client, memory, download, r)
        fit = next(turn)
        assert equal(fit.state, weights(1)) and fit.data is client.data
        turn.send(weights(2))
        memory, message = finish(turn, np.zeros((2, 2), np.float32))
        sizes.append(len(message))
    assert sizes[0] - sizes[1] == 13 + 4 + 7 * (
        4 + 2 * 2
    )  # header, count, two labels and two float16 each


def test_a_single_class_client_sends_no_mixtures_and_takes_part():
    fld, r = mix2fld(lam=0.25), toys.a_round()
    client = toys.client(4, labels=(1, 1))
    server = fld.start(r)
    download = fld.prepare_downloads(server, [client], r)[4]
    asked = fld.client_turn(client, MixtureSent(), download, r)
    next(asked)
    asked.send(weights(2))
    memory, message = finish(asked, np.array([[0.0, 0.0], [0.0, 0.0]], np.float32))
    assert memory.sent  # it has sent its upload: no mixtures later either
    turn = toys.serve(fld, server, a_pair(r) | {4: message}, r)
    (fit,) = next(turn)
    assert len(fit.data) == 2
    assert len(finish(turn, [weights(1)]).memory.mixtures[4].x) == 0


def test_without_any_mixtures_the_students_stay_as_they_are():
    fld, r = mix2fld(), toys.a_round()
    nothing = Mixtures(np.empty((0, 2)), np.empty(0, int), np.empty(0, int))
    turn = toys.serve(fld, at(5), {0: first_upload(r, [[1, 0], [0, 1]], nothing)}, r)
    assert equal(finish(turn, None).students, {"linear": weights(5)})


def test_a_second_set_of_mixtures_or_a_first_upload_without_any_is_refused():
    fld, r = mix2fld(lam=0.25), toys.a_round()
    turn = toys.serve(fld, fld.start(r), a_pair(r), r)
    next(turn)
    server = finish(turn, [weights(6)])
    later = toys.a_round(1)
    with pytest.raises(WireError, match="with the first upload of a client, and only then"):
        fld.check_upload(server, 0, a_pair(later)[0], later)
    bare = later_upload(means([0], [[0.5, 0.5]], 1))
    with pytest.raises(WireError, match="with the first upload of a client, and only then"):
        fld.check_upload(server, 9, bare, later)


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 40, 60, -1])
def test_a_truncated_upload_is_refused(keep):
    fld, r = mix2fld(lam=0.25), toys.a_round()
    with pytest.raises(WireError):
        fld.check_upload(fld.start(r), 0, a_pair(r)[0][:keep], r)


def test_more_mixtures_than_agreed_are_refused():
    fld, r = mix2fld(mixtures=1), toys.a_round()
    many = mixtures_of(*[([0.2, 0.8], 0, 1)] * 2)
    with pytest.raises(WireError, match="at most"):
        fld.check_upload(fld.start(r), 0, first_upload(r, [[1, 0], [0, 1]], many), r)


def test_the_bytes_of_the_mixtures_are_in_the_ledger_of_the_round_they_were_sent_in():
    federation = a_federation(mix2fld(local=LOCAL, distill=DISTILL, mixtures=5))
    records = run_rounds(federation, 4, SequentialEngine("cpu", threads=2))
    seen: set[int] = set()
    for record in records:
        for id, size in record.bytes.up.items():
            labels = np.unique(federation.clients[id].data.labels)
            plain = 4 + 18 + 4 + len(indexes.encode(labels, 3)) + len(labels) * 3 * 4
            mixtures = 0 if id in seen else 17 + (5 if len(labels) > 1 else 0) * (4 + 2 * 4)
            assert size == plain + mixtures
        seen |= record.bytes.up.keys()
    assert len(seen) > 3  # some came later than the first round


def test_where_every_client_has_one_class_mix2fld_and_jeong_still_run():
    task = a_task()
    parts = [np.flatnonzero(task.private.labels == label) for label in range(3)]
    clients = Clients(task.private, parts, [toys.model(shape=(4,), classes=3)] * 3)
    engine = SequentialEngine("cpu", threads=2)
    mixed = run_rounds(
        Federation(mix2fld(local=LOCAL, distill=DISTILL), clients, task, 3, 0), 2, engine
    )
    assert equal(
        mixed[0].state.server.students, mixed[1].state.server.students
    )  # nothing to learn from
    pulled = run_rounds(Federation(fd_jeong(local=LOCAL), clients, task, 3, 0), 2, engine)
    sizes = [18 + 4 + len(indexes.encode(np.array([label]), 3)) + 12 for label in range(3)]
    assert list(pulled[1].bytes.up.values()) == sizes


# --- errors ---


@pytest.mark.parametrize("lam", [0, 0.5, 0.9, float("nan")])
def test_lam_is_above_0_and_below_a_half(lam):
    with pytest.raises(UserError, match="lam must be above 0 and below 1/2"):
        mix2fld(lam=lam)


def test_gamma_and_mixtures_must_make_sense():
    with pytest.raises(UserError, match="gamma must be 0 or more"):
        fd_jeong(gamma=-1)
    with pytest.raises(UserError, match="at least one mixture"):
        mix2fld(mixtures=0)


@pytest.mark.parametrize("make", [fd_jeong, mix2fld])
def test_per_label_means_take_no_delta_codec(make):
    with pytest.raises(UserError, match="use a codec without delta"):
        make(codec="delta(float32)")
