"""A SuperLink driven with Flower's own command line: submit a project, watch its run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsift.codecs.wire import one_line
from fedsift.files import write_atomic
from fedsift.flower.status import STATUS
from fedsift.runs import FAILED, rounds_played
from fedsift.runs.folder import check_object, read_json
from fedsift.types import UserError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "no_proxy": "127.0.0.1,localhost,::1",
}
NAME = "local"  # of the SuperLink in Flower's config.toml


class RunEnded(UserError):
    """A run ended before its last round."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"the run ended early ({status}): {reason}")
        self.status, self.reason = status, reason


class SuperLink:
    """`home` is a folder for Flower's files; `ca` is the authority of its certificate, for TLS."""

    def __init__(self, address: str, home: Path, ca: Path | None = None) -> None:
        self.address, self.home, self.ca = address, home.resolve(), ca
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self.home / "flwr"), "PATH": path}

    def write_connection(self) -> None:
        """Flower's own configuration, which names this SuperLink."""
        (self.home / "flwr").mkdir(parents=True, exist_ok=True)
        secure = (
            f"root-certificates = {_quote(str(self.ca.resolve()))}"
            if self.ca
            else "insecure = true"
        )
        names = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        text = f"{names}address = {_quote(self.address)}\n{secure}\n"
        write_atomic(self.home / "flwr" / "config.toml", text.encode())

    def submit(self, app: Path, run_config: Mapping[str, Any], nodes: int | None = None) -> str:
        """Submit the project; returns the run's id. `nodes`: how many Flower's simulation makes."""
        config = write_toml(self.home / "run-config.toml", run_config)
        simulated = ["--federation-config", f"num-supernodes={nodes}"] if nodes else []
        words = ["run", str(app), NAME, "--run-config", str(config), *simulated]
        return str(self.flwr(*words, "--format", "json")["run-id"])

    def status(self, run: str) -> str:
        """pending, starting, running, finished:completed, finished:failed or finished:stopped."""
        return str(
            self.flwr("list", NAME, "--run-id", run, "--format", "json")["runs"][0]["status"]
        )

    def log(self, run: str) -> str:
        """The log of the server of a run."""
        return remove_colours(self._run("flwr", "log", run, NAME, "--show").stdout)

    def reason(self, run: str, folder: Path) -> str:
        """Why a run failed, as the last line of its traceback; the whole log is kept.

        Once the server has asked nodes, only what it has written into the run folder counts: its
        log has texts of nodes, too. Before, a mistake is in the log alone.
        """
        log = self.log(run)
        write_atomic(self.home / "server.log", log.encode())
        begun = read_fields(folder / STATUS).get("flower_run") == run
        error = find_error(read_traceback(folder) if begun else log.splitlines())
        return error or f"see {self.home / 'server.log'}"

    def register(self, public_key: Path) -> None:
        """Let the SuperNode with this key in."""
        self.flwr("supernode", "register", str(public_key), NAME, "--format", "json")

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
            said = answer.get("error-message") or f"{done.stdout}{done.stderr}"
            said = " ".join(said.split())  # one line
            raise UserError(f"`flwr {' '.join(arguments[:2])}` failed: {said}")
        return dict(answer)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )

    def is_healthy(self) -> bool:
        """Whether it answers, with the certificate it should have."""
        with contextlib.suppress(OSError):
            return open_health(self.address, self.ca, timeout=2).status == 200
        return False

    def check(self) -> None:
        """Raise ConnectionError if it is known to be gone; here it is not known."""

    def revive(self) -> None:
        """Make sure that it answers, as far as that is up to us."""
        if not self.is_healthy():
            raise ConnectionError(f"the SuperLink at {self.address} does not answer")


def read_traceback(folder: Path) -> list[str]:
    """Of the error that ended the run of a folder; nothing where the server was killed."""
    if read_fields(folder / STATUS).get("state") != "failed":
        return []
    trace = read_fields(folder / FAILED).get("traceback")
    return [str(part) for part in trace] if isinstance(trace, list) else []


def read_fields(path: Path) -> dict[str, Any]:
    """Of a file that a server writes, or may never have written."""
    try:
        return read_json(path, check_object)
    except UserError:
        return {}


def find_error(trace: Iterable[str]) -> str:
    """The last part that names an error, in one line."""
    errors = [part for part in trace if re.match(r"[\w.]+(Error|TooFew)\b", part)]
    return one_line(errors[-1].strip()) if errors else ""


def read_address(home: Path) -> str:
    """Where the SuperLink is that `write_connection` named in this folder."""
    try:
        text = (home / "flwr" / "config.toml").read_text()
        return str(tomllib.loads(text)["superlink"][NAME]["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{home} does not say where the SuperLink is; make it with: fedsift flower certs, or"
            " mend it with: fedsift flower proxy"
        ) from None


def open_health(address: str, ca: Path | None, timeout: float) -> Any:
    """The answer to a request that every SuperLink answers."""
    trust = ssl.create_default_context(cafile=str(ca)) if ca else None
    handlers = [
        urllib.request.ProxyHandler({}),
        *([urllib.request.HTTPSHandler(context=trust)] if trust else []),
    ]
    url = f"{'https' if trust else 'http'}://{address}/health"
    return urllib.request.build_opener(*handlers).open(url, timeout=timeout)


def follow(
    link: SuperLink, run: str, folder: Path, done: int, rounds: int, look: float = 15.0
) -> Iterator[int]:
    """The number of rounds saved, when it has grown; until all are, or the run ended otherwise."""
    checked = time.monotonic()
    while done < rounds:
        time.sleep(0.3)
        if (now := rounds_played(folder)) > done:
            done = now
            yield done
            continue
        link.check()
        if time.monotonic() > checked + look:  # asking Flower takes seconds of work
            checked, status = time.monotonic(), _ask_status(link, run)
            if status.startswith("finished") and rounds_played(folder) < rounds:
                raise RunEnded(status, link.reason(run, folder))


def _ask_status(link: SuperLink, run: str) -> str:
    try:
        return link.status(run)
    except UserError:
        link.check()  # it may have ended while it was asked
        raise


def remove_colours(text: str) -> str:
    """Flower colours its lines wherever they go."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def write_toml(path: Path, values: Mapping[str, Any]) -> Path:
    """Flat values in a file that Flower reads: on its command line quotes would not survive."""
    lines = [f"{name} = {_quote(value)}" for name, value in values.items()]
    write_atomic(path, "\n".join([*lines, ""]).encode())
    return path


def _quote(value: Any) -> str:
    """A text, number or truth value as TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
