"""What a Recipe means: batches, step sizes, augmentation and the loss. Drawn from a key alone,
outside the engines, so that every engine trains on the same batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift import seeding
from fedsift.types import Array, Fit, Model, Recipe, UserError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
PAD = 1 / 8  # a crop may move by an eighth of the side (4 pixels on 32x32)


def loss(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, prior: Tensor | None = None
) -> Tensor:
    """Batch mean of -sum_n t^n log s^n, probabilities t [b, C], s = softmax(z / temperature +
    prior), prior [C]."""
    logits = logits / temperature if temperature != 1 else logits
    return F.cross_entropy(logits if prior is None else logits + prior, targets)


def prior_of(job: Fit) -> Tensor:
    """What a job adds to its outputs in the loss (balanced softmax, Ren et al. 2020), float32 [C]:
    tau log((n + 1) / sum(n + 1)), n the column sums of all its targets; exact zeros at tau = 0.

    It is added to z / temperature, not to z: soft labels are softmax(z / temperature), so the
    classes' shares are taken out at the temperature at which the outputs are read. numpy adds up in
    the same order whatever the number of threads.
    """
    tau = job.recipe.prior
    if not tau:
        return torch.zeros(job.data.classes)
    seen = job.data.targets.numpy().sum(0, dtype=np.float64) + 1
    return torch.from_numpy((tau * np.log(seen / seen.sum())).astype(np.float32))


def not_true_divergence(logits: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    """Batch mean of KL(t~ || s~): teacher and student as softmax over all classes but the true one,
    the largest of a target (FedNTD, Lee et al. 2022). All [b, C].

    Both have temperature 1, as in the paper. The prior is not in it: it says how often a class is
    seen here, and the teacher does not know that.
    """
    others = torch.ones_like(targets, dtype=torch.bool).scatter(
        1, targets.argmax(1, keepdim=True), False
    )
    s, t = (z[others].view(len(z), z.shape[1] - 1).log_softmax(1) for z in (logits, teacher))
    return F.kl_div(s, t, reduction="batchmean", log_target=True)


def teacher_of(job: Fit) -> Tensor | None:
    """The logits that a job's not-true distillation follows, float32 [n, C]; None without it.

    They are computed once, on the samples as they are, not on their crops: so a step costs no more
    than a plain one.
    """
    if not job.recipe.ntd:
        return None
    if job.teacher is None:
        raise UserError(
            f"ntd = {job.recipe.ntd:g} needs a teacher: give Fit(teacher=...) the logits of the "
            "model received on the same samples, or set ntd to 0"
        )
    if job.teacher.shape != job.data.targets.shape:
        here, there = tuple(job.teacher.shape), tuple(job.data.targets.shape)
        raise UserError(f"the teacher's logits have shape {here}, but the targets {there}")
    return job.teacher.float()


def add_proximal_pull(
    parameters: Iterable[nn.Parameter], start: Sequence[Tensor], mu: float
) -> None:
    """Add the gradient of mu / 2 ||w - w0||^2, which is mu (w - w0), to each parameter's gradient
    (FedProx, Li et al. 2020). Buffers are not trained, and nothing pulls them back."""
    for parameter, w0 in zip(parameters, start, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - w0, alpha=mu)


def optimizer(recipe: Recipe, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """A fresh optimiser: no state is carried from one Fit to the next."""
    options = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": True}
    if recipe.optimizer == "sgd":
        options |= {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    return OPTIMIZERS[recipe.optimizer](parameters, **options)


def step_size(recipe: Recipe, epoch: int) -> float:
    """The learning rate in an epoch counted from round one: times `decay` per milestone passed."""
    return float(
        recipe.lr * recipe.decay ** sum(epoch >= milestone for milestone in recipe.milestones)
    )


def draw_orders(recipe: Recipe, samples: int, key: seeding.Names) -> Array:
    """Per epoch, a fresh order to be cut into batches, int64 [epochs, n]. A last batch of one is
    left out: it has no batch statistics."""
    generator = seeding.rng(*key, "batches")
    orders = np.stack([generator.permutation(samples) for _ in range(recipe.epochs)])
    return orders[:, : _used_samples(samples, recipe.batch)]


def _used_samples(samples: int, batch: int) -> int:
    """All, but for a last batch of one."""
    return samples - (samples > batch > 1 and samples % batch == 1)


def count_steps(job: Fit) -> int:
    """How many forward and backward passes over a batch a job takes; none without a network."""
    if not job.model.is_network:
        return 0
    samples, batch = len(job.data), job.recipe.batch
    return job.recipe.epochs * -(-_used_samples(samples, batch) // batch)


def draw_batches(recipe: Recipe, samples: int, key: seeding.Names) -> list[list[Array]]:
    """Per epoch, the batches: the order cut into pieces."""
    size = recipe.batch
    return [
        [order[i : i + size] for i in range(0, len(order), size)]
        for order in draw_orders(recipe, samples, key)
    ]


def draw_mixup(recipe: Recipe, samples: int, key: seeding.Names) -> Array | None:
    """Per epoch and step, the share of a sample in its mixture, from Beta(alpha, alpha), float32
    [epochs, steps] (mixup, Zhang et al. 2018); None if nothing is mixed."""
    if not recipe.mixup:
        return None
    steps = -(-_used_samples(samples, recipe.batch) // recipe.batch)
    generator = seeding.rng(*key, "mixup")
    shares = generator.beta(recipe.mixup, recipe.mixup, (recipe.epochs, steps))
    return shares.astype(np.float32)


def mix(own: Tensor, beside: Tensor, share: Tensor | float) -> Tensor:
    """share * own + (1 - share) * beside: inputs, targets or a teacher's logits of a batch. What
    lies beside a sample is the next of its batch, after the last the first."""
    return torch.lerp(beside, own, share)


def draw_augmentation(
    recipe: Recipe, samples: int, key: seeding.Names, shape: tuple[int, ...]
) -> Array | None:
    """Per epoch and sample (down, right, mirrored), int64 [epochs, n, 3]; None if nothing to do."""
    if recipe.augment == "none":
        return None
    if len(shape) != 3:
        raise UserError(
            f"augment = {recipe.augment!r} needs images, but samples have shape {shape}"
        )
    generator = seeding.rng(*key, "augment")
    reach = _reach(shape)
    moves = generator.integers(-reach, reach + 1, (recipe.epochs, samples, 2))
    return np.concatenate([moves, generator.integers(0, 2, (recipe.epochs, samples, 1))], 2)


def augment(x: Tensor, moves: Tensor) -> Tensor:
    """Shift images x [b, c, h, w] by (down, right), zeros at the edge, then mirror where asked."""
    b, _, h, w = x.shape
    reach = _reach(tuple(x.shape[1:]))
    padded = F.pad(x, (reach,) * 4)
    down, right, mirrored = moves.to(x.device).unbind(1)
    rows = torch.arange(h, device=x.device) + reach - down[:, None]  # [b, h]
    columns = torch.arange(w, device=x.device)
    columns = (
        torch.where(mirrored[:, None] == 1, w - 1 - columns, columns) + reach - right[:, None]
    )  # [b, w]
    return padded[
        torch.arange(b, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]
    ].permute(0, 3, 1, 2)


def _reach(shape: tuple[int, ...]) -> int:
    return max(1, round(min(shape[1:]) * PAD))


@contextlib.contextmanager
def explain_batch_norm_errors(jobs: Sequence[Fit]) -> Iterator[None]:
    """Turn torch's error about a batch norm with nothing to average into one that helps."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise batch_norm_error(jobs) from None


