"""The report page: its data, and that nothing in them can become code."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import config, runs
from fedsift.report import methods, pages, palette
from fedsift.report.page_data import SAID, cut, describe_page, spread_rounds
from fedsift.types import UserError
from tests.helpers.cli import done
from tests.helpers.runs import cli, lines, straight, tiny

HOSTILE = "</script><script>alert(1)</script>\u2028<!-- \u202eabc & 'x' \"y\""


class Reader(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def data_in(page: str) -> Any:
    return json.loads(read(page).scripts[0])


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[Path]:
    """One method with two seeds, and another; the second is not recorded."""
    home = tmp_path_factory.mktemp("two")
    settings = {
        "a": ("digits-fas",),
        "b": ("digits-fas", "seed=1"),
        "c": ("digits-fedavg", "model=mlp"),
    }
    return [straight(home / name, tiny(*words)) for name, words in settings.items()]


def test_the_page_has_the_numbers_of_compare(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [str(folder) for folder in two]
    told = json.loads(done("compare", *folders, "--json").stdout)
    assert "wrote report.html" in done("report", *folders).stdout
    data = data_in(Path("report.html").read_text())
    assert data["target"] == told["target"]
    for mine, theirs in zip(data["methods"], told["methods"], strict=True):
        assert theirs.items() <= mine.items()
    for mine, folder in zip(data["runs"], two, strict=True):
        history = runs.load_run(folder)
        assert mine["accuracy"] == [round(value, 6) for value in history.accuracies]
        assert mine["all_up"][-1] == history.summary()["uplink_bytes"]
        assert mine["all_down"][-1] == history.summary()["downlink_bytes"]


def test_a_method_has_the_colour_of_its_plot(two):
    histories = [runs.load_run(folder) for folder in two]
    colours = palette.colour_methods(methods(histories))
    assert [m["colour"] for m in describe_page(histories)["methods"]] == colours


def test_what_was_said_is_there_and_no_private_sample_is(two):
    page = describe_page([runs.load_run(two[0])])
    (run,) = page["runs"]
    recording = runs.read_recording(two[0])
    assert recording is not None
    assert run["said"]["rounds"].keys() == recording.rounds.keys()
    assert run["said"]["rounds"][0]["clients"] == recording.rounds[0]["clients"]
    assert page["samples"] == [recording.samples]
    assert sum(run["said"]["parts"]["up"]) == sum(run["up"])


def test_a_run_without_a_recording_has_a_page_too(tmp_path):
    folder = straight(tmp_path / "run", tiny("digits-fas", "record=false", rounds=1))
    page = describe_page([runs.load_run(folder)])
    assert page["runs"][0]["said"] is None and page["samples"] == []


def test_conversations_are_cut_to_fit(two, monkeypatch):
    monkeypatch.setattr("fedsift.report.page_data.SAID", 1500)
    (run,) = describe_page([runs.load_run(two[0])])["runs"]
    assert (run["said"]["recorded"], len(run["said"]["rounds"])) == (3, 1)
    assert list(run["said"]["rounds"]) == [2]
    assert SAID <= 600_000


def test_a_conversation_that_does_not_fit_is_left_out(two, monkeypatch):
    # The share of each of two runs is too small for a round; what is left is enough for one.
    last = describe_page([runs.load_run(two[0])])["runs"][0]["said"]["rounds"][2]
    monkeypatch.setattr("fedsift.report.page_data.SAID", len(json.dumps(last)) + 20)
    page = describe_page([runs.load_run(folder) for folder in two[:2]])
    assert [[*run["said"]["rounds"]] for run in page["runs"]] == [[2], []]
    assert [run["said"]["recorded"] for run in page["runs"]] == [3, 3]


def make_long(first: Path, seed: int, rounds: int = 400) -> runs.History:
    """A made-up run: its first round again and again, with accuracies that rise by the seed."""
    one = runs.load_run(first)
    metrics = [
        one.metrics[0] | {"round": n, "accuracy": (seed + n / rounds) / 1000} for n in range(rounds)
    ]
    return replace(
        one,
        experiment=one.experiment.model_copy(update={"seed": seed, "rounds": rounds}),
        metrics=metrics,
        ledger=[replace(one.ledger[0], round=n) for n in range(rounds)],
    )


def test_two_hundred_long_runs_share_the_points_of_curves(two):
    """As few rounds of each as fit, with the first and the last, and sums as they were."""
    histories = [make_long(two[0], seed) for seed in range(200)]
    data = describe_page(histories)
    assert 700_000 < len(pages.make_page(data)) < 1_500_000
    assert len(data["methods"][0]["seeds"]) == 200
    for seed, run in enumerate(data["runs"]):
        at = run["at"]
        assert (at[0], at[-1], run["rounds"]) == (0, 399, 400) and 5 <= len(at) < 100
        assert max(b - a for a, b in pairwise(at)) - min(b - a for a, b in pairwise(at)) <= 1
        assert run["accuracy"] == [round((seed + n / 400) / 1000, 6) for n in at]
        assert run["all_up"] == [histories[0].ledger[0].uplink * (n + 1) for n in at]
        assert (run["config"], data["shared"]["config"]["rounds"]) == ({"seed": str(seed)}, "400")


def test_runs_that_stopped_early_show_the_same_rounds(two, monkeypatch):
    # Nine rounds, five of them: 0, 2, 4, 6, 8. The run of six rounds has 0, 2, 4 and its last.
    monkeypatch.setattr("fedsift.report.page_data.CURVE", 5)
    histories = [make_long(two[0], seed, rounds) for seed, rounds in ((0, 9), (1, 6))]
    found = describe_page(histories)["runs"]
    assert [run["at"] for run in found] == [[0, 2, 4, 6, 8], [0, 2, 4, 5]]


def test_a_large_confusion_is_left_out(two):
    # 101 classes have 10,201 cells; 100 have 10,000.
    for classes, fits in ((100, True), (101, False)):
        run = make_long(two[0], 0, 1)
        table = [[0] * classes] * classes
        run = replace(run, metrics=[run.metrics[0] | {"confusion": table}])
        (shown,) = describe_page([run])["runs"]
        assert shown["confusion"] == (table if fits else None)
        assert shown["confusion_left_out"] is not fits


def test_a_sweep_of_twelve_cells_fits(tmp_path, monkeypatch):
    # 45 rounds of 20 clients are played once; eleven copies have other seeds, samplers, accuracies.
    monkeypatch.chdir(tmp_path)
    few = ("clients=20", "cohort=8", "data.private=200", "partition.alpha=0.1", "budget=12")
    first = straight(tmp_path / "first", tiny("digits-fas", *few, rounds=45))
    samplers = ("none", "mixed", "low-entropy", "own-classes")
    for cell, (sampler, seed) in enumerate(product(samplers, range(3))):
        folder = tmp_path / "sweep" / f"{sampler}-seed-{seed}"
        shutil.copytree(first, folder)
        played = tiny("digits-fas", *few, f"sampler={sampler}", f"seed={seed}", rounds=45)
        (folder / runs.CONFIG).write_text(config.to_toml(played))
        rows = [
            row | {"accuracy": (cell + row["round"] / 45) / 20}
            for row in lines(first / runs.METRICS)
        ]
        (folder / runs.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = json.loads(done("compare", "sweep", "--json").stdout)
    done("report", "sweep")
    page = Path("report.html").read_text()
    data = data_in(page)
    assert len(page) - sum(len(sheet["picture"]) for sheet in data["samples"]) < 1_500_000
    found = {method["method"]: method["accuracy"] for method in data["methods"]}
    assert found == {method["method"]: method["accuracy"] for method in told["methods"]}
    # Cells 0, 1 and 2 are `none`, and the last five rounds count: the mean is (1 + 42 / 45) / 20.
    assert found["digits-fas sampler=none"] == pytest.approx((1 + 42 / 45) / 20, abs=1e-6)
    assert [(run["rounds"], len(run["clients"])) for run in data["runs"]] == [(45, 20)] * 12
    assert all({"0", "44"} <= run["said"]["rounds"].keys() for run in data["runs"])


def test_rounds_are_evenly_spaced_by_hand():
    # 10 rounds, 4 of them: 0, 3, 6, 9. One of many is the first, as np.linspace has it.
    assert spread_rounds(10, 4) == [0, 3, 6, 9]
    assert spread_rounds(3, 400) == [0, 1, 2]
    assert spread_rounds(5, 1) == [0]
    assert spread_rounds(0, 5) == []


@given(st.text(max_size=40))
def test_no_text_can_end_the_script_it_stands_in(text):
    page = pages.make_page({"fedsift": text + HOSTILE})
    found = read(page)
    assert len(found.scripts) == 2 and data_in(page) == {"fedsift": text + HOSTILE}
    assert [tag for tag, _ in found.tags].count("script") == 2


def test_the_policy_lets_nothing_in():
    page = pages.make_page({"fedsift": "x"})
    found = read(page)
    policies = [a for tag, a in found.tags if tag == "meta" and "http-equiv" in a]
    policy = str(policies[0]["content"])
    assert (
        policy.startswith("default-src 'none'; style-src 'sha256-") and "connect-src" not in policy
    )
    assert "unsafe" not in policy and "http" not in policy
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    links = [a.get("href", a.get("src")) for _, a in found.tags if "href" in a or "src" in a]
    assert set(links) == {"data:,", "#main"}


def test_a_hostile_run_is_text(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = HOSTILE + "x" * 5000
    straight(tmp_path / "run", tiny("digits-fas", rounds=1))
    config = (tmp_path / "run" / "config.toml").read_text()
    config = re.sub(r"^name = .*$", lambda _: f"name = {json.dumps(name)}", config, flags=re.M)
    (tmp_path / "run" / "config.toml").write_text(config)
    ledger = json.loads((tmp_path / "run" / "ledger.jsonl").read_text())
    ledger["missing"] = {"3": HOSTILE}
    (tmp_path / "run" / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    done("report", "run")
    page = Path("report.html").read_text()
    assert len(read(page).scripts) == 2
    (run,) = data_in(page)["runs"]
    assert run["name"] == cut(name) and len(run["name"]) == 500
    assert run["missing"] == {"count": 1, "rows": [[0, 3, HOSTILE]]}


def test_a_report_is_a_page():
    with pytest.raises(UserError, match=r"write -o curves\.html, not curves\.png"):
        pages.check_page_name(Path("curves.png"))
    assert cli("report", "nowhere", "-o", "x.html").exit_code == 2


def test_a_page_names_what_became_of_a_run(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 1)
    (run,) = describe_page([runs.load_run(folder)])["runs"]
    assert run["state"] == {"resumed": 0, "name": "stopped"}
    (folder / "failed.json").write_text('{"rounds": 1, "error": "no <b>disk</b>"}')
    (run,) = describe_page([runs.load_run(folder)])["runs"]
    assert run["state"] == {"resumed": 0, "name": "failed", "why": "no <b>disk</b>"}
    going = runs.begin_run(folder, runs.read_config(folder), resume=True)
    (run,) = describe_page([runs.load_run(folder)])["runs"]
    assert run["state"] == {"resumed": 1, "name": "running"}
    going.lock.release()
