"""What a Python user hears who passes the wrong thing: one sentence that says what to pass."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift import (
    Dirichlet,
    Recipe,
    UserError,
    fas,
    federate,
    load_dataset,
    make_clients,
    make_dataset,
    split,
)
from fedsift.codecs import Qsgd
from fedsift.data.partition import LazyParts, deal
from fedsift.seeding import rng
from tests.helpers.cli import program

DATA = load_dataset("digits")
TASK = split(DATA, private=100, public=50, test=60)
CLIENTS = make_clients(TASK.private, 4, model="mlp")
QUICK = Recipe(epochs=1)
ROWS = np.zeros((3, 2))
UNIQUE = "number them 0, 1, ..., for example with np.unique(y, return_inverse=True)[1]"


class HalfCodec:
    id = 200

    def pack(self, probs, known):
        return b""


class HalfAlgorithm:
    """All of the protocol but check_upload and models_to_evaluate."""

    start = prepare_downloads = client_turn = server_turn = None


class HalfAggregator:
    def aggregate(self, uploads, memory, r): ...


def run(**wrong: Any) -> list[fedsift.Record]:
    right: dict[str, Any] = {
        "algorithm": fas(20, local=QUICK, distill=QUICK),
        "clients": CLIENTS,
        "task": TASK,
        "rounds": 1,
        "cohort": 2,
    }
    return list(federate(**right | wrong))


def parts(*made: Any) -> Callable[[], fedsift.Clients]:
    return lambda: make_clients(TASK.private, 4, lambda *_: made)


def dataset(x: Any, y: Any, *more: Any, **named: Any) -> Callable[[], fedsift.Dataset]:
    return lambda: make_dataset(x, y, *more, **named)


any_call: Any = lambda make, *args, **named: lambda: make(*args, **named)  # noqa: E731
PRIVATE = "; pass task.private, of task = fedsift.split(data, private=..., public=...)"
SAMPLER = "it must be a function of (probs, label_counts, budget, draws)"
FOUR = np.array_split(np.arange(100), 4)
CASES: dict[str, list[tuple[Any, str]]] = {
    "make_clients": [
        (any_call(make_clients, DATA, 4), f"private is a Dataset{PRIVATE}"),
        (any_call(make_clients, TASK, 4), f"private is a Task{PRIVATE}"),
        (any_call(make_clients, TASK.public, 4), f"private is a Samples{PRIVATE}"),
        (
            any_call(make_clients, TASK.private, "4"),
            "count must be a whole number, not '4'",
        ),
        (
            any_call(make_clients, TASK.private, 4, 0.1),
            "the partition is of type float; it must be a function of (labels, clients, generator)",
        ),
        (
            any_call(make_clients, TASK.private, 4, Dirichlet),
            "partition is the class Dirichlet; pass an object, Dirichlet(...)",
        ),
        (
            any_call(make_clients, TASK.private, 4, "dirichlet"),
            "partition 'dirichlet': missing a required argument: 'alpha'",
        ),
        (
            any_call(make_clients, TASK.private, 4, model=nn.Linear(64, 10)),
            "model 'Linear' is a network, but every client needs one of its own; "
            "give the class or a function (shape, classes) -> nn.Module",
        ),
        (
            any_call(make_clients, TASK.private, 4, model=["cnn", "mlp"]),
            "model is several models; say how many clients have each: {'cnn': 12, ...}",
        ),
        (
            any_call(make_clients, TASK.private, 4, model={"cnn": "4"}),
            "the number of clients with model 'cnn' must be a whole number, not '4'",
        ),
        (
            any_call(fedsift.make_model, "cnn", 8, 10),
            "shape is 8; write (channels, height, width) or (features,)",
        ),
    ],
    "own partition": [
        (
            parts(*FOUR[:3], []),
            "the partition gives client 3 no samples; "
            "give each client an array of at least one index",
        ),
        (
            parts(*FOUR[:3], FOUR[3][:20]),
            "the partition leaves out 5 samples and deals 0 more than once; "
            "deal every index once, or set `overlapping = True` on it to allow both",
        ),
        (
            parts(*FOUR[:3], np.append(FOUR[3], [0, 1])),
            "the partition leaves out 0 samples and deals 2 more than once; "
            "deal every index once, or set `overlapping = True` on it to allow both",
        ),
        (
            parts(*FOUR[:3], FOUR[3] + 1),
            "the partition gives client 3 values that are not indexes from 0 to 99",
        ),
        (
            parts(*FOUR[:3], {98, 99}),
            "the partition gives client 3 a set; give each client an array of at least one index",
        ),
        (
            parts([[0], [1, 2]], *FOUR[1:]),
            "the partition gives client 0 a list; give each client an array of at least one index",
        ),
        (parts(*FOUR[:3]), "the partition gives 3 parts for 4 clients; give each one array"),
    ],
    "split": [
        (
            any_call(split, "digits", 100, 50),
            "data is 'digits'; "
            "pass a data set, fedsift.load_dataset('digits') or fedsift.make_dataset(x, y)",
        ),
        (
            any_call(split, TASK, 100, 50),
            "data is a Task; "
            "pass a data set, fedsift.load_dataset('digits') or fedsift.make_dataset(x, y)",
        ),
        (any_call(split, DATA, 0.5, 50), "private must be a whole number, not 0.5"),
        (
            any_call(split, DATA, 100, 50, normalise=5),
            "unknown normalisation '5'; known: standard, scale, none (standard, scale or none)",
        ),
        (
            any_call(load_dataset, np.zeros(3)),
            "name is a ndarray; "
            "pass a name such as 'digits'; for arrays use fedsift.make_dataset(x, y)",
        ),
    ],
    "algorithms": [
        (any_call(fas, "60"), "budget must be a whole number, not '60'"),
        (any_call(fas, 60.0), "budget must be a whole number, not 60.0"),
        (
            any_call(fas, 60, local={"lr": 0.1, "epochs": 2}),
            "local is a dict; write local=fedsift.Recipe(lr=0.1, epochs=2)",
        ),
        (
            any_call(fas, 60, distill=Recipe),
            "distill is the class Recipe; write distill=fedsift.Recipe(lr=0.01)",
        ),
        (any_call(fas, 60, temperature="1"), "temperature must be a number, not '1'"),
        (any_call(fas, 60, pool="30"), "pool must be a whole number, not '30'"),
        (any_call(fas, 60, sampler=5), f"the sampler is of type int; {SAMPLER}"),
        (
            any_call(fas, 60, sampler=lambda probs: probs),
            "sampler '<lambda>' takes (probs), "
            "but it is called with (probs, label_counts, budget, draws)",
        ),
        (
            any_call(fas, 60, aggregator=HalfAggregator()),
            "the aggregator is of type HalfAggregator without forget; it must be a function of "
            "(uploads, samples, classes) or an object with aggregate, forget",
        ),
        (
            any_call(fas, 60, aggregator=fedsift.Era),
            "aggregator is the class Era; pass an object, Era(...)",
        ),
        (
            any_call(fas, 60, codec=HalfCodec()),
            "codec is a HalfCodec without unpack, max_bytes; "
            "a codec of soft labels has id, pack, unpack, max_bytes",
        ),
        (
            any_call(fas, 60, codec=HalfCodec),
            "codec is the class HalfCodec; pass an object, HalfCodec(...)",
        ),
        (
            any_call(fas, 60, download=None),
            "unknown download 'None'; known: weights, soft-labels (weights or soft-labels)",
        ),
        (
            any_call(fedsift.fedavg, codec=HalfCodec()),
            "codec is a HalfCodec, which does not code weights; "
            "subclass fedsift.WeightCodec or use float32, float16, qsgd, updates",
        ),
        (
            any_call(fedsift.fedavg, down_codec=Qsgd(4)),
            "a Qsgd is for the uplink; on the downlink use float32, float16 or updates",
        ),
        (
            any_call(fedsift.feddf, distill={"lr": 0.1}),
            "distill is a dict; write distill=fedsift.Recipe(lr=0.1)",
        ),
        (
            any_call(fedsift.fas, 6, distill=fedsift.Recipe(ntd=0.5)),
            "distill.ntd is 0.5, but a server has no model received to distil from; "
            "not-true distillation is for local training: set local.ntd",
        ),
        (any_call(fedsift.fd_jeong, gamma="1"), "gamma must be a number, not '1'"),
        (any_call(fedsift.mix2fld, mixtures=2.5), "mixtures must be a whole number, not 2.5"),
        (any_call(fedsift.gossip, "6"), "budget must be a whole number, not '6'"),
        (
            any_call(fedsift.gossip, 6, graph=[(0, 1)]),
            "the graph is of type list; it must be a function of (clients, generator)",
        ),
        (
            any_call(fedsift.gossip, 6, codec=HalfCodec()),
            "codec is a HalfCodec; write codec='float32' or 'float16'",
        ),
        (any_call(Recipe, milestones=3), "milestones must be epochs from 0 on, not 3"),
        (any_call(Dirichlet, "0.1"), "alpha must be a number, not '0.1'"),
        (any_call(fedsift.Era, "0.1"), "temperature must be a number, not '0.1'"),
    ],
    "federate": [
        (
            any_call(run, clients=TASK, task=CLIENTS),
            "clients and task are swapped; write federate(algorithm, clients, task)",
        ),
        (
            any_call(run, task=DATA),
            "task is a Dataset; pass what fedsift.split(data, private=..., public=...) gives",
        ),
        (
            any_call(run, clients=list(CLIENTS)),
            "clients is a list; pass what fedsift.make_clients(task.private, 20) gives",
        ),
        (
            any_call(run, algorithm="fas"),
            "algorithm is 'fas'; pass an object such as fedsift.fas(budget=60)",
        ),
        (
            any_call(run, algorithm=fas),
            "algorithm is the function fas; pass an object such as fedsift.fas(budget=60)",
        ),
        (
            any_call(run, algorithm=HalfAlgorithm()),
            "the algorithm is of type HalfAlgorithm without check_upload, models_to_evaluate; "
            "it must be an object with start, prepare_downloads, client_turn, check_upload, "
            "server_turn, models_to_evaluate",
        ),
        (any_call(run, cohort=0.5), "cohort must be a whole number, not 0.5"),
        (
            any_call(run, cohort=9),
            "a cohort of 9 cannot be drawn from 4 clients; set cohort to 1 .. 4",
        ),
        (any_call(run, rounds="3"), "rounds must be a whole number, not '3'"),
        (any_call(run, seed=None), "seed must be a whole number, not None"),
        (any_call(run, state=3), "state is 3; pass the state of a record, record.state"),
        (
            any_call(run, engine=3),
            "an engine of type int has no run and no describe; "
            "an engine has run(jobs) -> list of answers and describe(model) -> str",
        ),
    ],
    "make_dataset": [
        (
            dataset(ROWS, [0, 1, 2**40]),
            f"labels go up to {2**40}, but only 3 different ones occur; {UNIQUE}",
        ),
        (
            dataset(ROWS, np.array([0, 1, 2**64 - 1], np.uint64)),
            f"labels go up to {2**63 - 1}, but only 3 different ones occur; {UNIQUE}",
        ),
        (dataset(ROWS, [0, 1, 2], 2**40), f"classes must be at most 100000, not {2**40}"),
        (dataset(ROWS, [0, 1, 2], "3"), "classes must be a whole number, 1 or more, not '3'"),
        (
            dataset(ROWS, [0, -1, -1]),
            f"y has 2 labels below 0 (first: -1 at sample 1); leave these samples out, or {UNIQUE}",
        ),
        (
            dataset(ROWS, ["cat", "cat", "cat"]),
            "y has 1 name of classes; there must be 2 or more",
        ),
        (
            dataset(ROWS, [0.0, 1.0, 2.0]),
            "y must be class numbers 0, 1, ... in one dimension, not float64 (3,); "
            "use y.astype(int)",
        ),
        (
            dataset(ROWS, np.eye(3)),
            "y must be class numbers 0, 1, ... in one dimension, not float64 (3, 3); "
            "use y.argmax(1) if the rows are one-hot",
        ),
        (
            dataset(ROWS, [[0], [1], [2]]),
            "y must be class numbers 0, 1, ... in one dimension, not int64 (3, 1); use y[:, 0]",
        ),
        (
            dataset([[0, np.nan], [1, 2], [np.inf, np.nan]], [0, 1, 2]),
            "x has 3 values that are not finite, in 2 samples (first: sample 0); "
            "fill them in, or leave these out",
        ),
        (
            dataset(np.full((1, 1), 1e300), [0]),
            "x has 1 value that is not finite, in 1 sample (first: sample 0); "
            "fill them in, or leave these out",
        ),
        (
            dataset(ROWS, [0, 1, 2], public=np.zeros((0, 2))),
            "public is empty; give it at least one sample, or leave it out",
        ),
        (
            dataset(ROWS, [0, 1, 2], test=ROWS),
            "test is a ndarray; pass test=(x_test, y_test)",
        ),
        (
            dataset(torch.zeros(2, 2, dtype=torch.bfloat16), [0, 1]),
            "x is a Tensor that is no array: Got unsupported ScalarType BFloat16",
        ),
    ],
}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(*case, id=f"{what}-{number}")
        for what, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_a_wrong_object_is_answered_with_what_to_pass(call, said):
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value) == said


def test_federate_refuses_at_once_not_at_the_first_round():
    with pytest.raises(UserError, match="clients and task are swapped"):
        federate(fas(20), TASK, CLIENTS, rounds=1, cohort=2)  # type: ignore[arg-type]
    (record,) = run()
    with pytest.raises(UserError, match=r"state is a Record; pass .*record\.state"):
        federate(fas(20), CLIENTS, TASK, rounds=2, cohort=2, state=record)  # type: ignore[arg-type]


# --- a partition that is worked out on demand ---


@dataclass(frozen=True)
class OnDemand:
    """One sample for each of a million clients, and none for client 7."""

    asked: list[int]
    overlapping = True

    def __call__(self, labels, clients, generator):
        return LazyParts(clients, self.part)

    def part(self, client):
        self.asked.append(client)
        return np.arange(0 if client == 7 else 1)


def test_parts_on_demand_are_checked_when_they_are_asked_for_and_not_before():
    asked: list[int] = []
    million = deal(np.zeros(5, np.int64), 10**6, OnDemand(asked), rng(0))
    assert len(million) == 10**6 and asked == []
    assert million[3].tolist() == [0] and asked == [3]
    with pytest.raises(UserError, match="the partition gives client 7 no samples"):
        million[7]


def test_a_partition_may_be_named():
    named = make_clients(TASK.private, 4, "dirichlet(0.1)", "mlp", seed=3)
    made = make_clients(TASK.private, 4, Dirichlet(0.1), "mlp", seed=3)
    assert [c.data.samples.rows.tolist() for c in named] == [
        c.data.samples.rows.tolist() for c in made
    ]


# --- files ---


def test_files_that_are_no_data_set_are_answered_with_the_cure(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("a,b\n1,2\n")
    names = tmp_path / "names.npz"
    np.savez(names, x=ROWS, y=np.array(["a", "b", "a"], object))
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{}, {}, {}]), y=[0, 1, 2])
    for path, said in (
        (text, "is not an npz file; write one with np.savez(path, x=x, y=y)"),
        (names, f": y holds Python objects, not numbers; {UNIQUE}"),
        (objects, ": x holds Python objects, not numbers; save an array of numbers"),
    ):
        with pytest.raises(UserError) as caught:
            load_dataset(path)  # a Path is a name, too
        assert str(caught.value).replace(f"{path} ", "").replace(f"{path}", "") == said


# --- warnings ---


def heard(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call; each must point at this file, not into fedsift."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0, 1, 2], []),
        ([1, 2, 3], ["labels go from 1 to 3: they are taken as classes 0 to 2"]),
        ([0, 0, 0], ["all labels are 0: there is one class, and nothing to learn"]),
        (
            [0, 5, 9],
            [
                "7 of 10 classes never occur in y (1, 2, 3, ...); if they do not exist, "
                f"{UNIQUE}, else give classes=10"
            ],
        ),
        (
            [0, 1, 3],
            [
                "1 of 4 classes never occur in y (2); if they do not exist, "
                f"{UNIQUE}, else give classes=4"
            ],
        ),
    ],
)
def test_classes_that_never_occur_are_warned_of_unless_their_number_is_given(labels, said):
    assert heard(dataset(ROWS, labels)) == said
    assert heard(dataset(ROWS, labels, 10)) == []


def test_labels_with_wide_gaps_are_refused_only_where_they_would_cost_much():
    assert len(heard(dataset(ROWS, [0, 1, 999]))) == 1
    with pytest.raises(UserError, match="labels go up to 1000, but only 3 different ones occur"):
        make_dataset(ROWS, [0, 1, 1000])
    many = np.append(np.arange(200), 1999)
    assert len(heard(dataset(np.zeros((201, 1)), many))) == 1


class WithSoftmax(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes), nn.Softmax(1))


class WithLogSoftmax(nn.Sequential):  # harmless: softmax(log_softmax(x)) is softmax(x)
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes), nn.LogSoftmax(1))


@pytest.mark.parametrize("net", [WithSoftmax, WithLogSoftmax, "mlp"])
def test_a_network_that_ends_in_softmax_is_warned_of(net):
    clients = make_clients(TASK.private, 4, model=net)
    told = heard(lambda: federate(fas(20), clients, TASK, rounds=0, cohort=2))
    expected = "model 'WithSoftmax' seems to end in softmax; leave it out, the loss applies it"
    assert told == ([expected] if net is WithSoftmax else [])


def test_the_command_line_shows_a_warning_as_a_note(tmp_path):
    np.savez(tmp_path / "one.npz", x=np.zeros((60, 2)), y=np.arange(60) % 3 + 1)
    words = "data.name=npz:one.npz data.private=20 data.public=20 model=mlp clients=2 cohort=1"
    result = program(*f"run digits-fas {words} rounds=1 budget=5 --quiet".split(), cwd=tmp_path)
    assert result.stderr == "note: labels go from 1 to 3: they are taken as classes 0 to 2\n"
    assert result.returncode == 0


# --- training that diverges names the learning rate to lower ---

WILD = Recipe(epochs=2, lr=1e30)
LOCAL = "lower the learning rate (local.lr)"


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (fas(20, local=WILD, distill=QUICK), LOCAL),
        (fas(20, local=QUICK, distill=WILD), "diverged; lower distill.lr"),
        (fedsift.ds_fl(20, local=WILD, distill=QUICK), LOCAL),
        (fedsift.ds_fl(20, local=QUICK, distill=WILD), "diverged; lower distill.lr"),
        (fedsift.cfd(20, local=QUICK, distill=WILD), "diverged; lower distill.lr"),
        (fedsift.fedavg(local=WILD), "diverged; lower local.lr"),
        (fedsift.gossip(20, local=WILD, distill=QUICK), LOCAL),
        (fedsift.gossip(20, local=QUICK, distill=WILD), "diverged; lower distill.lr"),
    ],
)
def test_training_that_diverges_names_the_learning_rate(algorithm, said):
    with pytest.raises(UserError) as caught:
        run(algorithm=algorithm, rounds=3, cohort=4)
    assert str(caught.value).endswith(said)


# --- in a notebook ---


def test_objects_show_themselves_in_one_line():
    (record,) = run()
    labels = fedsift.SoftLabels(np.arange(2), np.full((2, 4), 0.25), np.array([1.0, 2.0]))
    own = make_dataset(ROWS, [0, 1, 2], test=(ROWS[:2], [0, 1]), public=ROWS)
    shown = [DATA, own, TASK, TASK.private, TASK.public, TASK.public.store]
    shown += [CLIENTS, CLIENTS[1], CLIENTS[1].model, labels, record.state.server]
    assert [repr(each) for each in shown] == [
        "Dataset(1797 samples of shape (1, 8, 8), 10 classes)",
        "Dataset(3 samples of shape (2,), 3 classes, 2 for the test, 3 public)",
        "Task(100 private, 50 public, 60 test, shape (1, 8, 8), 10 classes)",
        "Labelled(100 of shape (1, 8, 8), 10 classes)",
        "Samples(50 of shape (1, 8, 8))",
        "Store(1797 samples of shape (1, 8, 8), uint8)",
        "Clients(4, 100 private samples, models: mlp)",
        "Client(1, 25 samples, model 'mlp')",
        "Model('mlp', inputs (1, 8, 8), 10 classes)",
        "SoftLabels(2 samples, 4 classes, 3 votes)",
        "Server(students: mlp (4,810 weights), memory: ServerMemory)",
    ]
    assert repr(record.state) == "FederationState(round=1, students: mlp, 0 memories)"


def test_the_warning_of_a_data_file_points_at_the_line_that_loads_it(tmp_path):
    np.savez(tmp_path / "one.npz", x=ROWS, y=[1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_dataset(tmp_path / "one.npz")
    (told,) = caught
    line = Path(__file__).read_text().splitlines()[told.lineno - 1]
    assert line.strip() == 'load_dataset(tmp_path / "one.npz")'
