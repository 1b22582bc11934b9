"""`fedsift theory`: Theorem 1 of the paper, closed form against simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, new_table, print_table, say, wrap_lines
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json


def theory(
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw the grid: FILE.png, .pdf or .svg")
    ] = None,
    p: Annotated[
        int, typer.Option("--dimension", min=10, help="Dimension of the Gaussian mixture.")
    ] = 20_000,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Simulations per row.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Theorem 1 of the paper: closed form against simulation, and the best threshold."""
    with error_handler():
        from dataclasses import asdict

        from fedsift.papers.fas_icc2022 import theory

        rows = theory.grid(p=p, trials=trials, seed=seed)
        if out:
            from fedsift.papers.fas_icc2022 import theory_plot

            theory_plot.plot(rows, out)
        if as_json:
            print_json([asdict(row) for row in rows])
            return
        title = "cot(beta_hat, u): closed form, and simulated with its 95 % interval"
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
        print_table(table, ("misprinted", "best Gamma", "inside"))
        for clients in (5, 20, 80):
            one = theory.federation(clients, seed=seed)
            sizes = f"{one.clients} clients x 10 samples: alpha {one.alpha:.3f}"
            start = f"{sizes}, cot {one.before:.3f} before distillation"
            say(wrap_lines(f"{start}, {one.after:.3f} after (closed form {one.closed:.3f})", "  "))
        inside = sum(row.inside for row in rows)
        wrong = sum(abs(row.misprinted - row.mean) > row.half_width for row in rows)
        count = len(rows)
        say(
            wrap_lines(
                f"The closed form is inside {inside} of {count} intervals (95 % are expected).\n"
                f"The printed constant 1/(2 pi) is outside {wrong} of {count}.\n"
                "A larger unlabelled set (u_bar) always helps.\n"
                "A higher threshold (Gamma) helps up to the best one and no further.",
                "  ",
            )
        )
        if out:
            say(f"picture: {out}")
