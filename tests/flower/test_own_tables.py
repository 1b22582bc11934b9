"""Nodes that read tables of their own: what columns become follows from the public file alone."""

import shlex
from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import config
from fedsift.flower.settings import Settings
from fedsift.flower.site import make_site
from fedsift.turns import run_turn
from fedsift.types import UserError
from tests.helpers.fake_flower import a_task, federation, play, same_server

CLASSES = ("ill", "well")
QUICK = "clients=4 cohort=3 local.epochs=1 distill.epochs=1 device=cpu model=mlp budget=6 rounds=2"


def write_rows(path: Path, rng: np.random.Generator, part: list[str], ward: list[str]) -> None:
    lines = ["age,ward,pressure,outcome,part"]
    for word in part:
        age = rng.integers(20, 90)
        cell = "" if rng.random() < 0.2 else round(rng.normal(90 + age / 2, 8), 1)
        outcome = "" if word == "public" else CLASSES[int(age < 50)]
        lines.append(f"{age},{rng.choice(ward)},{cell},{outcome},{word}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four hospitals and a shared file; the last one has a ward that nobody else knows."""
    rng = np.random.default_rng(0)
    write_rows(tmp_path / "shared.csv", rng, ["public"] * 20 + ["test"] * 20, ["a", "b"])
    for number in range(4):
        wards = ["a", "b", "new"] if number == 3 else ["a", "b"]
        write_rows(tmp_path / f"hospital-{number}.csv", rng, ["train"] * 12, wards)
    return tmp_path


def own_task(files: Path):
    """A project whose functions load files, as docs/your-own-data.md has it."""
    task = a_task(files / "app")

    def load(path):
        return fedsift.load_dataset(f"csv:{path}", target="outcome", split="part", classes=CLASSES)

    task.CLASSES = CLASSES
    task.public = task.test = lambda experiment, node: load(files / "shared.csv")
    task.private = lambda experiment, node: load(files / f"hospital-{node['partition-id']}.csv")
    return task


def test_nodes_with_their_own_tables_do_what_a_simulation_does(files):
    task = own_task(files)
    grid, how = federation(task, QUICK, 4, files / "run")
    there = play(task, grid, how)
    data = f"data.name=csv:{files}/shared.csv data.clients={files}/hospital-*.csv"
    words = f"{QUICK} {data} data.target=outcome data.split=part data.classes=ill,well"
    made = config.build_federation(config.read_experiment("digits-fas", shlex.split(words)))
    assert made.task.preparation is not None
    assert made.task.preparation.names == ("age", "ward=a", "ward=b", "pressure")
    engine, _ = fedsift.choose_engine(device="cpu")
    state = made.start()
    for _ in range(2):
        record = run_turn(made.round_turn(state), engine)
        state = record.state
    assert same_server(there.state, state)
    assert record.accuracy > 0.7
    assert there.federation.task.class_names == CLASSES


def test_the_fingerprint_covers_what_is_learnt(files):
    task = own_task(files)
    here = make_site(task, Settings(overrides=QUICK), {"partition-id": 0})
    text = (files / "shared.csv").read_text()
    (files / "shared.csv").write_text(text.replace(",a,", ",c,"))  # the same inputs by another name
    other = make_site(task, Settings(overrides=QUICK), {"partition-id": 0})
    assert here.public.tensor().shape == other.public.tensor().shape
    assert here.fingerprint != other.fingerprint


def test_odd_files_of_a_node_are_refused_in_words(files):
    task, how = own_task(files), Settings(overrides=QUICK)

    def said() -> str:
        with pytest.raises(UserError) as caught:
            make_site(task, how, {"partition-id": 0}).client()
        return str(caught.value)

    mine = files / "hospital-0.csv"
    mine.write_text("age,ward,pressure,outcome,part\nold,a,1,ill,train\n")
    assert "hospital-0.csv, line 2: 'age' is 'old', but the public rows have numbers" in said()
    mine.write_text("age,ward,pressure,outcome,part\n5,a,1,dead,train\n")
    assert "hospital-0.csv, line 2: 'outcome' is 'dead', which is none of the classes" in said()
    mine.write_text("age,ward,pressure,outcome,part\n5,a,1,ill,test\n")
    assert "private needs rows, and a class in each of them" in said()
    mine.write_text("age,outcome,part\n5,ill,train\n")  # columns that it lacks are filled in
    client = make_site(task, how, {"partition-id": 0}).client()
    assert np.isfinite(client.data.samples.tensor().numpy()).all()
    task.CLASSES = 2
    assert "load it with classes=CLASSES" in said()
