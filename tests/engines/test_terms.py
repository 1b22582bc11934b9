"""What a recipe adds to the plain loss: one step by hand on every engine, then all engines alike,
with every optimiser, network and kind of batch.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsift import models, training
from fedsift.engines import batched
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.types import Fit, Model, Recipe, UserError
from tests.helpers import parity, toys
from tests.helpers.parity import SGD

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
TERMS: dict[str, dict[str, Any]] = {
    "prior": {"prior": 1.0},
    "prox": {"prox": 0.5},
    "ntd": {"ntd": 0.7},
    "mixup": {"mixup": 0.4},
}
RECIPES = {
    "sgd": SGD,
    "plain sgd": replace(SGD, momentum=0.0),
    "nesterov": replace(SGD, nesterov=True, weight_decay=0.01),
    "adam": Recipe(epochs=2, batch=8, lr=2e-3, weight_decay=0.01),
    "adamw": Recipe(epochs=2, batch=8, lr=2e-3, optimizer="adamw", weight_decay=0.1),
}
VARIATIONS: dict[str, dict[str, Any]] = {
    "soft targets at a temperature": {"soft": True, "temperature": 3.0},
    "crops": {"recipe": replace(SGD, augment="crop-flip")},
    "one sample left over": {"sizes": (17, 9, 8, 2)},
    "batches of their own size": {"sizes": (26, 13, 25), "recipe": replace(SGD, batch=13)},
    "less than a batch": {"sizes": (5, 3, 4), "recipe": replace(SGD, batch=64)},
}


@pytest.fixture(autouse=True)
def stack_every_network(monkeypatch):
    monkeypatch.setattr(batched, "LARGEST_ON_CPU", 10**12)


@pytest.fixture(scope="module", params=["cpu", CUDA])
def engine(request):
    return BatchedEngine(request.param, threads=2 if request.param == "cpu" else None)


@pytest.fixture(scope="module")
def reference():
    return SequentialEngine("cpu", threads=2)


@pytest.fixture(scope="module", params=["sequential", "cpu", CUDA])
def any_engine(request):
    if request.param == "sequential":
        return SequentialEngine("cpu", threads=1)
    return BatchedEngine(request.param, threads=1 if request.param == "cpu" else None)


def network(name, shape=(3, 8, 8)):
    return models.make_model(name, shape, parity.CLASSES)


def fits(model, changes, recipe=SGD, **options):
    """Jobs with a term in their recipe, and a teacher for those that want one."""
    jobs = parity.fits(model, recipe=replace(recipe, **changes), **options)
    return [
        replace(job, teacher=parity.noise(len(job.data), parity.CLASSES, seed=i))
        for i, job in enumerate(jobs)
    ]


# --- by hand ---


def trained(engine, data, teacher=None, share=None, **changes):
    """Two inputs, no bias, from zero weights, row by row after full batches of step size 0.5. With
    a share, samples are mixed by it, not by what is drawn."""
    plain: dict[str, Any] = {
        "epochs": 1,
        "batch": 2,
        "lr": 0.5,
        "optimizer": "sgd",
        "momentum": 0.0,
    }
    recipe = Recipe(**plain | changes | ({} if share is None else {"mixup": 1.0}))
    start = {"1.weight": torch.zeros(data.classes, 2)}
    job = Fit(toys.model(classes=data.classes), start, data, recipe, (0,), teacher=teacher)
    with pytest.MonkeyPatch.context() as patch:
        if share is not None:
            steps = (recipe.epochs, -(-len(data) // recipe.batch))
            patch.setattr(training, "draw_mixup", lambda *_: np.full(steps, share, np.float32))
        return engine.run([job])[0]["1.weight"].flatten().tolist()


def test_a_step_with_a_prior_by_hand(any_engine):
    """Both samples are of class 0: n + 1 = (3, 1), s = (3/4, 1/4), s - t = (-1/4, 1/4). The mean
    over x = (1, 0), (0, 1) is +-1/8, and a step of 0.5 gives +-1/16. Without a prior it is 1/8."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 0])
    sixteenth = [1 / 16, 1 / 16, -1 / 16, -1 / 16]
    assert trained(any_engine, data, prior=1.0) == pytest.approx(sixteenth, abs=1e-6)
    assert trained(any_engine, data) == pytest.approx([2 * w for w in sixteenth], abs=1e-6)


