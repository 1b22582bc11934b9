"""Tells trackers the rounds of a run folder that they do not know yet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsift import config, files, registry, runs
from fedsift.tracking.figures import list_figures
from fedsift.tracking.trackers import NEEDS, TRACKERS, Place, Tracker, check_own_files
from fedsift.types import UserError

TRACKING = "tracking.json"  # tracker -> how many rounds it has been told, and its id of the run
FILES = (runs.METRICS, runs.LEDGER, runs.TIMING)


def check_names(text: str) -> tuple[str, ...]:
    """ "csv,tensorboard" as names that are known and installed."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in TRACKERS:
            told = ", ".join(TRACKERS)
            raise UserError(registry.unknown_name("tracker", name, TRACKERS, told))
        if name in NEEDS and find_spec(NEEDS[name]) is None:
            raise UserError(
                f"the tracker {name} needs {NEEDS[name]}, which is not installed here:"
                f" pip install 'fedsift[{name}]'"
            )
    return names


class Follower:
    """Trackers of one run. One that fails is named once and left out; the run goes on."""

    def __init__(self, folder: Path, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self.folder, self._warn = folder, warn
        self._known = _read_known(folder, warn)
        self._trackers: dict[str, Tracker] = {}
        self._offsets = dict.fromkeys(FILES, 0)
        self._waiting: dict[str, list[dict[str, Any]]] = {name: [] for name in FILES}
        self._round, self._uplink = 0, 0  # of the next row; bytes up to it
        for name in names:
            with self._shielded(name):
                check_own_files(name, folder)
                self._trackers[name] = TRACKERS[name](self._place(name))

    def follow(self, rounds: int) -> None:
        """Tell those of the first `rounds`, which are saved for good, that have not been told."""
        for name in FILES:
            self._waiting[name] += self._read_rows(name)
        while self._trackers and self._round < rounds and all(self._waiting.values()):
            metrics, sent, timing = (self._waiting[name].pop(0) for name in FILES)
            figures = list_figures(metrics, sent, timing, self._uplink)
            for name in list(self._trackers):
                if self._round >= self._rounds_told(name):
                    self._tell(name, figures)
            self._round, self._uplink = self._round + 1, int(figures["uplink_bytes_so_far"])

    def close(self) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._shielded(name):
                tracker.close()
        self._trackers.clear()

    def _tell(self, name: str, figures: dict[str, float]) -> None:
        with self._shielded(name):
            self._trackers[name].log(self._round, figures)
            self._known[name] = {"rounds": self._round + 1, "id": self._trackers[name].id}
            files.write_json(self.folder / TRACKING, self._known)

    @contextlib.contextmanager
    def _shielded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            why = runs.describe_error(error)
            self._warn(f"{self.folder}: the tracker {name} is left out from here on: {why}")

    def _place(self, name: str) -> Place:
        experiment = runs.read_config(self.folder)
        values = config.resolve_values(experiment).items()
        settings = {key: value for key, value in values if value not in (None, ())}
        told = self._known.get(name, {})
        called = f"{experiment.name} seed {experiment.seed}"
        return Place(self.folder, called, settings, self._rounds_told(name), told.get("id", ""))

    def _rounds_told(self, name: str) -> int:
        return int(self._known.get(name, {}).get("rounds", 0))

    def _read_rows(self, name: str) -> list[dict[str, Any]]:
        """The lines that are whole and have not been read."""
        with open(self.folder / name, "rb") as file:
            file.seek(self._offsets[name])
            whole = file.read().rpartition(b"\n")[0]
        self._offsets[name] += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _read_known(folder: Path, warn: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    path = folder / TRACKING
    if not path.exists():
        return {}
    try:
        found = json.loads(files.read_bounded(path, 2**16))
        return {
            name: {"rounds": int(told["rounds"]), "id": str(told["id"])}
            for name, told in found.items()
            if name in TRACKERS
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        warn(f"cannot read {path}: trackers are told all rounds again")
        return {}
