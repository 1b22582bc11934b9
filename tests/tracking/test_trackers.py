"""Trackers: read back by the tools themselves, they have the figures of the run folder."""

import csv
import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsift import runs
from fedsift.cli.flower_runs import show_rounds
from fedsift.tracking import FIGURES, TRACKERS, TRACKING, Follower, check_names, list_figures
from fedsift.types import UserError
from tests.helpers.cli import FAS, complaint, done
from tests.helpers.runs import play, tiny

ROUNDS = 3
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own code


def test_the_figures_of_a_round_by_hand():
    # Up: 3 + 4 = 7 bytes after 10 of earlier rounds, so 17 so far; down: 5 + 5; one is missing.
    metrics = {"round": 1, "accuracy": 0.5, "macro_f1": 0.25, "steps": {"0": 3}}
    metrics |= {"uploaded_labels": {"rows": 4, "right": 0.75, "samples": 4, "votes": 1.0}}
    ledger = {"up": {"0": 3, "2": 4}, "down": {"0": 5, "2": 5}, "broadcast": 5}
    ledger |= {"missing": {"1": "gone"}}
    assert list_figures(metrics, ledger, {"seconds": 1.5}, 10) == {
        "accuracy": 0.5,
        "macro_f1": 0.25,
        "uploaded_right": 0.75,
        "uplink_bytes": 7,
        "downlink_bytes": 10,
        "broadcast_bytes": 5,
        "uplink_bytes_so_far": 17,
        "clients": 2,
        "missing": 1,
        "seconds": 1.5,
    }


def run_with(folder: Path, names: list[str]) -> Path:
    """A run that was stopped after two of three rounds and resumed, with these trackers."""
    said: list[str] = []
    for rounds in (2, None):
        run = runs.begin_run(folder, tiny(rounds=ROUNDS), resume=rounds is None)
        follower = Follower(folder, names, said.append)
        play(run, rounds)
        run.lock.release()
        follower.follow(runs.rounds_played(folder))
        follower.close()
    assert said == []
    known = json.loads((folder / TRACKING).read_text())
    assert {name: told["rounds"] for name, told in known.items()} == dict.fromkeys(names, ROUNDS)
    return folder


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tmp_path_factory.mktemp("tracked") / "run", ["csv", "tensorboard"])


def expected(folder: Path) -> list[dict[str, float]]:
    """What all trackers should hold, from the files of the run."""
    rows = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in (runs.METRICS, runs.LEDGER, runs.TIMING)
    ]
    found, before = [], 0
    for metrics, sent, timing in zip(*rows, strict=True):
        found.append(list_figures(metrics, sent, timing, before))
        before = int(found[-1]["uplink_bytes_so_far"])
    assert len(found) == ROUNDS
    return found


