"""Layers of M networks at once: numbers by hand, then each equal to its module for every network
alone.
"""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import training
from fedsift.engines.stacked import layers
from fedsift.engines.stacked.training import loss_gradient, mix_batches

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
sizes, seeds = st.integers(1, 3), st.integers(0, 1000)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_image(x):
    """[b, H, W, C] of one network -> [b, C, H, W]."""
    return x.permute(0, 3, 1, 2)


def close(a, b, atol=1e-5):
    return a.shape == b.shape and torch.allclose(a, b, atol=atol, rtol=1e-4)


# --- by hand ---


def test_a_linear_layer_by_hand():
    """(1, 2) times [[1, 0], [0, 3]] is (1, 6), plus (10, 20) is (11, 26); the second network has
    zeros.
    """
    x = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]]])
    w = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]]])
    b = torch.tensor([[10.0, 20.0], [1.0, 2.0]])
    assert layers.linear(x, w, b).tolist() == [[[11.0, 26.0]], [[1.0, 2.0]]]
    assert layers.linear(x, w, None).tolist() == [[[1.0, 6.0]], [[0.0, 0.0]]]


def test_a_convolution_by_hand():
    """A 2x2 kernel (1 2 / 3 4) over 1..9: 1 + 2*2 + 3*4 + 4*5 = 37, then 47; 67, 77."""
    x = torch.arange(1.0, 10).view(1, 1, 3, 3, 1)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    assert layers.convolve(x, w, None, (2, 2), (1, 1), (0, 0)).flatten().tolist() == [
        37,
        47,
        67,
        77,
    ]


def test_moments_by_hand():
    """Network 0 has 0, 2, 4: mean 2, variance 8/3. Network 1 has one real sample, 6: mean 6,
    variance 0.
    """
    x = torch.tensor([[[0.0], [2.0], [4.0]], [[6.0], [100.0], [-100.0]]])
    mean, variance, values = layers.moments(x, torch.tensor([3, 1]))
    assert mean.flatten().tolist() == [2, 6]
    assert variance.flatten().tolist() == pytest.approx([8 / 3, 0])
    assert isinstance(values, torch.Tensor) and values.flatten().tolist() == [3, 1]
    assert layers.moments(x[:1], None)[2] == 3


def test_every_pixel_counts_as_a_value():
    x = torch.arange(8.0).view(1, 2, 2, 2, 1)
    mean, variance, values = layers.moments(x, torch.tensor([1]))
    assert (float(mean), float(variance)) == (1.5, 1.25) and float(values) == 4


def test_running_figures_by_hand():
    """0.9 x 1 + 0.1 x 3 = 1.2 for whoever had samples."""
    running = torch.ones(2, 1)
    layers.update_running(running, torch.tensor([[3.0], [float("nan")]]), 0.1, torch.tensor([4, 0]))
    assert running.flatten().tolist() == pytest.approx([1.2, 1])
    layers.update_running(running, torch.full((2, 1), 3.0), 0.5, None)
    assert running.flatten().tolist() == pytest.approx([2.1, 2])


def test_normalising_by_hand():
    """(5 - 3) / sqrt(3 + 1) x 10 + 7 = 17."""
    mean, variance, weight, bias = (torch.full((1, 1), v) for v in (3.0, 3.0, 10.0, 7.0))
    assert layers.normalise(
        torch.full((1, 2, 1), 5.0), mean, variance, weight, bias, 1.0
    ).tolist() == [[[17.0], [17.0]]]


def test_the_pull_of_the_loss_by_hand():
    """Zero outputs: s = (1/2, 1/2). t = (1, 0) pulls by (-1/2, 1/2) / batch. Of three places one is
    padding: the batch is two. At temperature 2 everything is half."""
    z, t = torch.zeros(1, 3, 2), torch.tensor([[[1.0, 0.0], [0.25, 0.75], [1.0, 0.0]]])
    found = loss_gradient(z, t, 1.0, torch.tensor([2]))
    assert found[0].tolist() == [[-0.25, 0.25], [0.125, -0.125], [0, 0]]
    assert torch.equal(loss_gradient(z, t, 2.0, torch.tensor([2])), found / 2)


