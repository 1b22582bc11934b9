from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedsift import data
from fedsift.data import images
from fedsift.types import UserError


def square(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.uint8)[None, None]


# --- resizing ---


def test_a_third_of_the_size_is_the_mean_of_blocks_of_nine():
    x = np.random.default_rng(0).integers(0, 256, (5, 3, 96, 96), np.uint8)
    blocks = x.reshape(5, 3, 32, 3, 32, 3).astype(np.float64).mean((3, 5))
    assert (images.resize(x, 32, 32) == np.rint(blocks)).all()  # a mean of nine is never half way


def test_parts_of_pixels_count_in_proportion():
    # Three pixels become two: the middle one is shared. (2 * 0 + 1 * 30) / 3 = 10 and (1 * 30 + 2 *
    # 60) / 3 = 50.
    assert images.resize(square([0, 30, 60]), 1, 2).tolist() == [[[[10, 50]]]]
    # Two become three: the new middle one covers half of each.
    assert images.resize(square([10, 40]), 1, 3).tolist() == [[[[10, 25, 40]]]]
    # Rows and columns at once: the mean of all four, 2.5, is rounded up.
    assert images.resize(square([1, 2], [3, 4]), 1, 1).tolist() == [[[[3]]]]


def test_twice_the_size_repeats_every_pixel():
    x = np.random.default_rng(0).integers(0, 256, (2, 1, 4, 4), np.uint8)
    assert (images.resize(x, 8, 8) == x.repeat(2, 2).repeat(2, 3)).all()


def test_numbers_that_are_not_bytes_are_not_rounded():
    assert images.resize(np.array([[[[0.0, 1.0]]]], np.float32), 1, 1).tolist() == [[[[0.5]]]]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 100))
def test_resized_rows_are_exact_whatever_the_sizes(old, new, seed):
    x = np.random.default_rng(seed).integers(0, 256, (1, 1, 1, old), np.uint8)
    exact = []
    for pixel in range(new):
        start, end = Fraction(pixel * old, new), Fraction((pixel + 1) * old, new)
        edges = [(max(start, Fraction(i)), min(end, Fraction(i + 1))) for i in range(old)]
        covered = [max(right - left, Fraction(0)) for left, right in edges]
        exact.append(
            sum(c * int(v) for c, v in zip(covered, x.ravel(), strict=True)) / (end - start)
        )
    assert images.resize(x, 1, new).ravel().tolist() == [(2 * v + 1) // 2 for v in exact]


def test_many_images_come_out_as_one_by_one():
    x = np.random.default_rng(0).integers(0, 256, (2100, 1, 3, 3), np.uint8)
    whole = images.resize(x, 2, 2)
    assert all(
        (images.resize(x[i : i + 1], 2, 2) == whole[i : i + 1]).all() for i in (0, 999, 1000, 2099)
    )


# --- channels and values ---


def test_grey_becomes_colour_and_colour_grey():
    assert images.convert_channels(square([7]), 3).tolist() == [[[[7]], [[7]], [[7]]]]
    colours = np.array(
        [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 20, 30]], np.uint8
    )[..., None, None]
    # 0.299, 0.587 and 0.114 of 255 are 76.2, 149.7 and 29.1; 2.99 + 11.74 + 3.42 = 18.15
    assert images.convert_channels(colours, 1).ravel().tolist() == [76, 150, 29, 255, 18]


def test_other_channels_are_a_mistake():
    with pytest.raises(UserError, match="images with 2 channels cannot be made to have 3"):
        images.convert_channels(np.zeros((1, 2, 4, 4), np.uint8), 3)


def test_values_come_into_the_range_of_the_private_set():
    bytes_, digits, unit = (
        square([0, 100, 255]),
        square([0, 8, 16]),
        square([0, 1, 1]).astype(np.float32),
    )
    assert images.fit_images(bytes_, digits).tolist() == [[[[0, 6, 16]]]]  # 100 * 16 / 255 = 6.27
    assert images.fit_images(digits, bytes_).tolist() == [[[[0, 128, 255]]]]  # 8 * 255 / 16 = 127.5
    assert images.fit_images(bytes_, unit).ravel().tolist() == pytest.approx([0, 100 / 255, 1])
    assert images.fit_images(unit, bytes_).ravel().tolist() == [0, 255, 255]


def test_photographs_keep_their_values_also_where_none_is_quite_white():
    dim, bright = square([0, 17, 254]), square([0, 0, 255])
    assert (images.fit_images(dim, bright) == dim).all()


def test_ranges_and_shapes_that_cannot_be_matched_are_a_mistake():
    with pytest.raises(UserError, match="from 0 to 1 or from 0 to 255"):
        images.fit_images(square([1]), square([1]) - np.float32(2))
    with pytest.raises(UserError, match="needs images on both sides"):
        images.fit_images(square([1]), np.zeros((3, 4), np.uint8))


# --- pictures and sheets ---


