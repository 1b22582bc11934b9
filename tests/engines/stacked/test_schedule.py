"""What each model of a group does in each step: two clients written out, then any."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import training
from fedsift.engines.stacked.schedule import make_schedule, padded_length, sort_by_length
from fedsift.types import Fit, Labelled, Recipe, Samples, Store
from tests.helpers import toys


def jobs(sizes, recipe, shape=(2,), epochs=None):
    store = Store(torch.zeros(100, *shape), torch.tensor(0.0), torch.tensor(1.0))
    model = toys.model(shape=shape)
    return [
        Fit(
            model,
            {},
            Labelled(Samples(store, np.arange(n)), torch.zeros(n, 2)),
            recipe,
            (i,),
            epoch,
        )
        for i, (n, epoch) in enumerate(zip(sizes, epochs or [0] * len(sizes), strict=True))
    ]


def test_two_unequal_clients_by_hand(monkeypatch):
    """Client 0 has 6 samples (positions 0..5), client 1 has 3 (6..8); batches of 4, two epochs, the
    step size falls to a tenth at epoch 1, and client 1 stands at epoch 1 already. An order is the
    samples as they are, then backwards. Client 0: 0123, 45 and 5432, 10. Client 1: 012 and 210.
    What is left of a batch repeats the client's first sample."""
    monkeypatch.setattr(
        training, "draw_orders", lambda recipe, n, key: np.array([range(n), range(n)[::-1]])
    )
    plan = make_schedule(
        jobs([6, 3], Recipe(epochs=2, batch=4, lr=1.0, milestones=(1,)), epochs=[0, 1])
    )
    assert plan.positions.tolist() == [
        [[0, 1, 2, 3], [6, 7, 8, 6]],
        [[4, 5, 0, 0], [8, 7, 6, 6]],
        [[5, 4, 3, 2], [6, 6, 6, 6]],
        [[1, 0, 0, 0], [6, 6, 6, 6]],
    ]
    assert plan.counts.tolist() == [[4, 3], [2, 3], [4, 0], [2, 0]]
    assert plan.rates == pytest.approx(np.array([[1, 0.1], [1, 0.1], [0.1, 0], [0.1, 0]]))
    assert plan.active.tolist() == [2, 2, 1, 1]
    assert plan.moves is None and len(plan) == 4


def test_crops_follow_their_samples_by_hand(monkeypatch):
    """Sample s of epoch e moves down by s and right by e: places that hold sample s hold its
    move.
    """
    monkeypatch.setattr(training, "draw_orders", lambda recipe, n, key: np.array([[1, 0], [0, 1]]))
    moves = np.array([[[0, 0, 0], [1, 0, 1]], [[0, 1, 0], [1, 1, 1]]])
    monkeypatch.setattr(training, "draw_augmentation", lambda recipe, n, key, shape: moves)
    plan = make_schedule(jobs([2], Recipe(epochs=2, batch=2, augment="crop-flip"), (1, 4, 4)))
    assert plan.moves is not None
    assert plan.moves[:, 0].tolist() == [[[1, 0, 1], [0, 0, 0]], [[0, 1, 0], [1, 1, 1]]]


def test_a_short_batch_is_made_the_next_power_of_two_from_eight_on():
    assert [padded_length(n, 64) for n in (1, 7, 8, 9, 16, 17, 33, 64)] == [
        8,
        8,
        8,
        16,
        16,
        32,
        64,
        64,
    ]
    assert [padded_length(n, 20) for n in (3, 16, 17, 20)] == [8, 16, 20, 20]
    assert padded_length(3, 4) == 4


def test_the_longest_comes_first_and_equals_keep_their_order():
    assert sort_by_length(jobs([3, 9, 3, 12], Recipe())) == [3, 1, 0, 2]


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 5),
)
def test_every_model_does_what_it_would_do_alone(sizes, batch, epochs, moved, mixup, start):
    recipe = Recipe(
        epochs=epochs,
        batch=batch,
        milestones=(2, 4),
        augment="crop-flip" if moved else "none",
        mixup=mixup,
    )
    group = jobs(sorted(sizes, reverse=True), recipe, (1, 8, 8), [start] * len(sizes))
    plan = make_schedule(group)
    first = 0
    for i, job in enumerate(group):
        drawn = training.draw_batches(recipe, len(job.data), job.key)
        moves = training.draw_augmentation(recipe, len(job.data), job.key, (1, 8, 8))
        steps = [(epoch, batch) for epoch, batches in enumerate(drawn) for batch in batches]
        assert plan.counts[:, i].tolist() == [len(b) for _, b in steps] + [0] * (
            len(plan) - len(steps)
        )
        for t, (epoch, samples) in enumerate(steps):
            assert (plan.positions[t, i, : len(samples)] == first + samples).all()
            assert plan.rates[t, i] == np.float32(training.step_size(recipe, start + epoch))
            if moves is not None and plan.moves is not None:
                assert (plan.moves[t, i, : len(samples)] == moves[epoch][samples]).all()
        assert (plan.rates[len(steps) :, i] == 0).all()
        shares = training.draw_mixup(recipe, len(job.data), job.key)
        assert (shares is None) == (plan.shares is None) == (mixup == 0)
        if shares is not None and plan.shares is not None:
            assert (plan.shares[: len(steps), i] == shares.flatten()).all()
        mine = plan.positions[:, i]
        assert mine.min() >= first and mine.max() < first + len(
            job.data
        )  # padding is a sample of its own, too
        first += len(job.data)
    assert (np.diff(plan.active) <= 0).all() and plan.active[0] == len(sizes)
