"""`fedsift theory`: the grid and its picture."""

import json
from pathlib import Path

import pytest

from tests.helpers.cli import done, rows


@pytest.mark.slow
def test_theory_prints_the_grid_and_draws_it():
    result = done("theory", "--dimension", "200", "--trials", "4", "-o", "theory.png")
    table = rows(result.stdout)
    assert len(table) == 48 and all(len(line) == 9 for line in table)
    assert "The printed constant 1/(2 pi) is outside" in result.stdout
    assert Path("theory.png").read_bytes().startswith(b"\x89PNG")
    cells = json.loads(done("theory", "--dimension", "200", "--trials", "4", "--json").stdout)
    assert [f"{cell['closed']:.4f}" for cell in cells] == [line[4] for line in table]
