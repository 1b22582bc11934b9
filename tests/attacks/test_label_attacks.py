"""Attacks on soft labels: hand-worked rows first, then what holds for all of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import registry
from fedsift.attacks import ATTACKS, Scene
from fedsift.types import LabelAnswer, SoftLabels, UserError
from tests.helpers.federations import a_federation

PREDICTED = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]])
# Two honest clients: both upload sample 0, one each of samples 1 and 2, nobody sample 3.
HONEST = {
    4: SoftLabels(np.array([0, 1]), np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])),
    5: SoftLabels(np.array([0, 2]), np.array([[0.2, 0.3, 0.5], [0.3, 0.1, 0.6]])),
}
FEDERATION = a_federation(fedsift.fas(8))


def attack(text: str) -> Any:
    return registry.build(ATTACKS, "attack", text)


def answer(**changes: Any) -> LabelAnswer:
    return replace(LabelAnswer(PREDICTED, PREDICTED, 2), **changes)


def scene(client: int = 0, round: int = 0, **changes: Any) -> Scene:
    r = FEDERATION.round(round)
    answers = {0: answer(), 1: answer()}
    found = Scene(FEDERATION.clients[client], r, (0, 1), 4, answers, lambda: HONEST, PREDICTED)
    return replace(found, **changes)


def classes_of(text: str, **changes: Any) -> list[int]:
    """The class of each row, which must be certain."""
    probs = attack(text)(answer(), scene(**changes)).probs
    assert probs.max(1).tolist() == [1.0] * 4 and probs.sum() == 4
    return [int(top) for top in probs.argmax(1)]


def test_random_draws_a_class_for_every_sample_anew_in_every_round():
    drawn = [tuple(classes_of("random", round=n)) for n in range(5)]
    assert len(set(drawn)) > 1 and {top for of in drawn for top in of} == {0, 1, 2}
    assert classes_of("random") == list(drawn[0])  # a function of seed, round and client
    assert any(classes_of("random", round=n, client=1) != list(drawn[n]) for n in range(5))


def test_fixed_always_says_the_same_class():
    assert classes_of("fixed") == [0, 0, 0, 0]
    assert classes_of("fixed(2)") == [2, 2, 2, 2]
    with pytest.raises(UserError, match="there are 3 classes; the last is 2"):
        classes_of("fixed(3)")


def test_flipped_says_the_classes_in_reverse():
    assert attack("flipped")(answer(), scene()).probs.tolist() == PREDICTED[:, ::-1].tolist()


def test_the_honest_mean_counts_the_votes_and_falls_back_on_own_predictions():
    mean, votes = scene().honest_mean(PREDICTED)
    assert votes.tolist() == [2, 1, 1, 0]
    expected = [[0.4, 0.3, 0.3], [0.2, 0.7, 0.1], [0.3, 0.1, 0.6], [0.5, 0.3, 0.2]]
    assert mean.tolist() == pytest.approx(np.array(expected))


def test_runner_up_says_the_second_class_of_the_honest_mean():
    assert classes_of("runner-up") == [1, 0, 0, 1]


def test_lma_says_the_least_likely_class_of_the_honest_mean():
    heard = {4: SoftLabels(np.array([0]), np.array([[0.6, 0.3, 0.1]]))}
    assert classes_of("lma", listen=lambda: heard) == [2, 0, 0, 2]
    assert classes_of("lma")[1:] == [2, 1, 2]


def test_cpa_says_the_class_that_varies_least_with_the_top_class():
    """Classes 0 and 1 rise and fall together in what is heard; class 2 falls as they rise."""
    rows = np.array([[0.4, 0.4, 0.2], [0.1, 0.1, 0.8], [0.3, 0.25, 0.45]])
    heard = {4: SoftLabels(np.array([0, 1, 2]), rows)}
    covariance = np.cov(rows, rowvar=False)
    assert covariance[0, 1] > 0 > covariance[0, 2]
    # top classes: 0, 2, 2 of the rows heard, 0 of its own prediction
    assert classes_of("cpa", listen=lambda: heard)[0] == 2
    assert classes_of("cpa", listen=lambda: heard)[3] == 2
    least = int(np.argmin(covariance[2, :2]))
    assert classes_of("cpa", listen=lambda: heard)[1:3] == [least, least]


def test_hips_sends_the_honest_row_with_the_largest_loss():
    """Sample 0, t = (.4, .3, .3), hostile share 2 of 4: CE(t, (t + y) / 2) of both rows."""
    t = np.array([0.4, 0.3, 0.3])
    losses = [-(t * np.log((t + y) / 2)).sum() for y in (HONEST[4].probs[0], HONEST[5].probs[0])]
    worst = HONEST[4 + int(np.argmax(losses))].probs[0]
    said = attack("hips")(answer(), scene())
    assert said.probs[0].tolist() == worst.tolist()
    assert said.probs[1].tolist() == HONEST[4].probs[1].tolist()  # one honest row: that one
    assert said.probs[3].tolist() == PREDICTED[3].tolist()  # none: its own
    assert said.rows[-1] == 3  # where it cannot hide it says something last


def test_hips_weighs_honest_votes_by_their_share():
    """With few hostile clients their row moves the mean little: the loss tends to H(t)."""
    t, rows = np.array([0.5, 0.5]), np.array([[0.5, 0.5], [0.9, 0.1]])
    one, other = attack("hips")._find_harm(t, rows, np.eye(2), 0.0)
    assert one == pytest.approx(np.log(2)) and other == pytest.approx(np.log(2))
    one, other = attack("hips")._find_harm(t, rows, np.eye(2), 0.5)
    assert other == pytest.approx(-0.5 * (np.log(0.7) + np.log(0.3))) and other > one


def test_hips_for_cpa_sends_the_row_least_like_the_top_class():
    rows, like = np.array([[0.6, 0.4], [0.1, 0.9]]), np.array([[0.2, -0.2], [-0.2, 0.2]])
    harm = attack("hips(cpa)")._find_harm(np.array([0.8, 0.2]), rows, like, 0.3)
    assert harm.tolist() == pytest.approx([-0.04, 0.16])  # -(.12 - .08), -(.02 - .18)


def test_colluding_clients_say_the_same_on_the_same_rows_but_never_the_truth():
    said = [attack("colluding")(answer(), scene(client=client)) for client in (0, 1)]
    assert said[0].probs.tolist() == said[1].probs.tolist()
    assert said[0].rows.tolist() == said[1].rows.tolist()
    tops = said[0].probs.argmax(1)
    assert (tops != PREDICTED.argmax(1)).all()
    assert tops[0] == tops[3]  # one map for all samples of a class ...
    later = attack("colluding")(answer(), scene(round=3))
    assert later.probs.tolist() == said[0].probs.tolist()  # ... and for all rounds


def test_hollow_keeps_the_likeliest_class_by_a_hair():
    said = attack("hollow(0.1)")(answer(), scene()).probs
    assert said[0].tolist() == pytest.approx([0.55, 0.45, 0.0])
    assert said[2].tolist() == pytest.approx([0.45, 0.0, 0.55])
    assert said.argmax(1).tolist() == PREDICTED.argmax(1).tolist()


def test_over_budget_answers_on_everything():
    said = attack("over-budget")(answer(max_bytes=30), scene())
    assert said.rows.tolist() == [0, 1, 2, 3]
    assert (said.budget, said.max_bytes) == (4, None)
    assert said.probs.argmax(1).tolist() == [1, 2, 0, 1]


def test_false_answers_are_one_class_off_and_the_rows_those_of_the_attack():
    own, here = answer(), scene()
    lies, plain = attack("false-answers(lma)")(own, here), attack("lma")(own, here)
    classes = own.predicted.shape[1]
    assert lies.answers is not None and plain.answers is None
    assert (lies.answers == (own.predicted.argmax(1) + 1) % classes).all()
    assert (lies.probs == plain.probs).all()
    assert attack("false-answers(adaptive)").sees_student


def test_a_sleeper_is_honest_until_its_round():
    sleeper, own = attack("sleeper(wrong, round=2)"), answer()
    assert [sleeper(own, scene(round=n)) is own for n in range(4)] == [True, True, False, False]
    assert sleeper.alters == "labels" and attack("sleeper(poison, round=1)").alters == "data"


# --- adaptive ---


def adaptive_scene(right: int, of: int = 10) -> tuple[LabelAnswer, Scene]:
    """100 samples of two classes, own and student agree; two honest clients upload ten each, of
    which `right` agree with the student."""
    predicted = np.tile([0.8, 0.2], (100, 1))
    rows = np.where(np.arange(of)[:, None] < right, [[0.9, 0.1]], [[0.1, 0.9]])
    heard = {
        4: SoftLabels(np.arange(of), rows),
        5: SoftLabels(np.arange(of, 2 * of), rows),
    }
    shown = replace(scene(), listen=lambda: heard, student=predicted)
    return LabelAnswer(predicted, predicted, 20), shown


@pytest.mark.parametrize("right", [5, 7, 9, 10])
def test_adaptive_agrees_with_the_student_as_often_as_honest_clients_do(right):
    own, shown = adaptive_scene(right)
    said = attack("adaptive")(own, shown)
    sent = said.rows[: said.budget]
    agreeing = (said.probs[sent].argmax(1) == 0).mean()
    assert agreeing == pytest.approx(right / 10, abs=0.051)


def test_adaptive_is_wrong_only_where_no_honest_client_says_anything():
    own, shown = adaptive_scene(5)
    said = attack("adaptive")(own, shown)
    lies = np.flatnonzero(said.probs.argmax(1) == 1)
    assert len(lies) == 50 and lies.min() >= 20


def test_adaptive_without_a_choice_of_rows_keeps_to_the_rate_on_all_samples():
    own, shown = adaptive_scene(7)
    said = attack("adaptive")(replace(own, chooses=False), shown)
    assert (said.probs.argmax(1) == 1).sum() == 0  # the honest mean is the honest rows: rate 1
    said = attack("adaptive(slack=0.2)")(replace(own, chooses=False), shown)
    assert (said.probs.argmax(1) == 1).sum() == 20


@pytest.mark.parametrize(
    ("rare", "right", "lies"),
    [
        (2, 7, 55),  # a contradiction counts 3 x 2 / 100 = .06: slack limits first
        (20, 8, 33),  # counts .6: a share of .2 / .6 is left alone
        (20, 10, 25),  # honest clients never contradict: .15 / .6
    ],
)
def test_adaptive_that_knows_the_penalty_names_the_rarest_class(rare, right, lies):
    _, shown = adaptive_scene(right)
    predicted = np.repeat([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1]], 50, axis=0)
    predicted[-rare:] = [0.1, 0.1, 0.8]
    heard = {
        client: SoftLabels(said.index, np.hstack([said.probs, np.zeros((10, 1))]))
        for client, said in shown.honest.items()
    }
    shown = replace(shown, listen=lambda: heard, student=predicted)
    said = attack("adaptive(slack=0.25, lie=rarest)")(LabelAnswer(predicted, predicted, 20), shown)
    lied = np.flatnonzero(said.probs.argmax(1) != predicted.argmax(1))
    assert len(lied) == lies
    named = said.probs[lied].argmax(1)
    assert set(named[predicted[lied].argmax(1) != 2]) == {2}


def test_adaptive_sends_rows_also_where_it_agrees_with_the_student_nowhere():
    own, shown = adaptive_scene(5)
    other = replace(shown, student=np.tile([0.2, 0.8], (100, 1)))
    said = attack("adaptive")(own, other)
    assert sorted(said.rows.tolist()) == list(range(100))


def test_an_attack_that_is_not_shown_the_student_says_so():
    for name in ("adaptive", "persistent"):
        with pytest.raises(UserError, match="sees_student = True"):
            attack(name)(answer(), scene(student=None))


# --- persistent ---


def test_persistent_lies_wherever_nobody_speaks_before_students_know_anything():
    own, shown = adaptive_scene(5)
    said = attack("persistent")(own, shown)
    sent, named = said.rows[: said.budget], said.probs.argmax(1)
    assert (named[sent] == 1).all() and sent.min() >= 20  # two classes: the other one is the lie
    assert sorted(said.rows.tolist()) == list(range(100))


@pytest.mark.parametrize(("right", "new"), [(10, 3), (7, 6)])
def test_persistent_repeats_what_was_believed_and_adds_as_many_lies_as_are_usual(right, new):
    # Honest clients contradict the student on 0 and 3 of 10 rows: .15 and .3 of 20 are new lies.
    own, shown = adaptive_scene(right)
    first = attack("persistent")(own, shown)
    lies = first.rows[:20]
    student = np.array(own.predicted)
    student[lies[:8]] = [0.2, 0.8]  # it has believed eight
    later = replace(shown, r=replace(shown.r, number=3), student=student)
    said = attack("persistent")(own, later)
    named = said.probs.argmax(1)
    assert named[said.rows[:8]].tolist() == [1] * 8
    assert set(said.rows[:8].tolist()) == set(lies[:8].tolist())
    assert np.flatnonzero(named[said.rows[8:]]).tolist() == list(range(new))


def test_persistent_with_two_sets_speaks_about_each_in_every_other_round():
    own, shown = adaptive_scene(10)
    rounds = [replace(shown, r=replace(shown.r, number=n)) for n in range(3)]
    one, two, three = (set(attack("persistent(sets=2)")(own, s).rows[:20].tolist()) for s in rounds)
    assert not one & two and not two & three and one & three


# --- all of them ---

NAMES = [name for name in ATTACKS if getattr(ATTACKS[name], "alters", "labels") == "labels"]


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32 - 1), voters=st.integers(0, 3))
def test_every_attack_says_probabilities_on_rows_that_exist(name, seed, voters):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(4, 0.3), 12)
    heard = {}
    for client in range(4, 4 + voters):
        index = np.sort(generator.choice(12, 5, replace=False))
        heard[client] = SoftLabels(index, generator.dirichlet(np.full(4, 0.3), 5))
    own = LabelAnswer(probs, probs, 5)
    shown = replace(scene(round=7), listen=lambda: heard, answers={0: own, 1: own}, student=probs)
    said = attack(name)(own, shown)
    assert said.probs.shape == probs.shape
    assert (said.probs >= 0).all() and said.probs.sum(1) == pytest.approx(np.ones(12))
    if said.rows is not None:
        assert len(np.unique(said.rows)) == len(said.rows) > 0
        assert said.rows.min() >= 0 and said.rows.max() < 12
    assert said.predicted is probs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fixed(-1)", "fixed takes a class, 0 or more, not -1"),
        ("hips(lmao)", "unknown goal 'lmao'; did you mean 'lma'?"),
        ("hollow(0)", "hollow takes a hair above 0 up to 1, not 0"),
        ("adaptive(lie=nxt)", "unknown lie 'nxt'; did you mean 'next'?"),
        ("persistent(0)", "persistent takes 1 set of samples or more, not 0"),
        ("adaptive(2)", "adaptive takes a slack between -1 and 1, not 2"),
        ("sleeper(wrong, round=-1)", "sleeper takes a round, 0 or more, not -1"),
        ("false-answers(poison)", "false-answers takes an attack on labels, not 'poison'"),
        ("sleeper(wrogn)", "unknown attack 'wrogn'; did you mean 'wrong'?"),
        ("inflated-counts(wrong)", "inflated-counts takes an attack on weights, not 'wrong'"),
    ],
)
def test_values_that_make_no_sense_are_refused(text, words):
    with pytest.raises(UserError) as refused:
        attack(text)
    assert words in str(refused.value)
