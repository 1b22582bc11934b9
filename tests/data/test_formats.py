"""Readers of the official formats, on small files written here byte by byte, whole, damaged and
hostile.
"""

import contextlib
import gzip
import os
import pickle
import struct
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedsift.data.formats import cifar, idx, mat, pickles, stl10
from fedsift.data.formats.folder import Folder, Missing, unpack
from fedsift.types import Array, UserError
from tests.helpers.data_files import (
    archive,
    batch,
    bytes_like,
    idx_bytes,
    images,
    pictures,
    write_idx,
)

LIMIT = 1 << 20


def folder(path: Path, *inner: str, limit: int = LIMIT) -> Folder:
    return Folder(path, limit, inner)


def said(read, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        read(*arguments)
    return str(caught.value)


# --- CIFAR, python version ---


def test_the_batches_written_here_are_what_pickle_itself_would_read():
    x, y = images(3), [6, 9, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy.core has moved since these files were made
        found = pickle.loads(batch(x, y), encoding="bytes")
    ours = pickles.read(batch(x, y), "a")
    assert (found[b"data"] == ours["data"]).all() and (ours["data"] == x.reshape(3, -1)).all()
    assert found[b"labels"] == ours["labels"] == y
    assert [name.decode() for name in found[b"filenames"]] == ours["filenames"]


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar10_python_batches_are_joined_in_their_order(tmp_path, inner):
    x, y = images(12), [int(label) for label in np.arange(12) % 10]
    (tmp_path / inner).mkdir(exist_ok=True)
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        (tmp_path / inner / f"data_batch_{number + 1}").write_bytes(batch(x[part], y[part]))
    (tmp_path / inner / "test_batch").write_bytes(batch(x[10:], y[10:]))
    found = cifar.ten(folder(tmp_path, inner))
    assert (found["x"] == x[:10]).all() and found["y"].tolist() == y[:10]
    assert (found["x_test"] == x[10:]).all() and found["y_test"].tolist() == y[10:]
    assert {array.dtype for array in found.values()} == {np.dtype(np.uint8)}


def test_cifar100_has_its_fine_labels(tmp_path):
    x = images(3)
    (tmp_path / "train").write_bytes(batch(x[:2], [99, 7], "fine_labels"))
    (tmp_path / "test").write_bytes(batch(x[2:], [13], "fine_labels"))
    found = cifar.hundred(folder(tmp_path))
    assert found["y"].tolist() == [99, 7] and found["y_test"].tolist() == [13]
    (tmp_path / "test").write_bytes(batch(x[2:], [13], "coarse_labels"))
    assert said(cifar.hundred, folder(tmp_path)) == (
        "test is not a CIFAR batch: it needs data [S, 3072] and a list of fine_labels"
    )


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_does_not(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": Hostile(), "labels": []}, protocol)
    assert "which no CIFAR batch needs" in said(pickles.read, content, "batch")
    assert not Path("owned").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pickle.loads(content)
    assert Path("owned").exists()  # it would have


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "pickle exhausted before seeing STOP"),
        (b"\x80\x02}.x", None),
        (b"K\x01.", "'int' object has no attribute 'items'"),
        (b"\x80\x02}q\x01r\xff\xff\xff\x7f.", None),  # a memo slot far out: 34 GB in C's unpickler
        (
            b"}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
            "a key that is not text",
        ),  # hashing it would overflow the stack
        (b"N" * 2_000_005 + b".", "far too many instructions"),
        (b"}(K\x01u.", None),
        (b"(K\x01K\x02t.", "'tuple' object has no attribute 'items'"),
        (b"\x85.", "more values than there are"),
        (b"K\x01K\x02a.", "treats a int as a list"),
        (b"}cnumpy\nload\nK\x01s.", "'numpy load'"),
        (b"}U\x04dataU\x01a(K\x01tRs.", None),
        (b"T\xff\xff\xff\x7fabc", "expected 2147483647 bytes"),
    ],
)
def test_odd_pickles_end_in_a_mistake_or_a_dictionary(content, complaint):
    if complaint:
        assert complaint in said(pickles.read, content, "batch")
    else:
        try:
            assert isinstance(pickles.read(content, "batch"), dict)
        except UserError as error:
            assert str(error).startswith("batch is not a CIFAR batch")


