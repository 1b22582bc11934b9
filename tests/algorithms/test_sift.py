"""sift: which mode it takes, the cap on every upload, and what it reaches on the digits."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift.algorithms.averages import Averaging
from fedsift.algorithms.sift import Sift
from fedsift.algorithms.soft_labels import SoftLabelFD
from fedsift.algorithms.votes import Votes
from fedsift.algorithms.weights import FedAvg
from fedsift.codecs import CODECS, Updates, WireError, quantized
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation
from fedsift.turns import run_turn
from fedsift.types import Link, Recipe, SoftLabels, UserError
from tests.helpers import federations, toys


def many_small_tensors(shape, classes):
    return nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(40)))


def system(sift: Sift, models=None):
    """The algorithm that does the work."""
    return sift._system(toys.a_round(models=models))


def test_weights_are_taken_where_they_fit_into_the_bytes():
    """200 weights at 0.6 bits take 15 bytes, and a message has 24 beside them."""
    wide = [toys.model(toys.linear, (2, 50), 2)]
    assert isinstance(system(fedsift.sift(bytes=38), wide), SoftLabelFD)
    assert isinstance(system(fedsift.sift(bytes=40, mode="labels"), wide), SoftLabelFD)
    weights = system(fedsift.sift(bytes=40), wide)
    assert isinstance(weights, FedAvg) and weights.up == Updates(8 * 16 / 200)
    assert system(fedsift.sift(bytes=10**6), wide).up == Updates(16)
    with pytest.raises(UserError, match="weights do not fit into 25 bytes; give more"):
        system(fedsift.sift(bytes=25, mode="weights"), wide)


def test_mixed_models_exchange_labels_whatever_the_bytes():
    models = [toys.model(), toys.model(toys.with_batch_norm)]
    assert isinstance(system(fedsift.sift(bytes=10**6), models), SoftLabelFD)


def test_the_parts_are_those_of_the_method():
    labels = system(fedsift.sift(bytes=100, mode="labels"))
    assert labels.local.prior == 1.0 and labels.replay is None and labels.ema == 0.5
    assert labels.max_bytes == 100 and labels.budget == 4  # the toy's whole public set
    local = Recipe(prior=0.3)
    assert system(fedsift.sift(mode="labels", local=local)).local.prior == 0.3
    assert system(fedsift.sift(mode="labels", prior=0)).local.prior == 0
    assert labels.distill.mixup == 0.2
    assert system(fedsift.sift(mode="labels", distill=Recipe(mixup=1.0))).distill.mixup == 1.0


def test_votes_reach_the_labels():
    assert system(fedsift.sift(mode="labels")).votes == Votes("equal", 4)
    asked = fedsift.sift(mode="labels", votes="expertise", vote_bits=6)
    assert system(asked).votes == Votes("expertise", 6)


def test_counts_and_clip_reach_the_weights():
    assert system(fedsift.sift(bytes=10**6)).averaging == Averaging("claimed", None)
    asked = fedsift.sift(bytes=10**6, counts="equal", clip=2.0)
    assert system(asked).averaging == Averaging("equal", 2.0)
    with pytest.raises(UserError, match="clip is a multiple of the median update"):
        fedsift.sift(clip=0)


def test_a_long_update_of_sift_is_clipped():
    """Two of three updates are 1 long, one is 9: with clip=1 all three are."""
    r, algorithm = toys.a_round(), fedsift.sift(bytes=10**6, mode="weights", clip=1.0)
    server = algorithm.start(r)
    base = server.students[r.models[0].name]
    name, weight = next(iter(base.items()))
    step = torch.zeros_like(weight)
    step.view(-1)[0] = 1.0
    uploads = {id: (base | {name: weight + n * step}, 10) for id, n in enumerate((1, 1, 9))}
    after = run_turn(algorithm.server_turn(server, uploads.items(), r), SequentialEngine())
    moved = after.students[r.models[0].name][name] - weight
    assert moved.view(-1)[0] == pytest.approx(1.0, abs=1e-5)


def test_what_a_mode_does_not_use_is_told_with_the_reason():
    r = toys.a_round()
    by_bytes = fedsift.sift(bytes=10**6).explain_unused(r)
    assert by_bytes["sampler"] == "1000000 bytes hold weights; set mode=labels"
    of_labels = {"sampler", "aggregator", "codec", "mixup", "ema", "votes", "vote_bits", "distill"}
    replaced = {"local.prior": by_bytes.pop("local.prior")}
    assert by_bytes.keys() == of_labels | {"public_weight"} and len(set(by_bytes.values())) == 1
    asked = fedsift.sift(bytes=10**6, mode="weights").explain_unused(r)
    assert asked == dict.fromkeys(by_bytes, "mode=weights") | replaced
    labels = fedsift.sift(mode="labels").explain_unused(r)
    of_weights = {"counts", "clip", "average"}
    always = {"local.prior", "distill.mixup"} | of_weights
    assert labels.keys() == {"vote_bits", "teach", "absent", "public_weight"} | always
    told = fedsift.sift(mode="labels", votes="expertise", download="soft-labels")
    assert told.explain_unused(r).keys() == {"public_weight"} | always


def test_a_term_of_a_recipe_that_is_0_is_told_to_be_replaced():
    """0 is the default of a recipe, so sift cannot tell it from a term that was not given."""
    r = toys.a_round()
    why = "0 leaves it to sift's own value; set algorithm.prior=0"
    told = fedsift.sift(mode="labels", local=Recipe(prior=0.0)).explain_unused(r)
    assert told["local.prior"] == why and told["distill.mixup"].endswith("algorithm.mixup=0")
    weights = fedsift.sift(bytes=10**6).explain_unused(r)
    assert weights["local.prior"] == why and "distill.mixup" not in weights
    given = fedsift.sift(mode="labels", local=Recipe(prior=2.0), mixup=0).explain_unused(r)
    assert not given.keys() & {"local.prior", "distill.mixup"}


@pytest.mark.parametrize(
    ("classes", "two_bits_from", "four_bits_from"),
    [
        (2, 7, 10),  # log 2 / log 10 = .301: .602 and .903 bits
        (10, 20, 30),  # 2 and 3 bits
        (50, 34, 164),  # log 50 / log 10 = 1.699: 3.398 bits; 49 / 9 x 3 = 16.33
        (100, 40, 330),  # log 100 / log 10 = 2: 4 bits; 99 / 9 x 3 = 33
    ],
)
def test_labels_are_softer_where_there_are_bits_enough(classes, two_bits_from, four_bits_from):
    """Eighty public samples: each byte is a tenth of a bit for each."""
    r = replace(toys.a_round(public=[(1.0, 0.0)] * 80), classes=classes)
    steps = (two_bits_from, four_bits_from)
    sizes = [size for step in steps for size in (step - 1, step)]
    chosen = [fedsift.sift(bytes=size, mode="labels")._system(r).up for size in sizes]
    assert chosen == [CODECS["hard"], quantized(2), quantized(2), quantized(4)]
    asked = fedsift.sift(bytes=four_bits_from, mode="labels", codec="hard")
    assert asked._system(r).up == CODECS["hard"]


@pytest.mark.parametrize(("classes", "most"), [(2, 2000), (9, 2000), (10, 800), (100, 800)])
def test_with_few_classes_all_samples_may_be_labelled(classes, most):
    """2,000 labels of two classes are 250 bytes, and need no indexes."""
    r = replace(toys.a_round(public=[(1.0, 0.0)] * 2000), classes=classes)
    assert fedsift.sift(bytes=300, mode="labels")._system(r).budget == most
    rows = np.eye(2)[np.random.default_rng(0).integers(0, 2, 2000)]
    message = CODECS["hard"].encode(SoftLabels(np.arange(2000), rows), Link(0, 2000, 2))
    assert len(message) <= 300


def test_who_asks_for_soft_labels_down_gets_them_whatever_the_bytes():
    asked = fedsift.sift(bytes=10**6, download="soft-labels")
    assert isinstance(system(fedsift.sift(bytes=10**6)), FedAvg)
    assert isinstance(system(asked), SoftLabelFD)
    with pytest.raises(UserError, match="mode=weights has no soft labels to download"):
        fedsift.sift(mode="weights", download="soft-labels")


def test_what_sift_cannot_do_is_said_in_words():
    models = [toys.model(), toys.model(toys.with_batch_norm)]
    with pytest.raises(UserError, match="weights need one model for all clients, not"):
        system(fedsift.sift(bytes=10**6, mode="weights"), models)
    for odd in (0, -5):
        with pytest.raises(UserError, match=f"1 or more, not {odd}"):
            fedsift.sift(bytes=odd)


def test_weights_that_are_longer_than_the_bytes_are_refused_at_both_ends():
    """200 tensors of 2 entries or 1: an update has a byte for each, whatever the bits."""
    deep = toys.model(many_small_tensors)
    r, sift = toys.a_round(models=[deep]), fedsift.sift(bytes=40, mode="weights")
    server = sift.start(r)
    client = toys.client(factory=many_small_tensors)
    download = sift.prepare_downloads(server, [client], r)[client.id]
    with pytest.raises(UserError, match=r"weights take .* bytes at least; give more than 40"):
        run_turn(sift.client_turn(client, sift.client_memory(), download, r), SequentialEngine())
    with pytest.raises(WireError, match="an upload of 41 bytes where 40 are allowed"):
        sift.check_upload(server, 0, bytes(41), r)


def test_a_sampler_that_cannot_be_hashed_serves():
    """A plain dataclass compares by value and has no hash."""

    @dataclass
    class First:
        def __call__(self, probs, label_counts, budget, draws):
            return np.arange(budget)

    assert system(fedsift.sift(mode="labels", sampler=First())).sampler == First()


def test_an_unknown_mode_is_refused():
    with pytest.raises(UserError, match="unknown mode 'label'; did you mean 'labels'"):
        fedsift.sift(mode="label")


@pytest.mark.parametrize("model", ["mlp", {"mlp": 3, toys.linear: 3}])
@pytest.mark.parametrize("download", ["weights", "soft-labels"])
def test_every_upload_stays_within_the_bytes(model, download):
    recipe = Recipe(epochs=5, batch=8, lr=0.02)
    sift = fedsift.sift(
        bytes=60, mode="labels", download=download, local=recipe, distill=recipe, ema=0
    )
    task = federations.a_task()
    clients = fedsift.make_clients(task.private, 6, fedsift.Dirichlet(0.1), model)
    records = federations.run_rounds(Federation(sift, clients, task, 4, 0), 4, SequentialEngine())
    sizes = [size for record in records for size in record.bytes.up.values()]
    assert max(sizes) <= 60 and np.mean(sizes) > 22
    assert records[-1].accuracy > 0.85
