"""Whole federations on both engines: the same parties, the same bytes, nearly the same numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift.engines.batched import Batched
from fedsift.engines.sequential import Sequential
from fedsift.federation import federate

LOCAL, DISTILL = fedsift.Recipe(epochs=2, batch=16), fedsift.Recipe(epochs=2, batch=16)
ALGORITHMS: dict[str, Callable[[], Any]] = {
    "fas": lambda: fedsift.fas(20, local=LOCAL, distill=DISTILL),
    "fedavg": lambda: fedsift.fedavg(local=LOCAL),
    "ds_fl": lambda: fedsift.ds_fl(60, local=LOCAL, distill=DISTILL),
    "cfd": lambda: fedsift.cfd(120, local=LOCAL, distill=DISTILL),
}


def task():
    return fedsift.split(fedsift.load("digits"), private=300, public=120, test=500, seed=0)


def played(algorithm, engine, model="cnn"):
    """Two rounds, and who uploaded what in each."""
    said = []
    honest = algorithm.server_turn

    def listen(server, messages, r):
        said.append(dict(messages))
        return honest(server, messages, r)

    object.__setattr__(algorithm, "server_turn", listen)
    clients = fedsift.clients(task().private, 10, fedsift.Dirichlet(0.5), model, seed=0)
    return list(federate(algorithm, clients, task(), rounds=2, cohort=5, seed=0, engine=engine)), said


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_federation_is_the_same_on_both_engines(name, model):
    """Training differs by rounding, about 1e-6 a step. That may turn the most probable class of a test image next to a
    border: 0.02 is 10 of 500. Who takes part and how much is sent does not hang on it."""
    (one, one_said), (two, two_said) = (
        played(ALGORITHMS[name](), kind(threads=2), model) for kind in (Sequential, Batched)
    )
    for a, b, up, other in zip(one, two, one_said, two_said, strict=True):
        assert a.accuracy == pytest.approx(b.accuracy, abs=0.02)
        assert up.keys() == other.keys()
        if name != "cfd":
            assert a.bytes == b.bytes
        else:  # only changes are sent: a label that flips costs a few bytes
            assert all(abs(len(up[id]) - len(other[id])) <= 0.1 * len(up[id]) + 8 for id in up)


def test_active_sampling_picks_the_same_samples_on_both_engines():
    """What a client picks shows in its upload: the indexes that decode from it."""
    from fedsift.codecs import CODECS

    picks = []
    for kind in (Sequential, Batched):
        _, said = played(ALGORITHMS["fas"](), kind(threads=2))
        links = fedsift.Federation(
            ALGORITHMS["fas"](), fedsift.clients(task().private, 10, fedsift.Dirichlet(0.5), seed=0), task(), 5, 0
        )
        picks.append(
            {
                (number, id): CODECS["float32"].decode(message, links.round(number).link(id)).index.tolist()
                for number, messages in enumerate(said)
                for id, message in messages.items()
            }
        )
    same = [len(set(picks[0][who]) & set(picks[1][who])) / 20 for who in picks[0]]
    assert picks[0].keys() == picks[1].keys() and np.mean(same) > 0.95  # two entropies may be a rounding apart


@pytest.mark.slow
def test_the_batched_engine_learns_the_digits():
    """Ten clients of nearly equal data, eight rounds of FedAvg: 80 per cent and more."""
    data = fedsift.split(fedsift.load("digits"), private=800, public=100, seed=0)
    clients = fedsift.clients(data.private, 10, fedsift.Dirichlet(100.0), "cnn", seed=0)
    *_, last = federate(fedsift.fedavg(), clients, data, rounds=8, cohort=5, seed=0, engine=Batched(threads=2))
    assert last.accuracy > 0.8
