"""The command line: the only place that prints. Imports of torch and its kin happen inside each verb."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fedsift.report import Method
    from fedsift.runs import History, Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated distillation: clients share soft labels on a public set; every byte is counted.",
)

Runs = Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress display.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run folder itself (default: a new one under runs/).")]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto or sequential.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]


def main() -> None:
    app()


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from fedsift import __version__

        typer.echo(f"fedsift {__version__}")
        raise typer.Exit


# --- verbs ---------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs and the picture; an interrupted demo goes on.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per method.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds per run.")] = 15,
    quiet: Quiet = False,
) -> None:
    """Twenty clients with skewed data learn from each other's soft labels, beside FedAvg. No download."""
    with _plainly():
        from fedsift import config, runs
        from fedsift.report import plots

        folder = out or _fresh(Path("runs"), "demo")
        engine, why = _engine("auto", "auto")
        playing = []
        for preset in ("digits-fedavg", "digits-fd", "digits-fas"):
            for seed in range(seeds):
                settings = ["alpha=0.1", f"seed={seed}", f"rounds={rounds}"]
                experiment = config.read(preset, settings)
                playing.append(runs.begin(folder / f"{preset}-seed{seed}", experiment, resume=True, note=why))
        _say(
            "20 clients, 40 images each, Dirichlet(0.1) label skew; 8 clients a round; 500 public images without labels."
        )
        _say(f"{len(playing)} runs side by side: {why}.")
        begun = time.perf_counter()
        _play(
            playing, engine, quiet, f"fedsift demo --out {shlex.quote(str(folder))} --seeds {seeds} --rounds {rounds}"
        )
        histories = [runs.load(run.folder) for run in playing]
        plots.plot(histories, folder / "demo.png")
        _print(_comparison(histories))
        _say(f"\nruns     {folder}/digits-*    (look at one: fedsift show {playing[-1].folder})")
        _say(f"picture  {folder / 'demo.png'}")
        _say(f"done in {time.perf_counter() - begun:.0f} s")


