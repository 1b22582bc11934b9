"""`fedsift reproduce` as a user meets it: on 40 samples and 4 clients, two rounds per run."""

import contextlib
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedsift import engines, runs
from fedsift.algorithms.weights import FedAvg
from fedsift.papers import PAPERS
from fedsift.papers.fas_icc2022 import PAPER, theorem
from fedsift.reproduction.plans import Cell, Plan, run_folder
from fedsift.runs import group
from fedsift.runs.run import begin_run
from tests.helpers import tiny_paper
from tests.helpers.cli import MAGIC, complaint, done, rows
from tests.helpers.json_shapes import read_printed
from tests.helpers.runs import bits, lines, rounds_in
from tests.helpers.runs import cli as fedsift

SMALL = [
    *("rounds=2", "local.epochs=1", "distill.epochs=1", "clients=4", "cohort=2", "model=mlp"),
    *("data.private=40", "data.public=30", "budget=6", "device=cpu"),
]
RESULTS = Path(__file__).parents[2] / "results" / PAPER.name
CELLS = PAPER.items["table1"].cells(Plan(PAPER, "digits", "ours", 2))


@pytest.fixture(autouse=True)
def _own_folder_without_fetched_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path / "data"))


def words(*items: str, out: str | Path = "here", seeds: int = 1) -> list[str]:
    return [
        "reproduce",
        PAPER.name,
        *items,
        "--quick",
        "--seeds",
        str(seeds),
        *SMALL,
        "--out",
        str(out),
    ]


