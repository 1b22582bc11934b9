"""The files of a run folder, and how they are read: a folder may come from a stranger.

Whatever is wrong with a file, the user reads one sentence that begins with its path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedsift import files
from fedsift.overrides import is_too_deep
from fedsift.types import UserError

CONFIG, ENVIRONMENT, CLIENTS, DATA = "config.toml", "environment.json", "clients.json", "data.json"
METRICS, LEDGER, TIMING = "metrics.jsonl", "ledger.jsonl", "timing.jsonl"
CHECKPOINT, LOCK, FAILED = "checkpoint.safetensors", files.LOCK, "failed.json"
BASELINES = "baselines.json"  # where the experiment asks for them
BEST = "best.safetensors"  # the models of the best round, where there are validation samples
RECORDING = "recording.jsonl"  # where the experiment records: some of what was said in each round
SAMPLES = "samples.json"  # beside it: some public samples, to be looked at
FINISHED = "finished.json"  # in the place of a checkpoint that was deleted
OURS = {CONFIG, ENVIRONMENT, CLIENTS, DATA, METRICS, LEDGER, TIMING, CHECKPOINT, LOCK}
OURS |= {RECORDING, SAMPLES}
SWEEP = "sweep.toml"  # of the folder that holds the runs of a sweep
FORMAT = 2  # of a run folder; fedsift 0.1.0 wrote no number
MOST_BYTES = 2**30  # of a file of JSON

Row = dict[str, Any]
Checked = TypeVar("Checked")
LARGEST = 2**63  # a count beyond this is damage, not data
# of soft labels, where a simulation knows the truth: fedsift.evaluation says what they are
LABEL_FIGURES = {
    "uploaded_labels": {"rows", "right", "samples", "votes"},
    "distilled_labels": {"rows", "right", "fewest"},
}

QUALITY = ("macro_f1", "calibration_error", "auc", "local_loss", "distill_loss")


def read_json(path: Path, check: Callable[[Any], Checked]) -> Checked:
    """A JSON file whose content has passed `check`, which raises ValueError for what is wrong."""
    try:
        expect(path.is_file(), "there is no such file")
        return check(_parse(files.read_bounded(path, MOST_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None


def read_rows(path: Path) -> list[Row]:
    """The whole lines of a .jsonl file; a last line cut off by a kill is left out."""
    if not path.is_file():
        return []
    try:
        *lines, torn = files.read_bounded(path, MOST_BYTES).split(b"\n")
        expect(torn[:1] in (b"", b"{"), "its last line is not the beginning of a row")
        return [_parse(line) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None


def _parse(text: bytes) -> Any:
    content = json.loads(text)
    if is_too_deep(content):
        raise RecursionError
    return content


def check_rows(path: Path, rows: list[Row]) -> None:
    """Rounds in order, and in each what every reader relies on."""
    for number, row in enumerate(rows):
        try:
            _check_row(row, number, CHECKS[path.name])
        except ValueError as error:
            raise unreadable(path, f"line {number + 1}: {error}") from None


def is_blank(folder: Path) -> bool:
    """Empty, or holding only what a run killed while it was being set up leaves behind."""
    return folder.is_dir() and {
        entry.name for entry in folder.iterdir() if not files.is_temporary(entry)
    } <= {ENVIRONMENT, CLIENTS, DATA, SAMPLES, LOCK}


def unreadable(path: Path, error: object) -> UserError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return UserError(" ".join(f"cannot read {path}: {reason}".split()))


# --- what a file must hold ---


def check_clients(content: Any) -> list[Row]:
    expect(isinstance(content, list), "it must be a list of clients")
    for client in content:
        expect(isinstance(client, dict), "a client must be an object")
        expect(is_count(client.get("client")), "a client must have a number")
        expect(is_plain(client.get("model")), "a client must have the name of a model")
        expect(is_plain(client.get("name", "")), "the name of a client must be a text")
        labels = client.get("labels")
        expect(
            isinstance(labels, list) and all(map(is_count, labels)),
            "a client must have a list of label counts",
        )
    lengths = {len(client["labels"]) for client in content}
    expect(len(lengths) < 2, "all clients must have label counts of the same classes")
    return list(content)


def check_environment(content: Any) -> Row:
    """Texts that `show` prints, and what a resume adds to; all may be missing."""
    _check_object(content)
    for key in ("fedsift", "engine", "torch", "processor"):
        expect(is_plain(content.get(key, "")), f"{key} must be a text")
    expect(isinstance(content.get("resumed", []), list), "resumed must be a list")
    expect(is_count(content.get("format", 1)), "format must be a number")
    return dict(content)


def check_object(content: Any) -> Row:
    _check_object(content)
    return dict(content)


def _check_object(content: Any) -> None:
    expect(isinstance(content, dict), "it must be a JSON object")


def _check_row(row: Any, number: int, check: Callable[[Row], None]) -> None:
    _check_object(row)
    expect(is_count(row.get("round")) and row["round"] == number, f"it must be of round {number}")
    check(row)


def _check_metrics(row: Row) -> None:
    expect(is_number(row.get("accuracy")), "accuracy must be a number")
    expect(is_table(row.get("accuracies"), is_number), "accuracies must be numbers by name")
    for key in ("client_accuracy", "disagreement", *QUALITY):
        expect(is_number(row.get(key, 0)), f"{key} must be a number")
    for key, fields in LABEL_FIGURES.items():
        if key in row:
            expect(is_table(row[key], is_number), f"{key} must be numbers by name")
            expect(fields <= row[key].keys(), f"{key} must have {', '.join(sorted(fields))}")
    _check_per_class(row)
    steps = row.get("steps", {})
    expect(is_table(steps, is_count) and all(map(is_id, steps)), "steps must be by client")
    expect(is_count(row.get("server_steps", 0)), "server_steps must be a number of steps")
    trust = row.get("trust", {})
    expect(is_table(trust, is_number) and all(map(is_id, trust)), "trust must be by client")


def _check_per_class(row: Row) -> None:
    shares, table = row.get("class_accuracy", []), row.get("confusion", [])
    expect(
        isinstance(shares, list) and all(s is None or is_number(s) for s in shares),
        "class_accuracy must be a list of numbers",
    )
    expect(
        isinstance(table, list)
        and all(isinstance(line, list) and len(line) == len(table) for line in table)
        and all(is_count(cell) for line in table for cell in line),
        "confusion must be a square table of counts",
    )


def _check_ledger(row: Row) -> None:
    for way in ("up", "down"):
        expect(is_table(row.get(way), is_count), f"{way} must be bytes by client")
        expect(all(map(is_id, row[way])), f"{way} must be bytes by client")
        hop = row.get(f"edge_{way}", {})
        fine = is_table(hop, is_count) and all(map(is_id, hop))
        expect(fine, f"edge_{way} must be bytes by edge server")
    expect(("edge_up" in row) == ("edge_down" in row), "edge_up and edge_down come together")
    expect(is_count(row.get("broadcast")), "broadcast must be a number of bytes")
    expect(is_table(row.get("edges") or {}, is_count), "edges must be bytes by pair")
    missing = row.get("missing", {})
    expect(
        is_table(missing, is_text) and all(map(is_id, missing)),
        "missing must be reasons by client",
    )


def _check_timing(row: Row) -> None:
    expect(is_number(row.get("seconds")), "seconds must be a number")


CHECKS: Mapping[str, Callable[[Row], None]] = {
    METRICS: _check_metrics,
    LEDGER: _check_ledger,
    TIMING: _check_timing,
}


def expect(fine: bool, otherwise: str) -> None:
    if not fine:
        raise ValueError(otherwise)


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST and math.isfinite(value)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def is_text(value: Any) -> bool:
    """A text that can be printed: JSON can hold halves of a letter."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_plain(value: Any) -> bool:
    """A text that does nothing to a terminal but fill it."""
    return isinstance(value, str) and value.isprintable()


def is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def is_table(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(is_text, value)) and all(map(fits, value.values()))
