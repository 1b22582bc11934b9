"""Updates on a grid: within their bits, near the weights, valid for one result only."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.codecs import Updates, down_weight_codec, grid, grid_updates, weight_codec
from fedsift.codecs.wire import HEADER_BYTES, WireError
from fedsift.models import initial_state, make_model
from fedsift.types import UserError

ROUND = 3
RESNET = initial_state(make_model("resnet8", (3, 32, 32), 10), 0)
FLOATS = sum(value.numel() for value in RESNET.values() if value.is_floating_point())


def drifted(start, scale, seed=0):
    """Every weight moved at random, statistics and counters too."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 100
        if not value.is_floating_point()
        else value * torch.exp(scale * torch.randn(value.shape, generator=generator))
        if grid.is_variance(name, value)
        else value + scale * torch.randn(value.shape, generator=generator)
        for name, value in start.items()
    }


def bits_of(update, start):
    return len(grid.encode(update, start)) * 8 / FLOATS


# --- by hand ---


def test_one_step_for_all_weights_by_hand():
    """1,000 weights of which one is to move by 1 and one by -0.26: with plenty of bits the step is
    the finest, 2^-14, and what arrives is the nearest multiple of it."""
    start = {"w": torch.zeros(1000)}
    weights = {"w": torch.zeros(1000)}
    weights["w"][3], weights["w"][500] = 1.0, -0.26
    update = Updates(16).choose(start, grid.nothing(start), weights, "local.lr")
    arrived = grid.move(start, update)["w"]
    assert arrived[3] == 1 and arrived[500] == -round(0.26 * 2**14) / 2**14
    assert (arrived != 0).sum() == 2


def test_counters_are_exact_and_statistics_are_near():
    weights = drifted(RESNET, 0.05)
    update = Updates(1).choose(RESNET, grid.nothing(RESNET), weights, "local.lr")
    arrived = grid.move(RESNET, update)
    counters = [name for name, value in weights.items() if not value.is_floating_point()]
    variances = [name for name, value in weights.items() if grid.is_variance(name, value)]
    assert len(counters) == len(variances) > 5
    assert all(torch.equal(arrived[name], weights[name]) for name in counters)
    for name in variances:
        assert (arrived[name] > 0).all()
        assert (arrived[name] / weights[name]).log2().abs().max() < 0.26


# --- rate and distortion ---


@pytest.mark.parametrize("bits", [0.25, 0.5, 1, 2, 4])
def test_an_update_of_a_resnet_takes_at_most_its_bits_and_most_of_them(bits):
    update = Updates(bits).choose(RESNET, grid.nothing(RESNET), drifted(RESNET, 0.02), "local.lr")
    assert 0.6 * bits < bits_of(update, RESNET) <= bits


def test_more_bits_bring_less_error():
    """At high rates each bit per weight halves the error, as theory says of uniform steps."""
    weights = drifted(RESNET, 0.02)
    errors = []
    for bits in (1, 2, 3, 4, 5):
        update = Updates(bits).choose(RESNET, grid.nothing(RESNET), weights, "local.lr")
        arrived = grid.move(RESNET, update)
        moved = [name for name in RESNET if name.endswith("weight")]
        errors.append(
            float(torch.cat([(arrived[n] - weights[n]).flatten() for n in moved]).square().mean())
        )
    ratios = np.sqrt(np.array(errors[:-1]) / np.array(errors[1:]))
    assert (ratios > 1.5).all() and 1.8 < ratios[2:].mean() < 2.3


def test_what_is_left_over_is_sent_later():
    """The student stands still: update after update the public model comes closer to it."""
    weights, held = drifted(RESNET, 0.02), grid.nothing(RESNET)
    errors = []
    for _ in range(6):
        held = grid.add(held, Updates(0.5).choose(RESNET, held, weights, "local.lr"))
        there = grid.move(RESNET, held)
        left = torch.cat([(there[n] - w).flatten() for n, w in weights.items() if w.dim() > 1])
        errors.append(float(left.square().mean().sqrt()))
    assert all(after < before for before, after in pairwise(errors))
    assert errors[-1] < 0.5 * errors[0] < 0.5 * 0.02


