"""Hints to the C library (glibc) on when to keep freed memory and when to give it back."""

from __future__ import annotations

import contextlib
import ctypes


def keep_memory() -> None:
    """Ask the C library (glibc) to keep memory that is freed for the next step, which needs as
    much: by default it goes back to the system after every step and is zeroed page by page when it
    returns, a tenth of the time."""
    trim_threshold, mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**30)
        libc.mallopt(mmap_threshold, 2**25)


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells: ten numbers, of which the ninth is the bytes that are free."""

    _fields_ = [
        ("others", 8 * ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("on_top", ctypes.c_size_t),
    ]


def give_back_memory(beyond: float) -> None:
    """Return what is free to the system where that is more than the next step can use. After a
    large program its answers lie scattered in what it has freed, the next one does not fit in
    between, and a process would grow with every one."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _Heap
        if libc.mallinfo2().free > beyond:
            libc.malloc_trim(0)
