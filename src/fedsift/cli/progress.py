"""Running with a live display, and saying how to resume whatever stops it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.console import describe_os_error, describe_stop, format_bytes, warn

if TYPE_CHECKING:
    from rich.progress import Progress

    from fedsift.federation import Record
    from fedsift.runs import Group, Run

    Tell = Callable[[Run, Record | Exception], None]

FEW = 12  # rows that can be taken in at a glance


def run_group(group: Group, engine: Any, quiet: bool, kind: str = "run") -> None:
    """Run all to the end with a live display (lines, where there is no terminal).

    A run that fails is named at once, and the others continue; one that is alone says why itself.
    """
    from fedsift.runs import describe_error

    with show_progress(group.runs, quiet) as tell:
        for run, outcome in group.run(engine):
            if isinstance(outcome, Exception) and len(group.folders) > 1:
                warn(f"{kind} {run.folder.name} failed: {describe_error(outcome)}")
            tell(run, outcome)


def raise_first_error(group: Group) -> None:
    """For groups that are worth nothing unless all of it is run."""
    for error in group.errors.values():
        group.release()
        raise error


@contextlib.contextmanager
def resume_hint(command: str, begun: Path) -> Iterator[None]:
    """Whatever stops the runs, say how to resume them, if the path `begun` is there."""
    try:
        yield
    except KeyboardInterrupt as by:
        if not begun.exists():
            raise
        word, code = describe_stop(by)
        warn(f"\n{word}; {_describe_saved(begun)}. Resume with:\n  {command}")
        raise typer.Exit(code) from None
    except OSError as error:
        if not begun.exists():
            raise
        reason = f"{describe_os_error(error)}; {_describe_saved(begun)}"
        warn(f"error: {reason}. Once that is fixed, resume with:\n  {command}")
        raise typer.Exit(1) from None


def _describe_saved(begun: Path) -> str:
    """Whether a run in the folder, or in a folder of it, has a finished round."""
    from fedsift.runs import CHECKPOINT

    folder = begun if begun.is_dir() else begun.parent
    depths = (CHECKPOINT, f"*/{CHECKPOINT}", f"*/*/{CHECKPOINT}")
    saved = any(True for pattern in depths for _ in folder.glob(pattern))
    return "every finished round is saved" if saved else "no round is finished yet"


@contextlib.contextmanager
def show_progress(playing: list[Run], quiet: bool) -> Iterator[Tell]:
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda run, outcome: None
    elif not console.is_terminal:
        yield _report_in_lines(playing)
    else:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            yield _report_in_bars(playing, progress)


def _report_in_bars(playing: list[Run], progress: Progress) -> Tell:
    """A bar shows the rounds played by its runs, and the mean over the last round of each."""
    groups = [
        (
            members,
            progress.add_task(name, total=sum(run.experiment.rounds for run in members), said=""),
        )
        for name, members in _group_runs(playing)
    ]
    last: dict[
        int, tuple[float, int] | None
    ] = {}  # accuracy and bytes up, or None of a run that failed

    def tell(run: Run, outcome: Record | Exception) -> None:
        last[id(run)] = (
            None if isinstance(outcome, Exception) else (outcome.accuracy, outcome.uplink_bytes)
        )
        for members, bar in groups:
            said = _describe_figures([last[id(one)] for one in members if id(one) in last])
            progress.update(bar, completed=sum(one.state.round for one in members), said=said)

    for members, bar in groups:
        progress.update(bar, completed=sum(one.state.round for one in members))
    return tell


def _describe_figures(told: list[tuple[float, int] | None]) -> str:
    figures = [one for one in told if one]
    failed = f"{len(told) - len(figures)} failed  " if len(figures) < len(told) else ""
    if not figures:
        return failed
    accuracy, up = (sum(values) / len(figures) for values in zip(*figures, strict=True))
    return f"{failed}accuracy {accuracy:.3f}  up {format_bytes(up)} a round"


def _group_runs(playing: list[Run]) -> list[tuple[str, list[Run]]]:
    """What gets a bar: each run or, where they are many, all of them and, if not many too, the runs
    of each name.
    """
    if len(playing) <= FEW:
        return [(f"{run.experiment.name} seed {run.experiment.seed}", [run]) for run in playing]
    names = {
        run.experiment.name: [one for one in playing if one.experiment.name == run.experiment.name]
        for run in playing
    }
    return [(f"{len(playing)} runs", playing), *(names.items() if len(names) <= FEW else ())]


def _report_in_lines(playing: list[Run]) -> Tell:
    """A line once every run that goes on has played a round: the mean of each name, or the range of
    many.
    """
    heard: dict[int, tuple[Run, float]] = {}
    failed: set[int] = set()

    def tell(run: Run, outcome: Record | Exception) -> None:
        if isinstance(outcome, Exception):
            failed.add(id(run))
        else:
            heard[id(run)] = run, outcome.accuracy
        if heard and all(one.finished or id(one) in heard or id(one) in failed for one in playing):
            warn(_format_line(list(heard.values())))
            heard.clear()

    return tell


def _format_line(heard: list[tuple[Run, float]]) -> str:
    names: dict[str, list[float]] = {}
    for run, accuracy in heard:
        names.setdefault(run.experiment.name, []).append(accuracy)
    means = {name: sum(accuracies) / len(accuracies) for name, accuracies in names.items()}
    if len(means) <= FEW:
        told = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    else:
        told = f"{min(means.values()):.3f} to {max(means.values()):.3f} over {len(means)} methods"
    played = _format_range([run.state.round for run, _ in heard])
    return f"round {played}/{_format_range([run.experiment.rounds for run, _ in heard])}  accuracy {told}"


def _format_range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}-{high}"


def describe_progress(run: Run) -> str:
    if not run.state.round:
        return f"{run.folder} has no finished round yet: starting at the first"
    return (
        "finished already"
        if run.finished
        else f"resuming after round {run.state.round} of {run.experiment.rounds}"
    )


def choose_engine(
    engine: str, device: str, precision: str = "float32", memory: float | None = None
) -> tuple[Any, str]:
    from fedsift.engines import choose_engine

    return choose_engine(engine, device, precision, memory)


def describe_models(engine: Any, playing: list[Run]) -> list[str]:
    """A line for each architecture: stacked, or one by one and why."""
    import warnings

    with warnings.catch_warnings():  # said here in our own words
        warnings.simplefilter("ignore")
        models = dict.fromkeys(model for run in playing for model in run.federation.clients.models)
        return [f"  {engine.describe(model)}" for model in models]


def new_folder(parent: Path, name: str) -> Path:
    """A folder name that is not taken."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(
        p for n in range(1000) if not (p := parent / (stem if not n else f"{stem}-{n}")).exists()
    )
