"""`trust`: clients are judged by how often they agree with students, others and audits."""

from math import ceil, exp, lgamma, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.aggregators import (
    AGGREGATORS,
    AuditAnswers,
    Seen,
    Trust,
    forget_client,
    mean,
    run_aggregator,
    run_and_judge,
)
from fedsift.aggregators.agreement import KINDS, Counts
from fedsift.aggregators.contradictions import doubt_repeated, limit_contradictions
from fedsift.aggregators.evidence import find_error_rate
from fedsift.aggregators.votes import cap_classes
from fedsift.registry import build
from fedsift.types import Round, SoftLabels, UserError
from tests.helpers import toys

SAMPLES, CLASSES = 40, 4


def a_round(number: int = 0) -> Round:
    public = toys.samples(tuple((float(i), 0.0) for i in range(SAMPLES)))
    models = (toys.model(),)
    return Round(number, 0, public, CLASSES, models, lambda client: models[0])


def says(classes: Any, index: Any = None, sure: float = 1.0) -> SoftLabels:
    """Rows that name these classes."""
    classes = np.asarray(classes)
    probs = np.full((len(classes), CLASSES), (1 - sure) / (CLASSES - 1))
    probs[np.arange(len(classes)), classes] = sure
    return SoftLabels(np.arange(len(classes)) if index is None else np.asarray(index), probs)


TRUTH = np.arange(SAMPLES) % CLASSES
LIES = (TRUTH + 1) % CLASSES
STUDENT = np.eye(CLASSES)[TRUTH]


def log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def limited(
    heard: dict[int, SoftLabels], trust: dict[int, float], students: Any, penalty: float = 1.0
) -> list[tuple[int, SoftLabels]]:
    """Nothing is repeated."""
    doubts = {id: np.zeros(len(one)) for id, one in heard.items()}
    return limit_contradictions(list(heard.items()), heard, trust, students, penalty, doubts)


# --- by hand ---


def test_trust_is_the_posterior_of_a_beta_binomial():
    # Four clients on samples that nobody shares, ten rows each. The student agrees with 10, 8, 8
    # and 0 of them. Rates with one row by chance: 10.25 / 11, 8.25 / 11 twice, .25 / 11. For each
    # client the median of the other three is .75.
    rows = np.split(np.arange(40), 4)
    right = (10, 8, 8, 0)
    named = [np.r_[TRUTH[rows[i]][:n], LIES[rows[i]][n:]] for i, n in enumerate(right)]
    uploads = [(i, says(named[i], rows[i])) for i in range(4)]
    rule, s = Trust(alike=6.0), 6.0
    _, _, found = run_and_judge(rule, uploads, {}, a_round(), Seen(STUDENT))
    for client, agreed in enumerate(right):
        honest = log_beta(agreed + s * 0.75, 10 - agreed + s * 0.25) - log_beta(s * 0.75, s * 0.25)
        hostile = log_beta(agreed + s / 4, 10 - agreed + s * 3 / 4) - log_beta(s / 4, s * 3 / 4)
        odds = 9 * exp(honest - hostile)
        assert found[client].trust == pytest.approx(odds / (1 + odds))
    assert [found[i].voteless for i in range(4)] == [False, False, False, True]


def test_a_client_without_a_vote_counts_nothing():
    uploads = [(0, says(TRUTH[:20])), (1, says(TRUTH[:20])), (2, says(LIES))]
    labels, _, found = run_and_judge(Trust(), uploads, {}, a_round(), Seen(STUDENT))
    assert [found[i].voteless for i in range(3)] == [False, False, True]
    assert labels.index.tolist() == list(range(20))  # client 2 alone has the other samples
    assert (labels.probs.argmax(1) == TRUTH[:20]).all()


