"""A package of npm or PyPI as an archive. It is not installed, and nothing in it is run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 900  # seconds for a package


class Failed(Exception):
    """No package came; in words why."""


def pack_with_npm(spec: str, folder: Path, announce: Callable[[str], None]) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise Failed("npm is not installed")
    announce(spec)
    command = [npm, "pack", "--ignore-scripts", "--silent", spec]
    return _run(command, folder, f"npm pack {spec}", "*.tgz")


def pack_with_pip(spec: str, folder: Path, announce: Callable[[str], None]) -> Path:
    """The wheel alone, without what it needs."""
    announce(spec)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", ".", spec]
    return _run(command, folder, f"pip download {spec}", "*.whl")


def _run(command: list[str], folder: Path, what: str, pattern: str) -> Path:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{what}: {error}") from None
    archives = list(folder.glob(pattern))
    if done.returncode or not archives:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{what} failed{': ' + said[-1] if said else ''}")
    return archives[0]


WAYS = {"npm": pack_with_npm, "PyPI": pack_with_pip}