def test_a_prior_counts_every_target_of_the_fit_not_those_of_a_batch(any_engine):
    """Equal counts over all samples: as if there were no prior, though batches are of one class."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], [0, 1, 0, 1])
    plain = trained(any_engine, data, epochs=3)
    assert trained(any_engine, data, epochs=3, prior=2.0) == pytest.approx(plain, abs=1e-6)


def test_prox_pulls_back_by_hand(any_engine):
    """The first step has nothing to pull: +-1/8. In the second, z = (1/8, -1/8) for x = (1, 0), so
    s = sigmoid(1/4) and the gradient is (s - 1) / 2 + mu / 8."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    assert trained(any_engine, data, prox=2.0) == pytest.approx([0.125, -0.125, -0.125, 0.125])
    s = 1 / (1 + math.exp(-1 / 4))
    w = 1 / 8 - 0.5 * ((s - 1) / 2 + 2.0 / 8)
    found = trained(any_engine, data, prox=2.0, epochs=2)
    assert found == pytest.approx([w, -w, -w, w], abs=1e-6)


def test_a_step_with_not_true_distillation_by_hand(any_engine):
    """Three classes, x = (1, 0) of class 0 and (0, 1) of class 1. The mean loss alone pulls by
    (-1/3, 1/6, 1/6) and (1/6, -1/3, 1/6). Of x = (1, 0) the teacher says (1/4, 3/4) for classes 1
    and 2, the student (1/2, 1/2): beta / 2 (0, 1/4, -1/4) on top. Of (0, 1) they agree."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes=3)
    teacher = torch.tensor([[9.0, 0.0, math.log(3)], [1.0, 5.0, 1.0]])
    by_hand = [1 / 6, -1 / 12, -5 / 24, 1 / 6, 1 / 24, -1 / 12]
    assert trained(any_engine, data, teacher, ntd=2.0) == pytest.approx(by_hand, abs=1e-6)


def test_a_prior_is_not_in_not_true_distillation(any_engine):
    """Both samples are of class 0 of three, and the teacher knows no more than the student: only
    the prior's shares (3, 1, 1) / 5 pull, by (-2/5, 1/5, 1/5) / 2; a step of 0.5 halves it."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 0], classes=3)
    found = trained(any_engine, data, torch.zeros(2, 3), ntd=2.0, prior=1.0)
    assert found == pytest.approx([0.1, 0.1, -0.05, -0.05, -0.05, -0.05], abs=1e-6)


def test_a_step_with_mixup_by_hand(any_engine):
    """Of x = (1, 0), class 0, and x = (0, 1), class 1, one is (l, 1 - l) and the other (1 - l, l),
    targets likewise. s - t = +-(1/2 - l): the mean of (s - t) x^T over both is (1/2 - l)(2 l - 1) /
    2 = -(l - 1/2)^2, and a step of 0.5 gives half of that."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    recipe = Recipe(epochs=1, batch=2, mixup=1.0)
    shares = training.draw_mixup(recipe, 2, (0,))
    assert shares is not None and shares.shape == (1, 1)
    share = float(shares[0, 0])
    w = (share - 1 / 2) ** 2 / 2
    assert 0 < w < 1 / 8
    assert trained(any_engine, data, mixup=1.0) == pytest.approx([w, -w, -w, w], abs=1e-6)


def test_what_is_mixed_in_is_the_next_real_sample(any_engine):
    """Three samples in a batch of eight, all of which a batched engine pads. With a share of 0
    every sample is replaced by the next: the same three samples, so the same step as without."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]], [0, 1, 1])
    plain = trained(any_engine, data, batch=8)
    assert trained(any_engine, data, batch=8, share=0.0) == pytest.approx(plain, abs=1e-6)


