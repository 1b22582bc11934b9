"""What an algorithm must be able to do, and what some can do besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedsift.types.basics import Array, Model, Weights
from fedsift.types.parties import Client, Round, Server
from fedsift.types.samples import SoftLabels
from fedsift.types.work import Turn


class Algorithm(Protocol):
    """A federated algorithm: one turn for each kind of party. Only bytes cross between them.

    Memories are dataclasses that the algorithm names as `client_memory` and `server_memory`
    (see fedsift.memory), or plain dicts of arrays and tensors where it names none.
    """

    def start(self, r: Round) -> Server:
        """The server before the first round."""
        ...

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        """What each client of the cohort downloads at the start of the round."""
        ...

    def client_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[tuple[Any, bytes]]:
        """One client's round. Returns (memory, upload)."""
        ...

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> Any:
        """Decode an upload and check all that both ends know; WireError if it cannot be used.

        Returns what `server_turn` receives for this client.
        """
        ...

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Any]], r: Round
    ) -> Turn[Server]:
        """The server's round, given each client's id and checked upload. Returns the new server.

        Uploads are decoded one at a time as they are read; reading them again decodes them again.
        """
        ...

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        """The models whose accuracy is reported, by name."""
        ...


@runtime_checkable
class PeerToPeer(Protocol):
    """An algorithm without a server: a client's message goes to its `receivers`."""

    def receivers(self, client: int, r: Round) -> list[int]: ...


@runtime_checkable
class Forgets(Protocol):
    """An algorithm whose server keeps per-client state; `forget` drops that of one client."""

    def forget(self, server: Server, client: int) -> Server: ...


@runtime_checkable
class KeepsSecret(Protocol):
    """An algorithm whose server draws from a secret that clients must not know."""

    def set_secret(self, server: Server, secret: bytes) -> Server: ...


@runtime_checkable
class SharesLabels(Protocol):
    """An algorithm whose clients upload soft labels on public samples; a simulation scores them."""

    def uploaded_labels(self, upload: Any, r: Round) -> SoftLabels | None:
        """Those in a checked upload, with indexes into `r.public`; None where it has none."""
        ...


@runtime_checkable
class GoesThroughEdges(Protocol):
    """An algorithm whose uploads edge servers can join; `edges` are those it has."""

    edges: Any  # None: clients talk to the server

    def over_edges(self, edges: Any) -> Algorithm: ...


@dataclass(frozen=True, eq=False)
class LabelAnswer:
    """Soft labels before they are encoded: what a client says, and which rows of it it sends."""

    predicted: Array  # [N, C]: what its model predicts, read-only
    probs: Array  # [N, C]: what it says; an honest client says what its model predicts
    budget: int  # the most rows it sends
    max_bytes: int | None = None  # of the upload
    rows: Array | None = None  # the rows to send, the most wanted first; None: the sampler chooses
    chooses: bool = True  # whether it has a choice; else both ends know the rows
    received: Weights | None = None  # what its training started from
    memory: Any = None  # what the client remembers so far, as the algorithm defines
    asked: Array | None = None  # samples of an audit
    # [N]: the classes it answers if asked; None: as its model predicts, whatever it says elsewhere
    answers: Array | None = None


@dataclass(frozen=True, eq=False)
class WeightAnswer:
    """Weights before they are encoded, and how many samples the client says are behind them."""

    received: Weights  # what its training started from
    weights: Weights  # after its training
    samples: int  # how many it says are behind them
    memory: Any = None  # as of `LabelAnswer`


@runtime_checkable
class Attackable(Protocol):
    """An algorithm whose client turn has two halves, so that a simulation can alter an answer.

    `client_turn` is `answer_turn`, then `encode_answer`.
    """

    def answer_type(self, r: Round) -> type[LabelAnswer] | type[WeightAnswer]: ...

    def answer_turn(
        self, client: Client, memory: Any, download: bytes, r: Round
    ) -> Turn[LabelAnswer | WeightAnswer]:
        """What the client would upload: its training is done, nothing is encoded."""
        ...

    def encode_answer(self, client: Client, answer: Any, r: Round) -> tuple[Any, bytes]:
        """The client's memory, and its upload. An altered answer is encoded as any other."""
        ...

    def student_turn(self, client: Client, answer: Any, r: Round) -> Turn[Array]:
        """What the model that the client received predicts on the samples of its answer, [N, C]."""
        ...

    def overhear(self, upload: Any, r: Round) -> Any:
        """Of a checked upload: its SoftLabels with indexes as in answers, or (weights, samples)."""
        ...
