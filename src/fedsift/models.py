"""The architectures in the registry, for any input size and channel count. A model is a function

    (shape, classes, **options) -> nn.Module    shape is (channels, height, width) or (features,)

so a user's own factory, or an nn.Module class with that constructor, works wherever a name does.
So do estimators with `fit` and `predict_proba`, and the addresses of black boxes: see
`fedsift.estimators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole, warn_user
from fedsift.estimators import names
from fedsift.estimators.adapters import check_estimator
from fedsift.estimators.remote import Remote, is_address
from fedsift.types import ESTIMATOR, REMOTE, Model, UserError, Weights


def mlp(shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """One hidden layer of 64 units; takes inputs of any shape."""
    hidden = _scale_width(64, width)
    inputs = int(torch.Size(shape).numel())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """Two 3x3 convolutions (16, 32 channels) + ReLU + 2x2 pooling; 6,090 parameters on 8x8x1."""
    channels, height, side = _image(shape, "cnn")
    a, b = _scale_width(16, width), _scale_width(32, width)
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, a), (a, b)):
        pool = nn.MaxPool2d(2, ceil_mode=True)
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), pool]
        height, side = -(-height // 2), -(-side // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(b * height * side, classes))


def resnet8(
    shape: tuple[int, ...], classes: int, norm: str = "batch", width: float = 1.0
) -> nn.Module:
    """CIFAR ResNet, 1 block a stage, widths 16/32/64; 78,042 parameters on 32x32x3, 10 classes."""
    return CifarResNet(shape, classes, 1, norm, width)


def resnet20(
    shape: tuple[int, ...], classes: int, norm: str = "batch", width: float = 1.0
) -> nn.Module:
    """CIFAR ResNet, three blocks a stage, widths 16/32/64."""
    return CifarResNet(shape, classes, 3, norm, width)


class CifarResNet(nn.Module):
    """6n + 2 layers: 3x3 stem, 3 stages of n basic blocks, global average pooling, linear layer."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, blocks: int, norm: str, width: float
    ) -> None:
        super().__init__()
        channels, _, _ = _image(shape, "resnet")
        widths = [_scale_width(16 * 2**stage, width) for stage in range(3)]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = _norm(norm, widths[0])
        stages: list[nn.Module] = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            for block in range(blocks):
                stages.append(BasicBlock(inputs, outputs, 2 if stage and not block else 1, norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.stages(x)
        return self.head(x.mean((2, 3)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected by a 1x1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, outputs)
        same = stride == 1 and inputs == outputs
        project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.shortcut = nn.Identity() if same else nn.Sequential(project, _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet20": resnet20,
}
_OURS = frozenset(MODELS.values())


BLACK_BOX = "remote"  # a black box whose address another machine knows


def make_model(what: Any, shape: tuple[int, ...], classes: int) -> Model:
    """What clients train: an architecture from which networks are built, an estimator, or a box.

    what: a name ("cnn", "resnet8(norm=group, width=0.5)", "sklearn:RandomForestClassifier",
        "mine:make"), an address ("http://127.0.0.1:9000/predict"), a factory
        (shape, classes) -> nn.Module, or an estimator with fit and predict_proba
    shape: of one sample: (channels, height, width) or (features,)
    classes: how many outputs the network has
    """
    check_type(shape, (tuple, list), "shape", "write (channels, height, width) or (features,)")
    check_whole("classes", classes)
    if isinstance(what, Remote) or is_address(what) or what == BLACK_BOX:
        return _make_remote(what, tuple(shape), classes)
    if maker := names.find_maker(what):
        name = what if isinstance(what, str) else _name_estimator(what)
        return Model(name, maker, tuple(shape), classes, kind=ESTIMATOR)
    return _settle_kind(_make_network(what, shape, classes))


def _make_remote(what: Any, shape: tuple[int, ...], classes: int) -> Model:
    if what == BLACK_BOX:
        return Model(BLACK_BOX, _unknown_address, shape, classes, kind=REMOTE)
    box = what if isinstance(what, Remote) else Remote(what)
    return Model(box.address, box, shape, classes, kind=REMOTE)


def _unknown_address(shape: tuple[int, ...], classes: int) -> Any:
    raise UserError(
        "model remote is a black box without an address here; write the address itself as the"
        " model, or on Flower start its node with --node-config 'address=\"http://...\"'"
    )


def _settle_kind(model: Model) -> Model:
    """A function of the user's may make estimators: it is called once to know."""
    if model.name in MODELS or isinstance(model.factory, type) or model.factory in _OURS:
        return model
    try:
        with torch.random.fork_rng(devices=[]):
            made = model.build()
    except Exception:  # `check_model` says what is wrong
        return model
    if isinstance(made, Remote):
        return replace(model, kind=REMOTE)
    return replace(model, kind=ESTIMATOR) if names.is_estimator(made) else model


def _make_network(what: Any, shape: tuple[int, ...], classes: int) -> Model:
    if not isinstance(what, str):
        _check_factory(_name(what), what)
        return Model(_name(what), what, tuple(shape), classes)
    name, positional, options = registry.parse_spec(what)
    factory = registry.find(MODELS, "model", name)
    _check_factory(what, factory)
    if positional or not all(isinstance(value, str | int | float) for value in options.values()):
        raise UserError(
            f"model {what!r}: write options as key=value, a value being a number or a word"
        )
    try:
        inspect.signature(factory).bind(shape, classes, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"model {what!r}: {error}") from None
    return Model(what, factory, tuple(shape), classes, tuple(sorted(options.items())))


def _check_factory(name: str, factory: Any) -> None:
    if isinstance(factory, nn.Module):
        raise UserError(
            f"model {name!r} is a network, but every client needs one of its own; "
            "give the class or a function (shape, classes) -> nn.Module"
        )
    if not callable(factory):
        raise UserError(
            f"model {name!r} is of type {type(factory).__name__}; "
            "give a class or a function (shape, classes) -> nn.Module"
        )


def check_model(model: Model) -> None:
    """Build it and pass two samples through: a faulty factory is reported before any training.

    Other models than networks are only built.
    """
    if not model.is_network:
        _check_other(model)
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = model.build().eval()(torch.zeros(2, *model.shape))
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    except UserError:
        raise
    except Exception as error:  # a user's factory may fail in any way; the user needs one answer
        raise UserError(
            f"model {model.name!r} cannot take samples of shape {model.shape}: {error}"
        ) from error
    if found != (2, model.classes):
        raise UserError(
            f"model {model.name!r} gives {found} for two samples; it must give (2, {model.classes})"
        )
    if (output >= 0).all() and torch.allclose(output.sum(1), torch.ones(2)):
        warn_user(
            f"model {model.name!r} seems to end in softmax; leave it out, the loss applies it"
        )


def _check_other(model: Model) -> None:
    try:
        made = model.build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model {model.name!r} cannot be made: {error}") from error
    if model.kind == ESTIMATOR and (problem := check_estimator(made, model.name)):
        raise UserError(problem)


def initial_state(model: Model, seed: int) -> Weights:
    """An architecture's starting weights, equal for equal seeds; global randomness is untouched.

    Models that are no networks start with nothing.
    """
    if not model.is_network:
        return {}
    return {name: value.clone() for name, value in _initial(model, seed).items()}


@lru_cache(maxsize=8)
def _initial(model: Model, seed: int) -> Weights:
    """Drawn once for all clients of a round."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeding.torch_seed(seed, "init", model.name))
        return {name: value.detach().clone() for name, value in model.build().state_dict().items()}


def _name(factory: Any) -> str:
    """The same in every process: starting weights are drawn from it."""
    if isinstance(factory, partial):
        given = [
            *map(repr, factory.args),
            *(f"{key}={value!r}" for key, value in factory.keywords.items()),
        ]
        return f"{_name(factory.func)}({', '.join(given)})"
    return getattr(factory, "__name__", type(factory).__name__)


def _name_estimator(what: Any) -> str:
    """RandomForestClassifier(n_estimators=50): as scikit-learn shows it."""
    if isinstance(what, type | partial) or not hasattr(what, "get_params"):
        return _name(what)
    return " ".join(repr(what).split())


def _image(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UserError(
            f"{name} needs images (channels, height, width), but samples have shape {shape};"
            " use mlp"
        )
    return shape[0], shape[1], shape[2]


def _scale_width(channels: int, width: float) -> int:
    if not isinstance(width, int | float) or not 0 < width <= 1000:
        raise UserError(f"a width factor must be above 0 and at most 1000, not {width}")
    return max(1, round(channels * width))


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":  # groups of eight channels, or the nearest that divides
        groups = next(g for g in range(max(1, channels // 8), 0, -1) if channels % g == 0)
        return nn.GroupNorm(groups, channels)
    raise UserError(f"norm is batch or group, not {kind!r}")
