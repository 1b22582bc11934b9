"""The committed reports of the study are still read, and rendered to the same bytes."""

import json
from pathlib import Path

import pytest

from fedsift.papers.sift import PAPER
from fedsift.reproduction import reports
from fedsift.reproduction.plans import Plan

RESULTS = Path(__file__).parents[3] / "results" / PAPER.name
FILES = sorted(str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.glob("*/*.json"))


@pytest.mark.parametrize("name", FILES)
def test_a_committed_report_reads_and_renders_to_the_committed_text(name):
    folder, item = (RESULTS / name).parent, Path(name).name
    setting, recipe = folder.name.split("-")
    report = reports.read_report(Plan(PAPER, setting, recipe), item, folder)
    assert report == json.loads((RESULTS / f"{name}.json").read_text())
    assert reports.markdown(report).encode() == (RESULTS / f"{name}.md").read_bytes()
