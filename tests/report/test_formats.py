"""How figures are written for other programs, by hand."""

import pytest

from fedsift.report.formats import format_gap, format_signed
from fedsift.report.gaps import Gap


@pytest.mark.parametrize(
    ("value", "written"), [(0.068, "+.068"), (-0.25, "-.250"), (1.0, "+1.000"), (0.0, "+.000")]
)
def test_a_gap_has_a_sign_and_no_zero_before_the_point(value, written):
    assert format_signed(value) == written


def test_a_gap_is_written_with_its_interval_where_it_has_one():
    # Gaps .1 and .2: mean .15, deviation .0707; t of one degree is 12.706, so the half is .6353.
    assert format_gap(Gap("fas", (0, 1), (0.1, 0.2))) == "+.150 (-.485 to +.785)"
    assert format_gap(Gap("fas", (0,), (0.068,))) == "+.068"
