"""Reads the pickles CIFAR is published in without unpickling them.

A pickle is a program, and `pickle.load` runs whatever it says. These files need some twenty of its
instructions, which are followed here by hand on plain values. A name such as `numpy dtype` stays a
name, and nothing is ever called.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsift.types import Array, UserError

_ARRAY, _CLASS, _DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
_MOST_STEPS = 2_000_000  # CIFAR-100, the longest, has about 300,000
_VALUES = {
    "BININT",
    "BININT1",
    "BININT2",
    "SHORT_BINSTRING",
    "BINSTRING",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class Made:
    """What the pickle would make by `maker`: arguments and, later, state, both as they stand."""

    maker: str
    arguments: tuple[Any, ...]
    state: Any = None


def read(content: bytes, name: str) -> dict[str, Any]:
    """The dictionary a CIFAR batch holds: text, lists of numbers, and one uint8 array."""
    try:
        found = _run(content)
        return {
            key: _array(value) if isinstance(value, Made) else value for key, value in found.items()
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UserError(f"{name} is not a CIFAR batch: {error}") from None


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for step, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if step > _MOST_STEPS:
            raise ValueError("far too many instructions")
        match instruction.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case constant if constant in _VALUES:
                stack.append(_CONSTANTS.get(constant, argument))
            case _:
                _build(instruction.name, argument, stack, marks)
    raise ValueError("it has no end")


def _build(instruction: str, argument: Any, stack: list[Any], marks: list[int]) -> None:
    """The instructions that put values together."""
    match instruction:
        case "EMPTY_DICT":
            stack.append({})
        case "EMPTY_LIST":
            stack.append([])
        case "EMPTY_TUPLE":
            stack.append(())
        case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
            start = marks.pop() if instruction == "TUPLE" else len(stack) - _TUPLES[instruction]
            stack.append(tuple(_above(stack, start)))
        case "APPEND" | "APPENDS":
            items = _above(stack, marks.pop() if instruction == "APPENDS" else len(stack) - 1)
            _of(list, stack).extend(items)
        case "SETITEM" | "SETITEMS":
            items = _above(stack, marks.pop() if instruction == "SETITEMS" else len(stack) - 2)
            if not all(isinstance(key, str) for key in items[::2]):
                raise ValueError("it has a key that is not text")
            _of(dict, stack).update(zip(items[::2], items[1::2], strict=True))
        case "GLOBAL":
            if argument not in (_ARRAY, _CLASS, _DTYPE):
                raise ValueError(f"it asks for {argument!r}, which no CIFAR batch needs")
            stack.append(argument)
        case "REDUCE":
            maker, arguments = _above(stack, len(stack) - 2)
            stack.append(Made(maker, arguments))
        case "BUILD":
            (state,) = _above(stack, len(stack) - 1)
            _of(Made, stack).state = state
        case _:
            raise ValueError(f"it has the instruction {instruction}, which no CIFAR batch needs")


def _above(stack: list[Any], start: int) -> list[Any]:
    if not 0 <= start <= len(stack):
        raise ValueError("it takes more values than there are")
    items = stack[start:]
    del stack[start:]
    return items


def _of(kind: type, stack: list[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError(f"it treats a {type(stack[-1]).__name__} as a {kind.__name__}")
    return stack[-1]


def _array(made: Made) -> Array:
    _, shape, dtype, by_columns, raw = made.state
    if made.maker != _ARRAY or (dtype.maker, dtype.arguments[0]) != (_DTYPE, "u1"):
        raise ValueError("its array is not of bytes")
    values = np.frombuffer(raw.encode("latin-1"), np.uint8)
    return values.reshape(shape, order="F" if by_columns else "C")
