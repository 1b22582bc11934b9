"""`fedsift run`: folders, progress, tables, overrides and resume."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsift import config, runs
from fedsift.algorithms import SoftLabelFD
from fedsift.cli.progress import describe_models, run_group
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.models import make_model
from tests.helpers.cli import CHOSEN, FAS, SUMMARY, done, everything, program, rows
from tests.helpers.runs import TINY, bits, lines, rounds_in, straight, tiny

ODD = """
import torch

class Odd(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.out = torch.nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(x) if x.sum() > 0 else self.out(-x)
"""


QUICK = ("digits-fas", "rounds=1", "local.epochs=1", "distill.epochs=1", "device=cpu")


def test_a_run_says_what_was_chosen_and_how_each_architecture_is_run(tmp_path, monkeypatch):
    """A network whose way hangs on its data cannot be stacked, and the reason is named."""
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    stacked = done("run", *QUICK, "--out", "a").stderr
    assert re.search(rf"^digits-fas: {CHOSEN}\n  cnn: stacked \(known layers\)$", stacked, re.M)
    mixed = done("run", *QUICK, "clients.models={cnn=10, 'odd:Odd'=10}", "--out", "b").stderr
    assert "  cnn: stacked (known layers)\n" in mixed
    assert re.search(
        r"^  odd:Odd: one by one, \d+ at a time \(.*data-dependent.*\)$", mixed, re.M
    ), mixed
    alone = done("run", *QUICK, "engine=sequential", "--out", "c").stderr
    assert "sequential engine on cpu" in alone and "stacked" not in alone


@pytest.mark.slow
def test_json_is_one_object_on_stdout_and_nothing_else():
    result = program("run", *FAS, "rounds=7", "--out", "here/fas", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    summary = json.loads(result.stdout)
    assert list(summary) == SUMMARY
    metrics, ledger = lines(Path("here/fas/metrics.jsonl")), lines(Path("here/fas/ledger.jsonl"))
    accuracies = [row["accuracy"] for row in metrics]
    assert (summary["run"], summary["rounds"], len(metrics)) == ("here/fas", 7, 7)
    assert summary["accuracy"] == pytest.approx(sum(accuracies[-5:]) / 5, abs=5e-7)
    assert summary["accuracy_last"] == pytest.approx(accuracies[-1], abs=5e-7)
    assert summary["uplink_bytes"] == sum(sum(row["up"].values()) for row in ledger)
    assert summary["downlink_bytes"] == sum(sum(row["down"].values()) for row in ledger)
    assert summary["seconds"] == pytest.approx(
        sum(r["seconds"] for r in lines(Path("here/fas/timing.jsonl"))), abs=1e-3
    )
    assert {path.name for path in Path("here/fas").iterdir()} == runs.OURS
    assert list(Path().iterdir()) == [Path("here")]


def test_a_run_of_the_program_has_the_bits_of_a_run_of_the_library(tmp_path):
    done("run", *FAS, "rounds=3", "--out", "program")
    assert bits(Path("program")) == bits(straight(tmp_path / "library", tiny()))


def test_without_out_every_run_gets_a_folder_of_its_own_under_runs():
    for _ in range(2):
        done("run", *FAS, "rounds=1", "--quiet")
    first, second = sorted(Path("runs").iterdir())
    assert all(re.fullmatch(r"digits-fas-\d{8}-\d{6}(-1)?", path.name) for path in (first, second))
    assert bits(first) == bits(second)


def test_a_quiet_run_says_its_folder_and_nothing_else():
    result = done("run", *FAS, "rounds=1", "--out", "fas", "--quiet")
    assert (result.stdout, result.stderr) == ("fas\n", "")
    assert rounds_in(Path("fas")) == 1


def test_a_quiet_run_without_out_says_the_folder_it_has_made():
    for words in ([], ["--seeds", "2"]):
        result = done("run", *FAS, "rounds=1", "--quiet", *words)
        assert result.stderr == "" and result.stdout.startswith("runs/digits-fas-")
        assert Path(result.stdout.removesuffix("\n")).is_dir()


def test_progress_goes_to_stderr_a_line_a_round():
    result = done("run", *FAS, "rounds=2", "--out", "fas", "--json")
    json.loads(result.stdout)
    accuracies = [f"{row['accuracy']:.3f}" for row in lines(Path("fas/metrics.jsonl"))]
    told = [line for line in result.stderr.splitlines() if line.startswith("round ")]
    assert told == [f"round {n}/2  accuracy digits-fas {a}" for n, a in enumerate(accuracies, 1)]


def test_on_a_terminal_there_is_a_bar_that_ends_full(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = done("run", *FAS, "rounds=2", "--out", "fas", "--json")
    assert list(json.loads(result.stdout)) == SUMMARY
    assert "2/2" in result.stderr and "digits-fas seed 0" in result.stderr


def test_the_table_of_a_run_holds_its_figures():
    result = done("run", *FAS, "rounds=2", "--out", "fas")
    summary = runs.load_run(Path("fas")).summary()
    assert rows(result.stdout)[0][:5] == [
        "digits-fas",
        "1",
        f"{summary['accuracy']:.3f}",
        "265 B",
        "1.1 kB",
    ]
    assert summary["uplink_bytes"] == 4 * 265
    assert result.stdout.endswith("run folder: fas\n")


def test_a_name_with_square_brackets_is_printed_as_it_is():
    result = done("run", *FAS, "rounds=1", "name=a[/b] [red]", "--out", "fas")
    assert rows(result.stdout)[0][0] == "a[/b] [red]"


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("engine", "sequential", "sequential engine on "),
        ("device", "cpu", "batched engine on cpu, float32"),
        ("precision", "bfloat16", "batched engine on cpu, bfloat16"),
        ("precision", "auto", "batched engine on cpu, float32"),
    ],
)
def test_engine_device_and_precision_are_options_and_are_kept(key, value, said):
    done(
        "run",
        "digits-fas",
        *TINY[:-1],
        "rounds=1",
        "budget=6",
        "model=mlp",
        "--out",
        "fas",
        f"--{key}",
        value,
    )
    assert f'{key} = "{value}"' in Path("fas/config.toml").read_text()
    assert runs.load_run(Path("fas")).environment["engine"].startswith(said)


@pytest.mark.parametrize(
    ("device", "precision", "told"),
    [("cuda", "float32", True), ("cuda", "auto", True), ("cuda", "tf32", False),
     ("cpu", "float32", False)],
)  # fmt: skip
def test_a_run_in_float32_on_a_gpu_says_what_is_faster(device, precision, told):
    model = make_model("cnn", (1, 8, 8), 3)
    engine = SimpleNamespace(describe=lambda model: "cnn: stacked")
    federation = SimpleNamespace(clients=SimpleNamespace(models=[model] * 3))
    experiment = SimpleNamespace(device=device, precision=precision)
    run: Any = SimpleNamespace(federation=federation, experiment=experiment)
    first, *others = describe_models(engine, [run, run])
    assert first == "  cnn: stacked"
    assert [line.startswith("  products in float32; tf32") for line in others] == [True] * told


def test_short_names_and_full_paths_set_the_same_keys():
    short = {
        "alpha": "0.5",
        "clients": "5",
        "cohort": "3",
        "model": "mlp",
        "sampler": "margin",
        "budget": "7",
        "codec": "float16",
        "aggregator": "era(0.5)",
        "algorithm": "fd",
    }
    assert short.keys() == config.SHORT.keys()
    rest = [
        "rounds=1",
        "data.private=40",
        "data.public=30",
        "local.epochs=1",
        "distill.epochs=1",
        "--quiet",
    ]
    done("run", "digits-fas", *rest, *(f"{k}={v}" for k, v in short.items()), "--out", "short")
    done(
        "run",
        "digits-fas",
        *rest,
        *(f"{config.SHORT[k]}={v}" for k, v in short.items()),
        "--out",
        "full",
    )
    assert bits(Path("short")) == bits(Path("full"))
    stored = runs.load_run(Path("short")).experiment
    assert (stored.partition.alpha, stored.clients.count, stored.clients.cohort) == (0.5, 5, 3)
    assert (stored.algorithm.sampler, stored.algorithm.budget, stored.algorithm.name) == (
        "margin",
        7,
        "fd",
    )


def test_an_override_the_algorithm_does_not_use_is_noted():
    result = done(
        "run", "digits-fedavg", *TINY, "model=mlp", "rounds=1", "sampler=mixed", "--out", "avg"
    )
    assert "note: this experiment does not use algorithm.sampler\n" in result.stderr
    assert "algorithm.budget" not in result.stderr


def test_an_override_that_the_mode_of_sift_does_not_use_is_noted_with_the_reason():
    given = ("sampler=margin", "distill.lr=0.5", "local.lr=0.02", "algorithm.replay=3")
    short = (*TINY, "model=cnn", "rounds=1", "algorithm.bytes=600")
    result = done("run", "digits-sift", *short, *given, "--out", "sift")
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    why = "is not used: 600 bytes hold weights; set mode=labels"
    keys = ("distill.epochs", "algorithm.sampler", "distill.lr")
    assert notes == [f"note: {key} {why}" for key in keys]


def test_a_term_of_0_that_sift_replaces_is_noted_with_what_to_set():
    short = (*TINY, "model=mlp", "rounds=1", "algorithm.mode=labels")
    result = done("run", "digits-sift", *short, "local.prior=0", "distill.mixup=0", "--out", "sift")
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    why = "is not used: 0 leaves it to sift's own value; set algorithm"
    assert notes == [f"note: local.prior {why}.prior=0", f"note: distill.mixup {why}.mixup=0"]


def test_a_stopped_run_says_where_it_goes_on_and_ends_as_if_never_stopped(tmp_path):
    straight(Path("half"), tiny(rounds=4), 3)
    result = done("run", "--resume", "--out", "half", "--json")
    assert "resuming after round 3 of 4\n" in result.stderr
    assert json.loads(result.stdout)["rounds"] == 4
    assert bits(Path("half")) == bits(straight(tmp_path / "whole", tiny(rounds=4)))


def test_resuming_a_finished_run_prints_the_same_summary():
    first = done("run", *FAS, "rounds=2", "--out", "fas", "--json").stdout
    before = everything()
    assert done("run", "--resume", "--out", "fas", "--json").stdout == first
    assert done("run", *FAS, "rounds=2", "--resume", "--out", "fas", "--json").stdout == first
    assert everything() == before


def test_resume_of_a_folder_that_is_not_there_yet_starts_it():
    assert (
        json.loads(done("run", *FAS, "rounds=1", "--resume", "--out", "fas", "--json").stdout)[
            "rounds"
        ]
        == 1
    )


def test_a_client_whose_message_is_refused_is_named_once(tmp_path, monkeypatch, capsys):
    """It is a defect, or an attack that was asked for: either way it must be seen."""

    def refuse(self, server, client, upload, r):
        if client == 2:
            raise WireError("it is not to my taste")
        return honest(self, server, client, upload, r)

    honest = SoftLabelFD.check_upload
    monkeypatch.setattr(SoftLabelFD, "check_upload", refuse)
    settings = ["rounds=3", "clients=5", "cohort=5", "local.epochs=1", "distill.epochs=1"]
    experiment = config.read_experiment("digits-fas", [*settings, "model=mlp", "device=cpu"])
    run = runs.begin_run(tmp_path / "run", experiment)
    run_group(runs.Group.of([run]), choose_engine()[0], quiet=True)
    said = "round 1 without client 2: its message is refused: it is not to my taste\n"
    assert capsys.readouterr().err == said
    assert ["2" in row["missing"] for row in lines(run.folder / runs.LEDGER)] == [True] * 3
