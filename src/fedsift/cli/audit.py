"""`fedsift audit`: what uploads tell about the private labels of clients, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.console import (
    error_handler,
    new_table,
    print_remark,
    print_table,
    user_error,
    warn,
)
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Overrides
from fedsift.cli.progress import choose_engine

if TYPE_CHECKING:
    from fedsift.config import Experiment
    from fedsift.sweeps import Sweep

TOGETHER = 60  # runs side by side
COLUMNS = {
    "even": "guess: all classes alike",
    "mean": "from the mean of its soft labels",
    "counts": "from the likeliest classes in its uploads",
    "picks": "from the samples it chose",
    "largest": "how often its largest class is found, by the best of the three",
    "bytes": "correlation of upload sizes with the entropy of labels",
}


def audit(
    source: Annotated[str, typer.Argument(help="A preset or a TOML file.", show_default=False)],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per setting.")] = 3,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write all figures: FILE.json")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what a curious server learns of its clients' labels, in simulation.

    For example: fedsift audit digits-fas alpha=0.1 sweep.sampler=\\[none,mixed]
    """
    with error_handler():
        from fedsift import sweeps
        from fedsift.config import full_path

        settings = overrides or []
        if {"seed", "sweep.seed"} & set(map(full_path, settings)):
            raise user_error("give --seeds, and leave out seed=")
        sweep = sweeps.read(source, [*settings, f"sweep.seed={list(range(seeds))}"])
        report = make_report(sweep, seeds)
        if out:
            _write(out, report)
        if as_json:
            print_json(report)
        else:
            _print(report)


def make_report(sweep: Sweep, seeds: int) -> dict[str, Any]:
    """One row per setting: means over the seeds, and the figures of every seed."""
    from fedsift.environment import environment

    cells = list(sweep.cells.values())
    if len({cell.rounds for cell in cells}) > 1:
        raise user_error("rounds cannot be swept here; audit each length by itself")
    engine, why = choose_engine(*cells[0].where)
    found: dict[str, list[dict[str, Any]]] = {}
    for begin in range(0, len(cells), TOGETHER):
        some = cells[begin : begin + TOGETHER]
        warn(f"runs {begin + 1} to {begin + len(some)} of {len(cells)}: {why}")
        for cell, figures in zip(some, _measure(some, engine), strict=True):
            found.setdefault(cell.name, []).append({"seed": cell.seed} | figures)
    axes = {path: values for path, values in sweep.axes.items() if path != "seed"}
    rows = [{"name": name, **_average(of), "by_seed": of} for name, of in found.items()]
    return {"seeds": seeds, "axes": axes, "environment": environment(why), "rows": rows}


def _measure(cells: list[Experiment], engine: Any) -> list[dict[str, Any]]:
    from fedsift import config, privacy

    federations = [config.build_federation(cell) for cell in cells]
    heard = privacy.overhear(federations, cells[0].rounds, engine)
    return [privacy.score(one, of) for one, of in zip(federations, heard, strict=True)]


def _average(by_seed: list[dict[str, Any]]) -> dict[str, Any]:
    from statistics import fmean

    found: dict[str, Any] = {"bytes": round(fmean(row["bytes"] for row in by_seed), 4)}
    for name in [key for key, value in by_seed[0].items() if isinstance(value, dict)]:
        found[name] = {
            figure: round(fmean(row[name][figure] for row in by_seed), 4)
            for figure in ("kl", "top")
        }
    return found


def _write(out: Path, report: dict[str, Any]) -> None:
    from fedsift.files import write_json

    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, report)


def _print(report: dict[str, Any]) -> None:
    from fedsift.privacy import ATTACKS

    title = f"KL(true || guessed class shares) of a client in nats, mean of {report['seeds']} seeds"
    table = new_table(title, "setting", *COLUMNS)
    for row in report["rows"]:
        largest = max(row[attack]["top"] for attack in ATTACKS)
        figures = [f"{row[name]['kl']:.3f}" for name in ("even", *ATTACKS)]
        table.add_row(row["name"], *figures, f"{largest:.2f}", f"{row['bytes']:+.2f}")
    print_table(table, ("bytes", "largest"))
    print_remark("; ".join(f"{name}: {told}" for name, told in COLUMNS.items()))