def has_batch_of_one(job: Fit) -> bool:
    """Whether a job trains on a batch of one sample; `draw_orders` leaves out such a remainder."""
    return job.recipe.batch == 1 or len(job.data) == 1


def batch_norm_error(jobs: Sequence[Fit]) -> UserError:
    """Says which of the jobs has a batch of one, and what to do about it."""
    job = next(filter(has_batch_of_one, jobs), None)
    instead = "use group norm (norm=group in the networks of fedsift)"
    if job is None:
        return UserError(f"a batch norm has one value per channel to train on; {instead}")
    if len(job.data) > 1:
        return UserError(
            f"batch norm cannot train on batches of one sample; use batch=2 or more, or {instead}"
        )
    who = _client(job.key) or "a training set"
    return UserError(
        f"{who} has one sample, and batch norm cannot train on one sample; "
        f"give the clients at least 2 samples, or {instead}"
    )


def _client(key: seeding.Names) -> str:
    """The client a key names, as in (seed, round, "local", client); empty where there is none."""
    pairs = pairwise(key)
    return next((f"client {id}" for name, id in pairs if name == "local"), "")


# --- dropout: dice that are named, not thrown ---


class Dropout(nn.Module):
    """Drops what nn.Dropout would, but by a rule: which values go is a function of key, layer, step
    and place. So every engine drops the same, and no two networks share a source of randomness."""

    def __init__(self, p: float, number: int) -> None:
        super().__init__()
        self.p, self.number = p, number
        self.seed, self.step = 0, 0

    def start(self, seed: int, step: int = 0) -> None:
        self.seed, self.step = seed, step

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        seeds = torch.tensor([self.seed], device=x.device)
        self.step += 1
        return x * dropout_mask(seeds, self.number, self.step - 1, x.shape, self.p)[0]


