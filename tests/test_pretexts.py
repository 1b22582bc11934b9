"""Self-supervised tasks: losses worked out by hand, views that are what they should be."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsift import models, pretexts
from fedsift.pretexts import Rotation, SimClr, batch_size, draw_steps, step_sizes
from fedsift.types import Pretrain, Samples, Snapshot, Store, UserError


def contrastive_loss(outputs, temperature):
    """As the paper writes it, one view after the other: rows 0..B-1 and B..2B-1 are pairs."""
    u, rows = F.normalize(outputs, dim=1), len(outputs)
    total = torch.tensor(0.0)
    for i in range(rows):
        j = (i + rows // 2) % rows
        exponentials = {k: torch.exp(u[i] @ u[k] / temperature) for k in range(rows) if k != i}
        total = total - torch.log(exponentials[j] / sum(exponentials.values()))
    return total / rows


def test_two_pairs_at_right_angles_by_hand():
    """Both views of an image are equal, the two images at right angles, T = 1: s is 1, 0, 0."""
    outputs = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    loss = contrastive_loss(outputs, 1.0)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + 2)))
    # row 0: p = e/(e+2) at its partner (q = p - 1 = -2a) and a = 1/(e+2) at the others. By u_0 the
    # gradient is 2 (q_02 u_2 + q_01 u_1 + q_03 u_3) / 4 = (-a, a) times 2 / 2, of which only
    # the part across u_0 = (1, 0) counts: (0, a).
    a = 1 / (math.e + 2)
    expected = torch.tensor([[0, a], [a, 0], [0, a], [a, 0]])
    found = SimClr(temperature=1.0).gradient(outputs[None], torch.empty(0))[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_contrastive_gradient_is_that_of_the_loss(temperature):
    outputs = torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    found = SimClr(temperature=temperature).gradient(outputs, torch.empty(0))
    for mine, z in zip(found, outputs, strict=True):
        z = z.clone().requires_grad_()
        contrastive_loss(z, temperature).backward()
        torch.testing.assert_close(mine, z.grad)


def test_the_gradient_of_rotation_is_that_of_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    outputs, dice = torch.randn(2, 5, 4, generator=generator), torch.rand(2, 5, 4)
    found = Rotation().gradient(outputs, dice)
    for mine, z, die in zip(found, outputs, dice, strict=True):
        z = z.clone().requires_grad_()
        F.cross_entropy(z, (4 * die[:, 0]).long()).backward()
        torch.testing.assert_close(mine, z.grad)


# --- views ---


def noise(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_a_whole_crop_without_mirror_and_colours_is_the_image():
    x = noise(4, 3, 6, 8)
    plain = SimClr(crop=1.0, mirror=0, jitter=0, grey=0)
    torch.testing.assert_close(plain.make_view(x, noise(4, 13).fill_(0.5)), x)


def test_a_mirrored_view_is_the_image_from_right_to_left():
    x = noise(4, 1, 6, 8)
    mirrored = SimClr(crop=1.0, mirror=1, jitter=0, grey=0)
    torch.testing.assert_close(mirrored.make_view(x, noise(4, 13).fill_(0.5)), x.flip(3))


def test_a_crop_shows_as_much_as_it_should():
    """A quarter of the area, in the middle: a ramp from 0 to 1 becomes one of half the slope."""
    ramp = torch.linspace(0, 1, 9).expand(1, 1, 9, 9)
    dice = torch.full((1, 13), 0.5)
    dice[0, 0] = 0
    seen = SimClr(mirror=0).make_view(ramp, dice)[0, 0]
    torch.testing.assert_close(seen[4, 1:] - seen[4, :-1], torch.full((8,), 1 / 16))
    assert seen[4, 4].item() == pytest.approx(0.5)


def test_a_grey_view_has_no_colours_and_keeps_its_brightness():
    x = noise(2, 3, 4, 4)
    grey = SimClr(crop=1.0, mirror=0, jitter=0, grey=1).make_view(x, torch.full((2, 13), 0.5))
    expected = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    torch.testing.assert_close(grey, expected[:, None].expand_as(x))


def test_views_stay_within_the_range_and_differ_from_each_other():
    x = noise(200, 3, 8, 8)
    seen = SimClr().make_view(x, noise(200, 13))
    assert seen.min() >= 0 and seen.max() <= 1 and seen.shape == x.shape
    assert (seen - x).abs().mean() > 0.05
    half = SimClr().make_view(x[:100], noise(200, 13)[:100])
    assert torch.equal(seen[:100], half)  # a view does not depend on its company


def test_colours_are_left_alone_where_there_are_none():
    x, dice = noise(5, 1, 8, 8), noise(5, 13)
    assert torch.equal(SimClr(jitter=0, grey=0).make_view(x, dice), SimClr().make_view(x, dice))


def test_rotation_turns_by_what_it_asks_for():
    x = noise(4, 2, 8, 8)
    dice = torch.full((4, 4), 0.5)  # no shift, not mirrored
    dice[:, 0] = torch.tensor([0.0, 0.25, 0.5, 0.99])
    seen = Rotation().make_view(x, dice)
    for turns in range(4):
        assert torch.equal(seen[turns], torch.rot90(x[turns], turns, (1, 2)))


def test_inputs_are_raw_values_again_in_the_order_of_the_views():
    x = torch.arange(2 * 3 * 1 * 2 * 2).view(2, 3, 1, 2, 2).to(torch.uint8)
    low, span = torch.tensor([0.0, 5.0]), torch.tensor([10.0, 30.0])
    plain = SimClr(crop=1.0, mirror=0, jitter=0, grey=0)
    found = pretexts.make_inputs(plain, x, torch.full((2, 2, 3, 13), 0.5), low, span)
    torch.testing.assert_close(found, torch.cat([x, x], 1).float())


# --- steps ---


def a_job(samples, pretext, epoch=0, epochs=1):
    store = Store(torch.zeros(samples, 1, 2, 2), torch.tensor(0.0), torch.tensor(1.0))
    model = models.make_model("mlp", (1, 2, 2), 4)
    rows = Samples(store, np.arange(samples))
    return Pretrain(model, Snapshot({}, {}, {}), rows, pretext, (3, "start"), epoch, epochs)


def test_batches_are_whole_and_there_are_at_least_four():
    assert [batch_size(SimClr(), n) for n in (20_000, 500, 30, 9, 2)] == [512, 120, 7, 2, 2]


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rates = step_sizes(SimClr(epochs=120), 20_000)
    assert len(rates) == 120 * 39
    assert rates[0] == pytest.approx(2e-3 / 200)
    assert rates[99] == pytest.approx(1e-3, rel=0.01)
    assert rates[2340] == pytest.approx(1e-3) and rates[-1] < 1e-8
    few = step_sizes(SimClr(epochs=5), 500)  # 20 steps: two rise
    assert few[0] == pytest.approx(1e-3) and few.argmax() == 1


def test_an_epoch_draws_the_same_whichever_stage_it_is_in():
    whole = draw_steps(a_job(50, SimClr(epochs=4), 0, 4))
    parts = [draw_steps(a_job(50, SimClr(epochs=4), *part)) for part in ((0, 1), (1, 3))]
    for what in ("positions", "dice", "rates"):
        joined = np.concatenate([getattr(part, what) for part in parts])
        assert np.array_equal(joined, getattr(whole, what))
    assert [part.first for part in parts] == [0, 6]  # six batches of eight
    first = whole.positions[:6].ravel()
    assert len(set(first)) == 6 * 8 and not np.array_equal(first, whole.positions[6:12].ravel())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SimClr(epochs=0), "epochs must be a whole number, 1 or more, not 0"),
        (lambda: SimClr(crop=1.5), "crop must be at most 1"),
        (lambda: SimClr(temperature=0.0), "temperature must be above 0"),
        (lambda: Rotation(lr=-1.0), "lr must be above 0"),
        (lambda: SimClr().check_shape((7,)), "start=simclr needs images"),
        (lambda: Rotation().check_shape((1, 4, 5)), "needs square images"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make, said):
    with pytest.raises(UserError, match=said):
        make()
