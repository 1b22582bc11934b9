"""`fedsift demo`: four methods on the embedded digits, side by side."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.comparison import print_comparison
from fedsift.cli.console import error_handler, say, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Quiet
from fedsift.cli.progress import (
    choose_engine,
    describe_models,
    new_folder,
    raise_first_error,
    resume_hint,
    run_group,
)

METHODS = ("digits-fedavg", "digits-fd", "digits-fas", "digits-sift")
# What serves FedAvg best: standardised inputs, and the step size chosen for it on other seeds.
SETTING = ("alpha=0.1", "data.normalise=standard", "local.lr=0.01")


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the runs and the picture; an interrupted demo resumes."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per method.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds per run.")] = 15,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Four methods on twenty clients with skewed data, in seconds. Needs no download."""
    with error_handler():
        from fedsift import config, runs
        from fedsift.report import methods, plots

        folder = out or new_folder(Path("runs"), "demo")
        tell = warn if as_json else say
        engine, why = choose_engine("auto", "auto")
        again = f"fedsift demo --out {shlex.quote(str(folder))} --seeds {seeds} --rounds {rounds}"
        experiments = {
            folder / f"{preset}-seed{seed}": config.read_experiment(
                preset, [*SETTING, f"seed={seed}", f"rounds={rounds}"]
            )
            for preset in METHODS
            for seed in range(seeds)
        }
        with resume_hint(again, folder):
            group = runs.Group(experiments, within=folder)
            group.begin(resume=True, note=why)
            raise_first_error(group)
            tell(
                "20 clients, 40 images each, Dirichlet(0.1) label skew; 8 clients per round;"
                " 500 public images without labels."
            )
            how = describe_models(engine, group.runs)
            tell("\n".join([f"{len(experiments)} runs side by side: {why}.", *how]))
            begun = time.perf_counter()
            run_group(group, engine, quiet)
            raise_first_error(group)
        histories = [runs.load_run(run) for run in experiments]
        plots.plot(histories, folder / "demo.png")
        if as_json:
            figures = {"methods": [one.row() for one in methods(histories)]}
            figures |= {"runs": [history.summary() for history in histories]}
            print_json({"folder": folder, "picture": folder / "demo.png"} | figures)
            return
        print_comparison(histories)
        say(f"\nruns     {folder}/digits-*    (look at one: fedsift show {group.folders[-1]})")
        say(f"picture  {folder / 'demo.png'}")
        say(f"done in {time.perf_counter() - begun:.0f} s")
