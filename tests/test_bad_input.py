"""Bad input in a whole run: one clear line, the run goes on, the ledger says who was missing."""

import re
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import Recipe
from fedsift.estimators.remote import Remote
from tests.helpers.black_box import answer_evenly, say, serving
from tests.helpers.runs import lines, straight

QUICK = Recipe(epochs=1)
TABLE = ["rounds=1", "local.epochs=2", "distill.epochs=2", "device=cpu", "model=mlp", "budget=10"]


def write_hospitals(folder: Path, change=lambda name, rows: rows) -> list[str]:
    """Three hospitals and a shared file; `change` may spoil the cells of each file."""
    rng = np.random.default_rng(0)
    for name in ("hospital-a", "hospital-b", "hospital-c", "shared"):
        rows = [["age", "dose", "outcome"]]
        for _ in range(40):
            age, dose = int(rng.integers(20, 90)), round(float(rng.normal()), 3)
            rows.append([str(age), str(dose), "ill" if age > 55 else "well"])
        text = "\n".join(",".join(row) for row in change(name, rows)) + "\n"
        (folder / f"{name}.csv").write_text(text)
    files = [f"data.name=csv:{folder}/shared.csv", f"data.clients={folder}/hospital-*.csv"]
    return [*TABLE, *files, "data.target=outcome"]


def play_table(folder: Path, words: list[str]):
    experiment = fedsift.read_experiment("table-fas", words)
    run = straight(folder / "run", experiment)
    (row,) = lines(run / "ledger.jsonl")
    return fedsift.config.build_task(experiment), row


def test_a_column_without_a_value_is_left_out_and_said(tmp_path):
    def empty(name, rows):
        return [rows[0], *([age, "nan", outcome] for age, _, outcome in rows[1:])]

    task, row = play_table(tmp_path, write_hospitals(tmp_path, empty))
    assert "column 'dose' has no value in the public rows: left out" in task.notes
    assert set(row["up"]) == {"0", "1", "2"} and "missing" not in row


def test_a_column_empty_at_one_client_is_filled_in_and_counted(tmp_path):
    def empty(name, rows):
        return rows if name != "hospital-b" else [rows[0], *([a, "", o] for a, _, o in rows[1:])]

    task, row = play_table(tmp_path, write_hospitals(tmp_path, empty))
    (told,) = [note for note in task.notes if "column 'dose'" in note]
    assert "40 of 160 values missing, filled with" in told
    assert set(row["up"]) == {"0", "1", "2"}


def test_a_column_missing_at_one_client_is_said(tmp_path):
    def drop(name, rows):
        return rows if name != "hospital-b" else [[age, outcome] for age, _, outcome in rows]

    task, row = play_table(tmp_path, write_hospitals(tmp_path, drop))
    said = f"{tmp_path}/hospital-b.csv has no column 'dose': its values count as missing"
    assert said in task.notes and set(row["up"]) == {"0", "1", "2"}


def test_a_class_that_only_one_client_has_is_a_class_like_any_other(tmp_path):
    def rename(name, rows):
        return (
            rows if name != "hospital-c" else [rows[0], *([a, d, "rare"] for a, d, _ in rows[1:])]
        )

    task, row = play_table(tmp_path, write_hospitals(tmp_path, rename))
    assert task.class_names == ("ill", "rare", "well") and set(row["up"]) == {"0", "1", "2"}


# --- models ---

MODELS = """
class Raises:
    def fit(self, x, y, sample_weight=None):
        raise RuntimeError("out of luck")
    def predict_proba(self, x):
        return x

class Sums:
    def fit(self, x, y, sample_weight=None):
        self.seen = len(set(y))
    def predict_proba(self, x):
        return [[0.7] * self.seen] * len(x)
"""


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("odd:Raises", "its model failed: Raises.fit raised RuntimeError: out of luck"),
        (
            "odd:Sums",
            "its model failed: it gives rows that do not sum to 1, but for example to 1.4",
        ),
    ],
)
def test_a_model_that_fails_is_named_in_the_ledger(tmp_path, monkeypatch, model, why):
    (tmp_path / "odd.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [w for w in write_hospitals(tmp_path) if w != "model=mlp"]
    models = f'clients.models={{"mlp"=2,"{model}"=1}}'
    _, row = play_table(tmp_path, [*words, models, "algorithm.download=soft-labels"])
    assert row["missing"] == {"2": why} and set(row["up"]) == {"0", "1"}


# --- black boxes ---


def hang(box, rows):
    time.sleep(5)


def answer_html(box, rows):
    say(box, b"<html>bad gateway</html>")


def break_off(box, rows):
    """As a process that is killed while it writes its answer."""
    box.send_response(200)
    box.send_header("Content-Length", "1000")
    box.end_headers()
    box.wfile.write(b'{"probabilities": [[0.5')
    box.connection.close()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (hang, r"cannot be asked \(no answer in 1 s\)"),
        (answer_html, "no JSON but HTML"),
        (break_off, "something that is no JSON"),
    ],
)
def test_a_black_box_that_fails_in_a_later_round_is_missing_there(bad, why):
    calls: list[int] = []

    def answer(box, rows):
        calls.append(len(rows))
        (answer_evenly(10) if len(calls) == 1 else bad)(box, rows)

    task = fedsift.split(fedsift.load_dataset("digits"), private=40, public=20, test=20)
    fas = fedsift.fas(10, local=QUICK, distill=QUICK)
    with serving(answer) as (address, _), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        box = Remote(address, timeout=1, retries=0)
        clients = fedsift.make_clients(task.private, 3, "iid", {"mlp": 2, box: 1})
        records = list(fedsift.federate(fas, clients, task, rounds=2, cohort=3))
    assert records[0].bytes.missing == {} and set(records[0].bytes.up) == {0, 1, 2}
    (lost,) = records[1].bytes.missing.items()
    assert lost[0] == 2 and set(records[1].bytes.up) == {0, 1}
    assert re.search(why, lost[1])
    told = [str(w.message) for w in said if "is without client 2" in str(w.message)]
    assert told == [f"round 1 is without client 2: {lost[1]}"] and "\n" not in told[0]
