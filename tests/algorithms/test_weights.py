"""FedAvg's relatives: FedDF, which distils after averaging, and FedPAQ, which quantises updates."""

from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsift import training
from fedsift.algorithms import fd, fedavg, feddf, fedpaq, mix2fld
from fedsift.algorithms.weights import ClientMemory, ServerMemory
from fedsift.codecs import WEIGHT_CODECS, Qsgd
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Clients, Federation
from fedsift.models import initial_state
from fedsift.turns import run_turn
from fedsift.types import Fit, Predict, Recipe, Server, UserError
from tests.helpers import toys
from tests.helpers.federations import a_federation, a_task, equal, run_rounds
from tests.helpers.toys import weights
from tests.helpers.turns import finish

LOCAL, DISTILL = Recipe(epochs=2, batch=2), Recipe(epochs=3, batch=2)
W32, W16 = WEIGHT_CODECS["float32"], WEIGHT_CODECS["float16"]
LOGITS = [np.array([row] * 4, np.float32) for row in ([4.0, 0.0], [0.0, 1.0], [0.0, 1.0])]


def encoded(values_and_sizes, number=0):
    return {
        i: W32.encode(weights(v), number, samples=n) for i, (v, n) in enumerate(values_and_sizes)
    }


# --- FedDF ---


def test_the_feddf_student_starts_at_the_average_weighted_by_data_size():
    """(1 x 2 + 1 x 6 + 2 x 12) / 4 = 8."""
    server, r = Server({"linear": weights(0)}, ServerMemory()), toys.a_round(3)
    uploads = encoded([(2, 1), (6, 1), (12, 2)], 3)
    turn = toys.serve(feddf(distill=DISTILL), server, uploads, r)
    asked = next(turn)
    assert all(isinstance(work, Predict) for work in asked)
    assert [work.state["1.weight"][0, 0].item() for work in asked] == [2, 6, 12]
    (fit,) = turn.send(LOGITS)
    assert isinstance(fit, Fit) and equal(fit.state, weights(8))
    assert fit.recipe == DISTILL and fit.epoch == 9
    assert equal(finish(turn, [weights(5)]).students["linear"], weights(5))


def test_the_feddf_teacher_averages_logits_not_probabilities():
    """Logits (4, 0), (0, 1), (0, 1) have the mean (4/3, 2/3): softmax (0.661, 0.339). The mean of
    the probabilities (0.982, 0.269, 0.269) would be 0.507. It does not count how many samples a
    client has."""
    r = toys.a_round()
    server = Server({"linear": weights(0)}, ServerMemory())
    uploads = encoded([(2, 1), (6, 1), (12, 9)])
    turn = toys.serve(feddf(distill=DISTILL), server, uploads, r)
    next(turn)
    (fit,) = turn.send(LOGITS)
    assert fit.data.samples.rows.tolist() == [0, 1, 2, 3]  # the whole public set
    first = 1 / (1 + np.exp(-2 / 3))
    assert first == pytest.approx(0.6608, abs=1e-4)
    assert torch.allclose(
        fit.data.targets, torch.tensor([[first, 1 - first]] * 4, dtype=torch.float32)
    )


def two_architectures():
    return [toys.model(name="one"), toys.model(name="two")]


def test_with_mixed_models_each_group_starts_at_its_own_average_and_all_teach_all():
    """Clients 0 and 2 have "one", client 1 has "two": averages (2 + 3 x 6) / 4 = 5 and 10; the
    teacher is all three.
    """
    r = toys.a_round(models=two_architectures())
    server = Server({"one": weights(0), "two": weights(0)}, ServerMemory())
    turn = toys.serve(feddf(distill=DISTILL), server, encoded([(2, 1), (10, 1), (6, 3)]), r)
    assert [work.model.name for work in next(turn)] == ["one", "two", "one"]
    fits = turn.send(LOGITS)
    assert [fit.model.name for fit in fits] == ["one", "two"]
    assert equal(fits[0].state, weights(5)) and equal(fits[1].state, weights(10))
    first = 1 / (1 + np.exp(-2 / 3))
    assert all(torch.allclose(fit.data.targets[:, 0], torch.tensor(first).float()) for fit in fits)
    assert fits[0].key != fits[1].key
    server = finish(turn, [weights(7), weights(8)])
    assert equal(server.students, {"one": weights(7), "two": weights(8)})


