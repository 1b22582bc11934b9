"""Whole numbers below K as bytes: packed at log2 K bits each, or, where that is shorter,
entropy-coded (ANS).

The first byte says which. Digits are packed in groups of 1,024, each group as one big number in
base K. From some hundred symbols on this is less than 1 % over log2 K bits.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from math import log2

import numpy as np

from fedsift.codecs.wire import WireError
from fedsift.types import Array

_PACKED, _CODED = 0, 1
_GROUP = 1024
_SHARES, _WORD = 2**24, 32  # the coder counts probabilities in so many parts; bits of its words
_SLACK = 0.001


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


def bound_length(symbols: Array, base: int) -> tuple[int, int]:
    """The fewest and the most bytes that `encode` can take, from the histogram alone.

    The coder takes the information in the symbols, a thousandth more at most, and up to two words.
    The symbols it begins with, the last ones, are free while they are 0.
    """
    most = max_bytes(len(symbols), base)
    if most <= base:
        return most, most
    counts = np.bincount(symbols, minlength=base)
    histogram = _make_histogram(counts).astype(np.float64)
    shares = (histogram * ((_SHARES - base) / histogram.sum()) + 1) / _SHARES
    cost = -np.log2(shares)  # bits
    bits = float(counts @ cost)
    free = float(cost[0]) * int(np.argmax(symbols[::-1] != 0)) if symbols.any() else bits
    fewest, longest = (bits - free) * (1 - _SLACK) - _WORD, bits * (1 + _SLACK) + 2 * _WORD
    head = 1 + base
    low = head + 4 * max(0, int(fewest // _WORD))
    return min(low, most), min(head + 4 * int(longest // _WORD), most)


@lru_cache(maxsize=1024)
def _width(digits: int, base: int) -> int:
    return ((base**digits - 1).bit_length() + 7) // 8


def _pack(symbols: Array, base: int) -> bytes:
    whole = len(symbols) // _GROUP * _GROUP
    parts = [symbols[:whole].reshape(-1, _GROUP), symbols[whole:].reshape(1, -1)]
    return b"".join(
        number.to_bytes(_width(part.shape[1], base), "little")
        for part in parts
        if part.size
        for number in _numbers(part, base)
    )


def _unpack(code: bytes, count: int, base: int) -> Array:
    if len(code) != max_bytes(count, base) - 1:
        raise WireError(
            f"{len(code)} bytes of packed symbols instead of {max_bytes(count, base) - 1}"
        )
    full, whole = _width(_GROUP, base), count // _GROUP
    groups = [int.from_bytes(code[i * full : (i + 1) * full], "little") for i in range(whole)]
    last = [int.from_bytes(code[whole * full :], "little")]
    return np.concatenate([_digits(groups, _GROUP, base), _digits(last, count % _GROUP, base)])


def _numbers(groups: Array, base: int) -> list[int]:
    """Rows of digits [g, n], lowest first, as one number each.

    As many digits as fit a machine word are joined at once, then the words of a row.
    """
    count, size = groups.shape
    small = _small(base)
    padded = np.zeros((count, -(-size // small) * small), np.int64)
    padded[:, :size] = groups
    words = padded.reshape(count, -1, small) @ base ** np.arange(small)
    return [_join(row, base**small) for row in words.tolist()]


def _join(digits: list[int], base: int) -> int:
    """Neighbours are joined, and so on: few multiplications are large."""
    while len(digits) > 1:
        pairs = zip_longest(digits[::2], digits[1::2], fillvalue=0)
        digits, base = [low + base * high for low, high in pairs], base * base
    return digits[0]


def _digits(numbers: list[int], count: int, base: int) -> Array:
    """The inverse of `_numbers`, all rows in one array."""
    if any(value >= base**count for value in numbers):
        raise WireError("packed symbols are out of range")
    small = _small(base)
    size = -(-count // small)
    split = [_split(value, size, base**small) for value in numbers]
    words = np.array(split, np.int64).reshape(len(numbers), size, 1)
    digits = words // base ** np.arange(small) % base
    return digits.reshape(len(numbers), size * small)[:, :count].ravel()


def _split(value: int, count: int, base: int) -> list[int]:
    if count <= 1:
        return [value] * count
    half = count // 2
    high, low = divmod(value, _power(base, half))
    return _split(low, half, base) + _split(high, count - half, base)


@lru_cache(maxsize=1024)
def _power(base: int, exponent: int) -> int:
    return base**exponent


def _small(base: int) -> int:
    """So few digits that they fit a machine word."""
    return max(1, int(62 / log2(base)))


def _ans(symbols: Array, base: int) -> bytes:
    """A histogram, a byte a symbol, and the symbols coded by it."""
    histogram = _make_histogram(np.bincount(symbols, minlength=base))
    coder, model = _coder(histogram)
    coder.encode_reverse(symbols.astype(np.int32), model)
    return histogram.tobytes() + coder.get_compressed().astype("<u4").tobytes()


def _make_histogram(counts: Array) -> Array:
    """Rounded up: what occurs has a share."""
    return (-(-counts * 255 // counts.max())).astype(np.uint8)


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
