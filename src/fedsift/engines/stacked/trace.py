"""A network as a list of known layers (by torch.fx), neighbours joined if one kernel does both."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedsift.training import dropout_names

Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # kernel, stride, padding


class Unstackable(Exception):
    """Why a network cannot be stacked."""


@dataclass(frozen=True, eq=False)
class Op:
    """One layer: its kind, its place in the network, and the outputs it reads ("": the input)."""

    kind: str
    output: str
    inputs: tuple[str, ...]
    name: str = ""  # of the module, as in the state's keys
    layer: Any = None
    inplace: bool = False  # whether the network's own layer would change its input
    relu: bool = False  # a batch norm that a ReLU follows
    before: Op | None = None  # the convolution a batch norm follows
    keep: bool = False  # whether an average keeps its two axes
    number: int = 0  # of a dropout, among the network's
    macs: int = 0  # multiplications per sample
    values: int = 0  # outputs per sample
    spatial: int = 1  # outputs per sample and channel
    last_used: tuple[str, ...] = field(default=())  # outputs nobody reads after this

    @property
    def geometry(self) -> Geometry:
        return self.layer.kernel_size, self.layer.stride, self.layer.padding


ACTIVATIONS = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.ELU,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.Softplus,
)
EACH = {
    F.relu,
    torch.relu,
    F.gelu,
    F.silu,
    torch.tanh,
    F.tanh,
    torch.sigmoid,
    F.elu,
    F.leaky_relu,
    "relu",
    "tanh",
}
POOLS = {F.max_pool2d, F.avg_pool2d}
FLATTEN = {torch.flatten, "flatten"}
AVERAGE = {torch.mean, "mean"}
ADD = {operator.add, operator.iadd, torch.add}


def trace(net: nn.Module, shape: tuple[int, ...]) -> list[Op]:
    """The layers in order, for the mode (training or not) the network is in."""
    modules = dict(net.named_modules())
    for name, module in modules.items():
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        hooks += (module._backward_hooks, module._backward_pre_hooks)  # type: ignore[assignment]
        _check(not any(hooks), f"{name or 'the network'} has hooks")
        _check(module.training == net.training, f"{name} is not in the mode of the network")
    graph = _trace_graph(net, shape)
    _check(
        sum(node.op == "placeholder" for node in graph.nodes) == 1, "it takes more than one input"
    )
    dropouts = dropout_names(net)
    ops: list[Op] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            same_name = {node.name: ""}
        elif node.op == "output":
            _check(isinstance(node.args[0], fx.Node), "it does not return one tensor")
            last = same_name.get(node.args[0].name, node.args[0].name)
        else:
            op = _read(node, modules)
            op = replace(op, inputs=tuple(same_name.get(name, name) for name in op.inputs))
            if op.kind == "same":
                same_name[node.name] = op.inputs[0]
                continue
            if op.kind == "dropout":
                _check(all(op.name != other.name for other in ops), f"{op.name} is used twice")
                op = replace(op, number=dropouts.index(op.name))
            ops.append(op)
    _check(bool(ops) and ops[-1].output == last, "its output is not its last layer's")
    read = {name for op in ops for name in op.inputs} | {last}
    for op in ops:
        _check(op.output in read, f"the output of {op.output} is not used")
        alone = not op.inplace or sum(op.inputs[0] in other.inputs for other in ops) == 1
        _check(alone, f"{op.output} changes in place what another layer reads")
    return _mark_last_uses(_fuse_neighbours(ops))


class _ShapeRecorder(fx.Interpreter):
    """Notes the shape of every node that is a tensor. torch's ShapeProp imports sympy for more."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def _trace_graph(net: nn.Module, shape: tuple[int, ...]) -> fx.Graph:
    try:
        traced = fx.symbolic_trace(net)
        with torch.no_grad():
            _ShapeRecorder(traced).run(torch.zeros(2, *shape))
    except Exception as error:  # a network's own code may refuse a tracer in any way
        said = first_sentence(error)
        if isinstance(error, fx.proxy.TraceError) and "control flow" in said:
            raise Unstackable("an if or a loop in its forward pass depends on the data") from None
        raise Unstackable(f"torch.fx cannot read it ({said})") from None
    return traced.graph


def _read(node: fx.Node, modules: dict[str, nn.Module]) -> Op:
    """One node of the graph, with its sizes."""
    op, shape = _recognise(node, modules), _shape(node)
    macs = (
        op.layer.weight.numel() * _product(shape[2:]) if op.kind in ("convolution", "linear") else 0
    )
    return replace(
        op, output=node.name, macs=macs, values=_product(shape[1:]), spatial=_product(shape[2:])
    )


