"""Reports from runs written by hand, and their Markdown; nothing is trained here."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import runs
from fedsift.papers.fas_icc2022 import PAPER
from fedsift.reproduction import reports, tables
from fedsift.reproduction.plans import run_folder
from fedsift.reproduction.verdicts import HOLDS, NOT_RUN, OPEN
from fedsift.types import UserError
from tests.helpers.reproduction import (
    LEVEL,
    MIXED,
    NONE,
    PACE,
    a_report,
    an_item,
    make_plan,
    write_run,
)


def test_a_report_is_worked_out_by_hand(tmp_path):
    """Six rounds, of which the last five count. None: means .3 and .5 (pace .4 and .5, with its
    first rounds). Mixed: .4 and .6 (pace .35 and .55). So mixed is .1 higher, and .05 slower and
    .05 faster. Uploads of 10 and 30 bytes; 4 x 6 rounds of 6 seconds are 2.4 minutes."""
    plan = make_plan("digits", "ours", 2, ("local.lr=0.5",))
    write_run(tmp_path, plan, NONE, 0, [0.9, 0.1, 0.2, 0.3, 0.4, 0.5])
    write_run(tmp_path, plan, NONE, 1, [0.5, 0.3, 0.4, 0.5, 0.6, 0.7])
    write_run(tmp_path, plan, MIXED, 0, [0.1, 0.4, 0.4, 0.4, 0.4, 0.4], up=(1, 2, 3))
    write_run(tmp_path, plan, MIXED, 1, [0.3, 0.6, 0.6, 0.6, 0.6, 0.6], up=(2, 4))
    told = reports.gather_report(
        "two", an_item(PACE, LEVEL, published={MIXED: 0.7}), plan, tmp_path, {}
    )
    none, mixed = told["cells"]
    assert none == {
        "curve": "table1-none",
        "label": "none",
        "alpha": 0.1,
        "budget": 60,
        "public": 500,
        "pool": None,
        "accuracy": 0.4,
        "sd": round(0.2 / 2**0.5, 6),
        "by_seed": [0.3, 0.5],
        "best_round": [0.9, 0.7],
        "paper": None,
        "uplink_bytes_per_upload": 20,
        "uplink_bytes_largest": 30,
        "downlink_bytes_per_download": 20,
        "total_bytes": 480,  # 2 x (10 + 30) bytes in 6 rounds
        "total_bytes_broadcast": 246,  # 10 + 30 bytes up and 1 byte down in 6 rounds
        "client_steps_per_round": None,
        "server_steps_per_round": None,
        "labels_right": None,
        "by_round": [[0.9, 0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.3, 0.4, 0.5, 0.6, 0.7]],
    }
    assert (mixed["by_seed"], mixed["paper"]) == (
        [0.4, 0.6],
        None,
    )  # the paper's levels are of other data
    assert mixed["uplink_bytes_per_upload"] == 2  # the mean of 2 and 3, rounded to even
    pace, level = told["claims"]
    assert (pace["verdict"], pace["evidence"][0]["gaps"]) == (OPEN, [-0.05, 0.05])
    assert (level["verdict"], level["evidence"][0]["gaps"]) == (HOLDS, [0.1, 0.1])
    assert {
        key: told[key]
        for key in ("item", "setting", "recipe", "overrides", "seeds", "rounds", "minutes")
    } == {
        "item": "two",
        "setting": "digits",
        "recipe": "ours",
        "overrides": ["local.lr=0.5"],
        "seeds": 2,
        "rounds": 6,
        "minutes": 2.4,
    }
    assert (told["title"], told["layout"], told["left_out"]) == ("Two cells", "table", {})
    assert (told["environment"]["engine"], told["environment"]["precision"]) == (
        "by hand",
        "float32",
    )
    assert "home" not in told["environment"]


def test_every_commit_that_had_a_hand_in_the_runs_is_named(tmp_path):
    """The second run was begun at one commit and gone on with at another."""
    plan = make_plan("digits", "ours", 1)
    for cell, made in (
        (NONE, {"commit": "aaa", "torch": "9"}),
        (MIXED, {"commit": "bbb", "torch": "9", "resumed": [{"commit": "ccc", "torch": "9"}]}),
    ):
        write_run(tmp_path, plan, cell, 0, [0.5])
        (run_folder(tmp_path, cell, 0) / runs.ENVIRONMENT).write_text(json.dumps(made))
    told = reports.gather_report("two", an_item(LEVEL), plan, tmp_path, {})["environment"]
    assert (told["commit"], told["torch"], told["gpu"]) == ("aaa, bbb, ccc", "9", None)


def test_a_cell_left_out_is_named_and_its_claims_are_not_judged(tmp_path):
    plan = make_plan("digits", "ours", 1)
    write_run(tmp_path, plan, NONE, 0, [0.5])
    told = reports.gather_report("two", an_item(LEVEL), plan, tmp_path, {MIXED: "no such file"})
    assert [cell["curve"] for cell in told["cells"]] == ["table1-none"]
    assert told["left_out"] == {"table1-mixed at alpha = 0.1": "no such file"}
    assert told["claims"][0]["verdict"] == NOT_RUN
    assert told["cells"][0]["sd"] is None


def test_the_markdown_of_a_table_to_the_letter():
    assert reports.markdown(a_report()) == (
        "## Table 0\n"
        "\n"
        "digits, 60 of 1,500 public samples, recipe ours, 3 rounds, 2 seeds; "
        "accuracy is the mean of all 3 rounds, ± over the seeds.\n"
        "\n"
        "| alpha | none | mixed |\n"
        "|---|---|---|\n"
        "| 100 | .683 ± .010 (.6835) |  |\n"
        "| 0.1 | 1.000 ± .000 | .050 ± .100 (.4680) |\n"
        "\n"
        "Left out: mixed at alpha = 100 (no such file: x.npz).\n"
        "\n"
        "| claim | verdict | decided by (the paper's gap) |\n"
        "|---|---|---|\n"
        "| mixed is better | **open** | mixed above none: -.050 ± .020 (+.004) |\n"
        "\n"
        "`fedsift reproduce made-up`, fedsift 0.1.0, commit abc1234, A CPU; "
        "every gap is in the JSON.\n"
    )


def test_the_markdown_of_one_seed_without_claims_is_a_list():
    report = a_report(
        layout="budget", seeds=1, left_out={}, claims=[], rounds=8, planned=18, unfinished={"a": 8}
    )
    report["cells"] = [cell | {"sd": None} for cell in report["cells"][:2]]
    assert reports.markdown(report) == (
        "## Table 0\n"
        "\n"
        "digits, recipe ours, 8 rounds, one seed; accuracy is the mean of the last five rounds.\n"
        "\n"
        "| | alpha | accuracy | bytes per upload | the largest |\n"
        "|---|---|---|---|---|\n"
        "| none | 100 | .683 (.6835) | 2,418 | 2,500 |\n"
        "| none | 0.1 | 1.000 | 2,418 | 2,500 |\n"
        "\n"
        "1 of 2 runs are unfinished, so all are compared after round 8 of 18; "
        "the JSON names them.\n"
        "\n"
        "`fedsift reproduce made-up`, fedsift 0.1.0, commit abc1234, A CPU; "
        "every gap is in the JSON.\n"
    )


@given(st.floats(0, 1), st.none() | st.floats(0, 0.9))
def test_an_accuracy_told_reads_back(accuracy, sd):
    value, *spread = map(float, tables.format_accuracy(accuracy, sd).split(" ± "))
    assert value == pytest.approx(accuracy, abs=5.1e-4)
    assert spread == ([] if sd is None else [pytest.approx(sd, abs=5.1e-4)])


def test_a_report_is_written_as_json_that_reads_back_and_as_markdown(tmp_path):
    report = a_report()
    files = reports.write_report(report, tmp_path / "new" / "folder", reports.markdown(report))
    assert [file.name for file in files] == ["made-up.json", "made-up.md"]
    assert json.loads(files[0].read_text()) == report
    assert files[1].read_text() == reports.markdown(report)


def test_an_unfinished_run_sets_the_round_of_all_and_one_made_otherwise_is_refused(tmp_path):
    plan = make_plan("digits", "ours", 1, ("rounds=2",))
    write_run(tmp_path, plan, NONE, 0, [0.4, 0.8])
    write_run(tmp_path, plan, MIXED, 0, [0.5])
    told = reports.gather_report("two", an_item(), plan, tmp_path, {})
    assert told["rounds"] == 1 and [cell["best_round"] for cell in told["cells"]] == [[0.4], [0.5]]
    assert [cell["by_round"] for cell in told["cells"]] == [
        [[0.4, 0.8]],
        [[0.5]],
    ]  # but nothing is lost
    assert [cell["accuracy"] for cell in told["cells"]] == [0.4, 0.5]
    assert told["unfinished"] == {"table1-mixed-alpha-0.1-seed-0": 1}
    said = (
        "1 of 2 runs are unfinished, so all are compared after round 1 of 2; the JSON names them."
    )
    assert said in reports.markdown(told)
    with pytest.raises(
        UserError, match="made with other settings: rounds is 2 there, 3 here; give the same recipe"
    ):
        reports.gather_report(
            "two", an_item(), make_plan("digits", "ours", 1, ("rounds=3",)), tmp_path, {}
        )


def test_an_item_calls_its_curves_by_what_they_are_there(tmp_path):
    """Without active sampling, which is "none" in a table, is "weights down" where the download is
    what differs.
    """
    plan = make_plan("digits", "ours", 1)
    for cell in PAPER.items["download"].cells(plan):
        write_run(tmp_path, plan, cell, 0, [0.5])
    told = reports.gather_report("download", PAPER.items["download"], plan, tmp_path, {})
    assert {cell["label"] for cell in told["cells"]} == {"weights down", "soft labels down"}


def test_only_cifar10_stands_beside_the_papers_levels(tmp_path):
    plan = make_plan("cifar10", "ours", 1)
    write_run(tmp_path, plan, NONE, 0, [0.5])
    write_run(tmp_path, plan, MIXED, 0, [0.5])
    told = reports.gather_report("two", an_item(published={MIXED: 0.7}), plan, tmp_path, {})
    assert [cell["paper"] for cell in told["cells"]] == [None, 0.7]


def test_a_table_says_where_its_samples_are_drawn_again():
    told = a_report()
    told["cells"][0] |= {"pool": 300}
    assert (
        ", 60 of 300 public samples, drawn again in every round from 1,500, "
        in reports.describe_runs(told)
    )


# --- a report read again ---


def keep(folder, **changes):
    reports.write_report(a_report(item="table1", **changes), folder, "")
    return reports.read_report(make_plan("digits", "ours", 2), "table1", folder)


def test_a_report_that_is_kept_reads_as_it_was_written(tmp_path):
    assert keep(tmp_path) == a_report(item="table1")


BEYOND = {"comparison": "a above b", "gap": 0.0, "gaps": [1e308] * 3, "sd": None}
HUGE = {"claim": "a is ahead", "verdict": "holds", "decided_by": 0, "evidence": [BEYOND]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"setting": "cifar10"}, "made with another setting: cifar10 there, digits here"),
        ({"recipe": "fresh"}, "made with another recipe: fresh there, ours here"),
        ({"paper": "other"}, "made with another paper: other there, fas-icc2022 here"),
        ({"title": "Table\x1b[2J"}, "has control characters in its texts"),
        ({"claims": 3}, r"is not a whole report on table1 \(TypeError"),
        ({"cells": []}, r"is not a whole report on table1 \(IndexError"),
        ({"cells": [{"label": "none"}]}, r"is not a whole report on table1 \(KeyError"),
        ({"seeds": "many"}, r"is not a whole report on table1 \(TypeError"),
        ({"left_out": []}, r"is not a whole report on table1 \(AttributeError"),
        ({"claims": [HUGE]}, r"is not a whole report on table1 \(OverflowError"),
    ],
)
def test_a_report_that_is_not_what_was_asked_for_is_refused(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        keep(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "cannot read .*table1.json"),
        (b"\xff", "cannot read .*table1.json"),
        (b"[" * 100_000, "cannot read .*table1.json"),
        (b"[]", "is not a report on table1"),
        (b'{"item": "table2"}', "is not a report on table1"),
    ],
    ids=["half", "not text", "deep", "a list", "another item"],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, content, said):
    (tmp_path / "table1.json").write_bytes(content)
    with pytest.raises(UserError, match=said):
        reports.read_report(make_plan("digits", "ours", 2), "table1", tmp_path)


def test_cells_without_their_bytes_are_no_report_in_a_table_either(tmp_path):
    report = a_report(item="table1")
    del report["cells"][2]["uplink_bytes_per_upload"]
    with pytest.raises(UserError, match="not a whole report on table1"):
        keep(tmp_path, cells=report["cells"])


def test_a_report_says_that_it_is_of_validation_samples(tmp_path):
    plan = make_plan("digits", "ours", 1, ("data.validation=100",))
    for cell in (NONE, MIXED):
        write_run(tmp_path, plan, cell, 0, [0.5, 0.7])
    told = reports.gather_report("two", an_item(LEVEL), plan, tmp_path, {})
    assert told["measured_on"] == "validation"
    assert "; validation accuracy is the mean of all 2 rounds" in reports.markdown(told)
    usual = make_plan("digits", "ours", 1, ())
    for cell in (NONE, MIXED):
        write_run(tmp_path / "usual", usual, cell, 0, [0.5, 0.7])
    told = reports.gather_report("two", an_item(LEVEL), usual, tmp_path / "usual", {})
    assert "measured_on" not in told
    assert "; accuracy is the mean of all 2 rounds" in reports.markdown(told)


def test_many_cells_that_are_left_out_for_one_reason_share_a_line():
    many = {f"{name} at alpha = 1": "not run" for name in "abcdefghijklm"}
    text = reports.markdown(a_report(left_out=many | {"z at alpha = 1": "no data"}))
    assert "\nLeft out: z at alpha = 1 (no data).\n" in text
    assert text.count("Left out") == 2
    named = ", ".join(many)
    assert f"\nLeft out (not run): {named}.\n" in text


def test_very_many_cells_that_are_left_out_are_counted():
    many = {f"c{n} at alpha = 1": "not run" for n in range(101)}
    text = reports.markdown(a_report(left_out=many))
    assert "\nLeft out (not run): 101 cells, which the JSON names.\n" in text
