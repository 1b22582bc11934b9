"""The reference engine: any nn.Module, one job at a time with torch.optim, jobs spread over the
cores by threads.

On a CPU every job runs on one intra-op thread, however many jobs there are, so an answer never
depends on what else is in the list: a client alone on a device and a client in a cohort of a
hundred compute the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedsift import seeding, training
from fedsift.engines.precision import Precision
from fedsift.engines.threads import Stop, Task, Workers, raise_if_stopped
from fedsift.types import Array, Fit, Model, Predict, Samples, Weights, Work

PREDICT_BATCH = 512


class SequentialEngine:
    """The reference: any nn.Module, job by job with torch.optim, spread over the cores of a CPU or
    on one GPU.

    `device` as torch names it; `threads` defaults to the number of cores on a CPU, and is 1
    elsewhere; `precision` is that of matrix products (fedsift.engines.precision).
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
        self.random_lock = threading.Lock()  # held by whoever uses torch's global randomness

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

    def _do(self, job: Work, stop: Stop) -> Weights | Array:
        """torch has one global random source: a network that draws from it needs it exclusively."""
        net = self._network(job)
        with self.precision.products():
            if not self._draws_random_numbers(job):
                return (
                    self._predict(net, job)
                    if isinstance(job, Predict)
                    else self._fit(net, job, stop)
                )
            key = ("predict", job.model.name) if isinstance(job, Predict) else (*job.key, "dropout")
            with (
                self.random_lock,
                torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            ):
                torch.manual_seed(seeding.torch_seed(*key))
                return (
                    self._predict(net, job)
                    if isinstance(job, Predict)
                    else self._fit(net, job, stop)
                )

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
        return {
            name: value.detach().to("cpu", copy=True).contiguous()
            for name, value in net.state_dict().items()
        }

    def _batches(self, job: Fit) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
        """Of each step: epoch, inputs, targets, and the teacher's logits where there are some."""
        recipe, n = job.recipe, len(job.data)
        x, targets = self._inputs(job.model, job.data.samples), job.data.targets.to(self.device)
        teacher = training.teacher_of(job)
        teacher = None if teacher is None else teacher.to(self.device)
        moves = training.draw_augmentation(recipe, n, job.key, job.data.samples.shape)
        for epoch, batches in enumerate(training.draw_batches(recipe, n, job.key)):
            for batch in map(torch.from_numpy, batches):
                inputs = x[batch]
                if moves is not None:
                    inputs = training.augment(inputs, torch.from_numpy(moves[epoch])[batch])
                yield epoch, inputs, targets[batch], None if teacher is None else teacher[batch]

    @torch.no_grad()
    def _predict(self, net: nn.Module, job: Predict) -> Array:
        net.eval()
        x = self._inputs(job.model, job.samples)
        with self.precision.forward():
            return torch.cat([net(piece).float() for piece in x.split(PREDICT_BATCH)]).cpu().numpy()

    def _inputs(self, model: Model, samples: Samples) -> Tensor:
        x = samples.tensor().to(self.device)
        return x.contiguous(memory_format=self._format(model)) if x.ndim == 4 else x

    def _format(self, model: Model) -> torch.memory_format:
        """Channels last if the net allows it (x.view(len(x), -1) does not): faster; tried once."""
        if model not in self._formats:
            channels_last = torch.channels_last
            with self.random_lock, torch.random.fork_rng(devices=[]), torch.no_grad():
                net: Any = model.build().eval()
                net = net.to(memory_format=channels_last)
                x = torch.zeros(2, *model.shape)
                try:
                    net(x.contiguous(memory_format=channels_last) if x.ndim == 4 else x)
                    self._formats[model] = channels_last
                except RuntimeError:
                    self._formats[model] = torch.contiguous_format
        return self._formats[model]

    def _network(self, job: Work) -> nn.Module:
        """One net per thread and architecture; each job sets weights, unsaved buffers and dice."""
        key = (threading.get_ident(), job.model)
        if key not in self._networks:
            with self.random_lock, torch.random.fork_rng(devices=[]):
                net = job.model.build()
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
        for dropout in dropouts:
            dropout.start(training.dropout_seed(job.key) if isinstance(job, Fit) else 0)
        return net

    def _draws_random_numbers(self, job: Work) -> bool:
        """Whether a forward pass draws random numbers: tried once per architecture and job type."""
        key = (job.model, isinstance(job, Fit))
        if key not in self._random:
            with self.random_lock:
                self._random[key] = training.draws_random_numbers(*key)
        return self._random[key]