def test_the_tiles_of_a_sheet_are_read_row_by_row(tmp_path):
    tiles = np.random.default_rng(0).integers(
        0, 256, (6, 3, 4, 5), np.uint8
    )  # 2 rows of 3 tiles, 4 x 5 pixels each
    sheet = tiles.reshape(2, 3, 3, 4, 5).transpose(0, 3, 1, 4, 2).reshape(8, 15, 3)
    Image.fromarray(sheet).save(tmp_path / "my sheet(1).png")
    assert (data.load_unlabelled(f"sheet:{tmp_path}/my sheet(1).png(4x5)") == tiles).all()


def test_tiles_are_square_and_of_32_pixels_unless_told_otherwise(tmp_path):
    Image.new("L", (64, 32)).save(tmp_path / "grey.png")
    assert data.load_unlabelled(f"sheet:{tmp_path}/grey.png").shape == (2, 1, 32, 32)
    assert data.load_unlabelled(f"sheet:{tmp_path}/grey.png(16)").shape == (8, 1, 16, 16)


def test_a_sheet_is_looked_for_here_and_then_in_the_data_folder(tmp_path, monkeypatch):
    """A sheet here goes before one of the same name there; the message on one that is nowhere names
    it as it was given.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("FEDSIFT_DATA", str(there))
    Image.new("L", (16, 16), 7).save(there / "sheet.png")
    assert (data.load_unlabelled("sheet:sheet.png(8)") == np.full((4, 1, 8, 8), 7)).all()
    public = data.add_public(data.digits(), "sheet:sheet.png(8)").public
    assert public is not None and public.max() == 7
    Image.new("L", (16, 8), 9).save(here / "sheet.png")
    assert (data.load_unlabelled("sheet:sheet.png(8)") == np.full((2, 1, 8, 8), 9)).all()
    public = data.add_public(data.digits(), "sheet:sheet.png(8)").public
    assert public is not None and public.max() == 9
    with pytest.raises(UserError, match=r"no\.png"):
        data.load_unlabelled("sheet:no.png")


def test_a_sheet_that_tiles_do_not_fill_is_a_mistake(tmp_path):
    Image.new("RGB", (64, 40)).save(tmp_path / "odd.png")
    with pytest.raises(
        UserError, match=r"has 40 x 64 pixels, which tiles of 32 x 32 do not fill; add their size"
    ):
        data.load_unlabelled(f"sheet:{tmp_path}/odd.png")


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n but cut", b"GIF89a"])
def test_a_file_that_is_no_picture_is_named(tmp_path, content):
    (tmp_path / "odd.png").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*odd\.png as a PNG or JPEG picture"):
        data.load_unlabelled(f"sheet:{tmp_path}/odd.png")


def test_a_cut_picture_and_a_missing_one_are_named(tmp_path):
    path = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"cannot read .*cut\.png"):
        images.read_pixels(path)
    with pytest.raises(UserError, match=r"^no such file: .*nowhere\.png"):
        images.read_pixels(tmp_path / "nowhere.png")


def test_a_picture_that_claims_too_many_pixels_is_refused_before_it_is_read(tmp_path):
    Image.new("1", (10_000, 8_001)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    with pytest.raises(UserError, match="more than 80,000,000 pixels"):
        images.read_pixels(tmp_path / "bomb.png")


# --- a public set from elsewhere ---


def test_a_sheet_becomes_the_public_set_and_the_others_stay_what_they_were(tmp_path):
    tiles = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(tiles.repeat(4, 0).repeat(4, 1)).save(
        tmp_path / "sheet.png"
    )  # one grey tile of 32 x 32
    both = data.add_public(data.digits(), f"sheet:{tmp_path}/sheet.png")
    assert both.public is not None
    assert both.public.shape == (1, 1, 8, 8)
    assert (both.public[0, 0] == np.floor((tiles.astype(int) * 2 * 16 + 255) / (2 * 255))).all()
    task = data.split(both, 1700, 1)
    assert (len(task.private), len(task.public), len(task.test)) == (1700, 1, 96)
    without = data.split(data.digits(), 1700, 1)
    assert (task.private.samples.rows == without.private.samples.rows).all()
    assert (task.test.samples.rows == without.test.samples.rows).all()
    assert len(data.split(both, 1796, 1).test) == 1  # none is left out where none would be left


def test_of_another_data_set_only_the_images_are_taken(tmp_path):
    x = np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8) % 17
    for name, labels in (("a", [0, 1, 2, 3, 4]), ("b", [4, 3, 2, 1, 0])):
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels)
    a, b = (data.add_public(data.digits(), f"npz:{tmp_path}/{name}.npz") for name in "ab")
    assert a.public is not None and b.public is not None
    assert (a.public == x[:, None]).all() and (b.public == a.public).all()
    assert a.classes == 10


def test_where_a_data_set_has_unlabelled_images_those_are_taken(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x=np.zeros((2, 8, 8), np.uint8),
        y=[0, 1],
        x_public=np.full((3, 8, 8), 16, np.uint8),
    )
    public = data.add_public(data.digits(), f"npz:{tmp_path}/a.npz").public
    assert public is not None and public.shape == (3, 1, 8, 8) and (public == 16).all()


def test_a_sheet_alone_is_no_data_set():
    with pytest.raises(
        UserError, match=r"sheet:a\.png has no labels, so it can only be a public set"
    ):
        data.load_dataset("sheet:a.png")
