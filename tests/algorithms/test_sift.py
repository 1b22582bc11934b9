"""sift: which mode it takes, the cap on every upload, and what it reaches on the digits."""

import numpy as np
import pytest

import fedsift
from fedsift.algorithms.sift import Sift
from fedsift.algorithms.soft_labels import SoftLabelFD
from fedsift.algorithms.weights import FedAvg
from fedsift.codecs import CODECS, Updates, quantized
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation
from fedsift.types import Recipe, UserError
from tests.helpers import federations, toys


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


def test_labels_are_softer_where_there_are_bits_enough():
    """Four public samples: 1 byte is 2 bits for each, 2 bytes are 4."""
    chosen = [system(fedsift.sift(bytes=n, mode="labels")).up for n in (0, 1, 2)]
    assert chosen == [CODECS["hard"], quantized(2), quantized(4)]
    assert system(fedsift.sift(bytes=2, mode="labels", codec="hard")).up == CODECS["hard"]


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
