"""How exact matrix products are: an explicit choice, the same word on every device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedsift import registry
from fedsift.types import UserError

PRECISIONS = ("float32", "tf32", "bfloat16")


class Precision:
    """`float32`: exact. `tf32`: inputs of products cut to 10 bits (CUDA only). `bfloat16`: rounded
    to 7 bits, and what flows between convolutions may be stored so. Weights, sums and optimiser
    stay float32 in all of them."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in PRECISIONS:
            raise UserError(
                registry.unknown_name(
                    "precision", name, PRECISIONS, "--precision float32|tf32|bfloat16"
                )
            )
        if name == "tf32" and device.type != "cuda":
            raise UserError(
                "precision tf32 is a mode of CUDA devices; on a CPU use float32 or bfloat16"
            )
        self.name, self.device = name, device

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """torch's switches for CUDA products; by default it rounds in convolutions only."""
        if self.device.type != "cuda":
            yield
            return
        switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
        before = [switch.allow_tf32 for switch in switches]
        try:
            for switch in switches:
                switch.allow_tf32 = self.name == "tf32"
            yield
        finally:
            for switch, value in zip(switches, before, strict=True):
                switch.allow_tf32 = value

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """To be entered for each forward pass of an ordinary nn.Module."""
        half = self.name == "bfloat16"
        return (
            torch.autocast(self.device.type, torch.bfloat16) if half else contextlib.nullcontext()
        )
