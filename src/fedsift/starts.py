"""The weights that the students of a federation start from, where they are not random: made by a
pretext on the public set at the server, as FedAUX does (Sattler et al. 2021), or read from a file.

Weights of the body are taken; the last linear layer stays that of the ordinary first state. What
was made is kept in the data folder, and so is a training that was stopped: it loses one stage at
most and goes on bit for bit, since every stage is a pure job with the optimiser's state.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsift import registry
from fedsift.checks import describe, warn_user
from fedsift.codecs.grid import is_variance
from fedsift.codecs.weights import find_not_finite
from fedsift.data import cache
from fedsift.files import write_atomic
from fedsift.models import initial_state
from fedsift.pretexts import PRETEXTS
from fedsift.turns import run_turns
from fedsift.types import (
    Engine,
    Model,
    Pretext,
    Pretrain,
    Samples,
    Snapshot,
    Turn,
    UserError,
    Weights,
)

STAGE = 10  # epochs that a stop may lose
FORMAT = 1  # of what is kept: raise it when the same pretext gives other weights
NONE = "none"
SUFFIX = ".safetensors"
Tell = Callable[[int, int], None]  # is told the epochs done and those in all


@dataclass(frozen=True)
class StartFile:
    """Weights in a safetensors file: those of the body, or of the whole network."""

    path: str


Start = Pretext | StartFile


def read_start(what: Any) -> Start | None:
    """What `start` says: "simclr(epochs=120)", "rotation", a file, "none", or a pretext itself."""
    if what is None or what == NONE:
        return None
    if isinstance(what, str):
        if what.endswith(SUFFIX):
            return StartFile(what)
        if "/" in what or "\\" in what:
            raise UserError(f"start is {what!r}; a file of weights ends in {SUFFIX}")
        pretext: Pretext = registry.build(PRETEXTS, "start", what)
        return pretext
    if not isinstance(what, Pretext) or isinstance(what, type):
        raise UserError(
            f"start is {describe(what)}; write start='simclr(epochs=120)', or the name of a"
            f" {SUFFIX} file"
        )
    return what


def check_start(start: Start, models: Sequence[Model], public: Samples) -> None:
    """Refuse, in words, what cannot be started so. Reads no file."""
    if isinstance(start, StartFile):
        if len(models) > 1:
            names = ", ".join(model.name for model in models)
            raise UserError(f"start={start.path} fits one model, but clients have {names}")
        return
    start.check_shape(public.shape)
    if len(public) < 2:
        raise UserError("a self-supervised start needs at least 2 public samples")
    for model in models:
        if find_head(model) is None:
            raise UserError(
                f"a self-supervised start replaces the last layer, and that of model"
                f" {model.name!r} is not an nn.Linear; end its forward pass with one, or give"
                " start=FILE"
            )


def find_head(model: Model) -> str | None:
    """The name of the nn.Linear whose output is the network's, where there is a body before it."""
    outputs: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        return lambda module, given, output: outputs.update({name: output})

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = model.build().eval()
        for name, module in net.named_modules():
            if name and type(module) is nn.Linear:
                module.register_forward_hook(watch(name))
        output = net(torch.zeros(2, *model.shape))
    head = next((name for name, found in outputs.items() if found is output), None)
    return head if head and any(not _is_in(head, name) for name in net.state_dict()) else None


def _is_in(head: str | None, name: str) -> bool:
    """Whether a tensor is the head's."""
    return head is not None and name.startswith(f"{head}.")


@dataclass(frozen=True)
class WithHead:
    """Builds a model's network with a pretext's head in the place of its last linear layer."""

    model: Model
    head: str
    pretext: Pretext

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        net = self.model.build()
        parent, _, name = self.head.rpartition(".")
        old: Any = net.get_submodule(self.head)
        setattr(net.get_submodule(parent), name, self.pretext.make_head(old.in_features))
        return net


def replace_head(model: Model, head: str, pretext: Pretext) -> Model:
    """The architecture that a pretext trains."""
    name = f"{model.name} + {type(pretext).__name__}"
    return Model(name, WithHead(model, head, pretext), model.shape, pretext.outputs)


@dataclass(frozen=True, eq=False)
class Wanted:
    """The starting weights of one architecture in one federation."""

    start: Start
    model: Model
    public: Samples
    seed: int