def test_a_prior_moves_the_pull_of_the_loss_by_hand():
    """Zero outputs and shares (3/4, 1/4): s = (3/4, 1/4). t = (0, 1) pulls by (3/4, -3/4) / batch,
    t = (1, 0) by (-1/4, 1/4). The second model has no prior, and its bits are those without."""
    z, t = torch.zeros(2, 2, 2), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]] * 2)
    prior = torch.tensor([[[0.75, 0.25]], [[1.0, 1.0]]]).log()
    found = loss_gradient(z, t, 1.0, torch.tensor([2, 2]), prior)
    assert found[0].flatten().tolist() == pytest.approx([0.375, -0.375, -0.125, 0.125])
    assert torch.equal(found[1], loss_gradient(z, t, 1.0, torch.tensor([2, 2]))[1])


def test_places_are_mixed_with_the_next_real_one_by_hand():
    """Share 1/4 of its own, 3/4 of the next. The second model has two samples and padding: its last
    takes the first. The third has finished, and with a share of 1 everything stays."""
    values = torch.tensor([[[0.0, 4.0, 8.0], [0.0, 4.0, 100.0], [1.0, 2.0, 3.0]]])[..., None]
    counts, shares = torch.tensor([[3, 2, 0]]), torch.tensor([[0.25, 0.25, 1.0]])
    found = mix_batches(values, counts, shares)[0, :, :, 0].tolist()
    assert found[0] == [3.0, 7.0, 2.0] and found[1][:2] == [3.0, 1.0] and found[2] == [1, 2, 3]
    images = values[..., None, None].expand(1, 3, 3, 2, 4, 4)
    assert torch.equal(
        mix_batches(images, counts, shares)[..., 1, 2, 3],
        mix_batches(values, counts, shares)[..., 0],
    )


def test_rows_are_flattened_in_the_order_of_one_network():
    x = torch.arange(12.0).view(1, 1, 2, 2, 3)
    assert layers.flatten(x)[0].tolist() == as_image(x[0]).flatten(1).tolist()
    assert layers.flatten(x[..., 0]).shape == (1, 1, 4)


# --- properties ---


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(
    st.tuples(sizes, sizes),
    st.tuples(sizes, sizes),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(sizes, sizes, st.integers(3, 7), st.integers(3, 7)),
    st.tuples(st.integers(1, 5), sizes),
    st.booleans(),
    seeds,
)
def test_convolution_and_its_gradients(
    device, kernel, stride, padding, shape, channels, biased, seed
):
    (m, b, h, w), (c, o) = shape, channels
    x = drawn(seed, m, b, h, w, c).to(device).requires_grad_()
    weight = drawn(seed + 1, m, kernel[0] * kernel[1] * c, o).to(device).requires_grad_()
    bias = drawn(seed + 2, m, o).to(device).requires_grad_() if biased else None
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    found = layers.convolve(x, weight, bias, kernel, stride, padding)
    expected = torch.stack(
        [
            F.conv2d(
                as_image(x[i]),
                weight[i].view(*kernel, c, o).permute(3, 2, 0, 1).contiguous(),
                bias[i] if biased else None,  # type: ignore[index]
                stride,
                padding,
            ).permute(0, 2, 3, 1)
            for i in range(m)
        ]
    )
    assert close(found, expected, 1e-4)
    pull = drawn(seed + 3, *found.shape).to(device)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, pull),
        torch.autograd.grad(expected, inputs, pull),
        strict=True,
    ):
        assert close(mine, theirs, 1e-4)