@given(st.data())
def test_a_changed_or_cut_batch_never_does_anything_but_a_mistake(d):
    content = bytearray(batch(images(1), [3]))
    for place in d.draw(
        st.lists(st.integers(0, 250) | st.integers(3300, len(content) - 1), min_size=1, max_size=4)
    ):
        content[place] = d.draw(st.integers(0, 255))
    cut = d.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        with contextlib.suppress(UserError):
            found = pickles.read(damaged, "batch")
            arrays = [value for value in found.values() if isinstance(value, np.ndarray)]
            assert all(a.dtype == np.uint8 and a.nbytes <= len(damaged) for a in arrays)


def test_an_array_that_is_not_of_bytes_is_refused():
    assert "its array is not of bytes" in said(
        pickles.read, batch(images(1), [3]).replace(b"u1", b"i8"), "batch"
    )


# --- CIFAR, binary version, and as pictures ---


def records(x: Array, *labels: list[int]) -> bytes:
    return np.concatenate(
        [*(np.array(ls, np.uint8)[:, None] for ls in labels), x.reshape(len(x), -1)], 1
    ).tobytes()


def test_binary_batches_are_read_too(tmp_path):
    x = images(6)
    for number in range(5):
        (tmp_path / f"data_batch_{number + 1}.bin").write_bytes(
            records(x[number : number + 1], [number])
        )
    (tmp_path / "test_batch.bin").write_bytes(records(x[5:], [9]))
    found = cifar.ten(folder(tmp_path))
    assert (
        (found["x"] == x[:5]).all()
        and found["y"].tolist() == [0, 1, 2, 3, 4]
        and found["y_test"].tolist() == [9]
    )
    (tmp_path / "data_batch_3.bin").write_bytes(records(x[:2], [1, 2])[:-1])
    assert "data_batch_3.bin has 6,145 bytes, which is no whole number of records of 3073" in said(
        cifar.ten, folder(tmp_path)
    )


def test_of_the_two_labels_of_binary_cifar100_the_second_is_the_fine_one(tmp_path):
    x = images(3)
    (tmp_path / "train.bin").write_bytes(records(x[:2], [19, 3], [99, 14]))
    (tmp_path / "test.bin").write_bytes(records(x[2:], [1], [42]))
    found = cifar.hundred(folder(tmp_path))
    assert found["y"].tolist() == [99, 14] and found["y_test"].tolist() == [42]
    assert (found["x"] == x[:2]).all() and (found["x_test"] == x[2:]).all()


def test_pictures_of_rows_give_the_same_arrays(tmp_path):
    x = images(6)
    pictures(tmp_path, x, [3, 8, 8, 0, 6, 1])
    found = cifar.ten_as_pictures(folder(tmp_path))
    assert (found["x"] == x[:5]).all() and (found["x_test"] == x[5:]).all()
    assert found["y"].tolist() == [3, 8, 8, 0, 6] and found["y_test"].tolist() == [1]


@pytest.mark.parametrize(
    "labels", ["[1, 2.5]", "[-1]", "[256]", "{}", "[true]", "not json", "[" * 100_000]
)
def test_labels_that_are_none_are_refused(tmp_path, labels):
    pictures(tmp_path, images(6), [0] * 6)
    (tmp_path / "test_lables.json").write_text(labels)
    assert said(cifar.ten_as_pictures, folder(tmp_path)).startswith("test_lables.json ")


def test_a_picture_of_another_width_is_refused(tmp_path):
    pictures(tmp_path, images(6), [0] * 6)
    Image.new("RGB", (1000, 1)).save(tmp_path / "data_batch_2.png")
    assert said(cifar.ten_as_pictures, folder(tmp_path)) == (
        "data_batch_2.png must be a colour picture 1,024 pixels wide; it is 1000 wide"
    )


