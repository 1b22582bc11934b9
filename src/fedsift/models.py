"""The architectures in the registry, for any input size and channel count. A model is a function

    (shape, classes, **options) -> nn.Module

shape is (channels, height, width), (features,), (steps, features) of a series, or (tokens,) of a
text. So a user's own factory, or an nn.Module class with that constructor, works wherever a name
does. So do estimators with `fit` and `predict_proba`, and the addresses of black boxes: see
`fedsift.estimators`. A factory with a parameter `vocabulary` is for token ids, and is told how many
there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from fedsift.types import ESTIMATOR, REMOTE, Model, Samples, UserError, Weights


def mlp(shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """One hidden layer of 64 units; takes inputs of any shape.

    width: a factor on the number of units; 0.5 halves it
    """
    hidden = _scale_width(64, width)
    inputs = int(torch.Size(shape).numel())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """Two 3x3 convolutions (16, 32 channels) + ReLU + 2x2 pooling; 6,090 parameters on 8x8x1.

    width: a factor on the numbers of channels; 0.5 halves them
    """
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
    """CIFAR ResNet, 1 block a stage, widths 16/32/64; 78,042 parameters on 32x32x3, 10 classes.

    norm: "batch", or "group" with about eight channels in a group
    width: a factor on the numbers of channels; 0.5 halves them
    """
    return CifarResNet(shape, classes, 1, norm, width)


def resnet20(
    shape: tuple[int, ...], classes: int, norm: str = "batch", width: float = 1.0
) -> nn.Module:
    """CIFAR ResNet, three blocks a stage, widths 16/32/64.

    norm: "batch", or "group" with about eight channels in a group
    width: a factor on the numbers of channels; 0.5 halves them
    """
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


def bag(
    shape: tuple[int, ...], classes: int, vocabulary: int | None = None, width: float = 1.0
) -> nn.Module:
    """For token ids: the mean of 32 numbers per word, whatever the order, then a linear layer.

    vocabulary: how many token ids there are (default: what the data say)
    width: a factor on the numbers per word; 0.5 halves them
    """
    return BagOfWords(_tokens(shape, vocabulary, "bag"), classes, _scale_width(32, width))


def text_cnn(
    shape: tuple[int, ...], classes: int, vocabulary: int | None = None, width: float = 1.0
) -> nn.Module:
    """For token ids: 32 convolutions each over 3, 4 and 5 words, their largest values (Kim 2014).

    vocabulary: how many token ids there are (default: what the data say)
    width: a factor on the numbers per word, 32, and on the convolutions; 0.5 halves both
    """
    words, size = _tokens(shape, vocabulary, "text-cnn"), _scale_width(32, width)
    return TextCnn(words, shape[0], classes, size)


def series_cnn(shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """For series (steps, features): two convolutions over time (32, 64 channels) and their mean.

    width: a factor on the numbers of channels; 0.5 halves them
    """
    if len(shape) != 2:
        raise UserError(
            f"series-cnn needs series (steps, features), but samples have shape {shape}; "
            "set data.kind=series if they are series"
        )
    a, b = _scale_width(32, width), _scale_width(64, width)
    return SeriesCnn(shape[1], a, b, classes)


class BagOfWords(nn.Module):
    """Id 0 is padding and does not count in the mean."""

    def __init__(self, vocabulary: int, classes: int, size: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, size), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        real = (x > 0).float()[..., None]  # [b, T, 1]
        return self.head((self.words(x) * real).sum(-2) / real.sum(-2).clamp(min=1))


class TextCnn(nn.Module):
    """Windows of words; id 0 is padding, and its words are zeros."""

    def __init__(self, vocabulary: int, length: int, classes: int, size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, size)
        self.windows = nn.ModuleList(
            nn.Conv1d(size, size, min(words, length), padding=min(words, length) // 2)
            for words in (3, 4, 5)
        )
        self.head = nn.Linear(3 * size, classes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = (self.words(x) * (x > 0).float()[..., None]).transpose(-1, -2)  # [b, size, T]
        found = [F.relu(window(vectors)).amax(-1) for window in self.windows]
        return self.head(torch.cat(found, -1))


class SeriesCnn(nn.Module):
    """Five steps at a time, then five of every second; the mean over time."""

    def __init__(self, features: int, a: int, b: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(features, a, 5, padding=2)
        self.second = nn.Conv1d(a, b, 5, stride=2, padding=2)
        self.head = nn.Linear(b, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.transpose(-1, -2)))  # [b, a, steps]
        return self.head(F.relu(self.second(x)).mean(-1))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "bag": bag,
    "text-cnn": text_cnn,
    "series-cnn": series_cnn,
}
_OURS = frozenset(MODELS.values())


BLACK_BOX = "remote"  # a black box whose address another machine knows


def make_model(
    what: Any, shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> Model:
    """What clients train: an architecture from which networks are built, an estimator, or a box.

    what: a name ("cnn", "resnet8(norm=group, width=0.5)", "sklearn:RandomForestClassifier",
        "mine:make"), an address ("http://127.0.0.1:9000/predict"), a factory
        (shape, classes) -> nn.Module, or an estimator with fit and predict_proba
    shape: of one sample: (channels, height, width), (features,), (steps, features) or (tokens,)
    classes: how many outputs the network has
    vocabulary: how many token ids there are, where samples are token ids
    """
    check_type(shape, (tuple, list), "shape", "write (channels, height, width) or (features,)")
    check_whole("classes", classes)
    if isinstance(what, Remote) or is_address(what) or what == BLACK_BOX:
        return _make_remote(what, tuple(shape), classes)
    if maker := names.find_maker(what):
        name = what if isinstance(what, str) else _name_estimator(what)
        return Model(name, maker, tuple(shape), classes, kind=ESTIMATOR)
    return _settle_kind(_make_network(what, shape, classes, vocabulary))


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


def _make_network(what: Any, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> Model:
    if not isinstance(what, str):
        _check_factory(_name(what), what)
        told = _offer_vocabulary(what, {}, vocabulary)
        return Model(
            _name(what), what, tuple(shape), classes, tuple(told.items()), vocabulary=vocabulary
        )
    name, positional, options = registry.parse_spec(what)
    factory = registry.find(MODELS, "model", name)
    _check_factory(what, factory)
    if positional or not all(isinstance(value, str | int | float) for value in options.values()):
        raise UserError(
            f"model {what!r}: write options as key=value, a value being a number or a word"
        )
    options = _offer_vocabulary(factory, options, vocabulary)
    try:
        inspect.signature(factory).bind(shape, classes, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"model {what!r}: {error}") from None
    given = tuple(sorted(options.items()))
    return Model(what, factory, tuple(shape), classes, given, vocabulary=vocabulary)


def _offer_vocabulary(
    factory: Any, options: dict[str, Any], vocabulary: int | None
) -> dict[str, Any]:
    """The options, with the vocabulary where there is one and the factory wants to know it."""
    if vocabulary is None or "vocabulary" in options or not takes_vocabulary(factory):
        return options
    return options | {"vocabulary": vocabulary}


def takes_vocabulary(factory: Any) -> bool:
    try:
        return "vocabulary" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


@lru_cache(maxsize=32)
def reads_tokens(model: Model) -> bool:
    """Whether the network looks its inputs up in an embedding, so that they must be token ids.

    It is tried: what reaches an embedding differs between two inputs. An embedding of positions
    gets the same for both.
    """
    if takes_vocabulary(model.factory):
        return True
    with torch.random.fork_rng(devices=[]), torch.no_grad(), suppress(Exception):
        net = model.build().eval()
        tables = [m for m in net.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        return bool(tables) and _watch(net, tables, 0, model) != _watch(net, tables, 1, model)
    return False  # `check_model` says what is wrong with it


def _watch(
    net: nn.Module, tables: Sequence[nn.Module], value: int, model: Model
) -> list[list[float]]:
    """What reaches these layers if all inputs have this value; the network may fail there."""
    seen: list[list[float]] = []
    hooks = [
        table.register_forward_pre_hook(lambda _, x: seen.append(x[0].flatten().tolist()))
        for table in tables
    ]
    with suppress(Exception):
        net(torch.full((2, *model.shape), float(value)))
    for hook in hooks:
        hook.remove()
    return seen


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
            output = model.build().eval()(model.example(2))
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


def check_samples(model: Model, samples: Samples) -> None:
    """Refuse an embedding whose inputs are scaled: it would look up the same few words always."""
    store = samples.store
    plain = bool((store.mean == 0).all()) and bool((store.std == 1).all())
    if not plain and model.is_network and reads_tokens(model):
        raise UserError(
            f"model {model.name!r} looks its inputs up in an embedding, but they are normalised and"
            " no token ids any more; set data.normalise=none (in Python normalise='none'), or take"
            " another model"
        )


def initial_state(model: Model, seed: int) -> Weights:
    """An architecture's starting weights, equal for equal seeds; global randomness is untouched.

    Models that are no networks start with nothing.

    model: what `make_model` gave, or `client.model`
    seed: of the weights
    """
    if not model.is_network:
        return {}
    return {name: value.clone() for name, value in _initial(model, seed).items()}


@lru_cache(maxsize=8)
def _initial(model: Model, seed: int) -> Weights:
    """Drawn once for all clients of a round."""
    with seeding.TORCH, torch.random.fork_rng(devices=[]):
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


def _tokens(shape: tuple[int, ...], vocabulary: int | None, name: str) -> int:
    """The vocabulary of a model for token ids."""
    if len(shape) != 1 or vocabulary is None:
        raise UserError(
            f"{name} needs token ids, but samples are numbers of shape {shape}; "
            "use data.text=COLUMN, or whole numbers from 0 on with data.normalise=none"
        )
    check_whole("vocabulary", vocabulary, 2)
    return vocabulary


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
