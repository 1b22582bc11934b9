"""Federations whose clients have anything with fit and predict_proba, or only an address."""

import json
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift import Recipe, UserError
from fedsift.algorithms.soft_label_downlink import merge_labels
from fedsift.estimators.remote import Remote
from fedsift.types import Predict, SoftLabels
from tests.helpers.black_box import answer_evenly, say, serving
from tests.helpers.runs import PROGRAM, bits, cli, killed, lines, play, resumed, rounds_in, straight

pytest.importorskip("sklearn")
FOREST = "sklearn:RandomForestClassifier(n_estimators=10)"
QUICK = Recipe(epochs=1)


@pytest.fixture(scope="module")
def task():
    return fedsift.split(fedsift.load_dataset("digits"), private=160, public=60, test=100)


def play_all(task, algorithm, model, count=4, rounds=2, **options):
    clients = fedsift.make_clients(task.private, count, "iid", model, **options)
    return list(fedsift.federate(algorithm, clients, task, rounds=rounds, cohort=count))


def down(**options):
    return fedsift.fas(20, download="soft-labels", local=QUICK, distill=QUICK, **options)


def up(**options):
    return fedsift.fas(20, local=QUICK, distill=QUICK, **options)


# --- what comes back down ---


def test_the_newest_label_of_every_sample_is_the_lesson():
    first = SoftLabels(np.array([0, 3]), np.array([[1, 0], [0.5, 0.5]]))
    second = SoftLabels(np.array([1, 3]), np.array([[0.25, 0.75], [0, 1]]))
    found = merge_labels([None, first, second])
    assert found is not None and found.index.tolist() == [0, 1, 3]
    assert found.probs.tolist() == [[1, 0], [0.25, 0.75], [0, 1]]
    assert merge_labels([None]) is None


class Diary:
    """An estimator that writes down what it is trained on."""

    entries: ClassVar[list[Any]] = []

    def fit(self, x, y, sample_weight=None):
        self.entries.append((len(x), None if sample_weight is None else sample_weight.copy()))

    def predict_proba(self, x):
        return np.full((len(x), 10), 0.1)

    def get_state(self):
        return {}

    def set_state(self, arrays):
        pass


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_public_rows_enter_the_next_training_set_with_their_weight(task, weight, monkeypatch):
    monkeypatch.setattr(Diary, "entries", [])
    fas = down(sampler="none", public_weight=weight)
    play_all(task, fas, {Diary: 1, "mlp": 1}, 2, rounds=3)
    (first, nothing), (second, weights), (third, later) = Diary.entries
    assert first == 80 and nothing is None  # its own samples, one row each
    assert second == 80 + 20 * 10  # 20 public samples, a row for each class
    assert (weights[:80] == 1).all()
    assert np.allclose(weights[80:].reshape(20, 10).sum(1), weight, atol=1e-6)
    assert third > second  # it remembers the labels of the round before, newest first
    assert np.allclose(later[80:].reshape(-1, 10).sum(1), weight, atol=1e-6)


def test_a_weight_of_0_leaves_the_public_rows_out(task, monkeypatch):
    monkeypatch.setattr(Diary, "entries", [])
    play_all(task, down(public_weight=0.0), {Diary: 1, "mlp": 1}, 2)
    assert [rows for rows, _ in Diary.entries] == [80, 80]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="public_weight must be 0 or more"):
            down(public_weight=wrong)


def test_with_weights_down_such_a_client_only_uploads_and_that_is_said_once(task):
    with pytest.warns(UserWarning, match="cannot use: such clients only upload") as said:
        records = play_all(task, up(), {"mlp": 2, FOREST: 2})
    assert len(said) == 1
    for record in records:
        assert set(record.bytes.up) == {0, 1, 2, 3}
        assert [record.bytes.down[i] for i in (2, 3)] == [0, 0]
        assert list(record.models) == ["mlp"] and record.state.memories == {}


def test_where_no_client_has_a_network_the_server_teaches_one_of_its_own(task):
    with pytest.warns(UserWarning, match=r"the server teaches mlp; choose another with clients"):
        (record,) = play_all(task, down(), FOREST, rounds=1)
    assert list(record.accuracies) == ["mlp"] and record.client_accuracy is not None
    (record,) = play_all(task, down(), FOREST, rounds=1, student="cnn")
    assert list(record.accuracies) == ["cnn"]
    with pytest.raises(UserError, match=r"a student is a network.*set student=mlp"):
        play_all(task, down(), FOREST, student=FOREST)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (fedsift.fedavg(local=QUICK), "fedavg exchanges weights, and sklearn"),
        (fedsift.feddf(local=QUICK, distill=QUICK), "feddf exchanges weights"),
        (fedsift.sift(mode="weights", local=QUICK), "mode=weights exchanges weights.*mode=labels"),
    ],
)
def test_systems_that_exchange_weights_refuse_it_in_words(task, algorithm, said):
    with pytest.raises(UserError, match=said):
        play_all(task, algorithm, {"mlp": 2, FOREST: 2})


