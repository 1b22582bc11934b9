"""`fedsift advise` as a user meets it, on a frontier made by hand."""

import json
from pathlib import Path

import pytest

from fedsift import config
from fedsift.papers.sift import measured
from tests.helpers.cli import complaint, done, rows
from tests.helpers.frontier import BOTH

ASKED = ("advise", "--bytes", "1500", "--clients", "20", "--classes", "10")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def measured_by_hand(monkeypatch):
    monkeypatch.setattr(measured, "read_measured", lambda: BOTH)


@pytest.mark.usefixtures("measured_by_hand")
def test_the_advice_the_evidence_and_the_setting_are_printed():
    text = done(*ASKED, "--skew", "strong").stdout
    assert text.startswith("For at most 1,500 bytes per upload: sift\n")
    assert "of all methods this one loses least: .030 at most" in text
    assert rows(text)[:5] == [
        ["sift, 1,500 B", "cifar10", "0.1", ".680 ± .010", "1,500 B"],
        ["FedAvg", "cifar10", "0.1", ".580 ± .010", "320,000 B"],
        ["sift, 150 B", "digits", "0.1", ".930 ± .010", "150 B"],
        ["FedPAQ with parts, 4 bits (best that fits)", "digits", "0.1", ".960 ± .010", "590 B"],
        ["FedAvg", "digits", "0.1", ".620 ± .010", "24,793 B"],
    ]
    assert '[algorithm]\nname = "sift"\nbytes = 1500\n' in text
    assert "Beyond what was measured" not in text


@pytest.mark.usefixtures("measured_by_hand")
def test_what_is_beyond_the_measurements_is_printed():
    text = done("advise", "--bytes", "100", "--classes", "100", "--skew", "strong").stdout
    assert "Of all that was measured it is the best, or within a point of it, in every" in text
    assert "Beyond what was measured:\n- Only 10 classes were measured, not 100.\n" in text


@pytest.mark.usefixtures("measured_by_hand")
def test_json_has_all_of_it():
    found = json.loads(done(*ASKED, "--alpha", "0.1", "--json").stdout)
    assert (found["method"], found["agree"], found["beyond"]) == ("sift", False, [])
    assert found["question"]["alpha"] == 0.1
    assert [case["advised"]["accuracy"] for case in found["evidence"]] == [0.68, 0.93]
    assert found["setting"]["algorithm"] == {"name": "sift", "bytes": 1500}


@pytest.mark.usefixtures("measured_by_hand")
def test_the_setting_is_written_to_a_new_file_that_can_be_read():
    text = done(*ASKED, "--skew", "strong", "-o", "mine.toml").stdout
    assert text.endswith("written: mine.toml; run it with: fedsift run mine.toml\n")
    assert config.read_experiment("mine.toml").algorithm.bytes == 1500
    before = Path("mine.toml").read_bytes()
    assert "mine.toml exists; choose another file" in complaint(*ASKED, "-o", "mine.toml")
    assert Path("mine.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--skew", "stong"], "unknown skew 'stong'; did you mean 'strong'?"),
        (["--skew", "mild", "--alpha", "1"], "give --skew or --alpha, not both"),
        (["--models", "two"], "unknown kind of models 'two'; "),
        (["--alpha", "-1"], "alpha must be a number above 0, not -1"),
    ],
)
@pytest.mark.usefixtures("measured_by_hand")
def test_a_mistake_is_named_in_one_line(words, said):
    assert said in complaint(*ASKED, *words)


def test_without_a_committed_frontier_it_says_so(monkeypatch):
    monkeypatch.setattr(measured, "read_measured", list)
    assert "no frontier has been measured yet" in complaint(*ASKED)
