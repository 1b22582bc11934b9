"""`fedsift plot`: the kinds of picture it writes."""

from pathlib import Path

import pytest

from tests.helpers.cli import MAGIC, complaint, done
from tests.helpers.runs import straight, tiny


@pytest.mark.parametrize("kind", MAGIC)
def test_plot_writes_the_kind_of_file_its_ending_says(kind):
    straight(Path("fas"), tiny())
    result = done("plot", "fas", "-o", f"pictures/fas.{kind}")
    assert result.stdout == f"wrote pictures/fas.{kind}\n"
    assert Path(f"pictures/fas.{kind}").read_bytes().startswith(MAGIC[kind])
    assert [path.name for path in Path("pictures").iterdir()] == [f"fas.{kind}"]


@pytest.mark.parametrize("file", ["fas.bmp", "fas"])
def test_plot_refuses_other_endings_and_names_its_own(file):
    straight(Path("fas-run"), tiny(rounds=1))
    said = complaint("plot", "fas-run", "-o", file)
    assert ".png, .pdf, .svg" in said
    assert not Path(file).exists()
