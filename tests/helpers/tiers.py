"""Which cases of a parametrised test are left to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values, each marked slow but for the quick ones."""
    values = list(values)
    assert all(value in values for value in quick), (quick, values)
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