def test_whoever_contradicts_the_students_most_keeps_the_likeliest_rows():
    # Ten rows each, of which 2, 3 and 5 contradict the students. For client 2 the others agree on
    # .8 and .7 of their rows; the lower median is .7, so 3 of 10 may contradict. It has 2 more:
    # these and 2 others do not count. The students give its five classes .01 to .05; .05 is left.
    rows, contradicting = np.split(np.arange(30), 3), (2, 3, 5)
    heard = {
        i: says(np.r_[LIES[rows[i]][:n], TRUTH[rows[i]][n:]], rows[i])
        for i, n in enumerate(contradicting)
    }
    students = 0.9 * STUDENT
    students[rows[2][:5], LIES[rows[2][:5]]] = [0.02, 0.01, 0.05, 0.03, 0.04]
    trust = dict.fromkeys(heard, 1.0)

    def limit(penalty: float) -> list[list[int]]:
        votes = limited(heard, trust, students, penalty)
        assert all((one.probs == says(one.probs.argmax(1)).probs).all() for _, one in votes)
        return [one.index.tolist() for _, one in votes]

    every, agreeing = [list(range(10)), list(range(10, 20))], list(range(25, 30))
    assert limit(1.0) == [*every, [22, *agreeing]]
    assert limit(0.0) == [*every, [22, 23, 24, *agreeing]]
    assert limit(2.0) == [*every, agreeing]
    # Its likeliest contradiction says half as much: 9.5 rows, 2.85 allowed, 1.65 above, 1.2 left.
    # The first takes .5 of it, the next would take it to 1.5.
    heard[2].probs[2] = says([LIES[22]], sure=0.625).probs
    votes = limited(heard, trust, students)
    assert votes[2][1].index.tolist() == [22, *agreeing]


def test_news_of_a_class_that_students_hardly_know_is_no_contradiction():
    # The students name class 3 on 5 of 40 samples, half an even share: a row that names it counts
    # half a contradiction. The other client never contradicts, so .15 of the rows may, 1.5 of ten.
    # Three rows of news are just that: all count. Four are 2: .5 above, 1 left, which is two rows.
    students = 0.9 * np.eye(CLASSES)[np.where((TRUTH == 3) & (np.arange(40) >= 20), 0, TRUTH)]
    heard = {0: says(TRUTH[:20])}
    for index, kept in (
        ([0, 1, 2, 4, 5, 6, 8, 23, 27, 31], [23, 27, 31]),
        ([0, 1, 2, 4, 5, 6, 23, 27, 31, 35], [23, 27]),
    ):
        heard[1] = says(TRUTH[index], index)
        votes = limited(heard, {0: 1.0, 1: 1.0}, students)
        assert votes[0][1].index.tolist() == list(range(20))
        assert votes[1][1].index.tolist() == [i for i in index if i < 20] + kept


def test_what_a_client_repeats_is_doubted_as_often_as_it_has_been_wrong():
    # The students have taken over what client 2 said: they agree with all it says. Of its ten rows
    # it sent eight before, with the same class, and has been wrong half of the time: they count
    # four. The others never contradict, so 1.5 of ten may; 2.5 is above that, and none is left.
    rows = np.split(np.arange(30), 3)
    heard = {i: says(LIES[rows[i]] if i == 2 else TRUTH[rows[i]], rows[i]) for i in range(3)}
    students = np.eye(CLASSES)[np.r_[TRUTH[:20], LIES[20:30], TRUTH[30:]]]
    last = says(np.r_[LIES[20:28], TRUTH[28:30], TRUTH[35:]], [*range(20, 30), *range(35, 40)])
    doubts = {i: np.zeros(10) for i in range(2)} | {2: doubt_repeated(heard[2], last, 0.5)}
    assert doubts[2].tolist() == [0.5] * 8 + [0.0] * 2
    trust = dict.fromkeys(heard, 1.0)
    votes = limit_contradictions(list(heard.items()), heard, trust, students, 1.0, doubts)
    assert [one.index.tolist() for _, one in votes] == [
        *(rows[i].tolist() for i in range(2)),
        [28, 29],
    ]
    assert doubt_repeated(heard[2], None, 0.5).tolist() == [0.0] * 10


def test_how_often_a_client_has_been_wrong_begins_at_the_usual_rate():
    # Six comparisons at the usual rate stand before those that were made. Without any the usual
    # rate is .8. Of 14 with a usual rate of .75, 3 agreed: 1 - (3 + 6 * .75) / 20.
    def counts(compared: float, agreed: float, usual: float) -> Counts:
        parts = np.zeros((3, len(KINDS)))
        parts[:, KINDS.index("hindsight")] = compared, agreed, usual
        return Counts(*parts)

    assert find_error_rate(counts(0, 0, 0), 6.0) == pytest.approx(0.2)
    assert find_error_rate(counts(14, 3, 10.5), 6.0) == pytest.approx(0.625)


