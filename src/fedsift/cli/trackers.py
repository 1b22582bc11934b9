"""`--track`: runs are told to trackers while they go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedsift.cli.console import warn

Tell = Callable[[Path, int], None]


def read_trackers(text: str | None) -> tuple[str, ...]:
    """The names of `--track`; a mistake shows before anything is run."""
    if text is None:
        return ()
    from fedsift.tracking import check_names

    return check_names(text)


@contextlib.contextmanager
def follow_runs(folders: Iterable[Path], names: tuple[str, ...]) -> Iterator[Tell]:
    """Call what is given with a run folder and its finished rounds; earlier ones are told too."""
    if not names:
        yield lambda folder, rounds: None
        return
    from fedsift.runs import CONFIG, rounds_played
    from fedsift.tracking import Follower

    followers: dict[Path, Follower] = {}

    def tell(folder: Path, rounds: int) -> None:
        if folder not in followers:
            followers[folder] = Follower(folder, names, warn)
        followers[folder].follow(rounds)

    try:
        for folder in folders:
            if (folder / CONFIG).is_file() and (rounds := rounds_played(folder)):
                tell(folder, rounds)
        yield tell
    finally:
        for follower in followers.values():
            follower.close()
