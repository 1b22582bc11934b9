"""The committed reports of the study are still read, and rendered to the same bytes."""

import pytest

from fedsift.papers.sift import PAPER
from tests.helpers.reproduction import check_committed, list_committed


@pytest.mark.parametrize("name", list_committed(PAPER))
def test_a_committed_report_reads_and_renders_to_the_committed_text(name):
    check_committed(PAPER, name)
