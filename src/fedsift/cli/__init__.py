"""The command line: the only place that prints. Imports of torch and its kin happen inside each
verb.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli import data as data_commands
from fedsift.cli import flower
from fedsift.cli.bench import bench
from fedsift.cli.console import (
    comparison,
    few,
    literal,
    load_runs,
    mistake,
    new_table,
    plainly,
    print_table,
    say,
    size,
    warn,
)
from fedsift.cli.ls import all_parts
from fedsift.cli.options import Json
from fedsift.cli.progress import engine_for, fresh_folder, how_run, run_group, saying_how_to_go_on
from fedsift.cli.run import run_one, run_sweep

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated distillation: clients share soft labels on a public set; every byte is counted.",
)

app.add_typer(data_commands.app, name="data")
app.add_typer(flower.app, name="flower")

SHOWN = 100  # clients in the table of `fedsift show`; a federation may have a million
Runs = Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress display; `run` prints no table either.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The folder of the run or of the sweep (default: a new one under runs/)."
    ),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, batched or sequential.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="float32, tf32 or bfloat16.")
]

app.add_typer(bench, name="bench")


def main() -> None:
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from fedsift import __version__

        typer.echo(f"fedsift {__version__}")
        raise typer.Exit


# --- verbs
#
#
# ---------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the runs and the picture; an interrupted demo goes on."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per method.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds per run.")] = 15,
    quiet: Quiet = False,
) -> None:
    """Twenty clients with skewed data learn from each other's soft labels, beside FedAvg. No
    download.
    """
    with plainly():
        from fedsift import config, runs
        from fedsift.report import plots

        folder = out or fresh_folder(Path("runs"), "demo")
        engine, why = engine_for("auto", "auto")
        again = f"fedsift demo --out {shlex.quote(str(folder))} --seeds {seeds} --rounds {rounds}"
        experiments = {
            folder / f"{preset}-seed{seed}": config.read_experiment(
                preset, ["alpha=0.1", f"seed={seed}", f"rounds={rounds}"]
            )
            for preset in ("digits-fedavg", "digits-fd", "digits-fas")
            for seed in range(seeds)
        }
        with saying_how_to_go_on(again, folder):
            group = runs.Group(experiments)
            group.begin(resume=True, note=why)
            say(
                "20 clients, 40 images each, Dirichlet(0.1) label skew; 8 clients a round; 500 public images without labels."
            )
            how = how_run(engine, group.runs)
            say("\n".join([f"{len(experiments)} runs side by side: {why}.", *how]))
            begun = time.perf_counter()
            run_group(group, engine, quiet)
            for error in group.errors.values():
                raise error
        histories = [runs.load_run(run) for run in experiments]
        plots.plot(histories, folder / "demo.png")
        print_table(comparison(histories))
        say(f"\nruns     {folder}/digits-*    (look at one: fedsift show {group.folders[-1]})")
        say(f"picture  {folder / 'demo.png'}")
        say(f"done in {time.perf_counter() - begun:.0f} s")


@app.command()
def run(
    source: Annotated[
        str | None, typer.Argument(help="A preset or a TOML file.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value]...", show_default=False)
    ] = None,
    out: Out = None,
    engine: EngineName = None,
    device: Device = None,
    precision: PrecisionName = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="So many seeds side by side: short for sweep.seed=[0, 1, ...]."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run or the sweep in --out.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment: fedsift run digits-fas alpha=0.1 sampler=low-entropy seed=3

    Or many side by side: fedsift run digits-fas --seeds 3 sweep.alpha=[0.1,1,100]
    """
    with plainly():
        from fedsift import config, sweeps

        if (
            source and "=" in source
        ):  # fedsift run --resume --out DIR needs no preset, but takes no overrides either
            raise mistake(
                f"the first argument is a preset or a TOML file, not {source!r} (fedsift ls presets)"
            )
        if source is None and not (resume and out):
            raise mistake(
                "name a preset or a TOML file (fedsift ls presets), or give --resume and --out"
            )
        if resume and not out:
            raise mistake("--resume needs --out: the folder of the run to go on with")
        where = {"engine": engine, "device": device, "precision": precision}
        settings = [
            *(overrides or []),
            *(f"{key}={value}" for key, value in where.items() if value),
        ]
        if seeds:
            if {"seed", "sweep.seed"} & set(map(config.full_path, settings)):
                raise mistake("give --seeds or a seed of your own, not both")
            settings.append(f"sweep.seed={list(range(seeds))}")
        if source:
            sweep = sweeps.read(source, settings)
        else:
            sweep = sweeps.read_folder(Path(out or ""), settings)
        folder = out or fresh_folder(
            Path("runs"), re.sub(r"[^\w.+-]+", "-", sweep.name).strip("-.") or "run"
        )
        if sweep.axes:
            run_sweep(sweep, folder, overrides or [], resume=resume, quiet=quiet, as_json=as_json)
        else:
            (only,) = sweep.cells.values()
            run_one(only, folder, overrides or [], resume=resume, quiet=quiet, as_json=as_json)


