"""A SuperLink and SuperNodes on this machine's loopback: started here and always stopped here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsift.files import write_atomic
from fedsift.flower.certificates import Certificates
from fedsift.flower.processes import MARK, descendants, find_marked, processes, start_guard
from fedsift.flower.superlink import SuperLink, remove_colours, write_toml
from fedsift.types import UserError

HOST = "127.0.0.1"


class Deployment(SuperLink):
    """Use in `with`; `home` has logs and Flower's files. Certificates: TLS, authenticated nodes.

    With `database` the SuperLink keeps its state in a file, so that it can be started again.
    """

    def __init__(
        self,
        home: Path,
        certificates: Certificates | None = None,
        *,
        simulation: bool = False,
        database: bool = False,
    ) -> None:
        self.port = free_port()
        super().__init__(f"{HOST}:{self.port}", home, certificates.ca if certificates else None)
        self.certificates, self.simulation, self.database = certificates, simulation, database
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[str, tuple[str, ...]] = {}  # the command of each
        self.running: dict[str, subprocess.Popen[bytes]] = {}  # the newest process of a name
        self.mark = uuid.uuid4().hex
        self.seen: dict[int, str] = {}  # pid -> born
        self.guard: subprocess.Popen[bytes] | None = None
        self.scratch: Path | None = None  # of Ray, which leaves its own in the system's
        self.environment |= {MARK: self.mark}

    def __enter__(self) -> Deployment:
        self.write_connection()
        self.guard = start_guard(self.mark)
        if self.simulation:
            self.scratch = Path(tempfile.mkdtemp(prefix="fedsift-"))  # a short path: sockets
            self.environment |= {"RAY_TMPDIR": str(self.scratch)}
        try:
            self._start_link()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- starting ---

    def node(
        self,
        settings: Mapping[str, Any],
        key: Path | None = None,
        trust: bool = True,
        retries: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """A SuperNode; `key` is its private key, and without `trust` it speaks plaintext.

        It tries to reach the SuperLink for ever, unless `retries` says how often: Flower's
        processes live on, deaf, when they have given up after they were connected.
        """
        name = f"node-{len(self.nodes)}"
        where = ["--superlink", self.address, "--port", str(free_port())]
        if self.ca and trust:
            where += ["--root-certificates", str(self.ca)]
        else:
            where += ["--insecure"]
        where += ["--auth-supernode-private-key", str(key)] if key else []
        where += [] if retries is None else ["--max-retries", str(retries)]
        config = write_toml(self.home / f"{name}.toml", settings)
        self.nodes[name] = ("flower-supernode", *where, "--node-config", str(config))
        return self._start(name, *self.nodes[name])

    def _start_link(self) -> None:
        options = ["--host", HOST, "--port", str(self.port)]
        options += ["--simulation"] if self.simulation else []
        options += ["--database", str(self.home / "superlink.db")] if self.database else []
        if c := self.certificates:
            options += ["--ssl-ca-certfile", str(c.ca), "--ssl-certfile", str(c.server)]
            options += ["--ssl-keyfile", str(c.server_key), "--enable-supernode-auth"]
        else:
            options += ["--insecure"]
        link = self._start("superlink", "flower-superlink", *options)
        until = time.monotonic() + 60
        while not self.is_healthy():
            if link.poll() is not None or time.monotonic() > until:
                raise UserError(f"the SuperLink did not start; see {self.home / 'superlink.log'}")
            time.sleep(0.2)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.home / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        self.running[name] = process
        return process

    # --- watching ---

    def submit(self, app: Path, run_config: Mapping[str, Any], nodes: int | None = None) -> str:
        """Submit the project; returns the run's id. `nodes`: how many Flower's simulation makes."""
        return super().submit(app, run_config, nodes if self.simulation else None)

    def check(self) -> None:
        """Remember all that runs, to know them when they are to be stopped; a dead SuperLink is an
        error of the system.
        """
        self.alive()
        if (code := self.running["superlink"].poll()) is not None:
            raise ConnectionError(
                f"the SuperLink ended (exit code {code}); see {self.home / 'superlink.log'}"
            )

    def revive(self) -> None:
        """Start again what has ended: the SuperLink, then nodes."""
        if self.running["superlink"].poll() is not None:
            self._start_link()
        for name, command in self.nodes.items():
            if self.running[name].poll() is not None:
                self._start(name, *command)

    # --- stopping ---

    def stop(self) -> None:
        """Everything that was started here, and only that: first politely, then for good."""
        try:
            self._end(signal.SIGTERM, 10.0)
        finally:  # also where the user cannot wait
            self._end(signal.SIGKILL, 5.0)
            if self.guard:
                self.guard.communicate()
            if self.scratch:
                shutil.rmtree(self.scratch, ignore_errors=True)
            for log in self.home.glob("*.log"):  # Flower colours its lines in files too
                with contextlib.suppress(OSError):
                    plain = remove_colours(log.read_text(errors="replace"))
                    write_atomic(log, plain.encode())

    def _end(self, sign: signal.Signals, patience: float) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        until = time.monotonic() + patience
        while self.alive() and time.monotonic() < until:
            time.sleep(0.1)

    def alive(self) -> set[int]:
        """Processes started here that still run, and theirs. Some detach themselves and some rub
        out our mark, so all that were once seen are remembered."""
        now = processes()
        mine = {process.pid for process in self.processes if process.poll() is None}
        roots = mine | set(find_marked(self.mark))
        self.seen |= {pid: now[pid].born for pid in roots | descendants(roots, now) if pid in now}
        return mine | {
            pid for pid, born in self.seen.items() if pid in now and now[pid].born == born
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
