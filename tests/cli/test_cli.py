"""The program as a user meets it: every verb, every mistake, Ctrl-C."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsift import __version__, config, runs, sweeps
from tests.helpers.cli import MAGIC, by_shell, complaint, done, fedsift, interrupted, program, rows
from tests.helpers.runs import KINDS, PROGRAM, TINY, bits, lines, rounds_in, straight, tiny

FAS = ["digits-fas", *KINDS["digits-fas"]]
VERBS = [
    "demo",
    "run",
    "ls",
    "new",
    "show",
    "compare",
    "plot",
    "reproduce",
    "theory",
    "data",
    "flower",
    "bench",
]
SUMMARY = [
    "run",
    "rounds",
    "accuracy",
    "accuracy_last",
    "uplink_bytes",
    "downlink_bytes",
    "seconds",
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def everything() -> dict[str, bytes]:
    """All files below the working folder."""
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


# --- help and version ---


def test_the_version_is_the_packages():
    result = program("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"fedsift {__version__}\n", "")


def test_help_names_every_verb_and_needs_neither_torch_nor_numpy():
    look = (
        "import sys; from fedsift.cli import app; app(['--help'], standalone_mode=False); "
        "print(sorted({'torch', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *help, heavy = result.stdout.splitlines()
    assert heavy == "[]"
    assert [found[1] for line in help if (found := re.match(r"│ ([a-z]+)  ", line))] == VERBS


@pytest.mark.parametrize(
    "verb, words",
    {
        "demo": ["--out", "--seeds", "--rounds", "--quiet"],
        "run": [
            "--out",
            "--engine",
            "--device",
            "--seeds",
            "--resume",
            "--quiet",
            "--json",
            "key=value",
        ],
        "ls": ["KIND"],
        "new": ["PRESET", "FILE"],
        "show": ["RUN", "--json"],
        "compare": ["FOLDERS", "--json"],
        "plot": ["FOLDERS", "--output"],
        "reproduce": [
            "ITEM",
            "key=value",
            "--quick",
            "--recipe",
            "--seeds",
            "--out",
            "--report",
            "--engine",
            "--json",
        ],
    }.items(),
)
def test_the_help_of_a_verb_names_all_it_takes(verb, words):
    text = done(verb, "--help").stdout
    assert f"Usage: root {verb}" in text
    assert [word for word in words if word not in text] == []


def test_without_a_verb_the_help_is_shown():
    result = fedsift()
    assert all(f"│ {verb} " in result.stdout + result.stderr for verb in VERBS)


# --- demo ---


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """`fedsift demo`, cut short, in an empty folder."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, program("demo", "--seeds", "1", "--rounds", "2", cwd=folder)


def test_the_demo_compares_three_methods(shown):
    _, result = shown
    assert result.returncode == 0, result.stderr
    table = {cells[0]: cells[1:] for cells in rows(result.stdout)}
    assert list(table) == ["digits-fedavg", "digits-fd", "digits-fas"]
    assert all(seeds == "1" for seeds, *_ in table.values())
    accuracies = {name: float(cells[1]) for name, cells in table.items()}
    assert all(0.1 < accuracy <= 1 for accuracy in accuracies.values())


CHOSEN = r"batched engine on cpu, float32, \d+ thread\(s\) \(auto: stacks equal networks where that pays\)"


def test_the_demo_says_that_it_stacks_and_does(shown):
    folder, result = shown
    assert re.search(
        rf"^3 runs side by side: {CHOSEN}\.\n  cnn: stacked \(known layers\)$", result.stdout, re.M
    )
    (told,) = {
        json.loads(file.read_text())["engine"] for file in folder.glob("runs/*/*/environment.json")
    }
    assert re.fullmatch(CHOSEN, told)


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


