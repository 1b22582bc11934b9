import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsift import seeding, training
from fedsift.training import (
    OPTIMIZERS,
    augment,
    draw_augmentation,
    draw_batches,
    draw_mixup,
    loss,
    mix,
    not_true_divergence,
    prior_of,
    step_size,
)
from fedsift.types import (
    AUGMENTATIONS,
    Array,
    Fit,
    Labelled,
    Model,
    Recipe,
    Samples,
    Store,
    UserError,
)
from tests.helpers import toys

KEY = (0, 1, "local", 3)
LOG3 = math.log(3)


# --- loss ---


def test_loss_by_hand():
    # softmax(0, ln 3) = (1/4, 3/4); target (.5, .5): -.5 ln(1/4) - .5 ln(3/4).
    value = loss(torch.tensor([[0.0, LOG3]]), torch.tensor([[0.5, 0.5]]))
    assert value.item() == pytest.approx(-0.5 * math.log(1 / 4) - 0.5 * math.log(3 / 4))


def test_loss_at_a_temperature_by_hand():
    # softmax((0, ln 3) / 2) = (1, sqrt 3) / (1 + sqrt 3); target (.25, .75). No factor of T
    # squared.
    root = math.sqrt(3)
    value = loss(torch.tensor([[0.0, LOG3]]), torch.tensor([[0.25, 0.75]]), 2.0)
    assert value.item() == pytest.approx(
        -0.25 * math.log(1 / (1 + root)) - 0.75 * math.log(root / (1 + root))
    )


