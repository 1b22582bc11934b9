"""Embeddings and convolutions over time: both engines train them alike."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsift.engines import choose_engine
from fedsift.models import check_model, initial_state, make_model
from fedsift.types import Fit, Labelled, Model, Predict, Recipe, Samples, Store

WORDS, STEPS = 40, 9


class Positions(nn.Module):
    """Words, places and a mixing layer, as a small transformer has them."""

    def __init__(self, shape, classes, vocabulary):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 8), nn.Embedding(shape[0], 8)
        self.mix, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        h = self.words(x) + self.places.weight
        return self.head(self.norm(h + torch.relu(self.mix(h))).mean(-2))


CASES = {
    "bag": make_model("bag", (STEPS,), 3, WORDS),
    "text-cnn": make_model("text-cnn(width=0.5)", (STEPS,), 3, WORDS),
    "own": make_model(Positions, (STEPS,), 3, WORDS),
    "series-cnn": make_model("series-cnn(width=0.5)", (STEPS, 2), 3),
}


def store(model: Model) -> Store:
    rng = np.random.default_rng(1)
    if model.vocabulary is None:
        values = torch.from_numpy(rng.normal(3, 2, (90, STEPS, 2)).astype(np.float32))
        return Store(values, torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    values = torch.from_numpy(rng.integers(0, WORDS, (90, STEPS)).astype(np.int32))
    return Store(values, torch.tensor(0.0), torch.tensor(1.0), WORDS)


def jobs(model: Model, sizes=(20, 7, 33), recipe=None) -> list[Fit]:
    rng, of = np.random.default_rng(2), store(model)
    recipe = recipe or Recipe(epochs=3, lr=0.01)
    state = initial_state(model, 0)
    return [
        Fit(
            model,
            state,
            Labelled(
                Samples(of, rng.integers(0, 90, n)), torch.eye(3)[rng.integers(0, 3, n)].float()
            ),
            recipe,
            (0, 0, "local", i),
        )
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_both_engines_train_and_predict_alike(name, optimizer):
    model = CASES[name]
    check_model(model)
    reference, batched = (choose_engine(kind, "cpu")[0] for kind in ("sequential", "batched"))
    assert "stacked (by torch.func)" in batched.describe(model)
    work = jobs(model, recipe=Recipe(epochs=3, lr=0.01, optimizer=optimizer, prox=0.1, prior=0.5))
    for mine, other in zip(reference.run(work), batched.run(work), strict=True):
        for key in mine:
            assert torch.allclose(mine[key], other[key], atol=2e-5), key
        assert any(not torch.equal(mine[key], work[0].state[key]) for key in mine)
    asked = [Predict(model, job.state, job.data.samples) for job in work]
    for one, two in zip(reference.run(asked), batched.run(asked), strict=True):
        assert np.allclose(one, two, atol=1e-5)


def test_a_job_computes_the_same_alone():
    work = jobs(CASES["bag"], (16, 16, 16))
    batched = choose_engine("batched", "cpu")[0]
    together, alone = batched.run(work)[1], batched.run(work[1:2])[0]
    assert all(torch.allclose(together[key], alone[key], atol=1e-6) for key in together)


def test_padding_does_not_count():
    """Words that fill up, id 0, change neither the mean of words nor their windows."""
    for name in ("bag", "text-cnn"):
        model = CASES[name]
        net = model.build().eval()
        short = torch.tensor([[5, 7, 0, 0, 0, 0, 0, 0, 0]])
        with torch.no_grad():
            before = net(short)
            net.words.weight[0] += 100
            assert torch.equal(net(short), before)


def test_a_bag_by_hand():
    model = make_model("bag(width=0.0625)", (4,), 2, 5)  # two numbers per word
    net = model.build()
    with torch.no_grad():
        net.words.weight.copy_(torch.tensor([[9, 9], [1, 0], [0, 1], [2, 2], [4, 0.0]]))
        net.head.weight.copy_(torch.eye(2))
        net.head.bias.copy_(torch.tensor([0.0, 10.0]))
        found = net(torch.tensor([[1, 3, 0, 0], [4, 4, 2, 2], [0, 0, 0, 0]]))
    assert found.tolist() == [[1.5, 11], [2, 10.5], [0, 10]]
