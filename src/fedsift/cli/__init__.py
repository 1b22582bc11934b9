"""The command line, one file per verb; nothing else prints. Verbs import heavy packages inside."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsift.cli import (
    advise,
    audit,
    bench,
    cluster,
    compare,
    console,
    data,
    demo,
    export,
    flower,
    ls,
    new,
    plot,
    predict,
    report,
    reproduce,
    run,
    show,
    theory,
    watch,
)

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated distillation: clients share soft labels; every byte is counted.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from fedsift import __version__

        typer.echo(f"fedsift {__version__}")
        raise typer.Exit


app.command()(demo.demo)
app.command(cls=run.RunCommand)(run.run)
for verb in (ls.ls, new.new, show.show, compare.compare, plot.plot, report.report, export.export):
    app.command()(verb)
for other in (predict.predict, advise.advise, reproduce.reproduce, audit.audit, theory.theory):
    app.command()(other)
app.command()(watch.watch)
for group in (data, flower, bench, cluster):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def main() -> None:
    console.replace_closed_streams()
    app()
