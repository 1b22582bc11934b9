"""A black box by address: rows are posted as JSON, probabilities are read.

    POST http://127.0.0.1:9000/predict   {"rows": [[5.1, 3.5], [4.9, 3.0]]}
    200                                  {"probabilities": [[0.9, 0.1], [0.8, 0.2]]}

Rows are the values of the data before they are normalised. A box is never trained. Whatever it
answers is bounded and checked, in size and in time; redirects are not followed. What goes wrong is
a ModelFailure: the client is missing in that round.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedsift.estimators.adapters import place_columns
from fedsift.types import Array, ModelFailure, UserError

SCHEMES = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
VALUES_PER_POST = 500_000  # numbers in one request
LONGEST_NUMBER = 40  # letters of a probability, with what is around it
ROOM = 10_000  # bytes of an answer beside its numbers


class NoAnswer(ModelFailure):
    """It was given its time, and would be given it again."""


@dataclass(frozen=True)
class Remote:
    """A black box that is asked over HTTP.

    address: where rows are posted, http://... or https://...
    timeout: seconds that an answer may take in all
    retries: how often it is asked again after a failure; not after a timeout, so that one that
        hangs is waited for once
    """

    address: str
    timeout: float = 30.0
    retries: int = 2

    def __post_init__(self) -> None:
        check_address(self.address)
        if not self.timeout > 0 or self.retries < 0:
            raise UserError("a black box needs a timeout above 0 and 0 or more retries")

    def __call__(self, shape: tuple[int, ...], classes: int) -> Remote:
        """As a factory of models has it: every client asks the same box."""
        return self

    def predict(self, rows: Array, classes: int) -> Array:
        """Checked probabilities [n, C] of raw rows [n, F]."""
        size = max(1, VALUES_PER_POST // max(1, rows.shape[1]))
        pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
        return np.concatenate([self._ask_patiently(piece, classes) for piece in pieces])

    def _ask_patiently(self, rows: Array, classes: int) -> Array:
        for attempt in range(self.retries + 1):
            try:
                return self._ask(rows, classes)
            except NoAnswer:
                raise
            except ModelFailure:
                if attempt == self.retries:
                    raise
                time.sleep(min(0.2 * 2**attempt, 5.0))
        raise AssertionError

    def _ask(self, rows: Array, classes: int) -> Array:
        body = json.dumps({"rows": rows.tolist()}, allow_nan=False).encode()
        most = len(rows) * classes * LONGEST_NUMBER + ROOM
        return read_answer(self._post(body, most), len(rows), classes)

    def _post(self, body: bytes, most: int) -> bytes:
        """The body of the answer, of at most so many bytes."""
        url = urlsplit(self.address)
        connection = SCHEMES[url.scheme](url.hostname or "", url.port, timeout=self.timeout)
        try:
            connection.connect()
            with _deadline(connection.sock, self.timeout):
                path = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    moved = "; redirects are not followed" if 300 <= answer.status < 400 else ""
                    raise ModelFailure(f"the black box answers with status {answer.status}{moved}")
                content = answer.read(most + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError):
                told = f"the black box cannot be asked (no answer in {self.timeout:g} s)"
                raise NoAnswer(told) from None
            told = f"the black box cannot be asked ({type(error).__name__})"
            raise ModelFailure(told, str(error)) from None
        finally:
            connection.close()
        if len(content) > most:
            raise ModelFailure(f"the black box answers with more than {most} bytes")
        return content


@contextlib.contextmanager
def _deadline(conversation: socket.socket, seconds: float) -> Iterator[None]:
    """End a conversation that takes too long as a whole, however it trickles."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        with contextlib.suppress(OSError):
            conversation.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if over.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    if over.is_set():
        raise TimeoutError


def read_answer(content: bytes, rows: int, classes: int) -> Array:
    """The probabilities in an answer, which may be anything."""
    try:
        told: Any = json.loads(content)
    except (ValueError, RecursionError):
        seems = " but HTML" if content.lstrip()[:1] == b"<" else ""
        raise ModelFailure(f"the black box answers with something that is no JSON{seems}") from None
    found = told.get("probabilities") if isinstance(told, dict) else told
    try:
        table = np.array(found, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ModelFailure("the black box answers without a table of numbers") from None
    return place_columns(table, np.arange(classes), rows, classes)


def check_address(address: str) -> None:
    """http or https, a host, and no secrets: an address is shown in tables and logs."""
    try:
        url = urlsplit(address)
        there = url.scheme in SCHEMES and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        there = False
    if not there or any(ord(letter) <= 32 for letter in address):
        raise UserError(f"cannot read the address {address!r}; write http://HOST:PORT/PATH")
    if url.username or url.password:
        raise UserError("an address with a password would be shown in tables; leave it out")


def is_address(text: Any) -> bool:
    return isinstance(text, str) and text.partition("://")[0] in SCHEMES and "://" in text