def test_loss_of_a_hard_label_is_minus_its_log_probability():
    assert loss(torch.tensor([[0.0, LOG3]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(
        -math.log(3 / 4)
    )


def test_loss_is_averaged_over_the_batch():
    # -ln(3/4) and -ln(1/4): the mean of two hard labels on the same outputs.
    value = loss(torch.tensor([[0.0, LOG3], [0.0, LOG3]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert value.item() == pytest.approx((-math.log(3 / 4) - math.log(1 / 4)) / 2)


# --- prior ---


def fit_on(targets, **recipe) -> Fit:
    """A job on as many rows of zeros as there are targets."""
    wanted = torch.tensor(targets)
    model = Model("linear", toys.linear, (1,), wanted.shape[1])
    store = Store(torch.zeros(len(wanted), 1), torch.tensor(0.0), torch.tensor(1.0))
    samples = Samples(store, np.arange(len(wanted)))
    return Fit(model, {}, Labelled(samples, wanted), Recipe(**recipe), KEY)


def test_the_prior_by_hand():
    # Two samples of the first class: n + 1 = (3, 1), shares (3/4, 1/4).
    job = fit_on([[1.0, 0.0], [1.0, 0.0]], prior=1.0)
    assert prior_of(job).tolist() == pytest.approx([math.log(3 / 4), math.log(1 / 4)])
    # Soft targets count by their shares: n + 1 = (2.5, 1.5); tau = 2 doubles the logarithms.
    job = fit_on([[1.0, 0.0], [0.5, 0.5]], prior=2.0)
    assert prior_of(job).tolist() == pytest.approx([2 * math.log(5 / 8), 2 * math.log(3 / 8)])


def test_without_tau_the_prior_is_exactly_nothing():
    assert prior_of(fit_on([[1.0, 0.0], [1.0, 0.0]])).tolist() == [0.0, 0.0]


def test_loss_with_a_prior_by_hand():
    # softmax(z + ln(3/4, 1/4)) of z = 0 is (3/4, 1/4): the frequent class is no news.
    prior = torch.tensor([3 / 4, 1 / 4]).log()
    z, t = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    assert loss(z, t, prior=prior).item() == pytest.approx(-math.log(1 / 4))
    # At temperature 2 z = (0, 2 ln 3) is (1, 3) before the prior and (3, 3) with it.
    z = torch.tensor([[0.0, 2 * LOG3]])
    assert loss(z, t, 2.0, prior).item() == pytest.approx(-math.log(1 / 2))


@given(
    st.integers(1, 5), st.integers(2, 6), st.floats(0, 4), st.floats(0.25, 4), st.integers(0, 99)
)
def test_a_prior_of_equal_counts_changes_no_loss(each, classes, tau, temperature, seed):
    """It is one number for all classes, and a softmax does not see what all have in common."""
    job = fit_on(np.eye(classes, dtype=np.float32).repeat(each, 0), prior=tau)
    z = torch.randn(4, classes, generator=torch.Generator().manual_seed(seed))
    t = torch.eye(classes)[torch.arange(4) % classes]
    plain = loss(z, t, temperature)
    assert loss(z, t, temperature, prior_of(job)).item() == pytest.approx(plain.item(), abs=1e-5)


@given(st.floats(0.1, 3), st.lists(st.integers(0, 5), min_size=2, max_size=5))
def test_the_prior_is_the_logarithm_of_shares_to_the_power_of_tau(tau, counts):
    labels = [label for label, n in enumerate(counts) for _ in range(n)] or [0]
    job = fit_on(np.eye(len(counts), dtype=np.float32)[labels], prior=tau)
    shares = (prior_of(job).double() / tau).exp()
    assert shares.sum().item() == pytest.approx(1, abs=1e-5) and (shares > 0).all()


# --- not-true distillation ---


def test_not_true_divergence_by_hand():
    """The true class is the first: the others are (1/2, 1/2) for the student and (1/4, 3/4) for the
    teacher, whatever either says of the first. 1/4 ln(1/2) + 3/4 ln(3/2); a second sample on which
    both agree halves the mean."""
    z, t = torch.tensor([[7.0, 0.0, 0.0]]), torch.tensor([[0.6, 0.4, 0.0]])
    teacher = torch.tensor([[-9.0, 0.0, LOG3]])
    by_hand = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    assert not_true_divergence(z, teacher, t).item() == pytest.approx(by_hand)
    agreed = torch.cat([teacher, z])
    assert not_true_divergence(z.repeat(2, 1), agreed, t.repeat(2, 1)).item() == pytest.approx(
        by_hand / 2
    )


@pytest.mark.parametrize("classes", [1, 2])
def test_with_one_other_class_at_most_there_is_nothing_to_distil(classes):
    z, teacher = torch.randn(2, 3, classes, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    value = not_true_divergence(z, teacher, torch.eye(classes)[[0, 0, classes - 1]])
    (gradient,) = torch.autograd.grad(value, z)
    assert value.item() == 0 and not gradient.any()


@given(st.integers(3, 6), st.floats(-5, 5), st.integers(0, 99))
def test_not_true_divergence_sees_neither_the_true_class_nor_a_shift(classes, shift, seed):
    z, teacher = torch.randn(2, 4, classes, generator=torch.Generator().manual_seed(seed))
    t = torch.eye(classes)[torch.arange(4) % classes]
    plain = not_true_divergence(z, teacher, t).item()
    assert plain > 0 and not_true_divergence(z, z, t).item() == pytest.approx(0, abs=1e-6)
    assert not_true_divergence(z + shift * t, teacher - t, t).item() == pytest.approx(plain, 1e-4)
    assert not_true_divergence(z + shift, teacher, t).item() == pytest.approx(plain, 1e-3, 1e-5)


def test_a_missing_or_unfit_teacher_is_told():
    job = fit_on([[1.0, 0.0], [1.0, 0.0]], ntd=0.5)
    with pytest.raises(UserError, match=r"^ntd = 0\.5 needs a teacher: .* or set ntd to 0$"):
        training.teacher_of(job)
    unfit = replace(job, teacher=torch.zeros(3, 2))
    with pytest.raises(UserError, match=r"logits have shape \(3, 2\), but the targets \(2, 2\)"):
        training.teacher_of(unfit)
    assert training.teacher_of(fit_on([[1.0, 0.0], [1.0, 0.0]])) is None


# --- mixup ---


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.floats(0.05, 5))
def test_one_share_a_step_is_drawn_from_the_key(samples, batch, epochs, alpha):
    recipe = Recipe(epochs=epochs, batch=batch, mixup=alpha)
    shares = draw_mixup(recipe, samples, KEY)
    steps = [len(epoch) for epoch in draw_batches(recipe, samples, KEY)]
    assert shares is not None and shares.shape == (epochs, steps[0])
    assert shares.dtype == np.float32 and (shares >= 0).all() and (shares <= 1).all()
    assert np.array_equal(shares, drawn_shares(recipe, samples, KEY))
    assert draw_mixup(replace(recipe, mixup=0.0), samples, KEY) is None


def drawn_shares(recipe, samples, key):
    shares = draw_mixup(recipe, samples, key)
    assert shares is not None
    return shares


@pytest.mark.parametrize(("alpha", "variance"), [(0.2, 1 / 5.6), (1.0, 1 / 12)])
def test_shares_have_the_mean_and_variance_of_their_distribution(alpha, variance):
    """Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1))."""
    shares = drawn_shares(Recipe(epochs=50, batch=2, mixup=alpha), 1000, KEY)
    assert shares.mean() == pytest.approx(0.5, abs=0.01)
    assert shares.var() == pytest.approx(variance, rel=0.03)


def test_shares_of_other_keys_differ():
    recipe = Recipe(epochs=2, batch=4, mixup=1.0)
    assert not np.array_equal(drawn_shares(recipe, 20, (0,)), drawn_shares(recipe, 20, (1,)))


def test_mixing_by_hand():
    own, beside = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 10.0])
    assert mix(own, beside, 0.75).tolist() == [2.0, 4.0]
    assert torch.equal(mix(own, beside, 1.0), own) and torch.equal(mix(own, beside, 0.0), beside)


# --- step size ---


def test_step_size_falls_at_every_milestone():
    recipe = Recipe(lr=0.02, milestones=(300, 600), decay=0.1)
    sizes = {epoch: step_size(recipe, epoch) for epoch in (0, 299, 300, 599, 600, 10_000)}
    assert sizes == pytest.approx(
        {0: 0.02, 299: 0.02, 300: 0.002, 599: 0.002, 600: 0.0002, 10_000: 0.0002}
    )


def test_step_size_without_milestones_never_changes():
    assert {step_size(Recipe(lr=0.3), epoch) for epoch in range(50)} == {0.3}


def test_the_order_of_milestones_does_not_matter():
    assert step_size(Recipe(lr=1, milestones=(5, 2), decay=0.5), 3) == 0.5


# --- batches ---


def lengths(samples: int, batch: int) -> list[int]:
    (epoch,) = draw_batches(Recipe(epochs=1, batch=batch), samples, KEY)
    return [len(b) for b in epoch]


def test_batch_sizes_by_hand():
    assert lengths(10, 4) == [4, 4, 2]
    assert lengths(8, 4) == [4, 4]
    assert lengths(3, 4) == [3]


def test_a_last_batch_of_one_is_left_out():
    assert lengths(9, 4) == [4, 4]


def test_a_single_sample_or_a_batch_size_of_one_is_not():
    assert lengths(1, 4) == [1]
    assert lengths(3, 1) == [1, 1, 1]


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 4), st.integers(0, 100))
def test_every_epoch_covers_every_sample_once_but_for_a_last_batch_of_one(
    samples, batch, epochs, seed
):
    made = draw_batches(Recipe(epochs=epochs, batch=batch), samples, (seed,))
    alone = samples > batch > 1 and samples % batch == 1
    assert len(made) == epochs
    for epoch in made:
        seen = np.concatenate(epoch).tolist()
        assert len(seen) == len(set(seen)) == samples - alone
        assert set(seen) <= set(range(samples))
        assert all(len(b) == batch for b in epoch[:-1])


def orders(key: tuple[int | str, ...]) -> list[list[int]]:
    return [
        np.concatenate(epoch).tolist() for epoch in draw_batches(Recipe(epochs=3, batch=5), 20, key)
    ]


@given(st.integers(0, 70), st.integers(1, 20), st.integers(1, 4), st.integers(0, 100))
def test_batches_are_the_orders_cut_into_pieces(samples, batch, epochs, seed):
    recipe = Recipe(epochs=epochs, batch=batch)
    drawn, cut = (
        training.draw_orders(recipe, samples, (seed,)),
        draw_batches(recipe, samples, (seed,)),
    )
    alone = samples > batch > 1 and samples % batch == 1
    assert drawn.dtype == np.int64 and drawn.shape == (epochs, samples - alone)
    assert [[i for piece in epoch for i in piece.tolist()] for epoch in cut] == drawn.tolist()
    assert all(len(piece) == batch for epoch in cut for piece in epoch[:-1])


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 4))
def test_steps_are_counted_as_batches_are_drawn(samples, batch, epochs):
    recipe = Recipe(epochs=epochs, batch=batch)
    row = toys.labelled([[0.0, 1.0]] * samples, [0] * samples)
    job = Fit(toys.model(), {}, row, recipe, KEY)
    drawn = draw_batches(recipe, samples, KEY)
    assert training.count_steps(job) == sum(map(len, drawn))


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 100))
def test_an_order_does_not_depend_on_the_batch_size_but_for_what_is_left_out(samples, epochs, seed):
    whole = training.draw_orders(Recipe(epochs=epochs, batch=100), samples, (seed,))
    for batch in (1, 2, 3, 5):
        drawn = training.draw_orders(Recipe(epochs=epochs, batch=batch), samples, (seed,))
        assert drawn.tolist() == whole[:, : drawn.shape[1]].tolist()


