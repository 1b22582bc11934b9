"""Jobs and answers as parcels: a short text of bytes, and all arrays in one flat piece of memory.

Tensors and arrays are taken out while the rest is pickled, each piece of memory once, however many
jobs share it. The values of a `Store` are not in a parcel at all: they are put beside it once, and
the parcel names them by number.
"""

from __future__ import annotations

import io
import itertools
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.types import Array, Store, UserError

ALIGNED = 64  # bytes: every array begins at a multiple
STORED, TENSOR, ARRAY = "stored", "tensor", "array"


@dataclass(frozen=True, eq=False)
class Parcel:
    """`text` names arrays by where they begin in one flat piece of memory, `size` bytes long."""

    text: bytes
    arrays: list[tuple[int, Array]]  # where it begins, and its bytes
    size: int
    stores: frozenset[int] = frozenset()  # numbers of the stores that the receiver must have

    def write(self, memory: Array) -> None:
        """Put the arrays into a flat array of bytes that is at least `size` long."""
        for begin, values in self.arrays:
            memory[begin : begin + len(values)] = values

    def flat(self) -> Array:
        memory = np.zeros(self.size, np.uint8)
        self.write(memory)
        return memory


class Stores:
    """The values of data sets, each with a number, for as long as someone here holds them."""

    def __init__(self) -> None:
        self.values: dict[int, weakref.ref[Tensor]] = {}
        self._numbers: dict[Any, int] = {}
        self._count = itertools.count()

    def number(self, values: Tensor) -> int:
        """The number of these values: the same for the same view of the same memory."""
        key = (values.data_ptr(), values.shape, values.stride(), values.dtype)
        if key not in self._numbers:
            number = self._numbers[key] = next(self._count)
            self.values[number] = weakref.ref(values)
            weakref.finalize(values, self._forget, key, number).atexit = False
        return self._numbers[key]

    def tensor(self, number: int) -> Tensor:
        values = self.values[number]()
        assert values is not None  # the jobs at hand hold it
        return values.detach().cpu().contiguous()

    def _forget(self, key: Any, number: int) -> None:
        self.values.pop(number, None)
        if self._numbers.get(key) == number:
            del self._numbers[key]


def pack(content: Any, stores: Stores | None = None) -> Parcel:
    """A parcel with jobs or answers; without `stores`, the values of stores are inside it."""
    text = io.BytesIO()
    packer = _Packer(text, stores)
    try:
        packer.dump(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"what a worker needs cannot be sent to it ({error}); put models and other parts of "
            "your own into a module that can be imported, or do without workers"
        ) from error
    found = packer.found
    return Parcel(text.getvalue(), found.arrays, found.size, frozenset(found.stores))


def unpack(text: bytes, memory: Array, stored: Callable[[int], Tensor], copy: bool = False) -> Any:
    """What was packed; arrays are views of the memory, or copies of their own."""
    return _Unpacker(io.BytesIO(text), memory, stored, copy).load()


@dataclass(eq=False)
class _Found:
    arrays: list[tuple[int, Array]] = field(default_factory=list)
    size: int = 0
    stores: set[int] = field(default_factory=set)
    places: dict[Any, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # no address may be used again while we look

    def place(self, key: Any, values: Array) -> int:
        if key not in self.places:
            self.places[key] = self.size
            self.arrays.append((self.size, values))
            self.size += -(-values.nbytes // ALIGNED) * ALIGNED
        return self.places[key]


class _Packer(pickle.Pickler):
    def __init__(self, text: io.BytesIO, stores: Stores | None) -> None:
        super().__init__(text, pickle.HIGHEST_PROTOCOL)
        self._stores, self.found = stores, _Found()
        self._resident: set[int] = set()

    def persistent_id(self, thing: Any) -> Any:
        """None for what is pickled as usual."""
        if isinstance(thing, Tensor):
            if id(thing) in self._resident and self._stores is not None:
                number = self._stores.number(thing)
                self.found.stores.add(number)
                return STORED, number
            return self._place_tensor(thing.detach())
        if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            return self._place_array(thing)
        if isinstance(thing, Store):
            self._resident.add(id(thing.values))
        elif isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
            raise pickle.PicklingError(f"{thing.__qualname__} is defined in the script itself")
        return None

    def _place_tensor(self, tensor: Tensor) -> Any:
        flat = tensor.cpu().contiguous()
        self.found.kept += [tensor, flat]
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        begin = self.found.place(key, as_bytes(flat))
        return TENSOR, begin, tensor.dtype, tuple(tensor.shape)

    def _place_array(self, array: Array) -> Any:
        flat = np.ascontiguousarray(array).reshape(-1)
        self.found.kept += [array, flat]
        key = (array.ctypes.data, array.shape, array.strides, array.dtype)
        begin = self.found.place(key, flat.view(np.uint8))
        return ARRAY, begin, array.dtype.str, array.shape


class _Unpacker(pickle.Unpickler):
    def __init__(
        self, text: io.BytesIO, memory: Array, stored: Callable[[int], Tensor], copy: bool
    ) -> None:
        super().__init__(text)
        self._memory, self._stored, self._copy = memory, stored, copy

    def persistent_load(self, name: Any) -> Any:
        what, place, *rest = name
        if what == STORED:
            return self._stored(place)
        kind, shape = rest
        count = int(np.prod(shape, dtype=np.int64))
        if what == ARRAY:
            size = count * np.dtype(kind).itemsize
            array = self._memory[place : place + size].view(kind).reshape(shape)
            return array.copy() if self._copy else array
        raw = self._memory[place : place + count * kind.itemsize]
        return as_tensor(raw.copy() if self._copy else raw, kind, shape)


def as_tensor(raw: Array, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A view of bytes."""
    if not len(raw):
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(raw).view(kind).reshape(shape)


def as_bytes(tensor: Tensor) -> Array:
    """A view of the bytes of a contiguous tensor, which is on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