def test_no_gradient_is_asked_of_the_data():
    x, w = drawn(0, 1, 1, 4, 4, 2), drawn(1, 1, 18, 3).requires_grad_()
    layers.convolve(x, w, None, (3, 3), (1, 1), (1, 1)).sum().backward()
    assert x.grad is None and w.grad is not None


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([(), (2, 3)]), sizes, seeds
)
def test_batch_norm_of_padded_batches_is_batch_norm_of_the_real_samples(
    counts, spatial, channels, seed
):
    """Output, gradients and running figures are those of nn.BatchNorm on the real samples, whatever
    the padding holds.
    """
    counts = [max(n, 1 if spatial else 2) for n in counts]
    m, b = len(counts), max(counts)
    x = (3 * drawn(seed, m, b, *spatial, channels) + 1).requires_grad_()
    weight, bias = (drawn(seed + i, m, channels).requires_grad_() for i in (1, 2))
    running = [drawn(seed + 3, m, channels), drawn(seed + 4, m, channels).abs()]
    count, before = torch.tensor(counts), [figure.clone() for figure in running]
    mean, variance, n = layers.moments(x, count)
    layers.update_running(running[0], mean.detach(), 0.1, count)
    layers.update_running(running[1], variance.detach() * (n / (n - 1)), 0.1, count)
    found = layers.normalise(x, mean, variance, weight, bias, 1e-5)
    real = layers.real_samples(count, b).view(m, b, *[1] * (len(spatial) + 1))
    pull = drawn(seed + 5, *found.shape) * real
    dx, dw, db = torch.autograd.grad(found, [x, weight, bias], pull)
    for i, size in enumerate(counts):
        norm: nn.Module = (nn.BatchNorm2d if spatial else nn.BatchNorm1d)(channels)
        state = zip(
            ("weight", "bias", "running_mean", "running_var"),
            (weight[i], bias[i], *(f[i] for f in before)),
            strict=True,
        )
        norm.load_state_dict(
            {name: value.detach().clone() for name, value in state}
            | {"num_batches_tracked": torch.tensor(0)}
        )
        mine = x[i, :size].detach().clone().requires_grad_()
        y = norm(as_image(mine)).permute(0, 2, 3, 1) if spatial else norm(mine)
        assert close(found[i, :size], y, 1e-4)
        theirs = torch.autograd.grad(y, [mine, *norm.parameters()], pull[i, :size])
        assert all(
            close(a, b, 1e-3) for a, b in zip((dx[i, :size], dw[i], db[i]), theirs, strict=True)
        )
        assert not dx[i, size:].any()
        assert close(running[0][i], norm.running_mean) and close(running[1][i], norm.running_var)


@settings(max_examples=20)
@given(
    # torch refuses rows with one value per group, (5, 5) without pixels
    st.sampled_from([*product([(4, 2), (6, 3), (6, 1)], [(), (2, 3)]), ((5, 5), (2, 3))]),
    st.booleans(),
    sizes,
    sizes,
    seeds,
)
def test_group_norm(shape, affine, m, b, seed):
    (channels, groups), spatial = shape
    x = drawn(seed, m, b, *spatial, channels)
    weight, bias = (drawn(seed + i, m, channels) if affine else None for i in (1, 2))
    found = layers.group_norm(x, groups, weight, bias, 1e-3)
    for i in range(m):
        figures = (None, None) if weight is None or bias is None else (weight[i], bias[i])
        mine = as_image(x[i]) if spatial else x[i]
        expected = F.group_norm(mine, groups, figures[0], figures[1], 1e-3)
        assert close(found[i], expected.permute(0, 2, 3, 1) if spatial else expected)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 1, 1),
    ],
    ids=str,
)
def test_pools(pool):
    x = drawn(0, 3, 2, 5, 7, 4)
    found = layers.pool(x, pool)
    assert all(torch.equal(as_image(found[i]), pool(as_image(x[i]))) for i in range(3))


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(2, 5),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.7]),
    seeds,
)
def test_the_pull_is_the_gradient_of_the_loss_of_every_network(
    counts, classes, temperature, soft, prior, ntd, seed
):
    m, b = len(counts), max(counts)
    z = drawn(seed, m, b, classes) * 3
    t = drawn(seed + 1, m, b, classes).softmax(-1)
    t = t if soft else F.one_hot(t.argmax(-1), classes).float()
    bias = drawn(seed + 2, m, 1, classes) if prior else None
    teacher = drawn(seed + 3, m, b, classes) if ntd else None
    found = loss_gradient(z.clone(), t, temperature, torch.tensor(counts), bias, teacher, ntd)
    for i, n in enumerate(counts):
        mine = z[i, :n].clone().requires_grad_()
        own = None if bias is None else bias[i, 0]
        value = training.loss(mine, t[i, :n], temperature, own)
        if teacher is not None:
            value = value + ntd * training.not_true_divergence(mine, teacher[i, :n], t[i, :n])
        (expected,) = torch.autograd.grad(value, mine)
        assert close(found[i, :n], expected, 1e-6) and not found[i, n:].any()


@pytest.mark.parametrize("group", [4, 8, 64])
def test_merged_moments_are_those_of_the_larger_pieces(group):
    """Twelve tiles of five values: pieces of four tiles, whatever larger power of two is asked."""
    x = torch.randn(2, 12, 5, 3, generator=torch.Generator().manual_seed(0))
    parts = torch.stack([x.mean(2), (x - x.mean(2, keepdim=True)).square().sum(2)], 2)
    found, held = layers.merge_moments(parts, 5, group)
    large = x.reshape(2, 3, 20, 3)
    mean = large.mean(2)
    squares = (large - mean[:, :, None]).square().sum(2)
    assert held == 20
    torch.testing.assert_close(found, torch.stack([mean, squares], 2))
