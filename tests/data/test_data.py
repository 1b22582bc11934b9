import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift import data
from fedsift.data import arrays
from fedsift.types import Array, Labelled, Samples, UserError


def rows(samples: int, **more: Any) -> data.Dataset:
    """Sample i is the row (i, 0) and has label i % 3: who got which sample can be read from the
    values.
    """
    x = np.stack([np.arange(samples), np.zeros(samples)], 1)
    return data.make_dataset(x, np.arange(samples) % 3, **more)


def raw(samples: Samples) -> Array:
    return samples.store.values[torch.from_numpy(samples.rows)].numpy()


def numbers(part: Samples | Labelled) -> list[int]:
    return raw(part.samples if isinstance(part, Labelled) else part)[:, 0].astype(int).tolist()


# --- digits ---


def test_digits_are_1797_images_of_8_by_8_with_17_grey_levels():
    digits = data.load_dataset("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.uint8
    assert np.unique(digits.x).tolist() == list(range(17))
    assert digits.classes == 10


def test_digits_have_the_known_class_counts():
    assert np.bincount(data.digits().y).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]


def test_digits_have_no_official_test_or_public_set():
    assert data.digits().test is None
    assert data.digits().public is None


# --- your own arrays ---


def test_images_without_channels_get_one():
    x = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
    assert (data.make_dataset(x, [0, 1]).x == x[:, None]).all()


def test_channels_last_become_channels_first():
    x = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    made = data.make_dataset(x, [0, 1]).x
    assert made.shape == (2, 3, 4, 5)
    assert made[1, 2, 0, 3] == x[1, 0, 3, 2]
    assert all((made[:, c] == x[..., c]).all() for c in range(3))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_stay_so(channels):
    x = np.arange(2 * channels * 4 * 5, dtype=np.uint8).reshape(2, channels, 4, 5)
    assert (data.make_dataset(x, [0, 1]).x == x).all()


def test_feature_rows_stay_rows():
    assert data.make_dataset([[1, 2, 3], [4, 5, 6]], [0, 1]).x.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_bytes_stay_bytes_and_all_else_becomes_float32():
    for dtype, kept in (
        (np.uint8, np.uint8),
        (np.int64, np.float32),
        (np.float64, np.float32),
        (bool, np.float32),
    ):
        assert data.make_dataset(np.ones((2, 3), dtype), [0, 1]).x.dtype == kept


def test_tensors_are_taken_too():
    made = data.make_dataset(torch.ones(2, 1, 4, 4), torch.tensor([0, 1]))
    assert made.x.shape == (2, 1, 4, 4)
    assert made.y.tolist() == [0, 1]


def test_read_only_arrays_are_taken():
    # As np.frombuffer gives them. Warnings are errors here, so torch must not be handed the
    # read-only memory.
    x = np.frombuffer(bytes(range(8 * 4)), np.uint8).reshape(8, 4)
    task = data.split(data.make_dataset(x, np.arange(8) % 2), private=3, public=3)
    assert len(task.test) == 2


def test_the_number_of_classes_is_read_from_the_labels_of_both_parts():
    x = np.zeros((3, 2))
    assert data.make_dataset(x, [0, 1, 2]).classes == 3
    assert data.make_dataset(x, [0, 0, 1], test=(x[:1], [2])).classes == 3
    with pytest.warns(UserWarning, match="all labels are 0: there is one class"):
        assert data.make_dataset(x, [0, 0, 0]).classes == 2  # one class alone is no task
    assert data.make_dataset(x, [0, 1, 2], 7).classes == 7


NAN = [[0.0, math.nan], [0.0, 0.0]]
TWO = [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((TWO, [0, 1, 1]), {}), "x has 2 samples but 3 labels"),
        (((TWO, [0, 1]), {"test": (TWO, [0])}), "test has 2 samples but 1 labels"),
        (
            ((TWO, [0.0, 1.0]), {}),
            "y must be class numbers 0, 1, ... in one dimension, not float64 (2,)",
        ),
        (
            ((TWO, [0, -1]), {}),
            "y has 1 label below 0 (first: -1 at sample 1); leave these samples out, or number"
            " them",
        ),
        (
            ((TWO, [[0], [1]]), {}),
            "y must be class numbers 0, 1, ... in one dimension, not int64 (2, 1)",
        ),
        (((TWO, [0, 1]), {"test": (TWO, ["a", "b"])}), "test y must be class numbers"),
        (((NAN, [0, 1]), {}), "x has 1 value that is not finite"),
        (((TWO, [0, 1]), {"public": [[0.0, math.inf]]}), "public has 1 value that is not finite"),
        (((TWO, [0, 1]), {"test": (NAN, [0, 1])}), "test x has 1 value that is not finite"),
        (
            (([1.0, 2.0], [0, 1]), {}),
            "x must be numbers [S, features] or images [S, H, W(, channels)]",
        ),
        (((np.zeros((0, 2)), []), {}), "x is empty; give it at least one sample"),
        ((([["a"], ["b"]], [0, 1]), {}), "x must be numbers [S, features]"),
        (((TWO, [0, 1]), {"public": [[1.0]]}), "public has samples of shape (1,), x of shape (2,)"),
        (
            ((TWO, [0, 1]), {"test": ([[1.0]], [0])}),
            "test x has samples of shape (1,), x of shape (2,)",
        ),
        (((TWO, [0, 4], 3), {}), "labels go up to 4, so there are at least 5 classes, not 3"),
    ],
)
def test_arrays_that_make_no_data_set_are_a_mistake(arguments, said):
    positional, named = arguments
    with pytest.raises(UserError) as caught:
        data.make_dataset(*positional, **named)
    assert said in str(caught.value)