def test_orders_are_those_of_the_generator_named_by_the_key():
    """Nine samples in batches of four: the ninth of each order is left out."""
    generator = seeding.rng(*KEY, "batches")
    by_hand = [generator.permutation(9)[:8].tolist() for _ in range(3)]
    assert training.draw_orders(Recipe(epochs=3, batch=4), 9, KEY).tolist() == by_hand


def test_batches_depend_on_the_key_alone():
    torch.manual_seed(1)
    first = orders(KEY)
    torch.manual_seed(2)
    assert orders(KEY) == first
    assert orders((0, 1, "local", 4)) != first
    assert orders((0, 2, "local", 3)) != first


def test_every_epoch_has_an_order_of_its_own():
    one, two, three = orders(KEY)
    assert one != two != three != one


def test_the_sample_left_out_differs_between_epochs():
    left = [
        set(range(9)) - set(np.concatenate(e).tolist())
        for e in draw_batches(Recipe(epochs=20, batch=4), 9, KEY)
    ]
    assert len(set.union(*left)) > 3


# --- augmentation ---

#  0  1  2  3
#  4  5  6  7
#  8  9 10 11
# 12 13 14 15
SQUARE = torch.arange(16.0).reshape(1, 1, 4, 4)


def moved(down: int, right: int, mirrored: int) -> list[list[float]]:
    return augment(SQUARE, torch.tensor([[down, right, mirrored]]))[0, 0].tolist()


