"""The verbs of `fedsift flower`: a project, a local federation, and what a real one needs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli import front_door
from fedsift.cli.comparison import print_comparison
from fedsift.cli.console import error_handler, say, user_error, warn
from fedsift.cli.flower_check import check
from fedsift.cli.flower_runs import keep_last, read_project, show_rounds, tell_written
from fedsift.cli.flower_submit import NoTable, Supervise, Tries, submit
from fedsift.cli.flower_units import units
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Overrides, Project, Track
from fedsift.cli.progress import new_folder, resume_hint
from fedsift.cli.trackers import read_trackers

if TYPE_CHECKING:
    from fedsift.flower.superlink import SuperLink

app = typer.Typer(
    no_args_is_help=True, help="The same federations on Flower: other machines, real networks."
)

for verb in (
    front_door.certs,
    front_door.proxy,
    front_door.key,
    front_door.admit,
    front_door.revoke,
    front_door.nodes,
):
    app.command()(verb)


@app.command()
def new(folder: Project, as_json: Json = False) -> None:
    """Write a project that runs on the embedded digits; put your own into its task.py."""
    with error_handler():
        from fedsift.flower import project

        tell_written(project.create(folder), as_json)
        if not as_json:
            say(f"try it: fedsift flower up {shlex.quote(str(folder))}")


@app.command()
def up(
    folder: Project,
    overrides: Overrides = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Clients (default: the experiment's).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder (default: a new one under runs/).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Flower's simulation in place of SuperNodes.")
    ] = False,
    deadline: Annotated[
        float | None, typer.Option("--deadline", help="Seconds a round may take.")
    ] = None,
    supervised: Supervise = False,
    tries: Tries = 10,
    track: Track = None,
    quiet: NoTable = False,
    as_json: Json = False,
) -> None:
    """Run a project on this machine: start SuperLink and SuperNodes, run, stop all."""
    with error_handler():
        from fedsift import runs
        from fedsift.flower import local_deployment, project, supervisor

        settings = [*(overrides or []), *([] if nodes is None else [f"clients={nodes}"])]
        experiment = read_project(folder, settings, nodes)
        settings += [] if nodes is None else [f"cohort={experiment.clients.cohort}"]
        settings = keep_last(settings)
        _check_resume(out, resume)
        trackers = read_trackers(track)
        if simulation:
            _check_ray()
        run_folder = (out or new_folder(Path("runs"), experiment.name)).resolve()
        home = run_folder.with_name(f"{run_folder.name}-flower")
        how: dict[str, Any] = {
            "overrides": shlex.join(settings),
            "folder": str(run_folder),
            "poll": 0.2,
        }
        enough = 60.0 + 10 * experiment.clients.count  # all nodes start at once here
        how |= {"wait": max(enough, project.read_settings(folder).wait)} | (
            {} if deadline is None else {"deadline": deadline}
        )
        again = [
            "fedsift",
            "flower",
            "up",
            str(folder),
            *settings,
            *(["--simulation"] if simulation else []),
            *(["--supervise"] if supervised else []),
            *([] if track is None else ["--track", track]),
        ]
        again += [] if deadline is None else ["--deadline", str(deadline)]
        command = shlex.join([*again, "--resume", "--out", str(run_folder)])
        with (
            resume_hint(command, run_folder),
            local_deployment.Deployment(
                home, simulation=simulation, database=supervised
            ) as deployment,
        ):
            for client in range(0 if simulation else experiment.clients.count):
                deployment.node({"partition-id": client, "memory": str(home / "memory")})

            def send() -> str:
                return deployment.submit(folder, how, experiment.clients.count)

            rounds = experiment.rounds
            if supervised:
                patience = supervisor.Patience(tries)
                saved = supervisor.supervise(deployment, send, run_folder, rounds, warn, patience)
            else:
                saved = _play_once(deployment, send, run_folder, rounds)
            show_rounds(saved, run_folder, experiment, quiet, trackers)
        history = runs.load_run(run_folder)
        if as_json:
            print_json(history.summary())
        elif not quiet:
            print_comparison([history])
            say(f"{history.seconds:.1f} s; run folder: {run_folder}; logs of Flower: {home}")


def _play_once(
    link: SuperLink, send: Callable[[], str], folder: Path, rounds: int
) -> Iterator[int]:
    """Submits when it is first asked: by then somebody follows the log."""
    from fedsift import runs
    from fedsift.flower import superlink

    done = runs.rounds_played(folder)
    yield from superlink.follow(link, send(), folder, done, rounds)


def _check_resume(out: Path | None, resume: bool) -> None:
    if resume and not out:
        raise user_error("--resume needs --out: the folder of the run to resume")
    if out and out.exists() and not resume:
        raise user_error(f"{out} exists; add --resume to resume it, or choose another --out")


def _check_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise user_error(
            "Flower's simulation needs ray; install it with: pip install 'flwr[simulation]'"
        )


app.command()(check)
app.command()(submit)
app.command()(units)
