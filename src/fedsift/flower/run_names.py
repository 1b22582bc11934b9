"""The names under which clients remember a run: another one for each, and only it is told.

Nodes can send messages to each other in the server's name, if they know whom to send them to
(docs/security.md). Such a message cannot name the memory of another client.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift import files
from fedsift.flower import messages
from fedsift.runs.folder import read_json

FILE = "flower.json"  # in the run folder


@dataclass(frozen=True)
class RunNames:
    secret: str  # 32 hexadecimal digits; never leaves the server

    @classmethod
    def of(cls, folder: Path) -> RunNames:
        """Of the run in this folder, also after it is resumed."""
        path = folder / FILE
        if not path.is_file():
            files.write_atomic(path, json.dumps({"run": uuid.uuid4().hex}).encode(), 0o600)
        return cls(read_json(path, _check))

    def of_client(self, client: int) -> str:
        return hashlib.sha256(f"{self.secret} {client}".encode()).hexdigest()[:32]


def _check(content: Any) -> str:
    run = content.get("run") if isinstance(content, dict) else None
    if not isinstance(run, str) or not messages.is_token(run):
        raise ValueError("run must be a name of 32 hexadecimal digits")
    return run
