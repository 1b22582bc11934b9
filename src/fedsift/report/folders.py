"""Which runs a list of folders stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedsift import runs
from fedsift.report import without_repeats
from fedsift.runs import History
from fedsift.types import UserError


def load_runs(folders: list[Path], note: Callable[[str], None]) -> list[History]:
    """Each run once. A folder that holds runs stands for them. Files beside the runs of a sweep are
    ignored. `note` gets a line on what is left out, and why.
    """
    found: dict[Path, Path] = {}
    beside = [
        path
        for path in folders
        if path.is_file() and any(p.is_dir() and p.parent == path.parent for p in folders)
    ]
    for folder in (path for path in folders if path not in beside):
        for one in runs.find_runs(folder) or [folder]:
            if runs.has_a_round(one) or not (one / runs.CONFIG).is_file() or folders == [one]:
                found.setdefault(one.resolve(), one)
            else:
                note(f"{one} has no finished round and is left out")
    if not found:
        raise UserError("none of these runs has a finished round")
    kept, repeats = without_repeats([runs.load_run(folder) for folder in found.values()])
    for again, first in repeats.items():
        note(f"{again} is left out: it has the settings and the seed of {first}")
    return kept
