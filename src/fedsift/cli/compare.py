"""`fedsift compare`: runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.comparison import print_comparison, print_costs
from fedsift.cli.console import error_handler, note, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Runs

if TYPE_CHECKING:
    from fedsift.report import Method
    from fedsift.report.gaps import Pairing
    from fedsift.runs import History

FEW = 3  # reasons for missing gaps that are told


def compare(
    folders: Runs,
    target: Annotated[
        float | None,
        typer.Option(
            "--target", min=0, max=1, help="Accuracy to reach (default: 0.9 of the best)."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="NAME", help="Method that gaps are measured from (default: first)."
        ),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option("--costs", help="Also bytes in both directions and training steps."),
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: every figure in a column.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX tabular.")] = False,
    as_json: Json = False,
) -> None:
    """Compare runs; those that differ only in their seed are one method."""
    with error_handler():
        from fedsift import report
        from fedsift.report import formats, gaps
        from fedsift.report.folders import load_runs

        asked = {"csv": as_csv, "markdown": as_markdown, "latex": as_latex, "json": as_json}
        chosen = [name for name, wanted in asked.items() if wanted]
        if len(chosen) > 1:
            raise user_error(f"one format at a time, not --{' and --'.join(chosen)}")
        histories = load_runs(folders, note)
        methods = report.methods(histories)
        paired = gaps.pair_methods(methods, against)
        if as_json:
            goal = report.default_target(methods) if target is None else target
            print_json(_tell(histories, methods, goal, paired))
            return
        if chosen:
            write = {"csv": formats.to_csv, "markdown": formats.to_markdown}
            text = write.get(chosen[0], formats.to_latex)(methods, paired)
            say(text, end="")
            return
        about = ""
        if target is None and len(methods) > 1:  # one method has nothing to be held against
            target, about = (
                report.default_target(methods),
                "bytes uploaded until that accuracy (0.9 of the best accuracy)",
            )
        print_comparison(histories, target, about, paired)
        if costs:
            print_costs(histories)
        if differing := report.unpaired(histories):
            note(f"not a paired comparison; the runs differ in {', '.join(differing)}")
        if paired.gaps or against is not None:
            _note_refusals(list(paired.refusals.values()))


def _note_refusals(reasons: list[str]) -> None:
    """Some in words; a whole sweep may stand apart."""
    for why in reasons[:FEW]:
        note(why)
    if len(reasons) > FEW:
        note(f"{len(reasons) - FEW} more are not paired; --json says why")


def _tell(
    histories: list[History],
    methods: list[Method],
    goal: float,
    paired: Pairing,
) -> dict[str, Any]:
    """All of it, for --json."""
    from fedsift import report

    rows = []
    for method in methods:
        gap = paired.gaps.get(method.label)
        row = method.row() | {"uplink_bytes_to_target": method.uplink_to(goal)}
        row |= {"gap": gap.row() if gap else None}
        rows.append(row)
    runs = [h.summary() | {"name": h.experiment.name, "seed": h.experiment.seed} for h in histories]
    unpaired = report.unpaired(histories)
    return {
        "target": goal,
        "methods": rows,
        "runs": runs,
        "unpaired": unpaired,
        "without_gap": paired.refusals,
    }
