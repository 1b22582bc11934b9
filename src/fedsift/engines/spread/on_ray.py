"""Workers that Ray starts, on this machine or on a cluster.

A worker is an actor with a batched engine on its cores or its GPU. A data set is put into the
object store once, and every node fetches it once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import threading
import warnings
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedsift.engines.spread.engine import SpreadEngine, Worker, WorkerDied
from fedsift.engines.spread.parcels import Parcel, Stores, as_bytes, as_tensor, unpack
from fedsift.engines.spread.station import Answer, Setting, Station
from fedsift.engines.threads import Stop, count_cores
from fedsift.types import Array, UserError

SECONDS_TO_START = 120.0  # that a first worker may take
GIB = 2**30
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's word for: one machine, loopback
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost):")


class RayEngine(SpreadEngine):
    """Groups of equal networks go to Ray workers, on this machine or on a cluster.

    device: of the workers, "cpu" or "cuda"
    workers: how many (default: as many as there is room for); each takes a core
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    memory: GiB for stacked networks in each (default: 1, on CUDA half of what is free)
    address: of the cluster, e.g. "10.0.0.1:6379" (default: Ray is started on this machine)
    gpus: what a worker takes of a GPU on CUDA; with 0.5 two share one (default: 1)
    """

    def __init__(
        self,
        device: str = "cpu",
        workers: int | None = None,
        precision: str = "float32",
        memory: float | None = None,
        address: str | None = None,
        gpus: float | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"workers is a number from 1 on, not {workers}")
        cuda = torch.device(device).type == "cuda"
        if gpus is not None and not (cuda and gpus > 0):
            raise UserError("gpus is a share of a GPU above 0, and needs --device cuda")
        started = connect(address, workers)
        share = (1.0 if gpus is None else float(gpus)) if cuda else 0.0
        super().__init__(RayCrew(Setting(device, precision, memory), workers, share, started))

    def close(self) -> None:
        """End the workers, and Ray if it was started here."""
        crew = self.crew
        assert isinstance(crew, RayCrew)
        crew.close()


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError("engine ray needs Ray: pip install 'fedsift[ray]'")


def _ray() -> Any:
    """Imported only where it is used: it is heavy, and an extra."""
    return importlib.import_module("ray")


def connect(address: str | None, workers: int | None) -> bool:
    """To a cluster, or to a Ray that is started on this machine's loopback: then it is true."""
    check_installed()
    os.environ.update({key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()})
    if address is None or _LOOPBACK.match(address):
        os.environ.update(ON_LOOPBACK)
    ray = _ray()
    if ray.is_initialized():
        return False
    quiet = {"logging_level": "error", "log_to_driver": False}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            ray.init("local", num_cpus=workers or count_cores(), include_dashboard=False, **quiet)
    except Exception as error:  # what cannot be reached fails in many ways
        said = " ".join(str(error).split())[:300]
        where = "on this machine" if address is None else f"at {address}"
        raise UserError(f"cannot reach Ray {where}: {type(error).__name__}: {said}") from error
    return address is None


class RayCrew:
    """The actors there are; as many as asked for, or as the nodes that are alive have room for."""

    def __init__(self, setting: Setting, many: int | None, gpus: float, started: bool) -> None:
        self.setting, self._many, self._gpus = setting, many, gpus
        self.stored: dict[int, Any] = {}  # number of a store -> where the object store has it
        self._ready: list[RayWorker] = []
        self._starting: list[RayWorker] = []
        self._hiring = threading.Lock()  # several workers may be lost at once
        self.close = weakref.finalize(self, _end_all, started, self._ready, self._starting)

    def count(self) -> int:
        room = self._count_room()
        return max(1, min(self._many or room, room))

    def workers(self, count: int) -> list[Worker]:
        """Those that are ready; all are waited for if there are none yet."""
        with self._hiring:
            self._forget_lost()
            wanted = self.count()
            while len(self._ready) + len(self._starting) < wanted:
                self._starting.append(RayWorker(self))
            self._welcome(0.0 if self._ready else SECONDS_TO_START)
            ready: list[Worker] = list(self._ready[:count])
        if not ready:
            raise UserError(
                f"no Ray worker has started within {SECONDS_TO_START:.0f} s; each needs a free "
                f"core{f' and {self._gpus:g} of a GPU' if self._gpus else ''}"
            )
        return ready

    def replace(self, worker: Worker) -> Worker | None:
        """Others go on at once, and a new one joins them at the next list; the last is waited
        for."""
        worker.kill()
        with self._hiring:
            self._ready[:] = [other for other in self._ready if other is not worker]
            if self._ready:
                return None
            self._starting.append(RayWorker(self))
            self._welcome(SECONDS_TO_START)
            return self._ready[0] if self._ready else None

    def summary(self) -> str:
        where = f"{self.setting.device}, {self.setting.precision}"
        return f"{self.count()} Ray worker(s) on {where}"

    def start(self) -> Any:
        how = self.setting
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": self._gpus}
        return _actor_class().options(**options).remote(how, self._gpus)

    def _welcome(self, seconds: float) -> None:
        """Move those that have started to the ready ones, and forget those that cannot start."""
        ray = _ray()
        waiting = {worker.started: worker for worker in self._starting}
        if not waiting:
            return
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=seconds)
        for reference in done:
            worker = waiting[reference]
            self._starting.remove(worker)
            try:
                worker.node = ray.get(reference)
                self._ready.append(worker)
            except ray.exceptions.RayTaskError as error:
                raise UserError(f"a Ray worker cannot start: {error.cause}") from error
            except ray.exceptions.RayError:
                worker.kill()

    def _forget_lost(self) -> None:
        """Workers on nodes that are gone: in a place among the ready ones they would keep others
        from being started."""
        alive = {node["NodeID"] for node in _living_nodes()}
        for worker in [worker for worker in self._ready if worker.node not in alive]:
            worker.kill()
            self._ready.remove(worker)

    def _count_room(self) -> int:
        return sum(_room_on(node["Resources"], self._gpus) for node in _living_nodes())


