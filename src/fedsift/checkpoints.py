"""All that survives a round, as bytes and back."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import IO

import numpy as np
import torch

from fedsift.federation import FederationState
from fedsift.types import Server, Tree


def to_bytes(state: FederationState) -> bytes:
    """All that survives a round as one safetensors blob: leaves under their path, arrays and
    tensors told apart.
    """
    from safetensors.torch import save

    memories = {str(client): memory for client, memory in state.memories.items()}
    tree = {"students": state.server.students, "notes": state.server.notes, "memories": memories}
    return save(dict(_leaves(tree)), {"round": str(state.round)})


def from_bytes(blob: bytes) -> FederationState:
    from safetensors.torch import load as load_tensors

    rounds = rounds_of(io.BytesIO(blob))
    tree: Tree = {"students": {}, "notes": {}, "memories": {}}
    for key, value in load_tensors(blob).items():
        kind, *path, name = json.loads(key)
        here = tree
        for step in path:
            here = here.setdefault(step, {})
        here[name] = value.numpy() if kind == "array" else value
    memories = {int(client): memory for client, memory in tree["memories"].items()}
    return FederationState(rounds, Server(tree["students"], tree["notes"]), memories)


def rounds_of(checkpoint: IO[bytes]) -> int:
    """How many rounds a checkpoint has seen; only its head is read."""
    size = int.from_bytes(checkpoint.read(8), "little")
    return int(json.loads(checkpoint.read(size))["__metadata__"]["round"])


def _leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, np.ndarray):
            yield json.dumps(["array", *path, name]), torch.from_numpy(np.array(value, order="C"))
        else:
            yield json.dumps(["tensor", *path, name]), value.contiguous()
