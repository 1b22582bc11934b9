"""Attacks on soft labels.

p(x) are the client's own predictions, t(x) the mean of what honest clients upload on x in this
round, or p(x) where none does. e(c) is the row that is certain of class c. Compare Roux, Zimmer and
Pokutta (2025), whose names LMA, CPA and HIPS these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedsift import registry
from fedsift.aggregators.contradictions import ALWAYS, weigh_classes
from fedsift.attacks.scene import Scene, next_class, one_hot
from fedsift.checks import check_number, check_whole
from fedsift.types import Array, LabelAnswer, SoftLabels, UserError

LEAST = 1e-12  # a probability below this is none
GOALS = ("lma", "cpa")
LIES = ("next", "rarest")


def random(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """e(c) with c drawn for every sample and round."""
    samples, classes = answer.predicted.shape
    return _say(answer, scene.own.integers(classes, size=samples))


@dataclass(frozen=True)
class Fixed:
    """e(label) on every sample.

    label: the class
    """

    label: int = 0

    def __post_init__(self) -> None:
        check_whole("label", self.label)
        if self.label < 0:
            raise UserError(f"fixed takes a class, 0 or more, not {self.label}")

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        samples, classes = answer.predicted.shape
        if self.label >= classes:
            raise UserError(
                f"fixed({self.label}): there are {classes} classes; the last is {classes - 1}"
            )
        return _say(answer, np.full(samples, self.label))


def flipped(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """p(C - 1 - c | x) for class c: as certain as the client is, of another class."""
    return replace(answer, probs=answer.predicted[:, ::-1])


def runner_up(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """e(second largest class of t(x))."""
    mean, _ = scene.honest_mean(answer.predicted)
    return _say(answer, np.argsort(-mean, 1, kind="stable")[:, 1])


def lma(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """Loss maximisation: e(least likely class of t(x))."""
    mean, _ = scene.honest_mean(answer.predicted)
    return _say(answer, mean.argmin(1))


def cpa(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """Class prior attack: e(class least like the top class of t(x)), by covariance."""
    mean, _ = scene.honest_mean(answer.predicted)
    similarity = _find_similarity(mean, scene)
    np.fill_diagonal(similarity, np.inf)  # a class is never least like itself
    return _say(answer, similarity[mean.argmax(1)].argmin(1))


@dataclass(frozen=True)
class Hips:
    """Hide in the hull: on every sample the row of the honest client that does most harm.

    goal: what harms: "lma", the loss CE(t, (1 - s) t + s y); "cpa", being unlike t's top class

    y is the row of an honest client, and s the hostile share of the cohort.
    """

    goal: str = "lma"

    def __post_init__(self) -> None:
        registry.lookup(dict.fromkeys(GOALS), "goal", self.goal, " or ".join(GOALS))

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        mean, votes = scene.honest_mean(answer.predicted)
        harm = np.full(len(mean), -np.inf)
        probs = np.array(answer.predicted)
        similarity = _find_similarity(mean, scene)
        for sample in np.flatnonzero(votes).tolist():
            rows = scene.honest_rows(sample)
            found = self._find_harm(mean[sample], rows, similarity, scene.share)
            worst = int(found.argmax())
            probs[sample], harm[sample] = rows[worst], found[worst]
        return replace(answer, probs=probs, rows=np.argsort(-harm, kind="stable"))

    def _find_harm(self, mean: Array, rows: Array, similarity: Array, share: float) -> Array:
        """Of every honest row for one sample, [k]."""
        if self.goal == "lma":  # the server's mean has (1 - s) honest votes, not s
            mixed = (1 - share) * mean + share * rows
            harm: Array = -(mean * np.log(np.maximum(mixed, LEAST))).sum(1)
            return harm
        like: Array = similarity[mean.argmax()]
        return -(rows @ like)


def wrong(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """e(class after the likeliest of p(x)), on random rows, as many as are allowed."""
    lies = _say(answer, next_class(answer.predicted))
    return replace(lies, rows=scene.own.permutation(len(answer.probs)))


def colluding(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """One wrong label map for the run, on the same rows at all hostile clients.

    The class is the likeliest of the mean of their predictions, moved as the map says.
    """
    together = np.mean([other.predicted for other in scene.answers.values()], axis=0)
    classes = together.shape[1]
    moved = _make_wrong_map(classes, scene.agreed)[together.argmax(1)]
    return replace(_say(answer, moved), rows=scene.shared.permutation(len(together)))


@dataclass(frozen=True)
class Hollow:
    """The likeliest class of p(x) by a hair, and all the rest on the class after it.

    hair: how far the true class is ahead; rules that look at the likeliest class see nothing
    """

    hair: float = 0.02

    def __post_init__(self) -> None:
        check_number("hair", self.hair)
        if not 0 < self.hair <= 1:
            raise UserError(f"hollow takes a hair above 0 up to 1, not {self.hair}")

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        top = answer.predicted.argmax(1)
        classes = answer.predicted.shape[1]
        true, false = one_hot(top, classes), one_hot(next_class(answer.predicted), classes)
        ahead = self.hair / 2
        probs = (0.5 + ahead) * true + (0.5 - ahead) * false
        return replace(answer, probs=probs, rows=scene.own.permutation(len(probs)))


@dataclass(frozen=True)
class Adaptive:
    """Knows the rule `trust`: wrong on so many rows that it agrees as often as honest clients do.

    slack: what is added to the share of wrong rows
    lie: "next" names the class after the likeliest, "rarest" the one that the student names least

    Agreement is with the student that it received. A client that chooses its rows is wrong where no
    honest client uploads anything, so that nobody contradicts it. One that cannot choose also holds
    itself to the agreement with honest uploads. Its other rows say what the student says. With
    "rarest" it also knows `penalty` of trust, and has no more wrong rows than that leaves alone.
    """

    slack: float = 0.0
    lie: str = "next"

    sees_student: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("slack", self.slack)
        if not -1 < self.slack < 1:
            raise UserError(f"adaptive takes a slack between -1 and 1, not {self.slack}")
        registry.lookup(dict.fromkeys(LIES), "lie", self.lie, " or ".join(LIES))

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        own, student = answer.predicted.argmax(1), scene.find_student().argmax(1)
        _, votes = scene.honest_mean(answer.predicted)
        share = self._find_share(answer, scene)
        order = scene.shared.permutation(len(own))
        if (own == student).any():  # a student that knows nothing may agree nowhere
            order = order[own[order] == student[order]]  # a lie there is a lie, the truth no news
        free = order[votes[order] == 0] if answer.chooses else order
        lies = free[: int(share * len(order))]
        named = next_class(answer.predicted)
        if self.lie == "rarest":
            rarest = _count_named(scene).argmin()
            named = np.where(own == rarest, named, rarest)
        probs = np.array(answer.predicted)
        probs[lies] = one_hot(named[lies], probs.shape[1])
        rest = order[~np.isin(order, lies)]
        return replace(answer, probs=probs, rows=_interleave(lies, rest, share))

    def _find_share(self, answer: LabelAnswer, scene: Scene) -> float:
        """Of its rows that are wrong."""
        usual = 1 - self._find_rate(answer, scene)
        share = usual + self.slack
        if self.lie == "rarest":
            weight = float(weigh_classes(_count_named(scene)).min())
            share = min(share, max(usual, ALWAYS) / max(weight, LEAST))
        return float(np.clip(share, 0, 1))

    def _find_rate(self, answer: LabelAnswer, scene: Scene) -> float:
        """How often honest clients agree with the student, and the others: the median over them."""
        mean, _ = scene.honest_mean(answer.predicted)
        rates = [_find_agreement(scene.honest.values(), scene.find_student())]
        if not answer.chooses:
            rates.append(_find_agreement(scene.honest.values(), mean))
        return max(rates)


@dataclass(frozen=True)
class Persistent:
    """Knows the rule `trust`: lies while the students know nothing, and repeats what they believed.

    sets: of samples that it speaks about in turn; with 2 or more it repeats nothing at once

    Every sample has one lie for the whole run. In the first round all rows are lies. Later it
    repeats those that the student has taken over, and adds as many as honest clients have
    contradictions. Its other rows say what the student says. It speaks about the same samples again
    and again but, if it can choose, not where honest clients upload anything.
    """

    sets: int = 1

    sees_student: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("sets", self.sets)
        if self.sets < 1:
            raise UserError(f"persistent takes 1 set of samples or more, not {self.sets}")

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        own, student = answer.predicted.argmax(1), scene.find_student().argmax(1)
        samples, classes = answer.predicted.shape
        agreed = scene.agreed
        order, false = agreed.permutation(samples), agreed.integers(classes, size=samples)
        mine = order[scene.r.number % self.sets :: self.sets]
        if answer.chooses:
            _, votes = scene.honest_mean(answer.predicted)
            mine = mine[votes[mine] == 0]
        lies = mine[own[mine] != false[mine]]
        if scene.r.number:
            believed = student[lies] == false[lies]
            usual = 1 - _find_agreement(scene.honest.values(), scene.find_student())
            new = lies[~believed][: int(max(usual, ALWAYS) * answer.budget)]
            lies = np.concatenate([lies[believed], new])
        said = student.copy()
        said[lies] = false[lies]
        truths = mine[(own[mine] == said[mine]) & ~np.isin(mine, lies)]
        first = np.concatenate([lies, truths])
        rest = order[~np.isin(order, first)]
        return replace(_say(answer, said), rows=np.concatenate([first, rest]))


@dataclass(frozen=True)
class OverBudget:
    """e(class after the likeliest) on every public sample: more than the budget allows."""

    def __call__(self, answer: LabelAnswer, scene: Scene) -> LabelAnswer:
        every = len(answer.probs)
        lies = _say(answer, next_class(answer.predicted))
        return replace(lies, rows=np.arange(every), budget=every, max_bytes=None)


def _say(answer: LabelAnswer, said: Array) -> LabelAnswer:
    """The answer, certain of these classes."""
    return replace(answer, probs=one_hot(said, answer.predicted.shape[1]))


def _make_wrong_map(classes: int, generator: np.random.Generator) -> Array:
    """Class -> another class, no two to the same one: a cycle through all of them."""
    order = generator.permutation(classes)
    moved = np.empty(classes, np.int64)
    moved[order] = np.roll(order, -1)
    return moved


def _find_similarity(mean: Array, scene: Scene) -> Array:
    """Of classes: the covariance of the probabilities that honest clients upload, [C, C]."""
    heard = [labels.probs for labels in scene.honest.values()]
    rows = np.concatenate(heard) if heard else mean
    similarity: Array = np.cov(rows.astype(np.float64), rowvar=False, bias=True)
    return similarity


def _count_named(scene: Scene) -> Array:
    """How many public samples the student takes for each class, [C]."""
    student = scene.find_student()
    return np.bincount(student.argmax(1), minlength=student.shape[1])


def _find_agreement(uploads: Iterable[SoftLabels], predictions: Array) -> float:
    """How often the likeliest class is that of the predictions: the median over the clients."""
    top = predictions.argmax(1)
    rates = [float((u.probs.argmax(1) == top[u.index]).mean()) for u in uploads if len(u)]
    return float(np.median(rates)) if rates else 1.0


def _interleave(some: Array, others: Array, share: float) -> Array:
    """Both, so that `share` of every beginning is of the first."""
    places = [(np.arange(len(some)) + 0.5) / max(share, LEAST)]
    places.append((np.arange(len(others)) + 0.5) / max(1 - share, LEAST))
    order = np.argsort(np.concatenate(places), kind="stable")
    found: Array = np.concatenate([some, others])[order]
    return found