# --- IDX ---


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_plain_or_packed(tmp_path, packed):
    x, y = bytes_like(4, 28, 28), np.array([5, 0, 4, 7], np.uint8)
    write_idx(tmp_path, x, y, packed)
    found = idx.mnist(folder(tmp_path))
    assert found["x"].shape == (3, 1, 28, 28) and (found["x"][:, 0] == x[:3]).all()
    assert (found["x_test"][:, 0] == x[3:]).all()
    assert found["y"].tolist() == [5, 0, 4] and found["y_test"].tolist() == [7]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an IDX file of bytes in 3 dimensions"),
        (bytes([0, 0, 8, 3, 0, 0]), "is not an IDX file of bytes in 3 dimensions"),
        (idx_bytes(bytes_like(2, 2)), "is not an IDX file of bytes in 3 dimensions"),
        (
            bytes([0, 0, 13, 3]) + bytes(12),
            "is not an IDX file of bytes in 3 dimensions",
        ),  # 13: floats
        (
            idx_bytes(bytes_like(1, 28, 28), (60_000, 28, 28)),
            "says it has 47,040,000 bytes of data, but it has 784",
        ),
        (idx_bytes(bytes_like(1, 2, 2), (2**32 - 1,) * 3), "but it has 4"),
        (idx_bytes(bytes_like(1, 2, 2)) + b"more", "says it has 4 bytes of data, but it has 8"),
        (bytes(LIMIT + 1), "is larger than the 1,048,576 bytes such a file can have"),
    ],
)
def test_idx_files_that_lie_are_refused(tmp_path, content, complaint):
    write_idx(tmp_path, bytes_like(3, 28, 28), np.zeros(3, np.uint8))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    assert complaint in said(idx.mnist, folder(tmp_path))


def test_a_packed_bomb_stops_at_the_limit(tmp_path):
    write_idx(tmp_path, bytes_like(3, 28, 28), np.zeros(3, np.uint8), packed=True)
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 100_000
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    assert "train-images-idx3-ubyte.gz is larger than" in said(idx.mnist, folder(tmp_path))


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-9], lambda packed: b"no gzip", lambda packed: b""]
)
def test_a_damaged_packed_file_is_named(tmp_path, damage):
    write_idx(tmp_path, bytes_like(3, 28, 28), np.zeros(3, np.uint8), packed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert "t10k-images-idx3-ubyte" in said(idx.mnist, folder(tmp_path))


def test_a_missing_file_is_named(tmp_path):
    write_idx(tmp_path, bytes_like(3, 28, 28), np.zeros(3, np.uint8))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        Missing, match=r"no file t10k-labels-idx1-ubyte \(or t10k-labels-idx1-ubyte\.gz\) in "
    ):
        idx.mnist(folder(tmp_path))


# --- STL-10 ---


def by_columns(x: Array) -> bytes:
    return x.transpose(0, 1, 3, 2).tobytes()


def write_stl10(path: Path, x: Array, labels: list[int]) -> None:
    """Two training images, one test image, the rest without labels."""
    (path / "train_X.bin").write_bytes(by_columns(x[:2]))
    (path / "test_X.bin").write_bytes(by_columns(x[2:3]))
    (path / "unlabeled_X.bin").write_bytes(by_columns(x[3:]))
    (path / "train_y.bin").write_bytes(bytes(labels[:2]))
    (path / "test_y.bin").write_bytes(bytes(labels[2:]))


def test_stl10_images_stand_upright_and_labels_start_at_zero(tmp_path):
    x = bytes_like(5, 3, 96, 96)
    write_stl10(tmp_path, x, [1, 10, 4])
    found = stl10.stl10(folder(tmp_path))
    assert (
        (found["x"] == x[:2]).all()
        and (found["x_test"] == x[2:3]).all()
        and (found["x_public"] == x[3:]).all()
    )
    assert found["y"].tolist() == [0, 9] and found["y_test"].tolist() == [3]