@app.command("ls")
def list_parts(
    kind: Annotated[
        str | None, typer.Argument(help="datasets, models, samplers, ...", show_default=False)
    ] = None,
) -> None:
    """List what there is to choose from."""
    with plainly():
        from fedsift import registry

        shelves = all_parts()
        if kind is not None and kind not in shelves:
            raise mistake(registry.unknown_name("kind", kind, shelves, "fedsift ls"))
        for name in [kind] if kind else shelves:
            if not kind:
                say(f"{name}:")
            for part, about in shelves[name].items():
                say(f"  {part:<24} {about}" if not kind else f"{part:<24} {about}")


@app.command()
def new(
    preset: Annotated[str, typer.Argument(help="fedsift ls presets")],
    file: Annotated[Path, typer.Argument(help="The TOML file to write.")],
) -> None:
    """Write a preset to a TOML file of your own, every key with its meaning."""
    with plainly():
        from fedsift import config, files, sweeps

        if file.suffix != ".toml":
            raise mistake(
                f"give the file the ending .toml, so that `fedsift run {file}.toml` finds it"
            )
        experiment = config.read_experiment(preset)
        if file.exists():
            raise mistake(f"{file} exists; choose another name")
        named = experiment.model_copy(update={"name": file.stem})
        files.write_atomic(file, (config.to_toml(named) + sweeps.EXAMPLE).encode())
        say(f"wrote {file}; edit it, then: fedsift run {file}")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Json = False,
) -> None:
    """What a run did: accuracy and bytes, round by round and client by client."""
    with plainly():
        from fedsift import config, ledger, runs

        history = runs.load_run(folder)
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
        values = {
            k: v
            for k, v in config.flat(history.experiment.model_dump()).items()
            if v not in (None, ())
        }
        say("\n".join(f"{key:<24} {value}" for key, value in values.items()))
        say(
            f"\n{history.environment['engine']}; torch {history.environment['torch']}; {history.environment['processor']}"
        )
        rounds = new_table(
            "rounds", "round", "accuracy", "cohort", "uplink", "downlink", "broadcast"
        )
        for row, sent in zip(history.metrics, history.ledger, strict=True):
            cohort = few(sent.up)
            sizes = (size(sent.uplink), size(sent.downlink), size(sent.broadcast))
            rounds.add_row(str(row["round"] + 1), f"{row['accuracy']:.4f}", cohort, *sizes)
        print_table(rounds)
        clients = new_table("clients", "client", "model", "samples per class", "uplink", "downlink")
        sent_by = ledger.per_client(history.ledger)
        for client in history.clients[:SHOWN]:
            up, down = sent_by.get(client["client"], (0, 0))
            labels = (
                " ".join(map(str, client["labels"]))
                if any(client["labels"])
                else "known to its node"
            )
            about = (str(client["client"]), literal(client["model"]), labels)
            clients.add_row(*about, size(up), size(down))
        print_table(clients)
        if (everyone := history.experiment.clients.count) > SHOWN:
            say(
                f"{min(SHOWN, len(history.clients))} of {everyone:,} clients; {runs.CLIENTS} has {len(history.clients):,}\n"
            )
        print_table(comparison([history]))


