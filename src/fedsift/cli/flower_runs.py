"""What the verbs of `fedsift flower` that run a project share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedsift.cli.console import say, user_error, warn
from fedsift.cli.flower_log import follow_log
from fedsift.cli.json_output import print_json
from fedsift.cli.progress import show_progress
from fedsift.cli.trackers import follow_runs

if TYPE_CHECKING:
    from fedsift.config import Experiment


def read_project(folder: Path, settings: list[str], nodes: int | None) -> Experiment:
    """What will be run, checked before anything is started; --nodes also limits the cohort."""
    from fedsift import config
    from fedsift.flower import project

    if not (folder / project.EXPERIMENT).is_file():
        raise user_error(
            f"{folder} has no {project.EXPERIMENT}; make a project with: fedsift flower new"
            f" {folder}"
        )
    experiment = config.read_experiment(str(folder / project.EXPERIMENT), settings)
    if nodes is not None and experiment.clients.cohort > nodes:
        experiment = config.read_experiment(
            str(folder / project.EXPERIMENT), [*settings, f"cohort={nodes}"]
        )
    dealt = sum((experiment.clients.models or {"": experiment.clients.count}).values())
    if dealt != experiment.clients.count:
        raise user_error(
            f"clients.models names {dealt} clients, but there are {experiment.clients.count}"
        )
    _check_algorithm(folder, experiment)
    return experiment


def _check_algorithm(folder: Path, experiment: Experiment) -> None:
    """Its plug-ins must be in the project, and it must have a server."""
    from fedsift import config
    from fedsift.types import PeerToPeer

    if (folder / "task.py").is_file():
        config.check_project_plugins(experiment, "task")
    with contextlib.chdir(folder):  # where its plug-ins are
        algorithm = config.build_algorithm(experiment)
    if isinstance(algorithm, PeerToPeer):
        raise user_error(
            f"{experiment.algorithm.name} has no server, so it cannot run on Flower; use"
            " `fedsift run`"
        )


def keep_last(settings: list[str]) -> list[str]:
    """Each key once, with the value that counts: its last."""
    from fedsift import config

    last = {config.full_path(setting): setting for setting in settings}
    return list(last.values())


def tell_written(files: Iterable[Path], as_json: bool) -> None:
    if as_json:
        print_json({"wrote": list(files)})
        return
    for file in files:
        say(f"wrote {file}")


def show_rounds(
    saved: Iterator[int],
    folder: Path,
    experiment: Experiment,
    quiet: bool,
    track: tuple[str, ...] = (),
) -> None:
    """Rounds as they are finished, in the display of `fedsift run`; the server's warnings and
    errors at once, in lines.
    """
    from fedsift import runs
    from fedsift.flower.logs import SERVER_LOG

    done = runs.rounds_played(folder)
    shown: Any = SimpleNamespace(
        experiment=experiment, state=SimpleNamespace(round=done), finished=False
    )
    with (
        follow_runs([folder], track) as follow,
        show_progress([shown], quiet) as (tell, _),
        follow_log(folder / SERVER_LOG, warn),
    ):
        for count in saved:
            history = runs.load_run(folder)
            follow(folder, count)
            for row, sent in list(zip(history.metrics, history.ledger, strict=True))[done:count]:
                record: Any = SimpleNamespace(
                    round=row["round"], accuracy=row["accuracy"], uplink_bytes=sent.uplink
                )
                shown.state.round = row["round"] + 1
                shown.finished = shown.state.round >= experiment.rounds
                tell(shown, record)
            done = count
