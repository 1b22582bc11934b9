"""`fedsift predict`: what a trained model says about new samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, note, say
from fedsift.cli.export import load_trusted
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, ModelName, RoundName


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The samples: FILE.npz (its x), FILE.npy or pictures."),
    ],
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.csv")],
    round: RoundName = "last",
    model: ModelName = None,
    as_json: Json = False,
) -> None:
    """Predict new samples with the trained model of a run: probabilities, one row per sample.

    The samples are normalised as those of the run were.
    """
    with error_handler():
        from fedsift import files
        from fedsift.runs.predictions import predict_file

        found = predict_file(load_trusted(folder), source, model, round)
        for told in found.notes:
            note(told)
        files.write_atomic(file, found.to_csv().encode())
        count = len(found.samples)
        if as_json:
            print_json({"wrote": [file], "samples": count})
            return
        say(f"wrote {file}: {count:,} sample{'s' if count > 1 else ''}")
