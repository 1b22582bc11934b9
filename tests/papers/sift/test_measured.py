"""The frontier in the package: made from the committed reports, and from nothing else."""

import json
from importlib import resources
from pathlib import Path

from fedsift.papers.sift import PAPER, measured
from fedsift.papers.sift.measured import Point, pack_reports, read_measured
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


def test_without_reports_the_file_is_empty(tmp_path):
    assert pack_reports(PAPER, tmp_path) == "[]\n"
