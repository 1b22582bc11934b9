"""Four hospitals on four real SuperNodes, each with a file of its own and another kind of model:
what a simulation of the same files does, bit for bit.
"""

import csv
import shlex

import numpy as np
import pytest

import fedsift
from fedsift import runs
from fedsift.flower import local_deployment, project
from tests.helpers.real_flower import checkpoint, server_bits, simulated
from tests.helpers.runs import lines

pytestmark = pytest.mark.flower

TASK = """
import fedsift

CLASSES = ("benign", "malignant")


def load(path):
    return fedsift.load_dataset(f"csv:{path}", target="tumour", split="part", classes=CLASSES)


def public(experiment, node):
    return load(SHARED)


def test(experiment, node):
    return load(SHARED)


def private(experiment, node):
    return load(node["data"])
"""
MODELS = {
    "mlp": 1,
    "mlp(width=0.5)": 1,
    "sklearn:RandomForestClassifier(n_estimators=10)": 1,
    "sklearn:GradientBoostingClassifier(n_estimators=5)": 1,
}
ROUNDS = 2


def write_files(folder):
    """The breast-cancer table: 30 rows for each hospital, 80 public ones and 100 for the test."""
    data = fedsift.load_dataset("breast-cancer")
    assert data.names is not None
    order = np.random.default_rng(0).permutation(len(data.x))
    parts = ["train"] * 120 + ["public"] * 80 + ["test"] * 100
    files = [f"hospital-{number // 30}" for number in range(120)] + ["shared"] * 180
    header: list[object] = [
        *(f"measure {number}" for number in range(data.x.shape[1])),
        "tumour",
        "part",
    ]
    rows: dict[str, list[list[object]]] = {file: [header] for file in files}
    for row, part, file in zip(order, parts, files, strict=False):
        label = "" if part == "public" else data.names[data.y[row]]
        rows[file].append([*data.x[row].tolist(), label, part])
    for file, content in rows.items():
        with open(folder / f"{file}.csv", "w", newline="") as out:
            csv.writer(out).writerows(content)


def test_four_nodes_with_their_own_files_and_models_equal_a_simulation(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    write_files(tmp_path)
    app, folder = tmp_path / "app", tmp_path / "run"
    project.create(app)
    (app / "task.py").write_text(TASK.replace("SHARED", repr(str(tmp_path / "shared.csv"))))
    models = ",".join(f'"{name}"={count}' for name, count in MODELS.items())
    words = [f"rounds={ROUNDS}", "clients=4", "cohort=4", "device=cpu", "algorithm=fas"]
    words += ["algorithm.download=soft-labels", "budget=30", f"clients.models={{{models}}}"]
    words += ["local.lr=0.01", "local.epochs=5", "distill.epochs=5"]
    overrides = shlex.join(words)
    with local_deployment.Deployment(tmp_path / "home") as deployment:
        for client in range(4):
            data = str(tmp_path / f"hospital-{client}.csv")
            deployment.node({"partition-id": client, "data": data})
        how = {"overrides": overrides, "folder": str(folder), "wait": 120.0, "poll": 0.2}
        deployment.submit(app, how)
        state = checkpoint(folder, ROUNDS)
    named = f"data.name=csv:{tmp_path}/shared.csv data.clients={tmp_path}/hospital-*.csv"
    named += " data.target=tumour data.split=part"
    there = simulated(app, tmp_path / "simulated", f"{overrides} {named}", monkeypatch)
    assert server_bits(state) == server_bits(there)
    ledger = lines(folder / runs.LEDGER)
    assert ledger == lines(tmp_path / "simulated" / runs.LEDGER)
    assert all(set(row["up"]) == set("0123") and not row.get("missing") for row in ledger)
    here, other = (lines(f / runs.METRICS) for f in (folder, tmp_path / "simulated"))
    assert [row["accuracies"] for row in here] == [row["accuracies"] for row in other]
    assert [row["client_accuracy"] for row in here] == [row["client_accuracy"] for row in other]
    assert here[-1]["accuracy"] > 0.8
