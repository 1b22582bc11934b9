"""fedsift flower submit: give a project to a SuperLink, and again after every crash."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsift.cli.comparison import print_comparison
from fedsift.cli.console import error_handler, say, user_error, warn
from fedsift.cli.flower_check import read_flower_config
from fedsift.cli.flower_runs import keep_last, read_project, show_rounds
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Overrides, Project, Track
from fedsift.cli.trackers import read_trackers

Supervise = Annotated[
    bool,
    typer.Option("--supervise", help="Watch the run; submit it again after a crash."),
]
Tries = Annotated[
    int,
    typer.Option("--tries", min=1, help="With --supervise: tries without a finished round."),
]
NoTable = Annotated[
    bool, typer.Option("--quiet", help="No progress display and no table at the end.")
]


def submit(
    folder: Project,
    overrides: Overrides = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            "--certs",
            envvar="FEDSIFT_CERTS",
            help="The folder that `certs` made: SuperLink, authority and seats of nodes.",
        ),
    ] = None,
    server: Annotated[
        str,
        typer.Option(
            "--server", metavar="HOST:PORT", help="Without --certs: the SuperLink, in plaintext."
        ),
    ] = "127.0.0.1:8000",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder, on the server (default: runs/NAME)."),
    ] = None,
    run_config: Annotated[
        str,
        typer.Option(
            "--run-config",
            help="As for `flwr run`: 'deadline=120.0 minimum=3', or a .toml file.",
            show_default=False,
        ),
    ] = "",
    supervised: Supervise = False,
    tries: Tries = 10,
    track: Track = None,
    quiet: NoTable = False,
    as_json: Json = False,
) -> None:
    """On the server: give a project to its SuperLink. An unfinished run in --out is resumed."""
    with error_handler():
        from fedsift import runs
        from fedsift.flower import project, supervisor
        from fedsift.flower.certificates import Certificates
        from fedsift.flower.superlink import SuperLink, read_address

        trackers = read_trackers(track)
        if trackers and not supervised:
            raise user_error("--track needs --supervise: who only submits does not see the rounds")
        how: dict[str, Any] = _find_seats(certs)
        how |= read_flower_config("--run-config", run_config)
        behaviour = project.read_settings(folder, how)
        changed = keep_last([*shlex.split(behaviour.overrides), *(overrides or [])])
        experiment = read_project(folder, changed, None)
        run_folder = (out or Path(behaviour.folder or Path("runs", experiment.name))).resolve()
        how |= {"overrides": shlex.join(changed), "folder": str(run_folder)}
        ca = Certificates(certs).ca if certs else None
        home = run_folder.with_name(f"{run_folder.name}-flower")  # keeps the log of a failed run
        link = SuperLink(read_address(certs) if certs else server, home, ca)
        link.write_connection()

        def send() -> str:
            return link.submit(folder, how)

        if not supervised:
            number = send()
            if as_json:
                print_json({"flower_run": str(number), "run": run_folder})
                return
            say(f"run {number} is submitted; its folder on the server: {run_folder}")
            return
        patience = supervisor.Patience(tries)
        rounds = supervisor.supervise(link, send, run_folder, experiment.rounds, warn, patience)
        show_rounds(rounds, run_folder, experiment, quiet, trackers)
        history = runs.load_run(run_folder)
        if as_json:
            print_json(history.summary())
        elif not quiet:
            print_comparison([history])


def _find_seats(certs: Path | None) -> dict[str, Any]:
    """The table of which node may be which client; a run with --certs does not begin without it."""
    from fedsift.flower.seats import TABLE

    return {"seats": str((certs / TABLE).resolve())} if certs else {}
