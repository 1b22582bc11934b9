"""A trained model outside of fedsift: the same weights, the same predictions, and a card."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedsift import config, evaluation, report, runs
from fedsift.engines import choose_engine
from fedsift.runs import export
from fedsift.types import UserError
from tests.helpers.runs import bits, play, resumed, straight, tiny
from tests.helpers.tiers import slow_but


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CNN that is better than chance."""
    experiment = config.read_experiment("digits-fas", ["rounds=2", "device=cpu"])
    return straight(tmp_path_factory.mktemp("runs") / "cnn", experiment)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two architectures, and clients that keep their own models."""
    models = 'clients.models={"mlp" = 2, "mlp(width=0.5)" = 2}'
    experiment = tiny("digits-fas-soft-down", models, "cohort=4", rounds=1)
    return straight(tmp_path_factory.mktemp("runs") / "mixed", experiment)


def plain_cnn() -> nn.Module:
    """As somebody would write it who has never heard of fedsift."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def raw_test(folder: Path) -> tuple[torch.Tensor, np.ndarray]:
    """The test samples as they came, and their classes."""
    test = config.build_task(runs.read_config(folder)).test
    return test.samples.store.values[torch.from_numpy(test.samples.rows)], test.labels


def normalise(x: torch.Tensor, card: dict[str, Any]) -> torch.Tensor:
    return (x.float() - torch.tensor(card["inputs"]["mean"])) / torch.tensor(card["inputs"]["std"])


def test_plain_pytorch_has_the_accuracy_of_the_run_to_the_last_digit(trained, tmp_path):
    history = runs.load_run(trained)
    card = export.export_model(history, tmp_path / "model.safetensors")
    assert card == json.loads((tmp_path / "model.card.json").read_text())
    x, labels = raw_test(trained)

    net = plain_cnn()
    net.load_state_dict(load_file(tmp_path / "model.safetensors"))
    right = net.eval()(normalise(x, card)).argmax(1).numpy() == labels

    assert float(np.mean(right)) == history.accuracies[-1] == card["accuracy"]
    assert history.accuracies[-1] > 0.6


def test_the_card_says_what_the_model_is(trained, tmp_path):
    history = runs.load_run(trained)
    card = export.export_model(history, tmp_path / "model.safetensors")
    assert card["classes"] == [str(digit) for digit in range(10)]
    assert card["inputs"]["shape"] == [1, 8, 8] and card["inputs"]["std"] == 16.0
    assert (card["model"], card["parameters"]) == ("cnn", 6090)
    assert (card["round"], card["chosen"], card["measured_on"]) == (2, "last", "test")
    assert "Conv2d(1, 16, kernel_size=(3, 3)" in card["architecture"]
    assert card["data"]["sha256"] == history.data["sha256"]
    assert card["made_by"]["command"] and card["config"]["algorithm"]["name"] == "fas"


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is")  # what torch plans for TorchScript
@pytest.mark.parametrize("form", slow_but(["torch-export", "torchscript", "onnx"], "torchscript"))
def test_a_program_predicts_what_the_network_predicts(form, trained, tmp_path):
    export.export_model(runs.load_run(trained), tmp_path / "model", form=form)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = runs.load_run(trained).network()(x).numpy()
    assert np.allclose(answer(form, tmp_path / "model", x), expected, atol=1e-5)
    assert answer(form, tmp_path / "model", x[:1]).shape == (1, 10)  # of any number of samples


def answer(form: str, path: Path, x: torch.Tensor) -> np.ndarray:
    if form == "onnx":
        import onnx
        from onnx.reference import ReferenceEvaluator

        (logits,) = ReferenceEvaluator(onnx.load(path)).run(["logits"], {"x": x.numpy()})
        return np.asarray(logits)
    load = torch.export.load if form == "torch-export" else torch.jit.load
    program = load(path)
    net = program.module() if form == "torch-export" else program
    with torch.no_grad():
        return net(x).numpy()


def test_onnx_is_refused_in_words_where_the_package_is_missing(trained, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name)
    )
    with pytest.raises(UserError, match=r"--onnx needs onnx, .*pip install 'fedsift\[onnx\]'"):
        export.export_model(runs.load_run(trained), tmp_path / "model.onnx", form="onnx")


def test_of_several_models_one_is_named(mixed, tmp_path):
    history = runs.load_run(mixed)
    for name in history.metrics[-1]["accuracies"]:
        card = export.export_model(history, tmp_path / "model.safetensors", name=name)
        assert card["accuracy"] == history.metrics[-1]["accuracies"][name]
    assert isinstance(history.network("client 3"), nn.Module)
    with pytest.raises(UserError, match="name one"):
        history.network()
    with pytest.raises(UserError, match="unknown model 'cnn'"):
        history.network("cnn")


def test_an_estimator_is_refused_in_words(tmp_path):
    models = 'clients.models={"sklearn:GaussianNB" = 2, "mlp" = 2}'
    experiment = tiny("digits-fas-soft-down", models, "cohort=4", rounds=1)
    history = runs.load_run(straight(tmp_path / "run", experiment))
    with pytest.raises(UserError, match="client 0 has sklearn:GaussianNB, which is no network"):
        history.network("client 0")
    assert {"local_loss", "macro_f1"} <= history.metrics[0].keys()


