"""Starting weights: what is made, kept, resumed and read from files, and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedsift
from fedsift import models, starts
from fedsift.engines import choose_engine
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation, FederationState, start_federations
from fedsift.pretexts import Rotation, SimClr
from fedsift.starts import StartFile, Wanted, make_starts, read_start, read_weights
from fedsift.types import Model, Pretrain, UserError
from tests.helpers import toys
from tests.helpers.parity import same

pytestmark = pytest.mark.usefixtures("own_data_folder")
SHORT = SimClr(epochs=3, batch=16)
QUICK = fedsift.Recipe(epochs=1)


def digits(public=40, seed=0):
    data = fedsift.load_dataset("digits")
    return fedsift.split(data, private=60, public=public, test=200, seed=seed)


def cnn(classes=10):
    return models.make_model("cnn", (1, 8, 8), classes)


def wanted(start=SHORT, model=None, seed=0, public=40):
    return Wanted(start, model or cnn(), digits(public, seed).public, seed)


class Counting:
    """Counts the epochs that are trained, and may stop after some jobs."""

    def __init__(self, stop_after=None):
        self.inner, self.epochs, self.left = SequentialEngine("cpu", 1), [], stop_after

    device = property(lambda self: self.inner.device)
    precision = property(lambda self: self.inner.precision)

    def run(self, jobs):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        self.epochs += [job.epoch for job in jobs if isinstance(job, Pretrain)]
        return self.inner.run(jobs)

    def describe(self, model):
        return ""


def make(one, engine=None):
    (found,) = make_starts([one], engine or Counting())
    if isinstance(found, Exception):
        raise found
    return found


# --- what is made ---


def test_the_body_is_trained_and_the_head_is_the_ordinary_one():
    first, found = models.initial_state(cnn(), 0), make(wanted())
    assert list(found) == list(first)
    head = starts.find_head(cnn())
    for name in first:
        assert torch.equal(first[name], found[name]) == name.startswith(f"{head}."), name


@pytest.mark.parametrize(
    ("model", "head"),
    [("cnn", "7"), ("mlp", "3"), ("resnet8", "head"), ("resnet8(norm=group)", "head")],
)
def test_the_head_is_the_last_linear_layer(model, head):
    assert starts.find_head(models.make_model(model, (3, 8, 8), 10)) == head


def test_equal_starts_are_made_once_and_side_by_side(monkeypatch):
    monkeypatch.setattr(starts, "STAGE", 2)
    engine = Counting()
    same_task = digits().public
    twice = [Wanted(SHORT, cnn(), same_task, 0), wanted()]  # another object, the same content
    a, b, c = make_starts([*twice, wanted(seed=1)], engine)
    assert engine.epochs == [0, 0, 2, 2]
    assert same(a, b) and not same(a, c)


def test_a_start_that_fails_fails_alone():
    bad = wanted(StartFile("nowhere.safetensors"))
    fine, failed = make_starts([wanted(), bad], Counting())
    assert "no such file" in str(failed) and not isinstance(fine, Exception)


def test_a_training_that_diverges_says_so():
    with pytest.raises(UserError, match="not finite: the start diverged; lower its lr"):
        make(wanted(replace(SHORT, lr=1e30)))


def test_progress_is_told_stage_by_stage(monkeypatch):
    monkeypatch.setattr(starts, "STAGE", 1)
    told = []
    make_starts([wanted(), wanted(seed=1)], Counting(), lambda *figures: told.append(figures))
    assert told == [(0, 3), (0, 6), (2, 6), (4, 6), (6, 6)]


def test_rotation_is_learnt_above_chance(monkeypatch):
    ends = []
    monkeypatch.setattr(starts.Shelf, "keep_stage", lambda self, epoch, end: ends.append(end))
    one = wanted(Rotation(epochs=40), public=400)
    make(one)
    net = starts.WithHead(cnn(), "7", one.start)((1, 8, 8), 4)
    net.load_state_dict(ends[-1].state)
    x = one.public.tensor()
    with torch.no_grad():
        right = [(net(torch.rot90(x, t, (2, 3))).argmax(1) == t).float().mean() for t in range(4)]
    assert torch.stack(right).mean() > 0.5  # chance is 0.25


# --- what is kept ---


def test_a_start_is_made_once_and_then_read(own_data_folder):
    first, engine = make(wanted()), Counting()
    assert same(make(wanted(), engine), first) and engine.epochs == []
    (kept,) = (own_data_folder / "starts").iterdir()
    assert kept.name.startswith("simclr-cnn-seed0-")
    assert same(load_file(kept), {n: v for n, v in first.items() if not n.startswith("7.")})


@pytest.mark.parametrize(
    "other",
    [
        wanted(replace(SHORT, temperature=0.4)),
        wanted(Rotation(epochs=3)),
        wanted(seed=1),
        wanted(public=39),
        wanted(model=cnn(classes=9)),
        wanted(model=models.make_model("mlp", (1, 8, 8), 10)),
    ],
)
def test_anything_else_is_another_start(other):
    make(wanted())
    engine = Counting()
    make(other, engine)
    assert engine.epochs == [0]


def test_a_factory_that_computes_something_else_is_another_start():
    class Net(nn.Sequential):
        gain = 1.0

        def __init__(self, shape, classes):
            super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))

        def forward(self, x):
            return super().forward(self.gain * x)

    one, engine = wanted(model=Model("net", Net, (1, 8, 8), 10)), Counting()
    make(one, engine)
    Net.gain = 2.0
    make(one, engine)
    assert engine.epochs == [0, 0]


@pytest.mark.parametrize("stop", [1, 2])
def test_a_training_that_is_stopped_goes_on_bit_for_bit(stop, monkeypatch, own_data_folder):
    monkeypatch.setattr(starts, "STAGE", 1)
    with monkeypatch.context() as aside:
        aside.setenv("FEDSIFT_DATA", str(own_data_folder / "aside"))
        straight = make(wanted())
    with pytest.raises(KeyboardInterrupt):
        make(wanted(), Counting(stop_after=stop))
    (part,) = (own_data_folder / "starts").iterdir()
    assert part.name.endswith(".part.safetensors")
    engine = Counting()
    assert same(make(wanted(), engine), straight)
    assert engine.epochs == list(range(stop, 3))
    (kept,) = (own_data_folder / "starts").iterdir()
    assert not kept.name.endswith(".part.safetensors")


def damage_bytes(path):
    path.write_bytes(path.read_bytes()[:-9])


def damage_shape(path):
    tensors = load_file(path)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name][:1].clone()}, path, {"epoch": "1"})


def damage_values(path):
    tensors = load_file(path)
    name = next(name for name, value in tensors.items() if value.is_floating_point())
    save_file(tensors | {name: tensors[name] * torch.nan}, path, {"epoch": "1"})


def damage_names(path):
    tensors = load_file(path)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, path, {"epoch": "1"})


def damage_epoch(path):
    save_file(load_file(path), path, {"epoch": "99"})


def damage_epoch_badly(path):
    save_file(load_file(path), path, {"epoch": "9" * 5000})


@pytest.mark.parametrize("damage", [damage_bytes, damage_shape, damage_values, damage_names])
def test_a_damaged_start_is_made_again(damage, own_data_folder):
    first = make(wanted())
    (kept,) = (own_data_folder / "starts").iterdir()
    damage(kept)
    engine = Counting()
    with pytest.warns(UserWarning, match="the start is made again"):
        assert same(make(wanted(), engine), first)
    assert engine.epochs == [0]


@pytest.mark.parametrize(
    "damage",
    [damage_bytes, damage_shape, damage_values, damage_names, damage_epoch, damage_epoch_badly],
)
def test_a_damaged_stage_is_made_again(damage, monkeypatch, own_data_folder):
    monkeypatch.setattr(starts, "STAGE", 1)
    with pytest.raises(KeyboardInterrupt):
        make(wanted(), Counting(stop_after=1))
    (part,) = (own_data_folder / "starts").iterdir()
    damage(part)
    engine = Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(wanted(), engine)
    assert engine.epochs == [0, 1, 2]


def test_a_start_that_cannot_be_kept_is_used_all_the_same(own_data_folder):
    own_data_folder.write_text("not a folder")
    with pytest.warns(UserWarning, match="the start cannot be kept"):
        assert make(wanted())


# --- files ---


def a_file(tmp_path, tensors, name="weights.safetensors"):
    save_file(tensors, tmp_path / name)
    return wanted(StartFile(str(tmp_path / name)))


def test_a_file_of_the_body_gets_the_ordinary_head(tmp_path):
    other = models.initial_state(cnn(), 5)
    body = {name: value for name, value in other.items() if not name.startswith("7.")}
    assert same(make(a_file(tmp_path, body)), models.initial_state(cnn(), 0) | body)


def test_a_file_of_the_whole_network_is_taken_as_a_whole(tmp_path):
    other = models.initial_state(cnn(), 5)
    assert same(make(a_file(tmp_path, other)), other)


def test_a_head_for_other_classes_is_left_out(tmp_path):
    other = models.initial_state(cnn(classes=4), 5)
    first = models.initial_state(cnn(), 0)
    found = make(a_file(tmp_path, other))
    assert torch.equal(found["7.weight"], first["7.weight"])
    assert torch.equal(found["0.weight"], other["0.weight"])


def test_halves_are_widened(tmp_path):
    halves = {n: v.half() for n, v in models.initial_state(cnn(), 5).items()}
    found = make(a_file(tmp_path, halves))
    assert {value.dtype for value in found.values()} == {torch.float32}


def test_what_was_kept_serves_as_a_file(own_data_folder):
    made = make(wanted())
    (kept,) = (own_data_folder / "starts").iterdir()
    assert same(make(wanted(StartFile(str(kept)))), made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t | {"8.weight": torch.zeros(2)}, "has 8.weight, which cnn does not"),
        (lambda t: {n: v for n, v in t.items() if n != "0.bias"}, "lacks 0.bias"),
        (lambda t: t | {"0.bias": torch.zeros(3)}, r"0.bias is \(3,\), not \(16,\)"),
        (lambda t: t | {"0.bias": torch.zeros(16, dtype=torch.int32)}, "0.bias is I32, not float"),
        (lambda t: t | {"0.bias": torch.full((16,), torch.nan)}, "0.bias is not finite"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        make(a_file(tmp_path, change(models.initial_state(cnn(), 5))))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.safetensors").write_text("hello, this is no such file at all")
    with pytest.raises(UserError, match="is not a safetensors file"):
        make(wanted(StartFile(str(tmp_path / "text.safetensors"))))
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(UserError, match="no such file"):
        make(wanted(StartFile(str(tmp_path / "folder.safetensors"))))


# --- what is said ---


def test_what_start_may_say():
    assert read_start(None) is read_start("none") is None
    assert read_start("simclr(epochs=5)") == SimClr(epochs=5)
    assert read_start("rotation") == Rotation()
    assert read_start(SHORT) is SHORT
    assert read_start("a/b.safetensors") == StartFile("a/b.safetensors")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("simcrl", "unknown start 'simcrl'; did you mean 'simclr'"),
        ("simclr(epoch=5)", "unexpected keyword argument 'epoch'"),
        ("simclr(epochs=0)", "epochs must be a whole number"),
        ("weights/body.pt", "ends in .safetensors"),
        (SimClr, "start is the class SimClr"),
        (7, "start is 7"),
    ],
)
def test_what_start_may_not_say(what, said):
    with pytest.raises(UserError, match=said):
        read_start(what)


class Squashed(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return torch.tanh(self.layer(x.flatten(1)))


def only_linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def federation(algorithm=None, model="cnn", start="simclr(epochs=3, batch=16)", task=None):
    task = task or digits()
    clients = fedsift.make_clients(task.private, 4, model=model)
    algorithm = algorithm or fedsift.fas(5, local=QUICK, distill=QUICK)
    return Federation(algorithm, clients, task, 2, 0, read_start(start))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": Squashed}, "last layer, and that of model 'Squashed' is not an nn.Linear"),
        ({"model": only_linear}, "'only_linear' is not an nn.Linear"),
        ({"algorithm": fedsift.fd_jeong()}, "sends no model down"),
        ({"model": {"cnn": 2, "mlp": 2}, "start": "a.safetensors"}, "fits one model"),
    ],
)
def test_what_cannot_be_started_is_refused_before_any_training(options, said):
    with pytest.raises(UserError, match=said):
        federation(**options).start()


def test_rows_are_refused():
    x = np.random.default_rng(0).normal(size=(120, 6))
    task = fedsift.split(fedsift.make_dataset(x, np.arange(120) % 3), private=60, public=40)
    for start in ("simclr", "rotation"):
        with pytest.raises(UserError, match=f"start={start} needs images"):
            federation(model="mlp", start=start, task=task).start()


# --- federations ---


def accuracies(rounds=2, **options):
    task = digits()
    clients = fedsift.make_clients(task.private, 4, model="cnn")
    records = fedsift.federate(
        fedsift.fas(10, local=QUICK, distill=QUICK), clients, task, rounds=rounds, cohort=2,
        engine=choose_engine("auto", "cpu")[0], **options,
    )  # fmt: skip
    return [record.accuracy for record in records]


def test_a_federation_starts_from_it_and_repeats_itself():
    plain, started = accuracies(), accuracies(start="simclr(epochs=3, batch=16)")
    assert started != plain and started == accuracies(start="simclr(epochs=3, batch=16)")
    assert accuracies(start="none") == plain


def test_mixed_models_have_a_start_each():
    mixed = federation(model={"cnn": 2, "mlp": 2})
    (state,) = start_federations([mixed], Counting())
    assert isinstance(state, FederationState)
    for model in mixed.clients.models:
        assert not same(state.server.students[model.name], models.initial_state(model, 0))


def test_a_file_with_variances_below_0_is_refused(tmp_path):
    """A batch norm takes their root."""
    model = toys.model(toys.with_batch_norm)
    path, weights = tmp_path / "w.safetensors", models.initial_state(model, 0)
    save_file(weights | {"0.running_var": torch.tensor([1.0, -1.0])}, path)
    with pytest.raises(UserError, match=r"0\.running_var has variances below 0"):
        read_weights(StartFile(str(path)), model, 0)
