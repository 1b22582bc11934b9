"""Checks of what a Python user passes, and warnings that point at the user's line."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fedsift.types import Recipe, UserError

PACKAGE = str(Path(__file__).parent) + os.sep
LONGEST = 60  # letters of a value that are quoted back


def warn_user(message: str) -> None:
    """Warn at the first line outside fedsift that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def describe(value: Any) -> str:
    """A value in a few words: 'digits', 0.5, a Dataset, the class Dirichlet, the function fas."""
    if value is None or isinstance(value, str | int | float):
        said = repr(value)
        return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def count(number: int, word: str, words: str | None = None) -> str:
    """ "1 label", "2 labels" """
    return f"{number} {word if number == 1 else words or f'{word}s'}"


def check_type(value: Any, kind: type | tuple[type, ...], name: str, cure: str) -> None:
    """The value is of this kind, or the user learns what to pass instead."""
    if not isinstance(value, kind):
        raise UserError(f"{name} is {describe(value)}; {cure}")


def check_members(value: Any, members: Sequence[str], name: str, cure: str) -> None:
    """The value is an object with these members, not a class that makes one."""
    if isinstance(value, type):
        raise UserError(f"{name} is {describe(value)}; pass an object, {value.__name__}(...)")
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        lacks = f" without {', '.join(missing)}" if len(missing) < len(members) else ""
        raise UserError(f"{name} is {describe(value)}{lacks}; {cure}")


def check_whole(name: str, value: Any, least: int | None = None) -> None:
    if not isinstance(value, Integral) or (least is not None and int(value) < least):
        limit = "" if least is None else f", {least} or more"
        raise UserError(f"{name} must be a whole number{limit}, not {describe(value)}")


def check_number(name: str, value: Any) -> None:
    if not isinstance(value, Real):
        raise UserError(f"{name} must be a number, not {describe(value)}")


def check_recipe(name: str, recipe: Any) -> Recipe:
    """The recipe of an argument `local` or `distill`; None is the usual one."""
    if recipe is None:
        return Recipe()
    options = recipe if isinstance(recipe, Mapping) else {"lr": 0.01}
    written = ", ".join(f"{key}={value!r}" for key, value in options.items())
    check_type(recipe, Recipe, name, f"write {name}=fedsift.Recipe({written})")
    checked: Recipe = recipe
    if name == "distill" and checked.ntd:
        raise UserError(
            f"distill.ntd is {checked.ntd:g}, but a server has no model received to distil from; "
            "not-true distillation is for local training: set local.ntd"
        )
    return checked


def check_call(function: Any, arguments: Sequence[str], name: str) -> None:
    """The function can be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise UserError(f"{name} must be a function of ({', '.join(arguments)})") from None
    try:
        signature.bind(*arguments)
    except TypeError:
        wanted = f"({', '.join(arguments)})"
        raise UserError(f"{name} takes {signature}, but it is called with {wanted}") from None
