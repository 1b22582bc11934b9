"""Dropout by named dice: a function of key, layer, step and place, the same in every engine."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import training
from fedsift.training import Dropout, dropout_mask, dropout_seed, replace_dropouts
from fedsift.types import Model

SEEDS = torch.tensor([dropout_seed((0, "client", i)) for i in range(3)])


def murmur(h: int) -> int:
    """The finaliser of MurmurHash3 on plain integers."""
    h &= 0xFFFFFFFF
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def by_hand(seed: int, number: int, step: int, places: int, p: float) -> list[float]:
    golden = 0x9E3779B1
    stream = murmur(murmur(seed + golden * (number + 1)) + golden * (step + 1))
    return [
        0.0 if murmur(stream + golden * place) < p * 2**32 else 1 / (1 - p)
        for place in range(places)
    ]


@settings(max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 9),
    st.integers(0, 99),
    st.sampled_from([0.1, 0.25, 0.5, 0.9]),
)
def test_the_dice_are_the_hash_worked_out_in_plain_integers(seed, number, step, p):
    found = dropout_mask(torch.tensor([seed]), number, step, (4, 5), p)
    assert found.shape == (1, 4, 5)
    assert found.flatten().tolist() == pytest.approx(by_hand(seed, number, step, 20, p))


def test_dice_are_a_function_of_seed_layer_step_and_place():
    first = dropout_mask(SEEDS, 0, 0, (50, 4), 0.5)
    assert torch.equal(first, dropout_mask(SEEDS, 0, 0, (50, 4), 0.5))
    assert torch.equal(
        first[1], dropout_mask(SEEDS[1:2], 0, 0, (50, 4), 0.5)[0]
    )  # whoever else is there
    others = [
        dropout_mask(SEEDS, 1, 0, (50, 4), 0.5),
        dropout_mask(SEEDS, 0, 1, (50, 4), 0.5),
        first[[1, 2, 0]],
    ]
    for other in others:
        assert (
            0.4 < (first == other).float().mean() < 0.6
        )  # 600 fair coins agree half the time, deviation .02


def test_a_step_may_be_counted_on_the_device():
    assert torch.equal(
        dropout_mask(SEEDS, 2, 7, (8,), 0.5), dropout_mask(SEEDS, 2, torch.tensor([7]), (8,), 0.5)
    )


def test_the_samples_of_a_shorter_batch_have_the_same_dice():
    long, short = dropout_mask(SEEDS, 0, 3, (16, 6), 0.5), dropout_mask(SEEDS, 0, 3, (5, 6), 0.5)
    assert torch.equal(long[:, :5], short)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_what_is_kept_is_scaled_and_its_share_is_right(p):
    found = dropout_mask(SEEDS, 0, 0, (100_000,), p)
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    share = (found > 0).float().mean(1)
    assert torch.allclose(share, torch.full((3,), 1 - p), atol=0.008)  # deviation at most .0016
    assert torch.allclose(found.mean(1), torch.ones(3), atol=0.03)


def test_dropping_nothing_and_everything():
    assert torch.equal(dropout_mask(SEEDS, 0, 0, (9,), 0.0), torch.ones(3, 9))
    assert torch.equal(dropout_mask(SEEDS, 0, 0, (9,), 1.0), torch.zeros(3, 9))


def test_neighbours_and_layers_are_not_alike():
    """The dice of neighbours, of the next step and of the next layer are no more alike than
    chance.
    """
    dice = (
        torch.stack(
            [dropout_mask(SEEDS[:1], n, t, (4096,), 0.5)[0] for n in range(3) for t in range(3)]
        )
        - 1
    )
    correlation = torch.corrcoef(torch.cat([dice, dice.roll(1, 1), dice.roll(64, 1)]))
    assert (correlation - torch.eye(27)).abs().max() < 0.08  # 351 pairs, deviation 1/64


def test_a_layer_counts_its_steps_and_starts_again():
    layer = Dropout(0.5, number=1)
    layer.start(int(SEEDS[0]))
    x = torch.ones(6, 4)
    first, second = layer(x), layer(x)
    assert torch.equal(first, dropout_mask(SEEDS[:1], 1, 0, (6, 4), 0.5)[0])
    assert torch.equal(second, dropout_mask(SEEDS[:1], 1, 1, (6, 4), 0.5)[0])
    layer.start(int(SEEDS[0]))
    assert torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x)


def test_the_gradient_passes_where_the_value_did():
    layer = Dropout(0.5, number=0)
    layer.start(3)
    x = torch.ones(40, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def net(shape=(2,), classes=2):
    inner = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2))
    return nn.Sequential(
        nn.Dropout(0.1), inner, nn.Dropout2d(0.3), nn.Dropout(0.4), nn.Linear(4, classes)
    )


def test_every_plain_dropout_is_replaced_and_numbered_in_order():
    found = net()
    layers = replace_dropouts(found)
    assert [(layer.p, layer.number) for layer in layers] == [(0.1, 0), (0.2, 1), (0.4, 2)]
    assert (
        found.get_submodule("1.1") is layers[1] and type(found.get_submodule("2")) is nn.Dropout2d
    )
    assert all(name.endswith(("weight", "bias")) for name in found.state_dict())


def test_a_module_under_two_names_becomes_two_layers():
    shared = nn.Dropout(0.5)
    layers = replace_dropouts(nn.Sequential(shared, nn.Linear(2, 2), shared))
    assert [layer.number for layer in layers] == [0, 1] and layers[0] is not layers[1]


def test_keyed_dropout_is_no_dice_of_the_networks_own_but_other_dropout_is():
    plain = Model(
        "plain", lambda shape, classes: nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)), (2,), 2
    )
    assert not training.draws_random_numbers(plain)
    own = Model(
        "own", lambda shape, classes: nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(2, 2)), (2,), 2
    )
    assert training.draws_random_numbers(own) and not training.draws_random_numbers(own, False)


def test_seeds_have_32_bits_and_differ():
    seeds = [dropout_seed((0, i)) for i in range(500)]
    assert len(set(seeds)) == 500 and min(seeds) >= 0 and max(seeds) < 2**32
    assert np.mean(seeds) == pytest.approx(2**31, rel=0.1)