def make_starts(
    wanted: Sequence[Wanted], engine: Engine, tell: Tell | None = None
) -> list[Weights | Exception]:
    """All of them, side by side, equal ones once. One that fails fails alone."""
    shared = {(one.start, one.model, id(one.public), one.seed): one for one in wanted}
    named = {key: _name(one, engine) for key, one in shared.items()}
    names = [named[one.start, one.model, id(one.public), one.seed] for one in wanted]
    distinct = dict(zip(names, wanted, strict=True))
    progress = _Progress(tell)
    turns = [_start_turn(one, name, progress) for name, one in distinct.items()]
    made = dict(zip(distinct, run_turns(turns, engine), strict=True))
    return [made[name] for name in names]


class _Progress:
    """Epochs done and to be done, summed over all trainings; told whenever the last one is on."""

    def __init__(self, tell: Tell | None) -> None:
        self._tell = tell
        self._done: dict[str, tuple[int, int]] = {}
        self._slowest: int | None = None

    def report(self, name: str, done: int, epochs: int) -> None:
        self._done[name] = done, epochs
        slowest = min((d for d, e in self._done.values() if d < e), default=None)
        if self._tell and (slowest != self._slowest or not done):
            columns = zip(*self._done.values(), strict=True)
            self._tell(*map(sum, columns))
        self._slowest = slowest


def _start_turn(wanted: Wanted, name: str, progress: _Progress) -> Turn[Weights]:
    """Read it, or train in stages; each is kept as soon as it is there."""
    if isinstance(wanted.start, StartFile):
        return read_weights(wanted.start, wanted.model, wanted.seed)
    pretext, first = wanted.start, initial_state(wanted.model, wanted.seed)
    head = find_head(wanted.model) or ""  # `check_start` has looked
    body = {key: value for key, value in first.items() if not _is_in(head, key)}
    shelf = Shelf(name)
    if kept := shelf.read_body(body):
        return first | kept
    model = replace_head(wanted.model, head, pretext)
    epoch, snapshot = shelf.read_stage(begin_training(model, wanted.seed, body), pretext.epochs)
    while epoch < pretext.epochs:
        progress.report(name, epoch, pretext.epochs)
        now = min(STAGE, pretext.epochs - epoch)
        key = (wanted.seed, "start", wanted.model.name)
        snapshot = yield Pretrain(model, snapshot, wanted.public, pretext, key, epoch, now)
        epoch += now
        if bad := find_not_finite(snapshot.state):
            raise UserError(f"weights {bad!r} are not finite: the start diverged; lower its lr")
        shelf.keep_stage(epoch, snapshot)
    progress.report(name, epoch, pretext.epochs)
    made = {key: snapshot.state[key] for key in body}
    shelf.keep_body(made)
    return first | made


def begin_training(model: Model, seed: int, body: Weights) -> Snapshot:
    """The model's own first weights with a fresh head, and an optimiser that has seen nothing."""
    with torch.random.fork_rng(devices=[]):
        parameters = [name for name, _ in model.build().named_parameters()]
    state = initial_state(model, seed) | body
    zeros = {name: torch.zeros_like(state[name]) for name in parameters}
    return Snapshot(state, zeros, dict(zeros))


# --- what is kept ---


def _name(wanted: Wanted, engine: Engine) -> str:
    """Equal for equal results: a digest of pretext, network, public samples, seed and engine."""
    words = (type(wanted.start).__name__.lower(), wanted.model.name, f"seed{wanted.seed}")
    where = [getattr(engine, what, None) for what in ("device", "precision")]
    kind = [str(getattr(part, "type", getattr(part, "name", part))) for part in where]
    told = (FORMAT, torch.__version__, type(engine).__name__, kind, words, repr(wanted.start))
    digest = hashlib.sha256(repr(told).encode())
    public = wanted.public
    tensors = {
        "samples": public.store.values[torch.from_numpy(public.rows)],
        "mean": public.store.mean,
        "std": public.store.std,
        "outputs": _try_out(wanted.model, public),
        **initial_state(wanted.model, wanted.seed),
    }
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))[:60].strip("-.")
    return f"{stem}-{digest.hexdigest()[:20]}"


