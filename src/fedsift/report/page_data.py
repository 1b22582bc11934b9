"""What the report page shows, as one JSON object: figures of all runs, and some of what was said.

All of it comes from run folders, so all of it may come from a stranger: here it is only bounded.
The page shows texts as texts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fedsift import __version__, config, evaluation, ledger
from fedsift.files import locked_by_someone
from fedsift.report import Method, default_target, methods, name_accuracy, unpaired
from fedsift.report.formats import explain_figures, format_gap
from fedsift.report.gaps import Pairing, pair_methods
from fedsift.report.pages import to_safe_json
from fedsift.report.palette import colour_methods
from fedsift.report.thumbnails import fit_samples
from fedsift.runs import FAILED, LOCK, History, Recording, read_recording, resume_command
from fedsift.runs.folder import check_object, read_json
from fedsift.types import UserError

SAID = 600_000  # letters of all conversations in a page
FIGURES = 600_000  # letters of the figures of all runs; beyond that there are fewer of these:
CURVE = 400  # rounds of a curve
CLIENTS = 60  # whose labels are shown
SENDERS = 40  # whose bytes are
CLASS_ROUNDS, CLASSES = 60, 50  # of the accuracy by class
CONFUSION = 10_000  # cells
MISSING = 200  # clients that did not answer, with the reason
REASON = 300  # letters of a reason
NAMES = 100  # of classes
TEXT = 500  # letters of a name or a value

Row = dict[str, Any]
Recall = Callable[[Path], Recording | None]


def describe_page(
    histories: Sequence[History], waiting: Sequence[Row] = (), recall: Recall = read_recording
) -> Row:
    """The whole page. `waiting` are runs without a finished round; `recall` gives recordings."""
    compared = methods(histories)
    paired = pair_methods(compared)
    index = {id(run): number for number, run in enumerate(histories)}
    runs, shared = _describe_runs(histories)
    curves = [run["at"] for run in runs]
    shown, sheets, pictures = _list_conversations(histories, recall, curves)
    for run, said in zip(runs, shown, strict=True):
        run["said"] = said
    return {
        "fedsift": __version__,
        "accuracy_name": name_accuracy(histories),
        "explain": explain_figures(paired),
        "settled": evaluation.describe_average(min(len(run.metrics) for run in histories)),
        "target": default_target(compared),
        "methods": [
            _describe_method(method, colour, paired, default_target(compared))
            | {"runs": [index[id(run)] for run in method.runs]}
            for method, colour in zip(compared, colour_methods(compared), strict=True)
        ],
        "unpaired": unpaired(histories),
        "without_gap": {cut(name): cut(why) for name, why in paired.refusals.items()},
        "runs": runs,
        "shared": shared,
        "waiting": list(waiting),
        "samples": sheets,
        "pictures": pictures,
        "differences": _list_differences(histories),
    }


def _describe_method(method: Method, colour: str, paired: Pairing, target: float) -> Row:
    """A row of `compare --json`, with its colour."""
    gap = paired.gaps.get(method.label)
    told = {
        "colour": colour,
        "uplink_bytes_to_target": method.uplink_to(target),
        "gap": gap.row() if gap else None,
        "gap_text": format_gap(gap) if gap else "",
        "accuracies": [round(value, 6) for value in method.accuracies],
    }
    return method.row() | told | {"method": cut(method.label)}


def _describe_runs(histories: Sequence[History]) -> tuple[list[Row], Row]:
    """Of each run so much that all fit, but two rounds, two clients, ...; what all have alike."""
    longest = max(len(run.metrics) for run in histories)
    share = 1.0
    while True:
        grid = spread_rounds(longest, limit(min(longest, CURVE), share))
        runs = [describe_run(run, grid, share) for run in histories]
        shared = {key: _take_common(runs, key) for key in ("config", "environment")}
        letters = len(to_safe_json(runs))
        if letters <= FIGURES or share * CURVE < 2:
            return runs, shared
        share *= min(FIGURES / letters, 2 / 3)


def limit(most: int, share: float) -> int:
    """How many are shown of so many."""
    return max(2, int(most * share))


def _take_common(runs: Sequence[Row], key: str) -> Row:
    """What all runs have alike under this key, taken out of each."""
    first, *rest = [run[key] for run in runs]
    common = {name: v for name, v in first.items() if all(one.get(name) == v for one in rest)}
    for run in runs:
        run[key] = {name: value for name, value in run[key].items() if name not in common}
    return common


def describe_run(run: History, grid: Sequence[int], share: float = 1.0) -> Row:
    """One run at the rounds of a grid, without what was said in it; of lists a share."""
    metrics, sent = run.metrics, run.ledger
    last = len(metrics) - 1
    at = [*(number for number in grid if number < last), last]
    up, down = ([*accumulate(getattr(row, way) for row in sent)] for way in ("uplink", "downlink"))
    return {
        "name": cut(run.experiment.name),
        "folder": cut(str(run.folder)),
        "seed": run.experiment.seed,
        "rounds": len(metrics),
        "planned": run.experiment.rounds,
        "state": describe_state(run),
        "seconds": round(run.seconds, 1),
        "at": at,
        "accuracy": [round(metrics[i]["accuracy"], 6) for i in at],
        "up": [sent[i].uplink for i in at],
        "down": [sent[i].downlink for i in at],
        "all_up": [up[i] for i in at],
        "all_down": [down[i] for i in at],
        "right": [_right(metrics[i], "uploaded_labels") for i in at],
        "taught": [_right(metrics[i], "distilled_labels") for i in at],
        "by_class": _describe_classes(run, share),
        "classes": [cut(name, 60) for name in run.class_names[:NAMES]],
        **_describe_confusion(run, share),
        "clients": _describe_clients(run, share),
        "senders": _list_senders(run, share),
        "client_count": run.experiment.clients.count,
        "missing": _list_missing(run, share),
        "config": {key: cut(value) for key, value in _settings(run).items()},
        "environment": _describe_environment(run.environment),
        "command": cut(run.environment.get("command") or "", 2000),
        "resume": cut(resume_command(run.folder), 2000),
    }


def spread_rounds(count: int, most: int) -> list[int]:
    """At most so many rounds, evenly spaced, with the first and the last."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).round())
    return [int(number) for number in chosen]


