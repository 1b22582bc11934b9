"""Verdicts on figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.reproduction.plans import Cell
from fedsift.reproduction.verdicts import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Above,
    Claim,
    Fits,
    Grows,
    Near,
    Reaches,
    compute_gaps,
    judge_claim,
    judge_comparison,
)
from tests.helpers.reproduction import A, B, C, D, by_hand


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.1, 0.2, 0.01], HOLDS),
        ([0.1, -0.2, 0.3], OPEN),
        ([-0.1, -0.2, -0.01], FAILS),
        ([0.0, 0.0], FAILS),  # equal is not above
        ([0.1, 0.0], OPEN),
        ([0.3], HOLDS),
        ([-0.3], FAILS),
    ],
)
def test_above_holds_or_fails_only_if_every_seed_says_so(gaps, said):
    assert judge_comparison(Above(A, B), gaps) == said
    assert judge_comparison(Grows((A, B), (C, D)), gaps) == said


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.0, -0.009], HOLDS),
        ([-0.009, -0.02], OPEN),
        ([-0.011, -0.02], FAILS),
        ([0.5, 0.5], HOLDS),
    ],
)
def test_with_slack_a_little_below_is_not_below(gaps, said):
    assert judge_comparison(Above(A, B, slack=0.01), gaps) == said


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.02, -0.01], HOLDS),
        ([0.2], HOLDS),
        ([0.5, 0.26], FAILS),
        ([0.75, -0.5], FAILS),  # far away on either side
        ([0.5, 0.25], FAILS),  # within is less than that
        ([0.5, 0.2], OPEN),
        ([-0.5, -0.2], OPEN),
        ([0.26, -0.24], OPEN),  # the mean is next to nothing, but one seed is too far away
    ],
)
def test_near_is_a_matter_of_every_seed(gaps, said):
    assert judge_comparison(Near(A, B, within=0.25), gaps) == said


@pytest.mark.parametrize(
    ("gaps", "said"), [([0.3, 0.4], HOLDS), ([0.3, 0.2], OPEN), ([0.25, 0.2], FAILS)]
)
def test_a_gap_has_to_grow_by_more_than_it_says(gaps, said):
    assert judge_comparison(Grows((A, B), (C, D), by=0.25), gaps) == said


@pytest.mark.parametrize(
    ("gap", "said"),
    [(0.01, OPEN), (-0.01, OPEN), (0.02, HOLDS), (-0.02, FAILS)],
    ids=lambda value: str(value),
)
def test_one_seed_decides_nothing_as_small_as_what_rounding_moves(gap, said):
    assert judge_comparison(Above(A, B), [gap]) == said
    assert judge_comparison(Above(A, B), [gap, gap]) == (HOLDS if gap > 0 else FAILS)
    assert judge_comparison(Near(A, B, 0.05), [0.05 - gap]) == said


def test_gaps_are_taken_seed_by_seed():
    """Both have mean .5; paired, the first seed says +.25 and the second -.25."""
    figures = by_hand(a=[0.5, 0.5], b=[0.25, 0.75], c=[1.0, 0.5], d=[0.5, 0.75])
    assert compute_gaps(Above(A, B), figures) == [0.25, -0.25]
    assert compute_gaps(Near(B, A, 0.1), figures) == [-0.25, 0.25]
    # .25 less (1 - .5), and -.25 less (.5 - .75)
    assert compute_gaps(Grows((A, B), (C, D)), figures) == [-0.25, 0.0]


def test_a_claim_is_written_down_with_its_evidence_and_the_papers_gap_beside_ours():
    """Gaps .2 and .05: mean .125, deviation .15 / sqrt 2 = .1061."""
    claim = Claim("a is ahead", (Above(A, B),))
    assert judge_claim(claim, by_hand(a=[0.7, 0.6], b=[0.5, 0.55]), {A: 0.8123, B: 0.7}) == {
        "claim": "a is ahead",
        "verdict": HOLDS,
        "figure": "accuracy",
        "decided_by": 0,
        "evidence": [
            {
                "comparison": "a at alpha = 0.1 above b at alpha = 0.1",
                "verdict": HOLDS,
                "gap": 0.125,
                "gaps": [0.2, 0.05],
                "sd": 0.106066,
                "paper": 0.1123,
            }
        ],
    }


def test_one_seed_has_no_deviation_and_without_all_its_figures_the_paper_has_no_gap():
    (row,) = judge_claim(Claim("", (Above(A, B),)), by_hand(a=[0.75], b=[0.5]), {A: 0.8})[
        "evidence"
    ]
    assert (row["gap"], row["sd"], "paper" in row) == (0.25, None, False)


def test_the_papers_gap_of_gaps():
    """(.9 - .5) - (.7 - .6) = .3."""
    paper = {A: 0.9, B: 0.5, C: 0.7, D: 0.6}
    (row,) = judge_claim(
        Claim("", (Grows((A, B), (C, D)),)), by_hand(a=[1, 1], b=[0, 0], c=[1, 1], d=[0, 0]), paper
    )["evidence"]
    assert (row["paper"], row["gap"], row["verdict"]) == (0.3, 0.0, FAILS)


@pytest.mark.parametrize(
    ("c", "verdict"),
    [([0.9, 0.9], FAILS), ([0.1, 0.9], OPEN), ([0.1, 0.2], HOLDS)],
    ids=[FAILS, OPEN, HOLDS],
)
def test_a_claim_is_as_good_as_its_worst_comparison(c, verdict):
    claim = Claim("", (Above(A, B), Above(A, C)))
    told = judge_claim(claim, by_hand(a=[0.5, 0.5], b=[0.25, 0.25], c=c), {})
    assert told["verdict"] == verdict
    assert [row["verdict"] for row in told["evidence"]] == [HOLDS, verdict]


def test_what_decides_is_the_comparison_with_that_verdict_that_is_furthest_from_holding():
    """a is .25 above b, .05 above c, and .3 and .1 below d."""
    figures = by_hand(a=[0.5, 0.5], b=[0.25, 0.25], c=[0.45, 0.45], d=[0.8, 0.6])
    both = judge_claim(Claim("", (Above(A, B), Above(A, C))), figures, {})
    assert (both["verdict"], both["decided_by"]) == (HOLDS, 1)
    fails = judge_claim(Claim("", (Above(A, B), Above(A, D), Above(A, D, slack=0.05))), figures, {})
    assert (fails["verdict"], fails["decided_by"]) == (FAILS, 1)
    missing = judge_claim(Claim("", (Above(A, Cell("e", 0.1)),)), figures, {})
    assert (missing["verdict"], missing["decided_by"]) == (NOT_RUN, None)


def test_one_comparison_that_fails_outweighs_one_that_is_open():
    claim = Claim("", (Above(A, B), Above(A, C), Above(A, D)))
    told = judge_claim(claim, by_hand(a=[0.5, 0.5], b=[0.0, 0.0], c=[0.0, 1.0], d=[1.0, 1.0]), {})
    assert [row["verdict"] for row in told["evidence"]] == [HOLDS, OPEN, FAILS]
    assert told["verdict"] == FAILS


def test_what_was_not_run_is_said_and_the_rest_is_judged():
    claim = Claim("", (Above(A, D), Above(A, B), Near(D, B, 1), Grows((A, B), (B, D))))
    told = judge_claim(claim, by_hand(a=[0.25, 0.25], b=[0.5, 0.5]), {A: 0.5, D: 0.25})
    assert told["verdict"] == FAILS
    assert [row["verdict"] for row in told["evidence"]] == [NOT_RUN, FAILS, NOT_RUN, NOT_RUN]
    assert told["evidence"][0] == {
        "comparison": "a at alpha = 0.1 above d at alpha = 0.1",
        "verdict": NOT_RUN,
    }
    assert judge_claim(Claim("", (Above(A, D),)), by_hand(a=[1.0]), {})["verdict"] == NOT_RUN


def test_comparisons_in_words():
    low = Cell("low", 100)
    assert str(Above(A, low)) == "a at alpha = 0.1 above low at alpha = 100"
    assert str(Above(A, B, 0.01)) == "a at alpha = 0.1 at least (within 0.01) b at alpha = 0.1"
    assert str(Near(A, B, 0.03)) == "a at alpha = 0.1 within 0.03 of b at alpha = 0.1"
    wider = (
        "(a at alpha = 0.1 less b at alpha = 0.1) "
        "wider than (c at alpha = 0.1 less d at alpha = 0.1)"
    )
    assert str(Grows((A, B), (C, D))) == wider
    assert str(Grows((A, B), (C, D), 0.02)) == f"{wider} by 0.02"


hundredths = st.integers(0, 100).map(lambda n: n / 100)


@given(
    st.lists(
        st.tuples(hundredths, hundredths).filter(lambda pair: pair[0] != pair[1]),
        min_size=1,
        max_size=5,
    )
)
def test_without_ties_what_holds_one_way_fails_the_other(pairs):
    figures = by_hand(a=[a for a, _ in pairs], b=[b for _, b in pairs])
    there, back = (
        judge_comparison(comparison, compute_gaps(comparison, figures))
        for comparison in (Above(A, B), Above(B, A))
    )
    assert (there, back) in {(HOLDS, FAILS), (FAILS, HOLDS), (OPEN, OPEN)}


@given(
    st.lists(st.tuples(hundredths, hundredths), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_seeds_does_not_matter(pairs, random):
    claim = Claim("", (Above(A, B), Near(A, B, 0.05), Grows((A, B), (B, A))))
    one, other = (
        judge_claim(claim, by_hand(a=[a for a, _ in rows], b=[b for _, b in rows]), {})
        for rows in (pairs, random.sample(pairs, len(pairs)))
    )
    assert one["verdict"] == other["verdict"]
    assert [row["gap"] for row in one["evidence"]] == [row["gap"] for row in other["evidence"]]


@pytest.mark.parametrize(
    ("figures", "said"),
    [([0.4, 0.6], HOLDS), ([0.4, 0.59], FAILS), ([0.5], HOLDS), ([0.51, 0.51], HOLDS)],
)
def test_a_figure_is_reached_by_the_mean_of_the_seeds(figures, said):
    told = judge_claim(Claim("", (Reaches(A, 0.5),)), {A: figures}, {})
    assert told["verdict"] == said
    assert told["evidence"][0]["comparison"] == "a at alpha = 0.1 at least 0.5 in the mean"


@pytest.mark.parametrize(
    ("comparison", "said", "text"),
    [
        (Fits(A, 20), HOLDS, "the mean upload of a at alpha = 0.1 in 20 bytes"),
        (Fits(A, 19), OPEN, "the mean upload of a at alpha = 0.1 in 19 bytes"),
        (Fits(A, 17), FAILS, "the mean upload of a at alpha = 0.1 in 17 bytes"),
        (Fits(A, 1030, "largest"), HOLDS, "every upload of a at alpha = 0.1 in 1,030 bytes"),
        (Fits(A, 1029, "largest"), OPEN, "every upload of a at alpha = 0.1 in 1,029 bytes"),
    ],
)
def test_uploads_fit_if_they_have_as_many_bytes_as_allowed_and_no_more(comparison, said, text):
    sizes = {"mean": {A: [18.0, 20.0]}, "largest": {A: [25.0, 1030.0]}}
    (row,) = judge_claim(Claim("", (comparison,)), {A: [0.5, 0.5]}, {}, sizes)["evidence"]
    assert (row["verdict"], row["comparison"], row["unit"]) == (said, text, "bytes")