def test_the_demo_names_its_runs_and_its_picture(shown):
    folder, result = shown
    (runs_line,) = (line for line in result.stdout.splitlines() if line.startswith("runs "))
    (picture,) = (
        line.split()[1] for line in result.stdout.splitlines() if line.startswith("picture ")
    )
    home = folder / Path(picture).parent
    assert (folder / picture).read_bytes().startswith(MAGIC["png"])
    assert {path.name for path in home.iterdir() if path.is_dir()} == {
        f"{preset}-seed0" for preset in ("digits-fedavg", "digits-fd", "digits-fas")
    }
    assert runs_line.split()[1] == f"{Path(picture).parent}/digits-*"
    assert all(rounds_in(path) == 2 for path in home.iterdir() if path.is_dir())


def test_the_run_the_demo_points_at_can_be_shown(shown, monkeypatch):
    folder, result = shown
    monkeypatch.chdir(folder)
    (pointer,) = re.findall(r"fedsift (show \S+[^)\s])", result.stdout)
    assert "digits-fas" in done(*pointer.split()).stdout


def test_an_interrupted_demo_goes_on_with_the_command_it_prints(shown, tmp_path):
    home = shown[0] / "runs"
    straight_through = next(home.iterdir())
    command = ["demo", "--out", "half", "--seeds", "1", "--rounds", "2"]
    half = tmp_path / "half"
    stopped = interrupted(command, lambda: any(map(rounds_in, half.glob("digits-*"))))
    assert stopped.returncode == 130
    assert stopped.stderr.endswith("Resume with:\n  fedsift demo --out half --seeds 1 --rounds 2\n")
    assert by_shell(stopped.stderr.splitlines()[-1]).returncode == 0
    for run in ("digits-fedavg-seed0", "digits-fd-seed0", "digits-fas-seed0"):
        assert bits(half / run) == bits(straight_through / run)


# --- run ---


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


def test_the_table_is_whole_on_a_terminal_of_eighty_columns(monkeypatch):
    straight(Path("fas"), tiny())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in done("compare", "fas").stdout


def test_a_name_with_square_brackets_is_printed_as_it_is():
    result = done("run", *FAS, "rounds=1", "name=a[/b] [red]", "--out", "fas")
    assert rows(result.stdout)[0][0] == "a[/b] [red]"


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("engine", "sequential", "sequential engine on "),
        ("device", "cpu", "batched engine on cpu, float32"),
        ("precision", "bfloat16", "batched engine on cpu, bfloat16"),
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


# --- Ctrl-C ---