def _living_nodes() -> list[dict[str, Any]]:
    return [node for node in _ray().nodes() if node["Alive"]]


def _room_on(resources: dict[str, float], gpus: float) -> int:
    """Workers that fit on a node: one per core, and per share of a GPU; shares do not add up over
    GPUs."""
    cores = int(resources.get("CPU", 0))
    if not gpus:
        return cores
    found = resources.get("GPU", 0)
    return min(cores, int(found) * int(1 / gpus) if gpus <= 1 else int(found / gpus))


class RayWorker:
    """One actor, seen from the process that does the run."""

    def __init__(self, crew: RayCrew) -> None:
        self._stored, self._known = crew.stored, set[int]()
        self._actor = crew.start()
        self.started = self._actor.hello.remote()
        self.node = ""  # known once it has started

    def do(self, parcel: Parcel, stores: Stores) -> Answer:
        ray = _ray()
        try:
            for number in sorted(parcel.stores - self._known):
                self._send_store(number, stores)
            alive = frozenset(stores.values)
            for gone in self._stored.keys() - alive:
                self._stored.pop(gone, None)
            self._known &= alive
            text, memory = ray.get(self._actor.do.remote(parcel.text, parcel.flat(), alive))
        except ray.exceptions.RayTaskError as error:
            raise UserError(f"a Ray worker cannot do its part: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise WorkerDied(type(error).__name__) from error
        found: Answer = unpack(text, memory, torch.zeros, copy=True)
        return found

    def stop(self) -> None:
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            self._actor.stop.options(concurrency_group="control").remote()

    def kill(self) -> None:
        ray = _ray()
        with contextlib.suppress(Exception):  # it may be gone, and so may Ray
            ray.kill(self._actor)

    def _send_store(self, number: int, stores: Stores) -> None:
        ray = _ray()
        values = stores.tensor(number)
        if number not in self._stored:
            self._stored[number] = ray.put(as_bytes(values))
        # in a list, so that the actor fetches it and Ray does not with every call
        where = [self._stored[number]]
        ray.get(self._actor.keep.remote(number, where, values.dtype, tuple(values.shape)))
        self._known.add(number)


@cache
def _actor_class() -> Any:
    ray = _ray()
    return ray.remote(concurrency_groups={"control": 1}, max_restarts=0)(Actor)


class Actor:
    """What runs in a worker of Ray."""

    def __init__(self, setting: Setting, gpus: float) -> None:
        if gpus and setting.memory is None:
            free = torch.cuda.mem_get_info()[0]
            setting = replace(setting, memory=free / 2 * min(1.0, gpus) / GIB)
        self._station, self._stop = Station(setting), Stop()
        self._stored: dict[int, Tensor] = {}

    def hello(self) -> str:
        """The node it is on; answered once the actor is there."""
        node: str = _ray().get_runtime_context().get_node_id()
        return node

    def keep(self, number: int, where: list[Any], kind: torch.dtype, shape: tuple[int]) -> None:
        """Have a data set: a view of what this node's object store holds."""
        ray = _ray()
        with warnings.catch_warnings():  # nobody writes to it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self._stored[number] = as_tensor(ray.get(where[0]), kind, shape)

    def do(self, text: bytes, memory: Array, alive: frozenset[int]) -> tuple[bytes, Array]:
        for number in set(self._stored) - alive:
            del self._stored[number]
        self._stop = Stop()
        parcel = self._station.do(text, memory.copy(), self._stored, self._stop)
        return parcel.text, parcel.flat()

    def stop(self) -> None:
        """End what is being done between two batches."""
        self._stop.set()


def _end_all(started: bool, *lists: list[RayWorker]) -> None:
    for workers in lists:
        while workers:
            workers.pop().kill()
    if started:
        ray = _ray()
        ray.shutdown()
