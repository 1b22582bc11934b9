"""A Ray cluster of one node on loopback, to try things out: started, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedsift import files
from fedsift.engines.spread.on_ray import ENVIRONMENT, ON_LOOPBACK, check_installed
from fedsift.types import UserError

SECONDS_TO_START, SECONDS_TO_END = 180.0, 15.0
NOTE, LOG = "cluster.json", "ray.log"


def home() -> Path:
    """A folder of this user; its path is short, because Ray keeps sockets there."""
    return Path(tempfile.gettempdir()) / f"fedsift-ray-{os.getuid()}"


def start(cores: int, memory: float = 0.5) -> str:
    """Start a head node with so many cores and so many GiB for data; its address."""
    check_installed()
    if (running := find()) is not None:
        raise UserError(f"a cluster runs already at {running['address']}; fedsift cluster down")
    folder = home()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to somebody else")
    address = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--port", address.split(":")[1], "--num-cpus", str(cores)]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--temp-dir", str(folder)]
    command += ["--object-store-memory", str(int(memory * 2**30))]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | ENVIRONMENT | ON_LOOPBACK,
        )
    note = {"address": address, "pid": process.pid, "born": _born(process.pid)}
    files.write_json(folder / NOTE, note)
    try:
        _wait_until_up(process, folder)
    except BaseException:
        stop()
        raise
    return address


def stop() -> str | None:
    """End what `start` has started; the address it had, None if nothing runs."""
    running = find()
    if running is None:
        return None
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            # the first to the leader, which ends the others; the second to all in its session
            (os.kill if sign is signal.SIGTERM else os.killpg)(running["pid"], sign)
        end = time.monotonic() + SECONDS_TO_END
        while find() is not None and time.monotonic() < end:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(running["pid"], os.WNOHANG)
            time.sleep(0.1)
    (home() / NOTE).unlink(missing_ok=True)
    address: str = running["address"]
    return address


def find() -> dict[str, Any] | None:
    """The cluster that runs, if one does."""
    try:
        note: dict[str, Any] = json.loads((home() / NOTE).read_text())
        return note if note["born"] is not None and _born(note["pid"]) == note["born"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _wait_until_up(process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + SECONDS_TO_START
    while b"This command will now block" not in (folder / LOG).read_bytes():
        if process.poll() is not None or time.monotonic() > end:
            raise UserError(f"Ray did not start; it says why in {folder / LOG}")
        time.sleep(0.2)


def _born(pid: int) -> str | None:
    """When a process began: with its number, no other process. None if it is gone."""
    try:
        state, *rest = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    except OSError:
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(int(pid))], capture_output=True, text=True
        )
        return done.stdout.strip() or None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
