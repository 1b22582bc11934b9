"""Which plug-ins an experiment names, and whether they are still what they were. Nothing here
imports one: a run folder is data.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedsift import registry
from fedsift.config.read import flat
from fedsift.config.schema import Experiment
from fedsift.data import SCHEMES
from fedsift.estimators.names import LIBRARIES
from fedsift.types import UserError

# Keys whose value names a part; the schemes that are fedsift's own.
NAMES: dict[str, tuple[str, ...]] = {
    "start": (),
    "attack": (),
    "engine": (),
    "data.name": tuple(SCHEMES),
    "data.public_from": tuple(SCHEMES),
    "partition.kind": (),
    "clients.model": LIBRARIES,
    "clients.models": LIBRARIES,
    "clients.student": (),
    "algorithm.name": (),
    "algorithm.sampler": (),
    "algorithm.aggregator": (),
    "algorithm.codec": (),
    "algorithm.down_codec": (),
    "algorithm.graph": (),
}
SHOWN = 12  # letters of a digest in a message


def list_plugins(experiment: Experiment) -> list[tuple[str, str]]:
    """Each key that names a plug-in, with the `module:name`."""
    values = flat(experiment.model_dump())
    found: list[tuple[str, str]] = []
    for key, schemes in NAMES.items():
        value = values.get(key)
        for text in value if isinstance(value, dict) else [value]:
            if isinstance(text, str):
                found += ((key, path) for path in registry.find_plugins(text, schemes))
    return found


def describe_plugins(experiment: Experiment) -> list[dict[str, str | None]]:
    """The file and its digest for each plug-in; None where there is no such file."""
    found = []
    for path in dict.fromkeys(path for _, path in list_plugins(experiment)):
        file = registry.locate_module(path.partition(":")[0])
        here = file is not None and file.is_file()
        found.append(
            {
                "plugin": path,
                "file": str(file) if file else None,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file and here else None,
            }
        )
    return found


def tell_plugins(experiment: Experiment) -> str:
    """ "mine:pick from /home/me/mine.py (sha256 0123456789ab)", or nothing without plug-ins."""
    return ", ".join(
        f"{one['plugin']} from {one['file']} (sha256 {_short(one['sha256'])})"
        for one in describe_plugins(experiment)
    )


def check_plugins(recorded: Any, experiment: Experiment, folder: Path) -> None:
    """Refuse to resume with code other than that recorded, as `describe_plugins` gave it."""
    rows = recorded if isinstance(recorded, list) else []
    was = {row.get("plugin"): row.get("sha256") for row in rows if isinstance(row, dict)}
    changed = [
        f"{one['plugin']} in {one['file']} (sha256 {_short(was.get(one['plugin']))} there, "
        f"{_short(one['sha256'])} here)"
        for one in describe_plugins(experiment)
        if one["sha256"] is None or was.get(one["plugin"]) != one["sha256"]
    ]
    if changed:
        raise UserError(
            f"{folder} was made with other code of {', '.join(changed)}; "
            "put the old file back, or resume with --accept-changes"
        )


def _short(digest: Any) -> str:
    return str(digest)[:SHOWN] if digest else "unknown"


def check_project_plugins(experiment: Experiment, module: str) -> None:
    """On Flower every machine runs the project's own code and no other, and nobody plays hostile:
    real nodes decide for themselves what they send.
    """
    if experiment.attack is not None:
        raise UserError(
            "attack is for simulations (`fedsift run`); on Flower real nodes decide what they"
            " send: leave attack out"
        )
    for key, path in list_plugins(experiment):
        if path.partition(":")[0] != module:
            raise UserError(
                f"{key} names {path}, but on Flower a plug-in must be in the project's own "
                f"{module}.py; move it there and write {module}:{path.partition(':')[2]}"
            )