# --- npz files ---


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "my.npz", **arrays)
    return str(folder / "my.npz")


def test_an_npz_with_x_and_y_is_a_data_set(tmp_path):
    path = saved(tmp_path, x=TWO, y=[0, 1])
    for name in (path, f"npz:{path}"):
        made = data.load_dataset(name)
        assert made.x.tolist() == TWO
        assert made.y.tolist() == [0, 1]
        assert (made.classes, made.test, made.public) == (2, None, None)


def test_an_npz_may_bring_its_test_set_public_set_and_number_of_classes(tmp_path):
    made = data.load_dataset(
        saved(tmp_path, x=TWO, y=[0, 1], x_test=[[5, 5]], y_test=[2], x_public=[[7, 8]], classes=4)
    )
    assert made.test is not None
    assert made.public is not None
    assert made.test[0].tolist() == [[5, 5]]
    assert made.test[1].tolist() == [2]
    assert made.public.tolist() == [[7, 8]]
    assert made.classes == 4


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": TWO}, "has no array 'y'; it needs x and y (found: x)"),
        ({"a": TWO, "y": [0, 1]}, "has no array 'x'; it needs x and y (found: a, y)"),
        ({"x": TWO, "y": [0, 1, 0]}, "x has 2 samples but 3 labels"),
        ({"x": TWO, "y": [0.5, 1.0]}, "y must be class numbers"),
        ({"x": NAN, "y": [0, 1]}, "x has 1 value that is not finite"),
        (
            {"x": np.array([{}, {}]), "y": [0, 1]},
            "my.npz: x holds Python objects, not numbers; save an array",
        ),
        ({"x": TWO, "y": [0, 1], "classes": ["cat", "dog"]}, "classes"),
    ],
)
def test_an_npz_with_the_wrong_arrays_is_a_mistake(tmp_path, arrays, said):
    with pytest.raises(UserError) as caught:
        data.load_dataset(saved(tmp_path, **arrays))
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"^no such file: .*nowhere\.npz$"):
        data.load_dataset(f"npz:{tmp_path}/nowhere.npz")


@pytest.mark.parametrize("content", [b"", b"not an npz at all", b"PK\x03\x04 but cut short"])
def test_a_file_that_is_no_npz_is_named(tmp_path, content):
    path = tmp_path / "odd.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"odd\.npz is not an npz file; write one"):
        data.load_dataset(
            str(path)
        )  # (a file left open would be a ResourceWarning, and so an error)


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_UNPACKED", 2**20)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((2**19, 4), np.uint8), y=np.arange(2**19) % 2)
    with pytest.raises(
        UserError, match=r"bomb.npz has [\d,]+ bytes and would unpack to 6,\d{3},\d"
    ):
        data.load_dataset(str(path))
    monkeypatch.setattr(arrays, "MOST_UNPACKED", 2**23)
    assert len(data.load_dataset(str(path)).x) == 2**19


def test_a_device_is_not_read_as_a_data_set():
    with pytest.raises(UserError, match="/dev/zero is not a plain file"):
        data.load_dataset("npz:/dev/zero")


@pytest.mark.parametrize("label", [1001, 2**40, 2**63 - 1])
def test_a_label_far_beyond_the_others_is_refused(label, tmp_path):
    y = np.arange(20) % 3
    y[0] = label
    np.savez(tmp_path / "far.npz", x=np.zeros((20, 4)), y=y)
    with pytest.raises(UserError, match=f"labels go up to {label}, but only 4 different ones"):
        data.load_dataset(str(tmp_path / "far.npz"))


def test_a_single_saved_array_is_no_npz(tmp_path):
    with (tmp_path / "odd.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UserError, match="is not an npz file"):
        data.load_dataset(str(tmp_path / "odd.npz"))


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError) as caught:
        data.load_dataset("digit")
    assert (
        str(caught.value) == "unknown dataset 'digit'; did you mean 'digits'? (fedsift ls datasets)"
    )