def test_a_teacher_is_mixed_as_the_targets_are(any_engine):
    """Share 1/4: x = (1/4, 3/4) has the target (1/4, 3/4, 0), so class 1 is true there; the
    teacher's logits (0, 0, 8 ln 3) and (0, 9, 0) mix to ln 9 for class 2 against 0 for class 0."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes=3)
    teacher = torch.tensor([[0.0, 0.0, 8 * math.log(3)], [0.0, 9.0, 0.0]])
    plain = trained(any_engine, data, share=0.25)
    found = trained(any_engine, data, teacher, share=0.25, ntd=1.0)
    # s~ - t~ of the two mixtures, over two: (1/2 - 1/10, 0, 1/2 - 9/10) for (1/4, 3/4); for
    # (3/4, 1/4) class 0 is true and the logits are 9/4 and 6 ln 3.
    rest = 1 / (1 + math.exp(6 * math.log(3) - 9 / 4))
    one, two = [0.4, 0, -0.4], [0, 0.5 - rest, rest - 0.5]
    moved = [
        -0.5 / 2 * (one[c] * x[0] + two[c] * x[1])
        for c in range(3)
        for x in ((0.25, 0.75), (0.75, 0.25))
    ]
    away = [a - b for a, b in zip(found, plain, strict=True)]
    assert away == pytest.approx(moved, abs=1e-6)


def test_distillation_without_a_teacher_is_told(any_engine):
    with pytest.raises(UserError, match="ntd = 2 needs a teacher"):
        trained(any_engine, toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1]), ntd=2.0)


# --- against torch ---


@pytest.mark.parametrize("recipe", RECIPES)
def test_prox_is_torchs_gradient_of_the_squared_distance(reference, recipe):
    """The reference itself, beside a loop in which autograd differentiates the whole loss."""
    model = toys.model(toys.with_batch_norm, (6,), 3)
    made = replace(RECIPES[recipe], batch=64, epochs=4, prox=0.7)
    (job,) = parity.fits(model, (20,), made)
    net = model.build()
    net.load_state_dict(job.state)
    start = [p.detach().clone() for p in net.parameters()]
    rule = reference_optimizer(made, net)
    x, t = job.data.samples.tensor(), job.data.targets
    for _ in range(4):
        rule.zero_grad()
        away = sum((p - w0).square().sum() for p, w0 in zip(net.parameters(), start, strict=True))
        (nn.functional.cross_entropy(net(x), t) + 0.7 / 2 * away).backward()
        rule.step()
    assert parity.astray([job], reference.run([job]), [net.state_dict()]) < 1e-3


def reference_optimizer(recipe, net):
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "sgd":
        options |= {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
        return torch.optim.SGD(net.parameters(), **options)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(net.parameters(), **options)


# --- all engines alike ---


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["mlp", "resnet8(width=0.25)"])
def test_every_term_with_every_optimiser(engine, reference, name, recipe, term):
    jobs = fits(network(name), TERMS[term], RECIPES[recipe])
    parity.agree(engine, reference, jobs)
    plain = [replace(job, recipe=RECIPES[recipe]) for job in jobs]
    assert not parity.near(engine.run(jobs), engine.run(plain), 1e-4)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("name", ["cnn", "resnet8(norm=group, width=0.5)"])
def test_every_term_with_every_kind_of_batch(engine, reference, name, variation, term):
    jobs = fits(network(name), TERMS[term], **VARIATIONS[variation])
    parity.agree(engine, reference, jobs, flips=int("group" in name))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8(width=0.25)"])
def test_all_terms_together(engine, reference, name, recipe):
    every = {key: value for changes in TERMS.values() for key, value in changes.items()}
    made = replace(RECIPES[recipe], augment="crop-flip")
    parity.agree(engine, reference, fits(network(name), every, made, soft=True))


class WithDropout(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Flatten(), nn.Linear(192, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, classes)
        )


class ByTorchFunc(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, classes)
        )


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("net", [WithDropout, ByTorchFunc])
def test_every_term_with_dropout_and_by_torch_func(engine, reference, net, term):
    model = Model(net.__name__, parity.factory(net), (3, 8, 8), parity.CLASSES)
    assert ("by torch.func" in engine.describe(model)) == (net is ByTorchFunc)
    parity.agree(engine, reference, fits(model, TERMS[term]))


@pytest.mark.parametrize("recipe", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["mlp", "resnet8(width=0.25)"])
@pytest.mark.parametrize("term", ["prior", "mixup"])
def test_terms_of_their_own_in_one_program(engine, reference, monkeypatch, term, name, recipe):
    """Unequal data, strength 0 among them; who has none trains as if nobody had one, to the bit.

    On CUDA mixed samples have a program of their own, and the last bits go by how many networks
    are stacked: there, the others are held against the same two alone.
    """
    parts = parity.watch_parts(monkeypatch)
    plain = parity.fits(network(name), (24, 8, 16, 16), RECIPES[recipe])
    jobs = parity.with_recipes(plain, [{term: value} for value in (1.0, 0.0, 0.5, 0.0)])
    found = engine.run(jobs)
    assert sum(map(len, parts)) == 4 and len(parts) <= 2  # a part a worker
    parity.agree(engine, reference, jobs)
    together = engine.run(plain)
    apart = term == "mixup" and engine.device.type == "cuda"
    without = engine.run(plain[1::2]) if apart else together[1::2]
    assert not any(map(parity.same, found[::2], together[::2]))
    assert all(map(parity.same, found[1::2], without))


@pytest.mark.parametrize("term", [term for term in TERMS if term != "prior"])
def test_terms_of_unequal_strength_in_one_list(engine, reference, term):
    """Two strengths and none; together or apart, each is followed."""
    (key, value), *_ = TERMS[term].items()
    jobs = fits(network("mlp"), TERMS[term], sizes=(9, 21, 8))
    jobs = parity.with_recipes(jobs, [{key: value}, {key: value / 2}, {key: 0.0}])
    parity.agree(engine, reference, jobs)
    assert parity.same(engine.run(jobs)[2], engine.run(jobs[2:])[0])


@pytest.mark.parametrize("term", TERMS)
def test_an_answer_does_not_depend_on_company(term):
    engine = BatchedEngine("cpu", threads=1)
    jobs = fits(network("cnn"), TERMS[term], sizes=(24, 8, 16))
    alone = [engine.run([job])[0] for job in jobs]
    assert all(map(parity.same, engine.run(jobs), alone))