def test_no_move_changes_nothing():
    assert moved(0, 0, 0) == SQUARE[0, 0].tolist()


def test_a_shift_brings_zeros_in_at_the_edge():
    assert moved(1, 0, 0) == [[0, 0, 0, 0], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert moved(-1, 0, 0) == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [0, 0, 0, 0]]
    assert moved(0, 1, 0) == [[0, 0, 1, 2], [0, 4, 5, 6], [0, 8, 9, 10], [0, 12, 13, 14]]
    assert moved(0, -1, 0) == [[1, 2, 3, 0], [5, 6, 7, 0], [9, 10, 11, 0], [13, 14, 15, 0]]


def test_a_mirror_reverses_left_and_right():
    assert moved(0, 0, 1) == [[3, 2, 1, 0], [7, 6, 5, 4], [11, 10, 9, 8], [15, 14, 13, 12]]


def test_the_shift_comes_before_the_mirror():
    # Right by one: 0 0 1 2; then mirrored: 2 1 0 0.
    assert moved(-1, 1, 1) == [[6, 5, 4, 0], [10, 9, 8, 0], [14, 13, 12, 0], [0, 0, 0, 0]]


def by_loops(image: Array, down: int, right: int, mirrored: int) -> Array:
    _, height, width = image.shape
    out = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            column = width - 1 - j if mirrored else j
            if 0 <= i - down < height and 0 <= column - right < width:
                out[:, i, j] = image[:, i - down, column - right]
    return out


@settings(max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 1000),
)
def test_augment_is_what_a_plain_loop_computes(count, channels, height, width, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, channels, height, width)).astype(np.float32)
    moves = draw_augmentation(Recipe(epochs=1, augment="crop-flip"), count, (seed,), x.shape[1:])
    assert moves is not None
    expected = np.stack(
        [by_loops(image, *move) for image, move in zip(x, moves[0].tolist(), strict=True)]
    )
    assert (augment(torch.from_numpy(x), torch.from_numpy(moves[0])).numpy() == expected).all()


def test_every_image_of_a_batch_moves_by_itself():
    both = augment(torch.cat([SQUARE, SQUARE]), torch.tensor([[1, 0, 0], [0, 0, 1]]))
    assert both[0, 0].tolist() == moved(1, 0, 0)
    assert both[1, 0].tolist() == moved(0, 0, 1)


@pytest.mark.parametrize(
    ("shape", "reach"),
    [((1, 8, 8), 1), ((3, 32, 32), 4), ((3, 32, 16), 2), ((3, 96, 96), 12), ((1, 2, 2), 1)],
)
def test_moves_reach_an_eighth_of_the_shorter_side_and_at_least_one_pixel(shape, reach):
    moves = draw_augmentation(Recipe(epochs=4, augment="crop-flip"), 500, KEY, shape)
    assert moves is not None
    assert moves.shape == (4, 500, 3)
    for axis in (0, 1):
        assert np.unique(moves[..., axis]).tolist() == list(range(-reach, reach + 1))
    assert np.unique(moves[..., 2]).tolist() == [0, 1]
    assert 0.45 < moves[..., 2].mean() < 0.55  # half of 2,000 is mirrored, deviation .011


