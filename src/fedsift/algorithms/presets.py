"""A preset: an algorithm's factory with other defaults, a name and a docstring of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")


def preset(factory: Callable[P, A], name: str, summary: str, **defaults: Any) -> Callable[P, A]:
    """The factory with other defaults. `help` shows the summary, then every argument."""

    base = inspect.signature(factory)
    parameters = [
        parameter.replace(default=defaults.get(key, parameter.default))
        for key, parameter in base.parameters.items()
    ]
    signature = base.replace(parameters=parameters)

    @wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> A:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        return factory(*args, **{**defaults, **kwargs})

    make.__name__ = make.__qualname__ = name
    make.__signature__ = signature  # type: ignore[attr-defined]
    settings = ", ".join(f"{key}={value!r}" for key, value in defaults.items())
    _, _, details = inspect.cleandoc(factory.__doc__ or "").partition("\n\n")
    make.__doc__ = f"{summary}\n\nThe same as {factory.__name__}({settings}).\n\n{details}\n"
    return make
