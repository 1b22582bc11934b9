"""`fedsift export`: the trained model of a run, for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsift.cli.console import error_handler, plain_text, say, user_error, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, ModelName, RoundName


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.safetensors")],
    round: RoundName = "last",
    model: ModelName = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX (extra: onnx).")] = False,
    torch_export: Annotated[
        bool, typer.Option("--torch-export", help="Write a program for torch.export.load.")
    ] = False,
    torchscript: Annotated[
        bool, typer.Option("--torchscript", help="Write a program for torch.jit.load.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the trained model of a run, and beside it a card that explains it.

    The keys are those of the network's state_dict(). The card has the classes, the normalisation,
    the metrics, the command and the digest of the data.
    """
    with error_handler():
        asked = {"onnx": onnx, "torch-export": torch_export, "torchscript": torchscript}
        forms = [form for form, wanted in asked.items() if wanted]
        if len(forms) > 1:
            raise user_error(f"one format at a time, not {' and '.join(forms)}")
        from fedsift.runs.export import card_path, export_model

        history = load_trusted(folder)
        form = forms[0] if forms else "safetensors"
        card = export_model(history, file, name=model, round=round, form=form)
        if as_json:
            print_json({"file": str(file)} | card)
            return
        say(f"wrote {file}: {plain_text(_describe(card))}")
        say(f"wrote {card_path(file)}: what the model is, and what its inputs are")


def load_trusted(folder: Path) -> Any:
    """The history of a run whose plug-ins will be imported: they are named first."""
    from fedsift import config, runs

    history = runs.load_run(folder)
    if named := config.tell_plugins(history.experiment):
        warn(f"plug-ins: {named}")
    return history


def _describe(card: dict[str, Any]) -> str:
    """ "cnn, 6,090 parameters, round 15, test accuracy 0.7123" """
    told = f"{card['model']}, {card['parameters']:,} parameters, {card['chosen']} round"
    told += f" ({card['round']})"
    if card["accuracy"] is not None:
        told += f", {card['measured_on']} accuracy {card['accuracy']:.4f}"
    return told
