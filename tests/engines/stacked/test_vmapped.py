"""Any nn.Module: how the batched engine runs it, and that it answers as the sequential engine
does.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsift
from fedsift import models
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.stacked.ops import ReferenceOps
from fedsift.engines.stacked.program import Vmapped, stack
from tests.helpers.parity import CLASSES, IMAGE, ROW, asks, astray, compare, difference, fits

# --- by torch.func ---


class View(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(6, classes))

    def forward(self, x):
        return super().forward(x.view(x.size(0), -1))


class Layered(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, classes))


class Attention(nn.Module):
    """Six places of one number each: own attention over the places."""

    def __init__(self, shape, classes):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(1, 4), nn.Linear(4, 12), nn.Linear(4, classes)

    def forward(self, x):
        q, k, v = self.qkv(self.embed(x.unsqueeze(-1))).chunk(3, -1)
        return self.head((torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v).mean(1))


class ComparesSamples(nn.Module):
    """The answer about a sample depends on the whole batch: padding would change it."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head, self.norm = nn.Linear(6, classes), nn.BatchNorm1d(6, affine=False)

    def forward(self, x):
        return self.head(self.norm(x)) - self.head(x).max(0).values


class Depthwise(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(
            nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, classes)
        )


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (View, ROW), (Layered, ROW), (Attention, ROW), (ComparesSamples, ROW),
        (Depthwise, IMAGE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_what_torch_func_can_batch_is_stacked(made, shape):
    how, _ = compare(made, shape)
    assert how == f"{made.__name__}: stacked (by torch.func)"


@pytest.mark.parametrize(
    ("made", "shape"),
    [(Layered, ROW), (Attention, ROW), (ComparesSamples, ROW), (Depthwise, IMAGE)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_in_bfloat16_it_rounds_as_torch_does_and_no_more(made, shape):
    """The way from start to end, and what is said at its start, are rounded as torch's autocast
    rounds them one by one: at most twice as far.
    """
    jobs = fits(models.make_model(made, shape, CLASSES), (16, 16, 12))
    exact = SequentialEngine(threads=1)
    theirs = SequentialEngine(threads=1, precision="bfloat16")
    ours = BatchedEngine(threads=1, precision="bfloat16")
    assert ours.describe(jobs[0].model) == f"{made.__name__}: stacked (by torch.func)"
    asked, trained = asks(jobs), exact.run(jobs)
    off = astray(jobs, theirs.run(jobs), trained)
    assert 1e-4 < astray(jobs, ours.run(jobs), trained) < 2 * off < 0.02
    for said, rounded, true in zip(*(e.run(asked) for e in (ours, theirs, exact)), strict=True):
        assert said.dtype == np.float32
        assert 1e-5 < difference(said, true) < 2 * difference(rounded, true)


class Bent(nn.Module):
    """Two layers: the way back through the second needs its weights, which are no activations."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.ones(6, 3)),
            nn.Parameter(torch.ones(3, classes)),
        )

    def forward(self, x):
        return torch.tanh(torch.tanh(x @ self.first) @ self.second)


class Inward(Bent):
    """A derivative inside the network: torch.func batches it, but nobody may watch."""

    def forward(self, x):
        return super().forward(x) + torch.func.grad(lambda z: (z**2).sum())(x)[:, :1]


def test_what_the_way_back_needs_is_counted_and_bounds_how_many_networks_go_together():
    """A sample of 6 numbers, 3 and then 2 that tanh said; the weights, 18 and 6, are counted
    elsewhere.
    """
    program = stack(models.make_model(Bent, ROW, 2), ReferenceOps())
    assert isinstance(program, Vmapped) and program.values == 6 + 3 + 2


def test_a_network_that_cannot_be_watched_is_stacked_all_the_same():
    how, _ = compare(Inward, ROW)
    assert how == "Inward: stacked (by torch.func)"
    assert stack(models.make_model(Inward, ROW, 2), ReferenceOps()).values == 16 * 6


@pytest.mark.slow
def test_stacked_by_torch_func_in_many_threads():
    """Groups that run side by side must not see each other's weights."""
    for _ in range(5):
        compare(Depthwise, sizes=(40,) * 12, threads=4)


# --- one by one ---


class OwnDropout(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(6, classes)

    def forward(self, x):
        return super().forward(F.dropout(x, 0.3, self.training))


class Tied(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, classes)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.head(self.b(F.relu(self.a(x))))


class Frozen(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, classes))
        self[0].weight.requires_grad_(False)


class LooksAtData(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(6, classes)

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class DropoutTwice(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.a, self.drop, self.head = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.drop(self.a(self.drop(x))))


class CumulativeNorm(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, classes))


class Recurrent(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.cell, self.head = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.cell(x.unsqueeze(1))[0].squeeze(1))


class RecurrentOnly(Recurrent):
    def forward(self, x):
        return self.head(self.cell(x)[0])


class RecurrentIndexed(Recurrent):
    def forward(self, x):
        return self.head(self.cell(x[:, None])[0][:, -1])


REFUSED = [
    (Recurrent, r"it calls unsqueeze(x, 1), which fedsift does not stack, and torch.func cannot"),
    (RecurrentOnly, "cell does not give one tensor, and torch.func cannot batch it: Batching rule"),
    (RecurrentIndexed, "it indexes x, which fedsift does not stack"),
    (OwnDropout, "random numbers of its own"),
    (Tied, "b.weight shares its values with another parameter"),
    (Frozen, "0.weight is frozen or not float32"),
    (LooksAtData, "an if or a loop in its forward pass depends on the data, and torch.func"),
    (DropoutTwice, "drop is used twice"),
    (CumulativeNorm, "is not the usual batch norm"),
]


@pytest.mark.parametrize(
    ("made", "reason"), REFUSED, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_rest_runs_one_by_one_and_is_told_once(made, reason):
    how, (told,) = compare(made, ROW, threads=2, warned=1)
    assert (
        told.startswith(f"{made.__name__} cannot be stacked and runs one by one: ")
        and reason in told
        and "%" not in told
        and "num_users" not in told
    )
    assert how.startswith(f"{made.__name__}: one by one, 2 at a time (") and reason in how


def test_the_warning_points_at_the_line_of_the_user():
    """Through `federate`, which has frames of fedsift and a generator in between."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = fedsift.split(fedsift.load_dataset("digits"), private=40, public=20, test=20)
        clients = fedsift.make_clients(task.private, 2, model=Stubborn)
        quick = fedsift.Recipe(epochs=1)
        rounds = fedsift.federate(fedsift.fedavg(local=quick), clients, task, rounds=1, cohort=2)
        list(rounds)
    (told,) = caught
    assert told.filename == __file__
    assert Path(__file__).read_text().splitlines()[told.lineno - 1].strip() == "list(rounds)"


class Stubborn(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(64, classes)

    def forward(self, x):
        return super().forward(F.dropout(x.flatten(1), 0.3))