@app.command()
def run(
    source: Annotated[str | None, typer.Argument(help="A preset or a TOML file.", show_default=False)] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", show_default=False)] = None,
    out: Out = None,
    engine: EngineName = None,
    device: Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment: fedsift run digits-fas alpha=0.1 sampler=low-entropy seed=3"""
    with _plainly():
        from fedsift import config, runs

        if source and "=" in source:  # fedsift run --resume --out DIR needs no preset, but takes no overrides either
            raise _mistake(f"the first argument is a preset or a TOML file, not {source!r} (fedsift ls presets)")
        if source is None and not (resume and out):
            raise _mistake("name a preset or a TOML file (fedsift ls presets), or give --resume and --out")
        settings = [*(overrides or []), *(f"{k}={v}" for k, v in (("engine", engine), ("device", device)) if v)]
        if resume and not out:
            raise _mistake("--resume needs --out: the folder of the run to go on with")
        experiment = config.read(source, settings) if source else runs.stored(Path(out or ""), settings)
        chosen, why = _engine(experiment.engine, experiment.device)
        folder = out or _fresh(Path("runs"), re.sub(r"[^\w.+-]+", "-", experiment.name).strip("-.") or "run")
        playing = runs.begin(folder, experiment, resume=resume, note=why)
        for key in config.unused(experiment):
            for path in map(config.full_path, overrides or []):
                if path == key or (key.endswith(".") and path.startswith(key)):
                    _warn(f"note: this experiment does not use {path}")
        if not quiet:
            _warn(f"{experiment.name}: {why}")
            if resume:
                _warn(_where_it_stands(playing))
        _play([playing], chosen, quiet, runs.resume_command(folder))
        history = runs.load(folder)
        if as_json:
            typer.echo(json.dumps(history.summary()))
        elif not quiet:
            _print(_comparison([history]))
            _say(f"{history.seconds:.1f} s; run folder: {folder}")


@app.command("ls")
def list_parts(
    kind: Annotated[str | None, typer.Argument(help="datasets, models, samplers, ...", show_default=False)] = None,
) -> None:
    """List what there is to choose from."""
    with _plainly():
        from fedsift import shelf

        shelves = _shelves()
        if kind is not None and kind not in shelves:
            raise _mistake(shelf.unknown("kind", kind, shelves, "fedsift ls"))
        for name in [kind] if kind else shelves:
            if not kind:
                _say(f"{name}:")
            for part, about in shelves[name].items():
                _say(f"  {part:<24} {about}" if not kind else f"{part:<24} {about}")


@app.command()
def new(
    preset: Annotated[str, typer.Argument(help="fedsift ls presets")],
    file: Annotated[Path, typer.Argument(help="The TOML file to write.")],
) -> None:
    """Write a preset to a TOML file of your own, every key with its meaning."""
    with _plainly():
        from fedsift import config, runs

        if file.suffix != ".toml":
            raise _mistake(f"give the file the ending .toml, so that `fedsift run {file}.toml` finds it")
        experiment = config.read(preset)
        if file.exists():
            raise _mistake(f"{file} exists; choose another name")
        named = experiment.model_copy(update={"name": file.stem})
        runs.write_atomically(file, config.to_toml(named).encode())
        _say(f"wrote {file}; edit it, then: fedsift run {file}")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Json = False,
) -> None:
    """What a run did: accuracy and bytes, round by round and client by client."""
    with _plainly():
        from fedsift import config, ledger, runs

        history = runs.load(folder)
        totals = ledger.total(history.ledger)
        if as_json:
            detail = {
                "broadcast_bytes": totals.broadcast,
                "metrics": history.metrics,
                "ledger": [row.to_json() for row in history.ledger],
                "config": history.experiment.model_dump(mode="json"),
                "environment": history.environment,
            }
            typer.echo(json.dumps(history.summary() | detail))
            return
        values = {k: v for k, v in config.flat(history.experiment.model_dump()).items() if v not in (None, ())}
        _say("\n".join(f"{key:<24} {value}" for key, value in values.items()))
        _say(
            f"\n{history.environment['engine']}; torch {history.environment['torch']}; {history.environment['processor']}"
        )
        rounds = _table("rounds", "round", "accuracy", "cohort", "uplink", "downlink", "broadcast")
        for row, sent in zip(history.metrics, history.ledger, strict=True):
            cohort = " ".join(map(str, sent.up))
            sizes = (_size(sent.uplink), _size(sent.downlink), _size(sent.broadcast))
            rounds.add_row(str(row["round"]), f"{row['accuracy']:.4f}", cohort, *sizes)
        _print(rounds)
        clients = _table("clients", "client", "model", "samples per class", "uplink", "downlink")
        sent_by = ledger.per_client(history.ledger)
        for client in history.clients:
            up, down = sent_by.get(client["client"], (0, 0))
            about = (str(client["client"]), _literal(client["model"]), " ".join(map(str, client["labels"])))
            clients.add_row(*about, _size(up), _size(down))
        _print(clients)
        _print(_comparison([history]))


@app.command()
def compare(
    folders: Runs,
    target: Annotated[
        float | None, typer.Option("--target", min=0, max=1, help="Accuracy to reach (default: 0.9 of the best).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side; those that differ only in their seed count as one method."""
    with _plainly():
        from fedsift import report

        histories = _histories(folders)
        if as_json:
            rows = [h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed} for h in histories]
            methods = report.methods(histories)
            goal = report.default_target(methods) if target is None else target
            told = [method.row() | {"uplink_bytes_to_target": method.uplink_to(goal)} for method in methods]
            result = {"target": goal, "methods": told, "runs": rows, "unpaired": report.unpaired(histories)}
            typer.echo(json.dumps(result))
            return
        _print(_comparison(histories, target or report.default_target(report.methods(histories))))
        if differing := report.unpaired(histories):
            _warn(f"note: not a paired comparison; the runs differ in {', '.join(differing)}")