def test_updates_missed_together_take_less_than_one_by_one():
    held, updates = grid.nothing(RESNET), []
    weights = RESNET
    for number in range(4):
        weights = drifted(weights, 0.01, number)
        updates.append(Updates(1).choose(RESNET, held, weights, "local.lr"))
        held = grid.add(held, updates[-1])
    apart = sum(len(grid.encode(update, RESNET)) for update in updates)
    assert len(grid.encode(held, RESNET)) < 0.7 * apart


@given(st.floats(0.1, 16), st.integers(0, 10**6), st.floats(1e-4, 10))
@settings(max_examples=30, deadline=None)
def test_no_update_is_longer_than_its_bits(bits, seed, scale):
    start = initial_state(make_model("cnn", (1, 8, 8), 10), 0)
    weights = drifted(start, scale, seed)
    update = Updates(bits).choose(start, grid.nothing(start), weights, "local.lr")
    floats = sum(value.numel() for value in start.values())
    assert len(grid.encode(update, start)) <= max(bits * floats / 8, 100)


def test_variances_stay_positive_however_few_the_bits():
    """Also those of dead channels: their variance is 0, and rounding must not go below."""
    new = drifted(RESNET, 0.05)
    dead = {n: torch.zeros_like(v) if n.endswith("running_var") else v for n, v in new.items()}
    for state in (new, dead):
        for bits in (0.1, 0.3, 1.0):
            message = Updates(bits).encode(state, ROUND, 9, RESNET, (1,))
            assert len(message) <= HEADER_BYTES + 4 + bits * FLOATS / 8
            arrived, _ = Updates(bits).decode(message, ROUND, RESNET)
            for name in (n for n in RESNET if n.endswith("running_var")):
                assert (arrived[name] >= 0).all()
                if state is new:  # within an octave
                    assert (arrived[name] / state[name]).log2().abs().max() <= 1.1
            held = Updates(bits).choose(RESNET, grid.nothing(RESNET), state, "distill.lr")
            grid.move(RESNET, held)  # to the nearest too


# --- messages ---


def sent(update, start=RESNET, held=None, bits=1.0):
    result = grid.move(start, update if held is None else grid.add(held, update))
    return Updates(bits).seal(update, result, ROUND, 9), result


def test_a_message_is_the_update_and_seventeen_bytes():
    update = Updates(1).choose(RESNET, grid.nothing(RESNET), drifted(RESNET, 0.02), "local.lr")
    message, result = sent(update)
    assert len(message) == HEADER_BYTES + 4 + len(grid.encode(update, RESNET))
    weights, ticks, samples = Updates(1).open(message, RESNET, grid.nothing(RESNET), ROUND)
    assert samples == 9 and all(torch.equal(weights[name], result[name]) for name in RESNET)
    assert all(np.array_equal(ticks[name], update[name]) for name in update)


def test_a_message_for_somebody_who_holds_something_else_is_refused():
    """It would lead elsewhere, and the checksum covers where it leads."""
    update = Updates(1).choose(RESNET, grid.nothing(RESNET), drifted(RESNET, 0.02), "local.lr")
    message, _ = sent(update)
    with pytest.raises(WireError, match="the two ends disagree"):
        Updates(1).open(message, RESNET, update, ROUND)
    other = {**RESNET, "head.bias": RESNET["head.bias"] + 1e-6}
    with pytest.raises(WireError, match="the two ends disagree"):
        Updates(1).open(message, other, grid.nothing(RESNET), ROUND)
    with pytest.raises(WireError, match="round 3 where round 4"):
        Updates(1).open(message, RESNET, grid.nothing(RESNET), 4)


def test_weights_that_diverged_cannot_be_sent():
    bad = {**RESNET, "head.bias": torch.full((10,), float("nan"))}
    with pytest.raises(UserError, match=r"'head.bias' are not finite.*lower distill.lr"):
        Updates(1).choose(RESNET, grid.nothing(RESNET), bad, "distill.lr")


# --- names ---


def test_qsgd_is_for_the_uplink_and_updates_for_both():
    with pytest.raises(UserError, match="for the uplink; on the downlink use float32"):
        down_weight_codec("qsgd(4)")
    assert weight_codec("updates(0.5)") == down_weight_codec("updates(0.5)") == Updates(0.5)


