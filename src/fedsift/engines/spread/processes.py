"""Workers that are processes of this machine, each with a batched engine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from fedsift.engines.spread import worker as other_end
from fedsift.engines.spread.engine import SpreadEngine, Worker, WorkerDied
from fedsift.engines.spread.memory import Shared
from fedsift.engines.spread.messages import Do, Done, NewMemory, NewStore, StopNow
from fedsift.engines.spread.parcels import Parcel, Stores, as_bytes, unpack
from fedsift.engines.spread.station import Answer, Setting
from fedsift.engines.threads import count_cores
from fedsift.types import UserError

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {other_end.__name__} import main; main(int(sys.argv[2]))"
)
SECONDS_TO_END = 2.0  # then it is killed
GIB = 2**30


def can_start() -> bool:
    """Whether this system has worker processes. On macOS Python answers a descriptor that was sent
    on the line itself, where a worker's other thread waits for messages: they hang or fail."""
    return os.name != "nt" and sys.platform != "darwin"


class WorkerEngine(SpreadEngine):
    """Groups of equal networks go to worker processes on this machine, with batched engines.

    device: as torch names it, e.g. "cpu" or "cuda"
    workers: how many processes (default: as many as cores, on CUDA as GPUs)
    precision: of matrix products: "float32", "tf32" (CUDA), "bfloat16" or "auto"
    memory: GiB for stacked networks in each (default: 1, on CUDA half of what is free)

    Data and weights are in shared memory.
    """

    def __init__(
        self,
        device: str = "cpu",
        workers: int | None = None,
        precision: str = "float32",
        memory: float | None = None,
    ) -> None:
        if not can_start():
            raise UserError("worker processes need Linux; use --engine batched")
        if workers is not None and workers < 1:
            raise UserError(f"workers is a number from 1 on, not {workers}")
        cuda = torch.device(device).type == "cuda"
        many = workers or (torch.cuda.device_count() if cuda else count_cores())
        super().__init__(ProcessCrew(Setting(device, precision, memory), many))

    def close(self) -> None:
        """End the workers. They also end with this process, however it ends."""
        crew = self.crew
        assert isinstance(crew, ProcessCrew)
        crew.close()


class ProcessCrew:
    """So many worker processes, started when there is something to do."""

    def __init__(self, setting: Setting, many: int) -> None:
        self.setting, self._many = setting, many
        self._memories = _SharedStores()
        self._places: list[Process | None] = [None] * many
        self.close = weakref.finalize(self, _end_all, self._places)

    def count(self) -> int:
        return self._many

    def workers(self, count: int) -> list[Worker]:
        for place in range(count):
            worker = self._places[place]
            if worker is None or not worker.is_alive():
                self._places[place] = self._start(place)
        return [worker for worker in self._places[:count] if worker is not None]

    def replace(self, worker: Worker) -> Worker | None:
        worker.kill()
        place = self._places.index(worker)  # type: ignore[arg-type]
        fresh = self._places[place] = self._start(place)
        return fresh

    def summary(self) -> str:
        where = f"{self.setting.device}, {self.setting.precision}"
        return f"{self._many} worker process(es) on {where}"

    def _start(self, place: int) -> Process:
        return Process(self._settle(place), self._memories)

    def _settle(self, place: int) -> Setting:
        """Which GPU a worker has, and its share of the memory there."""
        if self.setting.device != "cuda":
            return self.setting
        gpus = torch.cuda.device_count()
        device = f"cuda:{place % gpus}"
        sharing = -(-self._many // gpus)
        free = torch.cuda.mem_get_info(device)[0] / 2 / GIB
        memory = self.setting.memory or free / sharing
        return replace(self.setting, device=device, memory=memory)


class Process:
    """One worker process, seen from the one that started it."""

    def __init__(self, setting: Setting, memories: _SharedStores) -> None:
        self._memories = memories
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", START, json.dumps(sys.path), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self._line: Connection = ours
        self._sending = threading.Lock()
        self._known: set[int] = set()
        self._jobs: Shared | None = None
        self._answers: Shared | None = None
        self._say(setting)

    def do(self, parcel: Parcel, stores: Stores) -> Answer:
        try:
            for number in sorted(parcel.stores - self._known):
                self._send_store(number, stores)
            self._write_jobs(parcel)
            alive = frozenset(stores.values)
            self._known &= alive
            self._send(Do(parcel.text, parcel.size, alive))
            return self._receive()
        except (EOFError, OSError) as error:
            raise WorkerDied(self._describe_death()) from error

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._say(StopNow())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._line.close()

    def hang_up(self) -> None:
        """It then ends by itself."""
        with contextlib.suppress(OSError):
            self._line.close()

    def wait(self) -> None:
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self) -> Answer:
        done: Done = self._line.recv()
        if done.size is not None:
            self._answers = Shared(recv_handle(self._line), done.size)
            self._answers.close()
        assert self._answers is not None
        found: Answer = unpack(done.text, self._answers.array, _no_store, copy=True)
        return found

    def _write_jobs(self, parcel: Parcel) -> None:
        if self._jobs is None or self._jobs.size < parcel.size:
            self._jobs = Shared.make(2 * parcel.size)
            self._send(NewMemory(self._jobs.size), self._jobs.file)
            self._jobs.close()
        parcel.write(self._jobs.array)

    def _send_store(self, number: int, stores: Stores) -> None:
        values = stores.tensor(number)
        shared = self._memories.get(number, stores)
        size = values.numel() * values.element_size()
        shape = tuple(values.shape)
        self._send(NewStore(number, shared.size, size, values.dtype, shape), shared.file)
        self._known.add(number)

    def _send(self, message: Any, file: int | None = None) -> None:
        with self._sending:
            self._line.send(message)
            if file is not None:
                send_handle(self._line, file, self._process.pid)

    def _say(self, message: Any) -> None:
        """To one that may be gone already."""
        with contextlib.suppress(OSError):
            self._send(message)

    def _describe_death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_END)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"killed by signal {-code}"
        return f"ended with code {code}"


class _SharedStores:
    """Data sets in shared memory, each once for all workers."""

    def __init__(self) -> None:
        self._memories: dict[int, Shared] = {}
        self._lock = threading.Lock()

    def get(self, number: int, stores: Stores) -> Shared:
        with self._lock:
            for gone in self._memories.keys() - stores.values.keys():
                self._memories.pop(gone).close()
            if number not in self._memories:
                raw = as_bytes(stores.tensor(number))
                shared = self._memories[number] = Shared.make(len(raw))
                shared.array[: len(raw)] = raw
            return self._memories[number]


def _end_all(places: list[Process | None]) -> None:
    running = [worker for worker in places if worker is not None]
    places[:] = [None] * len(places)
    for worker in running:
        worker.hang_up()
    for worker in running:
        worker.wait()


def _no_store(number: int) -> torch.Tensor:
    raise AssertionError(f"store {number} in an answer")
