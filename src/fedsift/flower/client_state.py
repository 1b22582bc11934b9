"""A client's memory between its turns. A repeated, late or lost message does no harm.

The server says which round of a client it accepted last. The client continues from its memory after
that round. So a turn is a function of the message alone: asked again, it gives the same answer. An
upload that the server never got counts as never sent.
"""

from __future__ import annotations

import contextlib
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, RecordDict

from fedsift import files
from fedsift.checkpoints import tree_from_bytes, tree_to_bytes
from fedsift.flower.messages import NEVER
from fedsift.memory import from_tree, is_empty, to_tree
from fedsift.types import UserError

KEPT = 30  # days that the memory of a run is kept after its last turn on this node


class StateStore(Protocol):
    """Holds blobs by round."""

    def rounds(self) -> Iterable[int]: ...

    def get(self, round: int) -> bytes | None: ...

    def put(self, round: int, blob: bytes) -> None: ...

    def drop(self, round: int) -> None: ...


class DiskStore:
    """On the node's own disk: outlives the run, the SuperNode and the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        return [
            int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdecimal()
        ]

    def get(self, round: int) -> bytes | None:
        if self._file(round).is_file():  # a pipe would be waited for
            with contextlib.suppress(OSError):
                return self._file(round).read_bytes()
        return None

    def put(self, round: int, blob: bytes) -> None:
        make_private(self.folder)
        files.write_atomic(self._file(round), blob, 0o600)

    def drop(self, round: int) -> None:
        self._file(round).unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"


class RunStore:
    """In the state Flower keeps for a run: gone when the run or the SuperNode ends."""

    def __init__(self, state: RecordDict, run: str) -> None:
        if run not in state.config_records:
            state.config_records[run] = ConfigRecord()
        self.record = state.config_records[run]

    def rounds(self) -> list[int]:
        return [int(key) for key in self.record]

    def get(self, round: int) -> bytes | None:
        blob = self.record.get(str(round))
        return blob if isinstance(blob, bytes) else None

    def put(self, round: int, blob: bytes) -> None:
        self.record[str(round)] = blob

    def drop(self, round: int) -> None:
        del self.record[str(round)]


class ClientState:
    """At most two: after the round the server took up last, and after the newest round answered."""

    def __init__(self, store: StateStore) -> None:
        self.store = store

    @classmethod
    def of(cls, context: Context, run: str, client: int) -> ClientState:
        """In the folder the node's settings name as `memory`, else in the state of the run."""
        folder = context.node_config.get("memory")
        if not folder:
            return cls(RunStore(context.state, run))
        remove_old(Path(str(folder)), run, _days(context.node_config.get("memory-days", KEPT)))
        return cls(DiskStore(Path(str(folder), run, str(client))))

    def load(self, last: int, kind: type) -> Any:
        """The memory after round `last`, of the algorithm's `kind`; None if it is lost."""
        if last == NEVER:
            return kind()
        blob = self.store.get(last)
        with contextlib.suppress(Exception):  # a damaged file is a lost one
            return from_tree(kind, tree_from_bytes(blob)) if blob else None
        return None

    def save(self, round: int, last: int, memory: Any) -> None:
        """An answer to a message of long ago leaves everything as it is."""
        known = set(self.store.rounds())
        if is_empty(memory) or round < max(known, default=NEVER):
            return
        self.store.put(round, tree_to_bytes(to_tree(memory), round))
        for old in known - {round, last}:
            self.store.drop(old)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, for this user alone."""
    for part in [*reversed(folder.parents), folder]:
        with contextlib.suppress(FileExistsError):
            part.mkdir(0o700)


def remove_old(memory: Path, run: str, days: float) -> None:
    """Remove what other runs left, if no turn of theirs was taken for so many days.

    A node is not told when a run is finished, and a run that stands still can be resumed. So the
    time since its last turn decides.
    """
    for folder in _folders(memory, r"[0-9a-f]{32}"):
        with contextlib.suppress(OSError):  # another process may be at it
            if folder.name != run and time.time() - _last_change(folder) > days * 86400:
                _remove(folder)


def _folders(above: Path, name: str) -> Iterator[Path]:
    """Real ones of this name; a link is never followed."""
    with contextlib.suppress(OSError):
        for path in sorted(above.iterdir()):
            if re.fullmatch(name, path.name) and stat.S_ISDIR(path.lstat().st_mode):
                yield path


def _last_change(folder: Path) -> float:
    return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])


def _remove(run: Path) -> None:
    """Only what a `DiskStore` writes; where there is more, the folder stays."""
    for client in _folders(run, r"\d+"):
        for file in client.iterdir():
            if file.suffix == ".safetensors" or files.is_temporary(file):
                file.unlink()
        client.rmdir()
    run.rmdir()


def _days(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"memory-days must be a number above 0, not {value!r}")
    return float(value)