def _recognise(node: fx.Node, modules: dict[str, nn.Module]) -> Op:
    _check(bool(node.args), _refusal(node))
    inputs = tuple(argument.name for argument in node.args if isinstance(argument, fx.Node))
    shape, before = _shape(node), _shape(node.args[0])
    if node.op == "call_module":
        name = str(node.target)
        module: Any = modules[name]
        inplace = bool(getattr(module, "inplace", False))
        if inplace and type(module) in ACTIVATIONS:
            module = copy.copy(module)
            module.inplace = False  # our outputs may be views
        return Op(_kind(module, before), "", inputs, name, module, inplace=inplace)
    inplace = bool(node.kwargs.get("inplace", False))
    options = {key: value for key, value in node.kwargs.items() if key != "inplace"}
    rest = node.args[1:]
    plain = not any(isinstance(value, fx.Node) for value in (*rest, *options.values()))
    if (
        node.target in ADD
        and len(inputs) == 2
        and not options
        and shape == before == _shape(node.args[1])
    ):
        return Op("add", "", inputs, inplace=node.target is operator.iadd)
    if node.target in EACH and plain:
        function = getattr(torch, node.target) if isinstance(node.target, str) else node.target
        each = F.relu if _is_relu(function) else partial(_call, function, rest, options)
        return Op("each", "", inputs, layer=each, inplace=inplace)
    if node.target in POOLS and plain and len(before) == 4:
        return Op("pool", "", inputs, layer=partial(_call, node.target, rest, options))
    if node.target is F.adaptive_avg_pool2d and plain and shape[2:] == (1, 1):
        return Op("average", "", inputs, keep=True)
    if node.target in FLATTEN and (*rest, *options.values()) == (1,) and "end_dim" not in options:
        return Op("flatten", "", inputs)
    if (
        node.target in AVERAGE
        and len(before) == 4
        and plain
        and shape[1] == before[1]
        and shape[2:] in ((), (1, 1))
    ):
        axes = rest[0] if rest else options.get("dim")
        _check(_axes(axes) == (2, 3), f"a mean over axes {axes}")
        return Op("average", "", inputs, keep=len(shape) == 4)
    raise Unstackable(_refusal(node))


def _kind(layer: nn.Module, before: tuple[int, ...]) -> str:
    """What a module is, by its exact type: a subclass may compute anything."""
    kind, image = type(layer), len(before) == 4
    if kind is nn.Conv2d:
        assert isinstance(layer, nn.Conv2d)
        simple = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        _check(
            simple and not isinstance(layer.padding, str),
            f"{layer} has groups, dilation or another padding",
        )
        return "convolution"
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        usual = layer.affine and layer.track_running_stats and layer.momentum is not None
        _check(usual and len(before) in (2, 4), f"{layer} is not the usual batch norm")
        return "batch_norm"
    if (
        kind is nn.AdaptiveAvgPool2d
        and isinstance(layer, nn.AdaptiveAvgPool2d)
        and layer.output_size in (1, (1, 1))
    ):
        return "average_kept"
    if kind in ACTIVATIONS:
        return "each"
    if (
        kind is nn.Flatten
        and isinstance(layer, nn.Flatten)
        and (layer.start_dim, layer.end_dim) == (1, -1)
    ):
        return "flatten"
    known: dict[type, tuple[str, bool]] = {
        nn.Linear: ("linear", len(before) == 2),
        nn.GroupNorm: ("group_norm", len(before) in (2, 4)),
        nn.MaxPool2d: ("pool", image),
        nn.AvgPool2d: ("pool", image),
        nn.Identity: ("same", True),
        nn.Dropout: ("dropout", len(before) in (2, 4)),
    }
    name, fits = known.get(kind, ("", False))
    told = f"its layer {first_sentence(layer)}"
    _check(bool(name), f"{told} is none that fedsift stacks")
    _check(fits, f"{told} gets inputs of {len(before)} axes, which fedsift does not stack")
    return name


# --- joining neighbours ---


def _fuse_neighbours(ops: list[Op]) -> list[Op]:
    """Convolution, batch norm, addition and ReLU in a row become one; a ReLU before a pool moves
    behind it, where there is less to do (the largest of the positive parts is the positive part of
    the largest)."""
    ops = [
        replace(op, kind="average", keep=True) if op.kind == "average_kept" else op for op in ops
    ]
    ops = [
        replace(op, layer=F.relu) if op.kind == "each" and _is_relu(op.layer) else op for op in ops
    ]
    for join in (
        _fuse_convolution_and_norm,
        _fuse_norm_and_add,
        _fuse_norm_and_relu,
        _swap_relu_and_pool,
    ):
        ops = join(ops)
    return ops


def _find_pairs(
    ops: list[Op], first: Callable[[Op], bool], second: Callable[[Op], bool]
) -> list[tuple[Op, Op]]:
    """Neighbours in the flow of data where nobody else reads the first one's output."""
    by_output = {op.output: op for op in ops}
    readers: dict[str, int] = {}
    for op in ops:
        for name in op.inputs:
            readers[name] = readers.get(name, 0) + 1
    found, taken = [], set()
    for op in ops:
        if second(op):
            for name in op.inputs:
                before = by_output.get(name)
                if before and first(before) and readers[name] == 1 and op.output not in taken:
                    found.append((before, op))
                    taken.add(op.output)
    return found