def test_sift_sends_labels_where_somebody_has_no_weights(task):
    sift = fedsift.sift(bytes=100_000, local=QUICK, distill=QUICK, download="soft-labels")
    (record,) = play_all(task, sift, {"mlp": 2, FOREST: 2}, rounds=1)
    assert record.uploaded_labels is not None and record.uploaded_labels.rows > 100


def test_systems_without_a_public_set_or_a_server_take_them_too(task):
    for algorithm in (
        fedsift.fd_jeong(local=QUICK),
        fedsift.gossip(20, local=QUICK, distill=QUICK),
    ):
        records = play_all(task, algorithm, {"mlp": 1, FOREST: 3}, rounds=2)
        assert set(records[-1].accuracies) == {f"client {i}" for i in range(4)}
        assert records[-1].accuracies["client 3"] > 0.4  # forests on 40 digits


# --- models that fail ---


class Failing(Diary):
    def fit(self, x, y, sample_weight=None):
        raise RuntimeError("out of luck")


class Leaving(Diary):
    def fit(self, x, y, sample_weight=None):
        raise SystemExit("I am off")


class Sums(Diary):
    def predict_proba(self, x):
        return np.full((len(x), 10), 0.2)


class Shapes(Diary):
    def predict_proba(self, x):
        return np.ones((len(x), 3))


class Nan(Diary):
    def predict_proba(self, x):
        return np.full((len(x), 10), np.nan)


@pytest.mark.parametrize("download", ["weights", "soft-labels"])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Failing, "its model failed: Failing.fit raised RuntimeError: out of luck"),
        (Leaving, "its model failed: its model raised SystemExit: I am off"),
        (Sums, "its model failed: it gives rows that do not sum to 1, but for example to 2"),
        (Shapes, "its model failed: it gives (60, 3) for 60 samples, not (60, 10)"),
        (Nan, "its model failed: it gives probabilities that are not finite"),
    ],
)
def test_the_run_goes_on_without_a_client_whose_model_fails(task, model, why, download):
    fas = fedsift.fas(20, download=download, local=QUICK, distill=QUICK)
    clients = fedsift.make_clients(task.private, 3, "iid", {"mlp": 2, model: 1})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        records = list(fedsift.federate(fas, clients, task, rounds=2, cohort=3))
    for record in records:
        assert record.bytes.missing == {2: why}
        assert set(record.bytes.up) == {0, 1} and set(record.bytes.down) == {0, 1, 2}
        assert 2 not in record.state.memories
    told = [str(warning.message) for warning in said]
    assert f"round 1 is without client 2: {why}" in told


