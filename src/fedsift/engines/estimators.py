"""The engine for models that are not networks: jobs of estimators and black boxes, in parallel.

An estimator is trained anew by every `Fit`. Many trainings of scikit-learn are spread over
processes: they hold Python's lock, and they change warning filters, which threads share. XGBoost,
LightGBM and black boxes run in threads, the rest one by one. One that fails fails alone: its
answer is a ModelFailure.
"""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedsift import seeding
from fedsift.engines.threads import count_cores
from fedsift.estimators import adapters, state
from fedsift.estimators.adapters import Fitted
from fedsift.estimators.names import Copied, Named
from fedsift.types import (
    REMOTE,
    Array,
    Fit,
    Model,
    ModelFailure,
    Predict,
    Samples,
    UserError,
    Weights,
    Work,
)

IN_THREADS = ("xgboost", "lightgbm")
MANY = 8  # jobs of scikit-learn for which processes are started
CALLS = 16  # black boxes asked at a time
PIECES = 4  # per process, so that nobody waits long for the last one


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training gives: the estimator, and its bytes if it is kept."""

    fitted: Fitted | bytes  # bytes: as another process of ours sent it
    blob: bytes | None


class EstimatorEngine:
    """Trains and asks estimators and black boxes; `workers` defaults to the number of cores."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or count_cores()
        self._live: dict[int, tuple[weakref.ref[Any], Fitted | bytes]] = {}

    def run(self, jobs: Sequence[Work]) -> list[Any]:
        """The answers, in the order of the jobs."""
        inputs = _Inputs()
        tasks = [self._task(job, inputs) for job in jobs]
        heavy = [i for i, job in enumerate(jobs) if _library(job.model) == "sklearn"]
        found: dict[int, Any] = {}
        if len(heavy) >= MANY and self.workers > 1:
            found = dict(zip(heavy, self._spread([tasks[i] for i in heavy]), strict=True))
        groups: dict[int, list[int]] = {}
        for i in range(len(jobs)):
            if i not in found:
                groups.setdefault(self._count_threads(jobs[i]), []).append(i)
        for threads, some in groups.items():
            found |= zip(some, _run_threads([tasks[i] for i in some], threads), strict=True)
        return [self._finish(job, found[i]) for i, job in enumerate(jobs)]

    def describe(self, model: Model) -> str:
        """How models of this kind are run."""
        if model.kind == REMOTE:
            return f"{model.name}: a black box, asked and never trained"
        return f"{model.name}: trained anew in every round, {self.workers} at a time"

    def _count_threads(self, job: Work) -> int:
        if job.model.kind == REMOTE:
            return CALLS
        return self.workers if _library(job.model) in IN_THREADS else 1

    def _task(self, job: Work, inputs: _Inputs) -> Task:
        model = job.model
        if isinstance(job, Fit):
            if model.kind == REMOTE:
                return partial(_same)
            x, targets = inputs.of(job.data.samples), job.data.targets.numpy()
            seed = seeding.torch_seed(*job.key) % 2**31
            return partial(train_task, model, x, targets, seed, job.kept)
        if not isinstance(job, Predict):
            return partial(_refuse_pretext, model)
        if model.kind == REMOTE:
            return partial(_ask, model, job.samples)
        known: Fitted | bytes | None = self._find(job.state)
        blob = state.from_weights(job.state) if job.state and known is None else None
        return partial(predict_task, model, known, blob, inputs.of(job.samples))

    def _finish(self, job: Work, found: Any) -> Any:
        if isinstance(found, Failed):
            return ModelFailure(found.what, found.detail)
        if not isinstance(found, Trained):
            return found
        weights = state.to_weights(found.blob or state.write_nothing())
        self._remember(weights, found.fitted)
        return weights

    def _remember(self, weights: Weights, fitted: Fitted | bytes) -> None:
        """While somebody holds the state, its estimator need not be read again."""
        tensor = weights[state.NAME]
        key, live = id(tensor), self._live
        live[key] = weakref.ref(tensor, lambda _: live.pop(key, None)), fitted

    def _find(self, weights: Weights) -> Fitted | bytes | None:
        tensor = weights.get(state.NAME)
        ref, fitted = self._live.get(id(tensor), (lambda: None, None))
        return fitted if tensor is not None and ref() is tensor else None

    def _spread(self, tasks: list[Task]) -> list[Any]:
        """Over processes, by joblib, which comes with scikit-learn."""
        from joblib import Parallel, delayed

        count = min(len(tasks), self.workers * PIECES)
        places = [range(i, len(tasks), count) for i in range(count)]
        run = Parallel(n_jobs=self.workers, backend="loky", batch_size=1, inner_max_num_threads=1)
        parts = run(delayed(run_part)([tasks[i] for i in some]) for some in places)
        answers = {
            i: found
            for some, part in zip(places, parts, strict=True)
            for i, found in zip(some, part, strict=True)
        }
        return [answers[i] for i in range(len(tasks))]


