"""The tables of a report, worked out by hand."""

from typing import Any

import pytest

from fedsift.reproduction import tables
from fedsift.reproduction.verdicts import Above, Claim, Keeps, judge_claim
from tests.helpers.reproduction import A, B, by_hand


def cell(curve: str, alpha: float, by_seed: list[float], largest: int = 100) -> dict[str, Any]:
    return {
        "curve": curve,
        "label": curve.upper(),
        "alpha": alpha,
        "by_seed": by_seed,
        "accuracy": sum(by_seed) / len(by_seed),
        "sd": 0.25,
        "paper": None,
        "uplink_bytes_per_upload": largest - 10,
        "uplink_bytes_largest": largest,
    }


def test_a_gap_is_taken_seed_by_seed_at_the_same_skew():
    """Gaps .2, 0 and .1: mean .1, deviation .1, ahead in two of three. The 97.5 % point of t with
    two degrees of freedom is 4.303, and 4.303 x .1 / sqrt(3) = .2484."""
    one, other = cell("a", 0.1, [0.7, 0.5, 0.6]), cell("b", 0.1, [0.5, 0.5, 0.5])
    far = cell("b", 100.0, [0.9, 0.9, 0.9])
    found = tables.add_gap(one, [one, far, other], "b", [3, 4, 5])
    assert found["gap"] == {
        "against": "B",
        "seeds": [3, 4, 5],
        "mean": 0.1,
        "sd": 0.1,
        "standard_error": round(0.1 / 3**0.5, 6),
        "interval": [-0.148417, 0.348417],
        "confidence": 0.95,
        "ahead": 2,
        "by_seed": [0.2, 0.0, 0.1],
    }
    assert tables.format_gap(found) == "+.100 ± .100, 2 of 3"
    assert tables.add_gap(other, [one, other], "b", [3, 4, 5]) == other  # the reference itself
    assert tables.add_gap(one, [one, far], "b", [3, 4, 5]) == one  # it was not run at this skew
    assert tables.format_gap(one) == ""


def test_a_gap_below_and_one_of_a_single_seed():
    one, other = cell("a", 0.1, [0.25]), cell("b", 0.1, [0.5])
    assert tables.format_gap(tables.add_gap(one, [one, other], "b", [0])) == "-.250, 0 of 1"


def test_evidence_is_the_comparison_that_decides():
    bytes_ = {
        "comparison": "a with fewer bytes than b",
        "gap": -15303.5,
        "sd": 2.0,
        "unit": "bytes",
    }
    claim = {"decided_by": 0, "evidence": [bytes_]}
    assert tables.describe_evidence(claim) == "a with fewer bytes than b: -15,304 bytes"
    assert tables.describe_evidence({"decided_by": None, "evidence": []}) == ""


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (0.1, "holds"),
        (0.05, "holds in the mean; the interval reaches -.080"),
        (0.02, "does not hold in the mean; the interval reaches +.020"),
        (-0.03, "does not hold"),
    ],
)
def test_a_claim_on_the_mean_says_where_the_interval_crosses_its_limit(loss, verdict):
    """Gaps -.01, -.03 and -.05: mean -.03, deviation .02, and 4.3027 x .02 / sqrt(3) = .0497. So
    the interval is -.0797 to +.0197."""
    keeps = Keeps(A, B, loss)
    told = judge_claim(Claim("", (keeps,)), by_hand(a=[0.5, 0.4, 0.3], b=[0.51, 0.43, 0.35]), {})
    assert tables.describe_verdict(told) == verdict
    assert tables.describe_evidence(told) == f"{keeps}: -.030, 95 % interval -.080 to +.020"
    of_seeds = judge_claim(Claim("", (Above(A, B),)), by_hand(a=[0.2, 0.4, 0.6], b=[0.1] * 3), {})
    assert (
        tables.describe_verdict(of_seeds) == "holds"
    )  # in every seed, though its interval is wide
    assert tables.describe_evidence(of_seeds).endswith(": +.300, 95 % interval -.197 to +.797")


def test_of_two_seeds_no_interval_is_told():
    told = judge_claim(Claim("", (Keeps(A, B, 0.05),)), by_hand(a=[0.4, 0.5], b=[0.4, 0.52]), {})
    assert tables.describe_verdict(told) == "holds"
    assert tables.describe_evidence(told).endswith("in the mean: -.010 ± .014")