def _merge_pairs(
    ops: list[Op], pairs: list[tuple[Op, Op]], make: Callable[[Op, Op], Op]
) -> list[Op]:
    """The first of a pair goes, the second becomes both."""
    gone = {one.output for one, _ in pairs}
    new = {two.output: make(one, two) for one, two in pairs}
    return [new.get(op.output, op) for op in ops if op.output not in gone]


def _fuse_convolution_and_norm(ops: list[Op]) -> list[Op]:
    pairs = _find_pairs(ops, lambda a: a.kind == "convolution", lambda b: b.kind == "batch_norm")
    return _merge_pairs(
        ops,
        pairs,
        lambda a, b: replace(
            b,
            kind="norm_after_convolution",
            before=a,
            inputs=a.inputs,
            macs=a.macs,
            values=a.values + b.values,
        ),
    )


def _fuse_norm_and_add(ops: list[Op]) -> list[Op]:
    def make(a: Op, b: Op) -> Op:
        (other,) = (name for name in b.inputs if name != a.output)
        return replace(a, output=b.output, inputs=(a.inputs[0], other))

    pairs = _find_pairs(
        ops, lambda a: a.kind == "norm_after_convolution", lambda b: b.kind == "add"
    )
    return _merge_pairs(ops, [(a, b) for a, b in pairs if len(set(b.inputs)) == 2], make)


def _fuse_norm_and_relu(ops: list[Op]) -> list[Op]:
    kinds = ("norm_after_convolution", "batch_norm")
    pairs = _find_pairs(
        ops,
        lambda a: a.kind in kinds and not a.relu,
        lambda b: b.kind == "each" and b.layer is F.relu,
    )
    return _merge_pairs(ops, pairs, lambda a, b: replace(a, output=b.output, relu=True))


def _swap_relu_and_pool(ops: list[Op]) -> list[Op]:
    pairs = _find_pairs(
        ops, lambda a: a.kind == "each" and a.layer is F.relu, lambda b: _is_max_pool(b)
    )
    behind = {pool.output: relu for relu, pool in pairs}
    gone = {relu.output for relu, _ in pairs}
    moved: list[Op] = []
    for op in ops:
        if op.output in behind:
            relu, inner = behind[op.output], f"{op.output} before relu"
            moved += [
                replace(op, inputs=relu.inputs, output=inner),
                replace(relu, inputs=(inner,), output=op.output),
            ]
        elif op.output not in gone:
            moved.append(op)
    return moved


def _mark_last_uses(ops: list[Op]) -> list[Op]:
    """So that a prediction need not hold every activation."""
    last = {name: i for i, op in enumerate(ops) for name in op.inputs if name}
    return [
        replace(
            op, last_used=tuple(name for name in dict.fromkeys(op.inputs) if last.get(name) == i)
        )
        for i, op in enumerate(ops)
    ]


# --- reasons in words ---


def first_sentence(said: object) -> str:
    """Errors and layers may say more than a warning has room for."""
    return str(said).partition("\n")[0].partition(". ")[0].rstrip(" .")


def _refusal(node: fx.Node) -> str:
    """ "it calls squeeze(x, 1), which fedsift does not stack" """
    if node.target is operator.getitem:
        return f"it indexes {node.args[0]}, which fedsift does not stack"
    if node.op == "get_attr":
        return f"it uses {node.target} outside a layer, which fedsift does not stack"
    given = [_short(value) for value in node.args]
    given += [f"{key}={_short(value)}" for key, value in node.kwargs.items()]
    target = node.target if isinstance(node.target, str) else _name_of(node.target)
    return f"it calls {target}({', '.join(given)}), which fedsift does not stack"


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or str(function)


def _short(value: Any) -> str:
    said = str(value) if isinstance(value, fx.Node) else repr(value)
    return said if len(said) <= 40 else f"{said[:37]}..."


# --- small questions ---


def _shape(node: Any) -> tuple[int, ...]:
    shape = node.meta.get("shape") if isinstance(node, fx.Node) else None
    _check(shape is not None, f"{node} does not give one tensor")
    return shape or ()


def _product(sizes: tuple[int, ...]) -> int:
    return int(torch.Size(sizes).numel())


def _axes(axes: Any) -> tuple[int, ...]:
    return tuple(sorted(axis % 4 for axis in axes)) if isinstance(axes, tuple | list) else ()


def _is_relu(function: Any) -> bool:
    return function in (F.relu, torch.relu) or type(function) is nn.ReLU


def _is_max_pool(op: Op) -> bool:
    layer = op.layer.args[0] if isinstance(op.layer, partial) else op.layer
    return op.kind == "pool" and (layer is F.max_pool2d or type(layer) is nn.MaxPool2d)


def _call(function: Any, rest: tuple[Any, ...], options: dict[str, Any], x: Any) -> Any:
    return function(x, *rest, **options)


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise Unstackable(why)
