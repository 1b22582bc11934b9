"""Whole federations on both engines: the same parties, the same bytes, nearly the same numbers."""

from collections.abc import Callable
from typing import Any

import pytest

import fedsift
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import federate
from tests.helpers import parity
from tests.helpers.tiers import slow_but

LOCAL = fedsift.Recipe(
    epochs=2, batch=16, lr=0.02, optimizer="sgd"
)  # Adam divides by what may be next to nothing
BOTH: dict[str, Any] = {"local": LOCAL, "distill": LOCAL}
ALGORITHMS: dict[str, Callable[[], Any]] = {
    "fas": lambda: fedsift.fas(20, **BOTH),
    "fedavg": lambda: fedsift.fedavg(local=LOCAL),
    "fedpaq": lambda: fedsift.fedpaq(local=LOCAL),
    "feddf": lambda: fedsift.feddf(**BOTH),
    "fd_jeong": lambda: fedsift.fd_jeong(local=LOCAL),
    "mix2fld": lambda: fedsift.mix2fld(**BOTH),
    "ds_fl": lambda: fedsift.ds_fl(60, **BOTH),
    "cfd": lambda: fedsift.cfd(120, **BOTH),
    "gossip": lambda: fedsift.gossip(60, **BOTH),
}
MODELS: dict[str, Any] = {
    "cnn": "cnn",
    "mlp": "mlp",
    "resnet8": "resnet8(width=0.25)",
    "group norm": "resnet8(norm=group, width=0.25)",
    "mixed": {"cnn": 5, "mlp": 5},
}
ONE_ARCHITECTURE = ("fedavg", "fedpaq", "mix2fld")
QUICK = ("mlp", "mixed")  # the others too, with one algorithm
CASES = [
    pytest.param(name, model, marks=[] if model in QUICK or name == "fas" else pytest.mark.slow)
    for name in ALGORITHMS
    for model in MODELS
    if model != "mixed" or name not in ONE_ARCHITECTURE
]


def task():
    return fedsift.split(fedsift.load_dataset("digits"), private=300, public=120, test=500, seed=0)


def played(algorithm, engine, model="cnn", rounds=2):
    """Some rounds, and the uploads of each."""
    uploads: list[dict[int, bytes]] = [{} for _ in range(rounds)]
    honest = algorithm.check_upload

    def listen(server, client, upload, r):
        uploads[r.number][client] = upload
        return honest(server, client, upload, r)

    object.__setattr__(algorithm, "check_upload", listen)
    clients = fedsift.make_clients(task().private, 10, fedsift.Dirichlet(0.5), model, seed=0)
    cohort = 10 if isinstance(algorithm, fedsift.Gossip) else 5
    return list(
        federate(algorithm, clients, task(), rounds=rounds, cohort=cohort, seed=0, engine=engine)
    ), uploads


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name, model", CASES)
def test_a_federation_is_the_same_on_both_engines(name, model, device):
    """Every weight of every model after whole rounds, every byte of the ledger. Training differs by
    rounding, 1e-7 or so; in gossip, where every client is looked at, the sign of a ReLU's input
    next to nothing has flipped in one or two. On a GPU rounding is another, and bytes may differ
    where what is sent is what changed, or coded by what it is."""
    near, exact = (2e-5, True) if device == "cpu" else (2e-3, name not in ("cfd", "fedpaq"))
    near = 2e-3 if name == "gossip" else near
    engines = (
        SequentialEngine(threads=2),
        BatchedEngine(device, threads=2 if device == "cpu" else None),
    )
    (one, one_uploads), (two, two_uploads) = (
        played(ALGORITHMS[name](), engine, MODELS[model]) for engine in engines
    )
    assert len(one) == len(two) == 2
    for a, b, up, other in zip(one, two, one_uploads, two_uploads, strict=True):
        assert a.models.keys() == b.models.keys()
        assert parity.near(
            [b.models[m][1] for m in a.models], [state for _, state in a.models.values()], near
        )
        assert up.keys() == other.keys() == a.bytes.up.keys()
        if exact:
            assert a.bytes == b.bytes
        else:
            assert all(abs(len(up[id]) - len(other[id])) <= 0.1 * len(up[id]) + 8 for id in up)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    "model", slow_but(["cnn", "mlp", "resnet8(width=0.25)", "resnet20(width=0.25)"], "cnn", "mlp")
)
def test_a_round_of_every_network_and_optimiser_with_crops_and_a_decay(model, optimizer):
    """Adam divides by gradients that may be next to nothing, so a weight or two is off by some of
    its step of .002.
    """
    sgd = optimizer == "sgd"
    recipe = fedsift.Recipe(
        2, 16, 0.02 if sgd else 0.002, optimizer, augment="crop-flip", milestones=(1,)
    )
    engines = SequentialEngine(threads=2), BatchedEngine(threads=2)
    (one, _), (two, _) = (
        played(fedsift.fas(20, local=recipe, distill=recipe), e, model, 1) for e in engines
    )
    (a,), (b,) = one, two
    assert parity.near(
        [b.models[m][1] for m in a.models], [s for _, s in a.models.values()], 2e-5 if sgd else 1e-3
    )
    assert a.bytes == b.bytes and abs(a.accuracy - b.accuracy) < 0.005


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sampler", ["low-entropy", "mixed"])
def test_active_sampling_picks_the_same_samples_on_both_engines(sampler, device):
    """What a client picks shows in its upload: the indexes that decode from it. On a GPU two
    entropies may be a rounding apart."""
    from fedsift.codecs import CODECS

    def fas() -> Any:
        return fedsift.fas(20, sampler=sampler, **BOTH)

    clients = fedsift.make_clients(task().private, 10, fedsift.Dirichlet(0.5), seed=0)
    links = fedsift.Federation(fas(), clients, task(), 5, 0)
    picks = [
        {
            (number, id): CODECS["float32"]
            .decode(message, links.round(number).link(id))
            .index.tolist()
            for number, messages in enumerate(played(fas(), engine)[1])
            for id, message in messages.items()
        }
        for engine in (
            SequentialEngine(threads=2),
            BatchedEngine(device, threads=2 if device == "cpu" else None),
        )
    ]
    assert len(picks[0]) == 10 and picks[0].keys() == picks[1].keys()
    other = [who for who in picks[0] if picks[0][who] != picks[1][who]]
    assert len(other) <= (0 if device == "cpu" else 1)


@pytest.mark.slow
def test_the_batched_engine_learns_the_digits():
    """Ten clients of nearly equal data, eight rounds of FedAvg: 80 per cent and more."""
    data = fedsift.split(fedsift.load_dataset("digits"), private=800, public=100, seed=0)
    clients = fedsift.make_clients(data.private, 10, fedsift.Dirichlet(100.0), "cnn", seed=0)
    *_, last = federate(
        fedsift.fedavg(), clients, data, rounds=8, cohort=5, seed=0, engine=BatchedEngine(threads=2)
    )
    assert last.accuracy > 0.8