def describe_state(run: History) -> Row:
    """Whether it has finished, failed or been stopped, and how often it was resumed."""
    again = len(run.environment.get("resumed", []))
    told: Row = {"resumed": again}
    if run.length >= run.experiment.rounds:
        return told | {"name": "finished"}
    if locked_by_someone(run.folder / LOCK):
        return told | {"name": "running"}
    if (run.folder / FAILED).is_file():
        return told | {"name": "failed", "why": _read_reason(run.folder / FAILED)}
    return told | {"name": "stopped"}


def _read_reason(path: Path) -> str:
    """Why a run failed. Nothing else depends on it, so a damaged file is no reason to stop."""
    try:
        return cut(read_json(path, check_object).get("error", ""))
    except UserError as error:
        return cut(error)


def _right(row: Row, name: str) -> float | None:
    return row[name]["right"] if name in row else None


def _describe_confusion(run: History, share: float) -> Row:
    """After the last round; none where it is too large."""
    table = run.metrics[-1].get("confusion")
    fits = table is None or len(table) ** 2 <= CONFUSION * share
    return {"confusion": table if fits else None, "confusion_left_out": not fits}


def _describe_classes(run: History, share: float) -> Row | None:
    """The accuracy of each class, at some rounds."""
    told = [i for i, row in enumerate(run.metrics) if row.get("class_accuracy")]
    if not told:
        return None
    at = [told[i] for i in spread_rounds(len(told), limit(min(len(told), CLASS_ROUNDS), share))]
    width = len(run.metrics[at[0]]["class_accuracy"])
    rows = [
        [None if v is None else round(v, 3) for v in run.metrics[i]["class_accuracy"][:CLASSES]]
        for i in at
    ]
    return {"at": at, "rows": rows, "classes": width}


def _describe_clients(run: History, share: float) -> list[Row]:
    """The first ones, with their labels."""
    return [
        {
            "id": client["client"],
            "name": cut(client.get("name", ""), 60),
            "model": cut(client["model"], 60),
            "labels": client["labels"][:CLASSES],
        }
        for client in run.clients[: limit(CLIENTS, share)]
    ]


def _list_senders(run: History, share: float) -> list[list[Any]]:
    """Id, name, bytes up and down: of all clients, or of many the busiest ones."""
    names = {client["client"]: cut(client.get("name", ""), 60) for client in run.clients}
    sent = dict.fromkeys(names, (0, 0)) | ledger.per_client(run.ledger)
    fit = limit(SENDERS, share)
    busy = [id for id in sent if any(sent[id]) or len(sent) <= fit]
    most = sorted(busy, key=lambda id: (-sum(sent[id]), id))[:fit]
    return [[id, names.get(id, ""), *sent[id]] for id in sorted(most)]


