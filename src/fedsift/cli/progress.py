"""Running with a live display, and saying how to resume whatever stops it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.console import describe_os_error, describe_stop, format_bytes, warn
from fedsift.cli.trackers import follow_runs

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedsift.federation import Record
    from fedsift.runs import Group, Run

    Tell = Callable[[Run, Record | Exception], None]
    TellStart = Callable[[int, int], None]

FEW = 12  # rows that can be taken in at a glance


def run_group(
    group: Group,
    engine: Any,
    quiet: bool,
    kind: str = "run",
    seconds: float | None = None,
    track: tuple[str, ...] = (),
) -> None:
    """Run all to the end, or until the time is up, with a live display.

    Where there is no terminal it is lines.
    A run that fails is named at once, and the others continue; one that is alone says why itself.
    """
    from fedsift.runs import describe_error

    told: set[tuple[Path, int]] = set()
    with (
        follow_runs(group.folders, track) as follow,
        show_progress(group.runs, quiet) as (tell, tell_start),
    ):
        for run, outcome in group.run(engine, tell_start, seconds):
            if not isinstance(outcome, Exception):
                follow(run.folder, run.state.round)
                _warn_of_missing(run, outcome, told, len(group.folders) > 1)
            elif len(group.folders) > 1:
                warn(f"{kind} {run.folder.name} failed: {describe_error(outcome)}")
            tell(run, outcome)


def _warn_of_missing(run: Run, record: Record, told: set[tuple[Path, int]], several: bool) -> None:
    """A line for an honest client whose message was refused, the first time."""
    for client, why in record.bytes.missing.items():
        if client not in record.hostile and (run.folder, client) not in told:
            told.add((run.folder, client))
            name = f"{run.folder.name}: " if several else ""
            warn(f"{name}round {record.round + 1} without client {client}: {why}")


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
def show_progress(runs: list[Run], quiet: bool) -> Iterator[tuple[Tell, TellStart]]:
    """Where rounds are reported, and before them the epochs of what the students start from."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda run, outcome: None, lambda done, epochs: None
    elif not console.is_terminal:
        yield _report_in_lines(runs), _report_start_in_lines
    else:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        layout = fit_bars([name for name, _ in _group_runs(runs)], console.width)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=layout.bar),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            yield _report_in_bars(runs, progress, layout), _report_start_in_bar(progress, layout)


@dataclass(frozen=True)
class BarLayout:
    """What a line of the live display has room for."""

    name: int  # columns for the name
    bar: int  # columns for the bar
    uplink: bool  # whether the bytes per round are shown
    words: bool  # whether "accuracy" stands before the figure

    def shorten(self, name: str) -> str:
        """Both ends of the name: the last word is the seed."""
        if len(name) <= self.name:
            return name.ljust(self.name)
        return f"{name[: self.name - 10]}..{name[-8:]}"

    def format_figures(self, outcomes: list[tuple[float, int] | None]) -> str:
        """The mean accuracy and bytes of those that run; None stands for one that failed."""
        figures = [one for one in outcomes if one]
        failed = len(outcomes) - len(figures)
        parts = [f"{failed} failed"] if failed else []
        if figures and (self.words or not failed):
            accuracy, up = (sum(values) / len(figures) for values in zip(*figures, strict=True))
            spelt_out = self.uplink or (self.words and not failed)
            parts.append(f"accuracy {accuracy:.3f}" if spelt_out else f"{accuracy:.3f}")
            parts += [f"up {format_bytes(up)} per round"] if self.uplink and not failed else []
        return "  ".join(parts)


def fit_bars(names: list[str], width: int) -> BarLayout:
    """The bytes per round go first, then the word "accuracy", then the middle of long names."""
    longest = max(map(len, names), default=0)
    count, time_left, gaps, shortest = 7, 7, 4, 10  # columns; "15/15" is padded to its longest
    for figures, uplink, words in ((38, True, True), (16, False, True), (9, False, False)):
        room = width - count - figures - time_left - gaps
        if room >= longest + shortest:
            return BarLayout(longest, min(40, room - longest), uplink, words)
    return BarLayout(max(12, room - shortest), shortest, False, False)