def test_ctrl_c_prints_the_command_that_goes_on_to_the_same_bits(tmp_path):
    folder = Path("stopped")
    result = interrupted(
        ["run", *FAS, "rounds=40", "--out", "stopped"], lambda: rounds_in(folder) >= 2
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith(
        "interrupted; every finished round is saved. Resume with:\n  fedsift run --resume --out stopped\n"
    )
    assert 2 <= rounds_in(folder) < 40
    assert by_shell(result.stderr.splitlines()[-1]).returncode == 0
    assert bits(folder) == bits(straight(tmp_path / "whole", tiny(rounds=40)))


def test_ctrl_c_while_a_run_is_set_up_leaves_no_traceback():
    result = interrupted(["run", *FAS, "--out", "stopped"], Path("stopped").exists)
    assert (result.returncode, result.stdout) == (130, "")
    assert "interrupted" in result.stderr and "Traceback" not in result.stderr


def test_the_command_a_stopped_demo_prints_can_be_pasted_into_a_shell(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.Group, "run", stop)
    result = fedsift("demo", "--out", "my demo", "--seeds", "1", "--rounds", "2")
    assert result.exit_code == 130
    command = ["fedsift", "demo", "--out", "my demo", "--seeds", "1", "--rounds", "2"]
    assert shlex.split(result.stderr.splitlines()[-1]) == command


@pytest.mark.parametrize("words", [["ls"], ["show", "fas"]])
def test_a_reader_that_goes_away_is_no_error(words):
    """As in `fedsift ls | head -1`."""
    straight(Path("fas"), tiny())
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        result = subprocess.run([*PROGRAM, *words], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert result.stderr == ""


# --- ls and new ---

PARTS = {
    "datasets": [
        *("digits", "cifar10", "cifar100", "stl10", "mnist", "fashion-mnist", "svhn"),
        *("npz:FILE", "sheet:FILE(32)"),
    ],
    "partitions": ["iid", "dirichlet", "dirichlet-free", "shards", "views"],
    "models": ["mlp", "cnn", "resnet8", "resnet20", "mine:net"],
    "samplers": [
        "none",
        "random",
        "low-entropy",
        "mixed",
        "high-entropy",
        "margin",
        "class-balanced",
    ],
    "codecs": ["float32", "float16"],
    "aggregators": ["mean", "certainty", "era", "enhanced-era"],
    "algorithms": [
        "fd",
        "fas",
        "ds-fl",
        "cfd",
        "fedavg",
        "fedpaq",
        "feddf",
        "fd-jeong",
        "mix2fld",
        "gossip",
    ],
    "graphs": ["ring", "grid", "complete", "regular", "erdos-renyi", "edges", "mine:connect"],
    "engines": ["auto", "batched", "sequential", "mine:Engine"],
    "presets": [
        "cifar10-fas",
        "cifar10-fd",
        "cifar10-fedavg",
        "digits-cfd",
        "digits-ds-fl",
        "digits-fas",
        "digits-fas-low-entropy",
        "digits-fas-mixed-models",
        "digits-fas-soft-down",
        "digits-fd",
        "digits-fd-jeong",
        "digits-fedavg",
        "digits-feddf",
        "digits-fedpaq",
        "digits-gossip",
        "digits-mix2fld",
    ],
}


@pytest.mark.parametrize("kind", PARTS)
def test_ls_of_a_kind_has_a_line_for_each_part_that_says_what_it_is(kind):
    listed = {
        line.split()[0]: " ".join(line.split()[1:]) for line in done("ls", kind).stdout.splitlines()
    }
    assert list(listed)[: len(PARTS[kind])] == PARTS[kind]
    assert [name for name, about in listed.items() if len(about) < 10] == []


def test_ls_shows_all_kinds():
    text = done("ls").stdout
    assert [line[:-1] for line in text.splitlines() if not line.startswith(" ")] == list(PARTS)
    listed = {line.split()[0] for line in text.splitlines() if line.startswith(" ")}
    assert {part for parts in PARTS.values() for part in parts} <= listed


def test_every_name_in_ls_is_taken_where_it_belongs():
    keys = {
        "samplers": "sampler",
        "codecs": "codec",
        "aggregators": "aggregator",
        "algorithms": "algorithm",
    }
    for kind, key in keys.items():
        listed = [line.split()[0] for line in done("ls", kind).stdout.splitlines()]
        assert listed[-1].startswith("mine:")  # how a part of one's own is named
        for name in listed[:-1]:
            preset = "digits-fedavg" if name == "qsgd" else "digits-fas"
            config.build_federation(
                config.read_experiment(preset, [*KINDS["digits-fas"], f"{key}={name}"])
            )


def test_new_writes_a_file_that_means_the_preset_and_runs_under_its_own_name():
    result = done("new", "digits-fas-low-entropy", "mine.toml")
    assert result.stdout == "wrote mine.toml; edit it, then: fedsift run mine.toml\n"
    preset = config.read_experiment("digits-fas-low-entropy")
    assert config.differences(preset, config.read_experiment("mine.toml")) == {
        "name": ("digits-fas-low-entropy", "mine")
    }
    text = Path("mine.toml").read_text()
    assert text.count("count = 20 ") == text.count("rounds = 15 ") == 1
    Path("mine.toml").write_text(
        text.replace("count = 20 ", "count = 9 ").replace("rounds = 15 ", "rounds = 1 ")
    )
    done("run", "mine.toml", "model=mlp", "local.epochs=1", "--out", "mine")
    history = runs.load_run(Path("mine"))
    assert (history.experiment.name, len(history.clients), len(history.metrics)) == ("mine", 9, 1)
    assert history.experiment.algorithm.sampler == "low-entropy"


@pytest.mark.parametrize("name", ["größe", "\N{GRINNING FACE}"])
def test_new_writes_a_file_that_can_be_read_whatever_its_name(name):
    done("new", "digits-fas", f"{name}.toml")
    assert config.read_experiment(f"{name}.toml").name == name


def test_new_overwrites_nothing():
    Path("mine.toml").write_text("rounds = 3\n")
    assert (
        complaint("new", "digits-fas", "mine.toml")
        == "error: mine.toml exists; choose another name\n"
    )
    assert everything() == {"mine.toml": b"rounds = 3\n"}


def test_new_wants_a_toml_ending():
    assert ".toml" in complaint("new", "digits-fas", "mine.txt")
    assert everything() == {}


def test_new_of_an_unknown_preset_names_the_nearest():
    assert "unknown preset 'digits-faz'; did you mean 'digits-fas'?" in complaint(
        "new", "digits-faz", "mine.toml"
    )
    assert everything() == {}


def test_new_in_a_folder_that_is_not_there_names_it():
    assert "/nowhere/" in complaint("new", "digits-fas", "nowhere/mine.toml", code=1)
    assert everything() == {}


# --- show, compare, plot ---


def test_show_prints_config_rounds_clients_and_totals():
    straight(Path("fas"), tiny())
    text = done("show", "fas").stdout
    history = runs.load_run(Path("fas"))
    assert "partition.alpha          1.0\n" in text and "clients.count            4\n" in text
    assert f"torch {torch.__version__}" in text
    table = rows(text)
    assert table[0][:3] == [
        "1",
        f"{history.accuracies[0]:.4f}",
        " ".join(map(str, history.ledger[0].up)),
    ]
    assert [cells[0] for cells in table] == ["1", "2", "3", "0", "1", "2", "3", "digits-fas"]
    assert [cells[3] for cells in table[:3]] == ["530 B"] * 3
    for client, cells in zip(history.clients, table[3:7], strict=True):
        assert cells[1:3] == ["mlp", " ".join(map(str, client["labels"]))]
        uploads = sum(client["client"] in row.up for row in history.ledger)
        assert cells[3] == f"{265 * uploads} B"
    assert table[7][4] == "1.6 kB"  # 3 rounds x 2 clients x 265 B


def test_show_copes_with_a_million_clients_and_large_cohorts(monkeypatch):
    monkeypatch.setattr("fedsift.cli.show.SHOWN", 3)
    straight(
        Path("fas"), tiny("digits-fas", "partition.kind=views", "clients=1000000", "cohort=15"), 1
    )
    text = done("show", "fas").stdout
    history = runs.load_run(Path("fas"))
    assert rows(text)[0][2] == " ".join(map(str, list(history.ledger[0].up)[:6])) + " ... 15 in all"
    assert [cells[0] for cells in rows(text)[1:4]] == [
        str(client["client"]) for client in history.clients[:3]
    ]
    assert f"\n3 of 1,000,000 clients; clients.json has {len(history.clients)}\n" in text
    assert rows(text)[4][0] == "digits-fas"


def test_show_as_json_is_the_summary_and_the_files():
    straight(Path("fas"), tiny())
    shown = json.loads(done("show", "fas", "--json").stdout)
    assert list(shown) == [
        *SUMMARY,
        "broadcast_bytes",
        "metrics",
        "ledger",
        "config",
        "environment",
    ]
    assert {key: shown[key] for key in SUMMARY} == runs.load_run(Path("fas")).summary()
    assert shown["metrics"] == lines(Path("fas/metrics.jsonl"))
    assert shown["ledger"] == lines(Path("fas/ledger.jsonl"))
    assert shown["broadcast_bytes"] == sum(row["broadcast"] for row in shown["ledger"])
    assert shown["config"]["clients"]["count"] == 4
    assert shown["environment"]["fedsift"] == __version__


def some_runs() -> list[str]:
    """Two seeds of one method, one of another."""
    straight(Path("fas0"), tiny(rounds=2))
    straight(Path("fas1"), tiny("digits-fas", "seed=1", rounds=2))
    straight(Path("avg0"), tiny("digits-fedavg", rounds=2))
    return ["fas0", "fas1", "avg0"]


def test_compare_puts_seeds_together_and_notes_what_is_not_paired():
    folders = some_runs()
    result = done("compare", *folders)
    settled = [runs.load_run(Path(folder)).summary()["accuracy"] for folder in folders]
    mean, spread = (settled[0] + settled[1]) / 2, abs(settled[0] - settled[1]) / 2**0.5
    fas, avg = rows(result.stdout)
    assert fas[:4] == ["digits-fas", "2", f"{mean:.3f} ± {spread:.3f}", "265 B"]
    assert avg[:3] == ["digits-fedavg", "1", f"{settled[2]:.3f}"]
    assert result.stderr == "note: not a paired comparison; the runs differ in seed\n"


def test_compare_of_paired_runs_has_no_note():
    _, _, avg = some_runs()
    assert done("compare", "fas0", avg).stderr == ""


def test_a_run_done_twice_counts_once_and_is_named():
    folders = some_runs()
    straight(Path("again"), tiny(rounds=2))
    result = done("compare", "again", *folders, "--json")
    told = json.loads(result.stdout)
    assert [(m["method"], m["seeds"]) for m in told["methods"]] == [
        ("digits-fas", [0, 1]),
        ("digits-fedavg", [0]),
    ]
    assert result.stderr == "note: fas0 is left out: it has the settings and the seed of again\n"


def test_all_that_lies_in_the_folder_of_a_sweep_can_be_named():
    done(
        "run",
        "digits-fas",
        *TINY,
        "budget=6",
        "rounds=1",
        "--seeds",
        "2",
        "--out",
        "grid",
        "--quiet",
    )
    everything = sorted(str(path) for path in Path("grid").iterdir())
    assert "grid/sweep.toml" in everything
    assert done("compare", *everything, "--json").stdout == done("compare", "grid", "--json").stdout
    assert "is not a run folder" in complaint("compare", "grid/sweep.toml")


def test_compare_as_json_has_methods_runs_and_what_is_unpaired():
    folders = some_runs()
    result = done("compare", *folders, "--json")
    told = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(told) == ["target", "methods", "runs", "unpaired"]
    assert told["target"] == pytest.approx(
        0.9 * max(m["accuracy"] for m in told["methods"]), abs=1e-3
    )
    reached = [m["uplink_bytes_to_target"] for m in told["methods"]]
    assert all(
        cost is None or 0 < cost <= m["uplink_bytes"]
        for cost, m in zip(reached, told["methods"], strict=True)
    )
    assert any(cost is not None for cost in reached)
    assert [(m["method"], m["seeds"]) for m in told["methods"]] == [
        ("digits-fas", [0, 1]),
        ("digits-fedavg", [0]),
    ]
    assert [row["run"] for row in told["runs"]] == folders
    assert [(row["name"], row["seed"]) for row in told["runs"]] == [
        ("digits-fas", 0),
        ("digits-fas", 1),
        ("digits-fedavg", 0),
    ]
    assert told["methods"][0]["uplink_bytes"] == told["runs"][0]["uplink_bytes"] == 4 * 265
    assert told["unpaired"] == ["seed"]


@pytest.mark.parametrize("kind", MAGIC)
def test_plot_writes_the_kind_of_file_its_ending_says(kind):
    straight(Path("fas"), tiny())
    result = done("plot", "fas", "-o", f"pictures/fas.{kind}")
    assert result.stdout == f"wrote pictures/fas.{kind}\n"
    assert Path(f"pictures/fas.{kind}").read_bytes().startswith(MAGIC[kind])
    assert [path.name for path in Path("pictures").iterdir()] == [f"fas.{kind}"]


@pytest.mark.parametrize("file", ["fas.bmp", "fas"])
def test_plot_refuses_other_endings_and_names_its_own(file):
    straight(Path("fas-run"), tiny(rounds=1))
    said = complaint("plot", "fas-run", "-o", file)
    assert ".png, .pdf, .svg" in said
    assert not Path(file).exists()


# --- mistakes ---


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["digits-faz"],
            "unknown preset 'digits-faz'; did you mean 'digits-fas'? (fedsift ls presets)",
        ),
        (["nonsense!"], "unknown preset 'nonsense!'"),
        (["digits-fas", "alpah=0.1"], "unknown key 'alpah'; did you mean 'alpha'?"),
        (["digits-fas", "local.lrr=0.1"], "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        (
            ["digits-fas", "sampler=low-entropi"],
            "unknown sampler 'low-entropi'; did you mean 'low-entropy'?",
        ),
        (["digits-fas", "model=resnet9"], "unknown model 'resnet9'; did you mean 'resnet8'?"),
        (["digits-fas", "aggregator=men"], "unknown aggregator 'men'; did you mean 'mean'?"),
        (["digits-fas", "codec=float61"], "unknown codec 'float61'; did you mean 'float16'?"),
        (
            ["digits-fas", "algorithm=fedavgg"],
            "unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        ),
        (["digits-fas", "data.name=digit"], "unknown dataset 'digit'; did you mean 'digits'?"),
        (
            ["digits-fas", "partition.kind=dirichlett"],
            "unknown partition 'dirichlett'; did you mean 'dirichlet'?",
        ),
        (
            ["digits-fas", "local.optimizer=adan"],
            "local.optimizer must be one of adam, adamw, sgd, not 'adan'",
        ),
        (
            ["digits-fas", "--engine", "sequentail"],
            "unknown engine 'sequentail'; did you mean 'sequential'?",
        ),
        (
            ["digits-fas", "--device", "gpu"],
            "device: input should be 'auto', 'cpu' or 'cuda' (got 'gpu')",
        ),
        (["digits-fas", "budget=501"], "budget 501 is larger than the public set (500 samples)"),
        (["digits-fas", "clients=801"], "801 clients but only 800 private samples"),
        (["digits-fas", "cohort=21"], "a cohort of 21 cannot be drawn from 20 clients"),
        (["digits-fas", "alpha=0"], "partition.alpha: input should be greater than 0 (got 0)"),
        (["digits-fas", "alpha=-1"], "partition.alpha: input should be greater than 0 (got -1)"),
        (["digits-fas", "alpha=abc"], "partition.alpha: input should be a valid number"),
        (["digits-fas", "alpha=nan"], "partition.alpha: input should be a finite number (got nan)"),
        (["digits-fas", "alpha=inf"], "partition.alpha: input should be a finite number (got inf)"),
        (["digits-fas", "rounds=0"], "rounds: input should be greater than 0 (got 0)"),
        (["digits-fas", "seed=-1"], "seed: input should be greater than or equal to 0 (got -1)"),
        (
            ["digits-fas", "data.private=5000"],
            "5500 samples asked for (private 5000 + public 500), 1797 there",
        ),
        (["digits-fas", "data.name=npz:mine.npz"], "no such file: mine.npz"),
        (
            ["digits-fas", "data=digits"],
            "data is a section with keys name, private, public, public_from, test, normalise",
        ),
        (["digits-fas", "model=mlp(depth=2)"], "model 'mlp(depth=2)'"),
        (["digits-fas", "model=mlp(width=wide)"], "width"),
        (
            ["digits-fas", "model=nosuch:net"],
            "model 'nosuch:net': no module 'nosuch' in the current folder",
        ),
        (["digits-fas", "aggregator=era(-1)"], "era needs a temperature above 0, not -1"),
        (["digits-fas", "sampler=mixed(2)"], "sampler 'mixed' takes no values"),
        (
            ["digits-fas", "clients.models={cnn = 3}"],
            "models are given to 3 clients, but there are 20",
        ),
        (
            ["digits-fedavg", "clients.models={cnn = 3, mlp = 17}"],
            "all clients need one model, not cnn, mlp",
        ),
        (["digits-fas", "alpha"], "cannot read 'alpha'; an override is key=value"),
        (["alpha=0.1"], "the first argument is a preset or a TOML file, not 'alpha=0.1'"),
        (["missing.toml"], "cannot read missing.toml"),
        ([], "name a preset or a TOML file (fedsift ls presets)"),
        (["--resume"], "--resume and --out"),
        (["digits-fas", "--resume"], "--resume needs --out"),
        (["--resume", "--out", "nowhere"], "nowhere is not a run folder: it has no config.toml"),
    ],
    ids=lambda part: " ".join(part) or "no arguments" if isinstance(part, list) else "",
)
def test_a_mistake_is_named_in_one_line_and_nothing_is_made(words, said):
    assert said in complaint("run", *words)
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_no_reason_to_take_another():
    assert "device cuda was asked for, but torch finds no CUDA device here" in complaint(
        "run", "digits-fas", "--device", "cuda"
    )
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "wrong", ["data.normalise=foo", "algorithm.download=foo", "partition.kind=foo", "sampler=foo"]
)
def test_a_mistake_points_only_at_lists_that_exist(wrong):
    kinds = re.findall(r"fedsift ls (\w+)", complaint("run", "digits-fas", wrong))
    assert [kind for kind in kinds if kind not in PARTS] == []


