"""The states that a run folder keeps: after its last round, and the models of its best one."""

from __future__ import annotations

from pathlib import Path

from fedsift.checkpoints import check_size, from_bytes, rounds_of
from fedsift.federation import FederationState
from fedsift.runs.folder import BEST, CHECKPOINT
from fedsift.types import UserError

LONGEST = 1000  # letters of an error


def rounds_played(folder: Path) -> int:
    """How many rounds of a run, perhaps of another process, are saved for good."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return 0
    try:
        with open(path, "rb") as file:
            return rounds_of(file)
    except Exception as error:  # as below
        raise UserError(f"cannot read {path}: {describe_error(error)}") from None


def last_state(folder: Path) -> FederationState | None:
    """All that is needed to resume."""
    return _read_state(folder / CHECKPOINT)


def best_state(folder: Path) -> FederationState | None:
    """The server's models of the best round, and nothing else."""
    return _read_state(folder / BEST)


def _read_state(path: Path) -> FederationState | None:
    if not path.is_file():
        return None
    try:
        with open(path, "rb") as file:
            check_size(file)
            file.seek(0)
            return from_bytes(file.read())
    except Exception as error:  # a damaged file fails in many ways; the user needs one answer
        raise UserError(f"cannot read {path}: {describe_error(error)}") from None


def describe_error(error: Exception) -> str:
    """One line: the kind of error, unless the user can fix it, and its text."""
    text = " ".join(str(error).split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."  # it may quote a stranger
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")
