"""What came from the clients of a round, and how the server reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsift.codecs import WireError
from fedsift.evaluation import LabelTally
from fedsift.federation.conversations import Listener
from fedsift.ledger import RoundBytes
from fedsift.types import Algorithm, Round, Server, SharesLabels, UserError

FEW = 5  # reasons that an error lists


class NothingUsable(UserError):
    """No upload of a round can be used."""

    def __init__(self, round: int, reasons: Mapping[int, str]) -> None:
        told = [f"client {client}: {why}" for client, why in sorted(reasons.items())]
        more = f"; and {len(told) - FEW} more" if len(told) > FEW else ""
        super().__init__(
            f"round {round} has no upload that can be used: {'; '.join(told[:FEW])}{more};"
            " the state before it is kept"
        )


@dataclass(frozen=True, eq=False)
class ClientResults:
    """What came from the clients of a round."""

    uploads: Mapping[int, bytes]
    memories: Mapping[int, Any]
    sent: RoundBytes
    # reported, of models that clients keep to themselves
    accuracies: Mapping[int, float] = field(default_factory=dict)
    checked: Mapping[int, Any] = field(default_factory=dict)  # uploads that are decoded already
    downloads: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CheckedUploads:
    """(client, upload), checked one at a time as the server asks for them.

    Reading them again checks them again. `missing` are left out, and who is refused is added to it.
    Where the classes of the public samples are known, soft labels are scored as they pass. A
    listener hears them.
    """

    algorithm: Algorithm
    server: Server
    results: ClientResults
    missing: dict[int, str]
    tally: LabelTally | None
    r: Round
    listener: Listener | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        if self.tally is not None:
            self.tally.clear()
        if self.listener is not None:
            self.listener.clear()
        heard = 0
        for client in self.results.uploads:
            if client in self.missing:
                continue
            try:
                upload = self._check(client)
            except WireError as error:
                self.missing[client] = f"its message is refused: {error}"
                continue
            heard += 1
            self._hear(client, upload)
            yield client, upload
        if not heard:
            raise NothingUsable(self.r.number, self.results.sent.missing | self.missing)

    def _check(self, client: int) -> Any:
        checked, upload = self.results.checked, self.results.uploads[client]
        if client in checked:
            return checked[client]
        return self.algorithm.check_upload(self.server, client, upload, self.r)

    def _hear(self, client: int, upload: Any) -> None:
        """The soft labels in it, if there are any and somebody wants to know."""
        nobody = self.tally is None and self.listener is None
        if nobody or not isinstance(self.algorithm, SharesLabels):
            return
        labels = self.algorithm.uploaded_labels(upload, self.r)
        if labels is None:
            return
        if self.tally is not None:
            self.tally.add(labels)
        if self.listener is not None:
            self.listener.add(client, labels)