def test_a_mistake_in_a_process_of_its_own_looks_the_same():
    result = program("run", "digits-fas", "sampler=low-entropi")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: unknown sampler 'low-entropi'; did you mean 'low-entropy'? (fedsift ls samplers)\n"
    )


def test_broken_toml_is_named_with_its_place():
    Path("mine.toml").write_text("rounds = 3\nseed = = 1\n")
    said = complaint("run", "mine.toml")
    assert "mine.toml is not valid TOML" in said and "line 2" in said
    assert list(Path().iterdir()) == [Path("mine.toml")]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"colour = 'red'\n", b"[data]\nprivat = 3\n"])
def test_a_toml_file_with_something_else_in_it_is_a_mistake(content):
    Path("mine.toml").write_bytes(content)
    said = complaint("run", "mine.toml")
    assert "mine.toml" in said or "unknown key" in said
    assert list(Path().iterdir()) == [Path("mine.toml")]


def test_a_folder_that_exists_is_not_overwritten():
    straight(Path("fas"), tiny(), 2)
    before = everything()
    assert complaint("run", *FAS, "rounds=3", "--out", "fas") == (
        "error: run folder fas exists; add --resume to resume it, or choose another --out\n"
    )
    assert everything() == before


def test_a_resume_with_another_config_names_the_key_and_both_values():
    straight(Path("fas"), tiny(), 2)
    before = everything()
    said = complaint("run", *FAS, "rounds=3", "alpha=0.25", "--resume", "--out", "fas")
    assert "partition.alpha is 1.0 there, 0.25 here" in said and said.count(" there, ") == 1
    assert everything() == before


