"""`fedsift cluster`: a Ray cluster on this machine's loopback, to try the engine."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsift.cli.console import error_handler, say, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

app = typer.Typer(
    no_args_is_help=True, help="A Ray cluster on this machine, to try --engine ray (docs: cluster)."
)


@app.command()
def up(
    cores: Annotated[
        int | None,
        typer.Option("--cores", min=1, help="Workers it has room for (default: as many as cores)."),
    ] = None,
    memory: Annotated[
        float, typer.Option("--memory", min=0.1, help="GiB that hold data sets.")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Start Ray on loopback, without dashboard and without reports to anybody."""
    with error_handler():
        from fedsift.engines.spread import cluster
        from fedsift.engines.threads import count_cores

        if not as_json:
            warn("starting Ray: some seconds")
        address = cluster.start(cores or count_cores(), memory)
        if as_json:
            print_json({"address": address})
            return
        say(f"Ray runs at {address}. Use it, and end it, with:")
        say(f"  fedsift run digits-fas --engine ray --address {address}")
        say("  fedsift cluster down")


@app.command()
def down(as_json: Json = False) -> None:
    """End the cluster that `fedsift cluster up` has started, and nothing else."""
    with error_handler():
        from fedsift.engines.spread import cluster

        address = cluster.stop()
        if as_json:
            print_json({"address": address})
            return
        say("no cluster of ours runs here" if address is None else f"ended Ray at {address}")
