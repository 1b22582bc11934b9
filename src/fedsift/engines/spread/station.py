"""What a worker has, wherever it is: an engine of its own, data sets by number, and parts to do."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsift.engines.batched import BatchedEngine
from fedsift.engines.spread.parcels import Parcel, pack, unpack
from fedsift.engines.threads import Interrupted, Stop
from fedsift.types import Array


@dataclass(frozen=True)
class Setting:
    """How the engine of a worker is made."""

    device: str = "cpu"
    precision: str = "float32"
    memory: float | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What comes back: answers, or the error that a part ended with, and what was warned of."""

    answers: list[Any] | None
    error: Exception | None = None
    warned: tuple[str, ...] = ()


class Station:
    """A batched engine with one thread, or one GPU, that does parts one after another."""

    def __init__(self, setting: Setting) -> None:
        self._engine = BatchedEngine(
            setting.device, threads=1, precision=setting.precision, memory=setting.memory
        )

    def do(self, text: bytes, memory: Array, stored: Mapping[int, Tensor], stop: Stop) -> Parcel:
        """Unpack jobs, do them, pack an `Answer`."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            answer = self._try(text, memory, stored, stop)
        texts = tuple(str(one.message) for one in warned if one.category is UserWarning)
        return pack(Answer(answer.answers, answer.error, texts))

    def _try(self, text: bytes, memory: Array, stored: Mapping[int, Tensor], stop: Stop) -> Answer:
        try:
            return Answer(self._engine.run(unpack(text, memory, stored.__getitem__), stop))
        except Interrupted:
            return Answer(None, Interrupted())
        except Exception as error:
            return Answer(None, _portable(error))


def _portable(error: Exception) -> Exception:
    """The error as it can travel, with the lines of code that led to it as a note."""
    lines = "".join(traceback.format_exception(error))
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker:\n{lines}")
    return error
