"""Local training as every algorithm does it: own samples, and replay of public ones."""

import numpy as np
import pytest
import torch

import fedsift
from fedsift.algorithms.local import join_samples, train_locally
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation
from fedsift.types import Fit, Predict, Recipe, Samples, Store, UserError
from tests.helpers import federations, toys
from tests.helpers.toys import weights
from tests.helpers.turns import finish

LOCAL = Recipe(epochs=2, batch=2)
REPLAYING = {
    "fas": lambda replay: fedsift.fas(6, replay=replay, local=LOCAL),
    "fd, soft labels down": lambda replay: fedsift.fd(6, download="soft-labels", replay=replay),
    "fedavg": lambda replay: fedsift.fedavg(replay=replay, local=LOCAL),
    "fedpaq": lambda replay: fedsift.fedpaq(replay=replay, local=LOCAL),
    "feddf": lambda replay: fedsift.feddf(replay=replay, local=LOCAL),
    "mix2fld": lambda replay: fedsift.mix2fld(replay=replay, local=LOCAL),
}


def test_replayed_samples_have_the_soft_labels_of_the_model_received():
    """Outputs (0, log 3) are the probabilities (1/4, 3/4)."""
    client, r = toys.client(7), toys.a_round(3)
    turn = train_locally(client, weights(1), LOCAL, r, replay=2)
    predict = next(turn)
    assert isinstance(predict, Predict) and len(predict.samples) == 2
    assert torch.equal(predict.state["1.weight"], weights(1)["1.weight"])
    fit = turn.send(np.array([[0.0, np.log(3)], [0.0, 0.0]], np.float32))
    assert isinstance(fit, Fit) and len(fit.data) == 4 and fit.epoch == 6
    assert torch.equal(fit.data.targets[:2], client.data.targets)
    assert fit.data.targets[2:].tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert torch.equal(fit.data.samples.tensor()[2:], predict.samples.tensor())
    assert torch.equal(finish(turn, weights(5))["1.weight"], weights(5)["1.weight"])


def test_not_true_distillation_follows_the_model_received_on_all_samples():
    """Own samples and replayed ones: the teacher's logits are asked for before the training."""
    client, recipe = toys.client(7), Recipe(epochs=2, batch=2, ntd=0.5)
    turn = train_locally(client, weights(1), recipe, toys.a_round(3), replay=2)
    next(turn)
    asked = turn.send(np.zeros((2, 2), np.float32))
    assert isinstance(asked, Predict) and len(asked.samples) == 4
    assert torch.equal(asked.state["1.weight"], weights(1)["1.weight"])
    fit = turn.send(np.arange(8, dtype=np.float32).reshape(4, 2))
    assert fit.teacher.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert torch.equal(fit.data.samples.tensor(), asked.samples.tensor())


def test_nothing_is_replayed_in_the_first_round():
    client = toys.client(7)
    fit = next(train_locally(client, weights(1), LOCAL, toys.a_round(0), replay=2))
    assert isinstance(fit, Fit) and fit.data is client.data


def test_replayed_samples_differ_by_round_and_by_client():
    public = np.arange(80.0).reshape(40, 2).tolist()
    drawn = {
        tuple(
            next(
                train_locally(toys.client(id), weights(1), LOCAL, toys.a_round(n, public), 5)
            ).samples.rows.tolist()
        )
        for id in (0, 1)
        for n in (1, 2)
    }
    assert len(drawn) == 4


def test_samples_of_two_stores_become_views_of_one():
    mean, std = torch.tensor(1.0), torch.tensor(2.0)
    one = Samples(Store(torch.tensor([[1.0], [3.0]]), mean, std), np.array([1]))
    other = Samples(Store(torch.tensor([[5.0], [7.0]]), mean, std), np.array([0, 1]))
    assert join_samples(one, other).tensor().tolist() == [[1.0], [2.0], [3.0]]
    again = join_samples(one, other)
    assert again.store.values is join_samples(one, other).store.values  # joined once
    assert join_samples(one, one).store is one.store


@pytest.mark.parametrize("name", REPLAYING)
def test_replay_changes_training_from_the_second_round_on_and_no_byte(name):
    engine = SequentialEngine(threads=1)
    plain, replayed = (
        federations.run_rounds(federations.a_federation(REPLAYING[name](count)), 2, engine)
        for count in (0, 10)
    )
    assert federations.same_records(plain[:1], replayed[:1])
    assert not federations.same_records(plain[1:], replayed[1:])
    if name not in ("fedpaq",):  # the length of its code depends on the update
        assert [r.downlink_bytes for r in plain] == [r.downlink_bytes for r in replayed]


@pytest.mark.parametrize("name", sorted(REPLAYING.keys() - {"fedpaq"}))  # it rounds at random
def test_engines_agree_with_replay(name):
    one, other = (
        federations.run_rounds(federations.a_federation(REPLAYING[name](10)), 3, engine)
        for engine in (SequentialEngine(), BatchedEngine())
    )
    for a, b in zip(one, other, strict=True):
        assert a.accuracies == pytest.approx(b.accuracies, abs=0.1)
        for mine, its in zip(
            a.state.server.students.values(), b.state.server.students.values(), strict=True
        ):
            for key in mine:
                assert torch.allclose(mine[key].float(), its[key].float(), atol=2e-2)


@pytest.mark.parametrize("make", REPLAYING.values())
def test_replay_is_at_most_the_public_set(make):
    with pytest.raises(UserError, match="0 or more"):
        make(-1)
    with pytest.raises(UserError, match="larger than the public set"):
        federations.a_federation(make(1000)).start()


def test_replay_with_public_samples_from_elsewhere():
    """The public samples lie in another store; the model learns all the same."""
    x, y = toys.gaussians(150)
    elsewhere, _ = toys.gaussians(60, seed=1)
    task = fedsift.split(fedsift.make_dataset(x, y, public=elsewhere), private=60, public=40)
    assert task.public.store.values is not task.private.samples.store.values
    clients = fedsift.make_clients(task.private, 6, fedsift.Dirichlet(0.1), "mlp", 0)
    recipe = Recipe(epochs=5, batch=8, lr=0.02)
    algorithm = fedsift.fas(20, sampler="own-classes", replay=20, local=recipe, distill=recipe)
    records = federations.run_rounds(
        Federation(algorithm, clients, task, 4, 0), 4, SequentialEngine()
    )
    assert records[-1].accuracy > 0.9