def test_moves_depend_on_the_key_alone_and_differ_between_epochs():
    recipe = Recipe(epochs=2, augment="crop-flip")
    one, same, other = (draw_augmentation(recipe, 30, key, (1, 8, 8)) for key in (KEY, KEY, (9,)))
    assert one is not None
    assert np.array_equal(one, same)  # type: ignore[arg-type]
    assert not np.array_equal(one, other)  # type: ignore[arg-type]
    assert not np.array_equal(one[0], one[1])


def test_batches_are_the_same_with_and_without_augmentation():
    with_moves = draw_batches(Recipe(epochs=1, augment="crop-flip"), 20, KEY)
    assert np.array_equal(
        np.concatenate(with_moves[0]), np.concatenate(draw_batches(Recipe(epochs=1), 20, KEY)[0])
    )


def test_none_means_no_moves():
    assert draw_augmentation(Recipe(augment="none"), 30, KEY, (1, 8, 8)) is None
    assert AUGMENTATIONS == ("none", "crop-flip")


def test_crop_flip_of_feature_rows_is_a_mistake():
    with pytest.raises(UserError, match="images"):
        draw_augmentation(Recipe(augment="crop-flip"), 30, KEY, (5,))


# --- optimisers ---


def stepped(recipe: Recipe, *gradients: float) -> float:
    """Where a parameter that starts at 1 is after these gradients."""
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer = training.optimizer(recipe, iter([parameter]))
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient])
        optimizer.step()
    return parameter.item()


def test_sgd_with_momentum_by_hand():
    # v = 2, w = 1 - .1 x 2 = .8; then v = .9 x 2 + 1 = 2.8, w = .8 - .28 = .52.
    recipe = Recipe(optimizer="sgd", lr=0.1, momentum=0.9)
    assert stepped(recipe, 2.0) == pytest.approx(0.8)
    assert stepped(recipe, 2.0, 1.0) == pytest.approx(0.52)


def test_sgd_without_momentum_by_hand():
    assert stepped(Recipe(optimizer="sgd", lr=0.1, momentum=0.0), 2.0, 1.0) == pytest.approx(
        1 - 0.2 - 0.1
    )


def test_sgd_with_nesterov_momentum_by_hand():
    # v = 2; the step is g + .9 v = 3.8.
    assert stepped(
        Recipe(optimizer="sgd", lr=0.1, momentum=0.9, nesterov=True), 2.0
    ) == pytest.approx(1 - 0.38)


def test_sgd_with_weight_decay_by_hand():
    # The gradient is 2 + .5 x 1.
    recipe = Recipe(optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.5)
    assert stepped(recipe, 2.0) == pytest.approx(1 - 0.25)


def test_adam_by_hand():
    # The first step of Adam is lr x the sign of the gradient; weight decay joins the gradient: -.5
    # + 2 x 1 > 0.
    assert stepped(Recipe(optimizer="adam", lr=0.1), 7.0) == pytest.approx(0.9)
    assert stepped(Recipe(optimizer="adam", lr=0.1), -0.5) == pytest.approx(1.1)
    assert stepped(Recipe(optimizer="adam", lr=0.1, weight_decay=2.0), -0.5) == pytest.approx(0.9)


def test_adamw_by_hand():
    # The weight is first multiplied by 1 - lr x decay = .8; the step of -lr x sign is apart from
    # that.
    assert stepped(Recipe(optimizer="adamw", lr=0.1, weight_decay=2.0), -0.5) == pytest.approx(
        0.8 + 0.1
    )
    assert stepped(Recipe(optimizer="adamw", lr=0.1), -0.5) == pytest.approx(
        1.1
    )  # no decay unless asked for


def test_the_optimisers_tested_here_are_all_there_are():
    assert set(OPTIMIZERS) == {"sgd", "adam", "adamw"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_state_is_carried_from_one_optimiser_to_the_next(name):
    recipe = Recipe(optimizer=name, lr=0.1)
    parameter = nn.Parameter(torch.tensor([1.0]))
    places = []
    for _ in range(2):
        with torch.no_grad():
            parameter.fill_(1.0)
        optimizer = training.optimizer(recipe, iter([parameter]))
        parameter.grad = torch.tensor([2.0])
        optimizer.step()
        places.append(parameter.item())
    assert places[0] == places[1]
