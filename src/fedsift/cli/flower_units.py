"""fedsift flower units: files that keep a server and its nodes running."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsift.cli.console import error_handler
from fedsift.cli.flower_runs import tell_written
from fedsift.cli.options import Json, Project


def units(
    folder: Project,
    programs: Annotated[
        str, typer.Option("--programs", help="The virtual environment that has fedsift.")
    ] = "/opt/fedsift",
    state: Annotated[
        str, typer.Option("--state", help="The one folder that services may write.")
    ] = "/var/lib/fedsift",
    user: Annotated[str, typer.Option("--user", help="Who they run as.")] = "fedsift",
    gpu: Annotated[bool, typer.Option("--gpu", help="Let services use a GPU.")] = False,
    as_json: Json = False,
) -> None:
    """Write systemd units, a Dockerfile and compose files into DIR/deploy."""
    with error_handler():
        from fedsift.flower import units as files

        tell_written(files.write_units(folder, programs, state, user, gpu), as_json)