@pytest.mark.parametrize("bits", [0, 0.05, 17, float("nan"), "four"])
def test_other_bits_are_an_error(bits):
    with pytest.raises(UserError, match="bits"):
        Updates(bits)


# --- uploads ---


def test_an_upload_arrives_as_it_was_rounded_with_its_number_of_samples():
    codec, state = Updates(1), drifted(RESNET, 0.02)
    message = codec.encode(state, ROUND, 40, RESNET, (0, "local", 7))
    arrived, samples = codec.decode(message, ROUND, RESNET)
    assert samples == 40 and message == codec.encode(state, ROUND, 40, RESNET, (0, "local", 7))
    assert message != codec.encode(state, ROUND, 40, RESNET, (0, "local", 8))
    with pytest.raises(WireError):
        codec.decode(message, ROUND, arrived)  # another base


def test_rounding_at_random_is_right_in_the_mean():
    """Eight hundred clients send the same update in half a bit a weight; their mean is the update,
    while each of them is far off. To the nearest step, small weights would never arrive."""
    start = {"w": torch.zeros(300)}
    state = {"w": torch.linspace(-0.01, 0.01, 300)}
    codec = Updates(0.5)
    arrived = torch.stack(
        [
            codec.decode(codec.encode(state, ROUND, 1, start, (0, i)), ROUND, start)[0]["w"]
            for i in range(800)
        ]
    )
    alone = (arrived - state["w"]).square().mean().sqrt()
    assert (arrived.mean(0) - state["w"]).square().mean().sqrt() < 2 * alone / 800**0.5


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 4), st.floats(1e-6, 10), st.integers(0, 5))
def test_an_upload_stays_within_its_bits(bits, scale, seed):
    start = initial_state(make_model("cnn", (1, 8, 8), 10), 0)
    weights = sum(value.numel() for value in start.values())
    state = drifted(start, scale, seed)
    message = Updates(bits).encode(state, ROUND, 40, start, (seed,))
    assert len(message) <= max(bits * weights / 8, 80) + HEADER_BYTES + 4


# --- the search ---


def search_by_coding(codec, start, weights, generator):
    """The step that `choose` describes, with every candidate coded as a whole."""
    rounding = grid_updates._make_rounding(start, grid.nothing(start), weights, generator)
    floats = sum(value.numel() for value in start.values() if value.is_floating_point())
    pieces, most = len(rounding.order), codec.bits / 8 * floats

    def fits(at):
        return len(grid.encode(rounding.plan.split(rounding.at(at)), start)) <= most

    at = rounding.coarsest() * pieces
    while not fits(at) and at < grid_updates.COARSEST * pieces:
        at += pieces
    while at > grid_updates.FINEST * pieces and fits(at - pieces):
        at -= pieces
    low = max(at - pieces + 1, grid_updates.FINEST * pieces)
    while low < at:
        middle = (low + at) // 2
        low, at = (low, middle) if fits(middle) else (middle + 1, at)
    return rounding.plan.split(rounding.at(at))


@pytest.mark.parametrize("bits", [0.1, 0.3, 0.92, 3, 16])
@pytest.mark.parametrize("scale", [0, 1e-5, 0.02, 2.0])
@pytest.mark.parametrize("seed", [None, 7])
def test_bounds_find_the_step_that_coding_finds(bits, scale, seed):
    start = initial_state(make_model("cnn", (1, 8, 8), 10), 0)
    weights, codec = drifted(start, scale), Updates(bits)

    def dice():
        return None if seed is None else np.random.default_rng(seed)

    found = codec.choose(start, grid.nothing(start), weights, "local.lr", dice())
    expected = search_by_coding(codec, start, weights, dice())
    assert all(np.array_equal(found[name], expected[name]) for name in start)


def test_bounds_find_the_step_that_coding_finds_for_a_resnet():
    weights = drifted(RESNET, 0.02)
    found, expected = (
        search(RESNET, np.random.default_rng(1))
        for search in (
            lambda start, dice: Updates(0.92).choose(
                start, grid.nothing(start), weights, "local.lr", dice
            ),
            lambda start, dice: search_by_coding(Updates(0.92), start, weights, dice),
        )
    )
    assert all(np.array_equal(found[name], expected[name]) for name in RESNET)
