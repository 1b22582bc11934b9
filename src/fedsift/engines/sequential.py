"""The reference engine: any nn.Module, one job at a time with torch.optim, jobs spread over the cores by threads.

On a CPU every job runs on one intra-op thread, however many jobs there are, so an answer never depends on what else
is in the list: a client alone on a device and a client in a cohort of a hundred compute the same bits.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from fedsift import seeding, training
from fedsift.types import Array, Fit, Model, Predict, Samples, State, Work

PREDICT_BATCH = 512
LIGHT = 2**14  # input values a batch: below, Python's lock is the limit and more than two threads only get in each
LIGHT_AT_ONCE = 2  # other's way (16 threads on 16 cores ran the digits three times slower than two)


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
        self._networks: dict[tuple[int, Model], nn.Module] = {}
        self._random: dict[Model, bool] = {}
        self._dice = threading.Lock()  # held by whoever uses torch's global randomness
        self._stop = threading.Event()
        self._light = threading.Semaphore(LIGHT_AT_ONCE)

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs. On an interrupt the jobs stop at their next batch."""
        self._stop.clear()
        futures = [self._pool.submit(self._do, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            self._stop.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def _do(self, job: Work) -> State | Array:
        samples, batch = (job.samples, 16) if isinstance(job, Predict) else (job.data.samples, job.recipe.batch)
        light = batch * math.prod(samples.shape) < LIGHT
        with self._light if light else contextlib.nullcontext():
            return self._work(job)

    def _work(self, job: Work) -> State | Array:
        net = self._network(job.model)
        net.load_state_dict(job.state)
        return self._predict(net, job) if isinstance(job, Predict) else self._guarded_fit(net, job)

    def _guarded_fit(self, net: nn.Module, job: Fit) -> State:
        """torch has one global source of randomness: a network that rolls dice (dropout) must have it to itself."""
        if not self._rolls_dice(net, job):
            return self._fit(net, job)
        with self._dice, torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seeding.torch_seed(*job.key, "dropout"))
            return self._fit(net, job)

    def _fit(self, net: nn.Module, job: Fit) -> State:
        recipe, n = job.recipe, len(job.data)
        x, targets = self._inputs(job.data.samples), job.data.targets.to(self.device)
        moves = training.augmentation(recipe, n, job.key, job.data.samples.shape)
        optimizer = training.optimizer(recipe, net.parameters())
        net.train()
        for epoch, batches in enumerate(training.batches(recipe, n, job.key)):
            for group in optimizer.param_groups:
                group["lr"] = training.step_size(recipe, job.epoch + epoch)
            for batch in map(torch.from_numpy, batches):
                if self._stop.is_set():
                    raise Interrupted
                inputs = x[batch]
                if moves is not None:
                    inputs = training.augment(inputs, torch.from_numpy(moves[epoch])[batch])
                optimizer.zero_grad()
                training.loss(net(inputs), targets[batch], recipe.temperature).backward()
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

    def _network(self, model: Model) -> nn.Module:
        """One skeleton per thread and architecture; its weights are overwritten before every job."""
        key = (threading.get_ident(), model)
        if key not in self._networks:
            with self._dice, torch.random.fork_rng(devices=[]):
                spare = next((net for (_, other), net in self._networks.items() if other == model), None)
                net = copy.deepcopy(spare) if spare else model.build().to(self.device)
                self._networks[key] = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._networks[key]

    def _rolls_dice(self, net: nn.Module, job: Fit) -> bool:
        """Whether a forward pass in training draws random numbers: tried once per architecture."""
        if job.model not in self._random:
            with self._dice, torch.random.fork_rng(devices=[]), torch.no_grad():
                before, trial = torch.get_rng_state(), copy.deepcopy(net).cpu().train()
                trial(job.data.samples.tensor()[:2].repeat_interleave(2, 0))
                self._random[job.model] = not torch.equal(before, torch.get_rng_state())
        return self._random[job.model]


def _cores() -> int:
    """The cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
