"""Memory that processes share and that has no name: when the last one lets go, it is gone."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from fedsift.types import Array

LEAST = 2**16  # bytes


class Shared:
    """A flat array of bytes behind a file descriptor, which another process can map too."""

    def __init__(self, file: int, size: int) -> None:
        self.file, self.size = file, size
        self.array: Array = np.frombuffer(mmap.mmap(file, size), np.uint8)

    @classmethod
    def make(cls, size: int) -> Shared:
        size = max(LEAST, size)
        file = _open_nameless()
        try:
            os.truncate(file, size)
            return cls(file, size)
        except BaseException:
            os.close(file)
            raise

    def close(self) -> None:
        """Let go of the descriptor; the memory itself goes with the last array that shows it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _open_nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedsift")
    file, path = tempfile.mkstemp(prefix="fedsift-")  # elsewhere: a file that nobody can find
    os.unlink(path)
    return file
