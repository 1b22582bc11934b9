"""Training samples set aside to measure on, so that choices are made without the test set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import config, data, runs
from fedsift.types import UserError
from tests.helpers import toys
from tests.helpers.experiments import complaint, read
from tests.helpers.runs import lines, straight, tiny


def rows(samples, **more):
    """Sample i is the row (i, 0) and has label i % 3."""
    x = np.stack([np.arange(samples), np.zeros(samples)], 1)
    return data.make_dataset(x, np.arange(samples) % 3, **more)


def numbers(part):
    samples = getattr(part, "samples", part)
    return samples.store.values[torch.from_numpy(samples.rows)][:, 0].int().tolist()


class Poison:
    """Whoever looks at it fails."""

    def __getattribute__(self, name):
        raise AssertionError(f"somebody asked for the test set: {name}")

    def __iter__(self):
        raise AssertionError("somebody unpacked the test set")

    def __bool__(self):
        raise AssertionError("somebody asked whether there is a test set")

    __len__ = __getitem__ = __array__ = __iter__


def poisoned(made):
    poison: object = Poison()
    return replace(made, test=poison)


OFFICIAL: dict[str, Any] = {"test": ([[100, 0], [101, 0]], [0, 1])}

# --- the split ---


def test_validation_samples_are_the_last_and_test_samples_the_first_of_what_is_left():
    order = fedsift.seeding.rng(0, "split").permutation(10).tolist()
    validated, tested = data.split(rows(10), 4, 2, validation=3), data.split(rows(10), 4, 2, 1)
    assert numbers(validated.held_out) == order[7:]
    assert numbers(tested.held_out) == numbers(tested.test) == order[6:7]
    assert validated.held_out.labels.tolist() == [i % 3 for i in order[7:]]
    assert (validated.measured_on, tested.measured_on) == ("validation", "test")
    assert repr(validated) == "Task(4 private, 2 public, 3 validation, shape (2,), 3 classes)"


@given(st.data(), st.integers(4, 40), st.integers(0, 1000), st.booleans(), st.booleans())
def test_no_other_part_changes_and_none_overlaps(d, samples, seed, official, elsewhere):
    more = OFFICIAL if official else {}
    more = more | ({"public": [[200 + i, 0] for i in range(40)]} if elsewhere else {})
    private = d.draw(st.integers(1, samples - 3))
    public = d.draw(st.integers(1, samples - private - 2))
    left = samples - private - public
    test = d.draw(st.integers(1, 2 if official else left - 1))
    validation = d.draw(st.integers(1, left if official else left - test))
    made = rows(samples, **more)
    tested = data.split(made, private, public, test, seed)
    validated = data.split(made, private, public, test, seed, validation=validation)
    assert len(validated.held_out) == validation
    assert numbers(validated.private) == numbers(tested.private)
    assert numbers(validated.public) == numbers(tested.public)
    parts = [validated.private, validated.public, validated.held_out, tested.test]
    everyone = [number for part in parts for number in numbers(part)]
    assert len(set(everyone)) == len(everyone)
    assert max(numbers(validated.held_out)) < samples  # training samples, never official ones


def test_the_test_set_is_not_looked_at():
    x, y = toys.gaussians(150)
    made = poisoned(data.make_dataset(x, y, test=(x[:10], y[:10])))
    task = data.split(made, private=60, public=40, validation=30)
    clients = fedsift.make_clients(task.private, 6, model="mlp")
    quick = fedsift.Recipe(epochs=1)
    algorithm = fedsift.fd(8, local=quick, distill=quick)
    (record,) = fedsift.federate(algorithm, clients, task, rounds=1, cohort=3)
    guessed = record.network()(task.held_out.samples.tensor()).argmax(1).numpy()
    assert record.accuracy == pytest.approx((guessed == task.held_out.labels).mean())
    assert record.measured_on == "validation"
    assert repr(record).startswith(f"Record(round=0, validation_accuracy={record.accuracy:.4f}, ")
    assert runs.fingerprint_task(task)["validation"] == 30
    assert "test" not in runs.fingerprint_task(task)
    with pytest.raises(AssertionError, match="somebody unpacked the test set"):
        data.split(made, private=60, public=40)


def test_a_task_without_test_samples_gives_none():
    task = data.split(rows(10), 4, 2, validation=3)
    with pytest.raises(UserError) as caught:
        task.test  # noqa: B018
    assert str(caught.value) == (
        "this task has 3 validation samples and no test samples; "
        "use task.held_out, or split without validation"
    )


@pytest.mark.parametrize(
    ("made", "sizes", "said"),
    [
        (
            rows(10),
            (4, 2, None, 5),
            "4 training samples left for the validation part, 5 needed; "
            "make validation, private or public smaller",
        ),
        (
            rows(10),
            (4, 2, 2, 3),
            "4 training samples left for the validation part, 3 needed beside 2 for the test; "
            "make validation, private or public smaller",
        ),
        (
            rows(10, **OFFICIAL),
            (6, 4, 2, 1),
            "0 training samples left for the validation part, 1 needed; "
            "make validation, private or public smaller",
        ),
        (rows(10), (4, 2, None, 0), "the validation part needs at least one sample, not 0"),
        (rows(10), (4, 2, -1, 2), "the test part needs at least one sample, not -1"),
        (rows(10), (4, 2, None, 1.5), "validation must be a whole number, not 1.5"),
    ],
)
def test_sizes_that_do_not_fit_are_a_mistake(made, sizes, said):
    private, public, test, validation = sizes
    with pytest.raises(UserError) as caught:
        data.split(made, private, public, test, validation=validation)
    assert str(caught.value) == said


def test_where_public_samples_come_from_elsewhere_those_left_out_are_used_last():
    """Ten samples, 4 private: the 3 that would have been public stay out while 3 others do."""
    order = fedsift.seeding.rng(0, "split").permutation(10).tolist()
    made = rows(10, public=[[100 + i, 0] for i in range(3)])
    assert numbers(data.split(made, 4, 3, validation=3).held_out) == order[7:]
    assert numbers(data.split(made, 4, 3, validation=4).held_out) == order[6:]


# --- experiments and runs ---


def test_an_experiment_asks_for_it_by_a_key():
    task = config.build_task(read("data.validation=497"))
    assert (len(task.held_out), task.measured_on) == (497, "validation")
    assert complaint("data.validation=498").startswith("497 training samples left for the val")
    assert complaint("data.validation=0").startswith("data.validation: input should be greater")


def test_training_is_the_same_and_the_metrics_say_what_they_are_of(tmp_path):
    usual = straight(tmp_path / "usual", tiny(rounds=2))
    other = straight(tmp_path / "other", tiny("digits-fas", "data.validation=50", rounds=2))
    for name in (runs.CHECKPOINT, runs.LEDGER, runs.CLIENTS):
        assert (usual / name).read_bytes() == (other / name).read_bytes()
    assert [row.get("measured_on") for row in lines(usual / runs.METRICS)] == [None, None]
    assert [row["measured_on"] for row in lines(other / runs.METRICS)] == ["validation"] * 2
    histories = [runs.load_run(folder) for folder in (usual, other)]
    assert [history.measured_on for history in histories] == ["test", "validation"]
    assert [history.summary()["measured_on"] for history in histories] == ["test", "validation"]


def test_a_folder_without_the_key_is_measured_on_the_test(tmp_path):
    folder = straight(tmp_path / "old", tiny(rounds=1))
    path = folder / runs.CONFIG
    kept = [line for line in path.read_text().splitlines() if "validation" not in line]
    path.write_text("\n".join(kept) + "\n")
    assert runs.load_run(Path(folder)).measured_on == "test"