def test_an_architecture_nobody_uploaded_keeps_its_student_and_still_learns():
    r = toys.a_round(models=two_architectures())
    server = Server({"one": weights(0), "two": weights(9)}, ServerMemory())
    turn = toys.serve(feddf(distill=DISTILL), server, encoded([(2, 1)]), r)
    next(turn)
    fits = turn.send(LOGITS[:1])
    assert equal(fits[0].state, weights(2)) and equal(fits[1].state, weights(9))


def test_feddf_with_one_client_is_plain_distillation_from_it_started_at_its_weights():
    engine, r = SequentialEngine("cpu", threads=1), toys.a_round()
    client = initial_state(toys.model(), seed=3)
    server = Server({"linear": initial_state(toys.model(), seed=4)}, ServerMemory())
    upload = W32.encode(client, 0, samples=2)
    taught = run_turn(toys.serve(feddf(distill=DISTILL), server, {0: upload}, r), engine)
    (logits,) = engine.run([Predict(toys.model(), client, r.public)])
    targets = torch.softmax(torch.from_numpy(logits), 1)
    net = toys.model().build()
    net.load_state_dict(client)
    adam = torch.optim.Adam(net.parameters(), lr=DISTILL.lr)
    for batches in training.draw_batches(DISTILL, 4, r.key("distill", "linear")):
        for batch in batches:
            adam.zero_grad()
            F.cross_entropy(net(r.public.tensor()[batch]), targets[batch]).backward()
            adam.step()
    assert torch.allclose(
        taught.students["linear"]["1.weight"], net.state_dict()["1.weight"], atol=1e-6
    )


# --- FedAvg, in full ---


def test_fedavg_equals_a_plain_loop_of_training_and_averaging():
    recipe, task = Recipe(epochs=2, batch=4, lr=0.1, optimizer="sgd", momentum=0.0), a_task()
    parts = [np.arange(0, 20), np.arange(20, 30), np.arange(30, 60)]
    clients = Clients(task.private, parts, [toys.model(shape=(4,), classes=3)] * 3)
    records = run_rounds(
        Federation(fedavg(local=recipe), clients, task, 3, 0), 2, SequentialEngine("cpu", threads=2)
    )
    x, targets = task.private.samples.tensor(), task.private.targets
    joint = initial_state(clients[0].model, 0)["1.weight"]
    for number in range(2):
        trained = []
        for id, part in enumerate(parts):
            w = joint.clone().requires_grad_()
            for batch in chain(*training.draw_batches(recipe, len(part), (0, number, "local", id))):
                loss = F.cross_entropy(x[part[batch]] @ w.T, targets[part[batch]])
                (gradient,) = torch.autograd.grad(loss, w)
                w = (w - 0.1 * gradient).detach().requires_grad_()
            trained.append(w.detach())
        joint = (
            torch.stack([len(part) * w for part, w in zip(parts, trained, strict=True)]).sum(0) / 60
        )
        assert torch.allclose(
            records[number].state.server.students["linear"]["1.weight"], joint, atol=1e-5
        )


def test_fedavg_of_clients_with_the_same_data_and_batches_is_any_one_of_them():
    task = a_task()
    whole = Recipe(
        epochs=3, batch=20, lr=0.1, optimizer="sgd"
    )  # one batch: its order does not matter
    parts = [np.arange(20)] * 3
    three, one = (
        Clients(task.private, parts[:n], [toys.model(shape=(4,), classes=3)] * n) for n in (3, 1)
    )
    engine = SequentialEngine("cpu", threads=2)
    many = run_rounds(Federation(fedavg(local=whole), three, task, 3, 0), 2, engine)[
        -1
    ].state.server.students
    alone = run_rounds(Federation(fedavg(local=whole), one, task, 1, 0), 2, engine)[
        -1
    ].state.server.students
    assert torch.allclose(many["linear"]["1.weight"], alone["linear"]["1.weight"], atol=1e-5)


# --- FedPAQ ---