@dataclass(frozen=True)
class Failed:
    """A failure as it travels between processes."""

    what: str
    detail: str


Task = Callable[[], Any]


def run_part(tasks: list[Task]) -> list[Any]:
    """In a process of its own: estimators go back as bytes, which are only opened where needed."""
    return [_pack(run_task(task)) for task in tasks]


def _pack(found: Any) -> Any:
    if isinstance(found, Trained) and isinstance(found.fitted, Fitted):
        return Trained(pickle.dumps(found.fitted), found.blob)
    return found


def run_task(task: Task) -> Any:
    try:
        return task()
    except ModelFailure as error:
        return Failed(error.what, error.detail)
    except UserError as error:
        return Failed("its model cannot be used", str(error))
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException as error:  # also SystemExit: a model does not end the run
        return Failed(
            f"its model raised {type(error).__name__}", " ".join(str(error).split())[:300]
        )


def train_task(model: Model, x: Array, targets: Array, seed: int, kept: bool) -> Trained:
    fitted = adapters.train(model.build(), x, targets, seed)
    return Trained(fitted, state.encode(fitted) if kept else None)


def predict_task(
    model: Model, fitted: Fitted | bytes | None, blob: bytes | None, x: Array
) -> Array:
    """Logarithms of probabilities, which a softmax turns back; a model without a state says
    nothing: all classes are alike.
    """
    if fitted is None and blob is None:
        return np.zeros((len(x), model.classes), np.float32)
    if isinstance(fitted, bytes):
        found: Fitted = pickle.loads(fitted)  # of a process of ours, never of a file
    else:
        found = fitted or state.decode(blob or b"", model)
    return to_logits(adapters.predict(found, x, model.classes))


def to_logits(probs: Array) -> Array:
    """log p, and -inf where p is 0."""
    with np.errstate(divide="ignore"):
        logits: Array = np.log(probs).astype(np.float32)
    return logits


def _ask(model: Model, samples: Samples) -> Array:
    values = samples.store.values[samples.rows].double().numpy()
    return to_logits(model.build().predict(values.reshape(len(values), -1), model.classes))


def _same() -> Weights:
    """A black box is not trained."""
    return {}


def _refuse_pretext(model: Model) -> Any:
    raise ModelFailure(f"{model.name} is no network, so there is no pretext to train it on")


def _library(model: Model) -> str:
    """Whose classifier it is; of what a function makes, nobody knows."""
    factory: Any = model.factory
    if isinstance(factory, Named):
        return factory.text.partition(":")[0]
    made = factory.estimator if isinstance(factory, Copied) else getattr(factory, "make", None)
    made = getattr(made, "func", made)  # of a partial
    return (getattr(made, "__module__", None) or "").partition(".")[0]


class _Inputs:
    """Samples as a table [n, F] of float64, made once for all jobs that share them."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[Samples, Array]] = {}

    def of(self, samples: Samples) -> Array:
        if id(samples) not in self._tables:
            table = samples.tensor().double().numpy()
            self._tables[id(samples)] = samples, table.reshape(len(table), -1)
        return self._tables[id(samples)][1]


def _run_threads(tasks: list[Task], threads: int) -> list[Any]:
    if not tasks:
        return []
    with _one_thread_each():
        if len(tasks) == 1 or threads == 1:
            return [run_task(task) for task in tasks]
        with ThreadPoolExecutor(min(threads, len(tasks)), "fedsift-estimators") as pool:
            return list(pool.map(run_task, tasks))


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Sums must not depend on how many threads a library would take."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(1):
        yield
