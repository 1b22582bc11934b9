"""Soft labels up: which rows a client sends, in at most so many bytes, and how they are read.

An upload is three parts: answers to an audit, claims of votes, soft labels. The first two are
empty unless the algorithm asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fedsift.aggregators import AuditAnswers
from fedsift.algorithms.audits import encode_answers, split_answers
from fedsift.algorithms.votes import Votes
from fedsift.codecs import SoftLabelCodec, WireError
from fedsift.numerics import distinct
from fedsift.samplers import DERIVED, Sampler
from fedsift.types import Array, Client, LabelAnswer, Link, Round, SoftLabels, UserError

TRIES, CLOSE = 8, 0.98  # how often a budget is tried, and what is close enough to the bytes allowed


class Upload(NamedTuple):
    labels: SoftLabels
    reference: SoftLabels | None  # of a delta uplink, for the client's next message
    answers: AuditAnswers | None = None  # to an audit


@dataclass(frozen=True)
class SoftLabelUplink:
    sampler: Sampler
    budget: int  # the most rows
    max_bytes: int | None
    codec: SoftLabelCodec
    votes: Votes

    def encode(
        self, client: Client, answer: LabelAnswer, reference: SoftLabels | None, r: Round
    ) -> tuple[bytes, SoftLabels | None]:
        """The upload, and the reference of a delta codec for the next one."""
        encode = partial(self._pick_and_encode, client, answer, reference, r)
        return fit_to_bytes(encode, answer.budget, answer.max_bytes)

    def decode(
        self, client: int, upload: bytes, reference: SoftLabels | None, asked: Array, r: Round
    ) -> Upload:
        """`asked` are the samples of an audit."""
        if self.max_bytes is not None and len(upload) > self.max_bytes:
            raise WireError(f"an upload of {len(upload)} bytes where {self.max_bytes} are allowed")
        said, answers, upload = split_answers(upload, len(asked), r.classes)
        claims, message = self.votes.split(upload, r.classes, self.budget)
        link = replace(self._link(client, r), before=answers + claims)
        labels, reference = self.codec.decode_stateful(message, link, reference)
        answered = AuditAnswers(asked, said) if len(asked) else None
        return Upload(self.votes.decode(claims, labels), reference, answered)

    def _pick_and_encode(
        self,
        client: Client,
        answer: LabelAnswer,
        reference: SoftLabels | None,
        r: Round,
        budget: int,
    ) -> tuple[bytes, SoftLabels | None]:
        """The upload with at most `budget` soft labels, and the reference for the next one."""
        picks = check_picks(self._pick(client, answer, r, budget), budget, len(r.public))
        labels = SoftLabels(picks, answer.probs[picks])
        claims = self.votes.encode(labels.probs, client.label_counts)
        before = _answer_audit(answer, r) + claims
        link = replace(r.link(client.id), before=before)
        message, reference = self.codec.encode_stateful(labels, link, reference)
        return before + message, reference

    def _pick(self, client: Client, answer: LabelAnswer, r: Round, budget: int) -> Array:
        """The rows to send. Where the server can derive them, nobody has a choice."""
        if answer.rows is None or not answer.chooses:
            return self.sampler(answer.predicted, client.label_counts, budget, r.draws(client.id))
        return answer.rows[:budget]

    def _link(self, client: int, r: Round) -> Link:
        """What the server knows of an upload: the most rows, and which ones if both ends draw them.

        Where nothing shortens uploads, drawn rows are exactly as many as the budget.
        """
        drawn = DERIVED.index(self.sampler) if self.sampler in DERIVED else None
        exact = drawn is not None and self.max_bytes is None
        least = self.budget if exact else 1
        return replace(r.link(client), fewest=least, most=self.budget, drawn=drawn)


def _answer_audit(answer: LabelAnswer, r: Round) -> bytes:
    """The classes that the client's model predicts on the samples of an audit, if it is honest."""
    if answer.asked is None:
        return b""
    said = answer.predicted.argmax(1) if answer.answers is None else answer.answers
    return encode_answers(said[answer.asked], r.classes)


def fit_to_bytes(
    encode: Callable[[int], tuple[bytes, SoftLabels | None]], budget: int, most: int | None
) -> tuple[bytes, SoftLabels | None]:
    """The upload with the largest budget found that stays within `most` bytes.

    Length grows about linearly with the budget, so each try is placed by the last ones. A sampler
    that cannot fill its budget breaks that rule: then the budget is halved until it fits.
    """
    found = encode(budget)
    if most is None or len(found[0]) <= most:
        return found
    low, high = 0, budget  # `low` fits, `high` does not
    length, best, left = len(found[0]), None, TRIES
    while high - low > 1 and (best is None or left > 0):
        by_length = best is None and left > 0
        guess = int(high * most / length * CLOSE) if by_length else (low + high) // 2
        budget, left = min(max(guess, low + 1), high - 1), left - 1
        found = encode(budget)
        if len(found[0]) > most:
            high, length = budget, len(found[0])
            continue
        if best is None and left < 0:  # found by halving: it can be far below
            left = TRIES // 2
        low, best = budget, found
        if len(found[0]) >= CLOSE * most:
            break
    if best is None:
        raise UserError(f"one soft label takes {length} bytes; bytes = {most} is too few")
    return best


def check_picks(picks: Array, budget: int, samples: int) -> Array:
    """The picks as an ascending set, or a clear error for whoever wrote the sampler."""
    try:
        index = distinct(np.asarray(picks, np.int64))
    except (TypeError, ValueError):
        raise UserError(
            f"the sampler returned {type(picks).__name__}, not indexes of public samples"
        ) from None
    if (
        len(index) != len(picks)
        or not 0 < len(index) <= budget
        or index[0] < 0
        or index[-1] >= samples
    ):
        raise UserError(
            f"the sampler returned {len(picks)} picks ({len(index)} distinct); "
            f"it must return 1 to {budget} distinct indexes below {samples}"
        )
    return index
