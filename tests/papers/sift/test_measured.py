"""The frontier in the package: made from the committed reports, and from nothing else."""

import json
from importlib import resources
from pathlib import Path

from fedsift.papers.sift import PAPER, measured
from fedsift.papers.sift.measured import Point, find_half, pack_reports, read_measured
from tests.helpers.cli import done

ROOT = Path(__file__).parents[3]
CURE = "run: python tools/pack_frontier.py"


def test_the_package_has_what_the_committed_reports_say():
    packed = pack_reports(PAPER, ROOT / "results" / PAPER.name)
    kept = (resources.files("fedsift.papers.sift") / measured.FILE).read_text()
    assert packed == kept, CURE
    assert [asdict["name"] for asdict in json.loads(packed)] == [s.name for s in read_measured()]


def test_a_report_is_packed_with_what_advice_needs(tmp_path, monkeypatch):
    """From runs to the package: labels and weights are told apart by what was uploaded."""
    monkeypatch.chdir(tmp_path)
    tiny = ["rounds=2", "local.epochs=1", "distill.epochs=1", "clients=4", "cohort=2", "model=mlp"]
    tiny += ["data.private=160", "data.public=60", "budget=6", "device=cpu"]
    only = ["--only", "fedavg-alpha-1-*", "--only", "fas-alpha-1-*"]
    only += ["--only", "labels-4-bits+bytes-300-alpha-1-*", "--only", "sift-*-alpha-1-*"]
    out = tmp_path / "results" / "digits-main"
    words = ["reproduce", "sift", "frontier", "--quick", "--seeds", "2", *tiny, *only]
    done(*words, "--out", str(out))
    (setting,) = json.loads(pack_reports(PAPER, tmp_path / "results"))
    report = json.loads((out / "frontier.json").read_text())
    cells = {cell["curve"]: cell for cell in report["cells"]}
    assert {key: setting[key] for key in ("name", "recipe", "classes", "rounds", "seeds")} == {
        "name": "digits",
        "recipe": "main",
        "classes": 10,
        "rounds": 2,
        "seeds": 2,
    }
    assert setting["weights"] == cells["fedavg"]["uplink_bytes_per_upload"] // 4
    points = {point["curve"]: Point(**point) for point in setting["points"]}
    kinds = {curve: point.uploads for curve, point in points.items()}
    assert kinds == {
        "sift-150": "labels",
        "labels-4-bits+bytes-300": "labels",
        "sift-600": "weights",
        "fas": "labels",
        "fedavg": "weights",
    }
    assert [point.method for point in points.values()] == [
        "sift labels",
        "sift labels of 4 bits",
        "sift weights",
        "FAS",
        "FedAvg",
    ]
    (ours, *_) = points.values()
    assert ours.bytes == cells[ours.curve]["uplink_bytes_largest"] <= 150
    assert ours.accuracy == cells[ours.curve]["accuracy"]


def test_half_way_is_the_mean_of_five_rounds_that_end_there():
    """15 rounds end half-way at the 8th: rounds 4 to 8 are 4, 5, 6, 7, 8 and 5 more: 6 and 11."""
    rounds = [list(map(float, range(1, 16))), list(map(float, range(6, 21)))]
    assert find_half(rounds) == 8.5
    assert find_half([[0.25, 0.5, 0.75]]) == 0.375  # fewer than five: rounds 1 and 2


def test_what_one_report_lacks_is_taken_from_the_other(tmp_path):
    """The frontier has the one cell, the main table has both: the first counts, and its name."""
    report = json.loads((ROOT / "results" / "sift" / "digits-main" / "main.json").read_text())
    ours, other = (
        next(cell for cell in report["cells"] if (cell["curve"], cell["alpha"]) == (curve, 1.0))
        for curve in ("sift-150", "feddf-parts")
    )
    folder = tmp_path / "digits-main"
    folder.mkdir()
    main = report | {"cells": [ours, other]}
    (folder / "main.json").write_text(json.dumps(main))
    frontier = report | {"cells": [ours | {"accuracy": 0.5}], "seeds": 3}
    (folder / "frontier.json").write_text(json.dumps(frontier))
    (setting,) = json.loads(pack_reports(PAPER, tmp_path))
    found = [(point["label"], point["accuracy"]) for point in setting["points"]]
    assert found == [("sift labels, 150 B", 0.5), ("FedDF with parts", other["accuracy"])]
    assert setting["seeds"] == 3


def test_without_reports_the_file_is_empty(tmp_path):
    assert pack_reports(PAPER, tmp_path) == "[]\n"
