"""Whole numbers below K as bytes: packed at log2 K bits each, or, where that is shorter,
entropy-coded (ANS).

The first byte says which. Digits are packed in groups of 1,024, each group as one big number in
base K. From some hundred symbols on this is less than 1 % over log2 K bits.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

import numpy as np

from fedsift.codecs.wire import WireError
from fedsift.types import Array

_PACKED, _CODED = 0, 1
_GROUP = 1024


def encode(symbols: Array, base: int) -> bytes:
    """`symbols` [n] in 0 .. base - 1."""
    most = max_bytes(len(symbols), base)
    if most > base:  # else the histogram alone is as long
        coded = bytes([_CODED]) + _ans(symbols, base)
        if len(coded) < most:
            return coded
    return bytes([_PACKED]) + _pack(symbols, base)


def decode(code: bytes, count: int, base: int) -> Array:
    """The inverse. Reads at most `max_bytes`, makes nothing larger than `count` numbers."""
    if not code or len(code) > max_bytes(count, base):
        raise WireError(
            f"{len(code)} bytes of symbols where 1 to {max_bytes(count, base)} are possible"
        )
    if code[0] == _PACKED:
        return _unpack(code[1:], count, base)
    if code[0] == _CODED:
        return _unans(code[1:], count, base)
    raise WireError(f"symbols coded in unknown way {code[0]}")


def max_bytes(count: int, base: int) -> int:
    """Packing bounds it: the other way is taken only where it is shorter."""
    return 1 + (count // _GROUP) * _width(_GROUP, base) + _width(count % _GROUP, base)


@lru_cache(maxsize=1024)
def _width(digits: int, base: int) -> int:
    return ((base**digits - 1).bit_length() + 7) // 8


def _pack(symbols: Array, base: int) -> bytes:
    groups = [symbols[i : i + _GROUP] for i in range(0, len(symbols), _GROUP)]
    return b"".join(
        _number(group, base).to_bytes(_width(len(group), base), "little") for group in groups
    )


def _unpack(code: bytes, count: int, base: int) -> Array:
    if len(code) != max_bytes(count, base) - 1:
        raise WireError(
            f"{len(code)} bytes of packed symbols instead of {max_bytes(count, base) - 1}"
        )
    full = _width(_GROUP, base)
    sizes = [_GROUP] * (count // _GROUP) + [count % _GROUP] * (count % _GROUP > 0)
    pieces = [_digits(code[i * full : (i + 1) * full], size, base) for i, size in enumerate(sizes)]
    return np.concatenate([np.empty(0, np.int64), *pieces])


def _number(digits: Array, base: int) -> int:
    """Digits, lowest first, as one number; halves are joined, so few multiplications are large."""
    if len(digits) <= _small(base):
        return (
            int(digits.astype(object) @ (base ** np.arange(len(digits)).astype(object)))
            if len(digits)
            else 0
        )
    half = len(digits) // 2
    return _number(digits[:half], base) + base**half * _number(digits[half:], base)


def _digits(code: bytes, count: int, base: int) -> Array:
    value = int.from_bytes(code, "little")
    if value >= base**count:
        raise WireError("packed symbols are out of range")
    return _split(value, count, base)


def _split(value: int, count: int, base: int) -> Array:
    if count <= _small(base):
        return (value // base ** np.arange(count).astype(object) % base).astype(np.int64)
    half = count // 2
    high, low = divmod(value, base**half)
    return np.concatenate([_split(low, half, base), _split(high, count - half, base)])


def _small(base: int) -> int:
    """So few digits that they fit a machine word."""
    return max(1, int(62 / log2(base)))


def _ans(symbols: Array, base: int) -> bytes:
    """A histogram, a byte a symbol, and the symbols coded by it."""
    counts = np.bincount(symbols, minlength=base)
    histogram = (-(-counts * 255 // counts.max())).astype(
        np.uint8
    )  # rounded up: what occurs has a share
    coder, model = _coder(histogram)
    coder.encode_reverse(symbols.astype(np.int32), model)
    return histogram.tobytes() + coder.get_compressed().astype("<u4").tobytes()


def _unans(code: bytes, count: int, base: int) -> Array:
    histogram, words = np.frombuffer(code[:base], np.uint8), code[base:]
    if (
        len(histogram) != base
        or not histogram.any()
        or len(words) % 4
        or (words and not any(words[-4:]))
    ):
        raise WireError("coded symbols are cut short or have no histogram")
    coder, model = _coder(histogram, np.frombuffer(words, "<u4").astype(np.uint32))
    symbols = np.asarray(coder.decode(model, count), np.int64)
    if not coder.is_empty():
        raise WireError("coded symbols end in the wrong place")
    return symbols


def _coder(histogram: Array, words: Array | None = None):  # type: ignore[no-untyped-def]
    import constriction  # needed only here, so that importing fedsift stays light

    stream = constriction.stream
    model = stream.model.Categorical(histogram / histogram.sum(dtype=np.float64), perfect=False)
    return stream.stack.AnsCoder(words), model
