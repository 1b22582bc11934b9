"""Model weights as bytes: enveloped safetensors, each tensor checked against the expected model."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from fedsift.checks import describe
from fedsift.codecs import wire
from fedsift.codecs.wire import WireError
from fedsift.types import UserError, Weights

_SAMPLES = struct.Struct("<I")  # private samples behind the weights; 0 from the server


@dataclass(frozen=True)
class WeightCodec:
    """Floating-point tensors as float32 or float16; integer buffers as they are."""

    id: int  # its number in the header
    dtype: torch.dtype  # of the floating-point tensors on the wire

    def encode(
        self, state: Weights, round: int, samples: int = 0, cause: str = "local.lr"
    ) -> bytes:
        """`cause` is the setting to lower where the weights are not finite."""
        from safetensors.numpy import save  # the same bytes as from torch, in a third of the time

        tensors = {name: self._narrow(value) for name, value in state.items()}
        if name := find_not_finite(tensors):
            if not find_not_finite({name: state[name]}):
                raise UserError(f"weights {name!r} are too large for {self.dtype}; use float32")
            raise UserError(f"weights {name!r} are not finite: training diverged; lower {cause}")
        payload = _SAMPLES.pack(samples) + save(
            {name: value.numpy() for name, value in tensors.items()}
        )
        return wire.seal(wire.WEIGHTS, self.id, round, payload)

    def decode(self, message: bytes, round: int, like: Weights) -> tuple[Weights, int]:
        """The state, in the types of `like`, and the number of samples behind it."""
        payload = wire.unseal(message, wire.WEIGHTS, self.id, round, _limit(like))
        wire.verify(message)
        if len(payload) < _SAMPLES.size:
            raise WireError("truncated message: no room for the number of samples")
        tensors = _load(payload[_SAMPLES.size :])
        if tensors.keys() != like.keys():
            odd = map(describe, sorted(tensors.keys() ^ like.keys())[:3])
            raise WireError(
                f"weights of another model: tensors {', '.join(odd)} are not on both sides"
            )
        state = {
            name: self._widen(name, tensors[name], expected) for name, expected in like.items()
        }
        if name := find_not_finite(state):
            raise WireError(f"weights {name!r} are not finite")
        for name, value in state.items():
            check_variance(name, value)
        return state, _SAMPLES.unpack_from(payload)[0]

    def _narrow(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype if value.is_floating_point() else value.dtype).contiguous()

    def _widen(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        sent = self.dtype if expected.is_floating_point() else expected.dtype
        if found.shape != expected.shape or found.dtype != sent:
            raise WireError(
                f"weights {name!r} are {tuple(found.shape)} {found.dtype}, not "
                f"{tuple(expected.shape)} {sent}"
            )
        return found.to(expected.dtype)


def check_variance(name: str, value: torch.Tensor) -> None:
    """A network with a running variance below 0 predicts NaN."""
    if name.rpartition(".")[2] == "running_var" and (value < 0).any():
        raise WireError(f"a variance {name!r} below 0")


def is_statistic(name: str) -> bool:
    """Whether these are running statistics of a batch norm, which no optimiser trains."""
    return name.rpartition(".")[2].startswith("running_")


def find_not_finite(state: Weights) -> str | None:
    """The first tensor with a NaN or infinite value: searched for only if there is one."""
    floats = {name: value for name, value in state.items() if value.is_floating_point()}
    if (
        not floats
        or torch.isfinite(torch.cat([value.flatten() for value in floats.values()])).all()
    ):
        return None
    return next(name for name, value in floats.items() if not torch.isfinite(value).all())


def _load(code: bytes) -> Weights:
    from safetensors.torch import load

    try:
        return load(code)
    except Exception:  # hostile bytes: whatever the parser raises may quote them
        raise WireError("not a safetensors payload") from None


def _limit(like: Weights) -> int:
    """The tensors at full width, and a generous safetensors header."""
    return (
        sum(v.numel() * max(4, v.element_size()) + 256 + 2 * len(name) for name, v in like.items())
        + 1024
    )
