"""The study of hostile clients: its cells, its tables and its picture."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsift import config
from fedsift.papers.robustness import PAPER, tables
from fedsift.papers.robustness.items import (
    ATTACKS,
    OTHERS,
    RULES,
    count_alarms,
    honest_curve,
    list_rules,
)
from fedsift.reproduction.plans import Cell, Plan
from fedsift.reproduction.verdicts import Keeps, judge_comparison
from tests.helpers.cli import done

WHOLE, SMALL = Plan(PAPER, "digits", "main"), Plan(PAPER, "digits-small", "main")


def test_the_grid_has_every_attack_every_share_and_every_skew():
    cells = PAPER.items["grid"].cells(WHOLE)
    assert len(cells) == len(set(cells)) == 1155
    for rule in list_rules():
        for attack in ATTACKS:
            own = [c for c in cells if c.curve.startswith(f"{rule}+{attack}+")]
            assert {c.alpha for c in own} == {0.1, 1.0, 100.0}
            shares = {WHOLE.experiment(c, 0).attackers for c in own}
            assert shares == {0.1, 0.2, 0.3, 0.45}


def test_a_cell_is_compared_with_honest_clients_under_the_same_rule():
    assert honest_curve("fas+trust+wrong+share-20") == "fas+trust"
    assert honest_curve("fas+mean+cifar10+large-fas+wrong+share-20") == "fas+mean+cifar10+large-fas"
    for name, item in PAPER.items.items():
        cells = set(item.cells(WHOLE))
        reference = item.reference
        assert reference is not None
        assert {Cell(reference(c.curve), c.alpha) for c in cells} <= cells, name


@pytest.mark.parametrize(
    ("name", "cells", "runs"),
    [("classical", 108, 324), ("weights", 48, 144), ("sizes", 24, 72), ("audits", 20, 60)],
)
def test_smaller_grids_can_be_built(name, cells, runs):
    item = PAPER.items[name]
    found = item.cells(WHOLE)
    assert len(found) == len(set(found)) == cells
    assert cells * len(WHOLE.seeds_of(item)) == runs
    for cell in [c for c in found if c.alpha == 1.0] + item.cells(SMALL):
        experiment = (WHOLE if cell in found else SMALL).experiment(cell, 0)
        federation = config.build_federation(experiment)
        assert len(federation.hostile) in (0, round(0.2 * experiment.clients.count))


@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_clients_of_free_sizes_have_few_and_many_samples(alpha):
    """Elsewhere all have 40. At strong skew the largest is beyond the cap of three medians."""
    cells = PAPER.items["sizes"].cells(WHOLE)
    assert all("+free-sizes" in cell.curve for cell in cells)
    honest = Cell("fedavg+plain+free-sizes", alpha)
    assert honest in cells and honest_curve(f"{honest.curve}+scale+share-20") == honest.curve
    federation = config.build_federation(WHOLE.experiment(honest, 0))
    sizes = sorted(len(client.data) for client in federation.clients)
    assert sum(sizes) == 800 and sizes[-1] > 2 * sizes[0]
    assert (sizes[-1] > 3 * sizes[9]) == (alpha == 0.1)


@pytest.mark.parametrize("plan", [WHOLE, SMALL], ids=["digits", "digits-small"])
def test_one_cell_of_every_rule_and_every_attack_can_be_built(plan):
    names = {f"{rule}+wrong+share-20" for rule in list_rules()}
    names |= {f"fd+median+{attack}+share-20" for attack in ATTACKS}
    for name in sorted(names):
        experiment = plan.experiment(Cell(name, 1.0), 0)
        federation = config.build_federation(experiment)
        assert len(federation.hostile) == round(0.2 * experiment.clients.count)


@pytest.mark.parametrize(("name", "count", "rounds"), [("heart", 48, 18), ("heart-short", 6, 10)])
def test_every_curve_on_cifar10_is_an_experiment(name, count, rounds):
    cells = PAPER.items[name].cells(WHOLE)
    assert len(cells) == len(set(cells)) == count
    for cell in cells:
        experiment = WHOLE.experiment(cell, 2)
        assert (experiment.data.name, experiment.rounds) == ("cifar10", rounds)
        assert experiment.attackers in (None, 0.2)


def test_the_short_schedule_on_cifar10_has_its_claims_of_trust():
    item = PAPER.items["heart-short"]
    ends = "cifar10+large-fas+short"
    judged = {claim.comparisons[0].cells for claim in item.claims(WHOLE)}
    assert judged == {
        (Cell(f"fas+trust+{ends}+{attack}+share-20", 1.0), Cell(f"fas+mean+{ends}", 1.0))
        for attack in ("wrong", "persistent")
    }


def test_on_cifar10_the_recommended_rules_must_hold_against_every_attack():
    item = PAPER.items["heart"]
    end = "cifar10+large"
    cells = set(item.cells(WHOLE))
    judged = {}
    for claim in item.claims(WHOLE):
        (keeps,) = claim.comparisons
        assert isinstance(keeps, Keeps) and keeps.loss == 0.03 and set(keeps.cells) <= cells
        judged[keeps.cells[0].curve] = keeps.cells[1].curve
    attacks = ("wrong", "adaptive", "adaptive-bold", "poison", "persistent")
    fas = [f"fas+trust+{end}-fas+{attack}+share-20" for attack in attacks]
    fas.append(f"fas+trust-unlimited+{end}-fas+wrong+share-20")
    sift = [f"sift+memory-trust+{end}-sift+{attack}+share-20" for attack in attacks]
    sift.append(f"sift+memory-trust-unlimited+{end}-sift+wrong+share-20")
    usual = dict.fromkeys(fas, f"fas+mean+{end}-fas")
    assert judged == usual | dict.fromkeys(sift, f"sift+memory-era+{end}-sift")
    assert {c.curve for claim in item.claims(SMALL) for c in claim.comparisons[0].cells} == {
        "fas+mean+cifar10+large-fas",
        *fas,
    }


@pytest.mark.parametrize(
    ("name", "rules", "attacks"),
    [
        ("must", RULES["fas"], {"wrong"}),
        ("must-others", ["trust"], set(OTHERS)),
        ("must-unlimited", ["trust-unlimited"], {"wrong", *OTHERS}),
    ],
)
def test_what_must_be_shown_is_one_of_five_and_one_of_ten(name, rules, attacks):
    item = PAPER.items[name]
    found = item.cells(WHOLE)
    # five and ten clients: each rule with honest ones and each attack, and the mean as reference
    cells = len(rules) * (1 + len(attacks)) + ("mean" not in rules)
    assert len(found) == len(set(found)) == 2 * cells
    compared = {
        cell for claim in item.claims(WHOLE) for one in claim.comparisons for cell in one.cells
    }
    assert compared <= set(found)
    attacked = {c.curve.split("+")[3] for c in compared if c.curve.count("+") > 2}
    assert attacked == attacks
    assert len(item.claims(WHOLE)) == 2 * (1 + len(attacks))  # of the one rule that judges
    for cell in found:
        experiment = WHOLE.experiment(cell, 0)
        hostile = (experiment.attackers or 0) * experiment.clients.count
        assert hostile in (0, 1) and experiment.clients.cohort == experiment.clients.count
        assert experiment.data.private == 40 * experiment.clients.count
    assert len(WHOLE.seeds_of(item)) == 20


def test_keeps_is_judged_by_the_mean_of_the_seeds():
    keeps = Keeps(Cell("a", 1.0), Cell("b", 1.0), 0.05)
    assert judge_comparison(keeps, [-0.08, -0.01]) == "holds"
    assert judge_comparison(keeps, [-0.10, -0.01]) == "does not hold"


def run(rows: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(metrics=rows)


def test_alarms_are_shares_of_turns():
    trust = {"1": 0.9, "2": 0.3, "3": 0.1}
    rows = [
        {"hostile": [3], "trust": trust, "voteless": [2, 3]},
        {"hostile": [3], "trust": trust, "voteless": []},
    ]
    assert count_alarms([run(rows)]) == {"false_alarms": 0.25, "caught": 0.5}
    assert count_alarms([run([{"hostile": [3]}])]) == {"false_alarms": None, "caught": None}


def cell(label: str, alpha: float, accuracy: float, mean: float | None = None, **more: Any) -> Any:
    of = {} if mean is None else {"gap": {"mean": mean, "by_seed": [mean, mean]}}
    return {"label": label, "alpha": alpha, "accuracy": accuracy} | of | more


REPORT: dict[str, Any] = {
    "title": "Attacks",
    "setting": "digits",
    "seeds": 2,
    "rounds": 12,
    "cells": [
        cell("FAS, mean", 1.0, 0.8),
        cell("FAS, trust", 1.0, 0.79, false_alarms=0.025),
        cell("FAS, mean, wrong, 20 %", 1.0, 0.6, -0.2),
        cell("FAS, trust, wrong, 20 %", 1.0, 0.78, -0.01),
        cell("FAS, mean, lma, 20 %", 1.0, 0.7, -0.1),
        cell("FAS, trust, lma, 20 %", 1.0, 0.71, -0.08, caught=0.5),
        cell("FAS, mean, wrong, 10 %", 1.0, 0.75, -0.05),
        cell("FAS, trust, wrong, 10 %", 1.0, 0.78, -0.01),
    ],
}


def test_the_tables_say_what_an_attack_costs_and_what_gets_through():
    text = "\n".join(tables.list_grid(REPORT))
    assert "| FAS | trust | .790 (2.5 %) |" in text
    assert "| wrong | 20.0 | 1.0 |" in text and "| lma | 10.0 | 8.0 |" in text
    assert "| 10 % | 5.0 (wrong) | 1.0 (wrong) |" in text
    assert "| 20 % | 20.0 (wrong) | 8.0 (lma) |" in text
    assert "| FAS | lma | 20 % | 1 | 8.0 | 50 % |" in text
    assert text.count("| FAS | wrong |") == 0  # it does not get through


def test_what_gets_through_in_three_seeds_has_an_interval():
    """.05, .10 and .15 lost: mean .1, deviation .05, and 4.3027 x .05 / sqrt(3) = .124."""
    lost = {"mean": -0.1, "by_seed": [-0.05, -0.1, -0.15]}
    cells = [cell("FAS, trust", 1.0, 0.8), cell("FAS, trust, lma, 20 %", 1.0, 0.7, gap=lost)]
    lines = tables.list_grid({"cells": cells})
    columns = "| | attack | hostile | alpha | points | 95 % interval |"
    assert f"{columns} hostile turns without a vote |" in lines
    assert lines[-1] == "| FAS | lma | 20 % | 1 | 10.0 | -2.4 to 22.4 |  |"


def test_next_to_nothing_is_no_loss():
    assert tables.format_points(-0.0004) == "0.0" and tables.format_points(-0.0004, 0) == "0"
    assert tables.format_points(0.1234) == "12.3" and tables.format_points(-0.012, 0) == "-1"


def test_the_picture_is_drawn(tmp_path: Path):
    tables.draw_grid(REPORT, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_on_honest_clients_alone_shows_their_accuracy(tmp_path: Path):
    few = ("--seeds", "1", "--only", "fas+trust", "rounds=1", "--quiet", "--out", str(tmp_path))
    done("reproduce", "robustness", "grid", "--quick", *few)
    assert "| FAS | trust |" in (tmp_path / "grid.md").read_text()
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_quick_study_runs_and_reports(tmp_path: Path):
    done("reproduce", "robustness", "grid", "--quick", "--quiet", "--out", str(tmp_path / "out"))
    text = (tmp_path / "out" / "grid.md").read_text()
    assert "FAS, alpha = 1, 20 % hostile: points lost." in text
    assert set(RULES["fas"]) == {"mean", "era", "trust"}
