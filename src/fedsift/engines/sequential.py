"""The reference engine: any nn.Module, one job at a time with torch.optim, jobs spread over the
cores by threads.

On a CPU every job runs on one intra-op thread, however many jobs there are, so an answer never
depends on what else is in the list: a client alone on a device and a client in a cohort of a
hundred compute the same bits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedsift import pretexts, seeding, training
from fedsift.engines.precision import Precision
from fedsift.engines.threads import Stop, Task, Workers, raise_if_stopped
from fedsift.types import Array, Fit, Model, Predict, Pretrain, Samples, Snapshot, Weights, Work

PREDICT_BATCH = 512


class SequentialEngine:
    """The reference: any nn.Module, job by job with torch.optim, on the cores of a CPU or one GPU.

    device: as torch names it, e.g. "cpu", "cuda" or "cuda:1"
    threads: networks trained at a time on a CPU (default: as many as cores)
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    """

    def __init__(
        self,
        device: str = "cpu",
        threads: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.device = torch.device(device)
        self.precision = Precision(precision, self.device)
        self.workers = Workers(self.device, threads)
        self._networks: dict[
            tuple[int, Model], tuple[nn.Module, list[training.Dropout], Weights]
        ] = {}
        self._random: dict[tuple[Model, bool], bool] = {}
        self._formats: dict[Model, torch.memory_format] = {}
        self.random_lock = seeding.TORCH  # held by whoever uses torch's global randomness

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs. On an interrupt, jobs stop at the next batch."""
        return self.workers.run([self.task(job) for job in jobs])

    def task(self, job: Work) -> Task:
        return partial(self._do, job)

    def summary(self) -> str:
        """What it is and where it runs, in a few words."""
        where = f"{self.device.type}, {self.precision.name}"
        return f"sequential engine on {where}, {self.workers.threads} thread(s)"

    def describe(self, model: Model) -> str:
        """How networks of this architecture are run."""
        return f"{model.name}: one by one on {self.device}, {self.workers.threads} at a time"

    def _do(self, job: Work, stop: Stop) -> Weights | Array | Snapshot:
        """torch has one global random source: a network that draws from it needs it exclusively."""
        net = self._network(job)
        with self.precision.products():
            if not self._draws_random_numbers(job):
                return self._answer(net, job, stop)
            key = ("predict", job.model.name) if isinstance(job, Predict) else (*job.key, "dropout")
            key = (*key, job.epoch) if isinstance(job, Pretrain) else key
            with (
                self.random_lock,
                torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            ):
                torch.manual_seed(seeding.torch_seed(*key))
                return self._answer(net, job, stop)

    def _answer(self, net: nn.Module, job: Work, stop: Stop) -> Weights | Array | Snapshot:
        if isinstance(job, Predict):
            return self._predict(net, job)
        return self._fit(net, job, stop) if isinstance(job, Fit) else self._pretrain(net, job, stop)

    def _fit(self, net: nn.Module, job: Fit, stop: Stop) -> Weights:
        recipe = job.recipe
        prior = training.prior_of(job).to(self.device) if recipe.prior else None
        start = [p.detach().clone() for p in net.parameters()] if recipe.prox else None
        optimizer = training.optimizer(recipe, net.parameters())
        net.train()
        for epoch, inputs, targets, teacher in self._batches(job):
            raise_if_stopped(stop)
            for group in optimizer.param_groups:
                group["lr"] = training.step_size(recipe, job.epoch + epoch)
            optimizer.zero_grad()
            with self.precision.forward(), training.explain_batch_norm_errors([job]):
                logits = net(inputs).float()
            loss = training.loss(logits, targets, job.temperature, prior)
            if teacher is not None:
                loss = loss + recipe.ntd * training.not_true_divergence(logits, teacher, targets)
            loss.backward()
            if start is not None:
                training.add_proximal_pull(net.parameters(), start, recipe.prox)
            optimizer.step()
        return _to_cpu(net.state_dict())

    def _pretrain(self, net: nn.Module, job: Pretrain, stop: Stop) -> Snapshot:
        """A pretext's epochs, each step on views made for it; Adam goes on where it was."""
        pretext, store, drawn = job.pretext, job.samples.store, pretexts.draw_steps(job)
        raw = store.values[torch.from_numpy(job.samples.rows)].to(self.device)
        figures = [torch.tensor([f]).to(self.device) for f in pretexts.measure_range(job.samples)]
        optimizer = torch.optim.Adam(net.parameters(), fused=True)
        names = dict(net.named_parameters())
        for name, value in names.items():
            means = (job.snapshot.mean[name], job.snapshot.square[name])
            mean, square = (torch.empty_like(value).copy_(figure) for figure in means)
            step = torch.tensor(float(drawn.first), device=self.device)
            optimizer.state[value] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        net.train()
        for t, positions in enumerate(map(torch.from_numpy, drawn.positions)):
            raise_if_stopped(stop)
            optimizer.param_groups[0]["lr"] = float(drawn.rates[t])
            dice = torch.from_numpy(drawn.dice[t]).to(self.device)[None]
            views = pretexts.make_inputs(pretext, raw[positions][None], dice, *figures)[0]
            optimizer.zero_grad()
            with self.precision.forward():
                outputs = net(self._arrange(job.model, store.normalise(views))).float()
            outputs.backward(pretext.gradient(outputs.detach()[None], dice.flatten(1, 2))[0])
            optimizer.step()
        if job.is_last:
            self._settle(net, job, store.normalise(raw))
        moments = [
            _to_cpu({name: optimizer.state[value][what] for name, value in names.items()})
            for what in ("exp_avg", "exp_avg_sq")
        ]
        return Snapshot(_to_cpu(net.state_dict()), *moments)

    @torch.no_grad()
    def _settle(self, net: nn.Module, job: Pretrain, x: Tensor) -> None:
        """Let batch norms see the plain samples."""
        for batch in map(torch.from_numpy, pretexts.settling_batches(job)):
            with self.precision.forward():
                net(self._arrange(job.model, x[batch]))

    def _batches(self, job: Fit) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
        """Of each step: epoch, inputs, targets, and the teacher's logits where there are some."""
        recipe, n = job.recipe, len(job.data)
        x, targets = self._inputs(job.model, job.data.samples), job.data.targets.to(self.device)
        teacher = training.teacher_of(job)
        teacher = None if teacher is None else teacher.to(self.device)
        moves = training.draw_augmentation(recipe, n, job.key, job.data.samples.shape)
        shares = training.draw_mixup(recipe, n, job.key)
        for epoch, batches in enumerate(training.draw_batches(recipe, n, job.key)):
            for step, batch in enumerate(map(torch.from_numpy, batches)):
                inputs = x[batch]
                if moves is not None:
                    inputs = training.augment(inputs, torch.from_numpy(moves[epoch])[batch])
                wanted, taught = targets[batch], None if teacher is None else teacher[batch]
                if shares is not None:
                    mix = partial(_mix_with_next, share=float(shares[epoch, step]))
                    inputs, wanted = mix(inputs), mix(wanted)
                    taught = None if taught is None else mix(taught)
                yield epoch, inputs, wanted, taught

    @torch.no_grad()
    def _predict(self, net: nn.Module, job: Predict) -> Array:
        net.eval()
        x = self._inputs(job.model, job.samples)
        with self.precision.forward():
            return torch.cat([net(piece).float() for piece in x.split(PREDICT_BATCH)]).cpu().numpy()

    def _inputs(self, model: Model, samples: Samples) -> Tensor:
        return self._arrange(model, samples.tensor().to(self.device))

    def _arrange(self, model: Model, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self._format(model)) if x.ndim == 4 else x

    def _format(self, model: Model) -> torch.memory_format:
        """Channels last if the net allows it (x.view(len(x), -1) does not): faster; tried once."""
        if model not in self._formats:
            channels_last = torch.channels_last
            with self.random_lock, torch.random.fork_rng(devices=[]), torch.no_grad():
                net: Any = model.build().eval()
                net = net.to(memory_format=channels_last)
                x = model.example(2)
                self._formats[model] = torch.contiguous_format
                with contextlib.suppress(RuntimeError):
                    net(x.contiguous(memory_format=channels_last) if x.ndim == 4 else x)
                    self._formats[model] = channels_last
        return self._formats[model]

    def _network(self, job: Work) -> nn.Module:
        """One net per thread and architecture; each job sets weights, unsaved buffers and dice."""
        key = (threading.get_ident(), job.model)
        if key not in self._networks:
            with self.random_lock, torch.random.fork_rng(devices=[]):
                net = job.model.build()
            if self.device.type == "cpu":
                _replace_strides(net)
            dropouts = training.replace_dropouts(net)
            unsaved = {
                name: value.clone() for name, value in net.named_buffers() if name not in job.state
            }
            move: Any = net.to  # its types do not know `memory_format`
            move(self.device, memory_format=self._format(job.model))
            self._networks[key] = net, dropouts, unsaved
        net, dropouts, unsaved = self._networks[key]
        net.load_state_dict(job.state)
        for name, value in net.named_buffers():
            if name in unsaved:
                value.copy_(unsaved[name])
        seed = 0 if isinstance(job, Predict) else training.dropout_seed(job.key)
        for dropout in dropouts:
            dropout.start(seed, pretexts.first_step(job) if isinstance(job, Pretrain) else 0)
        return net

    def _draws_random_numbers(self, job: Work) -> bool:
        """Whether a forward pass draws random numbers: tried once per architecture and job type."""
        key = (job.model, not isinstance(job, Predict))
        if key not in self._random:
            with self.random_lock:
                self._random[key] = training.draws_random_numbers(*key)
        return self._random[key]


def _replace_strides(net: nn.Module) -> None:
    """Let strided 1x1 convolutions of few inputs be given the pixels they see instead.

    Where inputs are no multiple of 8, channels last, torch 2.13 on a CPU without AVX-512 writes
    beyond the gradient of their weights, and the process dies later.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and _is_spoilt(layer):
            layer.register_forward_pre_hook(partial(_pick_seen, stride=layer.stride))
            layer.stride = (1, 1)


def _is_spoilt(layer: nn.Conv2d) -> bool:
    small = layer.kernel_size == (1, 1) and layer.padding == (0, 0)
    return small and layer.stride != (1, 1) and layer.in_channels // layer.groups % 8 != 0


def _pick_seen(layer: nn.Module, given: tuple[Tensor], stride: tuple[int, ...]) -> tuple[Tensor]:
    (x,) = given
    return (x[..., :: stride[0], :: stride[1]],)


def _to_cpu(tensors: Mapping[str, Tensor]) -> Weights:
    return {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()
    }


def _mix_with_next(values: Tensor, share: float) -> Tensor:
    return training.mix(values, values.roll(-1, 0), share)
