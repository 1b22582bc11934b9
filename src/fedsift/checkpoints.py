"""All that survives a round as bytes, and back."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import IO, Any, TypeVar

import numpy as np
import torch

from fedsift.algorithms import averages, weight_downlink
from fedsift.algorithms.first_weights import FirstWeights
from fedsift.algorithms.soft_labels import ServerMemory as SoftLabelMemory
from fedsift.algorithms.weight_downlink import WeightDownlinkMemory, WeightsHeld
from fedsift.algorithms.weights import ServerMemory as FedAvgMemory
from fedsift.estimators.state import check_state
from fedsift.federation import Federation, FederationState
from fedsift.memory import from_tree, model_in, to_tree
from fedsift.models import initial_state
from fedsift.types import Server, SoftLabels, Tree, UserError, Weights

K = TypeVar("K")
LONGEST_HEAD = 100_000_000  # bytes, as in the library that reads the rest
DEEPEST = 20  # trees in trees
PARTS = ("students", "memory", "memories", "last_rounds", "reported_accuracies")


def to_bytes(state: FederationState) -> bytes:
    """One safetensors blob: every array and tensor under its path."""
    tree = {
        "students": state.server.students,
        "memory": to_tree(state.server.memory),
        "memories": to_tree({id: to_tree(memory) for id, memory in state.memories.items()}),
        "last_rounds": to_tree(state.last_rounds),
        "reported_accuracies": to_tree(state.reported_accuracies),
    }
    return tree_to_bytes(tree, state.round)


def from_bytes(blob: bytes) -> FederationState:
    """The state with memories as plain trees; `restore_state` gives them their types."""
    tree: Tree = {part: {} for part in PARTS} | tree_from_bytes(blob)
    if odd := sorted(tree.keys() - set(PARTS)):
        raise UserError(
            f"saved by another version of fedsift: it has {', '.join(map(repr, odd))[:200]}"
        )
    return FederationState(
        rounds_of(io.BytesIO(blob)),
        Server(tree["students"], tree["memory"]),
        from_tree(dict[int, Any], tree["memories"], "memories"),
        from_tree(dict[int, int], tree["last_rounds"], "last_rounds"),
        from_tree(dict[int, float], tree["reported_accuracies"], "reported_accuracies"),
    )


def restore_state(stored: FederationState, federation: Federation) -> FederationState:
    """A stored state as the federation has it, held against its models, classes and clients."""
    algorithm, r = federation.algorithm, federation.round(0)
    new = algorithm.start(r)
    _check_students(stored.server.students, new.students)
    for id in (
        stored.memories.keys() | stored.last_rounds.keys() | stored.reported_accuracies.keys()
    ):
        if not 0 <= id < len(federation.clients):
            raise UserError(f"it has a client {id} of {len(federation.clients)}")
    kinds = (getattr(algorithm, kind, dict) for kind in ("server_memory", "client_memory"))
    server_kind, client_kind = kinds
    memory = from_tree(server_kind, stored.server.memory, "the server's memory")
    memories = {
        id: from_tree(client_kind, tree, f"the memory of client {id}")
        for id, tree in stored.memories.items()
    }
    for id, own in memories.items():
        if found := model_in(own):
            _check_own_model(id, found, federation)
        for held in _find(WeightsHeld, [own]):
            weight_downlink.check_held(held, federation.clients.model_of(id), federation.seed)
    for labels in _find(SoftLabels, [memory, *memories.values()]):
        _check_soft_labels(labels, max(len(r.public), r.classes), r.classes)
    expected_first = _find(FirstWeights, [new.memory])
    for first, like in zip(_find(FirstWeights, [memory]), expected_first, strict=False):
        _check_students(first.weights, like.weights)
    if isinstance(memory, FedAvgMemory | SoftLabelMemory):
        averages.check_stored_counts(memory.counts, len(federation.clients))
    for downlink in _find(WeightDownlinkMemory, [memory]):
        weight_downlink.check_memory(downlink, federation.round(stored.round))
    return replace(stored, server=Server(stored.server.students, memory), memories=memories)


def restore_students(stored: FederationState, federation: Federation) -> dict[str, Weights]:
    """The server's models alone, held against the federation's."""
    students = stored.server.students
    _check_students(students, federation.algorithm.start(federation.round(0)).students)
    return students


def _check_own_model(id: int, found: Any, federation: Federation) -> None:
    model, whose = federation.clients.model_of(id), f"the model of client {id}"
    if model.is_network:
        _check_weights(whose, found, initial_state(model, federation.seed))
        return
    try:
        check_state(model, found)
    except UserError as error:
        raise UserError(f"{whose}: {error}") from None


def tree_to_bytes(tree: Tree, round: int) -> bytes:
    from safetensors.torch import save

    return save(dict(_leaves(tree)), {"round": str(round)})


def tree_from_bytes(blob: bytes) -> Tree:
    from safetensors.torch import load

    tree: Tree = {}
    for key, value in load(blob).items():
        kind, *path, name = json.loads(key)
        if len(path) > DEEPEST:
            raise UserError("its memories are nested too deeply")
        here = tree
        for step in path:
            here = here.setdefault(step, {})
        here[name] = value.numpy() if kind == "array" else value
    return tree


def rounds_of(checkpoint: IO[bytes]) -> int:
    """How many rounds a checkpoint has seen; only its head is read."""
    return int(_read_head(checkpoint)["__metadata__"]["round"])


def check_size(checkpoint: IO[bytes]) -> None:
    """The head says as many bytes as there are: looked at before the rest is read."""
    head = _read_head(checkpoint)
    places = [about["data_offsets"] for name, about in head.items() if name != "__metadata__"]
    told = checkpoint.tell() + max((int(end) for _, end in places), default=0)
    if (found := checkpoint.seek(0, os.SEEK_END)) != told:
        raise UserError(f"it has {found:,} bytes, and its head says {told:,}")


def _read_head(checkpoint: IO[bytes]) -> dict[str, Any]:
    size = int.from_bytes(checkpoint.read(8), "little")
    if size > LONGEST_HEAD:
        raise UserError(f"its head is said to have {size:,} bytes; {LONGEST_HEAD:,} are the most")
    head: dict[str, Any] = json.loads(checkpoint.read(size))
    return head


def _leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, np.ndarray):
            array = torch.from_numpy(np.array(value, order="C"))
            yield json.dumps(["array", *path, name]), array
        else:
            yield json.dumps(["tensor", *path, name]), value.contiguous()


def _check_students(found: Mapping[str, Any], expected: Mapping[str, Weights]) -> None:
    if set(found) != set(expected):
        there, here = (", ".join(sorted(names)) or "no model" for names in (found, expected))
        raise UserError(f"it has {there}, the experiment {here}")
    for name, weights in expected.items():
        _check_weights(f"model {name}", found[name], weights)


def _check_weights(whose: str, found: Any, expected: Weights) -> None:
    """Names, shapes and types of all tensors."""
    if not isinstance(found, dict):
        raise UserError(f"{whose} is not a set of tensors")
    for name in sorted(expected.keys() ^ found.keys()):
        raise UserError(f"{whose} {'lacks' if name in expected else 'should not have'} {name}")
    for name, tensor in expected.items():
        there, here = _describe_tensor(found[name]), _describe_tensor(tensor)
        if there != here:
            raise UserError(f"{name} of {whose} is {there}, not {here}")


def _describe_tensor(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "no tensor"
    return f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.")


def _find(kind: type[K], things: Iterable[Any]) -> Iterator[K]:
    """All objects of a kind in memories, however deep."""
    for thing in things:
        if isinstance(thing, kind):
            yield thing
        elif isinstance(thing, dict):
            yield from _find(kind, thing.values())
        elif is_dataclass(thing):
            yield from _find(kind, (getattr(thing, field.name) for field in fields(thing)))


def _check_soft_labels(labels: SoftLabels, samples: int, classes: int) -> None:
    index, probs = labels.index, labels.probs
    whole = index.ndim == 1 and index.dtype.kind in "iu" and probs.shape == (len(index), classes)
    if not whole or (len(index) and not (index.min() >= 0 and index.max() < samples)):
        raise UserError(f"it has soft labels that do not fit {samples} samples, {classes} classes")
