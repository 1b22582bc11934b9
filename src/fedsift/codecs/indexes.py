"""A set of m indexes below N in close to log2 binom(N, m) bits; N and m are known to both ends.

Small sets are ranked exactly (the combinatorial number system). For large ones big integers would
be slow: their membership bits go through an ANS entropy coder at the fixed rate m / N. It takes
about 34 bits more than exact.
"""

from __future__ import annotations

from math import comb, lgamma, log

import numpy as np

from fedsift.codecs.wire import WireError
from fedsift.types import Array

FEW = 64  # so few are ranked one by one, however large the population
_RANK_WORK = 2**24  # bits of the rank times steps: a few milliseconds of big-integer arithmetic


def ideal_bits(population: int, size: int) -> float:
    """log2 binom(N, m)."""
    return (lgamma(population + 1) - lgamma(size + 1) - lgamma(population - size + 1)) / log(2)


def encode(index: Array, population: int) -> bytes:
    """`index` is ascending and distinct."""
    size = len(index)
    if size in (0, population):
        return b""
    if _is_ranked(population, size):
        rank = _rank_of_few(index) if size <= FEW else _rank(index, population)
        return rank.to_bytes(_rank_bytes(population, size), "little")
    bits = np.zeros(population, np.int32)
    bits[index] = 1
    coder, model = _coder(population, size)
    coder.encode_reverse(bits, model)
    return coder.get_compressed().astype("<u4").tobytes()


def decode(code: bytes, population: int, size: int) -> Array:
    """The inverse; WireError unless `code` is exactly what `encode` makes of some set."""
    if not 0 <= size <= population:
        raise WireError(f"{size} indexes into a public set of {population}")
    if len(code) > max_bytes(population, size):
        raise WireError(f"{len(code)} bytes of indexes where {max_bytes(population, size)} suffice")
    if size in (0, population):
        return np.arange(size)
    if _is_ranked(population, size):
        if len(code) != _rank_bytes(population, size):
            raise WireError(
                f"{len(code)} bytes of indexes instead of {_rank_bytes(population, size)}"
            )
        rank = int.from_bytes(code, "little")
        if rank >= comb(population, size):
            raise WireError("the index code names no set")
        return (
            _few_of_rank(rank, population, size) if size <= FEW else _unrank(rank, population, size)
        )
    if len(code) % 4 or not any(code[-4:]):  # the coder's last word is never zero
        raise WireError("the index code is cut short")
    coder, model = _coder(population, size, np.frombuffer(code, "<u4").astype(np.uint32))
    index = np.flatnonzero(coder.decode(model, population))
    if len(index) != size or not coder.is_empty():
        raise WireError("the index code does not hold the announced number of indexes")
    return index


def max_bytes(population: int, size: int) -> int:
    """No code of such a set is longer: exact for ranks, else with room for the coder's flush."""
    if size in (0, population):
        return 0
    if _is_ranked(population, size):
        return _rank_bytes(population, size)
    return int(ideal_bits(population, size) * 1.01 / 8) + 64


def _is_ranked(population: int, size: int) -> bool:
    return size <= FEW or ideal_bits(population, size) * population <= _RANK_WORK


def _rank_bytes(population: int, size: int) -> int:
    return ((comb(population, size) - 1).bit_length() + 7) // 8


def _rank_of_few(index: Array) -> int:
    """sum of binom(p_j, j + 1) over the members p_0 < p_1 < ..."""
    return sum(comb(p, j + 1) for j, p in enumerate(index.tolist()))


def _few_of_rank(rank: int, population: int, size: int) -> Array:
    """Highest member: largest p with binom(p, size) <= rank, and so on downward; a search each."""
    index, above = np.empty(size, np.int64), population
    for j in range(size, 0, -1):
        low, high = j - 1, above - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if comb(middle, j) <= rank else (low, middle - 1)
        index[j - 1] = above = low
        rank -= comb(low, j)
    return index


def _rank(index: Array, population: int) -> int:
    """The same number, in one walk over all p: one multiplication and one division a step."""
    member = np.zeros(population, bool)
    member[index] = True
    return _walk(member.tolist(), len(index))


def _walk(member: list[bool], size: int) -> int:
    rank, left = 0, size
    step = comb(len(member) - 1, left)  # binom(p, left) as p walks down
    for p in range(len(member) - 1, -1, -1):
        if left == 0:
            break
        if member[p]:
            rank += step
            step = step * left // p if p else 0
            left -= 1
        else:
            step = step * (p - left) // p if p else 0
    return rank


def _unrank(rank: int, population: int, size: int) -> Array:
    index, left = np.empty(size, np.int64), size
    step = comb(population - 1, left)
    for p in range(population - 1, -1, -1):
        if left == 0:
            break
        if rank >= step:
            rank -= step
            step = step * left // p if p else 0
            left -= 1
            index[left] = p
        else:
            step = step * (p - left) // p if p else 0
    return index


def _coder(population: int, size: int, words: Array | None = None):  # type: ignore[no-untyped-def]
    import constriction  # needed only here, so that importing fedsift stays light

    stream = constriction.stream
    return stream.stack.AnsCoder(words), stream.model.Bernoulli(size / population, perfect=False)