def test_the_others_learn_what_they_would_without_it(task):
    """A failing client changes nothing for the rest: as if it had not answered."""
    with pytest.warns(UserWarning):
        (with_it,) = play_all(task, down(), {"mlp": 2, Failing: 1}, 3, rounds=1)
    with pytest.warns(UserWarning):
        (other,) = play_all(task, down(), {"mlp": 2, Nan: 1}, 3, rounds=1)
    a, b = (record.state.server.students["mlp"] for record in (with_it, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_round_in_which_every_model_fails_is_told_with_the_reasons(task):
    with pytest.raises(UserError, match=r"no upload that can be used: client 0: its model failed"):
        play_all(task, down(), Failing, student="mlp")


# --- black boxes ---


def test_a_black_box_takes_part_and_is_never_trained(task):
    warned = pytest.warns(UserWarning, match=r"is asked and never trained")
    with serving(answer_evenly(10)) as (address, asked), warned as said:
        records = play_all(task, down(), {"mlp": 2, address: 1}, 3, rounds=2)
    assert len(said) == 1 and [len(rows) for rows in asked] == [60, 60]
    assert asked[0] == asked[1] and max(max(row) for row in asked[0]) == 16.0  # as in the data
    assert all(set(record.bytes.up) == {0, 1, 2} for record in records)
    assert records[-1].state.memories.keys() >= {0, 1}


def test_a_black_box_that_dies_in_a_round_is_missing_from_then_on(task):
    calls = []

    def answer(box, rows):
        calls.append(len(rows))
        if len(calls) == 1:
            answer_evenly(10)(box, rows)
        else:
            say(box, b"<html>bad gateway</html>")

    with serving(answer) as (address, _), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        box = Remote(address, timeout=5, retries=0)
        records = play_all(task, up(), {"mlp": 2, box: 1}, 3, rounds=3)
    missing = [record.bytes.missing for record in records]
    assert missing[0] == {} and all("no JSON but HTML" in lost[2] for lost in missing[1:])


# --- folders ---

MIXED = [
    "clients=4",
    "cohort=3",
    "data.private=80",
    "data.public=30",
    "data.test=60",
    "local.epochs=1",
    "distill.epochs=1",
    "device=cpu",
    "budget=6",
    "algorithm.download=soft-labels",
    f'clients.models={{"mlp"=2,"{FOREST}"=2}}',
]


def mixed(rounds, *more):
    return fedsift.read_experiment("digits-fas", [*MIXED, f"rounds={rounds}", *more])


def test_a_run_with_a_forest_resumes_to_the_same_bits(tmp_path):
    whole = bits(straight(tmp_path / "whole", mixed(3)))
    stopped = straight(tmp_path / "stopped", mixed(3), 1)
    assert bits(resumed(stopped)) == whole
    rows = lines(tmp_path / "whole" / "metrics.jsonl")
    assert rows[-1]["client_accuracy"] > 0.2


@pytest.mark.slow
def test_a_sweep_with_forests_killed_again_and_again_ends_with_the_same_bytes(tmp_path):
    words = ["run", "digits-fas", *MIXED, "rounds=6", "--seeds", "2", "--quiet", "--out"]
    cells = ("seed-0", "seed-1")
    folder = tmp_path / "killed"

    def played():
        return sum(rounds_in(folder / cell) for cell in cells)

    killed([*PROGRAM, *words, str(folder)], lambda: played() >= 2, 0.0)
    again = ["run", "--resume", "--quiet", "--out", str(folder)]
    killed([*PROGRAM, *again], lambda: played() >= 5, 0.02)
    assert 5 <= played() < 12
    for command in (again, [*words, str(tmp_path / "whole")]):
        assert cli(*command).exit_code == 0
    for cell in cells:
        assert bits(folder / cell) == bits(tmp_path / "whole" / cell)
        assert rounds_in(folder / cell) == 6


def test_the_network_of_a_run_with_forests_is_the_student(tmp_path):
    folder = straight(tmp_path / "run", mixed(1))
    assert isinstance(fedsift.runs.load_run(folder).network(), nn.Module)


PLUG_IN = """
class Mine:
    def fit(self, x, y, sample_weight=None):
        self.seen = sorted(set(y))
    def predict_proba(self, x):
        return [[1 / len(self.seen)] * len(self.seen)] * len(x)
"""


def test_a_class_that_keeps_nothing_is_refused_on_resume_in_words(tmp_path, monkeypatch):
    (tmp_path / "forgetful.py").write_text(PLUG_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    models = 'clients.models={"mlp"=2,"forgetful:Mine"=2}'
    folder = straight(tmp_path / "down", mixed(3, models), 1)
    with pytest.raises(UserError, match="was not kept: Mine has no get_state and set_state"):
        resumed(folder)
    with pytest.warns(UserWarning, match="only upload"):  # nothing to remember: it can be resumed
        folder = straight(tmp_path / "up", mixed(2, models, "algorithm.download=weights"), 1)
    with pytest.warns(UserWarning, match="only upload"):
        assert rounds_in(resumed(folder)) == 2


def test_a_forest_in_a_stranger_s_folder_is_not_believed(tmp_path):
    folder = straight(tmp_path / "run", mixed(3), 1)
    state = fedsift.runs.from_bytes((folder / "checkpoint.safetensors").read_bytes())
    id = max(state.memories)
    blob = state.memories[id]["model"]["estimator"].numpy().tobytes()
    bad = blob.replace(b"sklearn.tree._classes", b"antigravity._classes!")
    assert bad != blob
    state.memories[id]["model"]["estimator"] = torch.frombuffer(bytearray(bad), dtype=torch.uint8)
    (folder / "checkpoint.safetensors").write_bytes(fedsift.runs.to_bytes(state))
    with pytest.raises(UserError, match=f"the model of client {id}: it holds an object of type"):
        resumed(folder)


def test_the_ledger_says_who_was_missing_and_why(tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text(PLUG_IN.replace("return", "return 1 / 0 or"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = mixed(1, 'clients.models={"mlp"=3,"fails:Mine"=1}', "cohort=4")
    folder = play(fedsift.runs.begin_run(tmp_path / "run", experiment))
    (row,) = lines(folder / "ledger.jsonl")
    assert json.dumps(row["missing"]) == (
        '{"3": "its model failed: Mine.predict_proba raised ZeroDivisionError: division by zero"}'
    )


# --- a small real training ---


@pytest.mark.slow
def test_forests_and_networks_together_reach_what_they_should():
    """Eight clients with skewed digits: two kinds of estimators and a network, soft labels down.

    Alone, a client of either kind is at .45 to .75.
    """
    task = fedsift.split(fedsift.load_dataset("digits"), private=800, public=500)
    forest = "sklearn:RandomForestClassifier(n_estimators=50)"
    models = {"cnn": 4, forest: 2, "sklearn:GaussianNB": 2}
    clients = fedsift.make_clients(task.private, 8, "dirichlet(1)", models)
    recipe = Recipe(epochs=5)
    fas = fedsift.fas(150, download="soft-labels", local=recipe, distill=recipe)
    *_, last = fedsift.federate(fas, clients, task, rounds=5, cohort=8)
    assert last.accuracy > 0.85 and last.client_accuracy is not None
    assert last.client_accuracy > 0.75
    job = Predict(clients.model_of(4), last.state.memories[4].model, task.test.samples)
    (logits,) = fedsift.choose_engine()[0].run([job])
    assert (logits.argmax(1) == task.test.labels).mean() > 0.8
