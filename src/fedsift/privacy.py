"""What uploads tell a curious server about the private labels of their clients, measured.

A simulation knows the truth. Here a federation is run as always, and everything that its server
receives is kept. Three simple attacks then guess the class shares of every client:

mean    the mean of its soft labels, over that of all clients: a class that it says more often
counts  how often each class is the likeliest in its uploads; quotas of the sampler are undone
picks   which public samples it chose, by their true classes; quotas are undone

They are lower bounds: somebody who tries harder learns more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsift.federation import Federation, start_federations
from fedsift.numerics import entropy
from fedsift.samplers import OwnClasses, mixed
from fedsift.turns import run_turns
from fedsift.types import Array, Engine, Round, Server, SharesLabels, SoftLabels, Turn, UserError

ATTACKS = ("mean", "counts", "picks")
DOUBT = 0.05  # of every guess is spread evenly: no class is ever ruled out


@dataclass
class Overheard:
    """What a server received from each client, upload by upload."""

    labels: dict[int, list[SoftLabels]] = field(default_factory=dict)
    bytes: dict[int, list[int]] = field(default_factory=dict)


class Listener:
    """An algorithm that does what another one does, and keeps the soft labels that pass."""

    def __init__(self, algorithm: Any, overheard: Overheard) -> None:
        self._algorithm, self._overheard = algorithm, overheard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, Any]], r: Round
    ) -> Turn[Server]:
        turn: Turn[Server] = self._algorithm.server_turn(server, self._listen(uploads, r), r)
        return turn

    def _listen(self, uploads: Iterable[tuple[int, Any]], r: Round) -> Iterator[tuple[int, Any]]:
        for client, upload in uploads:
            if labels := self._algorithm.uploaded_labels(upload, r):
                self._overheard.labels.setdefault(client, []).append(labels)
            yield client, upload


def overhear(federations: Sequence[Federation], rounds: int, engine: Engine) -> list[Overheard]:
    """Run all federations side by side; what the server of each received."""
    found = [Overheard() for _ in federations]
    tapped = []
    for federation, overheard in zip(federations, found, strict=True):
        if not isinstance(federation.algorithm, SharesLabels):
            raise UserError("the clients of this algorithm upload no soft labels; audit fd or fas")
        listener: Any = Listener(federation.algorithm, overheard)
        tapped.append(replace(federation, algorithm=listener))
    states = [_or_raise(state) for state in start_federations(tapped, engine)]
    for _ in range(rounds):
        turns = [one.round_turn(state) for one, state in zip(tapped, states, strict=True)]
        records = [_or_raise(outcome) for outcome in run_turns(turns, engine)]
        for overheard, record in zip(found, records, strict=True):
            for client, size in record.bytes.up.items():
                overheard.bytes.setdefault(client, []).append(size)
        states = [record.state for record in records]
    return found


def _or_raise(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


# --- the attacks ---


def guess_shares(
    attack: str,
    uploads: Mapping[int, Sequence[SoftLabels]],
    sampler: Any,
    truth: Array,
    classes: int,
) -> dict[int, Array]:
    """Client -> its guessed class shares, [C]. `truth`: the classes of the public samples."""
    if attack == "mean":
        means = {id: _mean(of) for id, of in uploads.items()}
        usual = np.mean(list(means.values()), axis=0)
        found = {id: mean / np.maximum(usual, 1e-9) for id, mean in means.items()}
    elif attack == "counts":
        found = {id: _count(of, sampler, classes) for id, of in uploads.items()}
    else:
        there = np.maximum(np.bincount(truth, minlength=classes), 1)
        found = {id: _count_picks(of, truth, classes) / there for id, of in uploads.items()}
    power = sampler.power if isinstance(sampler, OwnClasses) and attack != "mean" else 1.0
    if power > 0:
        found = {id: guess ** (1 / power) for id, guess in found.items()}
    return {id: doubt(guess) for id, guess in found.items()}


def doubt(guess: Array) -> Array:
    """Shares that sum to 1, none of them 0; without any evidence they are even."""
    total = guess.sum()
    shares = guess / total if total > 0 else np.full(len(guess), 1 / len(guess))
    mixed_in: Array = (1 - DOUBT) * shares + DOUBT / len(guess)
    return mixed_in


def _mean(uploads: Sequence[SoftLabels]) -> Array:
    mean: Array = np.concatenate([labels.probs for labels in uploads]).astype(float).mean(0)
    return mean


def _count(uploads: Sequence[SoftLabels], sampler: Any, classes: int) -> Array:
    counts = np.zeros(classes)
    for labels in uploads:
        probs = _sure_half(labels.probs) if sampler is mixed else labels.probs
        counts += np.bincount(probs.argmax(1), minlength=classes)
    return counts


def _sure_half(probs: Array) -> Array:
    """The rows that `mixed` chose by the client's own labels are sure; the others are random.
    Hard labels do not tell them apart.
    """
    unsure = entropy(probs)
    if np.ptp(unsure) < 1e-6:
        return probs
    return probs[np.argsort(unsure, kind="stable")[: (len(probs) + 1) // 2]]


def _count_picks(uploads: Sequence[SoftLabels], truth: Array, classes: int) -> Array:
    index = np.concatenate([labels.index for labels in uploads])
    return np.bincount(truth[index], minlength=classes).astype(float)


# --- how good the guesses are ---


def divergence(truth: Array, guess: Array) -> float:
    """KL(truth || guess) in nats."""
    there = truth > 0
    return float((truth[there] * np.log(truth[there] / guess[there])).sum())


def score(federation: Federation, overheard: Overheard) -> dict[str, Any]:
    """Means over the clients that were heard: every attack beside guesses without any upload."""
    truth = federation.task.public_labels
    if truth is None:
        raise UserError("the classes of the public samples are not known; leave out public_from")
    counts = {id: federation.clients[id].label_counts for id in sorted(overheard.labels)}
    shares = {id: count / count.sum() for id, count in counts.items()}
    classes = federation.task.private.classes
    sampler = getattr(federation.algorithm, "sampler", None)
    first = {id: of[:1] for id, of in overheard.labels.items()}
    found: dict[str, Any] = {}
    for attack in ATTACKS:
        for name, seen in ((attack, overheard.labels), (f"{attack}_first", first)):
            found[name] = _rate(shares, guess_shares(attack, seen, sampler, truth, classes))
    usual: Array = np.mean(list(shares.values()), axis=0)
    found["even"] = _rate(shares, dict.fromkeys(shares, np.full(classes, 1 / classes)))
    found["usual"] = _rate(shares, dict.fromkeys(shares, usual))
    return found | {"clients": len(shares), "bytes": _correlate_bytes(shares, overheard.bytes)}


def _rate(truth: Mapping[int, Array], guesses: Mapping[int, Array]) -> dict[str, float]:
    """kl: the mean divergence; top: how often the largest class of a client is found."""
    kl = [divergence(shares, guesses[id]) for id, shares in truth.items()]
    top = [guesses[id].argmax() == shares.argmax() for id, shares in truth.items()]
    return {"kl": round(float(np.mean(kl)), 4), "top": round(float(np.mean(top)), 4)}


def _correlate_bytes(truth: Mapping[int, Array], sizes: Mapping[int, Sequence[int]]) -> float:
    """Between a client's mean bytes per upload and the entropy of its labels; 0 if all are equal.
    This is what a ledger alone tells.
    """
    mean = np.array([np.mean(sizes[id]) for id in truth])
    spread = np.array([float(entropy(shares)) for shares in truth.values()])
    if min(np.ptp(mean), np.ptp(spread)) < 1e-9:
        return 0.0
    return round(float(np.corrcoef(mean, spread)[0, 1]), 4)