# --- the split ---


@given(st.data(), st.integers(3, 50), st.integers(0, 1000))
def test_the_parts_never_overlap_and_have_the_sizes_asked_for(d, samples, seed):
    private = d.draw(st.integers(1, samples - 2))
    public = d.draw(st.integers(1, samples - private - 1))
    left = samples - private - public
    test = d.draw(st.one_of(st.none(), st.integers(1, left)))
    task = data.split(rows(samples), private, public, test, seed)
    assert (len(task.private), len(task.public), len(task.test)) == (private, public, test or left)
    everyone = numbers(task.private) + numbers(task.public) + numbers(task.test)
    assert len(set(everyone)) == len(everyone)
    if test is None:
        assert sorted(everyone) == list(range(samples))


def test_labels_stay_with_their_samples():
    task = data.split(rows(20), 8, 5)
    for part in (task.private, task.test):
        assert part.labels.tolist() == [i % 3 for i in numbers(part)]
        assert part.targets.sum(1).tolist() == [1.0] * len(part)


def test_equal_seeds_give_equal_splits_and_others_do_not():
    one, again, other = (data.split(rows(40), 20, 10, seed=seed) for seed in (1, 1, 2))
    assert numbers(one.private) == numbers(again.private)
    assert numbers(one.private) != numbers(other.private)


def test_the_public_part_has_no_labels_at_all():
    public = data.split(rows(20), 8, 5).public
    assert [f.name for f in fields(public)] == ["store", "rows"]
    assert [f.name for f in fields(public.store)] == ["values", "mean", "std", "vocabulary"]
    assert not any(hasattr(public, name) for name in ("labels", "targets", "y"))


def test_the_public_part_does_not_depend_on_any_label():
    one = data.split(rows(20), 8, 5, normalise="standard").public
    x = rows(20).x
    other = data.split(
        data.make_dataset(x, np.zeros(20, int), 2), 8, 5, normalise="standard"
    ).public
    assert torch.equal(one.tensor(), other.tensor())


def test_an_official_test_set_is_used_and_the_rest_is_left_alone():
    task = data.split(rows(10, test=([[100, 0], [101, 0], [102, 0]], [2, 1, 0])), 4, 3)
    assert sorted(zip(numbers(task.test), task.test.labels.tolist(), strict=True)) == [
        (100, 2),
        (101, 1),
        (102, 0),
    ]
    assert max(numbers(task.private) + numbers(task.public)) < 10


def test_an_official_public_set_is_used_and_leaves_all_of_x_to_the_others():
    task = data.split(rows(10, public=[[100, 0], [101, 0], [102, 0]]), 9, 2)
    assert set(numbers(task.public)) < {100, 101, 102}
    assert sorted(numbers(task.private) + numbers(task.test)) == list(range(10))


def test_where_both_are_official_the_private_part_may_be_all_of_x():
    task = data.split(rows(4, public=[[9, 9]], test=([[8, 8]], [0])), 4, 1)
    assert (sorted(numbers(task.private)), numbers(task.public), numbers(task.test)) == (
        [0, 1, 2, 3],
        [9],
        [8],
    )


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((8, 3), "11 samples asked for (private 8 + public 3), 10 there"),
        ((0, 3), "the private part needs at least one sample, not 0"),
        ((3, 0), "the public part needs at least one sample, not 0"),
        (
            (6, 4),
            "0 samples left for the test part, at least 1 needed; make private or public smaller",
        ),
        ((6, 3, 2), "1 samples left for the test part, 2 needed; make private or public smaller"),
    ],
)
def test_sizes_that_do_not_fit_are_a_mistake(sizes, said):
    with pytest.raises(UserError) as caught:
        data.split(rows(10), *sizes)
    cure = "; no public set? hold out unlabelled samples"
    assert str(caught.value).partition(cure)[0] == said
    assert ("#no-public-set" in str(caught.value)) == (sizes in ((8, 3), (3, 0)))


@pytest.mark.parametrize("test", [0, -1])
def test_a_test_part_of_nothing_is_a_mistake(test):
    with pytest.raises(UserError, match="test part"):
        data.split(rows(10), 4, 3, test)


def test_more_public_samples_than_the_official_set_has_is_a_mistake():
    with pytest.raises(UserError, match=r"^3 public samples asked for, 2 there$"):
        data.split(rows(10, public=[[1, 1], [2, 2]]), 4, 3)


def test_more_test_samples_than_the_official_set_has_is_a_mistake():
    with pytest.raises(UserError, match="1 samples left for the test part, 2 needed"):
        data.split(rows(10, test=([[1, 1]], [0])), 4, 3, 2)


# --- normalisation ---


