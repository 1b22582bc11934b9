"""Messages damaged at random."""

import numpy as np


def flipped(message: bytes, generator: np.random.Generator, most: int = 4) -> bytes:
    """With one to `most` bits turned over."""
    damaged = bytearray(message)
    for bit in generator.choice(8 * len(message), generator.integers(1, most + 1), replace=False):
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
