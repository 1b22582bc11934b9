"""The fast engine: jobs of equal architecture and recipe, step sizes apart, are stacked and run as
one program.

Same jobs in, same answers out as the sequential engine, within rounding; what cannot be stacked
goes there, and the engine says why. An answer does not depend on what else is in the list:
docs/engines.md says to which digit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.checks import warn_user
from fedsift.engines.malloc import give_back_memory
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.stacked import pretraining, training
from fedsift.engines.stacked.cpu.program import CpuProgram
from fedsift.engines.stacked.ops import ReferenceOps
from fedsift.engines.stacked.program import Program, Stacked, Vmapped, stack
from fedsift.engines.stacked.schedule import shared_recipe, sort_by_length
from fedsift.engines.stacked.trace import Unstackable
from fedsift.engines.threads import Stop
from fedsift.pretexts import batch_size
from fedsift.types import Fit, Model, Predict, Pretrain, Samples, Snapshot, UserError, Weights, Work

# multiplications per sample: beyond, one network keeps a core busy by itself
LARGEST_ON_CPU = 2_000_000
LARGEST_TRAINED_ON_CPU = (
    25_000_000  # the same for training networks whose images need not be turned over
)
# models, and their multiplications per sample, in one program: caches are small
PROGRAM_ON_CPU = (16, 65_000_000)
PREDICTED_ON_CPU = 64  # samples per model in one prediction
PREDICTED_ON_CUDA = 16_384  # samples of all models in one prediction
ALIKE_ON_CUDA = 64  # predictions whose numbers of samples differ by less share one program
# copies of an activation held in training on CUDA, by our kernels or by torch, which writes patches
# out
COPIES_BY_KERNELS, COPIES_BY_TORCH = 2, 14
COPIES_OF_BATCH = 8  # while it is drawn, normalised and cropped
# free memory that is kept: so much more than programs, of so many bytes at least, use
SPARE, LARGE = 1.25, 2**25
GIB, INT32 = 2**30, 2**31 - 1  # kernels count values of an activation in 32 bits


class BatchedEngine:
    """Stacks equal networks and runs them as one program; the rest goes to the sequential engine.

    device: as torch names it, e.g. "cpu", "cuda" or "cuda:1"
    threads: programs run at a time on a CPU (default: as many as cores)
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    memory: GiB for stacked networks (default: 1, on CUDA half of what is free)

    What cannot be stacked is told in a warning.
    """

    def __init__(
        self,
        device: str = "cpu",
        threads: int | None = None,
        precision: str = "float32",
        memory: float | None = None,
    ) -> None:
        if memory is not None and not memory > 0:
            raise UserError(f"memory is a number of GiB above 0, not {memory}")
        self._sequential = SequentialEngine(device, threads, precision)
        self.device, self.workers, self.precision = (
            self._sequential.device,
            self._sequential.workers,
            self._sequential.precision,
        )
        self._cuda = self.device.type == "cuda"
        self.lanes = 2 if self._cuda else 1  # one works on the host while the other trains
        self._memory = (
            memory or (torch.cuda.mem_get_info(self.device)[0] / 2 / GIB if self._cuda else 1.0)
        ) * GIB
        self._ops = choose_ops(self._cuda, self.precision.name)
        self._programs: dict[Model, Program | str] = {}
        self._resident: dict[Any, tuple[Tensor, Tensor]] = {}
        self._trainers: dict[Any, Any] = {}

    def run(self, jobs: Sequence[Work], stop: Stop | None = None) -> list[Any]:
        """The answers, in the order of the jobs; whoever sets `stop` ends them between batches."""
        parts = self.split(jobs)
        found = self.workers.run([self._task([jobs[i] for i in part]) for part in parts], stop)
        answers: dict[int, Any] = {}
        for part, answer in zip(parts, found, strict=True):
            answers |= zip(part, answer, strict=True)
        return [answers[i] for i in range(len(jobs))]

    def split(self, jobs: Sequence[Work]) -> list[list[int]]:
        """The programs that the jobs make: each a list of places in the list of jobs."""
        groups: dict[Any, list[int]] = {}
        for i, job in enumerate(jobs):
            groups.setdefault(self._group_key(job, i), []).append(i)
        return [part for members in groups.values() for part in self._split_group(jobs, members)]

    def summary(self) -> str:
        """What it is and where it runs, in a few words."""
        where = f"{self.device.type}, {self.precision.name}"
        return f"batched engine on {where}, {self.workers.threads} thread(s)"

    def describe(self, model: Model) -> str:
        """How networks of this architecture are run, and why."""
        program = self._program(model)
        if isinstance(program, str):
            return f"{model.name}: one by one, {self.workers.threads} at a time ({program})"
        how = "by torch.func" if isinstance(program, Vmapped) else "known layers"
        graphs = ", CUDA graphs" if self._uses_graphs(program) else ""
        exact = program.stored == torch.float32 and self.precision.name == "bfloat16"
        same = ", in float32 all the same" if exact else ""
        asked = (
            ", predictions one by one"
            if isinstance(self._program(model, training=False), str)
            else ""
        )
        return f"{model.name}: stacked ({how}{graphs}{same}{asked})"

    # --- who goes with whom ---

    def _group_key(self, job: Work, i: int) -> Any:
        """Jobs of one group make one program; a job that cannot be stacked is its own group."""
        samples = _samples(job)
        if isinstance(self._program_for(job), str):
            return i
        store = samples.store
        data = (_memory_key(store.values), store.mean.shape, store.std.shape)
        if isinstance(job, Predict):
            return (job.model, self._predicted(job), *data)
        if isinstance(job, Pretrain):
            return (job.model, job.pretext, len(samples), job.epoch, job.epochs, *data)
        mixed = self._cuda and job.recipe.mixup > 0  # on a CPU the overhead of a step is dearer
        return (job.model, shared_recipe(job.recipe), mixed, job.temperature, *data)

    def _split_group(self, jobs: Sequence[Work], members: list[int]) -> list[list[int]]:
        """A group cut so that every worker has something to do and no program is too large."""
        first = jobs[members[0]]
        program = self._program_for(first)
        if isinstance(program, str):
            return [members]
        if isinstance(first, Fit):
            fits: Any = [jobs[i] for i in members]
            members = [members[i] for i in sort_by_length(fits)]
            first = jobs[members[0]]
        most = max(1, int(self._memory // self._bytes(program, first)))
        if isinstance(first, Pretrain):
            views = batch_size(first.pretext, len(first.samples)) * first.pretext.views
            most = max(1, min(most, INT32 // (max(1, program.values) * views)))
        if not self._cuda:
            models, macs = PROGRAM_ON_CPU
            most = min(
                most,
                models,
                max(1, macs // max(1, program.macs)),
                -(-len(members) // self.workers.threads),
            )
        pieces = -(-len(members) // most)
        if not self._cuda:  # as many for every worker
            pieces = min(len(members), -(-pieces // self.workers.threads) * self.workers.threads)
            if pieces <= self.workers.threads:  # a part each: long and short jobs for all alike
                return [members[i::pieces] for i in range(pieces)]
        return [part.tolist() for part in np.array_split(members, pieces)]  # the larger first

    def _bytes(self, program: Program, job: Work) -> int:
        """Rough needs of one model: weights with gradient and optimiser, activations, batches."""
        if isinstance(job, Predict):
            return 4 * (
                program.layout.size + program.values * (1 if self._cuda else 2 * PREDICTED_ON_CPU)
            )
        if isinstance(job, Pretrain):
            size = batch_size(job.pretext, len(job.samples)) * job.pretext.views
            batches = job.epochs * len(job.samples) * job.pretext.views * (job.pretext.dice + 2) * 4
        else:
            size = job.recipe.batch
            batches = job.recipe.epochs * -(-len(job.data) // size) * size * 4 * 4
        plain = type(self._ops) is ReferenceOps
        copies = program.copies or (COPIES_BY_TORCH if plain else COPIES_BY_KERNELS)
        sample = copies * program.values + COPIES_OF_BATCH * int(np.prod(job.model.shape))
        more = isinstance(job, Fit) and job.recipe.prox  # the weights that it pulls towards
        weights = (7 if more else 6) * program.layout.size
        return 4 * (weights + sample * size) + batches

    def _predicted(self, job: Predict) -> int:
        """Predictions on as many samples make one program: on a GPU, where a launch costs more than
        a few samples, on nearly as many.
        """
        step = ALIKE_ON_CUDA if self._cuda and self._pads(job) else 1
        return -(-len(job.samples) // step) * step

    def _pads(self, job: Work) -> bool:
        program = self._program_for(job)
        return not isinstance(program, str) and program.pads

    # --- what is done ---

    def _task(self, part: list[Any]) -> Callable[[Stop], list[Any]]:
        program = self._program_for(part[0])
        if isinstance(program, str):
            task = self._sequential.task(part[0])
            return lambda stop: [task(stop)]
        if isinstance(part[0], Pretrain):
            return partial(self._pretrain, program, part)
        return partial(self._fit if isinstance(part[0], Fit) else self._predict, program, part)

    def _fit(self, program: Program, part: list[Fit], stop: Stop) -> list[Weights]:
        values = self._values(part[0].data.samples)
        with self.precision.products():
            if self._uses_graphs(program) and values.ndim in (2, 4):
                return self._fit_with_graphs(program, part, values, stop)
            trained = training.fit(program, part, values, stop)
        if not self._cuda:
            give_back_memory(
                SPARE * self.workers.threads * max(LARGE, len(part) * self._bytes(program, part[0]))
            )
        return trained

    def _pretrain(self, program: Program, part: list[Pretrain], stop: Stop) -> list[Snapshot]:
        with self.precision.products():
            return pretraining.pretrain(program, part, self._values(part[0].samples), stop)

    def _predict(self, program: Program, part: list[Predict], stop: Stop) -> list[Any]:
        room = min(self._memory / 4, INT32) // (max(1, program.values) * len(part))
        size = (
            int(max(1, min(PREDICTED_ON_CUDA // len(part), self._predicted(part[0]), room)))
            if self._cuda
            else PREDICTED_ON_CPU
        )
        with self.precision.products():
            return training.predict(program, part, self._values(part[0].samples), size, stop)

    def _fit_with_graphs(
        self, program: Program, part: list[Fit], values: Tensor, stop: Stop
    ) -> list[Weights]:
        """Graphs are kept and used again while as many jobs of the same kind come by."""
        from fedsift.engines.stacked.cuda import graphs

        plan, job = graphs.plan_steps(program, part), part[0]
        # how long and how wide it is, the plan says
        rule = replace(shared_recipe(job.recipe), epochs=1, batch=1)
        store = job.data.samples.store
        shapes = (len(part), plan.positions.shape[2], store.mean.shape, store.std.shape)
        mixed = any(other.recipe.mixup for other in part)
        key = (job.model, rule, mixed, job.temperature, shapes, _memory_key(values))
        if key not in self._trainers or not self._trainers[key].has_room_for(part, plan):
            self._trainers.pop(key, None)  # first give the old one's memory back
            needed = len(part) * self._bytes(program, job)
            while self._trainers and (
                len(self._trainers) >= MOST_TRAINERS or self._graph_bytes() + needed > self._memory
            ):
                self._trainers.pop(next(iter(self._trainers)))
            self._trainers[key] = graphs.GraphTrainer(program, part, plan, values, needed)
        # to the end: the one used longest ago goes first
        self._trainers[key] = self._trainers.pop(key)
        try:
            return self._trainers[key].fit(part, plan, stop)
        except BaseException:
            del self._trainers[key]  # with its memory
            raise

    def _graph_bytes(self) -> int:
        """What the graphs that are kept hold, roughly."""
        return sum(kept.bytes for kept in self._trainers.values())

    def _uses_graphs(self, program: Program) -> bool:
        return self._cuda and has_triton() and isinstance(program, Stacked)

    def _values(self, samples: Samples) -> Tensor:
        """A store's values on the device: brought there once, as they came."""
        values = samples.store.values
        if not self._cuda:
            return values
        key = _memory_key(values)
        if key not in self._resident:
            while len(self._resident) >= MOST_STORES:
                self._resident.pop(next(iter(self._resident)))
            # the first keeps its address taken
            self._resident[key] = values, values.contiguous().to(self.device)
        return self._resident[key][1]

    def _program_for(self, job: Work) -> Program | str:
        """The program for a job, or why there is none."""
        if not len(_samples(job)) or (
            isinstance(job, Fit) and job.data.classes != job.model.classes
        ):
            return "its samples or targets do not fit; the reference says how"
        return self._program(job.model, training=not isinstance(job, Predict))

    def _program(self, model: Model, training: bool = True) -> Program | str:
        if model not in self._programs:
            with self._sequential.random_lock:  # trying a network draws random numbers
                self._programs.setdefault(model, self._make_program(model))
        program = self._programs[model]
        if isinstance(program, str) or self._cuda:
            return program
        stacks_images = training and isinstance(program, CpuProgram) and not program.splits_images
        if program.macs > max(LARGEST_ON_CPU, LARGEST_TRAINED_ON_CPU if stacks_images else 0):
            return f"{program.macs / 1e6:.1f} million multiplications per sample keep a core busy"
        return program

    def _make_program(self, model: Model) -> Program | str:
        try:
            known = Stacked if self._cuda else CpuProgram
            return stack(model, self._ops, known, self.precision.name == "bfloat16")
        except Unstackable as error:
            warn_user(f"{model.name} cannot be stacked and runs one by one: {error}")
            return str(error)


MOST_TRAINERS, MOST_STORES = 8, 8


def _memory_key(values: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same view of the same memory."""
    return values.data_ptr(), values.shape, values.stride(), values.dtype


def _samples(job: Work) -> Samples:
    return job.data.samples if isinstance(job, Fit) else job.samples


# On CUDA, float32 by our own kernels: three tf32 products each, whose errors are to be those of
# float32. Off until their parity with float64 has been seen on a GPU (tests/engines/stacked/cuda).
FLOAT32_BY_KERNELS = False


def choose_ops(cuda: bool, precision: str) -> ReferenceOps:
    """Our own kernels use the matrix units, which round; so float32 may be left to torch's
    products. A CPU stores bfloat16 if it can compute with it."""
    if cuda and has_triton() and (precision != "float32" or FLOAT32_BY_KERNELS):
        from fedsift.engines.stacked.cuda.ops import TritonOps

        return TritonOps(precision)
    short = not cuda and precision == "bfloat16" and has_bfloat16()
    return ReferenceOps(torch.bfloat16 if short else torch.float32)


def has_bfloat16() -> bool:
    """Whether the CPU's library of convolutions can compute with it."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
