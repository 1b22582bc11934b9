"""What a run was made with: versions, machine, commit, command."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsift import __version__


def environment(note: str = "") -> dict[str, Any]:
    return {
        "fedsift": __version__,
        "commit": commit_of(Path(__file__).resolve().parents[2]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "engine": note,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": shlex.join(["fedsift", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@cache
def commit_of(checkout: Path) -> str | None:
    """The commit fedsift was run from; None where it was installed.

    It is the value of FEDSIFT_COMMIT, or what git says in a checkout. "-dirty" means that its files
    were changed since; new files do not count.
    """
    if given := os.environ.get("FEDSIFT_COMMIT"):
        return given
    if not (checkout / ".git").exists():
        return None
    plain = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*words: str) -> str:
        asked = ["git", "-C", str(checkout), *words]
        env = plain | {"GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(
            asked, capture_output=True, text=True, check=True, timeout=10, env=env
        ).stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git(
            "ls-files", "--error-unmatch", "src/fedsift/environment.py"
        )  # else it is another project's checkout
        return git("describe", "--always", "--dirty", "--exclude=*")
    return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