@app.command()
def plot(
    folders: Runs,
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.png, .pdf or .svg")],
) -> None:
    """Draw accuracy against rounds and against uplink bytes, and the clients' label distributions."""
    with _plainly():
        from fedsift.report import plots

        plots.plot(_histories(folders), file)
        _say(f"wrote {file}")


@app.command()
def theory(
    out: Annotated[Path | None, typer.Option("-o", "--output", help="Draw the grid: FILE.png, .pdf or .svg")] = None,
    p: Annotated[int, typer.Option("--dimension", min=10, help="Dimension of the Gaussian mixture.")] = 20_000,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Simulations a row.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Theorem 1 of the paper: the closed form against simulation, its misprint, and the best threshold."""
    with _plainly():
        from dataclasses import asdict

        from fedsift import theory

        rows = theory.grid(p=p, trials=trials, seed=seed)
        if out:
            from fedsift.report import theory_plot

            theory_plot.plot(rows, out)
        if as_json:
            typer.echo(json.dumps([asdict(row) for row in rows]))
            return
        title = "cot(beta_hat, u): closed form, as misprinted, and simulated with its 95 % interval"
        columns = ("sigma", "alpha", "u_bar", "Gamma", "closed form", "misprinted", "simulated", "inside", "best Gamma")
        table = _table(title, *columns)
        for row in rows:
            setting = (f"{value:g}" for value in (row.sigma, row.alpha, row.u_bar, row.gamma))
            best = theory.best_threshold(row.u_bar, row.alpha, row.sigma)
            simulated = f"{row.mean:.4f} ± {row.half_width:.4f}"
            figures = (f"{row.closed:.4f}", f"{row.misprinted:.4f}", simulated, "yes" if row.inside else "no")
            table.add_row(*setting, *figures, f"{best:.2f}")
        _print(table)
        inside = sum(row.inside for row in rows)
        wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
        _say(f"the closed form is inside {inside} of {len(rows)} intervals (95 % of them are expected),")
        _say(
            f"the printed constant 1/(2 pi) is outside {wrong} of {len(rows)}. A larger unlabelled set (u_bar) helps always,"
        )
        _say("a higher threshold (Gamma) up to the best one and no further.")
        if out:
            _say(f"picture: {out}")


# --- saying --------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    typer.echo(text)


def _warn(text: str) -> None:
    typer.echo(text, err=True)


def _print(table: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120, markup=False).print(table)


def _table(title: str, first: str, *others: str) -> Table:
    """A title, a column that may wrap, and columns of figures."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _comparison(histories: list[History], target: float | None = None) -> Table:
    """With a target, also the bytes uploaded until its accuracy was first reached."""
    from fedsift import report

    title = "test accuracy (mean of the last five rounds) and bytes on the wire"
    columns = ["method", "seeds", "accuracy", "an upload", "all up", "all down", "broadcast"]
    table = _table(title, *columns, *([] if target is None else [f"up to {target:g}"]))
    for method in report.methods(histories):
        cost = [] if target is None else [method.uplink_to(target)]
        table.add_row(*_cells(method), *("never" if bytes is None else _size(bytes) for bytes in cost))
    return table


def _cells(method: Method) -> list[str]:
    row = method.row()
    spread = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.3f}"
    sizes = ("uplink_bytes_per_upload", "uplink_bytes", "downlink_bytes", "broadcast_bytes")
    seeds = str(len(row["seeds"]))
    return [_literal(row["method"]), seeds, f"{row['accuracy']:.3f}{spread}", *(_size(row[s]) for s in sizes)]


def _literal(text: str) -> Any:
    """A name as it is, square brackets included."""
    from rich.text import Text

    return Text(text)


def _histories(folders: list[Path]) -> list[History]:
    """Each run once; a folder that holds runs, such as the demo's, stands for them."""
    from fedsift import runs

    found: dict[Path, Path] = {}
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob(f"*/{runs.CONFIG}"))
        for one in inner if inner and not (folder / runs.CONFIG).is_file() else [folder]:
            found.setdefault(one.resolve(), one)
    return [runs.load(folder) for folder in found.values()]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