def test_a_client_is_held_against_what_others_say_later():
    # In round 0 nobody shares a sample and no student knows anything. In round 1 the others label
    # ten samples of client 2's last upload, and contradict each; it now says only what all say.
    first = [(0, says(TRUTH[:10])), (1, says(TRUTH[10:20], range(10, 20)))]
    first.append((2, says(LIES[20:30], range(20, 30))))
    even = np.full((SAMPLES, CLASSES), 1 / CLASSES)
    _, memory, before = run_and_judge(Trust(), first, {}, a_round(), Seen(even))
    assert len({round(one.trust, 9) for one in before.values()}) == 1
    then = [(0, says(TRUTH[20:30], range(20, 30))), (1, says(TRUTH[20:30], range(20, 30)))]
    then.append((2, says(TRUTH[30:34], range(30, 34))))
    _, memory, found = run_and_judge(Trust(), then, memory, a_round(1), Seen(even))
    kind = KINDS.index("hindsight")
    counts = memory["by_client"]["2"]["counts"]
    assert (counts["compared"][kind], counts["agreed"][kind]) == (10, 0)
    assert found[2].trust < found[0].trust


@pytest.mark.parametrize("inner", ["mean", "era(0.1)", "memory(era(0.1))", "median"])
def test_rows_that_contradict_too_often_are_not_counted(inner):
    # Client 2 has five rows. It keeps its vote, as two of them agree, but others never contradict.
    lies = says(np.r_[LIES[30:33], TRUTH[33:35]], np.arange(30, 35))
    uploads = [(0, says(TRUTH[:20])), (1, says(TRUTH[:20])), (2, lies)]
    limited, unlimited = Trust(inner), Trust(inner, penalty=None)
    labels, _, found = run_and_judge(limited, uploads, {}, a_round(), Seen(STUDENT))
    assert not found[2].voteless
    assert labels.index.tolist() == [*range(20), 33, 34]
    for rule, seen in ((unlimited, Seen(STUDENT)), (limited, Seen())):
        labels, _, _ = run_and_judge(rule, uploads, {}, a_round(), seen)
        assert labels.index.tolist() == [*range(20), *range(30, 35)]


def test_of_one_class_only_the_surest_rows_count():
    # Eight rows, four classes: two even shares are four rows. Class 0 is named six times.
    sure = np.array([0.4, 0.9, 0.5, 0.8, 0.7, 0.6, 0.3, 0.9])
    named = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    probs = np.repeat((1 - sure)[:, None] / 3, CLASSES, 1)
    probs[np.arange(8), named] = sure
    labels = SoftLabels(np.arange(10, 18), probs, np.arange(8.0) + 1)
    capped = cap_classes(labels, 2.0)
    assert capped.index.tolist() == [11, 13, 14, 15, 16, 17]
    assert capped.weight is not None and capped.weight.tolist() == [2, 4, 5, 6, 7, 8]
    assert (capped.probs == probs[[1, 3, 4, 5, 6, 7]]).all()
    assert len(cap_classes(labels, 0.1)) == 2  # one row of each class that is named
    upload = [(0, SoftLabels(labels.index, probs))]
    assert len(run_aggregator(Trust(cap=2.0), upload, {}, a_round())[0]) == 6
    assert len(run_aggregator(Trust(), upload, {}, a_round())[0]) == 8


@given(
    st.lists(st.integers(0, CLASSES - 1), max_size=SAMPLES),
    st.floats(0.1, 5),
    st.integers(0, 2**31),
)
def test_a_cap_keeps_some_of_every_class_and_not_too_many(named, cap, seed):
    generator = np.random.default_rng(seed)
    index = np.sort(generator.choice(SAMPLES, len(named), replace=False))
    probs = np.eye(CLASSES)[np.array(named, int)] + generator.random((len(named), CLASSES)) / 2
    capped = cap_classes(SoftLabels(index, probs), cap)
    before, after = (np.bincount(p.argmax(1), minlength=CLASSES) for p in (probs, capped.probs))
    assert (after == np.minimum(before, ceil(cap * len(named) / CLASSES))).all()
    assert (np.diff(capped.index) > 0).all() and np.isin(capped.index, index).all()


