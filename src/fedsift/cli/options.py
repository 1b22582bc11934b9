"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the run or sweep (default: a new one under runs/)."),
]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="auto, batched, sequential, workers or ray.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Train in so many worker processes.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Of a Ray cluster: HOST:PORT or ray://HOST:PORT."),
]


def name_engine(engine: str | None, address: str | None) -> str | None:
    """The engine as an experiment names it, with the address among what stands in brackets."""
    if address is None:
        return engine
    from fedsift.registry import parse_spec
    from fedsift.types import UserError

    spec = (engine or "ray").strip()
    name, _, named = parse_spec(spec)
    if name != "ray":
        raise UserError(f"--address is for --engine ray, not for {engine}")
    if "address" in named:
        raise UserError(f"{engine} has an address of its own; leave --address out")
    inside = spec.removeprefix(name).strip().removeprefix("(").removesuffix(")").strip()
    return f"ray({inside}{', ' if inside else ''}address={address})"


Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="auto, float32, tf32 or bfloat16.")
]
Project = Annotated[
    Path, typer.Argument(metavar="DIR", help="The project's folder.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value]...",
        help="Settings in place of those that are written there, as in alpha=0.1",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress display.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
Track = Annotated[
    str | None,
    typer.Option(
        "--track", metavar="NAMES", help="Write to csv, tensorboard, mlflow or wandb; or some: a,b"
    ),
]
RoundName = Annotated[str, typer.Option("--round", help="last, or best by the validation samples.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Which model, where there are several."),
]