def _try_out(model: Model, public: Samples) -> Tensor:
    """What a network says to two samples: a factory that computes something else is seen here."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        outputs: Tensor = model.build().eval()(Samples(public.store, public.rows[:2]).tensor())
    return outputs


class Shelf:
    """Where one training is kept: its last stage, then the weights of the body. What does not fit,
    or cannot be read, is made again.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def read_body(self, like: Weights) -> Weights | None:
        found = self._read("", like)
        return found[0] if found else None

    def keep_body(self, body: Weights) -> None:
        self._keep("", body, {})
        with contextlib.suppress(OSError, ImportError):
            self._path(PART).unlink(missing_ok=True)

    def read_stage(self, first: Snapshot, epochs: int) -> tuple[int, Snapshot]:
        """Epochs done and the snapshot after them, or the one given where none was kept."""
        found = self._read(PART, _join(first))
        epoch = found[1].get("epoch", "") if found else ""
        if not found or not (re.fullmatch("[0-9]{1,9}", epoch) and 0 < int(epoch) <= epochs):
            return 0, first
        return int(epoch), _part(found[0])

    def keep_stage(self, epoch: int, snapshot: Snapshot) -> None:
        self._keep(PART, _join(snapshot), {"epoch": str(epoch)})

    def _path(self, part: str) -> Path:
        return cache.folder() / FOLDER / f"{self._name}{part}{SUFFIX}"

    def _keep(self, part: str, tensors: Weights, about: dict[str, str]) -> None:
        try:
            from safetensors.torch import save

            path = self._path(part)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save(tensors, about))
        except (OSError, ImportError) as error:
            warn_user(f"the start cannot be kept, and will be made again next time: {error}")

    def _read(self, part: str, like: Weights) -> tuple[Weights, dict[str, str]] | None:
        try:
            path = self._path(part)
            if not path.is_file():
                return None
            with _open(path) as file:
                return _take(file, str(path), like), file.metadata() or {}
        except (OSError, ImportError):
            return None
        except UserError as error:
            warn_user(f"{error}; the start is made again")
            return None


FOLDER, PART = "starts", ".part"  # in the data folder; of a training that is under way


def _join(snapshot: Snapshot) -> Weights:
    return {
        f"{kind}/{name}": value.contiguous()
        for kind, tensors in vars(snapshot).items()
        for name, value in tensors.items()
    }


def _part(tensors: Weights) -> Snapshot:
    kinds: dict[str, Weights] = {}
    for path, value in tensors.items():
        kind, _, name = path.partition("/")
        kinds.setdefault(kind, {})[name] = value
    return Snapshot(**kinds)


# --- files ---


def read_weights(start: StartFile, model: Model, seed: int) -> Weights:
    """A file's weights. The head's are taken if all of the file fits the model, else left out."""
    first, head = initial_state(model, seed), find_head(model)
    body = {name: value for name, value in first.items() if not _is_in(head, name)}
    path = Path(start.path).expanduser()
    if not path.is_file():
        raise UserError(f"start: no such file: {start.path}")
    try:
        with _open(path) as file:
            there = set(file.keys())
            whole = there == first.keys() and not any(_misfit(file, first, n) for n in first)
            known = {name for name in there if _is_in(head, name)} | body.keys()
            if odd := sorted(there - known):
                raise UserError(f"{start.path} has {_few(odd)}, which {model.name} does not")
            return first | _take(file, start.path, first if whole else body)
    except OSError as error:
        raise UserError(f"cannot read {start.path}: {error}") from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A safetensors file; its tensors are read one by one, so a large one costs nothing."""
    from safetensors import SafetensorError, safe_open

    opened: Any = safe_open
    try:
        with opened(str(path), framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise UserError(f"{path} is not a {SUFFIX[1:]} file ({error})") from None


def _take(file: Any, path: str, like: Weights) -> Weights:
    """The tensors of `like`, in their types; the user learns what does not fit."""
    if missing := sorted(like.keys() - set(file.keys())):
        raise UserError(f"{path} lacks {_few(missing)}")
    if misfit := next((said for name in like if (said := _misfit(file, like, name))), None):
        raise UserError(f"{path}: {misfit}")
    found = {name: file.get_tensor(name).to(value.dtype) for name, value in like.items()}
    if bad := find_not_finite(found):
        raise UserError(f"{path}: {bad} is not finite")
    if bad := next((n for n, v in found.items() if is_variance(n, v) and (v < 0).any()), None):
        raise UserError(f"{path}: {bad} has variances below 0")
    return found


def _misfit(file: Any, like: Weights, name: str) -> str | None:
    """What is wrong with a tensor, before it is read."""
    view, value = file.get_slice(name), like[name]
    shape, whole = tuple(view.get_shape()), view.get_dtype()[0] in "IUB"
    if shape != tuple(value.shape):
        return f"{name} is {shape}, not {tuple(value.shape)}"
    if (view.get_dtype() == "BF16" or not whole) != value.is_floating_point():
        return f"{name} is {view.get_dtype()}, not {str(value.dtype).removeprefix('torch.')}"
    return None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
