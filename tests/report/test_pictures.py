"""Pictures of one kind, their sizes, and colours that anybody can tell apart."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift import runs
from fedsift.report import methods
from fedsift.report.palette import ALGORITHMS, PALETTE, colour_methods, colour_systems, colours
from fedsift.report.pictures import (
    KINDS,
    count_picks,
    draw_kind,
    find_frontier,
    read_width,
)
from fedsift.types import UserError
from tests.helpers.cli import complaint, done
from tests.helpers.runs import straight, tiny


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one method."""
    home = tmp_path_factory.mktemp("pictures")
    for seed in (0, 1):
        straight(home / f"seed-{seed}", tiny("digits-fas", f"seed={seed}", rounds=2))
    return [home / "seed-0", home / "seed-1"]


def read_size(file: Path) -> tuple[float, float]:
    """Of an SVG, in inches."""
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', file.read_text())[:2]
    return float(width) / 72, float(height) / 72


WORDS = {
    "curves": ["round", "test accuracy", "band: lowest to highest seed"],
    "bytes": ["bytes of a run, mean over seeds", "down, by broadcast"],
    "partition": ["class", "client", "private samples"],
    "frontier": ["bytes per upload", "bar: standard deviation over seeds"],
    "confusion": ["predicted class", "true class"],
    "picks": ["has, of its own samples", "says, of the public ones it chose"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_has_its_size_and_says_what_it_shows(kind, two, tmp_path):
    file = tmp_path / "picture.svg"
    draw_kind(kind, [runs.load_run(folder) for folder in two], file, read_width("column"))
    assert read_size(file)[0] == pytest.approx(3.5)
    text = file.read_text()
    assert [word for word in WORDS[kind] if word not in text] == []


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_the_ending_says_the_format(ending, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done("plot", str(two[0]), "--kind", "curves", "--width", "2.5", "-o", f"a.{ending}")
    magic = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}[ending]
    content = Path(f"a.{ending}").read_bytes()
    assert content.startswith(magic)
    if ending == "png":  # 2.5 inches of 150 dots
        assert int.from_bytes(content[16:20], "big") == 375


def test_mistakes_are_named_and_nothing_is_written(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, out = str(two[0]), ["-o", "a.svg"]
    assert "did you mean 'curves'" in complaint("plot", run, "--kind", "curve", *out)
    assert "column, page or inches" in complaint(
        "plot", run, "--kind", "curves", "--width", "huge", *out
    )
    assert "--width is for" in complaint("plot", run, "--width", "column", *out)
    assert "2 to 30 inches" in complaint("plot", run, "--kind", "curves", "--width", "nan", *out)
    assert not Path("a.svg").exists()


def test_a_run_without_a_recording_has_no_picture_of_picks(tmp_path):
    straight(tmp_path / "run", tiny("digits-fas", "record=false", rounds=1))
    with pytest.raises(UserError, match="no recording of what clients chose"):
        draw_kind("picks", [runs.load_run(tmp_path / "run")], tmp_path / "a.svg", 3.0)


def test_picks_by_hand():
    # Client 3 speaks twice of class 1 and once of class 0, over two rounds; client 4 says nothing.
    rows = [
        {"clients": {"3": {"said": {"7": [1, 900, 0, 100], "8": [0, 600]}}, "4": {"said": {}}}},
        {"clients": {"3": {"said": {"9": [1, 500]}}}},
        {},
    ]
    assert count_picks(rows) == {3: {1: 2, 0: 1}}


def test_the_frontier_by_hand():
    # 20 bytes for .5 is beaten by 10 for .6; 30 for .7 is the best of all; 30 for .65 is not.
    assert find_frontier([20, 10, 30, 30], [0.5, 0.6, 0.7, 0.65]) == [1, 2]


def test_an_algorithm_has_its_colour_whatever_it_is_compared_with(two):
    run = runs.load_run(two[0])

    def named(algorithm: str) -> runs.History:
        section = run.experiment.algorithm.model_copy(update={"name": algorithm})
        return replace(run, experiment=run.experiment.model_copy(update={"algorithm": section}))

    fas, fedavg = named("fas"), named("fedavg")
    again = replace(fas, experiment=fas.experiment.model_copy(update={"rounds": 9}))
    own = dict(zip(ALGORITHMS, PALETTE, strict=True))
    assert colour_methods(methods([fas])) == [own["fas"]]
    assert colour_methods(methods([fedavg, fas])) == [own["fedavg"], own["fas"]]
    three = colour_methods(methods([fas, again, fedavg]))
    assert (three[0], three[2]) == (own["fas"], own["fedavg"]) and len(set(three)) == 3


# How eyes without one kind of cone see linear RGB (Viénot, Brettel and Mollon 1999).
SEEN = {
    "all cones": np.eye(3),
    "without red": np.array([[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]]),
    "without green": np.array([[0.2927, 0.7073, 0], [0.2927, 0.7073, 0], [-0.0223, 0.0223, 1]]),
}


def to_lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as these eyes see it."""
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
def test_the_colours_differ_for_all_eyes(eyes):
    """A distance of 2.3 can just be seen."""
    seen = [to_lab(colour, SEEN[eyes]) for colour in PALETTE]
    nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert nearest > 8
    assert len(set(itertools.islice(colours(), 20))) == 20


def test_a_system_of_a_paper_has_the_colour_of_its_algorithm():
    # FedAvg is the first of the palette and DS-FL the sixth; what is nobody's takes what is left.
    names = ["mixed", "DS-FL", "FedAvg", "FedAvg with parts", "FD of Jeong"]
    told = colour_systems(names)
    own = PALETTE
    assert [told[name] for name in names] == [own[1], own[5], own[0], own[2], own[9]]
