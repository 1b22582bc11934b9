"""`fedsift show`: one run with its rounds, clients and totals."""

import json
import re
from pathlib import Path

import torch

from fedsift import __version__, runs
from tests.helpers.cli import SUMMARY, done, rows
from tests.helpers.runs import lines, straight, tiny


def test_show_prints_config_rounds_clients_and_totals():
    straight(Path("fas"), tiny())
    text = done("show", "fas").stdout
    history = runs.load_run(Path("fas"))
    assert "partition.alpha          1.0\n" in text and "clients.count            4\n" in text
    assert "algorithm.sampler        mixed  (default of the algorithm)\n" in text
    assert "algorithm.budget         6\n" in text
    assert f"torch {torch.__version__}" in text
    table = rows(text)
    assert table[0][:3] == [
        "1",
        f"{history.accuracies[0]:.4f}",
        " ".join(map(str, history.ledger[0].up)),
    ]
    assert [cells[0] for cells in table[:6]] == ["1", "2", "3"] * 2
    assert [cells[0] for cells in table[6:]] == ["0", "1", "2", "3", "digits-fas", "digits-fas"]
    assert [cells[3] for cells in table[:3]] == ["530 B"] * 3
    for client, cells in zip(history.clients, table[6:10], strict=True):
        assert cells[1:3] == ["mlp", " ".join(map(str, client["labels"]))]
        uploads = sum(client["client"] in row.up for row in history.ledger)
        assert cells[3] == f"{265 * uploads} B"
    assert table[10][4] == "1.6 kB"  # 3 rounds x 2 clients x 265 B
    # ten samples a client in one batch: a step a round
    assert table[11][1:4] == ["1", "265 B", "265 B"]


def test_show_prints_how_good_the_soft_labels_are(monkeypatch):
    straight(Path("fas"), tiny(rounds=1))
    (row,) = runs.load_run(Path("fas")).metrics
    sent, taught = row["uploaded_labels"], row["distilled_labels"]
    monkeypatch.setenv("COLUMNS", "60")
    text = done("show", "fas").stdout
    assert rows(text)[1] == [
        "1",
        "12",
        f"{sent['right']:.3f}",
        str(sent["samples"]),
        f"{sent['votes']:.2f}",
        str(taught["rows"]),
        f"{taught['right']:.3f}",
        str(taught["fewest"]),
    ]
    table = text.partition("\nsoft labels")[2].partition("\nclients")[0]
    assert "sent: soft labels uploaded" in table and max(map(len, table.splitlines())) <= 60
    straight(Path("avg"), tiny("digits-fedavg", rounds=1))
    assert "soft labels" not in done("show", "avg").stdout


def test_show_copes_with_a_million_clients_and_large_cohorts(monkeypatch):
    monkeypatch.setattr("fedsift.cli.show.SHOWN", 3)
    straight(
        Path("fas"), tiny("digits-fas", "partition.kind=views", "clients=1000000", "cohort=15"), 1
    )
    text = done("show", "fas").stdout
    history = runs.load_run(Path("fas"))
    assert rows(text)[0][2] == " ".join(map(str, list(history.ledger[0].up)[:6])) + " ... 15 in all"
    assert [cells[0] for cells in rows(text)[2:5]] == [
        str(client["client"]) for client in history.clients[:3]
    ]
    assert f"\n3 of 1,000,000 clients; clients.json has {len(history.clients)}\n" in text
    assert rows(text)[5][0] == "digits-fas"


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


def test_show_tells_more_than_the_accuracy_of_the_last_round():
    *_, row = lines(straight(Path("fas"), tiny(rounds=1)) / runs.METRICS)
    figures = f"macro F1 {row['macro_f1']:.3f}, calibration error {row['calibration_error']:.3f}"
    losses = f"local loss {row['local_loss']:.3f}, distillation loss {row['distill_loss']:.3f}"
    told = " ".join(done("show", "fas").stdout.split())
    assert f"last round: {figures}, {losses}" in told


def test_classes_and_clients_are_called_by_their_names(tmp_path):
    words = ["partition.kind=given", "rounds=1", "local.epochs=1", "distill.epochs=1", "device=cpu"]
    ran = done("run", "table-fas", *words, "--out", str(tmp_path / "run"))
    assert "note: classes: 0 = high, 1 = low, 2 = medium\n" in ran.stderr
    assert "note: normalise = standard for a table, by figures of the 300 public" in ran.stderr
    said = done("show", str(tmp_path / "run")).stdout
    assert "data                     675 private, 300 public, 225 test" in said
    assert re.search(r"0 east +mlp +high \d+, low \d+, medium \d+", said)


def test_show_does_not_claim_the_data_of_a_run_on_flower():
    """There the data are in `task.py`; the config has names that nobody loads."""
    folder = straight(Path("fas"), tiny(rounds=1))
    assert "data.name                digits\n" in done("show", "fas").stdout
    known = json.loads((folder / runs.DATA).read_text())
    (folder / runs.DATA).write_text(json.dumps(known | {"private": 0}))
    text = done("show", "fas").stdout
    assert "data.name" not in text and "partition.alpha" not in text
