"""Tables of methods: accuracy, gaps to a baseline and bytes; and what a client's round costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsift.cli.console import (
    fit_table,
    format_bytes,
    make_console,
    new_table,
    plain_text,
    print_remark,
    print_table,
    say,
    wrap_lines,
)

if TYPE_CHECKING:
    from fedsift.baselines import Baselines
    from fedsift.report import Method
    from fedsift.report.gaps import Pairing
    from fedsift.runs import History


SHOWN = 20  # clients in a table of baselines
DROPPED = ("broadcast", "all down", "all up", "seeds")  # where a comparison is too wide, in turn


def print_comparison(
    histories: list[History],
    target: float | None = None,
    about_target: str = "",
    paired: Pairing | None = None,
) -> None:
    """A line per method, its name whole. With a target, also the bytes uploaded until that accuracy
    was first reached. Where methods are paired, also how far each is ahead of its baseline.
    Where there is no room, gaps have a table of their own, and figures a line of their own.
    """
    from fedsift import report

    goal = [] if target is None else [f"up until {_format_target(target)}"]
    columns = ["method", "seeds", "accuracy", "per upload", "all up", "all down", "broadcast"]
    columns, title = [*columns, *goal], _describe_figures(histories)
    methods = report.methods(histories)
    rows = [_format_method(method, target) for method in methods]
    about = {name: about_target for name in goal if about_target}
    if paired and paired.gaps:
        cells = [_format_gap(method.label, paired) for method in methods]
        wide = [_insert(row, cell) for row, cell in zip(rows, cells, strict=True)]
        more = about | {"gap": _explain_gaps(paired)}
        if _print_rows(title, _insert(columns, "gap"), wide, (*DROPPED, *goal), more):
            return
    if not _print_rows(title, columns, rows, (*DROPPED, *goal, "per upload"), about):
        say(textwrap.fill(title, make_console().width) + "\n")
        for name, seeds, accuracy, upload, *_ in rows:
            say(f"{name}\n    {accuracy}  seeds {seeds}  {upload} per upload")
        say("")
    if paired and paired.gaps:
        table = new_table(f"gap {_explain_gaps(paired)}", "method", "gap")
        for label in paired.gaps:
            table.add_row(plain_text(label), _format_gap(label, paired))
        print_table(table)


def print_baselines(histories: Sequence[History]) -> None:
    """What the clients reach alone and what pooled data give, where runs have measured it."""
    from fedsift.evaluation import average_last

    measured = [(run, run.baselines) for run in histories if run.baselines]
    if not measured:
        return
    columns = ("seed", "federation", "mean alone", "best alone", "pooled")
    table = new_table("the federation beside its baselines", "run", *columns)
    for run, beside in measured:
        figures = (beside.mean_alone, beside.best_alone, beside.best_pooled)
        cells = [f"{figure:.3f}" for figure in (average_last(run.accuracies), *figures)]
        table.add_row(plain_text(run.experiment.name), str(run.experiment.seed), *cells)
    print_table(table, ("run",))
    print_remark("alone, pooled: trained for as many epochs as a client in every round")
    if len(measured) == 1:
        _print_each_baseline(*measured[0])


def _print_each_baseline(run: History, beside: Baselines) -> None:
    models = {str(client["client"]): client["model"] for client in run.clients}
    table = new_table("without a federation", "trained on", "model", "accuracy")
    for id, accuracy in list(beside.alone.items())[:SHOWN]:
        table.add_row(f"client {plain_text(id)}", plain_text(models.get(id, "")), f"{accuracy:.3f}")
    for model, accuracy in beside.pooled.items():
        table.add_row("all data", plain_text(model), f"{accuracy:.3f}")
    print_table(table)


def _insert(cells: Sequence[str], cell: str) -> list[str]:
    """A gap stands beside the accuracy."""
    return [*cells[:3], cell, *cells[3:]]


def _print_rows(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    dropped: Sequence[str],
    about: Mapping[str, str],
) -> list[str]:
    """A table, if it fits without some of the `dropped` columns. Below it, what is said `about` the
    columns, and which are left out. Returns the columns that are shown: none if it does not fit.
    """
    table = new_table(title, *columns)
    for name, *figures in rows:
        table.add_row(plain_text(name), *figures)
    if not fit_table(table, make_console(), dropped):
        return []
    print_table(table)
    shown = [str(column.header) for column in table.columns]
    for name in (name for name in about if name in shown):
        print_remark(f"{name}: {about[name]}")
    if left_out := [name for name in columns if name not in shown]:
        print_remark(f"left out for width: {', '.join(left_out)}")
    return shown


def _format_target(accuracy: float) -> str:
    """ ".409", as accuracies are written in tables."""
    return f"{accuracy:g}".removeprefix("0") or "0"


def _describe_figures(histories: list[History]) -> str:
    from fedsift import evaluation, report

    lengths = {len(run.metrics) for run in histories}
    over = evaluation.describe_average(max(lengths))
    shorter = ", or all a run has" if len(lengths) > 1 else ""
    several = len({run.experiment.seed for run in histories}) > 1
    spread = "; ± standard deviation over seeds" if several else ""
    return f"{report.name_accuracy(histories)} ({over}{shorter}{spread}) and bytes on the wire"


def _format_method(method: Method, target: float | None) -> list[str]:
    row = method.row()
    spread = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.3f}"
    sizes = ("uplink_bytes_per_upload", "uplink_bytes", "downlink_bytes", "broadcast_bytes")
    cells = [row["method"], str(len(row["seeds"])), f"{row['accuracy']:.3f}{spread}"]
    cells += [format_bytes(row[name]) for name in sizes]
    if target is not None:
        cost = method.uplink_to(target)
        cells.append("not by all" if cost is None else format_bytes(cost))
    return cells


def _format_gap(label: str, paired: Pairing) -> str:
    """ "+.068 (+.036 to +.100), 3 of 3": mean, interval, and on how many seeds it is ahead."""
    from fedsift.report.formats import format_gap

    gap = paired.gaps.get(label)
    if gap is None:
        return "baseline" if label in paired.baselines else "not paired"
    ahead = f", {gap.ahead} of {len(gap.seeds)}" if len(gap.seeds) > 1 else ""
    return format_gap(gap) + ahead


def _explain_gaps(paired: Pairing) -> str:
    baselines = paired.baselines
    to = baselines[0] if len(baselines) == 1 else "the baseline above on the same data"
    several = any(len(gap.seeds) > 1 for gap in paired.gaps.values())
    more = " (95 % interval by Student's t), and on how many of them it is above 0"
    return f"to {to}, mean over the same seeds{more if several else ''}"


COSTS = {
    "steps": "training steps of a client in a round, replay included",
    "upload": "the mean of all uploads",
    "largest": "the largest of them",
    "down": "what a client receives in a round, on average",
    "broadcast": "what the server sends in a round if a message for many counts once",
    "both ways": "all uploads and downloads of a run",
    "by broadcast": "all uploads and broadcasts of a run",
}
EDGE_COSTS = {
    "edges up": "what edge servers send to the server in a run",
    "edges down": "what the server sends to edge servers in a run",
}


def print_costs(histories: list[History]) -> None:
    """A line per method: what a round costs a client, and a run all of them."""
    from fedsift import report

    say("")
    edges = any(run.ledger[0].edge_up is not None for run in histories)
    columns = COSTS | (EDGE_COSTS if edges else {})
    rows = [_format_costs(method, edges) for method in report.methods(histories)]
    dropped = ("by broadcast", "broadcast", "both ways")
    if shown := _print_rows("costs", ["method", *columns], rows, dropped, {}):
        print_remark("; ".join(f"{name}: {columns[name]}" for name in shown if name in columns))
        return
    say("costs\n")
    for name, *figures in rows:
        told = "  ".join(
            f"{column} {figure}" for column, figure in zip(columns, figures, strict=True)
        )
        say(wrap_lines(f"{name}\n    {told}", "    "))
    say("")


def _format_costs(method: Method, edges: bool) -> list[str]:
    costs = method.costs()
    steps = costs["client_steps_per_round"]
    sizes: tuple[str, ...] = (
        "uplink_bytes_per_upload",
        "uplink_bytes_largest",
        "downlink_bytes_per_download",
        "broadcast_bytes_per_round",
        "total_bytes",
        "total_bytes_broadcast",
    )
    sizes += ("edge_uplink_bytes", "edge_downlink_bytes") if edges else ()
    shown = "not known" if steps is None else f"{steps:,.0f}"
    cells = ("none" if costs[name] is None else format_bytes(costs[name]) for name in sizes)
    return [method.label, shown, *cells]
