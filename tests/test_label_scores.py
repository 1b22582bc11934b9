"""How good soft labels are, in a simulation that knows the truth; and that nobody else knows it."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import data, runs
from fedsift.algorithms import ALGORITHMS
from fedsift.engines.sequential import SequentialEngine
from fedsift.evaluation import DistilledLabels, LabelTally, UploadedLabels, score_distilled
from fedsift.federation import Federation
from fedsift.types import SharesLabels, SoftLabels
from tests.helpers import toys
from tests.helpers.federations import RECIPE, a_federation, run_rounds
from tests.helpers.runs import lines, straight, tiny

ENGINE = SequentialEngine("cpu", threads=1)
LABELLING = ["fd", "fas", "ds-fl", "cfd", "gossip"]  # upload soft labels on public samples
DISTILLING = ["fd", "fas", "ds-fl", "cfd", "feddf"]  # distil some at the server
TRUTH = np.array([0, 1, 2, 1])


def labels(index, classes):
    """One-hot rows of three classes."""
    return SoftLabels(np.array(index), np.eye(3)[classes])


# --- by hand ---


def test_uploads_are_scored_by_hand():
    """Two clients: 0, 1 and 3 said to be 0, 2 and 1; 3 and 0 said to be 1 and 1. So rows 1, 3 and 4
    of 5 are right, on the three samples 0, 1 and 3."""
    tally = LabelTally(TRUTH)
    assert tally.scores() is None
    tally.add(labels([0, 1, 3], [0, 2, 1]))
    tally.add(labels([0, 3], [1, 1]))
    assert tally.scores() == UploadedLabels(rows=5, right=3 / 5, samples=3, votes=5 / 3)


def test_distilled_labels_are_scored_by_hand():
    """Three rows, two of them right; class 2 is the largest in none."""
    made = SoftLabels(
        np.array([0, 2, 3]), np.array([[0.5, 0.3, 0.2], [0, 0.6, 0.4], [0.1, 0.9, 0]])
    )
    assert score_distilled(made, TRUTH) == DistilledLabels(rows=3, right=2 / 3, fewest=0)
    even = labels([0, 1, 2], [0, 1, 2])
    assert score_distilled(even, TRUTH) == DistilledLabels(rows=3, right=1.0, fewest=1)
    assert score_distilled(labels([], []), TRUTH) is None


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=5), st.data())
def test_the_order_of_uploads_does_not_matter(picks, d):
    made = [
        labels(
            sorted(mine),
            d.draw(st.lists(st.integers(0, 2), min_size=len(mine), max_size=len(mine))),
        )
        for mine in picks
    ]
    one, other = LabelTally(TRUTH), LabelTally(TRUTH)
    for each, tally in ((made, one), (made[::-1], other)):
        for upload in each:
            tally.add(upload)
    assert one.scores() == other.scores()
    scores = one.scores()
    assert scores is not None
    assert scores.rows == sum(map(len, picks)) and scores.samples == len(set().union(*picks))
    assert scores.votes * scores.samples == pytest.approx(scores.rows)


# --- in a federation ---


def small(name, **axes):
    known = inspect.signature(ALGORITHMS[name]).parameters
    common = {"budget": 10, "local": RECIPE, "distill": RECIPE}
    common = {key: value for key, value in common.items() if key in known}
    made = ALGORITHMS[name](**common, **axes)
    return a_federation(made, cohort=6 if name == "gossip" else 3)


def with_truth(federation, truth):
    task = replace(federation.task, public_labels=truth)
    return Federation(
        federation.algorithm, federation.clients, task, federation.cohort, federation.seed
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_public_label_reaches_training(name):
    """With permuted public labels, or none, all but the scores is the same, bit for bit."""
    federation = small(name)
    truth = federation.task.public_labels
    assert truth is not None
    permuted = np.random.default_rng(0).permutation(truth)
    assert (permuted != truth).any()
    told = []
    for known in (truth, permuted, None):
        records = run_rounds(with_truth(federation, known), 3, ENGINE)
        told.append(
            [
                (runs.to_bytes(r.state), r.bytes, r.accuracies, r.disagreement, r.steps)
                for r in records
            ]
        )
        scores = [(r.uploaded_labels, r.distilled_labels) for r in records]
        assert [up is not None for up, _ in scores] == [known is not None and name in LABELLING] * 3
        assert [taught is not None for _, taught in scores] == [
            known is not None and name in DISTILLING
        ] * 3
        if known is truth:
            usual = scores
        elif known is not None and name in LABELLING:
            assert scores != usual
    assert told[0] == told[1] == told[2]


def test_what_the_clients_uploaded_is_what_is_scored():
    """Counted again from the messages themselves: three clients, ten soft labels each."""
    federation = small("fas")
    (record,) = run_rounds(federation, 1, ENGINE)
    seen = []
    algorithm = federation.algorithm
    assert isinstance(algorithm, SharesLabels)

    class Spy(LabelTally):
        def add(self, labels):
            seen.append(labels)
            super().add(labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsift.federation.server_half.LabelTally", Spy)
        run_rounds(federation, 1, ENGINE)
    truth = federation.task.public_labels
    assert truth is not None
    right = [(upload.probs.argmax(1) == truth[upload.index]).sum() for upload in seen]
    assert [len(upload) for upload in seen] == [10] * 3
    up = record.uploaded_labels
    assert up is not None and (up.rows, up.right) == (30, sum(right) / 30)


def test_indexes_into_a_pool_are_held_against_the_right_samples():
    """A student that has learnt its lesson labels separable data rightly, pool or not; held against
    other samples it would be right in one of three."""
    recipe = fedsift.Recipe(epochs=20, batch=8, lr=0.01)
    x, y = toys.gaussians(300)
    task = fedsift.split(fedsift.make_dataset(x, y), private=120, public=100)
    clients = fedsift.make_clients(task.private, 4, "iid", "mlp")
    algorithm = fedsift.fd(10, sampler="low-entropy", pool=30, local=recipe, distill=recipe)
    (record,) = fedsift.federate(algorithm, clients, task, rounds=1, cohort=4)
    assert record.uploaded_labels is not None and record.distilled_labels is not None
    assert record.uploaded_labels.right > 0.95 and record.distilled_labels.right > 0.95


def test_public_labels_are_those_of_the_public_samples():
    x = np.stack([np.arange(20), np.zeros(20)], 1)
    made = data.make_dataset(x, np.arange(20) % 3)
    task = data.split(made, 8, 5)
    assert task.public_labels is not None
    assert task.public_labels.tolist() == [row % 3 for row in task.public.rows]
    elsewhere = data.make_dataset(x, np.arange(20) % 3, public=x)
    assert data.split(elsewhere, 8, 5).public_labels is None
    assert "labels" not in repr(task)


def test_a_run_writes_the_scores_down(tmp_path):
    fas = lines(straight(tmp_path / "fas", tiny(rounds=2)) / runs.METRICS)
    assert [row["uploaded_labels"]["rows"] for row in fas] == [12, 12]  # two clients, six each
    assert all(0 <= row["distilled_labels"]["right"] <= 1 for row in fas)
    averaged = lines(straight(tmp_path / "avg", tiny("digits-fedavg", rounds=1)) / runs.METRICS)
    assert not {"uploaded_labels", "distilled_labels"} & averaged[0].keys()
