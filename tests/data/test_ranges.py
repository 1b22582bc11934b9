"""Private inputs held against the public ones: honest parts pass, other units are told."""

import warnings

import numpy as np
import pytest
import torch

import fedsift
from fedsift.data import compare_inputs
from fedsift.types import Samples, Store
from tests.helpers import toys


def pictures(scale=1.0, shift=0.0, count=100, seed=0):
    x = np.random.default_rng(seed).random((count, 1, 4, 4)).astype(np.float32) * scale + shift
    return Samples(
        Store(torch.from_numpy(x), torch.tensor(0.0), torch.tensor(1.0)), np.arange(count)
    )


def test_a_range_is_worked_out_by_hand():
    """Public values from 0 to 10: up to 20 is near enough, 21 in every sample is not."""
    public = toys.samples([[float(i % 11)] for i in range(20)])
    assert compare_inputs(toys.samples([[20.0], [-10.0]]), public) == []
    (said,) = compare_inputs(toys.samples([[21.0], [5.0]]), public)
    assert said == (
        "column 0 of private inputs go from 5 to 21, public ones from 0 to 10: another unit or "
        "another scaling?"
    )


@pytest.mark.parametrize(("scale", "shift"), [(1e30, 0), (255, 0), (1, 40), (-30, 0), (0.01, 0.5)])
def test_another_unit_is_told(scale, shift):
    """1e30 times the unit took part in every round (DEPLOYMENT, D14)."""
    (said,) = compare_inputs(pictures(scale, shift, seed=1), pictures())
    assert said.startswith("private inputs go from") and "another unit" in said


def test_the_same_kind_of_data_passes():
    assert compare_inputs(pictures(seed=1), pictures()) == []
    assert compare_inputs(pictures(0.7, 0.1, seed=1), pictures()) == []
    assert compare_inputs(pictures(count=1, seed=3), pictures()) == []


def test_one_outlier_is_told_only_if_it_is_very_far():
    private = pictures(seed=1)
    private.store.values[3, 0, 0, 0] = 5.0
    assert compare_inputs(private, pictures()) == []
    private.store.values[3, 0, 0, 0] = 50.0
    assert len(compare_inputs(private, pictures())) == 1


def test_columns_are_held_against_their_own():
    generator = np.random.default_rng(0)
    public = toys.samples(generator.normal(size=(200, 6)))
    rows = generator.normal(size=(200, 6))
    assert compare_inputs(toys.samples(rows), public) == []
    rows[:, [1, 2, 4, 5]] *= 1000
    told = compare_inputs(toys.samples(rows), public)
    assert [line.split(" of ")[0] for line in told] == [
        "column 1",
        "column 2",
        "column 4",
        "1 more column",
    ]


def test_values_that_are_not_finite_and_other_shapes_are_told():
    private = pictures(seed=1)
    private.store.values[7, 0, 1, 1] = float("nan")
    assert compare_inputs(private, pictures()) == [
        "1 private sample with inputs that are not finite"
    ]
    assert compare_inputs(toys.samples([[1.0]]), pictures()) == [
        "private samples have shape (1,), public ones (1, 4, 4)"
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_client_of_a_skewed_federation_is_called_odd(seed):
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=600, public=500, seed=seed, normalise="standard")
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(0.1), "mlp", seed)
    assert all(not compare_inputs(client.data.samples, task.public) for client in clients)


def test_a_public_set_of_its_own_is_held_against_the_private_one():
    x, y = toys.gaussians(90)
    near, far = (
        fedsift.make_dataset(x, y, public=toys.gaussians(60, seed=1)[0] * k) for k in (1, 0.001)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedsift.split(near, private=40, public=30)
    with pytest.warns(UserWarning, match="column 0 of private inputs go from"):
        fedsift.split(far, private=40, public=30)
