"""A network turned into a program over M copies of itself.

`stack(model)` traces the network once. If it is made of layers that are known here, the program
runs on stacked layers (`Stacked`); any other network that torch.func can batch runs under vmap
(`Vmapped`); what neither can do raises `Unstackable` with the reason. Nothing has to be changed in
the network.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, vmap
from torch.func import functional_call

from fedsift import training
from fedsift.engines.stacked.layout import Layout
from fedsift.engines.stacked.ops import CONVOLUTIONS, LAYERS, Pass, ReferenceOps
from fedsift.engines.stacked.trace import Op, Unstackable, first_sentence, trace
from fedsift.types import Model

NORMS = ("batch_norm", "norm_after_convolution")


class Program:
    """M networks of one architecture as one function, with the layout of their weights."""

    layout: Layout
    pads = True  # whether batches of unequal length may be padded
    macs = 0  # multiplications per sample, forward
    values = 0  # activations per sample, forward
    # of these held in training, where the program knows better than the engine
    copies: int | None = None
    # the fewest values a sample gives to a batch norm, where there is one
    smallest_norm: int | None = None
    stored = torch.float32  # what flows between convolutions, or layers
    takes = torch.float32  # what its input is best stored in
    # weights whose gradients can be written where they are wanted (Pass.places)
    placed: frozenset[str] = frozenset()
    # buffers that count batches; whoever trains adds the steps at the end
    counters: tuple[str, ...] = ()

    def __call__(self, p: Pass, x: Tensor) -> Tensor:
        raise NotImplementedError

    def weights(self, flat: Tensor) -> dict[str, Tensor]:
        return self.layout.weights(flat)

    def arrange(self, x: Tensor) -> Tensor:
        """Images [..., C, H, W] as [..., H, W, C], in the best memory order for this program."""
        return x.movedim(-3, -1).contiguous()

    def add_gradients(
        self, p: Pass, x: Tensor, loss: Callable[[Tensor], Tensor], into: dict[str, Tensor]
    ) -> None:
        """Forward and backward; `loss` gives the gradient of the loss by the logits. The weights'
        gradients are added to `into`.
        """
        logits = self(p, x)
        found = torch.autograd.grad(logits, list(p.weights.values()), loss(logits.detach()))
        for mine, gradient in zip(into.values(), found, strict=True):
            mine.add_(gradient)


class Traced:
    """A network of known layers: its ops in both modes, and what can be counted from them."""

    def __init__(self, model: Model) -> None:
        self.net, self.shape = model.build(), model.shape
        self.ops = {mode: trace(self.net.train(mode), model.shape) for mode in (True, False)}
        every = [op for o in self.ops[True] for op in (o, o.before) if op]
        self.names = {op.name for op in every}
        self.convolutions = [f"{op.name}.weight" for op in every if op.kind == "convolution"]
        self.linears = [f"{op.name}.weight" for op in every if op.kind == "linear"]
        self.norms = [op for op in self.ops[True] if op.kind in NORMS]

    def set_up(self, program: Program) -> None:
        """Check that a program computes what the network does, and give it the counts."""
        parameters = program.layout.parameters
        if unused := [name for name in parameters if name.rpartition(".")[0] not in self.names]:
            raise Unstackable(f"its parameter {unused[0]} is not used")
        self._compare(program)
        ops = self.ops[True]
        program.macs, program.values = sum(op.macs for op in ops), sum(op.values for op in ops)
        program.smallest_norm = min((op.spatial for op in self.norms), default=None)
        program.counters = tuple(f"{op.name}.num_batches_tracked" for op in self.norms)

    def set_dtype(self, program: Program, stored: torch.dtype) -> None:
        """Store in fewer bits what flows between convolutions, and the input if they read it."""
        ops = self.ops[True]
        if any(op.kind in CONVOLUTIONS for op in ops):
            program.stored = stored
        if all(op.kind in CONVOLUTIONS for op in ops if "" in op.inputs):
            program.takes = stored

    @torch.no_grad()
    def _compare(self, program: Program) -> None:
        """A tracer does not see everything (z += y, for one)."""
        state = {name: value.clone() for name, value in self.net.state_dict().items()}
        x = torch.randn(3, *self.shape, generator=torch.Generator().manual_seed(0))
        random = any(op.kind == "dropout" for op in self.ops[True])
        for mode in (False,) if random else (False, True):
            flat, buffers = program.layout.stack([state, state])
            images = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
            found = program(
                Pass(program.weights(flat), buffers, mode), torch.stack([images, images])
            )
            if not torch.allclose(found[1], self.net.train(mode)(x), rtol=1e-3, atol=1e-4):
                raise Unstackable("read layer by layer, it computes something else")


class Stacked(Program):
    """Known layers only. `ops` are the layers that have more than one implementation."""

    def __init__(self, model: Model, ops: ReferenceOps) -> None:
        traced = Traced(model)
        self._traced, self._ops = traced.ops, ReferenceOps()
        self.layout = Layout(traced.net, inputs_first=traced.convolutions + traced.linears)
        traced.set_up(self)
        traced.set_dtype(self, ops.stored)
        self._ops = ops
        if ops.places:
            self.placed = frozenset(_placeable_weights(traced.ops[True]))

    def __call__(self, p: Pass, x: Tensor) -> Tensor:
        known: dict[str, Tensor] = {}
        for op in self._traced[p.training]:
            inputs = [x if name == "" else known[name] for name in op.inputs]
            known[op.output] = self._run(p, op, inputs)
            for name in op.last_used:
                del known[name]
        return known[op.output]

    def _run(self, p: Pass, op: Op, inputs: list[Tensor]) -> Tensor:
        if op.kind == "norm_after_convolution":
            return self._ops.convolve_and_normalise(p, op, *inputs)
        if op.kind == "convolution":
            return self._ops.convolve(p, op, *inputs)
        return LAYERS[op.kind](p, op, *(x.float() for x in inputs))


class Vmapped(Program):
    """Any network torch.func can batch, in its own layout [M, B, C, H, W]. It may look across a
    batch in ways we do not know, so its batches are never padded. `short`: torch's autocast decides
    which of its products have bfloat16, as in the sequential engine."""

    pads = False
    copies = 7  # of what is kept: as much again flows back, and torch.func makes copies of its own

    def __init__(self, model: Model, short: bool = False) -> None:
        self._nets = {mode: model.build().train(mode) for mode in (True, False)}
        # torch.func puts the weights into the network: each thread has its own
        self._mine = threading.local()
        self.layout = Layout(self._nets[True])
        self._try(model, short)

    def __call__(self, p: Pass, x: Tensor) -> Tensor:
        if not hasattr(self._mine, "nets"):
            self._mine.nets = copy.deepcopy(self._nets)
        net = self._mine.nets[p.training]

        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(net, (weights, buffers), (x,))

        x = x.permute(0, 1, 4, 2, 3).contiguous() if x.ndim == 5 else x
        # torch.func warns where it has no fast way, which is known here. torch does not tell how
        # this switch stood, so it stays off.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        if self.stored == torch.float32:
            return vmap(one)(p.weights, p.buffers, x)
        # no cache: it would keep what vmap has wrapped
        with torch.autocast(x.device.type, self.stored, cache_enabled=False):
            return vmap(one)(p.weights, p.buffers, x).float()

    def _try(self, model: Model, short: bool) -> None:
        """Two networks, two samples each, forward and backward: whatever torch.func cannot do shows
        here. Where it loses something without a word (a buffer that is not changed but replaced),
        the network itself says otherwise."""
        net = model.build()
        state = {name: value.clone() for name, value in net.state_dict().items()}
        samples = model.example(2, seed=0)
        x = torch.stack([samples, samples])
        x = x.permute(0, 1, 3, 4, 2) if x.ndim == 5 else x
        try:
            flat, buffers = self.layout.stack([state, state])
            weights = {name: value.requires_grad_() for name, value in self.weights(flat).items()}
            said = self._differentiate(Pass(weights, buffers, True), x)
            with torch.no_grad():
                self._compare(said[1], net.train()(samples), buffers, dict(net.named_buffers()))
                said = self(Pass(weights, buffers, False), x)
                self._compare(said[1], net.eval()(samples), buffers, dict(net.named_buffers()))
            self.values = self._count_saved_values(Pass(weights, buffers, True), x) // 4
            if short:
                self.stored = torch.bfloat16
                self._differentiate(Pass(weights, buffers, True), x)
        except Exception as error:  # torch.func says no in many ways
            raise Unstackable(first_sentence(error)) from None

    def _differentiate(self, p: Pass, x: Tensor) -> Tensor:
        """What it says, after the way back has been tried."""
        said = self(p, x)
        torch.autograd.grad(said.sum(), list(p.weights.values()))
        return said

    def _compare(
        self, said: Tensor, expected: Tensor, buffers: dict[str, Tensor], kept: dict[str, Tensor]
    ) -> None:
        pairs = {"the output": (said, expected)} | {
            name: (buffers[name][1], kept[name]) for name in buffers
        }
        for name, (mine, its) in pairs.items():
            if not torch.allclose(mine.float(), its.float(), rtol=1e-3, atol=1e-4):
                raise Unstackable(
                    f"{name} differs from the network's (is a buffer replaced, not changed?)"
                )

    def _count_saved_values(self, p: Pass, x: Tensor) -> int:
        """How many values backward needs beside the weights; some networks cannot be observed."""
        # by their place in memory; held, so that no place is used twice
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                self(p, x)
        except Exception:
            return UNSEEN * x.numel()
        weights = {weight.untyped_storage().data_ptr() for weight in p.weights.values()}
        return sum(tensor.numel() for place, tensor in kept.items() if place not in weights)


UNSEEN = 16  # times its input: what a network is taken to keep where that cannot be counted


def stack(
    model: Model,
    ops: ReferenceOps,
    known: Callable[[Model, ReferenceOps], Program] = Stacked,
    short: bool = False,
) -> Program:
    """The fastest program there is for this architecture; `known` makes those of known layers,
    `short` is for the others (see `Vmapped`)."""
    if training.draws_random_numbers(model, training=True) or training.draws_random_numbers(
        model, training=False
    ):
        raise Unstackable("it draws random numbers of its own in its forward pass")
    with torch.random.fork_rng(devices=[]):
        try:
            return known(model, ops)
        # whatever a network does to its reader, it is not for the user to see
        except Exception as unknown:
            try:
                return Vmapped(model, short)
            except Unstackable as refused:
                raise Unstackable(
                    f"{first_sentence(unknown)}, and torch.func cannot batch it: {refused}"
                ) from None


def _placeable_weights(ops: Sequence[Op]) -> list[str]:
    """Of convolutions and their joined norms; not layers used twice, which sum two gradients."""
    uses = Counter(op.name for o in ops for op in (o, o.before) if op)
    names = []
    for op in ops:
        first = op.before or op
        if op.kind in CONVOLUTIONS and uses[first.name] == 1:
            names.append(f"{first.name}.weight")
        if op.before and op.before.layer.bias is None and uses[op.name] == 1:
            names += [f"{op.name}.weight", f"{op.name}.bias"]
    return names
