"""A trained model for use elsewhere: a file that plain PyTorch reads, and a card that explains it.

A network expects inputs as the task has them. The card says how they are normalised.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsift import __version__, files
from fedsift.data import Task
from fedsift.data.preparation import Number
from fedsift.runs.history import History
from fedsift.runs.models import LAST_ROUND, TrainedModel, load_model
from fedsift.runs.run import fingerprint_task
from fedsift.runs.states import describe_error
from fedsift.types import UserError

CARD = 1  # the format of a card
ONNX_NEEDS = ("onnx", "onnxscript")


def export_model(
    history: History,
    path: Path,
    *,
    name: str | None = None,
    round: str = LAST_ROUND,
    form: str = "safetensors",
) -> dict[str, Any]:
    """Write a model of a run, and its card beside it; returns the card.

    path: the file; the card of model.safetensors is model.card.json
    name, round: as for `History.network`
    form: one of FORMS
    """
    _check_packages(form)
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it first")
    trained = load_trained(history, name, round)
    try:
        content = FORMS[form](trained)
    except Exception as error:  # a user's network can fail in any way
        raise UserError(
            f"model {trained.name!r} cannot be written as {form}: {describe_error(error)}; "
            "export it without this option and build the network in your own code"
        ) from error
    card = make_card(history, trained, round, form)
    files.write_atomic(path, content)
    files.write_json(card_path(path), card)
    return card


def card_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.card.json")


def load_trained(
    history: History, name: str | None = None, round: str = LAST_ROUND
) -> TrainedModel:
    """A model of a run, and its task; refused where the data have changed since the run."""
    trained = load_model(history.folder, history.experiment, name, round)
    _check_data(history, trained.task)
    return trained


def make_card(history: History, trained: TrainedModel, round: str, form: str) -> dict[str, Any]:
    """What somebody needs to know who has the file and not the run."""
    net, made, row = trained.build(), history.environment, history.metrics[trained.rounds - 1]
    return {
        "fedsift": __version__,
        "card": CARD,
        "format": form,
        "name": history.experiment.name,
        "model": trained.model.name,
        "architecture": str(net),
        "parameters": sum(value.numel() for value in net.parameters()),
        "round": trained.rounds,
        "chosen": round,
        "inputs": describe_inputs(trained.task),
        "outputs": "one value per class, before the softmax",
        "classes": list_classes(trained.task),
        "accuracy": row["accuracies"].get(trained.name),
        "measured_on": history.measured_on,
        "metrics": row,
        "made_by": {key: made.get(key) for key in ("fedsift", "commit", "command", "torch")},
        "data": history.data,
        "config": history.experiment.model_dump(mode="json"),
    }


def describe_inputs(task: Task) -> dict[str, Any]:
    """The shape of a sample, and the figures by which its values are normalised."""
    samples, prepared = task.private.samples, task.preparation
    told: dict[str, Any] = {"shape": list(samples.shape)}
    if samples.vocabulary is not None:
        told |= {"vocabulary": samples.vocabulary, "normalise": "none: whole numbers"}
    else:
        mean, std = samples.store.mean.tolist(), samples.store.std.tolist()
        told |= {"mean": mean, "std": std, "normalise": "(x - mean) / std"}
    if prepared is not None and prepared.tokenizer is not None:
        ids = "0 fills up, 1 is an unknown word, and word i of the list, from 0, is i + 2"
        told |= {"words": list(prepared.tokenizer.words), "ids": ids}
    elif prepared is not None:
        told |= {"columns": list(prepared.names)}
        told |= {"missing": {c.name: c.fill for c in prepared.columns if isinstance(c, Number)}}
    return told


def list_classes(task: Task) -> list[str]:
    """Their names, or else their numbers."""
    return list(task.class_names or map(str, range(task.private.classes)))


def _check_data(history: History, task: Task) -> None:
    """Figures of other data would make other inputs."""
    if history.data.get("sha256") == fingerprint_task(task)["sha256"]:
        return
    if history.data.get("private") == 0:
        raise UserError(
            f"the data of {history.folder} are in a Flower project, so what its inputs are "
            "is not known here; build the network in your own code and give it "
            "fedsift.runs.last_state(folder).server.students"
        )
    raise UserError(
        f"the data are not those {history.folder} was made with; put back the file that "
        f"data.name={history.experiment.data.name} names"
    )


# --- forms ---


def _check_packages(form: str) -> None:
    missing = [name for name in ONNX_NEEDS if importlib.util.find_spec(name) is None]
    if form == "onnx" and missing:
        raise UserError(
            f"--onnx needs {' and '.join(missing)}, not installed here: pip install 'fedsift[onnx]'"
        )


def _pack_safetensors(trained: TrainedModel) -> bytes:
    """The keys of `state_dict()`, and nothing else."""
    from safetensors.torch import save

    return save(dict(trained.weights), {"format": "pt"})


def _pack_program(trained: TrainedModel) -> bytes:
    """For `torch.export.load`."""
    buffer = io.BytesIO()
    torch.export.save(_trace_program(trained), buffer)
    return buffer.getvalue()


def _pack_script(trained: TrainedModel) -> bytes:
    """For `torch.jit.load`, also in C++."""
    buffer = io.BytesIO()
    with _quietly():
        traced: Any = torch.jit.trace(trained.build(), _make_example(trained))
        torch.jit.save(traced, buffer)
    return buffer.getvalue()


def _pack_onnx(trained: TrainedModel) -> bytes:
    """Input "x" [n, ...], output "logits" [n, C], for any n."""
    with _quietly():
        program: Any = torch.onnx.export(
            _trace_program(trained),
            (),
            dynamo=True,
            input_names=["x"],
            output_names=["logits"],
            verbose=False,
        )
    return bytes(program.model_proto.SerializeToString())


def _trace_program(trained: TrainedModel) -> torch.export.ExportedProgram:
    net: nn.Module = trained.build()
    batch = torch.export.Dim("n", min=1)
    with _quietly(), torch.random.fork_rng(devices=[]):
        return torch.export.export(net, (_make_example(trained),), dynamic_shapes=({0: batch},))


def _make_example(trained: TrainedModel) -> torch.Tensor:
    return trained.model.example(2)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """torch speaks of its own plans here, about which a user cannot do anything."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(action="ignore"):
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


FORMS: dict[str, Callable[[TrainedModel], bytes]] = {
    "safetensors": _pack_safetensors,
    "torch-export": _pack_program,
    "torchscript": _pack_script,
    "onnx": _pack_onnx,
}
