"""How exact matrix products are: an explicit choice, the same word on every device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedsift import registry
from fedsift.types import UserError

PRECISIONS = ("float32", "tf32", "bfloat16")
# What "auto" means on CUDA. Another word only when accuracies of whole studies in it have been
# measured to be level with float32 (docs/gpu.md); elsewhere it is always float32.
AUTO_ON_CUDA = "float32"


def resolve_precision(name: str, device: torch.device) -> str:
    """The precision meant by a word that may be "auto"."""
    if name != "auto":
        return name
    return AUTO_ON_CUDA if device.type == "cuda" else "float32"


def tell_faster(name: str, device: torch.device) -> str | None:
    """For whoever computes more exactly on a GPU than is fastest: one line."""
    if device.type != "cuda" or resolve_precision(name, device) != "float32":
        return None
    return (
        "products in float32; tf32 and bfloat16 are faster, and docs/gpu.md#precision says what "
        "they cost"
    )


class Precision:
    """`float32`: exact. `tf32`: inputs of products cut to 10 bits (CUDA only). `bfloat16`: rounded
    to 7 bits, and what flows between convolutions may be stored so. Weights, sums and optimiser
    stay float32 in all of them."""

    def __init__(self, name: str, device: torch.device) -> None:
        name = resolve_precision(name, device)
        if name not in PRECISIONS:
            known = ("auto", *PRECISIONS)
            options = f"--precision {'|'.join(known)}"
            raise UserError(registry.unknown_name("precision", name, known, options))
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
