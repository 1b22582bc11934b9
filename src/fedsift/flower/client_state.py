"""A client's memory between its turns. A repeated, late or lost message does no harm.

The server says which round of a client it accepted last. The client continues from its memory after
that round. So a turn is a function of the message alone: asked again, it gives the same answer. An
upload that the server never got counts as never sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, RecordDict

from fedsift import files
from fedsift.checkpoints import tree_from_bytes, tree_to_bytes
from fedsift.flower.messages import NEVER
from fedsift.memory import from_tree, is_empty, to_tree


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
        self.folder.mkdir(parents=True, exist_ok=True)
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
        return cls(
            DiskStore(Path(str(folder), run, str(client)))
            if folder
            else RunStore(context.state, run)
        )

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