def test_students_that_know_nothing_prove_nothing():
    flat = np.eye(CLASSES)[np.zeros(SAMPLES, int)]  # one class for all: a quarter agrees
    rows = np.split(np.arange(SAMPLES), 2)
    uploads = [(0, says(TRUTH[rows[0]], rows[0])), (1, says(LIES[rows[1]], rows[1]))]
    _, _, found = run_and_judge(Trust(), uploads, {}, a_round(), Seen(flat))
    assert found[0].trust == pytest.approx(0.9)  # the prior
    assert found[1].trust == pytest.approx(0.9)


def test_few_rows_are_little_evidence():
    def trust_in_liar(rows: int) -> float:
        new = np.arange(20, 20 + rows)
        uploads = [(i, says(TRUTH[:20])) for i in range(3)] + [(3, says(LIES[new], new))]
        return run_and_judge(Trust(), uploads, {}, a_round(), Seen(STUDENT))[2][3].trust

    found = [trust_in_liar(rows) for rows in (1, 2, 4, 8, 16)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.5 > found[2]


def test_others_are_enough_where_there_is_no_student():
    uploads = [(i, says(TRUTH)) for i in range(3)] + [(3, says(LIES))]
    labels, _ = run_aggregator(Trust(), uploads, {}, a_round())
    assert (labels.probs.argmax(1) == TRUTH).all()
    _, _, found = run_and_judge(Trust(), uploads, {}, a_round(), Seen())
    assert [found[i].voteless for i in range(4)] == [False, False, False, True]


def test_unsure_rows_hardly_count():
    # 12 rows of (.3 - .25) / .75 are 0.8 of a comparison.
    new = np.arange(20, 32)
    uploads = [(i, says(TRUTH[:20])) for i in range(3)]
    for sure, voteless in ((0.3, False), (1.0, True)):
        liar = (3, says(LIES[new], new, sure))
        _, _, found = run_and_judge(Trust(), [*uploads, liar], {}, a_round(), Seen(STUDENT))
        assert found[3].voteless == voteless


def test_nobody_is_surer_than_the_median_client():
    # Sureness .5, .5 and 1; client 2 alone has sample 39: (1, 0, 0, 0) becomes (.5, 1/6, 1/6, 1/6).
    uploads = [(0, says(TRUTH, sure=0.5)), (1, says(TRUTH, sure=0.5)), (2, says(TRUTH))]
    labels, _ = run_aggregator(Trust(), uploads, {}, a_round())
    assert labels.probs.max(1) == pytest.approx(np.full(SAMPLES, 0.5))
    assert labels.probs.min(1) == pytest.approx(np.full(SAMPLES, 1 / 6))


def test_samples_of_its_last_upload_are_not_held_against_the_student():
    """The student may have learnt them from the client itself."""
    fooled = np.eye(CLASSES)[np.r_[LIES[:20], TRUTH[20:]]]
    rule, half = Trust(), np.arange(20)
    first = [(0, says(TRUTH[20:], half + 20)), (1, says(LIES[:20], half))]
    _, memory, _ = run_and_judge(rule, first, {}, a_round(0), Seen())
    again = [(0, says(TRUTH[20:], half + 20)), (1, says(LIES[:20], half))]
    _, _, found = run_and_judge(rule, again, memory, a_round(1), Seen(fooled))
    assert found[1].trust == pytest.approx(0.9)  # nothing new was said


# --- over rounds ---


def test_a_sleeper_has_no_vote_in_the_round_in_which_it_turns():
    rule = Trust()
    memory: dict[str, Any] = {}
    rows = np.split(np.arange(SAMPLES), 2)
    for number in range(4):
        pick = rows[number % 2]
        said = LIES if number == 3 else TRUTH
        uploads = [(0, says(TRUTH[pick], pick)), (1, says(TRUTH[pick], pick))]
        uploads.append((2, says(said[pick], pick)))
        _, memory, found = run_and_judge(rule, uploads, memory, a_round(number), Seen(STUDENT))
        assert found[2].voteless == (number == 3)


def test_a_client_that_was_bad_comes_back_after_some_rounds():
    rule = Trust()
    memory: dict[str, Any] = {}
    voteless = []
    for number in range(6):
        pick = np.split(np.arange(SAMPLES), 2)[number % 2]
        said = LIES if number == 0 else TRUTH
        uploads = [(i, says(TRUTH[pick], pick)) for i in range(3)] + [(3, says(said[pick], pick))]
        _, memory, found = run_and_judge(rule, uploads, memory, a_round(number), Seen(STUDENT))
        voteless.append(found[3].voteless)
    assert voteless[0] and not voteless[-1]


def test_rows_that_nobody_compares_with_any_more_are_not_kept():
    """Two rounds: client 1 is heard in round 0, and compared with until round 2."""
    rule, kept = Trust(rounds=2), []
    memory: dict[str, Any] = {}
    for number in range(4):
        heard = [(0, says(TRUTH))] + ([(1, says(TRUTH))] if number == 0 else [])
        _, memory, _ = run_and_judge(rule, heard, memory, a_round(number), Seen())
        kept.append(len(memory["by_client"]["1"]["last"]["labels"]["index"]))
    assert kept == [SAMPLES, SAMPLES, 0, 0]
    assert float(memory["by_client"]["1"]["trust"]) > 0.5


def test_the_rule_inside_forgets_a_client_that_has_no_vote():
    rule, rows = Trust("memory(mean, rounds=1)"), np.split(np.arange(SAMPLES), 4)
    honest = [(i, says(TRUTH[rows[0]], rows[0])) for i in range(3)]
    first = [*honest, (3, says(TRUTH[rows[3]], rows[3]))]
    _, memory, _ = run_and_judge(rule, first, {}, a_round(0), Seen(STUDENT))
    honest = [(i, says(TRUTH[rows[1]], rows[1])) for i in range(3)]
    then = [*honest, (3, says(LIES[rows[2]], rows[2]))]
    labels, memory, found = run_and_judge(rule, then, memory, a_round(1), Seen(STUDENT))
    assert found[3].voteless
    assert labels.index.tolist() == rows[1].tolist()  # neither its new nor its old rows
    assert memory["inner"]["by_client"].keys() == {"0", "1", "2"}


def test_starting_over_clears_nobodys_name():
    """The rule inside forgets the client; its counts, its trust and its last upload stay."""
    rule = Trust("memory")
    uploads = [(i, says(TRUTH)) for i in range(3)] + [(3, says(LIES))]
    _, memory, _ = run_and_judge(rule, uploads, {}, a_round(), Seen(STUDENT))
    after = forget_client(rule, memory, 0)
    assert memory["inner"]["by_client"].keys() == {"0", "1", "2"}  # a liar has no vote
    assert after["inner"]["by_client"].keys() == {"1", "2"}
    again = forget_client(rule, memory, 3)
    liar, before = (tree["by_client"]["3"] for tree in (again, memory))
    assert float(liar["trust"]) == float(before["trust"]) < 0.2
    assert np.array_equal(liar["counts"]["agreed"], before["counts"]["agreed"])
    assert len(liar["last"]["labels"]["index"]) == SAMPLES
    honest = [(i, says(TRUTH)) for i in range(4)]
    _, _, fresh = run_and_judge(rule, honest, {}, a_round(1), Seen(STUDENT))
    _, _, found = run_and_judge(rule, honest, again, a_round(1), Seen(STUDENT))
    assert found[3].trust < fresh[3].trust  # what it did before still counts


def test_a_memory_that_does_not_fit_is_refused():
    rule = Trust()
    _, memory, _ = run_and_judge(rule, [(0, says(TRUTH))], {}, a_round(), Seen(STUDENT))
    for path, value in (
        (("counts", "agreed"), np.full(4, 1e9)),
        (("counts", "compared"), np.full(4, np.nan)),
        (("counts", "usual"), np.zeros(3)),
        (("trust",), np.array(1.5)),
        (("last", "round"), np.array(7)),
    ):
        broken = {"by_client": {"0": _changed(memory["by_client"]["0"], path, value)}}
        with pytest.raises(UserError, match="damaged"):
            run_and_judge(rule, [(0, says(TRUTH))], broken, a_round(1), Seen())


@given(sure=st.floats(0.26, 0.99), count=st.integers(2, SAMPLES))
def test_a_memory_of_full_agreement_fits(sure, count):
    """Rows come in float32; their sums must not exceed each other by a rounding error."""
    rows = says(TRUTH[:count], sure=sure)
    rows = SoftLabels(rows.index, rows.probs.astype(np.float32))
    rule = Trust()
    memory: dict[str, Any] = {}
    for number in range(3):
        _, memory, _ = run_and_judge(
            rule, [(0, rows), (1, rows)], memory, a_round(number), Seen(STUDENT)
        )
        for one in memory["by_client"].values():
            assert (one["counts"]["agreed"] <= one["counts"]["compared"]).all()
            assert one["counts"]["agreed"][1] == pytest.approx(one["counts"]["compared"][1])


def _changed(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return tree | {head: _changed(tree[head], tuple(rest), value) if rest else value}


# --- audits ---


def asked_about(rows: np.ndarray, answers: dict[int, np.ndarray]) -> Seen:
    return Seen(None, {id: AuditAnswers(rows, classes) for id, classes in answers.items()})


def test_what_others_answer_is_evidence_against_who_sent_the_row():
    # Rows that nobody shares, and no student. Client 2 lied in round 0, and all are asked about it.
    rule, rows = Trust(), np.split(np.arange(36), 3)
    said = [TRUTH, TRUTH, LIES]
    uploads = [(i, says(said[i][rows[i]], rows[i])) for i in range(3)]
    _, memory, found = run_and_judge(rule, uploads, {}, a_round(0), Seen())
    assert not found[2].voteless
    asked = np.arange(0, 36, 2)  # six rows of each
    honest = asked_about(asked, dict.fromkeys(range(3), TRUTH[asked]))
    _, _, found = run_and_judge(rule, uploads, memory, a_round(1), honest)
    assert [found[i].voteless for i in range(3)] == [False, False, True]


def test_one_that_contradicts_all_in_its_answers_has_no_vote():
    rule, rows = Trust(), np.split(np.arange(40), 5)
    uploads = [(i, says(TRUTH[rows[i]], rows[i])) for i in range(5)]
    _, memory, _ = run_and_judge(rule, uploads, {}, a_round(0), Seen())
    asked = np.arange(0, 40, 2)
    answers = {i: (LIES if i == 2 else TRUTH)[asked] for i in range(5)}
    _, _, found = run_and_judge(rule, uploads, memory, a_round(1), asked_about(asked, answers))
    assert [id for id in found if found[id].voteless] == [2]


def test_an_absent_client_is_audited_too():
    # Client 2 is absent in round 1, in which six of its rows are asked about. It comes back in
    # round 2, in which nobody knows more: half of what was found still speaks against it.
    rule, rows = Trust(), np.split(np.arange(36), 3)
    said = [TRUTH, TRUTH, LIES]
    uploads = [(i, says(said[i][rows[i]], rows[i])) for i in range(3)]
    _, memory, _ = run_and_judge(rule, uploads, {}, a_round(0), Seen())
    asked = np.arange(0, 36, 2)
    audit = asked_about(asked, dict.fromkeys(range(2), TRUTH[asked]))
    _, memory, _ = run_and_judge(rule, uploads[:2], memory, a_round(1), audit)
    counts = memory["by_client"]["2"]["counts"]
    audits = KINDS.index("audits")
    assert counts["compared"][audits] == pytest.approx(6)
    assert counts["agreed"][audits] == 0
    _, memory, found = run_and_judge(rule, uploads, memory, a_round(2), Seen())
    assert found[2].trust < 0.5 < 0.8 < found[0].trust
    assert memory["by_client"]["2"]["counts"]["compared"][audits] == pytest.approx(3)


def test_an_audit_asks_about_as_many_rows_of_each():
    rule = Trust()
    rows = np.split(np.arange(36), 3)
    uploads = [(i, says(TRUTH[rows[i]], rows[i])) for i in range(3)]
    _, memory = run_aggregator(rule, uploads, {}, a_round(0))
    restored = _restored(rule, memory)
    asked = rule.choose_audit(restored, 12, np.random.default_rng(0), a_round(1))
    assert [np.isin(asked, one).sum() for one in rows] == [4, 4, 4]
    assert (np.diff(asked) > 0).all()
    again = rule.choose_audit(restored, 12, np.random.default_rng(1), a_round(1))
    assert asked.tolist() != again.tolist()
    assert len(rule.choose_audit(restored, 64, np.random.default_rng(0), a_round(1))) == 36
    assert len(rule.choose_audit(restored, 12, np.random.default_rng(0), a_round(9))) == 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_usual_rate_of_nothing_or_all_is_damage(share):
    rule, uploads = Trust(), [(i, says(TRUTH)) for i in range(3)]
    _, memory = run_aggregator(rule, uploads, {}, a_round(0))
    counts = memory["by_client"]["1"]["counts"]
    assert counts["compared"][1] > 0  # the three overlap
    counts["usual"] = counts["compared"] * share
    with pytest.raises(UserError, match=r"memory of client 1 .* damaged"):
        run_aggregator(rule, uploads, memory, a_round(1))
    with pytest.raises(UserError, match=r"memory of client 1 .* damaged"):
        rule.choose_audit(_restored(rule, memory), 12, np.random.default_rng(0), a_round(1))


def _restored(rule: Trust, memory: Any) -> Any:
    from fedsift.memory import from_tree

    return from_tree(rule.memory_type, memory)


# --- names ---


def test_names_and_values():
    rule = build(AGGREGATORS, "aggregator", "trust(memory(era(0.1)), alike=8)")
    assert isinstance(rule, Trust)
    assert rule.alike == 8
    for bad, why in (
        ("trust(alike=0)", "trust takes an alike above 0"),
        ("trust(cap=0)", "trust takes a cap above 0, in even shares, not 0"),
        ("trust(decay=2)", "trust takes"),
        ("trust(penalty=-1)", "trust takes a penalty of 0 or more, not -1"),
        ("trust(rounds=0)", "trust takes"),
        ("trust(trust)", "trust takes another rule"),
        ("trust(eraa)", "did you mean 'era'"),
    ):
        with pytest.raises(UserError, match=why):
            build(AGGREGATORS, "aggregator", bad)


# --- properties ---


@st.composite
def many_uploads(draw):
    clients = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    found = []
    for client in clients:
        index = sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)))
        rows = np.array([[draw(st.floats(0.01, 1)) for _ in range(CLASSES)] for _ in index])
        labels = SoftLabels(np.array(index), rows / rows.sum(1, keepdims=True))
        found.append((client, labels))
    return found