def test_stl10_files_of_odd_sizes_or_labels_are_refused(tmp_path):
    x = bytes_like(4, 3, 96, 96)
    write_stl10(tmp_path, x, [1, 11, 4])
    assert said(stl10.stl10, folder(tmp_path)) == "train_y.bin has labels outside 1 to 10"
    write_stl10(tmp_path, x, [1, 10, 4])
    (tmp_path / "unlabeled_X.bin").write_bytes(by_columns(x)[:-5])
    assert "unlabeled_X.bin has 110,587 bytes, which is no whole number of images" in said(
        stl10.stl10, folder(tmp_path)
    )


# --- MATLAB 5 ---


def element(kind: int, data: bytes) -> bytes:
    """A tag and its bytes, filled up to eight; up to four bytes go into the tag itself."""
    if 0 < len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def variable(name: str, x: Array, kind: int = 2, matlab_class: int = 9) -> bytes:
    flags = element(6, struct.pack("<II", matlab_class, 0))
    sizes = element(5, struct.pack(f"<{x.ndim}i", *x.shape))
    return element(
        14, flags + sizes + element(1, name.encode()) + element(kind, x.tobytes(order="F"))
    )


def compressed(content: bytes) -> bytes:
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed


def mat_file(*elements: bytes) -> bytes:
    return b"MATLAB 5.0 MAT-file, written by a test".ljust(124) + b"\x00\x01IM" + b"".join(elements)


def write_svhn(path: Path, x: Array, y: list[int]) -> None:
    """The last image is the test set. Training labels are bytes, test labels doubles: both are in
    use.
    """
    labels = np.array(y)[:, None]
    train = [variable("X", x[..., :-1]), variable("y", labels[:-1].astype(np.uint8))]
    (path / "train_32x32.mat").write_bytes(mat_file(*map(compressed, train)))
    test = [variable("X", x[..., -1:]), variable("y", labels[-1:].astype(float), 9, 6)]
    (path / "test_32x32.mat").write_bytes(mat_file(*test))


def test_svhn_images_stand_upright_and_ten_means_zero(tmp_path):
    x = bytes_like(32, 32, 3, 4)
    write_svhn(tmp_path, x, [10, 1, 9, 10])
    found = mat.svhn(folder(tmp_path))
    assert (found["x"] == x[..., :3].transpose(3, 2, 0, 1)).all()
    assert found["x"][2, 1, 5, 7] == x[5, 7, 1, 2]
    assert found["y"].tolist() == [0, 1, 9] and found["y_test"].tolist() == [0]


SMALL = bytes_like(2, 3)
PLAIN = variable("X", SMALL)


def test_arrays_of_a_mat_file_are_found_by_name():
    found = mat.variables(
        mat_file(PLAIN, compressed(variable("a", np.array([[7]], "<i4"), 5, 12))), "f", 1000
    )
    assert (found["X"] == SMALL).all() and found["a"].tolist() == [[7]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "it is not a MATLAB 5 file"),
        (mat_file(PLAIN)[:-60].replace(b"IM", b"MI"), "it is not a MATLAB 5 file"),
        (mat_file(PLAIN[:-8]), "does not fit where it stands"),
        (
            mat_file(struct.pack("<II", 14, 2**32 - 1)),
            "an element of 4,294,967,295 bytes does not fit",
        ),
        (
            mat_file(struct.pack("<HH", 1, 60_000) + bytes(4)),
            "an element of 60,000 bytes does not fit",
        ),
        (mat_file(b"\x0e\0\0"), "cannot read f: "),
        (mat_file(element(9, bytes(16))), "something that is not a plain array"),
        (mat_file(element(14, b"")), "something that is not a plain array"),
        (
            mat_file(variable("X", SMALL, 2, 1)),
            "an array that is not of real numbers",
        ),  # a cell array
        (mat_file(variable("X", SMALL, 99)), "an array that is not of real numbers"),
        (
            mat_file(PLAIN.replace(struct.pack("<ii", 2, 3), struct.pack("<ii", 2, 4))),
            "shape (2, 4) has 6 bytes",
        ),
        (
            mat_file(PLAIN.replace(struct.pack("<ii", 2, 3), struct.pack("<ii", -2, -3))),
            "shape (-2, -3) has 6 bytes",
        ),
        (mat_file(compressed(b"")), "or nothing"),
        (mat_file(compressed(compressed(PLAIN))), "something that is not a plain array"),
        (mat_file(struct.pack("<II", 15, 4) + b"junk"), "incorrect header check"),
        (mat_file(compressed(bytes(32 << 20))), "cut short or far too large"),  # a bomb
    ],
)
def test_mat_files_with_bad_tags_are_refused(content, complaint):
    assert complaint in said(mat.variables, content, "f", 1000)