@app.command()
def compare(
    folders: Runs,
    target: Annotated[
        float | None,
        typer.Option(
            "--target", min=0, max=1, help="Accuracy to reach (default: 0.9 of the best)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side; those that differ only in their seed count as one method."""
    with plainly():
        from fedsift import report

        histories = load_runs(folders)
        if as_json:
            rows = [
                h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed}
                for h in histories
            ]
            methods = report.methods(histories)
            goal = report.default_target(methods) if target is None else target
            told = [
                method.row() | {"uplink_bytes_to_target": method.uplink_to(goal)}
                for method in methods
            ]
            result = {
                "target": goal,
                "methods": told,
                "runs": rows,
                "unpaired": report.unpaired(histories),
            }
            typer.echo(json.dumps(result))
            return
        print_table(
            comparison(histories, target or report.default_target(report.methods(histories)))
        )
        if differing := report.unpaired(histories):
            warn(f"note: not a paired comparison; the runs differ in {', '.join(differing)}")


@app.command()
def plot(
    folders: Runs,
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.png, .pdf or .svg")],
) -> None:
    """Draw accuracy against rounds and against uplink bytes, and the clients' label
    distributions.
    """
    with plainly():
        from fedsift.report import plots

        plots.plot(load_runs(folders), file)
        say(f"wrote {file}")


@app.command()
def reproduce(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ITEM... [key=value]...",
            help="table1, table2, fig-data, fig-size, fig-aggregation, download, theory, or all of these: all; budget, beyond, beyond2.",
            show_default=False,
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: 8x8 digits, minutes on a CPU.")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="ours, literal (the paper to the letter), fresh (other public samples in every round) or a TOML file; --quick: ours.",
        ),
    ] = "ours",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of every cell.")] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of runs and reports (default: reproduction/SETTING-RECIPE)."
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing; report on the runs in --out.")
    ] = False,
    engine: EngineName = None,
    device: Device = None,
    precision: PrecisionName = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tables and figures of the paper: run what is missing, then paper | ours | verdict. The same
    command again goes on.
    """
    with plainly():
        from fedsift.cli.reproduce import names
        from fedsift.cli.reproduce import reproduce as reproduce_items
        from fedsift.papers.fas_icc2022 import PAPER
        from fedsift.reproduction.plans import Plan

        setting = PAPER.choose_setting(quick)
        where = {"engine": engine, "device": device, "precision": precision}
        overrides = [word for word in words if "=" in word]
        settings = [*overrides, *(f"{key}={value}" for key, value in where.items() if value)]
        plan = Plan(PAPER, setting, recipe, seeds, tuple(settings))
        folder = out or Path("reproduction") / f"{setting}-{Path(recipe).stem}"
        items = names([word for word in words if "=" not in word])
        reproduce_items(items, plan, folder, play=not report, quiet=quiet, as_json=as_json)


@app.command()
def theory(
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw the grid: FILE.png, .pdf or .svg")
    ] = None,
    p: Annotated[
        int, typer.Option("--dimension", min=10, help="Dimension of the Gaussian mixture.")
    ] = 20_000,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Simulations a row.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Theorem 1 of the paper: a federation of estimators, the closed form against simulation, its
    misprint, the best threshold.
    """
    with plainly():
        from dataclasses import asdict

        from fedsift.papers.fas_icc2022 import theory

        rows = theory.grid(p=p, trials=trials, seed=seed)
        if out:
            from fedsift.papers.fas_icc2022 import theory_plot

            theory_plot.plot(rows, out)
        if as_json:
            typer.echo(json.dumps([asdict(row) for row in rows]))
            return
        title = "cot(beta_hat, u): closed form, as misprinted, and simulated with its 95 % interval"
        columns = (
            "sigma",
            "alpha",
            "u_bar",
            "Gamma",
            "closed form",
            "misprinted",
            "simulated",
            "inside",
            "best Gamma",
        )
        table = new_table(title, *columns)
        for row in rows:
            setting = (f"{value:g}" for value in (row.sigma, row.alpha, row.u_bar, row.gamma))
            best = theory.best_threshold(row.u_bar, row.alpha, row.sigma)
            simulated = f"{row.mean:.4f} ± {row.half_width:.4f}"
            figures = (
                f"{row.closed:.4f}",
                f"{row.misprinted:.4f}",
                simulated,
                "yes" if row.inside else "no",
            )
            table.add_row(*setting, *figures, f"{best:.2f}")
        print_table(table)
        for clients in (5, 20, 80):
            one = theory.federation(clients, seed=seed)
            start = f"{one.clients} clients x 10 samples: alpha {one.alpha:.3f}, cot {one.before:.3f} before distillation"
            say(f"{start}, {one.after:.3f} after (closed form {one.closed:.3f})")
        inside = sum(row.inside for row in rows)
        wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
        say(
            f"the closed form is inside {inside} of {len(rows)} intervals (95 % of them are expected),"
        )
        say(
            f"the printed constant 1/(2 pi) is outside {wrong} of {len(rows)}. A larger unlabelled set (u_bar) helps always,"
        )
        say("a higher threshold (Gamma) up to the best one and no further.")
        if out:
            say(f"picture: {out}")