def test_a_demo_with_other_rounds_in_the_same_folder_is_refused(shown):
    home = next((shown[0] / "runs").iterdir())
    assert "rounds is 2 there, 3 here" in complaint(
        "demo", "--seeds", "1", "--rounds", "3", "--out", str(home)
    )


@pytest.mark.parametrize("words", [["show"], ["compare"], ["plot", "-o", "x.png"]])
def test_a_folder_that_is_no_run_cannot_be_looked_at(words):
    Path("thesis").mkdir()
    Path("thesis/thesis.tex").write_text("mine")
    for folder in ("thesis", "nowhere"):
        assert (
            complaint(*words, folder)
            == f"error: {folder} is not a run folder: it has no config.toml\n"
        )
    assert everything() == {"thesis/thesis.tex": b"mine"}


def test_ctrl_c_before_the_first_round_says_how_to_go_on_once_there_is_a_folder(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsift.cli.run.describe_models", interrupted)
    result = fedsift("run", "digits-fas", "rounds=1", "--out", "mine")
    assert result.exit_code == 130
    assert result.stderr.endswith(
        "interrupted; no round is finished yet. Resume with:\n  fedsift run --resume --out mine\n"
    )


@pytest.mark.parametrize("words", [["compare"], ["plot", "-o", "x.png"]])
def test_a_run_without_a_finished_round_does_not_keep_others_from_being_looked_at(words):
    straight(Path("diverged"), tiny(), 0)
    straight(Path("fas"), tiny())
    result = done(*words, "diverged", "fas")
    assert result.stderr == "note: diverged has no finished round and is left out\n"
    assert "digits-fas" in result.stdout if words == ["compare"] else Path("x.png").is_file()
    straight(Path("too"), tiny(), 0)
    result = fedsift(*words, "diverged", "too")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[2] == "error: none of these runs has a finished round"


@pytest.mark.parametrize("words", [["show"], ["compare"], ["plot", "-o", "x.png"]])
def test_a_run_without_a_finished_round_cannot_be_looked_at_yet(words):
    straight(Path("fas"), tiny(), 0)
    assert "has no finished round yet; resume it with: fedsift run --resume --out fas" in complaint(
        *words, "fas"
    )


@pytest.mark.parametrize(
    "name", ["clients.json", "environment.json", "ledger.jsonl", "config.toml"]
)
def test_a_damaged_run_is_named_not_traced(name):
    straight(Path("fas"), tiny(rounds=1))
    Path("fas", name).write_text("{\n")
    assert "fas" in complaint("show", "fas")


def test_an_unknown_kind_names_the_nearest():
    assert (
        complaint("ls", "sampler")
        == "error: unknown kind 'sampler'; did you mean 'samplers'? (fedsift ls)\n"
    )


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--rounds", "0"], ["--rounds", "many"]])
def test_a_demo_of_nothing_is_refused(words):
    result = fedsift("demo", *words)
    assert result.exit_code == 2 and words[0] in result.stderr
    assert list(Path().iterdir()) == []


def test_an_error_that_is_no_mistake_of_the_user_is_not_hidden(monkeypatch):
    def broken(*_):
        raise ValueError("a bug")

    monkeypatch.setattr(sweeps, "read", broken)
    assert str(fedsift("run", "digits-fas").exception) == "a bug"


def test_sizes_are_rounded_to_a_thousand():
    from fedsift.cli.console import format_bytes

    assert [format_bytes(n) for n in (0, 999, 1000, 1550, 999_940, 2_500_000, 7e9, 7e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.6 kB",
        "999.9 kB",
        "2.5 MB",
        "7.0 GB",
        "7000.0 GB",
    ]


# --- theory ---


def test_theory_prints_the_grid_and_draws_it():
    result = done("theory", "--dimension", "200", "--trials", "4", "-o", "theory.png")
    table = rows(result.stdout)
    assert len(table) == 48 and all(len(line) == 9 for line in table)
    assert "the printed constant 1/(2 pi) is outside" in result.stdout
    assert Path("theory.png").read_bytes().startswith(b"\x89PNG")
    cells = json.loads(done("theory", "--dimension", "200", "--trials", "4", "--json").stdout)
    assert [f"{cell['closed']:.4f}" for cell in cells] == [line[4] for line in table]


def test_a_folder_of_runs_stands_for_its_runs_and_each_counts_once():
    folders = some_runs()
    Path("all").mkdir()
    for folder in folders:
        Path(folder).rename(Path("all") / folder)
    told = json.loads(done("compare", "all", "all", f"all/{folders[0]}", "--json").stdout)
    assert [row["run"] for row in told["runs"]] == [f"all/{folder}" for folder in sorted(folders)]
