"""`fedsift new`: a preset as a TOML file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json


def new(
    preset: Annotated[str, typer.Argument(help="As in: fedsift ls presets")],
    file: Annotated[Path, typer.Argument(help="The TOML file to write.")],
    as_json: Json = False,
) -> None:
    """Write a preset to a TOML file, every key with its meaning."""
    with error_handler():
        from fedsift import config, files, sweeps

        if file.suffix != ".toml":
            raise user_error(
                f"give the file the ending .toml, so that `fedsift run {file}.toml` finds it"
            )
        experiment = config.read_experiment(preset)
        if file.exists():
            raise user_error(f"{file} exists; choose another name")
        named = experiment.model_copy(update={"name": file.stem})
        files.write_atomic(file, (config.to_toml(named) + sweeps.EXAMPLE).encode())
        if as_json:
            print_json({"wrote": [file]})
            return
        say(f"wrote {file}; edit it, then: fedsift run {file}")
