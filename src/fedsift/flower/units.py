"""Files that keep a server and its nodes running: systemd units, a Dockerfile, compose files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path, PurePosixPath

from fedsift.files import write_atomic
from fedsift.flower.superlink import QUIET
from fedsift.types import UserError

FOLDER = "deploy"
# Nothing but the state folder can be written, and no right can be gained.
SANDBOX = """\
User=<USER>
WorkingDirectory=<STATE>
Environment=PATH=<PROGRAMS>/bin:/usr/bin:/bin HOME=<STATE> FLWR_HOME=<STATE>/flwr
Environment=<QUIET>
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=<PRIVATE_DEVICES>
ProtectKernelTunables=yes
ProtectControlGroups=yes
ReadWritePaths=<STATE>"""


def write_units(
    project: Path, programs: str, state: str, user: str, gpu: bool = False
) -> list[Path]:
    """Write them into the project's folder deploy/; they replace older ones.

    programs: the virtual environment that has fedsift
    state: the one folder that services may write
    """
    if not (project / "task.py").is_file():
        raise UserError(f"{project} is no project; make one with: fedsift flower new {project}")
    for path in (programs, state):
        if not PurePosixPath(path).is_absolute() or not re.fullmatch(r"[\w./-]+", path):
            raise UserError(f"{path!r} must be an absolute path of letters, digits and ._-")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", user):
        raise UserError(f"{user!r} is no name of a user")
    values = {"PROGRAMS": programs, "STATE": state, "USER": user}
    texts = fill_templates(values, gpu)
    folder = project / FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in texts]


def fill_templates(values: Mapping[str, str], gpu: bool) -> dict[str, str]:
    quiet = " ".join(f"{name}={value}" for name, value in QUIET.items() if name[:4] == "FLWR")
    sandbox = SANDBOX.replace("<QUIET>", quiet)
    sandbox = sandbox.replace("<PRIVATE_DEVICES>", "no" if gpu else "yes")
    for name, value in values.items():
        sandbox = sandbox.replace(f"<{name}>", value)
    texts = {}
    templates = resources.files("fedsift.flower").joinpath("deploy").iterdir()
    for file in sorted(templates, key=lambda file: file.name):
        text = file.read_text().replace("@SANDBOX@", sandbox)
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        texts[file.name] = text
    return texts
