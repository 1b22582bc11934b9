"""The notebooks run, and print what is committed."""

from pathlib import Path

import pytest
from run_notebooks import FOLDER, alike, compare, printed, run

NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def read(path: Path):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(path, as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of the kernel: about ports and event loops
def test_a_notebook_prints_what_is_committed(name):
    """Accuracies may differ by rounding between machines, bytes with them."""
    assert compare(printed(run(FOLDER / name)), printed(read(FOLDER / name)), 0.06) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_committed_notebook_has_outputs_and_pictures(name):
    outputs = [out for cell in read(FOLDER / name).cells for out in cell.get("outputs", [])]
    assert len([out for out in outputs if "image/png" in out.get("data", {})]) >= 1
    assert [out for out in outputs if out.output_type == "error"] == []
    assert (FOLDER / name).stat().st_size < 150_000
    assert f"({name})" in (FOLDER / "README.md").read_text()


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("accuracy 0.71, 8215 bytes", "accuracy 0.74, 8300 bytes", True),
        ("accuracy 0.71", "accuracy 0.80", False),  # .09 apart
        ("8215 bytes", "9215 bytes", False),  # more than 6 %
        ("3 of 8", "4 of 8", False),
        ("mean 0.5", "median 0.5", False),
    ],
)
def test_numbers_are_compared_with_a_tolerance(one, other, same):
    assert alike(one, other, 0.06) is same