def test_the_fedpaq_server_adds_the_weighted_mean_of_updates_to_what_clients_downloaded():
    """Float16 near 2049 has steps of 2: a student at 2049 arrives as 2048. An update with a single
    entry that is not 0 has that entry as its norm, so it crosses exactly: 4 from one sample, 8 from
    three, 2048 + (4 + 3 x 8) / 4 = 2055."""
    paq, r = fedpaq(codec="qsgd(2)", down_codec="float16"), toys.a_round(1)
    server = Server({"linear": weights(2049)}, ServerMemory())
    uploads = {}
    for id, (move, labels) in enumerate([(4.0, (0,)), (8.0, (0, 1, 0))]):
        client = toys.client(id, values=((1.0, 0.0),) * len(labels), labels=labels)
        download = paq.prepare_downloads(server, [client], r)[id]
        turn = paq.client_turn(client, ClientMemory(), download, r)
        base = next(turn).state["1.weight"]
        assert torch.equal(base, torch.full((2, 2), 2048.0))
        moved = base + torch.tensor([[move, 0.0], [0.0, 0.0]])
        uploads[id] = finish(turn, {"1.weight": moved})[1]
    student = finish(toys.serve(paq, server, uploads, r), None).students["linear"]["1.weight"]
    assert student.tolist() == [[2055.0, 2048.0], [2048.0, 2048.0]]


def test_fedpaq_is_unbiased_over_seeds():
    """The mean over 400 seeds of base + Q(update) is base + update: a level is |update| / 7, an
    entry at most a fair coin between two levels, so the standard error of the mean is at most
    |update| / 7 / 2 / sqrt(400)."""
    paq, client = fedpaq(codec="qsgd(4)"), toys.client(0)
    update = torch.tensor([[0.3, -0.5], [0.11, 0.02]])
    results = []
    for seed in range(400):
        r = toys.a_round(2, seed=seed)
        server = Server({"linear": weights(1)}, ServerMemory())
        download = paq.prepare_downloads(server, [client], r)[0]
        turn = paq.client_turn(client, ClientMemory(), download, r)
        next(turn)
        _, message = finish(turn, {"1.weight": 1 + update})
        taught = finish(toys.serve(paq, server, {0: message}, r), None).students
        results.append(taught["linear"]["1.weight"])
    assert len({str(result.tolist()) for result in results}) > 5  # it is random, and
    bound = 5 * float(update.norm()) / 7 / 2 / 20
    assert torch.allclose(torch.stack(results).mean(0), 1 + update, atol=bound)


def test_fedpaq_uploads_a_fraction_of_fedavgs_bytes():
    engine = SequentialEngine("cpu", threads=2)
    recipe = Recipe(epochs=1, batch=4)
    full, few = (
        run_rounds(a_federation(make(local=recipe)), 1, engine)[0] for make in (fedavg, fedpaq)
    )
    assert few.uplink_bytes < full.uplink_bytes / 4 and few.downlink_bytes == full.downlink_bytes


def test_an_update_is_read_right_in_whatever_order_the_server_keeps_its_tensors():
    """A checkpoint gives tensors back in another order than the network has them."""
    base = {"w": torch.zeros(40), "b": torch.zeros(2)}
    state = {"w": torch.ones(40), "b": torch.tensor([3.0, 0.0])}
    message = Qsgd(4).encode(state, 0, 5, base, (0,))
    there = Qsgd(4).decode(message, 0, base)[0]
    assert equal(Qsgd(4).decode(message, 0, {"b": base["b"], "w": base["w"]})[0], there)


def test_feddf_takes_quantised_uploads_too():
    """A client that did not move: its update is 0 and arrives as 0, so both students start where
    they were.
    """
    df, r = feddf(codec="qsgd(4)", distill=DISTILL), toys.a_round(models=two_architectures())
    server = Server({"one": weights(3), "two": weights(5)}, ServerMemory())
    qsgd = Qsgd(4)
    uploads = {
        i: qsgd.encode(weights(v), 0, 2, weights(v), r.key("local", i))
        for i, v in enumerate((3, 5))
    }
    turn = toys.serve(df, server, uploads, r)
    next(turn)
    fits = turn.send(LOGITS[:2])
    assert equal(fits[0].state, weights(3)) and equal(fits[1].state, weights(5))


# --- errors ---


@pytest.mark.parametrize("make", [fedavg, fedpaq, feddf, mix2fld, lambda **k: fd(5, **k)])
def test_a_codec_of_updates_is_refused_for_the_downlink(make):
    with pytest.raises(UserError, match="downlink"):
        make(down_codec="qsgd(4)")


@pytest.mark.parametrize("make", [fedavg, fedpaq])
def test_averaging_weights_needs_one_model(make):
    with pytest.raises(UserError, match="one model, not one, two"):
        make().start(toys.a_round(models=two_architectures()))


def test_feddf_starts_one_student_per_architecture():
    r = toys.a_round(models=two_architectures())
    students = feddf().start(r).students
    assert equal(students, {model.name: initial_state(model, r.seed) for model in r.models})