def test_gaps_of_three_seeds_have_a_column_with_their_interval():
    one, other = cell("a", 0.1, [0.7, 0.5, 0.6]), cell("b", 0.1, [0.5, 0.5, 0.5])
    lines = tables.list_cells({"cells": [other, tables.add_gap(one, [one, other], "b", range(3))]})
    assert lines[0].startswith(
        "| | alpha | accuracy | against its reference, seeds ahead | 95 % interval | bytes"
    )
    assert "| +.100 ± .100, 2 of 3 | -.148 to +.348 |" in lines[3]
    assert lines[2].startswith("| B | 0.1 | .500 ± .250 |  |  | ")


def test_the_best_for_a_budget_is_the_highest_whose_every_upload_fits():
    cells = [
        cell("cheap", 0.1, [0.5], 100),
        cell("dear", 0.1, [0.9], 1000),
        cell("waste", 0.1, [0.4], 500),
        cell("cheap", 1.0, [0.6], 101),
    ]
    found = tables.find_best(cells, [1000, 100, 50, 999])
    assert [(row["alpha"], row["bytes"], row["curve"]) for row in found] == [
        (0.1, 100, "cheap"),
        (0.1, 999, "cheap"),
        (0.1, 1000, "dear"),
        (1.0, 999, "cheap"),
        (1.0, 1000, "cheap"),
    ]
    assert tables.list_best({"best_by_budget": found}) == [
        "",
        "The best whose every upload fits the bytes:",
        "",
        "| bytes | alpha = 0.1 | alpha = 1 |",
        "|---|---|---|",
        "| 100 | CHEAP: .500 ± .250 |  |",
        "| 999 | CHEAP: .500 ± .250 | CHEAP: .600 ± .250 |",
        "| 1,000 | DEAR: .900 ± .250 | CHEAP: .600 ± .250 |",
    ]
    assert tables.list_best({}) == []


def test_of_the_trials_of_a_system_the_best_mean_over_all_skews_is_chosen():
    """a: (.5 + .7) / 2 = .6; a+x: (.8 + .5) / 2 = .65; a+y is .9 but was run at one skew only."""
    cells = [
        *(cell("a", 0.1, [0.5]), cell("a", 1.0, [0.7])),
        *(cell("a+x", 0.1, [0.8]), cell("a+x", 1.0, [0.5])),
        cell("a+y", 0.1, [0.9]),
        cell("b", 0.1, [0.25]),
    ]
    first, second = tables.choose_variants(cells)
    assert first == {
        "system": "a",
        "trials": 2,
        "curve": "a+x",
        "label": "A+X",
        "accuracy": 0.65,
        "first": 0.6,
    }
    assert (second["system"], second["curve"], second["trials"]) == ("b", "b", 1)
    assert tables.list_chosen({"chosen": [first]})[-1] == "| a | 2 | A+X | .650 | .600 |"


def test_costs_and_gaps_are_columns_where_a_report_has_them():
    costs = {
        "downlink_bytes_per_download": 1234,
        "total_bytes": 5_678_000,
        "total_bytes_broadcast": 45_000,
        "client_steps_per_round": None,
        "server_steps_per_round": 2500,
    }
    one, other = (cell(curve, 0.1, [0.5, 0.5], 2000) | costs for curve in "ab")
    cells = [one, tables.add_gap(other, [one, other], "a", [0, 1])]
    assert tables.list_cells({"cells": cells}) == [
        "| | alpha | accuracy | against its reference, seeds ahead | bytes per upload | the largest"
        " | bytes per download | both ways, MB | with broadcast | client steps per round"
        " | server steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        "| A | 0.1 | .500 ± .250 |  | 1,990 | 2,000 | 1,234 | 5.68 | 0.04 |  | 2,500 |",
        "| B | 0.1 | .500 ± .250 | +.000 ± .000, 0 of 2 | 1,990 | 2,000 | 1,234 | 5.68 | 0.04"
        " |  | 2,500 |",
    ]
    plain = [cell("a", 0.1, [0.5])]
    assert tables.list_cells({"cells": plain})[0] == (
        "| | alpha | accuracy | bytes per upload | the largest |"
    )