def replace_dropouts(net: nn.Module) -> list[Dropout]:
    """Replace every nn.Dropout by a `Dropout`, numbered in the order of the network's modules."""
    found: list[Dropout] = []
    for name in dropout_names(net):
        parent, _, last = name.rpartition(".")
        old = net.get_submodule(name)
        found.append(Dropout(old.p, len(found)).train(old.training))  # type: ignore[arg-type]
        setattr(net.get_submodule(parent), last, found[-1])
    return found


def dropout_names(net: nn.Module) -> list[str]:
    every = net.named_modules(remove_duplicate=False)
    return [name for name, module in every if name and type(module) is nn.Dropout]


def dropout_seed(key: seeding.Names) -> int:
    return seeding.torch_seed(*key, "dropout") & BITS


def dropout_mask(
    seeds: Tensor, number: int, step: Tensor | int, shape: tuple[int, ...], p: float
) -> Tensor:
    """[M, *shape]: 1 / (1 - p) where a value is kept, 0 where it is dropped.

    What is dropped follows from a hash of model seed [M], layer number, step and place. So the
    samples of a shorter batch lose the same values.
    """
    places = torch.arange(torch.Size(shape).numel(), device=seeds.device)
    streams = _mix_bits(_mix_bits(seeds + GOLDEN * (number + 1)) + GOLDEN * (step + 1))
    dice = _mix_bits(streams[:, None] + GOLDEN * places)
    return ((dice >= p * (BITS + 1)).float() / max(1 - p, 1e-12)).view(-1, *shape)


BITS, GOLDEN = 2**32 - 1, 0x9E3779B1


def _mix_bits(h: Tensor) -> Tensor:
    """A 32-bit hash in int64: each input bit moves each output bit (the MurmurHash3 finaliser)."""
    h = h & BITS
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & BITS
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & BITS
    return h ^ (h >> 16)


def draws_random_numbers(model: Model, training: bool = True) -> bool:
    """Whether a forward pass uses torch's global randomness (replaced nn.Dropout not counted)."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = model.build().train(training)
        replace_dropouts(net)
        before = torch.get_rng_state()
        net(model.example(2))
        return not torch.equal(before, torch.get_rng_state())