# --- playing -------------------------------------------------------------------------------------------------------


def _play(playing: list[Run], engine: Any, quiet: bool, go_on: str) -> None:
    """Play to the end with a live display (lines, where there is no terminal). Whatever stops it: say how to go on."""
    from fedsift import runs

    try:
        with _display(playing, quiet) as tell:
            for one, record in runs.play(playing, engine):
                tell(one, record)
    except KeyboardInterrupt:
        _warn(f"\ninterrupted; every finished round is saved. Go on with:\n  {go_on}")
        raise typer.Exit(130) from None
    except OSError as error:
        _warn(f"error: {_os_error(error)}; every finished round is saved. When there is room, go on with:\n  {go_on}")
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _display(playing: list[Run], quiet: bool) -> Iterator[Any]:
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
                said = f"accuracy {record.accuracy:.3f}  up {_size(record.uplink_bytes)} a round"
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
            _warn(f"round {record.round + 1}/{run.experiment.rounds}  accuracy {means}")

    return tell


def _where_it_stands(run: Run) -> str:
    if not run.state.round:
        return f"{run.folder}: nothing to go on with, starting at the first round"
    return "finished already" if run.finished else f"going on after round {run.state.round} of {run.experiment.rounds}"


def _engine(name: str, device: str) -> tuple[Any, str]:
    from fedsift.engines import choose

    return choose(name, device)


def _fresh(parent: Path, name: str) -> Path:
    """A folder name that is not taken."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(p for n in range(1000) if not (p := parent / (stem if not n else f"{stem}-{n}")).exists())


# --- mistakes ------------------------------------------------------------------------------------------------------


def _mistake(text: str) -> Exception:
    from fedsift.types import Mistake

    return Mistake(text)


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """No traceback for a user's mistake, a full disk or Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        _warn("interrupted")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # as in `fedsift ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to flush at exit
        raise typer.Exit(141) from None
    except OSError as error:
        _warn(f"error: {_os_error(error)}")
        raise typer.Exit(1) from None
    except ValueError as error:
        from fedsift.codecs import WireError
        from fedsift.types import Mistake

        if not isinstance(error, Mistake | WireError):
            raise
        _warn(f"error: {error}")
        raise typer.Exit(2) from None


def _os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"cannot use{where}: {error.strerror or error}" if where else f"{error.strerror or error}"


def _shelves() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from fedsift import aggregators, algorithms, codecs, config, data, engines, graphs, models, samplers
    from fedsift.data import partition

    soft = {name: _about(getattr(part, "values", part)) for name, part in codecs.CODECS.items()}
    weights = {name: _about(part) for name, part in codecs.WEIGHT_CODECS.items() if name not in soft}
    return {
        "datasets": _abouts(data.DATASETS) | {"npz:FILE": "your own arrays x, y (x_test, y_test, x_public)"},
        "partitions": _abouts(partition.PARTITIONS),
        "models": _abouts(models.MODELS) | {"module:factory": "your own function (shape, classes) -> nn.Module"},
        "samplers": _abouts(samplers.SAMPLERS),
        "codecs": soft | weights,
        "aggregators": _abouts(aggregators.AGGREGATORS),
        "algorithms": _abouts(algorithms.ALGORITHMS),
        "graphs": _abouts(graphs.GRAPHS),
        "engines": _abouts(engines.ENGINES),
        "presets": {name: text.partition("\n")[0].lstrip("# ") for name, text in config.presets().items()},
    }


def _abouts(shelf: Any) -> dict[str, str]:
    return {name: _about(part) for name, part in shelf.items()}


def _about(part: Any) -> str:
    """The first sentence of a part's docstring; for a preset of another part, what it sets."""
    from functools import partial

    if isinstance(part, partial):
        return f"{part.func.__name__} with " + ", ".join(f"{k} = {v}" for k, v in part.keywords.items())
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())