def test_other_data_than_those_of_the_run_are_refused(trained, tmp_path):
    history = runs.load_run(trained)
    (tmp_path / "data.json").write_text("{}")
    changed = runs.History(**(vars(history) | {"data": history.data | {"sha256": "0"}}))
    with pytest.raises(UserError, match="the data are not those"):
        export.export_model(changed, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


# --- the best round ---


def validated(rounds: int = 4) -> config.Experiment:
    return tiny("digits-fas", "data.validation=50", "local.epochs=3", rounds=rounds)


def test_the_best_round_is_that_of_the_highest_validation_accuracy(tmp_path):
    experiment = validated()
    run = runs.begin_run(tmp_path / "run", experiment)
    played = [record for _, record in runs.Group.of([run]).run_or_raise(choose_engine()[0])]
    accuracies = [record.accuracy for record in played]
    best = int(np.argmax(accuracies))
    history = runs.load_run(run.folder)
    assert (kept := runs.best_state(run.folder)) and kept.round == best + 1
    found = history.network(round="best").state_dict()
    student = played[best].state.server.students["mlp"]
    assert all(torch.equal(found[name], student[name]) for name in student)
    card = export.export_model(history, tmp_path / "best.safetensors", round="best")
    assert (card["round"], card["accuracy"]) == (best + 1, max(accuracies))
    held_out = config.build_task(experiment).held_out
    with torch.no_grad():
        logits = history.network(round="best")(held_out.samples.tensor()).numpy()
    assert evaluation.accuracy(logits, held_out.labels) == max(accuracies)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_keeps_the_same_best_round(stop, tmp_path):
    whole = straight(tmp_path / "whole", validated())
    parts = straight(tmp_path / "parts", validated(), stop)
    if stop == 2:  # killed between the best models and the checkpoint of a round: played again
        (parts / runs.BEST).write_bytes(b"of a round that is not finished")
        (parts / runs.CHECKPOINT).unlink()
        for name in (runs.METRICS, runs.LEDGER, runs.TIMING):
            first, *_ = (parts / name).read_text().splitlines()
            (parts / name).write_text(first + "\n")
    resumed(parts)
    assert (parts / runs.BEST).read_bytes() == (whole / runs.BEST).read_bytes()
    assert bits(parts) == bits(whole)


# --- stopping early ---


def patient(*settings: str) -> config.Experiment:
    """A run that learns little, so it soon has rounds without a better one."""
    return tiny("digits-fas", "data.validation=50", "patience=2", *settings, rounds=12)


def test_stalled_by_hand():
    assert not evaluation.has_stalled([0.5, 0.6, 0.6], 2)  # the best is one round ago
    assert evaluation.has_stalled([0.5, 0.6, 0.6, 0.4], 2)
    assert evaluation.has_stalled([0.5, 0.5], 1) and not evaluation.has_stalled([0.5], 1)
    assert not evaluation.has_stalled([0.9, 0.1, 0.1], None)
    assert not evaluation.has_stalled([], 1)


def test_a_run_stops_after_its_patience_and_not_before(tmp_path):
    folder = straight(tmp_path / "run", patient())
    history = runs.load_run(folder)
    accuracies = history.accuracies
    assert len(accuracies) < 12 and history.stopped_early and runs.is_finished(folder)
    assert len(accuracies) - 1 - int(np.argmax(accuracies)) == 2
    whole = straight(tmp_path / "whole", tiny("digits-fas", "data.validation=50", rounds=12))
    assert runs.load_run(whole).accuracies[: len(accuracies)] == accuracies
    before = bits(folder)
    assert not runs.Group({folder: patient()}).unfinished  # nothing is left to resume
    assert bits(folder) == before


@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_stops_at_the_same_round(stop, tmp_path):
    whole = straight(tmp_path / "whole", patient())
    parts = resumed(straight(tmp_path / "parts", patient(), stop))
    assert bits(parts) == bits(whole)
    assert (parts / runs.BEST).read_bytes() == (whole / runs.BEST).read_bytes()


def test_seeds_that_stop_at_different_rounds_are_one_method(tmp_path):
    folders = [straight(tmp_path / f"{seed}", patient(f"seed={seed}")) for seed in (0, 1, 2)]
    histories = [runs.load_run(folder) for folder in folders]
    lengths = [len(history.metrics) for history in histories]
    (method,) = report.methods(histories)
    assert len(set(lengths)) > 1 and method.label == "digits-fas"
    assert method.row()["rounds"] == round(float(np.mean(lengths)))
    assert "rounds run" not in report.unpaired(histories)


def test_patience_without_validation_samples_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"patience stops .* set data.validation=100"):
        runs.begin_run(tmp_path / "run", tiny("digits-fas", "patience=2"))
    assert not (tmp_path / "run").exists()


def test_the_test_samples_never_choose_a_round(trained):
    with pytest.raises(UserError, match="no validation samples to choose its best round by"):
        runs.load_run(trained).network(round="best")
    assert not (trained / runs.BEST).exists()


def test_a_damaged_file_of_best_models_is_one_sentence(tmp_path):
    folder = play(runs.begin_run(tmp_path / "run", validated(1)))
    (folder / runs.BEST).write_bytes(b"\0" * 100)
    with pytest.raises(UserError, match=r"cannot read .*best.safetensors"):
        runs.load_run(folder).network(round="best")
    (folder / runs.BEST).unlink()
    with pytest.raises(UserError, match="the models of its best round are not kept"):
        runs.load_run(folder).network(round="best")


def test_a_round_is_the_last_or_the_best(trained):
    with pytest.raises(UserError, match="round is 'last' or 'best', not '3'"):
        runs.load_run(trained).network(round="3")
