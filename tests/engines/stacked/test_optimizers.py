"""SGD, Adam and AdamW on rows of a matrix: first steps by hand, then as torch.optim for every
row.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import training
from fedsift.engines.stacked.optimizers import correction, make_optimizer, place_rates
from fedsift.types import Recipe

ALL = slice(None)


def stepped(recipe, *gradients, start=1.0):
    """Where two weights that start at `start` are; the second has ten times the step size."""
    w = torch.full((2, 1), start)
    rule, rate = make_optimizer(recipe, w), torch.tensor([[recipe.lr], [10 * recipe.lr]])
    for t, gradient in enumerate(gradients):
        rule.step(w, torch.full((2, 1), gradient), rate, t, ALL)
    return w.flatten().tolist()


def test_sgd_by_hand():
    """v = 2, then .9 x 2 + 1 = 2.8: 1 - .01 x 2 - .01 x 2.8 = .952. Ten times the step size, ten
    times as far.
    """
    assert stepped(Recipe(optimizer="sgd", lr=0.01, momentum=0.9), 2.0, 1.0) == pytest.approx(
        [0.952, 0.52]
    )
    assert stepped(Recipe(optimizer="sgd", lr=0.01, momentum=0.0), 2.0, 1.0) == pytest.approx(
        [0.97, 0.7]
    )


def test_nesterov_by_hand():
    """v = 2; the step is g + .9 v = 3.8."""
    assert stepped(Recipe(optimizer="sgd", lr=0.01, nesterov=True), 2.0) == pytest.approx(
        [0.962, 0.62]
    )


def test_weight_decay_of_sgd_joins_the_gradient_by_hand():
    """2 + .5 x 1."""
    recipe = Recipe(optimizer="sgd", lr=0.01, momentum=0.0, weight_decay=0.5)
    assert stepped(recipe, 2.0) == pytest.approx([0.975, 0.75])


def test_adams_first_step_by_hand():
    """Mean .1 g / .1, root of the mean square sqrt(.001 g^2 / .001): the step is the rate, whatever
    g is.
    """
    assert stepped(Recipe(optimizer="adam", lr=0.01), 7.0) == pytest.approx([0.99, 0.9])
    assert stepped(Recipe(optimizer="adam", lr=0.01), -1e-3) == pytest.approx([1.01, 1.1], rel=1e-4)
    assert stepped(Recipe(optimizer="adam", lr=0.01, weight_decay=2.0), -0.5) == pytest.approx(
        [0.99, 0.9]
    )


def test_adams_second_step_by_hand():
    """After g = 1, then 3: mean .9 x .1 + .1 x 3 = .39, over 1 - .81 = .19; mean square .999 x .001
    + .001 x 9 = .009999, over 1 - .999^2 = .001999."""
    second = 0.01 * (0.39 / 0.19) / (0.009999 / 0.001999) ** 0.5
    assert stepped(Recipe(optimizer="adam", lr=0.01), 1.0, 3.0)[0] == pytest.approx(
        0.99 - second, abs=1e-6
    )
    assert correction(1) == pytest.approx((0.19, 0.001999**0.5))


def test_adamw_shrinks_the_weight_apart_by_hand():
    """1 - .01 x 2 = .98, then the step of .01 up."""
    assert stepped(Recipe(optimizer="adamw", lr=0.01, weight_decay=2.0), -0.5) == pytest.approx(
        [0.99, 0.9]
    )


@settings(max_examples=25)
@given(
    st.sampled_from(["sgd", "adam", "adamw"]),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=6),
    st.integers(0, 1000),
)
def test_every_row_goes_where_torch_takes_it(name, momentum, nesterov, decay, subsets, seed):
    """Rows take part in every step until they stop; a step is taken by some rows at a time, in any
    order.
    """
    recipe = Recipe(
        optimizer=name,
        momentum=momentum,
        nesterov=nesterov and momentum > 0,
        weight_decay=decay,
        lr=0.1,
    )
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(4, 5, generator=generator)
    rates = torch.rand(len(subsets), 4, generator=generator) * 0.1 + 0.01
    parameters = [nn.Parameter(row.clone()) for row in w]
    theirs = [training.optimizer(recipe, iter([p])) for p in parameters]
    rule, going = make_optimizer(recipe, w), set(range(4))
    for t, subset in enumerate(subsets):
        gradients = torch.randn(4, 5, generator=generator)
        for part in (sorted(going - subset), sorted(going & subset)):
            if part:
                some = torch.tensor(part)
                rows = w[some]
                rule.step(rows, gradients[some].clone(), rates[t, some, None], t, some)
                w[some] = rows
        for i in going:
            parameters[i].grad = gradients[i].clone()
            theirs[i].param_groups[0]["lr"] = float(rates[t, i])
            theirs[i].step()
        going = going & subset or going  # who is not in the subset has finished
    assert torch.allclose(w, torch.stack([p.detach() for p in parameters]), atol=1e-5)


def test_a_slice_of_the_rows_is_stepped_in_place():
    w = torch.ones(3, 2)
    rule = make_optimizer(Recipe(optimizer="sgd", momentum=0.5), w)
    for t in range(2):
        rule.step(w[:2], torch.ones(2, 2), torch.full((2, 1), 0.1), t, slice(2))
    assert torch.allclose(w[:2], torch.full((2, 2), 1 - 0.1 - 0.15)) and torch.equal(
        w[2], torch.ones(2)
    )


@pytest.mark.parametrize(
    "recipe", [Recipe(optimizer="sgd"), Recipe(optimizer="adam"), Recipe(optimizer="adamw")]
)
def test_a_row_without_a_gradient_stays(recipe):
    """The places that fill a row up to a round number have no gradient and must stay 0."""
    w = torch.zeros(1, 3)
    rule = make_optimizer(recipe, w)
    for t in range(3):
        rule.step(w, torch.zeros(1, 3), torch.tensor([[0.1]]), t, ALL)
    assert torch.equal(w, torch.zeros(1, 3))


@pytest.mark.parametrize(("name", "where"), [("sgd", "meta"), ("adam", "cpu"), ("adamw", "cpu")])
def test_step_sizes_are_where_the_rule_reads_them(name, where):
    """Adam reads numbers: on a device it would wait for it at every step."""
    rule = make_optimizer(Recipe(optimizer=name), torch.ones(2, 3))
    rates = place_rates(rule, np.ones((4, 2), np.float32), torch.device("meta"))
    assert (rates.device.type, rates.shape) == (where, (4, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_no_step_waits_for_the_device(name):
    w, recipe = torch.ones(3, 4, device="cuda"), Recipe(optimizer=name)
    rule = make_optimizer(recipe, w)
    rates = place_rates(rule, np.ones((4, 3), np.float32), w.device)
    steps, some = torch.arange(4.0, device="cuda"), torch.tensor([0, 2], device="cuda")
    apart = some if rates.device == w.device else some.cpu()
    try:
        torch.cuda.set_sync_debug_mode("error")
        rule.step(w, torch.ones_like(w), rates[0, :, None], steps[0], ALL)
        rule.step(w[some], torch.ones_like(w[some]), rates[1, apart, None], steps[1], some)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_counted_on_the_device_has_the_same_bits():
    """Counts are whole numbers, which float32 holds."""
    ends = []
    for steps in (range(5), torch.arange(5, dtype=torch.float32)):
        w = torch.ones(2, 3)
        rule = make_optimizer(Recipe(optimizer="adam"), w)
        for t in steps:
            rule.step(w, torch.full((2, 3), 0.3), torch.tensor([[0.1], [0.2]]), t, ALL)
        ends.append(w)
    assert torch.equal(*ends)
