"""The reference engine: any nn.Module, one job at a time with torch.optim, jobs spread over the cores by threads.

On a CPU every job runs on one intra-op thread, however many jobs there are, so an answer never depends on what else
is in the list: a client alone on a device and a client in a cohort of a hundred compute the same bits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsift import seeding, training
from fedsift.types import Array, Fit, Mistake, Model, Predict, Samples, State, Work

PREDICT_BATCH = 512


class Interrupted(Exception):
    """The run is stopping; a job gave up between two batches."""


class Sequential:
    """The reference: any nn.Module, job by job with torch.optim, spread over the cores of a CPU or on one GPU.

    `device` as torch names it; `threads` defaults to the number of cores on a CPU, and is 1 elsewhere.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None) -> None:
        self.device = torch.device(device)
        cpu = self.device.type == "cpu"
        self.threads = threads or (_cores() if cpu else 1)
        one_thread_each = (torch.set_num_threads, (1,)) if cpu else (None, ())
        self._pool = ThreadPoolExecutor(self.threads, "fedsift", *one_thread_each)
        self._networks: dict[tuple[int, Model], tuple[nn.Module, State]] = {}
        self._random: dict[tuple[Model, bool], bool] = {}
        self._dice = threading.Lock()  # held by whoever uses torch's global randomness

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs. On an interrupt the jobs stop at their next batch."""
        stop = threading.Event()
        futures = [self._pool.submit(self._do, job, stop) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            stop.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _do(self, job: Work, stop: threading.Event) -> State | Array:
        """torch has one global source of randomness: a network that rolls dice (dropout) must have it to itself."""
        net = self._network(job)
        if not self._rolls_dice(job):
            return self._predict(net, job) if isinstance(job, Predict) else self._fit(net, job, stop)
        key = ("predict", job.model.name) if isinstance(job, Predict) else (*job.key, "dropout")
        with self._dice, torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seeding.torch_seed(*key))
            return self._predict(net, job) if isinstance(job, Predict) else self._fit(net, job, stop)

    def _fit(self, net: nn.Module, job: Fit, stop: threading.Event) -> State:
        recipe, n = job.recipe, len(job.data)
        x, targets = self._inputs(job.data.samples), job.data.targets.to(self.device)
        moves = training.augmentation(recipe, n, job.key, job.data.samples.shape)
        optimizer = training.optimizer(recipe, net.parameters())
        net.train()
        for epoch, batches in enumerate(training.batches(recipe, n, job.key)):
            for group in optimizer.param_groups:
                group["lr"] = training.step_size(recipe, job.epoch + epoch)
            for batch in map(torch.from_numpy, batches):
                if stop.is_set():
                    raise Interrupted
                inputs = x[batch]
                if moves is not None:
                    inputs = training.augment(inputs, torch.from_numpy(moves[epoch])[batch])
                optimizer.zero_grad()
                training.loss(_trained(net, inputs), targets[batch], job.temperature).backward()
                optimizer.step()
        return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in net.state_dict().items()}

    @torch.no_grad()
    def _predict(self, net: nn.Module, job: Predict) -> Array:
        net.eval()
        x = self._inputs(job.samples)
        return torch.cat([net(piece) for piece in x.split(PREDICT_BATCH)]).float().cpu().numpy()

    def _inputs(self, samples: Samples) -> Tensor:
        x = samples.tensor().to(self.device)
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

    def _network(self, job: Work) -> nn.Module:
        """One skeleton per thread and architecture; weights, and buffers no state holds, are set before every job."""
        key = (threading.get_ident(), job.model)
        if key not in self._networks:
            with self._dice, torch.random.fork_rng(devices=[]):
                net = job.model.build()
            unsaved = {name: value.clone() for name, value in net.named_buffers() if name not in job.state}
            self._networks[key] = net.to(self.device, memory_format=torch.channels_last), unsaved  # type: ignore[call-overload]
        net, unsaved = self._networks[key]
        net.load_state_dict(job.state)
        for name, value in net.named_buffers():
            if name in unsaved:
                value.copy_(unsaved[name])
        return net

    def _rolls_dice(self, job: Work) -> bool:
        """Whether a forward pass draws random numbers: tried once per architecture, in training and in prediction."""
        key = (job.model, isinstance(job, Fit))
        if key not in self._random:
            samples = job.data.samples if isinstance(job, Fit) else job.samples
            with self._dice, torch.random.fork_rng(devices=[]), torch.no_grad():
                trial = job.model.build().train(isinstance(job, Fit))
                before = torch.get_rng_state()
                trial(samples[np.zeros(2, np.int64)].tensor())
                self._random[key] = not torch.equal(before, torch.get_rng_state())
        return self._random[key]


def _trained(net: nn.Module, inputs: Tensor) -> Tensor:
    try:
        return net(inputs)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        hint = "use norm=group, a larger batch or larger images"
        raise Mistake(f"batch norm cannot train on one sample with one pixel left of it; {hint}") from None


def _cores() -> int:
    """The cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
