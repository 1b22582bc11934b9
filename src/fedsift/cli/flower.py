"""The verbs of `fedsift flower`: a project, a local federation, and what a real one needs."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli import front_door
from fedsift.cli.comparison import print_comparison
from fedsift.cli.console import error_handler, say, user_error, warn
from fedsift.cli.flower_check import check
from fedsift.cli.progress import new_folder, resume_hint, show_progress

if TYPE_CHECKING:
    from fedsift.config import Experiment

app = typer.Typer(
    no_args_is_help=True, help="The same federations on Flower: other machines, real networks."
)

for verb in (front_door.key,):
    app.command()(verb)

Project = Annotated[
    Path, typer.Argument(metavar="DIR", help="The project's folder.", show_default=False)
]


@app.command()
def new(folder: Project) -> None:
    """Write a project that runs on the embedded digits; put your own into its task.py."""
    with error_handler():
        from fedsift.flower import project

        for file in project.create(folder):
            say(f"wrote {file}")
        say(f"try it: fedsift flower up {shlex.quote(str(folder))}")


@app.command()
def up(
    folder: Project,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", show_default=False)
    ] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")
    ] = False,
) -> None:
    """Run a project on this machine: start SuperLink and SuperNodes, run, stop all."""
    with error_handler():
        from fedsift import runs
        from fedsift.flower import local_deployment

        settings = [*(overrides or []), *([] if nodes is None else [f"clients={nodes}"])]
        experiment = _experiment(folder, settings, nodes)
        settings += [] if nodes is None else [f"cohort={experiment.clients.cohort}"]
        settings = _keep_last(settings)
        _check_resume(out, resume)
        if simulation:
            _check_ray()
        run_folder = (out or new_folder(Path("runs"), experiment.name)).resolve()
        home = run_folder.with_name(f"{run_folder.name}-flower")
        how: dict[str, Any] = {
            "overrides": shlex.join(settings),
            "folder": str(run_folder),
            "poll": 0.2,
        }
        how |= {"wait": 60.0 + 10 * experiment.clients.count} | (
            {} if deadline is None else {"deadline": deadline}
        )
        again = [
            "fedsift",
            "flower",
            "up",
            str(folder),
            *settings,
            *(["--simulation"] if simulation else []),
        ]
        again += [] if deadline is None else ["--deadline", str(deadline)]
        command = shlex.join([*again, "--resume", "--out", str(run_folder)])
        with (
            resume_hint(command, run_folder),
            local_deployment.Deployment(home, simulation=simulation) as deployment,
        ):
            for client in range(0 if simulation else experiment.clients.count):
                deployment.node({"partition-id": client, "memory": str(home / "memory")})
            run = deployment.submit(folder, how, experiment.clients.count)
            _show(deployment, run, run_folder, experiment, quiet)
        history = runs.load_run(run_folder)
        if as_json:
            typer.echo(json.dumps(history.summary()))
        elif not quiet:
            print_comparison([history])
            say(f"{history.seconds:.1f} s; run folder: {run_folder}; logs of Flower: {home}")


@app.command()
def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the files.", show_default=False)
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes to make keys for.")] = 4,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address nodes reach the server by; may be repeated."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, help="How long the certificates are good for.")
    ] = 365,
) -> None:
    """Make certificates and a key per node, and print the commands that use them."""
    with error_handler():
        from fedsift.files import write_atomic
        from fedsift.flower import certificates

        hosts = host or ["127.0.0.1", "localhost"]
        made = certificates.create(folder, nodes, hosts, days)
        text = certificates.commands(made, nodes, hosts[0])
        write_atomic(folder / "commands.txt", text.encode())
        say(text)
        say(
            f"wrote these commands, certificates and keys to {folder}; ca.key can stay off line"
            " from now on"
        )


def _experiment(folder: Path, settings: list[str], nodes: int | None) -> Experiment:
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


def _keep_last(settings: list[str]) -> list[str]:
    """Each key once, with the value that counts: its last."""
    from fedsift import config

    last = {config.full_path(setting): setting for setting in settings}
    return list(last.values())


def _check_resume(out: Path | None, resume: bool) -> None:
    if resume and not out:
        raise user_error("--resume needs --out: the folder of the run to resume")
    if out and out.exists() and not resume:
        raise user_error(f"{out} exists; add --resume to resume it, or choose another --out")


def _check_ray() -> None:
    try:
        import ray  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise user_error(
            "Flower's simulation needs ray; install it with: pip install 'flwr[simulation]'"
        ) from None


def _show(deployment: Any, run: str, folder: Path, experiment: Experiment, quiet: bool) -> None:
    """Rounds as they are finished, in the display of `fedsift run`; who was missing, in lines."""
    from fedsift import runs
    from fedsift.flower import superlink

    done = runs.rounds_played(folder)
    shown: Any = SimpleNamespace(
        experiment=experiment, state=SimpleNamespace(round=done), finished=False
    )
    with show_progress([shown], quiet) as (tell, _):
        for count in superlink.follow(deployment, run, folder, done, experiment.rounds):
            history = runs.load_run(folder)
            for row, sent in list(zip(history.metrics, history.ledger, strict=True))[done:count]:
                record: Any = SimpleNamespace(
                    round=row["round"], accuracy=row["accuracy"], uplink_bytes=sent.uplink
                )
                shown.state.round = row["round"] + 1
                shown.finished = shown.state.round >= experiment.rounds
                tell(shown, record)
                for client, why in sent.missing.items():
                    warn(f"round {row['round'] + 1} without client {client}: {why}")
            done = count


app.command()(check)
