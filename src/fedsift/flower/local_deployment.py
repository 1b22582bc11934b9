"""A SuperLink and SuperNodes on this machine's loopback: started here and always stopped here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedsift.files import write_atomic
from fedsift.flower.certificates import Certificates
from fedsift.runs import rounds_played
from fedsift.types import UserError

HOST = "127.0.0.1"
# in the environment of everything started here, so that it can be recognised
MARK = "FEDSIFT_STARTED_BY"
RETRIES = 3  # of a node to reach the SuperLink, which is there before any node is
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "NO_PROXY": f"{HOST},localhost",
    "no_proxy": f"{HOST},localhost",
}


class Deployment:
    """Use in `with`; `home` has logs and Flower's files. Certificates: TLS, authenticated nodes."""

    def __init__(
        self, home: Path, certificates: Certificates | None = None, *, simulation: bool = False
    ) -> None:
        self.home, self.certificates, self.simulation = home.resolve(), certificates, simulation
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.mark = uuid.uuid4().hex
        self.seen: dict[int, str] = {}  # pid -> born
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = (
            os.environ
            | QUIET
            | {"FLWR_HOME": str(self.home / "flwr"), "PATH": path, MARK: self.mark}
        )

    def __enter__(self) -> Deployment:
        (self.home / "flwr").mkdir(parents=True, exist_ok=True)
        write_atomic(self.home / "flwr" / "config.toml", self._connection().encode())
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
        self, settings: Mapping[str, Any], key: Path | None = None, trust: bool = True
    ) -> subprocess.Popen[bytes]:
        """A SuperNode; `key` is its private key, and without `trust` it speaks plaintext."""
        where = ["--superlink", f"{HOST}:{self.port}", "--port", str(free_port())]
        if self.certificates and trust:
            where += ["--root-certificates", str(self.certificates.ca)]
        else:
            where += ["--insecure"]
        where += ["--auth-supernode-private-key", str(key)] if key else []
        where += ["--max-retries", str(RETRIES)]
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        return self._start(
            f"node-{len(self.processes) - 1}", "flower-supernode", *where, "--node-config", config
        )

    def _start_link(self) -> None:
        options = [
            "--host",
            HOST,
            "--port",
            str(self.port),
            *(["--simulation"] if self.simulation else []),
        ]
        if self.certificates:
            c = self.certificates
            files = [
                "--ssl-ca-certfile",
                c.ca,
                "--ssl-certfile",
                c.server,
                "--ssl-keyfile",
                c.server_key,
            ]
            options += [*map(str, files), "--enable-supernode-auth"]
        else:
            options += ["--insecure"]
        link = self._start("superlink", "flower-superlink", *options)
        until = time.monotonic() + 60
        while not self._is_healthy():
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
        return process

    def _is_healthy(self) -> bool:
        trust = (
            ssl.create_default_context(cafile=str(self.certificates.ca))
            if self.certificates
            else None
        )
        scheme = "https" if trust else "http"
        handlers = [
            urllib.request.ProxyHandler({}),
            *([urllib.request.HTTPSHandler(context=trust)] if trust else []),
        ]
        with contextlib.suppress(OSError):
            return (
                urllib.request.build_opener(*handlers)
                .open(f"{scheme}://{HOST}:{self.port}/health", timeout=2)
                .status
                == 200
            )
        return False

    def _connection(self) -> str:
        secure = (
            f"root-certificates = {json.dumps(str(self.certificates.ca))}"
            if self.certificates
            else "insecure = true"
        )
        names = '[superlink]\ndefault = "local"\n\n[superlink.local]\n'
        return f'{names}address = "{HOST}:{self.port}"\n{secure}\n'

    # --- driving ---

    def submit(self, app: Path, run_config: Mapping[str, Any], nodes: int | None = None) -> str:
        """Submit the project; returns the run's id. `nodes`: how many Flower's simulation makes."""
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in run_config.items())
        simulated = ["--federation-config", f"num-supernodes={nodes}"] if self.simulation else []
        answer = self.flwr(
            "run", str(app), "local", "--run-config", config, *simulated, "--format", "json"
        )
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """pending, starting, running, finished:completed, finished:failed or finished:stopped."""
        return str(
            self.flwr("list", "local", "--run-id", run, "--format", "json")["runs"][0]["status"]
        )

    def log(self, run: str) -> str:
        """The log of the server of a run."""
        return self._run("flwr", "log", run, "local", "--show").stdout

    def reason(self, run: str) -> str:
        """Why a run failed: the last line of its last traceback; the whole log is kept."""
        log = self.log(run)
        (self.home / "server.log").write_text(log)
        errors = [
            line for line in log.splitlines() if re.match(r"[\w.]+(Error|UserError|TooFew)\b", line)
        ]
        return errors[-1] if errors else f"see {self.home / 'server.log'}"

    def register(self, public_key: Path) -> None:
        """Let the SuperNode with this key in."""
        self.flwr("supernode", "register", str(public_key), "local", "--format", "json")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What Flower's command line answers, as JSON."""
        try:
            done = self._run("flwr", *arguments)
        except subprocess.TimeoutExpired as late:
            raise UserError(
                f"`flwr {arguments[0]}` has not answered within {late.timeout:g} s"
            ) from None
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success", True):
            said = answer.get("error-message") or f"{done.stdout}{done.stderr}".strip()
            raise UserError(f"`flwr {' '.join(arguments[:2])}` failed: {said}")
        return dict(answer)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )

    # --- stopping ---

    def stop(self) -> None:
        """Everything that was started here, and only that: first politely, then for good."""
        try:
            self._end(signal.SIGTERM, 10.0)
        finally:  # also where the user cannot wait
            self._end(signal.SIGKILL, 5.0)

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


class Process(NamedTuple):
    parent: int
    born: str  # with the pid, no other process: pids are used again


def processes() -> dict[int, Process]:
    """All that run, where the system tells (Linux)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(entry.name)] = Process(int(parent), rest[17])
    return found


def descendants(roots: set[int], now: Mapping[int, Process]) -> set[int]:
    """Children of the roots, and theirs."""
    family, new = set(roots), set(roots)
    while new:
        new = {pid for pid, process in now.items() if process.parent in new} - family
        family |= new
    return family - roots


def find_marked(mark: str) -> Iterator[int]:
    """Running processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def follow(
    deployment: Deployment, run: str, folder: Path, done: int, rounds: int, look: float = 15.0
) -> Iterator[int]:
    """The number of rounds saved, when it has grown; until all are, or the run ended otherwise."""
    checked = time.monotonic()
    while done < rounds:
        time.sleep(0.3)
        deployment.alive()  # to know them all when they are to be stopped
        if (now := rounds_played(folder)) > done:
            done = now
            yield done
        if time.monotonic() > checked + look:  # asking Flower takes seconds of work
            checked, status = time.monotonic(), deployment.status(run)
            if status.startswith("finished") and rounds_played(folder) < rounds:
                raise UserError(f"the run ended early ({status}): {deployment.reason(run)}")
