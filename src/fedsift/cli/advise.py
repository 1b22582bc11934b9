"""`fedsift advise`: which setting to use for the bytes one has, and the measurements behind it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.console import (
    error_handler,
    new_table,
    print_table,
    say,
    user_error,
    wrap_lines,
)
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedsift.papers.sift.advice import Advice, Case, Question


def advise(
    bytes_: Annotated[int, typer.Option("--bytes", min=1, help="The most bytes of an upload.")],
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many clients.")] = 20,
    classes: Annotated[int, typer.Option("--classes", min=2, help="How many classes.")] = 10,
    skew: Annotated[
        str | None,
        typer.Option(
            "--skew",
            help="Label skew: strong, mild or none (default: not known).",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha",
            help="In place of --skew: the Dirichlet alpha, or a guess.",
            show_default=False,
        ),
    ] = None,
    models: Annotated[
        str, typer.Option("--models", help="one (all clients have the same) or mixed.")
    ] = "one",
    weights: Annotated[
        int | None,
        typer.Option(
            "--weights", min=1, help="How many weights the model has.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the setting: FILE.toml")
    ] = None,
    as_json: Json = False,
) -> None:
    """Which setting to use for the bytes you have, and what was measured with it.

    For example: fedsift advise --bytes 1500 --clients 20 --classes 10 --skew strong
    """
    with error_handler():
        from fedsift import registry
        from fedsift.papers.sift import PAPER, advice, measured

        if skew is not None and alpha is not None:
            raise user_error("give --skew or --alpha, not both")
        if skew is not None:
            alpha = registry.lookup(advice.SKEWS, "skew", skew, "strong, mild or none")
        kinds = {"one": False, "mixed": True}
        mixed = registry.lookup(kinds, "kind of models", models, "one or mixed")
        question = advice.Question(bytes_, clients, classes, alpha, mixed, weights)
        found = advice.advise(question, measured.read_measured(), PAPER)
        if out:
            _write(out, advice.format_toml(found.settings))
        if as_json:
            print_json(_to_json(question, found))
            return
        _print_advice(question, found)
        if out:
            say(f"\nwritten: {out}; run it with: fedsift run {out}")


def _write(out: Path, text: str) -> None:
    from fedsift.files import write_atomic

    if out.exists():
        raise user_error(f"{out} exists; choose another file")
    write_atomic(out, text.encode())


def _to_json(question: Question, found: Advice) -> dict[str, Any]:
    return {
        "question": asdict(question),
        "method": found.method,
        "agree": found.agree,
        "evidence": [asdict(case) for case in found.cases],
        "beyond": found.beyond,
        "setting": found.settings,
    }


def _print_advice(question: Question, found: Advice) -> None:
    from fedsift.papers.sift.advice import format_toml

    say(f"For at most {question.bytes:,} bytes per upload: {found.method}\n")
    say(wrap_lines(_describe_agreement(found)))
    table = new_table("measured", "setting", "data", "alpha", "accuracy", "largest upload")
    for case in found.cases:
        for row in _describe_case(case):
            table.add_row(*row)
    print_table(table)
    if found.beyond:
        say("Beyond what was measured:")
        for sentence in found.beyond:
            say(wrap_lines(f"- {sentence}", "  "))
        say("")
    say(wrap_lines("The setting; [data] and the model are those it was measured with:\n"))
    say(format_toml(found.settings).rstrip())


def _describe_agreement(found: Advice) -> str:
    if found.agree:
        return "Of all that was measured it is the best, or within a point of it, in every case:\n"
    loss = f"{max(case.loss for case in found.cases):.3f}".lstrip("0")
    return (
        "The data sets or skews disagree; of all methods this one loses least:"
        f" {loss} at most, at the end or half-way\n"
    )


def _describe_case(case: Case) -> Iterator[tuple[str, ...]]:
    """The advised setting; below it the best that fits, if it is another one, and plain FedAvg."""
    from fedsift.reproduction.tables import format_accuracy

    points = dict.fromkeys(filter(None, (case.advised, case.best, case.fedavg)))
    for number, point in enumerate(points):
        note = " (best that fits)" if number and point == case.best else ""
        accuracy = format_accuracy(point.accuracy, point.sd)
        where = case.setting, f"{case.alpha:g}"
        yield f"{point.label}{note}", *where, accuracy, f"{point.bytes:,} B"