@given(uploads=many_uploads(), data=st.data())
def test_the_order_of_uploads_does_not_matter(uploads, data):
    mixed = data.draw(st.permutations(uploads))
    first = run_and_judge(Trust(), uploads, {}, a_round(), Seen(STUDENT))
    second = run_and_judge(Trust(), mixed, {}, a_round(), Seen(STUDENT))
    assert (first[0].probs == second[0].probs).all()
    assert first[2] == second[2]


@given(uploads=many_uploads())
def test_somebody_always_has_a_vote_and_labels_are_probabilities(uploads):
    labels, memory, found = run_and_judge(Trust(), uploads, {}, a_round(), Seen(STUDENT))
    assert len(labels)
    assert not all(verdict.voteless for verdict in found.values())
    assert all(0 <= verdict.trust <= 1 for verdict in found.values())
    assert labels.probs.sum(1) == pytest.approx(np.ones(len(labels)))
    run_and_judge(Trust(), uploads, memory, a_round(1), Seen(STUDENT))  # the memory fits


@given(count=st.integers(2, 6))
def test_clients_that_agree_have_the_mean(count):
    uploads = [(i, says(TRUTH, sure=0.7)) for i in range(count)]
    labels, _, found = run_and_judge(Trust(), uploads, {}, a_round(), Seen(STUDENT))
    assert labels.probs == pytest.approx(mean(uploads, SAMPLES, CLASSES).probs)
    assert min(verdict.trust for verdict in found.values()) > 0.9


def test_the_prior_is_nine_to_one():
    from fedsift.aggregators.evidence import PRIOR

    assert pytest.approx(log(9)) == PRIOR
