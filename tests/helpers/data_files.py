"""Small files in the official formats of data sets, written byte by byte."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedsift.types import Array


def bytes_like(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def images(count: int, seed: int = 0) -> Array:
    return bytes_like(count, 3, 32, 32, seed=seed)


def text(value: str) -> bytes:
    """A short string as Python 2 pickled it."""
    return b"U" + bytes([len(value)]) + value.encode()


def batch(x: Array, y: list[int], key: str = "labels") -> bytes:
    """A CIFAR batch as Python 2 and protocol 2 wrote it: instruction by instruction."""
    rows = x.reshape(len(x), -1)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\n"
        b"q\x08K\x00\x85q\tU\x01bq\n\x87q\x0bRq\x0c"
    )
    shape = b"(K\x01" + b"".join(b"M" + struct.pack("<H", size) for size in rows.shape) + b"\x86q\r"
    dtype = (
        b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03U\x01|q\x12NNN"
        + b"J\xff\xff\xff\xff" * 2
    )
    values = b"K\x00tq\x13b\x89T" + struct.pack("<I", rows.size) + rows.tobytes() + b"q\x14tq\x15b"
    labels = b"]q\x05(" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    names = (
        b"]q\x17("
        + b"".join(text(f"frog_{number}.png") + b"q\x18" for number in range(len(y)))
        + b"e"
    )
    start = (
        b"\x80\x02}q\x01("
        + text("batch_label")
        + b"q\x02"
        + text("training batch 1 of 5")
        + b"q\x03"
    )
    data = text("data") + b"q\x06" + array + shape + dtype + values
    return (
        start + text(key) + b"q\x04" + labels + data + text("filenames") + b"q\x16" + names + b"u."
    )


def pictures(path: Path, x: Array, y: list[int]) -> None:
    """Five batches of one image and a test image, as rows of pixels."""
    for image, name in zip(
        x, [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"], strict=True
    ):
        Image.fromarray(image.transpose(1, 2, 0).reshape(1, 1024, 3)).save(path / f"{name}.png")
    (path / "train_lables.json").write_text(json.dumps(y[:5]))
    (path / "test_lables.json").write_text(json.dumps(y[5:]))


def idx_bytes(x: Array, sizes: tuple[int, ...] | None = None) -> bytes:
    sizes = sizes or x.shape
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + x.tobytes()


def write_idx(path: Path, x: Array, y: Array, packed: bool = False) -> dict[str, bytes]:
    """The last image is the test set."""
    content = {
        "train-images-idx3-ubyte": idx_bytes(x[:-1]),
        "train-labels-idx1-ubyte": idx_bytes(y[:-1]),
        "t10k-images-idx3-ubyte": idx_bytes(x[-1:]),
        "t10k-labels-idx1-ubyte": idx_bytes(y[-1:]),
    }
    files = (
        {f"{name}.gz": gzip.compress(data) for name, data in content.items()} if packed else content
    )
    for name, data in files.items():
        (path / name).write_bytes(data)
    return files


def archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path