def _list_missing(run: History, share: float) -> Row:
    found = [(row.round, id, why) for row in run.ledger for id, why in sorted(row.missing.items())]
    most = limit(MISSING, share)
    rows = [[number, id, cut(why, REASON)] for number, id, why in found[-most:]]
    return {"count": len(found), "rows": rows}


def _settings(run: History) -> Row:
    values = config.resolve_values(run.experiment)
    return {key: value for key, value in values.items() if value not in (None, ())}


def _describe_environment(about: Row) -> Row:
    plain = {k: v for k, v in about.items() if isinstance(v, str | int | float) and k != "command"}
    return {cut(key, 60): cut(value) for key, value in plain.items()}


def _list_differences(histories: Sequence[History]) -> list[Row]:
    """Settings that not all runs share: key, and the value of each run."""
    settings = [config.resolve_values(run.experiment) for run in histories]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = [{"key": key, "values": [_tell(v.get(key)) for v in settings]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _tell(value: Any) -> str:
    """A setting; what a method does not have is a dash."""
    return "\u2013" if value is None else cut(value)


def cut(value: Any, most: int = TEXT) -> str:
    """A text of bounded length, without halves of letters."""
    text = str(value).encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


# --- what was said ---


def _list_conversations(
    histories: Sequence[History], recall: Recall, curves: Sequence[list[int]]
) -> tuple[list[Row | None], list[Row], list[Row]]:
    """Of each run some rounds, evenly spaced, so that all fit; the samples, each set once; and
    pictures that sets share. `curves`: the rounds of which a run shows figures."""
    found = [recall(run.folder) for run in histories]
    left = SAID
    share = left // max(1, sum(one is not None for one in found))
    sheets: dict[str, tuple[int, Row]] = {}
    named: list[Counter[int]] = []
    shown: list[Row | None] = []
    for run, recording, at in zip(histories, found, curves, strict=True):
        if recording is None:
            shown.append(None)
            continue
        digest = hashlib.sha256(json.dumps(recording.samples).encode()).hexdigest()
        place, _ = sheets.setdefault(digest, (len(sheets), recording.samples))
        known = {n: row for n, row in recording.rounds.items() if n < len(run.metrics)}
        rounds = _choose_rounds(known, share, left)
        left -= len(to_safe_json(rounds))
        said = _describe_conversation(known, at) | {"sheet": place, "rounds": rounds}
        named += [Counter()] * (place == len(named))
        named[place] += _count_named(said["rounds"].values())
        shown.append(said)
    return shown, *fit_samples([sheet for _, sheet in sheets.values()], named)


def _count_named(rounds: Iterable[Row]) -> Counter[int]:
    """Sample -> in how many of these rounds it is shown."""
    found: Counter[int] = Counter()
    for row in rounds:
        picked = {int(sample) for told in row["clients"].values() for sample in told["said"]}
        found.update(picked.union(row.get("disputed", ()), row.get("unlabelled", ())))
    return found


def _describe_conversation(known: dict[int, Row], curve: Iterable[int]) -> Row:
    """Figures of the rounds of a curve, and bytes of all rounds by their parts."""
    at = [number for number in curve if number in known]
    return {
        "at": at,
        "parts": {way: _sum_parts(known.values(), way) for way in ("up", "down")},
        "labelled": [known[i].get("labelled") for i in at],
        "contested": [known[i].get("contested") for i in at],
        "recorded": sum(bool(row.get("clients")) for row in known.values()),
    }


def _sum_parts(rounds: Iterable[Row], way: str) -> list[int]:
    return [
        sum(parts) for parts in zip(*(row["bytes"][way].values() for row in rounds), strict=True)
    ]


def _choose_rounds(known: dict[int, Row], share: int, left: int) -> dict[int, Row]:
    """As many as fit into a run's share, evenly spaced; else the last, if it fits into what is left
    for all runs."""
    told = {
        number: _trim(known[number]) for number in sorted(known) if known[number].get("clients")
    }
    lengths = [len(to_safe_json({number: row})) for number, row in told.items()]
    fit = share // max(lengths, default=1)
    numbers = [*told]
    if fit > 1:
        return {numbers[i]: told[numbers[i]] for i in spread_rounds(len(numbers), fit)}
    return {n: told[n] for n in numbers[-1:] if lengths[-1] <= left}


def _trim(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("round", "bytes")}