def _report_in_bars(runs: list[Run], progress: Progress, layout: BarLayout) -> Tell:
    """A bar shows the rounds of its runs, and the mean over the last round of each."""
    groups = []
    for name, members in _group_runs(runs):
        total = sum(run.experiment.rounds for run in members)
        bar = progress.add_task(layout.shorten(name), total=total, figures="")
        progress.update(bar, completed=sum(one.state.round for one in members))
        groups.append((members, bar))
    last: dict[int, tuple[float, int] | None] = {}  # accuracy and bytes up; None: it failed

    def tell(run: Run, outcome: Record | Exception) -> None:
        last[id(run)] = (
            None if isinstance(outcome, Exception) else (outcome.accuracy, outcome.uplink_bytes)
        )
        for members, bar in groups:
            figures = layout.format_figures([last[id(one)] for one in members if id(one) in last])
            progress.update(bar, completed=sum(one.state.round for one in members), figures=figures)

    return tell


def _report_start_in_bar(progress: Progress, layout: BarLayout) -> TellStart:
    """One bar for all starts, from the first epoch on; it goes when they are done."""
    bars: list[TaskID] = []

    def tell(done: int, epochs: int) -> None:
        if not bars:
            bars.append(progress.add_task(layout.shorten("start"), total=epochs, figures=""))
        progress.update(bars[0], completed=done, total=epochs, visible=done < epochs)

    return tell


def _report_start_in_lines(done: int, epochs: int) -> None:
    if done:
        warn(f"start: epoch {done} of {epochs}")


def _group_runs(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """What gets a bar: each run; if there are many, all together and, if few, each name's runs."""
    if len(runs) <= FEW:
        return [(f"{run.experiment.name} seed {run.experiment.seed}", [run]) for run in runs]
    names = {
        run.experiment.name: [one for one in runs if one.experiment.name == run.experiment.name]
        for run in runs
    }
    return [(f"{len(runs)} runs", runs), *(names.items() if len(names) <= FEW else ())]


def _report_in_lines(runs: list[Run]) -> Tell:
    """A line once every unfinished run has ended a round: the mean of each name, or the range."""
    latest: dict[int, tuple[Run, float]] = {}
    failed: set[int] = set()

    def tell(run: Run, outcome: Record | Exception) -> None:
        if isinstance(outcome, Exception):
            failed.add(id(run))
        else:
            latest[id(run)] = run, outcome.accuracy
        if latest and all(one.finished or id(one) in latest or id(one) in failed for one in runs):
            warn(_format_line(list(latest.values())))
            latest.clear()

    return tell


def _format_line(latest: list[tuple[Run, float]]) -> str:
    names: dict[str, list[float]] = {}
    for run, accuracy in latest:
        names.setdefault(run.experiment.name, []).append(accuracy)
    means = {name: sum(accuracies) / len(accuracies) for name, accuracies in names.items()}
    if len(means) <= FEW:
        text = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    else:
        text = f"{min(means.values()):.3f} to {max(means.values()):.3f} over {len(means)} methods"
    rounds = _format_range([run.state.round for run, _ in latest])
    total = _format_range([run.experiment.rounds for run, _ in latest])
    return f"round {rounds}/{total}  accuracy {text}"


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
    engine: str,
    device: str,
    precision: str = "float32",
    memory: float | None = None,
    workers: int | None = None,
) -> tuple[Any, str]:
    from fedsift.engines import choose_engine

    return choose_engine(engine, device, precision, memory, workers)


def describe_models(engine: Any, runs: list[Run]) -> list[str]:
    """A line for each architecture: stacked, or one by one and why."""
    import warnings

    with warnings.catch_warnings():  # the lines give the reason in plain words
        warnings.simplefilter("ignore")
        models = dict.fromkeys(model for run in runs for model in run.federation.clients.models)
        lines = [engine.describe(model) for model in models]
    if any(model.is_network for model in models):
        lines += _tell_faster({(e.device, e.precision) for e in (run.experiment for run in runs)})
    return [f"  {line}" for line in lines]


def _tell_faster(where: Iterable[tuple[str, str]]) -> list[str]:
    """The precision on a GPU, where another is faster."""
    import torch

    from fedsift.engines import place, tell_faster

    lines = {tell_faster(precision, torch.device(place(device))) for device, precision in where}
    return [line for line in lines if line is not None]


def new_folder(parent: Path, name: str) -> Path:
    """A folder name that is not taken."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(
        p for n in range(1000) if not (p := parent / (stem if not n else f"{stem}-{n}")).exists()
    )
