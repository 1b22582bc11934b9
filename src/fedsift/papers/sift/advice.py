"""Which setting to use for the bytes one has, from the measured frontier.

Every measured data set and skew that fits the question is a case, at the end of the rounds and
half-way: harder data are not as far after as many rounds. In each case a method loses what it is
below the best one that fits. The method whose largest loss is the smallest is advised: so what all
data sets agree on comes first; of methods that are level, the one with the smallest uploads. Who
does not know the skew can write only one number of bytes into a setting, so on each data set a
method is judged with one. Where the size of the model is known, the data set with the nearest size
decides. No case is invented: what was not measured is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedsift.algorithms.sift import ENOUGH_BITS, OVERHEAD
from fedsift.papers.sift.items import FEDAVG
from fedsift.papers.sift.measured import LABELS, WEIGHTS, Point, Setting
from fedsift.reproduction.paper import Paper
from fedsift.reproduction.plans import Cell, Plan
from fedsift.types import UserError

SKEWS = {"strong": 0.1, "mild": 1.0, "none": 100.0}
NEAR = 0.01  # as good as the best: within a point
SIFT = "sift"
CHANCE = 0.003  # a standard error of three seeds: losses this close are level
Cases = dict[tuple[str, float], list[Point]]  # what fits, by data set and alpha


@dataclass(frozen=True)
class Question:
    """What a user has; None is not known."""

    bytes: int
    clients: int
    classes: int
    alpha: float | None = None
    mixed: bool = False  # clients have different models
    weights: int | None = None  # of their model


@dataclass(frozen=True)
class Case:
    """One data set at one skew: the advised point, the best that fits, and plain FedAvg."""

    setting: str
    alpha: float
    advised: Point
    best: Point
    fedavg: Point | None
    loss: float  # of the advised one, at the end or half-way, whichever is more


@dataclass(frozen=True)
class Advice:
    """The method, the cases it rests on, and what was asked beyond them."""

    method: str
    cases: list[Case]
    beyond: list[str]
    settings: dict[str, Any] = field(repr=False)  # as in a TOML file

    @property
    def agree(self) -> bool:
        """Whether the method is the best, or within a point of it, in every case."""
        return all(case.loss <= NEAR for case in self.cases)


def advise(question: Question, measured: Sequence[Setting], paper: Paper) -> Advice:
    """The method with the smallest largest loss over all cases that the question allows."""
    _check(question)
    if not measured:
        raise UserError(
            "no frontier has been measured yet: run fedsift reproduce sift frontier "
            "(--quick on the digits) and read its report"
        )
    cases = {
        (setting.name, alpha): _list_fitting(question, setting, alpha)
        for setting in measured
        for alpha in _choose_alphas(question, setting)
    }
    fitting = {case: points for case, points in cases.items() if points}
    if not fitting:
        raise UserError(_explain_nothing_fits(question, measured))
    settings = {setting.name: setting for setting in measured}
    near = _nearest_setting(question, [settings[name] for name, _ in fitting])
    if question.weights is not None:
        fitting = {case: points for case, points in fitting.items() if case[0] == near.name}
    method = _choose_method(fitting)
    found = [
        Case(
            name,
            alpha,
            advised,
            _best(fitting[name, alpha]),
            _find_fedavg(settings[name], alpha),
            _find_loss(advised, fitting[name, alpha]),
        )
        for (name, alpha), advised in _list_points(method, fitting).items()
    ]
    near = _nearest_setting(question, [settings[case.setting] for case in found])
    point = next(case.advised for case in found if case.setting == near.name)
    values = make_settings(question, near, point, paper)
    beyond = [
        f"No frontier has been committed for {name}."
        for name in paper.settings
        if name not in settings
    ]
    beyond += _list_beyond(question, measured, [case for case in cases if not cases[case]])
    for name in dict.fromkeys(case.setting for case in found):
        asked = [case.alpha for case in found if case.setting == name]
        beyond += _list_other_skews(question, settings[name], asked)
    if (most := values["algorithm"].get("bytes", question.bytes)) < question.bytes:
        beyond.append(f"The setting was measured with bytes = {most}; you may try up to yours.")
        beyond += _tell_mode(question, near, point, values)
    beyond += _list_changes(near, point, values)
    return Advice(method, found, beyond, values)


def _check(question: Question) -> None:
    counts = {"bytes": question.bytes, "clients": question.clients, "classes": question.classes}
    for name, value in counts.items():
        least = 2 if name == "classes" else 1
        if value < least:
            raise UserError(f"{name} must be at least {least}, not {value}")
    if question.alpha is not None and not 0 < question.alpha < math.inf:
        raise UserError(f"alpha must be a number above 0, not {question.alpha:g}")
    if question.weights is not None and question.weights < 1:
        raise UserError(f"weights must be at least 1, not {question.weights}")


# --- what fits ---


def _choose_alphas(question: Question, setting: Setting) -> list[float]:
    """The measured skew that is nearest to the one asked for; all, where it is not known."""
    known = sorted({point.alpha for point in setting.points})
    if question.alpha is None:
        return known
    asked = math.log(question.alpha)
    return [min(known, key=lambda alpha: abs(math.log(alpha) - asked))]


def _list_fitting(question: Question, setting: Setting, alpha: float) -> list[Point]:
    return [
        point
        for point in setting.points
        if point.alpha == alpha
        and (point.uploads == LABELS or not question.mixed)
        and estimate_bytes(point, setting, question.weights) <= question.bytes
    ]


def rank_methods(question: Question, setting: Setting, alpha: float) -> list[Point]:
    """Of each method the best point that fits; the best method first."""
    points = _list_fitting(question, setting, alpha)
    methods = dict.fromkeys(point.method for point in points)
    found = [best for method in methods if (best := _best_of(method, points))]
    return sorted(found, key=lambda point: -point.accuracy)


def estimate_bytes(point: Point, setting: Setting, weights: int | None) -> float:
    """The largest upload, with a model of so many weights where weights are uploaded."""
    if weights is None or setting.weights is None or point.uploads != WEIGHTS:
        return point.bytes
    return point.bytes * weights / setting.weights


def scale_cap(cap: int, question: Question, setting: Setting, point: Point) -> int:
    """`algorithm.bytes` for as many bits per weight as were measured; labels keep theirs."""
    scale = estimate_bytes(point, setting, question.weights) / point.bytes
    return min(question.bytes, math.floor(cap * scale))


def _explain_nothing_fits(question: Question, measured: Sequence[Setting]) -> str:
    usable = [
        (estimate_bytes(point, setting, question.weights), point.label, setting.name)
        for setting in measured
        for point in setting.points
        if point.uploads == LABELS or not question.mixed
    ]
    if not usable:
        return "nothing was measured that clients with different models can use"
    size, label, where = min(usable)
    return (
        f"nothing that was measured fits {question.bytes:,} bytes; the smallest upload is that "
        f"of {label} on {where}: {math.ceil(size):,} bytes"
    )


# --- what is best ---


def _best(points: Sequence[Point]) -> Point:
    """The highest accuracy; of equals the cheapest."""
    return max(points, key=lambda point: (point.accuracy, -point.bytes))


def _best_of(method: str, points: Sequence[Point]) -> Point | None:
    own = [point for point in points if point.method == method]
    return _best(own) if own else None


def _list_points(method: str, cases: Cases) -> dict[tuple[str, float], Point]:
    """The point of a method in each case: on one data set the same curve, so the same bytes."""
    found: dict[tuple[str, float], Point] = {}
    for name in dict.fromkeys(name for name, _ in cases):
        own = [
            (case, point)
            for case, points in cases.items()
            for point in points
            if case[0] == name and point.method == method
        ]
        if own:
            curve = _choose_curve([point for _, point in own])
            found |= {case: point for case, point in own if point.curve == curve}
    return found


def _choose_curve(points: Sequence[Point]) -> str:
    """The one that fits at the most skews; of those the one with the highest mean accuracy."""

    def rank(curve: str) -> tuple[int, float, int]:
        own = [point for point in points if point.curve == curve]
        return len(own), fmean(point.accuracy for point in own), -max(p.bytes for p in own)

    return max(dict.fromkeys(point.curve for point in points), key=rank)


def _choose_method(cases: Cases) -> str:
    """Of the methods that fit in the most cases, the one whose largest loss is the smallest; of
    those that are as good but for chance, the one with the smallest uploads.
    """
    methods = dict.fromkeys(point.method for points in cases.values() for point in points)
    found = {method: _list_points(method, cases) for method in methods}
    most = max(map(len, found.values()))
    losses = {
        method: max(_find_loss(own, cases[case]) for case, own in known.items())
        for method, known in found.items()
        if len(known) == most
    }
    least = min(losses.values())
    level = [method for method, loss in losses.items() if loss <= least + CHANCE]

    def rank(method: str) -> tuple[int, float]:
        own = found[method].values()
        return max(point.bytes for point in own), -fmean(point.accuracy for point in own)

    return min(level, key=rank)


def _find_loss(own: Point, points: Sequence[Point]) -> float:
    """How far it is below the best: at the end or half-way, whichever is more."""
    half = max(point.half for point in points)
    return max(_best(points).accuracy - own.accuracy, half - own.half)


def _find_fedavg(setting: Setting, alpha: float) -> Point | None:
    own = (p for p in setting.points if (p.curve, p.alpha) == (FEDAVG, alpha))
    return next(own, None)


def _nearest_setting(question: Question, settings: Sequence[Setting]) -> Setting:
    """The one with the most similar size of model, or the first."""
    sized = [setting for setting in settings if setting.weights]
    if question.weights is None or not sized:
        return settings[0]
    asked = math.log(question.weights)
    return min(sized, key=lambda setting: abs(math.log(setting.weights or 1) - asked))


# --- what was not measured ---


def _list_beyond(
    question: Question, measured: Sequence[Setting], empty: Sequence[tuple[str, float]]
) -> list[str]:
    """Where the question leaves what was measured, in sentences."""
    found = [
        f"Nothing that was measured on {name} fits {question.bytes:,} bytes."
        for name in dict.fromkeys(name for name, _ in empty)
    ]
    for what, asked in (("clients", question.clients), ("classes", question.classes)):
        known = sorted({getattr(setting, what) for setting in measured})
        if asked not in known:
            numbers = " and ".join(map(str, known))
            found.append(f"Only {numbers} {what} were measured, not {asked}.")
    alphas = sorted({point.alpha for setting in measured for point in setting.points})
    if question.alpha is not None and question.alpha not in alphas:
        numbers = ", ".join(f"{alpha:g}" for alpha in alphas)
        found.append(f"Only alpha = {numbers} were measured; the nearest one is used.")
    return found + _list_beyond_sizes(question, measured)


def _list_beyond_sizes(question: Question, measured: Sequence[Setting]) -> list[str]:
    found = []
    largest = max(
        estimate_bytes(point, setting, question.weights)
        for setting in measured
        for point in setting.points
    )
    if question.bytes > largest:
        found.append(f"No upload was larger than {math.ceil(largest):,} bytes: more are not used.")
    sizes = [setting.weights for setting in measured if setting.weights]
    if question.weights and sizes and not min(sizes) <= question.weights <= max(sizes):
        numbers = " and ".join(f"{size:,}" for size in sorted(sizes))
        found.append(
            f"Only models of {numbers} weights were measured; bytes of weights are scaled to yours."
        )
    return found


def _list_other_skews(question: Question, setting: Setting, asked: Sequence[float]) -> list[str]:
    """Methods that fit, and have been measured at other skews than those asked about."""
    fitting = [
        point.method
        for alpha in sorted({point.alpha for point in setting.points})
        for point in _list_fitting(question, setting, alpha)
    ]
    lacking: dict[tuple[float, ...], list[str]] = {}
    for method in dict.fromkeys(fitting):
        known = {point.alpha for point in setting.points if point.method == method}
        if missing := tuple(alpha for alpha in asked if alpha not in known):
            lacking.setdefault(missing, []).append(method)
    return [
        f"On {setting.name} these fit and were not measured at alpha ="
        f" {' and '.join(f'{alpha:g}' for alpha in missing)}, where they may be better:"
        f" {'; '.join(methods)}."
        for missing, methods in lacking.items()
    ]


def _tell_mode(
    question: Question, setting: Setting, point: Point, values: Mapping[str, Any]
) -> list[str]:
    """Whether sift, where it chooses its mode itself, would send weights instead of labels."""
    weights = question.weights or setting.weights
    chooses = values["algorithm"]["name"] == SIFT and "mode" not in values["algorithm"]
    if not chooses or point.uploads != LABELS or question.mixed or weights is None:
        return []
    if 8 * (question.bytes - OVERHEAD) / weights < ENOUGH_BITS:
        return []
    text = f"With bytes = {question.bytes} sift sends weights by itself; mode=labels keeps labels."
    own = [p for p in setting.points if p.method.startswith(SIFT) and p.uploads == WEIGHTS]
    sizes = [estimate_bytes(p, setting, question.weights) for p in own]
    if not sizes:
        return [f"{text} Its weights were not measured on {setting.name}."]
    if min(sizes) <= question.bytes:
        return [text]
    least = f"{math.ceil(min(sizes)):,}"
    return [f"{text} Its weights were measured on {setting.name} in {least} bytes and more only."]


def _list_changes(setting: Setting, point: Point, values: Mapping[str, Any]) -> list[str]:
    """Where the setting is not the one that was measured, since its file has changed."""
    found = []
    for key, measured in setting.find_changes(point.curve).items():
        section, _, name = key.partition(".")
        found.append(
            f"{point.label} on {setting.name} was measured with {key} = {measured}; the setting"
            f" has {_format(values[section][name])}, and has not been measured to the end."
        )
    return found


# --- the setting ---


def make_settings(
    question: Question, setting: Setting, point: Point, paper: Paper
) -> dict[str, Any]:
    """What the point was measured with, for so many clients."""
    plan = Plan(paper, setting.name, setting.recipe)
    values = plan.values(Cell(point.curve, point.alpha))
    values["name"] = "advised"
    if "bytes" in values["algorithm"]:
        values["algorithm"]["bytes"] = scale_cap(
            values["algorithm"]["bytes"], question, setting, point
        )
    values["clients"] |= {
        "count": question.clients,
        "cohort": min(setting.cohort, question.clients),
    }
    return values


def format_toml(values: dict[str, Any]) -> str:
    """Settings as a TOML file: plain values first, then the sections."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {_format(value)}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_format(value)}" for key, value in table.items())]
    return "\n".join(lines).lstrip() + "\n"


def _format(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
