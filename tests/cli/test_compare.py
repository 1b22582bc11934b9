"""`fedsift compare`: runs grouped by method, over seeds."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from fedsift import runs
from fedsift.cli.console import format_bytes
from tests.helpers.cli import complaint, done, rows
from tests.helpers.runs import TINY, straight, tiny


def test_the_table_is_whole_on_a_terminal_of_eighty_columns(monkeypatch):
    straight(Path("fas"), tiny())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in done("compare", "fas").stdout


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
    assert fas[:5] == ["digits-fas", "2", f"{mean:.3f} ± {spread:.3f}", "baseline", "265 B"]
    gap = f"{settled[2] - settled[0]:+.3f}".replace("0.", ".")
    assert avg[:4] == ["digits-fedavg", "1", f"{settled[2]:.3f}", gap]
    assert result.stderr == "note: not a paired comparison; the runs differ in seed\n"


def test_compare_of_paired_runs_has_no_note():
    _, _, avg = some_runs()
    assert done("compare", "fas0", avg).stderr == ""


@pytest.mark.slow
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
    entries = sorted(str(path) for path in Path("grid").iterdir())
    assert "grid/sweep.toml" in entries
    assert done("compare", *entries, "--json").stdout == done("compare", "grid", "--json").stdout
    assert "is not a run folder" in complaint("compare", "grid/sweep.toml")


def test_compare_as_json_has_methods_runs_and_what_is_unpaired():
    folders = some_runs()
    result = done("compare", *folders, "--json")
    told = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(told) == ["target", "methods", "runs", "unpaired", "without_gap"]
    gap = told["runs"][2]["accuracy"] - told["runs"][0]["accuracy"]
    assert [m["gap"] and m["gap"]["by_seed"] for m in told["methods"]] == [
        None,
        [pytest.approx(gap, abs=1e-6)],
    ]
    assert told["without_gap"] == {}
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


def test_a_folder_of_runs_stands_for_its_runs_and_each_counts_once():
    folders = some_runs()
    Path("all").mkdir()
    for folder in folders:
        Path(folder).rename(Path("all") / folder)
    told = json.loads(done("compare", "all", "all", f"all/{folders[0]}", "--json").stdout)
    assert [row["run"] for row in told["runs"]] == [f"all/{folder}" for folder in sorted(folders)]


def test_the_target_is_explained_and_left_out_for_a_single_method():
    folders = some_runs()
    text = done("compare", *folders).stdout
    target = json.loads(done("compare", *folders, "--json").stdout)["target"]
    column = f"up until {str(target).removeprefix('0')}"
    assert (
        f"{column}: bytes uploaded until that accuracy (0.9 of the best accuracy)\n" in text
        and text.count(column) == 2
    )
    assert "left out for width" not in text
    assert "up until" not in done("compare", "fas0", "fas1").stdout
    asked = done("compare", "fas0", "--target", "0.05").stdout
    assert "up until .05" in asked and "of the best" not in asked


def test_a_table_says_what_its_accuracies_are_of():
    straight(Path("tested"), tiny(rounds=1))
    straight(Path("validated"), tiny("digits-fas", "data.validation=50", rounds=1))
    assert "test accuracy (of the only round)" in done("compare", "tested").stdout
    assert "validation accuracy (of the only round)" in done("compare", "validated").stdout
    both = done("compare", "tested", "validated")
    assert "test or validation accuracy (of the only round)" in both.stdout
    assert [cells[0] for cells in rows(both.stdout)] == [
        "digits-fas (test)",
        "digits-fas data.validation=50 (validation)",
    ]
    assert both.stderr == "note: not a paired comparison; the runs differ in data.validation\n"
    told = json.loads(done("compare", "tested", "validated", "--json").stdout)
    assert [m["measured_on"] for m in told["methods"]] == ["test", "validation"]
    assert [run["measured_on"] for run in told["runs"]] == ["test", "validation"]


def test_columns_without_room_are_named(monkeypatch):
    folders = some_runs()
    monkeypatch.setenv("COLUMNS", "70")
    text = done("compare", *folders).stdout
    header = next(line for line in text.splitlines() if line.strip().startswith("method"))
    (told,) = (line for line in text.splitlines() if line.startswith("left out for width: "))
    left_out = told.removeprefix("left out for width: ").split(", ")
    assert "broadcast" in left_out and not any(name in header for name in left_out)


def shared_seeds() -> list[str]:
    for seed in range(2):
        straight(Path(f"fas{seed}"), tiny("digits-fas", f"seed={seed}", rounds=1))
        straight(Path(f"avg{seed}"), tiny("digits-fedavg", f"seed={seed}", rounds=1))
    return ["avg0", "avg1", "fas0", "fas1"]


def gap_in(text: str) -> list[str]:
    return [cell for cells in rows(text) for cell in cells if " of 2" in cell]


@pytest.mark.parametrize("columns", [120, 60, 44])
def test_gaps_over_seeds_are_shown_at_every_width(columns, monkeypatch):
    folders = shared_seeds()
    told = json.loads(done("compare", *folders, "--json").stdout)
    gap = told["methods"][1]["gap"]
    low, high = gap["interval"]
    expected = f"{gap['mean']:+.3f} ({low:+.3f} to {high:+.3f})"
    expected = re.sub(r"([+-])0\.", r"\1.", expected)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = done("compare", *folders).stdout
    assert gap_in(text) == [f"{expected}, {gap['ahead']} of 2"]
    assert "265 B" in text and max(map(len, text.splitlines())) <= columns
    assert "to digits-fedavg, mean" in " ".join(text.split())
    monkeypatch.setenv("COLUMNS", "120")
    other = done("compare", *folders, "--against", "digits-fas").stdout
    turned = expected.translate(str.maketrans("+-", "-+")).split()[0]
    assert [cell.split()[0] for cell in gap_in(other)] == [turned]


def test_runs_that_cannot_be_paired_are_named():
    straight(Path("one"), tiny(rounds=1))
    straight(Path("other"), tiny("digits-fas", "data.public=29", rounds=1))
    result = done("compare", "one", "other", "--against", "digits-fas data.public=30")
    assert result.stderr.splitlines()[1] == (
        "note: digits-fas data.public=29 is not paired with digits-fas data.public=30: "
        "data.public is 29, not 30"
    )
    assert "gap" not in result.stdout
    assert len(done("compare", "one", "other").stderr.splitlines()) == 1
    told = json.loads(done("compare", "one", "other", "--json").stdout)
    assert told["methods"][1]["gap"] is None
    assert list(told["without_gap"]) == ["digits-fas data.public=29"]
    assert "unknown method 'fed'" in complaint("compare", "one", "other", "--against", "fed")


def test_costs_are_shown_where_they_are_asked_for(monkeypatch):
    folders = some_runs()
    assert "both ways" not in done("compare", *folders).stdout
    text = done("compare", *folders, "--costs").stdout
    fas, avg = rows(text)[2:]
    told = json.loads(done("compare", *folders, "--json").stdout)["methods"]
    assert fas[:4] == ["digits-fas", "1", "265 B", "265 B"]  # ten samples in a batch
    assert told[0]["total_bytes"] == told[0]["uplink_bytes"] + told[0]["downlink_bytes"]
    assert told[0]["total_bytes_broadcast"] == told[0]["uplink_bytes"] + told[0]["broadcast_bytes"]
    assert told[0]["downlink_bytes_per_download"] == 2 * told[0]["broadcast_bytes_per_round"] // 2
    assert told[1]["client_steps_per_round"] == 1 and avg[1] == "1"
    for columns in (60, 44):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = done("compare", *folders, "--costs").stdout.partition("\ncosts")[2]
        assert "265 B" in text and max(map(len, text.splitlines())) <= columns


def test_costs_and_rounds_show_both_hops_where_there_are_edge_servers():
    straight(Path("flat"), tiny(rounds=1))
    straight(Path("edges"), tiny("digits-fas", "topology=edges(2)", rounds=1))
    (sent,) = runs.load_run("edges").ledger
    up, down = (format_bytes(sum((way or {}).values())) for way in (sent.edge_up, sent.edge_down))
    table = rows(done("compare", "flat", "edges", "--costs").stdout)
    assert [row[-2:] for row in table[-2:]] == [["none", "none"], [up, down]]
    assert rows(done("show", "edges").stdout)[0][-2:] == [up, down]
    assert "edges up" not in done("show", "flat").stdout
    told = json.loads(done("show", "edges", "--json").stdout)
    assert told["edge_uplink_bytes"] == sum((sent.edge_up or {}).values())


def test_a_comparison_as_csv_markdown_and_latex():
    folders = shared_seeds()
    told = json.loads(done("compare", *folders, "--json").stdout)["methods"]
    table = list(csv.DictReader(io.StringIO(done("compare", *folders, "--csv").stdout)))
    assert [row["method"] for row in table] == ["digits-fedavg", "digits-fas"]
    for row, method in zip(table, told, strict=True):
        assert float(row["accuracy"]) == method["accuracy"]
        assert float(row["accuracy_sd"]) == method["accuracy_sd"]
        assert int(row["uplink_bytes"]) == method["uplink_bytes"]
        assert (row["seeds"], row["rounds"], row["measured_on"]) == ("2", "1", "test")
    gap = told[1]["gap"]
    assert table[0]["gap_mean"] == "" and table[1]["gap_against"] == "digits-fedavg"
    figures = [float(table[1][f"gap_{name}"]) for name in ("mean", "low", "high")]
    assert figures == [gap["mean"], *gap["interval"]]
    markdown = done("compare", *folders, "--markdown").stdout.splitlines()
    latex = done("compare", *folders, "--latex").stdout.splitlines()
    accuracy = f"{told[1]['accuracy']:.3f} ± {told[1]['accuracy_sd']:.3f}"
    assert markdown[0] == "| method | seeds | accuracy | gap | per upload | all up | all down |"
    assert markdown[3].startswith(f"| digits-fas | 2 | {accuracy} | ")
    assert "± standard deviation" in markdown[-1] and "95 % interval" in markdown[-1]
    assert latex[1] == r"\begin{tabular}{lrrrrrr}" and latex[-1] == r"\end{tabular}"
    assert latex[6].startswith(
        f"digits-fas & 2 & {accuracy.replace('±', r'$' + chr(92) + 'pm$')} & "
    )
    assert "one format at a time" in complaint("compare", *folders, "--csv", "--latex")


def test_special_letters_of_a_name_survive_in_every_format():
    name = "a_b & 50% | x"
    straight(Path("run"), tiny(rounds=1).model_copy(update={"name": name}))
    assert r"a\_b \& 50\% | x &" in done("compare", "run", "--latex").stdout
    assert r"| a_b & 50% \| x |" in done("compare", "run", "--markdown").stdout
    (row,) = csv.DictReader(io.StringIO(done("compare", "run", "--csv").stdout))
    assert row["method"] == name and row["gap_mean"] == ""
