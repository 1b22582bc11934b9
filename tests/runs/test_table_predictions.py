"""New rows of a table and new texts, said by the model of a run."""

import csv
from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import runs
from fedsift.runs.predictions import predict_file
from fedsift.types import UserError
from tests.helpers.experiments import read
from tests.helpers.runs import straight

QUICK = ["rounds=2", "device=cpu"]


def run(folder: Path, preset: str) -> runs.History:
    straight(folder, fedsift.read_experiment(preset, QUICK))
    return runs.load_run(folder)


def test_rows_are_prepared_as_those_of_the_run(tmp_path):
    made = run(tmp_path / "run", "table-fas")
    file = tmp_path / "new.csv"
    with open(file, "w", newline="") as out:
        write = csv.writer(out).writerow
        write(["pressure", "smoker", "age", "marker", "comment"])
        write([160, "daily", 90, 300, "sure to be high"])
        write([95, "never", 20, 20, "sure to be low"])
        write(["", "sometimes", 50, 55, "a word nobody knows"])
    found = predict_file(made, file)
    assert found.samples == ["line 2", "line 3", "line 4"]
    assert found.classes == ["high", "low", "medium"]
    assert found.probs.argmax(1).tolist()[:2] == [0, 1]
    assert np.allclose(found.probs.sum(1), 1)
    file.write_text("age,smoker\nold,never\n")
    with pytest.raises(UserError, match=r"new.csv, line 2: 'age' is 'old', but the public rows"):
        predict_file(made, file)
    file.write_text("age,smoker\n50,never\n")
    assert predict_file(made, file).notes == (
        f"{file} has no column 'pressure': its values count as missing",
        f"{file} has no column 'marker': its values count as missing",
    )
    file.write_text("name,street\nAnn,High Street\n")
    with pytest.raises(UserError, match=r"none of the columns of the run \(age, smoker, pressure"):
        predict_file(made, file)


def test_a_table_for_a_run_on_images_is_refused(tmp_path):
    straight(
        tmp_path / "run",
        read(
            "rounds=1", "local.epochs=1", "distill.epochs=1", "model=mlp", "clients=2", "cohort=2"
        ),
    )
    (tmp_path / "new.csv").write_text("age\n1\n")
    with pytest.raises(UserError, match="is a table, but the run was not trained on one"):
        predict_file(runs.load_run(tmp_path / "run"), tmp_path / "new.csv")
