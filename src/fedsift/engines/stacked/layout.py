"""Where the weights of M stacked networks lie: one row per network in one flat matrix."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from fedsift.engines.stacked.trace import Unstackable
from fedsift.types import Weights

# floats, 64 bytes: products may round by where their operands lie, so every model's lie alike
ALIGNED = 16


class Layout:
    """Where each network parameter lies in its row of one flat [M, P] matrix, and the buffers."""

    def __init__(
        self, net: nn.Module, inputs_first: Sequence[str] = (), channels_last: Sequence[str] = ()
    ) -> None:
        self.parameters = {name: value.shape for name, value in net.named_parameters()}
        self.buffers = {name: value.detach().clone() for name, value in net.named_buffers()}
        self.names = tuple(net.state_dict())
        # weights [O, I, ...] that the program wants as [..., I, O] or as [O, ..., I]
        self._inputs_first, self._channels_last = set(inputs_first), set(channels_last)
        if missing := set(self.names) - self.parameters.keys() - self.buffers.keys():
            raise Unstackable(f"{min(missing)} shares its values with another parameter")
        for name, parameter in net.named_parameters():
            if not parameter.requires_grad or parameter.dtype != torch.float32:
                raise Unstackable(f"{name} is frozen or not float32")
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise Unstackable(f"{name} has hooks")

        sizes = [shape.numel() for shape in self.parameters.values()]
        self.size = -(-sum(sizes) // ALIGNED) * ALIGNED
        self._sizes = [*sizes, self.size - sum(sizes)]

    @torch.no_grad()
    def stack(self, states: Sequence[Weights]) -> tuple[Tensor, dict[str, Tensor]]:
        """Parameters [M, P] and buffers {name: [M, ...]}; a buffer in no state starts as built."""
        for state in states:
            if state.keys() != set(self.names):
                raise RuntimeError(
                    f"missing or unexpected keys: {sorted(state.keys() ^ set(self.names))}"
                )
        for name, shape in (
            *self.parameters.items(),
            *((n, v.shape) for n, v in self.buffers.items()),
        ):
            for state in states:
                if name in state and state[name].shape != shape:
                    raise RuntimeError(
                        f"size mismatch for {name}: {tuple(state[name].shape)}, not {tuple(shape)}"
                    )
        flat = torch.zeros(len(states), self.size)
        for name, part in self._parts(flat).items():
            stacked = torch.stack([state[name].to("cpu", torch.float32) for state in states])
            part.copy_(_rows(self._to_program(name, stacked)))
        buffers = {
            n: torch.stack([state.get(n, start).to(start) for state in states])
            for n, start in self.buffers.items()
        }
        return flat, buffers

    def unstack(self, flat: Tensor, buffers: dict[str, Tensor]) -> list[Weights]:
        """The other way: one state a model, each tensor its own memory."""
        stacked = {
            name: self._from_program(name, part) for name, part in self._parts(flat).items()
        } | buffers
        return [
            {name: stacked[name][i].clone().contiguous() for name in self.names}
            for i in range(len(flat))
        ]

    def weights(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat matrix in the program's shapes."""
        return {
            name: part.view(len(flat), *self._program_shape(name))
            for name, part in self._parts(flat).items()
        }

    def join_gradients(
        self, gradients: Sequence[Tensor], into: Tensor | None = None, placed: Collection[str] = ()
    ) -> Tensor:
        """Gradients of `weights(flat)` as a matrix like it; `into` one that has those `placed`."""
        if into is None or not placed:
            rows = [_rows(gradient) for gradient in gradients]
            return torch.cat([*rows, rows[0].new_zeros(len(rows[0]), self._sizes[-1])], 1, out=into)
        for (name, place), gradient in zip(self.weights(into).items(), gradients, strict=True):
            if name not in placed:
                place.copy_(gradient)
        return into

    def _parts(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.parameters, flat.split(self._sizes, 1), strict=False))

    def _program_shape(self, name: str) -> tuple[int, ...]:
        shape = self.parameters[name]
        if name in self._channels_last:
            return (shape[0], *shape[2:], shape[1])
        return (shape[1:].numel(), shape[0]) if name in self._inputs_first else tuple(shape)

    def _to_program(self, name: str, stacked: Tensor) -> Tensor:
        """[M, O, I, kh, kw] -> [M, kh, kw, I, O] or [M, O, kh, kw, I]; others stay."""
        kernel = range(3, stacked.ndim)
        if name in self._channels_last:
            return stacked.permute(0, 1, *kernel, 2)
        return stacked.permute(0, *kernel, 2, 1) if name in self._inputs_first else stacked

    def _from_program(self, name: str, part: Tensor) -> Tensor:
        o, *rest = self.parameters[name] or (1,)
        if name in self._channels_last:
            return part.reshape(len(part), o, *rest[1:], rest[0]).movedim(-1, 2)
        if name in self._inputs_first:
            return part.reshape(len(part), *rest[1:], rest[0], o).movedim((-1, -2), (1, 2))
        return part.reshape(len(part), *self.parameters[name])


def _rows(stacked: Tensor) -> Tensor:
    """[M, ...] -> [M, n]; a parameter may be a single number."""
    return stacked.reshape(len(stacked), -1)
