"""`fedsift bench`: what this machine does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsift.cli.console import (
    error_handler,
    fit_table,
    make_console,
    new_table,
    plain_text,
    print_table,
    say,
    user_error,
    warn,
)
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

app = typer.Typer(
    no_args_is_help=True, help="Measure this machine: engines against the plain loop, many clients."
)

Repeats = Annotated[
    int, typer.Option("--repeats", min=1, help="How often everything is measured, in turn.")
]


@app.command()
def engines(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="fedsift ls models (default: cnn on 8x8 and resnet8 on 32x32 images)."
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="Of the engines: auto, float32, tf32, bfloat16.")
    ] = "float32",
    clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, help="Clients in the cohort, with a model each."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=2, help="Samples per client.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Samples per step.")] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Passes over the samples.")
    ] = None,
    repeats: Repeats = 5,
    as_json: Json = False,
) -> None:
    """Time every engine against the plain loop on one cohort; takes a minute or two.

    By default 20 clients: cnn with 40 samples, batch 16, 10 epochs; resnet8 with 100 samples, batch
    8, one epoch."""
    with error_handler():
        from dataclasses import replace

        from fedsift import bench as benchmark

        sizes = {"clients": clients, "samples": samples, "batch": batch, "epochs": epochs}
        known = {case.model: case for case in benchmark.CASES}
        cases = list(known.values()) if model is None else [known.get(model, benchmark.Case(model))]
        asked: dict[str, Any] = {key: value for key, value in sizes.items() if value is not None}
        tell = str if as_json else warn
        result = benchmark.engines(
            [replace(case, **asked) for case in cases], device, repeats, precision, tell
        )
        if as_json:
            print_json(result)
            return
        for case in result["cases"]:
            about = f"{case['clients']} clients x {case['samples']} samples, batch {case['batch']}"
            shape = "x".join(map(str, case["shape"]))
            title = f"{case['model']}, {shape}, {about}, on {result['device']}"
            table = new_table(
                title, "way", "ms per model-step", "models per second", "times the plain loop"
            )
            for row in case["ways"]:
                figures = (
                    row[key]
                    for key in ("ms_per_model_step", "models_per_second", "times_plain_loop")
                )
                table.add_row(plain_text(row["way"]), *map(_spread, figures))
            print_table(table, ("models per second", "ms per model-step"))
        say(f"median (lowest to highest) of {repeats}; {_machine(result)}")


@app.command()
def scale(
    clients: Annotated[
        int, typer.Option("--clients", min=1, help="Clients of the large federation.")
    ] = 1_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds measured per run.")] = 5,
    cohort: Annotated[
        int, typer.Option("--cohort", min=1, help="Clients that take part in a round.")
    ] = 100,
    repeats: Repeats = 3,
    over: Annotated[
        str | None,
        typer.Option(
            "--over",
            help="Measure how cost grows instead, over clients, cohort, public, classes,"
            " parameters, rounds, or all; the options above then do not count.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="With --over: time for all points.")
    ] = 600,
    picture: Annotated[
        Path | None, typer.Option("-o", "--output", help="With --over: FILE.png, .pdf or .svg")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a large federation with one of 1,000 clients: set-up, time and memory."""
    with error_handler():
        if over is not None:
            _grow(over, seconds, picture, as_json)
            return
        if picture is not None:
            raise user_error("a picture shows how cost grows; name the axes with --over, or all")
        from fedsift import bench as benchmark

        result = benchmark.scale(clients, rounds, cohort, repeats)
        if as_json:
            print_json(result)
            return
        _print_scale(result, cohort)
        say(
            f"a round with {clients:,} clients takes {_spread(result['round_ratio'])} times one"
            f" with {benchmark.FEW:,},"
        )
        say(f"in CPU time {_spread(result['round_cpu_ratio'])} times")
        say(f"median (lowest to highest) of {repeats} runs of {rounds} rounds; {_machine(result)}")


def _grow(over: str, seconds: float, picture: Path | None, as_json: bool) -> None:
    from fedsift import growth
    from fedsift.report import growth_plot, plots

    if picture is not None:
        plots.file_kind(picture)  # before anything is measured
    axes = list(growth.AXES) if over == "all" else [axis.strip() for axis in over.split(",")]
    tell = str if as_json else say
    result = growth.grow(axes, seconds, str if as_json else warn)
    if as_json:
        print_json(result)
    else:
        _print_growth(result)
    if picture is not None:  # last: what was measured is not lost where it cannot be drawn
        growth_plot.draw(result, picture)
        tell(f"wrote {picture}")


def _print_growth(result: dict[str, Any]) -> None:
    from fedsift import growth

    columns = ("axis", "from", "to", *growth.FIGURES.values())
    table = new_table("exponents: 0 is flat, 1 is linear (in brackets the last step)", *columns)
    measured = {axis: found for axis, found in result["axes"].items() if found["points"]}
    for axis, found in measured.items():
        sizes = [f"{point[axis]:,}" for point in found["points"]]
        each = (
            f"{_exponent(found['exponents'][name])} ({_exponent(found['last_exponents'][name])})"
            for name in growth.FIGURES
        )
        table.add_row(axis, sizes[0], sizes[-1], *each)
    if measured:
        print_table(table, ("from",))
    for axis, found in result["axes"].items():
        for size, why in found["left_out"].items():
            say(f"{axis} = {int(size):,} is left out: {why}")
    steep = growth.list_steep(result)
    say(f"grows faster than linearly: {', '.join(steep) or 'nothing'}; {_machine(result)}")


def _exponent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _print_scale(result: dict[str, Any], cohort: int) -> None:
    """Where there is no room for ranges, the medians alone."""
    columns = ("clients", "set-up, s", "round, s", "its CPU, s", "peak, MiB")
    for form in (_spread, _median):
        table = new_table(f"FAS, cohorts of {cohort}", *columns)
        for row in result["federations"]:
            figures = (row[key] for key in ("setup_s", "round_s", "round_cpu_s", "peak_mib"))
            table.add_row(f"{row['clients']:,}", *map(form, figures))
        if fit_table(table, make_console(), ()):
            break
    print_table(table)


def _median(figure: dict[str, float]) -> str:
    return f"{figure['median']:.4g}"


def _spread(figure: dict[str, float]) -> str:
    several = figure["low"] < figure["high"]
    return ("{median:.4g} ({low:.4g} to {high:.4g})" if several else "{median:.4g}").format(
        **figure
    )


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    return f"{machine['cores']} cores of {machine['processor']}{gpu}, torch {machine['torch']}"