@given(st.data())
def test_a_changed_or_cut_mat_file_never_does_anything_but_a_mistake(d):
    content = bytearray(mat_file(PLAIN, compressed(variable("y", SMALL))))
    for place in d.draw(st.lists(st.integers(120, len(content) - 1), min_size=1, max_size=4)):
        content[place] = d.draw(st.integers(0, 255))
    for damaged in (bytes(content), bytes(content[: d.draw(st.integers(0, len(content)))])):
        with contextlib.suppress(UserError):
            found = mat.variables(damaged, "f", 1000)
            assert all(a.dtype.kind in "iuf" and a.nbytes <= 1000 for a in found.values())


def test_svhn_without_its_arrays_is_refused(tmp_path):
    write_svhn(tmp_path, bytes_like(32, 32, 3, 3), [1, 2, 3])
    (tmp_path / "test_32x32.mat").write_bytes(mat_file(PLAIN))
    assert (
        said(mat.svhn, folder(tmp_path))
        == "test_32x32.mat needs X, 32 x 32 x 3 x S bytes, and y with S labels"
    )
    write_svhn(tmp_path, bytes_like(32, 32, 3, 3), [1, 2, 0])
    assert said(mat.svhn, folder(tmp_path)) == "test_32x32.mat has labels outside 1 to 10"


# --- archives ---


def test_only_the_files_asked_for_leave_an_archive_and_only_into_a_folder_of_ours(tmp_path):
    path = archive(
        tmp_path / "a.tar.gz",
        {
            "../../escaped/train": b"one",
            "/tmp/../absolute/test": b"two",
            "c/other": b"three",
            "../stray": b"four",
        },
    )
    with unpack(path, {"train", "test"}, 100, 10_000) as found:
        assert (found.read("train"), found.read("test")) == (b"one", b"two")
        assert sorted(file.name for file in found.path.iterdir()) == ["test", "train"]
    assert not found.path.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]
    assert not (tmp_path.parent / "escaped").exists() and not (tmp_path.parent / "stray").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_what_is_no_plain_file_stays_in_the_archive(tmp_path, kind):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    info = tarfile.TarInfo("train")
    info.type, info.linkname = kind, str(secret)
    with unpack(archive(tmp_path / "a.tar.gz", {"train": info}), {"train"}, 100, 10_000) as found:
        assert list(found.path.iterdir()) == []


def test_a_file_too_large_or_an_archive_that_grows_is_refused(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {"train": bytes(101)})
    assert "'train' in the archive is larger than the 100 bytes" in said(
        unpack(path, {"train"}, 100, 10_000).__enter__
    )
    path = archive(tmp_path / "b.tar.gz", {"huge": bytes(32 << 20), "train": b"x"})
    assert path.stat().st_size < 100_000
    assert "unpacks to more than" in said(unpack(path, {"train"}, 100, 10_000).__enter__)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive", gzip.compress(b"not a tar" * 100)],
    ids=["empty", "text", "gzip"],  # gzip notes the time, and parallel workers must agree on names
)
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    assert "a.tar.gz as a .tar.gz archive" in said(unpack(path, {"train"}, 100, 10_000).__enter__)


def test_a_cut_archive_is_named(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {"train": bytes_like(2000).tobytes()})
    path.write_bytes(path.read_bytes()[:-700])
    assert "a.tar.gz as a .tar.gz archive" in said(unpack(path, {"train"}, 3000, 10_000).__enter__)