def told(out: str | Path, item: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((Path(out) / f"{item}.json").read_text())
    return report


def every_run(out: Path) -> dict[str, dict[str, bytes]]:
    return {folder.name: bits(folder) for folder in sorted((out / "runs").iterdir())}


def every_byte(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Path, Any]:
    """Table I with two seeds, and what was said."""
    out = tmp_path_factory.mktemp("table1") / "out"
    return out, done(*words("table1", out=out, seeds=2))


@pytest.fixture
def copied(played, tmp_path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(played[0], tmp_path / "copied"))


# --- from nothing to a table ---


def test_every_cell_and_seed_is_played_and_reported(played):
    out, result = played
    assert "24 runs side by side: batched engine on cpu" in result.stderr
    assert {path.name for path in out.iterdir()} == {
        "runs",
        "table1.json",
        "table1.md",
        "table1.png",
    }
    assert (out / "table1.png").read_bytes().startswith(MAGIC["png"])
    assert [(cell["curve"], cell["alpha"]) for cell in told(out, "table1")["cells"]] == [
        (cell.curve, cell.alpha) for cell in CELLS
    ]
    assert {folder.name for folder in (out / "runs").iterdir()} == {
        run_folder(out, cell, seed).name for cell in CELLS for seed in (0, 1)
    }


def test_the_figures_are_those_of_the_runs(played):
    """Two rounds: the accuracy is their mean. Six rows of ten floats, their indexes and a head: 265
    bytes an upload.
    """
    out, _ = played
    for cell, row in zip(CELLS, told(out, "table1")["cells"], strict=True):
        accuracies = [
            [line["accuracy"] for line in lines(run_folder(out, cell, seed) / runs.METRICS)]
            for seed in (0, 1)
        ]
        assert row["by_seed"] == [round(sum(of) / 2, 6) for of in accuracies]
        assert row["by_round"] == [[round(a, 4) for a in of] for of in accuracies]
        assert row["accuracy"] == pytest.approx(sum(map(sum, accuracies)) / 4, abs=1e-6)
        assert row["paper"] is None
        assert row["uplink_bytes_per_upload"] == pytest.approx(262, abs=6)
    assert told(out, "table1")["rounds"] == 2


def test_the_table_and_the_verdicts_are_on_stdout(played):
    out, result = played
    table = rows(result.stdout)
    first = told(out, "table1")["cells"][0]
    ours = f"{first['accuracy']:.3f} ± {first['sd']:.3f}".replace("0.", ".")
    assert table[0] == ["none", "100", ours, f"{first['uplink_bytes_per_upload']} B"]
    assert [row[:2] for row in table[:12]] == [
        [c.curve.removeprefix("table1-"), f"{c.alpha:g}"] for c in CELLS
    ]
    for claim in told(out, "table1")["claims"]:
        start = claim["claim"][:40]
        (line,) = (line for line in result.stdout.splitlines() if start in line)
        assert f"  {claim['verdict']}  " in line
    assert result.stdout.endswith(
        f"written: table1.json, with the same as .md and .png, in {out}\n"
    )


def test_two_seeds_are_compared_pair_by_pair(played):
    out, _ = played
    report = told(out, "table1")
    at = {(cell["label"], cell["alpha"]): cell["by_seed"] for cell in report["cells"]}
    (best,) = (
        claim for claim in report["claims"] if claim["claim"] == "Strong skew: mixed is the best"
    )
    gaps = [a - b for a, b in zip(at["mixed", 0.1], at["low-entropy", 0.1], strict=True)]
    *_, last = best["evidence"]
    assert last["gaps"] == pytest.approx(gaps, abs=1.1e-4)
    assert last["paper"] == pytest.approx(0.5498 - 0.5219)
    assert last["verdict"] == (
        "holds" if min(gaps) > 0 else "does not hold" if max(gaps) <= 0 else "open"
    )


def test_the_cells_of_a_seed_share_data_clients_and_cohorts(played):
    out, _ = played
    for alpha in (100.0, 1.0, 0.1):
        folders = [run_folder(out, cell, 1) for cell in CELLS if cell.alpha == alpha]
        assert len({(folder / runs.DATA).read_bytes() for folder in folders}) == 1
        assert len({(folder / runs.CLIENTS).read_bytes() for folder in folders}) == 1
        assert (
            len(
                {
                    str([sorted(row["up"]) for row in lines(folder / runs.LEDGER)])
                    for folder in folders
                }
            )
            == 1
        )


# --- the same command again ---


def test_a_second_call_plays_nothing_and_says_the_same(played, copied, monkeypatch):
    def unexpected(group, *engine_and_how):
        assert group.unfinished == []
        return iter(())

    monkeypatch.setattr(runs.Group, "run", unexpected)
    before = every_byte(copied)
    again = done(*words("table1", out=copied, seeds=2))
    assert again.stdout.replace(str(copied), str(played[0])) == played[1].stdout
    assert "side by side" not in again.stderr
    after = every_byte(copied)
    assert after.keys() == before.keys()
    assert {
        name for name in after if after[name] != before[name] and not name.endswith(".png")
    } == set()


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_to_the_same_bytes(played, monkeypatch):
    """Ctrl-C after 24 of 48 rounds: all 24 runs have played one."""
    real: Any = runs.Group.run

    def until_ctrl_c(group, *engine_and_how):
        with contextlib.closing(real(group, *engine_and_how)) as outcomes:
            for _ in range(24):
                yield next(outcomes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs.Group, "run", until_ctrl_c)
        stopped = fedsift(*words("table1", seeds=2))
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert stopped.stderr.endswith(
        "interrupted; every finished round is saved. Resume with:\n  the same command again\n"
    )
    assert sorted(map(rounds_in, Path("here/runs").iterdir())) == [1] * 24
    assert not Path("here/table1.json").exists()
    del stopped

    early = done(*words("table1", seeds=2), "--report")  # a run cut short is no trouble
    assert "left out" not in early.stderr

    rest = done(*words("table1", seeds=2))
    assert "24 runs side by side" in rest.stderr
    assert every_run(Path("here")) == every_run(played[0])
    assert rest.stdout.replace("in here\n", f"in {played[0]}\n") == played[1].stdout


@pytest.mark.slow
def test_more_seeds_and_more_items_use_what_is_there():
    done(*words("fig-aggregation"))
    before = every_run(Path("here"))
    result = done(*words("download", "fig-aggregation", seeds=2))
    assert "18 runs side by side, 6 finished already" in result.stderr
    assert {name: every_run(Path("here"))[name] for name in before} == before
    assert told("here", "fig-aggregation")["seeds"] == 2
    assert [claim["figure"] for claim in told("here", "download")["claims"]] == ["pace", "accuracy"]


def test_other_settings_in_an_old_folder_are_refused(copied):
    before = every_byte(copied)
    other = [word.replace("rounds=2", "rounds=3") for word in words("table1", out=copied, seeds=2)]
    said = complaint(*other)
    assert "was made with another config: rounds is 2 there, 3 here; choose another --out" in said
    assert every_byte(copied) == before


# --- reports alone ---


@pytest.fixture
def no_engine(monkeypatch):
    def unexpected(*_):
        raise AssertionError("an engine was chosen")

    monkeypatch.setattr(engines, "choose_engine", unexpected)


@pytest.mark.usefixtures("no_engine")
def test_a_report_plays_nothing_needs_no_engine_and_is_the_same(played, copied):
    for name in ("table1.json", "table1.md", "table1.png"):
        (copied / name).unlink()
    result = done(*words("table1", out=copied, seeds=2), "--report")
    assert result.stdout.replace(str(copied), str(played[0])) == played[1].stdout
    assert result.stderr == ""
    assert told(copied, "table1") == told(played[0], "table1")
    assert every_run(copied) == every_run(played[0])
    assert (copied / "table1.png").read_bytes().startswith(MAGIC["png"])


@pytest.mark.usefixtures("no_engine")
def test_a_report_leaves_out_what_was_not_run_and_judges_the_rest(copied):
    """Of one cell a seed is missing, of another a run was begun, but has no round yet."""
    gone, begun = Cell("table1-mixed", 0.1), Cell("table1-low-entropy", 100.0)
    shutil.rmtree(run_folder(copied, gone, 1))
    for name in (runs.METRICS, runs.LEDGER, runs.TIMING):
        (run_folder(copied, begun, 0) / name).write_text("")
    done(*words("table1", out=copied, seeds=2), "--report")
    report = told(copied, "table1")
    assert report["left_out"] == dict.fromkeys(map(str, (gone, begun)), "1 of 2 seeds run")
    assert len(report["cells"]) == 10
    verdicts = {claim["claim"]: claim["verdict"] for claim in report["claims"]}
    assert verdicts["Strong skew: mixed is the best"] == "not run"
    assert verdicts["Mild skew: low-entropy is the worst"] == "not run"
    assert verdicts["Random sampling suffers from skew"] != "not run"
    ahead = report["claims"][0]["evidence"]
    assert ["gap" in row for row in ahead] == [True, True, False, False]
    assert (
        "Left out: table1-mixed at alpha = 0.1 (1 of 2 seeds run)."
        in (copied / "table1.md").read_text()
    )


def test_of_several_items_those_without_runs_are_said_and_the_others_told(copied):
    result = done(*words("table2", "table1", out=copied, seeds=2), "--report")
    assert result.stderr == "table2: nothing to report (not run)\n"
    assert "written: table1.json, with" in result.stdout
    assert not (copied / "table2.json").exists()


def test_a_report_on_more_seeds_than_were_run_says_how_many_there_are(copied):
    result = fedsift(*words("table1", out=copied, seeds=3), "--report")
    assert result.exit_code == 2
    assert result.stderr == (
        "table1: nothing to report (2 of 3 seeds run)\n"
        f"error: nothing to report on: no cell of table1 in {copied} has rounds of all its seeds; "
        "give the command without --report to run it, or fewer --seeds\n"
    )


def test_a_report_on_nothing_is_a_mistake():
    result = fedsift(*words("table1"), "--report")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(
        "error: nothing to report on: no cell of table1 in here has rounds of all its seeds; "
        "give the command without --report to run it\n"
    )
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("item", ["table1", "fig-size", "theory"])
def test_a_report_without_its_runs_is_read_and_nothing_is_written(item, tmp_path):
    """As committed: the numbers are those of the file, digit for digit."""
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.copy(RESULTS / "digits-ours" / f"{item}.json", kept)
    before = every_byte(kept)
    shown = ("reproduce", PAPER.name, item, "--quick", "--report", "--out", "kept")
    result = done(*shown)
    assert f"read: {item}.json in kept; nothing was run or written for them" in result.stdout
    assert every_byte(kept) == before
    assert json.loads(done(*shown, "--json").stdout) == [told(kept, item)]
    for cell in told(kept, item).get("cells", []):
        figures = f"{cell['accuracy']:.3f} ± {cell['sd']:.3f}".replace("0.", ".")
        assert figures in result.stdout


def test_a_report_of_another_setting_is_not_taken_for_this_one():
    said = complaint(
        *("reproduce", PAPER.name, "table1", "--report"), "--out", str(RESULTS / "digits-ours")
    )
    assert "was made with another setting: digits there, cifar10 here" in said


# --- cells that cannot be run ---


def test_a_folder_that_makes_trouble_costs_its_cell_and_not_the_others():
    """Whatever the trouble is: here a file lies where a run folder should be."""
    Path("here/runs").mkdir(parents=True)
    Path("here/runs/fedavg-alpha-100-seed-0").write_text("in the way")
    result = done(*words("fig-data"))
    assert "left out: fedavg at alpha = 100 (" in result.stderr
    report = told("here", "fig-data")
    assert [cell["curve"] for cell in report["cells"]] == ["table2-none"]
    assert "fedavg at alpha = 100" in report["left_out"]


def test_a_full_disk_at_the_start_of_one_run_costs_its_cell_and_not_the_others(monkeypatch):
    def fail_one(folder, *args, **options):
        if "fedavg" in folder.name:
            raise OSError(28, "No space left on device", str(folder))
        return begin_run(folder, *args, **options)

    monkeypatch.setattr(group, "begin_run", fail_one)
    result = done(*words("fig-data"))
    assert "left out: fedavg at alpha = 100 (" in result.stderr
    assert "No space left on device" in result.stderr
    assert [cell["curve"] for cell in told("here", "fig-data")["cells"]] == ["table2-none"]


def test_a_cell_without_its_data_is_left_out_and_the_rest_is_reported():
    result = done(*words("fig-data"))
    reason = f"mnist is not in {Path('data').resolve()}; run: fedsift data get mnist"
    assert f"left out: public-mnist at alpha = 100 ({reason})\n" in result.stderr
    report = told("here", "fig-data")
    assert [cell["curve"] for cell in report["cells"]] == ["table2-none", "fedavg"]
    assert report["left_out"] == {"public-mnist at alpha = 100": reason}
    assert [claim["verdict"] == "not run" for claim in report["claims"]] == [True, False]
    assert not any("mnist" in folder.name for folder in Path("here/runs").iterdir())


def test_a_curve_that_a_recipe_cannot_have_is_left_out_and_the_others_are_run(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text("redraw_public_from = 600\n" + PAPER.recipes("digits")["ours"].read_text())
    few = [
        *SMALL,
        "algorithm.pool=20",
        "--recipe",
        str(recipe),
        "--quick",
        "--seeds",
        "1",
        "--out",
        "here",
    ]
    result = done("reproduce", PAPER.name, "download", *few)
    reason = "soft-labels-down cannot redraw its public samples in every round, as this recipe asks"
    assert f"left out: soft-labels-down at alpha = 100 ({reason})\n" in result.stderr
    report = told("here", "download")
    assert [cell["pool"] for cell in report["cells"]] == [20] * 3
    done("reproduce", PAPER.name, "download", *few, "--report")
    assert report["left_out"] == told("here", "download")["left_out"]
    assert set(report["left_out"].values()) == {reason}


def test_a_cell_that_fails_while_it_is_played_is_left_out_until_it_works(monkeypatch):
    """FedAvg fails in its second round, with its first one saved."""
    real = FedAvg.server_turn

    def failing(self, server, said, r):
        if r.number:
            raise RuntimeError("a bad day")
        return real(self, server, said, r)

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "server_turn", failing)
        result = done(*words("fig-data"))
    assert "fedavg-alpha-100-seed-0 failed: RuntimeError: a bad day\n" in result.stderr
    report = told("here", "fig-data")
    assert [cell["curve"] for cell in report["cells"]] == ["table2-none"]
    assert report["left_out"]["fedavg at alpha = 100"] == "RuntimeError: a bad day"
    folder = Path("here/runs/fedavg-alpha-100-seed-0")
    assert (rounds_in(folder), (folder / runs.FAILED).is_file()) == (1, True)

    again = done(*words("fig-data"))
    assert "1 runs side by side, 1 finished already" in again.stderr
    assert [cell["curve"] for cell in told("here", "fig-data")["cells"]] == [
        "table2-none",
        "fedavg",
    ]
    assert (rounds_in(folder), (folder / runs.FAILED).exists()) == (2, False)


def test_where_no_cell_can_be_built_its_reason_is_the_mistake():
    said = complaint(*words("table1"), "budget=31")
    assert "budget 31 is larger than the public set (30 samples)" in said
    assert not Path("here").exists()


def test_where_data_are_missing_that_is_the_mistake_and_not_what_a_recipe_cannot_have(monkeypatch):
    monkeypatch.setenv("FEDSIFT_DATA", str(Path("none").resolve()))
    said = complaint("reproduce", PAPER.name, "download", "--recipe", "fresh", "--out", "here")
    assert "cifar10 is not in" in said and "fedsift data get cifar10" in said


@pytest.mark.parametrize("items", [["theory"], ["all", "--quick"]], ids=" ".join)
def test_a_recipe_that_is_not_there_is_said_before_anything_is_done(items):
    assert "unknown recipe 'nonsense'" in complaint(
        "reproduce", PAPER.name, *items, "--recipe", "nonsense", "--out", "here"
    )
    assert not Path("here").exists()


# --- a part of the work at a time ---


def test_only_some_runs_and_then_the_rest(tmp_path):
    """Two of six cells first: the report is on them alone, and on all of them in the end."""
    part = words("fig-aggregation", out="parts")
    first = done(*part, "--only", "era", "--only", "table2-none-alpha-1-*")
    assert "4 runs side by side" in first.stderr
    report = told("parts", "fig-aggregation")
    assert [(cell["curve"], cell["alpha"]) for cell in report["cells"]] == [
        ("table2-none", 1.0),
        *(("era", alpha) for alpha in (100.0, 1.0, 0.1)),
    ]
    assert report["left_out"] == {
        "table2-none at alpha = 100": "not run",
        "table2-none at alpha = 0.1": "not run",
    }
    rest = done(*part)
    assert "2 runs side by side, 4 finished already" in rest.stderr
    assert told("parts", "fig-aggregation")["left_out"] == {}


def test_a_pattern_that_matches_no_run_is_a_mistake_that_names_the_curves():
    said = complaint(*words("fig-aggregation"), "--only", "nothing*")
    assert "--only nothing* matches no run; the curves are table2-none, era" in said
    assert not Path("here").exists()


def test_with_no_time_at_all_nothing_is_run_and_the_same_command_resumes():
    result = done(*words("fig-data"), "--seconds", "0")
    assert "the time is up: 2 runs left, after round 0 of 2 or later; " in result.stderr
    assert result.stdout == "" and not Path("here/fig-data.json").exists()
    assert json.loads(done(*words("fig-data"), "--seconds", "0", "--json").stdout) == []
    done(*words("fig-data"), "--seconds", "1000")
    assert told("here", "fig-data")["unfinished"] == {}


def test_runs_without_their_models_are_finished_all_the_same():
    done(*words("fig-data"), "--slim")
    folders = list(Path("here/runs").iterdir())
    assert [(folder / runs.CHECKPOINT).exists() for folder in folders] == [False, False]
    assert all(map(runs.is_finished, folders))
    before = told("here", "fig-data")
    again = done(*words("fig-data"))
    assert "side by side" not in again.stderr
    assert told("here", "fig-data") == before


def test_a_run_short_of_a_round_that_lost_its_checkpoint_is_run_again():
    done(*words("fig-data"), "--slim")
    folder = Path("here/runs/fedavg-alpha-100-seed-0")
    before = (folder / runs.METRICS).read_bytes()
    for name in (runs.METRICS, runs.LEDGER, runs.TIMING):
        file = folder / name
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    assert not runs.is_finished(folder)
    assert "1 runs side by side, 1 finished already" in done(*words("fig-data")).stderr
    assert (folder / runs.METRICS).read_bytes() == before


# --- papers and items ---


def test_without_a_paper_the_papers_are_listed():
    result = done("reproduce")
    assert f"  {PAPER.name}\n    {PAPER.title}\n    {PAPER.citation}\n" in result.stdout
    assert read_printed("reproduce", done("reproduce", "--json").stdout) == {
        paper.name: paper.title for paper in PAPERS.values()
    }


def test_a_paper_alone_lists_its_items_settings_and_recipes():
    text = done("reproduce", PAPER.name).stdout
    for name, title in PAPER.reports.items():
        assert re.search(rf"^  {name} +{re.escape(title)}$", text, re.MULTILINE)
    assert re.search(r"^  all +table1, table2, .*, theory$", text, re.MULTILINE)
    assert "cifar10 (default) has recipes: fresh, fresh45, literal, ours\n" in text
    assert "digits (--quick) has recipes: ours\n" in text
    listed = done("reproduce", PAPER.name, "--json").stdout
    assert read_printed("reproduce", listed) == PAPER.reports
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1"], "name the paper first: fedsift reproduce fas-icc2022 table1"),
        (["all", "rounds=2"], "name the paper first: fedsift reproduce fas-icc2022 all rounds=2"),
        (["rounds=2"], "name the paper first: one of fas-icc2022, sift"),
        (["fas"], "unknown paper 'fas'; did you mean 'fas-icc2022'? (fedsift reproduce lists them"),
        (["icml"], "unknown paper 'icml'; "),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_the_paper_comes_first(words, said):
    assert said in complaint("reproduce", *words)
    assert list(Path().iterdir()) == []


def test_a_second_paper_is_a_folder(monkeypatch):
    """Its runs, its verdict and its figures, by the same command."""
    monkeypatch.setitem(PAPERS, "tiny", tiny_paper.PAPER)
    assert "  tiny\n    A Tiny Paper\n    N. N. 2026\n" in done("reproduce").stdout
    assert re.search(r"^  all +fig1$", done("reproduce", "tiny").stdout, re.MULTILINE)
    result = done("reproduce", "tiny", "all", "--seeds", "2", "device=cpu")
    report = told("reproduction/tiny/digits-ours", "fig1")
    assert (report["paper"], report["seeds"], report["rounds"]) == ("tiny", 2, 2)
    assert [(cell["label"], cell["paper"]) for cell in report["cells"]] == [
        ("plain samples", 0.5),
        ("sure samples", 0.6),
    ]
    assert report["command"] == "fedsift reproduce tiny fig1 --seeds 2"
    (claim,) = report["claims"]
    assert claim["evidence"][0]["paper"] == 0.1
    assert "Sure samples are better" in result.stdout
    assert "tiny has no quick version; leave out --quick" in complaint(
        "reproduce", "tiny", "fig1", "--quick"
    )


# --- what is computed without runs, and other options ---


@pytest.fixture
def small_theorem(monkeypatch):
    make = partial(theorem.make_report, dimension=500, trials=20)
    extras = {"theory": replace(PAPER.extras["theory"], make=make)}
    monkeypatch.setitem(PAPERS, PAPER.name, replace(PAPER, extras=extras))


@pytest.mark.usefixtures("small_theorem", "no_engine")
def test_the_theorem_alone():
    result = done("reproduce", PAPER.name, "theory", "--out", "here")
    assert {path.name for path in Path("here").iterdir()} == {
        "theory.json",
        "theory.md",
        "theory.png",
    }
    assert Path("here/theory.png").read_bytes().startswith(MAGIC["png"])
    report = told("here", "theory")
    assert Path("here/theory.md").read_text() == theorem.markdown(report)
    claims = {claim["claim"]: claim for claim in report["claims"]}
    printed = claims["Theorem 1 as printed, with 2 pi in Lambda"]
    assert re.search(rf"2 pi in Lambda +does not hold +{printed['evidence']}", result.stdout)


@pytest.mark.usefixtures("small_theorem")
def test_several_items_at_once_are_one_json_document_in_the_order_asked_for():
    result = done(*words("download", "theory", "fig-data"), "--json")
    reports = read_printed("reproduce", result.stdout)
    assert [report["item"] for report in reports] == ["download", "theory", "fig-data"]
    assert reports == [told("here", item) for item in ("download", "theory", "fig-data")]


def test_a_quiet_one_says_the_table_and_no_more():
    result = done(*words("fig-aggregation"), "--quiet")
    assert result.stderr == ""
    assert "claims (one seed: no verdict for good)" in result.stdout


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (
            ["tabel1"],
            "unknown item 'tabel1'; did you mean 'table1'? (fedsift reproduce fas-icc2022)",
        ),
        (
            ["rounds=2"],
            "name what to reproduce: table1, table2, fig-data, fig-size, fig-aggregation, ",
        ),
        (["table1", "alpha=1"], "a reproduction has its own alphas and seeds"),
        (["table1", "sweep.seed=[1, 2]"], "a reproduction has its own alphas and seeds"),
        (["table1", "ronds=2"], "unknown key 'ronds'; did you mean 'rounds'?"),
        (
            ["table1", "--recipe", "literal"],
            "unknown recipe 'literal'; known: ours (digits has ours; or a TOML file)",
        ),
        (["table1", "--recipe", "nowhere.toml"], "cannot read the recipe nowhere.toml"),
        (
            ["table1", "--engine", "sequentail"],
            "unknown engine 'sequentail'; did you mean 'sequential'?",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_mistake_is_named_in_one_line_and_nothing_is_made(items, said):
    assert said in complaint("reproduce", PAPER.name, *items, "--quick")
    assert list(Path().iterdir()) == []


def test_a_seed_of_ones_own_is_refused_before_anything_is_played():
    assert "a reproduction has its own alphas and seeds" in complaint(
        *words("fig-aggregation", seeds=2), "seed=0"
    )
    assert rounds_in(Path("here/runs/table2-none-alpha-100-seed-0")) == 0


def test_all_stands_for_the_paper_and_nothing_comes_twice():
    paper = ["table1", "table2", "fig-data", "fig-size", "fig-aggregation", "download", "theory"]
    assert PAPER.select(["all"]) == paper
    assert PAPER.select(["theory", "budget", "all"]) == ["theory", "budget", *paper[:-1]]


def test_a_recipe_of_ones_own_names_the_folder_and_is_used():
    Path("mine.toml").write_text("[local]\nlr = 0.5\n")
    own = ("--quick", "--recipe", "mine.toml", "--seeds", "1")
    done("reproduce", PAPER.name, "fig-data", *own, *SMALL)
    out = Path("reproduction/fas-icc2022/digits-mine")
    assert told(out, "fig-data")["recipe"] == "mine.toml"
    assert runs.read_config(out / "runs/fedavg-alpha-100-seed-0").local.lr == 0.5


def test_engine_and_precision_are_options_and_are_kept():
    done(*words("fig-data"), "--engine", "sequential", "--quiet")
    assert runs.read_config(Path("here/runs/fedavg-alpha-100-seed-0")).engine == "sequential"
    assert told("here", "fig-data")["environment"]["engine"].startswith("sequential engine on cpu")


def test_a_run_that_failed_is_left_out_of_a_report_and_does_not_cut_the_others_short(copied):
    (folder, *_) = sorted((copied / "runs").glob("table1-mixed-alpha-0.1-*"))
    (folder / "failed.json").write_text("{}")
    done(*words("table1", out=copied, seeds=2), "--report")
    told = json.loads((copied / "table1.json").read_text())
    assert told["left_out"] == {
        "table1-mixed at alpha = 0.1": "stopped: failed.json of its run says why"
    }
    assert len(told["cells"]) == 11


@pytest.mark.slow
def test_a_report_on_fewer_seeds_says_what_it_replaces(copied):
    done(*words("table1", out=copied, seeds=2), "--report")
    result = done(*words("table1", out=copied, seeds=1), "--report")
    assert (
        f"table1: the report on 2 seeds in {copied} is replaced by one on 1; "
        "--seeds 2 brings it back" in result.stderr
    )
    assert done(*words("table1", out=copied, seeds=2), "--report").stderr == ""