def test_csv_has_the_figures(tracked):
    folder = tracked
    with open(folder / "figures.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["round", *FIGURES]
    assert [int(row["round"]) for row in rows] == list(range(ROUNDS))
    for row, wanted in zip(rows, expected(folder), strict=True):
        assert {name: float(row[name]) for name in FIGURES if row[name]} == wanted


def test_tensorboard_reads_the_figures(tracked):
    """By TensorBoard's own reader; it keeps 32 bits of a number."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tracked
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    wanted = expected(folder)
    assert set(found.Tags()["scalars"]) == set(wanted[0])
    for name in wanted[0]:
        events = found.Scalars(name)
        assert [event.step for event in events] == list(range(ROUNDS))
        told = [event.value for event in events]
        assert told == pytest.approx([row[name] for row in wanted], rel=1e-6)


@pytest.mark.slow
def test_mlflow_reads_the_figures(tmp_path):
    folder = run_with(tmp_path / "run", ["mlflow"])
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient(f"sqlite:///{folder.resolve() / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedsift").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["rounds"] == str(ROUNDS)
    wanted = expected(folder)
    for name in wanted[0]:
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda m: m.step)
        assert [one.step for one in history] == list(range(ROUNDS))
        assert [one.value for one in history] == [row[name] for row in wanted]


def read_offline(file: Path) -> Iterator[bytes]:
    """The records of an offline file: after 7 bytes a log as LevelDB writes it. In blocks of 32 kB
    there are pieces of checksum (4 bytes), length (2), kind (1; 1 is whole, 4 the last) and data.
    """
    log, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(log):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)
        if place + 7 + length > len(log):  # the rest is still being written
            return
        record += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def read_history(folder: Path) -> dict[int, dict[str, float]]:
    """Step -> figures, by wandb's own messages; the package has no reader in Python."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    found: dict[int, dict[str, float]] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in read_offline(file):
            record = messages.Record.FromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            items = record.history.item
            values = {each.key or each.nested_key[0]: json.loads(each.value_json) for each in items}
            assert found.setdefault(int(values["_step"]), values) is values
    return found


@pytest.mark.slow
def test_weights_and_biases_keeps_the_figures_offline(tmp_path):
    folder = run_with(tmp_path / "run", ["wandb"])
    end = time.monotonic() + 60
    while len(found := read_history(folder)) < ROUNDS and time.monotonic() < end:
        time.sleep(0.2)  # another process of wandb writes them
    assert sorted(found) == list(range(ROUNDS))
    for step, row in enumerate(expected(folder)):
        assert {name: found[step][name] for name in row} == row


class Broken:
    id = ""

    def __init__(self, place: Any) -> None:
        self.left = 1

    def log(self, round: int, figures: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk of the tracker is full")

    def close(self) -> None:
        raise AssertionError("it is not asked again")


def test_a_tracker_that_fails_is_named_once_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    said: list[str] = []
    folder = tmp_path / "run"
    run = runs.begin_run(folder, tiny(rounds=ROUNDS))
    play(run)
    follower = Follower(folder, ["broken", "csv"], said.append)
    follower.follow(ROUNDS)
    follower.close()
    (line,) = said
    assert line.endswith(
        "the tracker broken is left out from here on: OSError: the disk of the tracker is full"
    )
    assert len((folder / "figures.csv").read_text().splitlines()) == 1 + ROUNDS


def test_rounds_that_are_not_saved_for_good_are_not_told(tmp_path):
    folder = tmp_path / "run"
    play(runs.begin_run(folder, tiny(rounds=ROUNDS)))
    follower = Follower(folder, ["csv"], print)
    for rounds, lines in ((0, 0), (1, 2), (1, 2), (3, 4)):
        follower.follow(rounds)
        file = folder / "figures.csv"
        assert (len(file.read_text().splitlines()) if file.exists() else 0) == lines


def test_a_spoilt_file_of_what_was_told_is_said(tmp_path):
    folder = tmp_path / "run"
    play(runs.begin_run(folder, tiny(rounds=1)))
    (folder / TRACKING).write_text('{"csv": 3}')
    said: list[str] = []
    Follower(folder, ["csv"], said.append).follow(1)
    assert said == [f"cannot read {folder / TRACKING}: trackers are told all rounds again"]


@pytest.mark.parametrize(
    ("tracker", "place"),
    [
        ("csv", "figures.csv"),
        ("tensorboard", "tensorboard/"),
        ("mlflow", "mlflow.db"),
        ("mlflow", "mlflow.db-journal"),
        ("wandb", "wandb/"),
    ],
)
def test_a_tracker_does_not_write_through_a_link(tracker, place, tmp_path):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    play(runs.begin_run(folder, tiny(rounds=1)))
    victim.mkdir() if place.endswith("/") else victim.touch()
    link = folder / place.rstrip("/")
    link.symlink_to(victim)
    said: list[str] = []
    follower = Follower(folder, [tracker], said.append)
    follower.follow(1)
    follower.close()
    told = f"{link} is a link, and none is followed in {folder}; remove it"
    assert said == [f"{folder}: the tracker {tracker} is left out from here on: {told}"]
    assert not (list(victim.iterdir()) if victim.is_dir() else victim.read_bytes())
    assert link.is_symlink()


def test_an_event_file_is_not_written_through_a_link(tmp_path):
    folder = tmp_path / "run"
    play(runs.begin_run(folder, tiny(rounds=1)))
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").symlink_to(tmp_path / "victim")
    said: list[str] = []
    Follower(folder, ["tensorboard"], said.append).follow(1)
    assert "tensorboard/events is a link" in said[0]
    assert not (tmp_path / "victim").exists()


def test_names_are_checked_before_anything_is_run(monkeypatch):
    assert check_names("csv, csv") == ("csv",)
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        check_names("csv,tensorbord")
    monkeypatch.setattr("fedsift.tracking.follower.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedsift\[mlflow\]'"):
        check_names("mlflow")


def test_run_and_sweep_track(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "unknown tracker" in complaint("run", *FAS, "--track", "nobody", "--out", "none")
    assert not Path("none").exists()
    words = ["run", *FAS, "rounds=2", "sweep.seed=[0,1]", "--out", "sweep", "--quiet"]
    done(*words)
    done(*words, "--resume", "--track", "csv")  # finished already: told all the same
    for cell in ("seed-0", "seed-1"):
        assert len(Path("sweep", cell, "figures.csv").read_text().splitlines()) == 3
    done("run", *FAS, "rounds=1", "--out", "one", "--track", "csv", "--quiet")
    assert len(Path("one/figures.csv").read_text().splitlines()) == 2


def test_a_run_on_flower_is_tracked_while_it_is_followed(tmp_path):
    folder, experiment = tmp_path / "run", tiny(rounds=2)
    play(runs.begin_run(folder, experiment))
    show_rounds(iter([1, 2]), folder, experiment, quiet=True, track=("csv",))
    assert len((folder / "figures.csv").read_text().splitlines()) == 3


def test_the_page_lists_what_is_logged():
    page = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert {name: about for name, about in rows.items() if name in FIGURES} == FIGURES
    assert set(TRACKERS) <= set(rows)
