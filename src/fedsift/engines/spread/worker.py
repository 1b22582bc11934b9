"""A worker process: it gets parts through a socket, arrays through shared memory, and ends with
the process that started it.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from torch import Tensor

from fedsift.engines.spread.memory import Shared
from fedsift.engines.spread.messages import Do, Done, NewMemory, NewStore, StopNow
from fedsift.engines.spread.parcels import as_tensor
from fedsift.engines.spread.station import Setting, Station
from fedsift.engines.threads import Stop


def main(file: int) -> None:
    """Serve the process at the other end of the socket until it is gone."""
    for name in ("SIGINT", "SIGHUP"):  # those are for the process that was asked to do something
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _Worker(Connection(file)).serve()


class _Worker:
    def __init__(self, boss: Connection) -> None:
        self._boss = boss
        self._inbox: Any = queue.SimpleQueue()
        self._stored: dict[int, Tensor] = {}
        self._jobs = self._answers = Shared.make(0)
        self._sent_answers = False

    def serve(self) -> None:
        setting: Setting = self._boss.recv()
        threading.Thread(target=self._listen, daemon=True).start()
        station = Station(setting)
        while True:
            self._do(station, *self._inbox.get())

    def _do(self, station: Station, task: Do, stop: Stop) -> None:
        for number in set(self._stored) - task.alive:
            del self._stored[number]
        parcel = station.do(task.text, self._jobs.array[: task.size], self._stored, stop)
        if parcel.size > self._answers.size or not self._sent_answers:
            self._answers = Shared.make(2 * parcel.size)
            self._sent_answers = True
            parcel.write(self._answers.array)
            self._boss.send(Done(parcel.text, self._answers.size))
            send_handle(self._boss, self._answers.file, os.getppid())
            self._answers.close()
            return
        parcel.write(self._answers.array)
        self._boss.send(Done(parcel.text))

    def _listen(self) -> None:
        """Read messages while work is going on; without a boss there is nothing left to do."""
        latest = Stop()
        try:
            while True:
                message = self._boss.recv()
                if isinstance(message, Do):
                    latest = Stop()
                    self._inbox.put((message, latest))
                elif isinstance(message, StopNow):
                    latest.set()
                else:
                    self._receive(message)
        except (EOFError, OSError):
            os._exit(0)

    def _receive(self, message: NewMemory | NewStore) -> None:
        """Comes before the part that needs it, and while none is being done."""
        memory = Shared(recv_handle(self._boss), message.size)
        memory.close()
        if isinstance(message, NewMemory):
            self._jobs = memory
            return
        raw = memory.array[: message.bytes]
        self._stored[message.number] = as_tensor(raw, message.kind, message.shape)
