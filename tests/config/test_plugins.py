"""Parts of the user's own, named as `module:name`, with run folders, resume, sweeps and reports."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsift import config, runs, sweeps
from fedsift.config import Experiment
from fedsift.data import loading
from fedsift.engines import choose_engine
from fedsift.types import UserError
from tests.helpers.cli import complaint, done, program
from tests.helpers.runs import TINY, bits, lines

MINE = '''
import numpy as np
from torch import nn

import fedsift


def pick(probs, label_counts, budget, draws):
    """The samples the client is surest of."""
    return np.argsort(-probs.max(1), kind="stable")[:budget]


def pick_some(share):
    def some(probs, label_counts, budget, draws):
        return np.sort(draws.own.choice(len(probs), max(1, int(budget * share)), replace=False))

    return some


def join(uploads, samples, classes):
    """The mean, but client 0 has no say unless it is alone."""
    pairs = list(uploads)
    heard = [pair for pair in pairs if pair[0] != 0] or pairs
    return fedsift.mean(heard, samples, classes)


class Halves:
    """One byte per entry."""

    id = 200

    def __init__(self, levels=255):
        self.levels = levels

    def pack(self, probs, known):
        return np.rint(probs * self.levels).astype(np.uint8).tobytes()

    def unpack(self, code, rows, classes, known):
        if len(code) != rows * classes:
            raise fedsift.WireError("not as many bytes as entries")
        table = np.frombuffer(code, np.uint8).reshape(rows, classes).astype(np.float32) + 1e-3
        return table / table.sum(1, keepdims=True)

    def max_bytes(self, rows, classes):
        return rows * classes


def fedmine(budget, local, distill, beta=1):
    return fedsift.fas(budget, local=local, distill=distill, temperature=beta)


def deal(labels, clients, generator):
    return np.array_split(np.arange(len(labels)), clients)


class Sorted:
    def __init__(self, shards):
        self.shards = shards

    def __call__(self, labels, clients, generator):
        return np.array_split(np.argsort(labels, kind="stable"), clients)


def connect(clients, generator):
    return [(i + 1, i) for i in range(clients - 1)]


def load(samples=120):
    digits = fedsift.load_dataset("digits")
    return digits.x[:samples], digits.y[:samples]


class Engine(fedsift.ENGINES["sequential"]):
    def describe(self, model):
        return f"{model.name}: by an engine of my own"


def net(shape, classes, hidden=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
'''
SMALL = [*TINY, "budget=6", "rounds=2"]
EVERYTHING = [
    "sampler=mine:pick_some(0.5)",
    "aggregator=mine:join",
    "codec=mine:Halves(levels=100)",
    "algorithm=mine:fedmine(beta=2)",
    "partition.kind=mine:Sorted",
    "data.name=mine:load(samples=200)",
    "engine=mine:Engine",
    "model=mine:net(hidden=4)",
]


def forget() -> None:
    """As in a new process."""
    sys.modules.pop("mine", None)
    loading._load_once.cache_clear()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path / "mine.py"
    forget()


def run(out: str, *settings: str, preset: str = "digits-fas") -> Path:
    done("run", preset, *SMALL, "model=mlp", *settings, "--out", out, "--quiet")
    return Path(out)


def read(*settings: str) -> Experiment:
    return config.read_experiment("digits-fas", [*SMALL, "model=mlp", *settings])


# --- every kind of part ---


@pytest.mark.parametrize("setting", [*EVERYTHING, "sampler=mine:pick", "partition.kind=mine:deal"])
def test_each_kind_of_part_can_be_a_plugin(mine, setting):
    folder = run("out", setting)
    assert len(lines(folder / runs.METRICS)) == 2
    recorded = json.loads((folder / runs.ENVIRONMENT).read_text())["plugins"]
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert [(row["file"], row["sha256"]) for row in recorded] == [(str(mine), digest)]
    assert setting.partition("=")[2].startswith(recorded[0]["plugin"])


def test_a_graph_can_be_a_plugin(mine):
    settings = ["algorithm.graph=mine:connect", "cohort=4"]
    folder = run("out", *settings, preset="digits-gossip")
    assert len(lines(folder / runs.METRICS)) == 2
    e = config.read_experiment("digits-gossip", [*SMALL, *settings])
    federation = config.build_federation(e)
    algorithm: Any = federation.algorithm
    assert [algorithm.receivers(i, federation.round(0)) for i in range(4)] == [
        [1],
        [0, 2],
        [1, 3],
        [2],
    ]


def test_what_a_plugin_names_is_what_runs(mine):
    e = read("sampler=mine:pick", "codec=mine:Halves(levels=100)", "partition.kind=mine:Sorted")
    federation = config.build_federation(e)
    algorithm: Any = federation.algorithm
    assert algorithm.sampler is sys.modules["mine"].pick
    assert algorithm.up.values.levels == 100
    assert (federation.clients[0].label_counts > 0).sum() <= 4
    assert config.list_unused(e) == ["partition.alpha", "partition.samples"]


def test_an_algorithm_gets_the_keys_it_has_parameters_for(mine):
    e = read("algorithm=mine:fedmine(beta=2)", "sampler=mixed", "local.lr=0.5")
    algorithm: Any = config.build_algorithm(e)
    assert (algorithm.budget, algorithm.temperature, algorithm.local.lr) == (6, 2, 0.5)
    assert "algorithm.sampler" in config.list_unused(e)


def test_a_data_set_that_is_neither_a_dataset_nor_arrays_is_refused(mine):
    mine.write_text("def load(): return 3")
    with pytest.raises(UserError) as caught:
        config.build_task(read("data.name=mine:load"))
    assert (
        str(caught.value)
        == "dataset 'mine:load' gives int; it must give a fedsift.Dataset or (x, y)"
    )


def test_a_codec_without_its_members_is_refused(mine):
    mine.write_text("class Tiny:\n    id = 3\n    def pack(self, probs, known): ...\n")
    with pytest.raises(UserError) as caught:
        config.build_federation(read("codec=mine:Tiny"))
    assert str(caught.value) == (
        "codec 'mine:Tiny' is a Tiny without unpack, max_bytes; "
        "a codec of soft labels has id, pack, unpack, max_bytes"
    )


# --- run folders, resume, sweeps, compare ---


def test_a_run_with_plugins_of_every_kind_resumes_bit_for_bit(mine):
    whole = run("whole", *EVERYTHING, "rounds=3", "name=mine")
    half = config.read_experiment("digits-fas", [*SMALL, *EVERYTHING, "rounds=3", "name=mine"])
    group = runs.Group({Path("half"): half})
    group.begin()
    with contextlib.closing(group.run(choose_engine(*half.where)[0])) as rounds:
        next(rounds)
    forget()
    told = done("run", "--resume", "--out", "half").stderr
    assert f"mine:join from {mine} (sha256 " in told
    assert bits(Path("half")) == bits(whole)


def test_a_changed_module_is_refused_in_one_sentence_unless_the_change_is_accepted(mine):
    folder = Path("out")
    group = runs.Group({folder: read("sampler=mine:pick", "rounds=3")})
    group.begin()
    group.release()
    old, new = (
        hashlib.sha256(text.encode()).hexdigest()[:12]
        for text in (MINE, f"{MINE}\nprint('imported')\n")
    )
    mine.write_text(f"{MINE}\nprint('imported')\n")
    forget()
    again = complaint("run", "digits-fas", "sampler=mine:pick", "--out", "out")
    assert "run folder out exists; add --resume" in again  # nothing about code that is not resumed
    said = complaint("run", "--resume", "--out", "out")
    assert said == (
        f"error: out was made with other code of mine:pick in {mine} (sha256 {old} there, {new} "
        "here); put the old file back, or resume with --accept-changes\n"
    )
    assert "mine" not in sys.modules
    done("run", "--resume", "--out", "out", "--accept-changes", "--quiet")
    assert len(lines(folder / runs.METRICS)) == 3
    environment = json.loads((folder / runs.ENVIRONMENT).read_text())
    assert environment["plugins"][0]["sha256"].startswith(old)
    assert environment["resumed"][0]["plugins"][0]["sha256"].startswith(new)


def test_an_accepted_change_need_not_be_accepted_again(mine):
    folder, e = Path("out"), read("sampler=mine:pick")
    begun = runs.begin_run(folder, e)
    begun.lock.release()
    mine.write_text(MINE + "# changed\n")
    with pytest.raises(UserError, match="was made with other code"):
        runs.begin_run(folder, e, resume=True)
    for accept in (True, False):
        runs.begin_run(folder, e, resume=True, accept_changes=accept).lock.release()


@pytest.mark.parametrize("recorded", [None, 3, [3], [{"plugin": "mine:pick"}], [{"sha256": 7}]])
def test_a_folder_that_does_not_say_what_it_was_made_with_is_refused(mine, recorded):
    folder, e = Path("out"), read("sampler=mine:pick")
    runs.begin_run(folder, e).lock.release()
    environment = json.loads((folder / runs.ENVIRONMENT).read_text())
    (folder / runs.ENVIRONMENT).write_text(json.dumps(environment | {"plugins": recorded}))
    with pytest.raises(UserError, match=r"mine:pick in .* \(sha256 unknown there"):
        runs.begin_run(folder, e, resume=True)


def test_a_sweep_over_plugins_runs_resumes_and_compares(mine):
    sweep = ["sweep.sampler=[mine:pick,mixed]", "aggregator=mine:join", "--out", "sweep"]
    done("run", "digits-fas", *SMALL, "model=mlp", *sweep, "--quiet")
    cells = sorted(path.name for path in Path("sweep").iterdir() if path.is_dir())
    assert cells == ["sampler-mine-pick", "sampler-mixed"]
    done("run", "--resume", "--out", "sweep", "--quiet")
    forget()
    mine.unlink()
    told = done("compare", *(f"sweep/{cell}" for cell in cells)).stdout
    assert "mine:pick" in told and "mixed" in told
    assert "mine" not in sys.modules


def test_a_changed_module_stops_a_sweep_before_it_is_imported(mine):
    sweep = sweeps.read("digits-fas", [*SMALL, "model=mlp", "sweep.sampler=[mine:pick,mixed]"])
    sweeps.begin_sweep(Path("sweep"), sweep).release()
    mine.write_text(MINE + "# changed\n")
    forget()
    said = complaint("run", "--resume", "--out", "sweep")
    assert "other code of mine:pick" in said and "--accept-changes" in said
    assert "mine" not in sys.modules
    done("run", "--resume", "--out", "sweep", "--accept-changes", "--quiet")


EVIL = "open('was_here', 'w').close()\nraise SystemExit('evil')\n"


@pytest.mark.slow
def test_a_hostile_run_folder_is_shown_and_compared_without_importing_what_it_names(tmp_path):
    assert program("run", "digits-fas", *SMALL, "model=mlp", "--out", "out", cwd=tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    e = runs.read_config(tmp_path / "out").model_dump()
    names = dict.fromkeys(("name", "sampler", "aggregator", "codec", "graph"), "evil:code(1)")
    e["algorithm"] |= names
    e["data"] |= {"name": "evil:code", "public_from": "evil:code"}
    e["partition"]["kind"] = e["clients"]["model"] = e["engine"] = "evil:code"
    hostile = config.to_toml(config.check_experiment(e))
    (tmp_path / "out" / runs.CONFIG).write_text(hostile)
    for words in (
        ["show", "out"],
        ["show", "out", "--json"],
        ["compare", "out"],
        ["plot", "out", "--output", "picture.png"],
        ["run", "--resume", "--out", "out"],
    ):
        result = program(*words, cwd=tmp_path)
        assert not (tmp_path / "was_here").exists(), words
        if words[0] == "run":
            assert result.returncode == 2
            assert "other code of evil:code in" in result.stderr
        else:
            assert result.returncode == 0, result.stderr


# --- Flower ---


def test_on_flower_only_the_projects_own_module_may_be_named(mine):
    config.check_project_plugins(read("model=task:net", "sampler=task:pick(1)"), "task")
    with pytest.raises(UserError) as caught:
        config.check_project_plugins(read("model=task:net", "sampler=mine:pick"), "task")
    assert str(caught.value) == (
        "algorithm.sampler names mine:pick, but on Flower a plug-in must be in the project's own "
        "task.py; move it there and write task:pick"
    )
    assert "mine" not in sys.modules


# --- the example ---


@pytest.mark.slow
def test_fedmd_written_outside_the_package_runs_from_the_command_line(tmp_path):
    text = (Path(__file__).parents[2] / "examples" / "fedmd.py").read_text()
    assert len(text.splitlines()) <= 40
    (tmp_path / "fedmd.py").write_text(text)
    words = ["clients.models={cnn = 2, mlp = 2}", "algorithm=fedmd:FedMD", "--out", "out", "--json"]
    result = program("run", "digits-fd", *SMALL, "rounds=3", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["rounds"] == 3
    assert summary["uplink_bytes"] > 0 and summary["downlink_bytes"] > 0
