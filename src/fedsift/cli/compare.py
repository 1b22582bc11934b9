"""`fedsift compare`: runs side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, note, print_comparison
from fedsift.cli.options import Json, Runs


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
    """Compare runs; those that differ only in their seed are one method."""
    with error_handler():
        from fedsift import report
        from fedsift.report.folders import load_runs

        histories = load_runs(folders, note)
        if as_json:
            rows = [
                h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed}
                for h in histories
            ]
            methods = report.methods(histories)
            goal = report.default_target(methods) if target is None else target
            grouped = [
                method.row() | {"uplink_bytes_to_target": method.uplink_to(goal)}
                for method in methods
            ]
            result = {
                "target": goal,
                "methods": grouped,
                "runs": rows,
                "unpaired": report.unpaired(histories),
            }
            typer.echo(json.dumps(result))
            return
        methods, about = report.methods(histories), ""
        if target is None and len(methods) > 1:  # one method has nothing to be held against
            target, about = (
                report.default_target(methods),
                "bytes uploaded until that accuracy (0.9 of the best accuracy)",
            )
        print_comparison(histories, target, about)
        if differing := report.unpaired(histories):
            note(f"not a paired comparison; the runs differ in {', '.join(differing)}")
