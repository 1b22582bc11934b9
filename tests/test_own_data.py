"""Tables, texts and series, trained for real: the accuracy that must be reached."""

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift import config
from fedsift.data import Task
from fedsift.types import Labelled, Samples, Store

pytestmark = pytest.mark.slow


def accuracy(preset: str, *settings: str) -> float:
    e = config.read_experiment(preset, ["device=cpu", *settings])
    made = config.build_federation(e)
    records = fedsift.federate(
        made.algorithm, made.clients, made.task, rounds=e.rounds, cohort=e.clients.cohort
    )
    return [record.accuracy for record in records][-1]


def test_a_table_with_words_and_missing_values():
    assert accuracy("table-fas", "rounds=3") > 0.8
    assert accuracy("table-sift", "rounds=3", "partition.kind=given") > 0.8


def test_a_rare_class_of_a_table_is_not_said_too_often(tmp_path):
    """Four rows in five are fine; whoever always says so has .8."""
    rng = np.random.default_rng(0)
    price = rng.gamma(3, 10, 400)
    verdicts = np.where(price > np.quantile(price, 0.8), "fraud", "fine")
    rows = [f"{p:.2f},{v}" for p, v in zip(price, verdicts, strict=True)]
    (tmp_path / "sales.csv").write_text("\n".join(["price,verdict", *rows]) + "\n")
    words = [f"data.name=csv:{tmp_path}/sales.csv", "data.target=verdict", "rounds=5"]
    assert accuracy("table-sift", *words) > 0.92  # with a prior .90


def test_texts():
    assert accuracy("text-sift", "rounds=4") > 0.9
    assert accuracy("text-fas", "rounds=3", "model=text-cnn", "local.epochs=3") > 0.6


def test_series(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    pace = 0.2 + 0.2 * y[:, None, None]
    x = np.sin(np.arange(30)[:, None] * pace) + rng.normal(0, 0.5, (300, 30, 2))
    np.savez(tmp_path / "series.npz", x=x, y=y)
    found = accuracy(
        "digits-fas",
        f"data.name=npz:{tmp_path}/series.npz",
        "data.kind=series",
        "model=series-cnn",
        *["data.private=120", "data.public=80", "clients=4", "cohort=4", "rounds=2", "budget=30"],
    )
    assert found > 0.85


class Embedded(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.words, self.head = nn.Embedding(60, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.words(x.long()).mean(-2))


def test_token_ids_give_the_accuracy_of_a_store_built_by_hand():
    """The same numbers by `make_dataset(kind="tokens")` and by hand: bit for bit."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    x = np.where(rng.random((400, 10)) < 0.4, 15 * y[:, None], 0) + rng.integers(0, 15, (400, 10))
    task = fedsift.split(fedsift.make_dataset(x, y, kind="tokens"), 200, 100, seed=0)
    store = Store(torch.from_numpy(x.astype(np.float32)), torch.tensor(0.0), torch.tensor(1.0))

    def by_hand(part: Labelled) -> Labelled:
        return Labelled(Samples(store, part.samples.rows), part.targets)

    other = Task(by_hand(task.private), Samples(store, task.public.rows), by_hand(task.held_out))
    recipe = fedsift.Recipe(epochs=5, lr=0.02)
    found = []
    for one in (task, other):
        clients = fedsift.make_clients(one.private, 4, "iid", model=Embedded)
        algorithm = fedsift.fas(60, local=recipe, distill=recipe)
        *_, last = fedsift.federate(
            algorithm, clients, one, rounds=3, cohort=4, engine="sequential"
        )
        found.append(last.accuracy)
    assert found[0] == found[1]
    assert found[0] > 0.7


class Words(nn.Module):
    """Must be told how many ids there are."""

    def __init__(self, shape, classes, vocabulary):
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def test_token_ids_of_an_npz_for_a_model_that_must_know_how_many(tmp_path):
    """No sizes, no kind: 100 public, 100 held out, 200 private; ids 0 to 79."""
    draws = np.random.default_rng(0)
    y = draws.integers(0, 2, 400)
    x = draws.integers(0, 60, (400, 12)) + 20 * y[:, None]
    np.savez(tmp_path / "tokens.npz", x=x, y=y)
    model = f"clients.model={Words.__module__}:Words"
    settings = [f"data.name=npz:{tmp_path}/tokens.npz", model]
    task = config.build_task(config.read_experiment("text-fas", settings))
    assert [len(part) for part in (task.private, task.public, task.test)] == [200, 100, 100]
    assert task.public.vocabulary == 80
    assert accuracy("text-fas", *settings, "rounds=3") > 0.8