def test_standard_figures_come_from_the_public_part_alone():
    # Public column 0 is 2 and 6: mean 4, deviation 2. Column 1 is constant: only centred. 1,000
    # plays no part.
    mine = data.make_dataset(
        [[10, 5], [1000, 5]], [0, 1], public=[[2, 5], [6, 5]], test=([[0, 7]], [0])
    )
    task = data.split(mine, 2, 2, normalise="standard")
    assert sorted(task.public.tensor().tolist()) == [[-1.0, 0.0], [1.0, 0.0]]
    assert sorted(task.private.samples.tensor().tolist()) == [[3.0, 0.0], [498.0, 0.0]]
    assert task.test.samples.tensor().tolist() == [[-2.0, 2.0]]


def test_standard_is_per_channel_of_images():
    # Channel 0 of the public images: 0, 2, 4, 6: mean 3, variance 5. Channel 1: 1, 1, 9, 9: mean 5,
    # deviation 4.
    public = np.array([[[[0, 2]], [[1, 1]]], [[[4, 6]], [[9, 9]]]])  # [2 images, 2 channels, 1, 2]
    mine = data.make_dataset(np.full((2, 2, 1, 2), 13), [0, 1], public=public)
    image = data.split(mine, 1, 2, normalise="standard").private.samples.tensor()[0]
    assert image[0].flatten().tolist() == pytest.approx([10 / math.sqrt(5)] * 2)
    assert image[1].flatten().tolist() == pytest.approx([2.0] * 2)


def test_standard_figures_of_many_samples_are_numpys():
    public = np.random.default_rng(0).integers(
        0, 256, (2500, 3, 4, 4), np.uint8
    )  # more than are taken at a time
    store = data.split(
        data.make_dataset(public[:5], [0, 1, 2, 3, 4], public=public), 4, 2500, normalise="standard"
    ).public.store
    assert store.mean.ravel().tolist() == pytest.approx(public.mean((0, 2, 3)).tolist(), rel=1e-6)
    assert store.std.ravel().tolist() == pytest.approx(public.std((0, 2, 3)).tolist(), rel=1e-6)


def test_scale_divides_by_the_largest_public_value():
    mine = data.make_dataset(
        [[10, -5], [0, 2]], [0, 1], public=[[2, -8], [6, 4]], test=([[8, 16]], [0])
    )
    task = data.split(mine, 2, 2, normalise="scale")
    assert sorted(task.private.samples.tensor().tolist()) == [[0.0, 0.25], [1.25, -0.625]]
    assert task.test.samples.tensor().tolist() == [[1.0, 2.0]]


def test_a_public_part_of_zeros_scales_nothing():
    mine = data.make_dataset([[3, 4], [3, 4]], [0, 1], public=[[0, 0]])
    assert data.split(mine, 1, 1, normalise="scale").private.samples.tensor().tolist() == [
        [3.0, 4.0]
    ]


def test_digits_scaled_lie_between_zero_and_one_and_stay_bytes_in_the_store():
    task = data.split(data.digits(), 800, 500, normalise="scale")
    x = task.public.tensor()
    assert (x.dtype, x.min().item(), x.max().item()) == (torch.float32, 0.0, 1.0)
    assert task.public.store.values.dtype == torch.uint8
    assert task.public.store is task.private.samples.store is task.test.samples.store


def test_digits_standardised_have_mean_zero_and_deviation_one_on_the_public_part():
    x = data.split(data.digits(), 800, 500, normalise="standard").public.tensor()
    assert x.mean().item() == pytest.approx(0, abs=1e-5)
    assert x.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_an_unknown_normalisation_gets_the_nearest():
    with pytest.raises(UserError, match="unknown normalisation 'standrd'; did you mean 'standard'"):
        data.split(rows(10), 4, 3, normalise="standrd")


# --- new inputs ---


@pytest.mark.parametrize("normalise", ["scale", "standard"])
@pytest.mark.parametrize("shape", [(60, 5), (60, 6, 6), (60, 6, 6, 3), (60, 3, 6, 6)])
def test_new_inputs_are_normalised_as_those_of_the_task(shape, normalise):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    task = data.split(data.make_dataset(x, np.arange(60) % 3), 20, 20, normalise=normalise)
    expected = task.test.samples.tensor()
    given = task.normalise(x[task.test.samples.rows])
    assert given.dtype == torch.float32 and torch.equal(given, expected)
    assert torch.equal(task.normalise(torch.from_numpy(x)[:1]), task.normalise(x)[:1])


def test_new_inputs_of_another_shape_are_an_error():
    task = data.split(data.digits(), 20, 20)
    with pytest.raises(UserError, match=r"shape \(1, 9, 9\), the task of shape \(1, 8, 8\)"):
        task.normalise(np.zeros((2, 9, 9)))
    with pytest.raises(UserError, match="the first dimension of x counts the samples"):
        task.normalise(data.digits().x[0, 0])
