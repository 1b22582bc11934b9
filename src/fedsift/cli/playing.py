"""Playing runs with a live display, and saying how to go on whatever stops them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.saying import os_error, size, warn

if TYPE_CHECKING:
    from fedsift.runs import Run


def play(playing: list[Run], engine: Any, quiet: bool, go_on: str) -> None:
    """Play to the end with a live display (lines, where there is no terminal). Whatever stops it: say how to go on."""
    from fedsift import runs

    try:
        with display(playing, quiet) as tell:
            for one, record in runs.play(playing, engine):
                tell(one, record)
    except KeyboardInterrupt:
        warn(f"\ninterrupted; every finished round is saved. Go on with:\n  {go_on}")
        raise typer.Exit(130) from None
    except OSError as error:
        warn(f"error: {os_error(error)}; every finished round is saved. When there is room, go on with:\n  {go_on}")
        raise typer.Exit(1) from None


@contextlib.contextmanager
def display(playing: list[Run], quiet: bool) -> Iterator[Any]:
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda run, record: None
    elif not console.is_terminal:
        yield _tell_in_lines(playing)
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            bars = {
                id(run): progress.add_task(
                    f"{run.experiment.name} seed {run.experiment.seed}",
                    total=run.experiment.rounds,
                    completed=run.state.round,
                    said="",
                )
                for run in playing
            }

            def tell(run: Run, record: Any) -> None:
                said = f"accuracy {record.accuracy:.3f}  up {size(record.uplink_bytes)} a round"
                progress.update(bars[id(run)], completed=record.round + 1, said=said)

            yield tell


def _tell_in_lines(playing: list[Run]) -> Any:
    """For one run a line a round; for several, a line once all have played the round, the mean of each name."""
    heard: dict[int, dict[str, list[float]]] = {}

    def tell(run: Run, record: Any) -> None:
        names = heard.setdefault(record.round, {})
        names.setdefault(run.experiment.name, []).append(record.accuracy)
        if sum(map(len, names.values())) == sum(r.experiment.rounds > record.round for r in playing):
            means = "  ".join(f"{name} {sum(a) / len(a):.3f}" for name, a in names.items())
            warn(f"round {record.round + 1}/{run.experiment.rounds}  accuracy {means}")

    return tell


def where_it_stands(run: Run) -> str:
    if not run.state.round:
        return f"{run.folder}: nothing to go on with, starting at the first round"
    return "finished already" if run.finished else f"going on after round {run.state.round} of {run.experiment.rounds}"


def engine_for(name: str, device: str) -> tuple[Any, str]:
    from fedsift.engines import choose

    return choose(name, device)


def fresh_folder(parent: Path, name: str) -> Path:
    """A folder name that is not taken."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(p for n in range(1000) if not (p := parent / (stem if not n else f"{stem}-{n}")).exists())
