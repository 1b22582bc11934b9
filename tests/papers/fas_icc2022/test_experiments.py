"""The curves of the paper, in both settings and with every recipe."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedsift import config, runs
from fedsift.config import Experiment
from fedsift.papers.fas_icc2022 import PAPER
from fedsift.papers.fas_icc2022.items import ITEMS
from fedsift.reproduction.plans import Cell, NotWithThisRecipe, Plan, run_folder
from fedsift.types import UserError
from tests.helpers.reproduction import CIFAR, DIGITS, LITERAL, make_plan


def test_every_cell_and_seed_has_a_folder_of_its_own():
    assert run_folder(Path("out"), Cell("era", 100.0), 2) == Path("out/runs/era-alpha-100-seed-2")
    cells = {cell for item in ITEMS.values() for cell in item.cells(DIGITS)}
    folders = [run_folder(Path(), cell, seed) for cell in cells for seed in range(3)]
    assert len(set(folders)) == len(folders)


def every_plan() -> list[Plan]:
    return [
        make_plan(setting, recipe, 2)
        for setting in PAPER.settings
        for recipe in PAPER.recipes(setting)
    ]


def experiments(plan: Plan, cells: Iterable[Cell], seed: int) -> dict[Cell, Experiment]:
    """Those the recipe can have."""
    found = {}
    for cell in cells:
        with contextlib.suppress(NotWithThisRecipe):
            found[cell] = plan.experiment(cell, seed)
    return found


def test_both_settings_have_a_recipe_of_ours_and_cifar10_three_more():
    assert {setting: list(PAPER.recipes(setting)) for setting in PAPER.settings} == {
        "cifar10": ["fresh", "fresh45", "literal", "ours"],
        "digits": ["ours"],
    }


@pytest.mark.parametrize("plan", every_plan(), ids=lambda plan: f"{plan.setting}-{plan.recipe}")
def test_every_curve_of_every_item_is_an_experiment_with_parts_that_exist(plan):
    used = {cell for item in ITEMS.values() for cell in item.cells(plan)}
    assert {cell.curve for cell in used} == set(plan.curves("*"))  # no file is in vain
    for cell, made in experiments(plan, used, 1).items():
        config.build_algorithm(made)
        unknown = [
            key
            for key in config.list_unused(made)
            if key.startswith("algorithm.") and key != "algorithm.budget"
        ]
        assert (cell, unknown) == (cell, [])
        assert made.algorithm.name in {"fedavg", "fedpaq", "feddf", "fd-jeong", "mix2fld"} or (
            made.algorithm.budget <= (made.data.public or 0)
        )
        assert (made.seed, made.partition.alpha, made.data.name) == (1, cell.alpha, plan.setting)


@pytest.mark.parametrize("plan", every_plan(), ids=lambda plan: f"{plan.setting}-{plan.recipe}")
def test_the_cells_of_an_item_share_all_but_the_public_part_and_the_algorithm(plan):
    """Else it would not be the sampler, or the like, that makes the difference."""
    free = ("name", "partition.alpha", "algorithm.", "data.public")
    for item in ITEMS.values():
        first, *others = experiments(plan, item.cells(plan), 0).values()
        changed = {key for other in others for key in config.differences(first, other)}
        assert {key for key in changed if not key.startswith(free)} == set()


@pytest.mark.parametrize("plan", every_plan(), ids=lambda plan: f"{plan.setting}-{plan.recipe}")
def test_claims_speak_of_cells_that_are_run(plan):
    for item in ITEMS.values():
        cells = set(item.cells(plan))
        assert len(cells) == len(item.cells(plan))
        for claim in item.claims(plan):
            assert {cell for comparison in claim.comparisons for cell in comparison.cells} <= cells
            assert claim.comparisons and claim.figure in {"accuracy", "pace"}


@pytest.mark.slow
def test_digits_have_data_enough_for_every_curve():
    """Built for real, but for the one that needs MNIST."""
    for curve in DIGITS.curves("*"):
        if curve != "public-mnist":
            federation, _ = runs.build(DIGITS.experiment(Cell(curve, 0.1), 0))
            assert len(federation.clients) == 20


def test_the_literal_recipe_is_the_papers():
    for table, public, budget in (("table1", 2000, 400), ("table2", 8000, 2000)):
        for cell in ITEMS[table].cells(LITERAL):
            made = LITERAL.experiment(cell, 0)
            assert (made.data.name, made.data.private, made.data.public) == (
                "cifar10",
                20_000,
                public,
            )
            assert made.data.public_from is None
            assert (made.clients.count, made.clients.cohort, made.clients.model) == (
                20,
                8,
                "resnet8",
            )
            assert made.partition.kind == "dirichlet"  # equal sizes: 1,000 each
            assert (made.algorithm.name, made.algorithm.budget) == ("fd", budget)
            assert made.algorithm.aggregator is None
            for phase, lr in ((made.local, 0.02), (made.distill, 0.001)):
                assert (phase.optimizer, phase.lr, phase.batch, phase.epochs) == ("adam", lr, 8, 20)
                assert (phase.milestones, phase.decay) == ((300, 600), 0.1)
                assert (phase.augment, phase.weight_decay) == ("none", 0)
            assert made.rounds > 30  # beyond the second decay


FRESH = make_plan("cifar10", "fresh", 3)


def test_the_fresh_recipe_redraws_in_every_round_and_decays_where_the_paper_does():
    for cell in ITEMS["table1"].cells(FRESH) + ITEMS["table2"].cells(FRESH):
        ours, fresh = CIFAR.experiment(cell, 0), FRESH.experiment(cell, 0)
        changed = set(config.differences(ours, fresh))
        assert changed == {
            "rounds",
            "data.public",
            "algorithm.pool",
            "local.milestones",
            "distill.milestones",
        }
        assert (fresh.algorithm.pool, fresh.data.public) == (ours.data.public, 20_000)
        assert fresh.local.milestones == fresh.distill.milestones == (300, 600)
        assert fresh.rounds >= 20  # five rounds after the first decay


def test_the_fresh_recipe_leaves_fedavg_alone_and_leaves_out_what_cannot_redraw():
    assert (
        FRESH.experiment(Cell("fedavg", 1), 0).data.public
        == CIFAR.experiment(Cell("fedavg", 1), 0).data.public
    )
    assert (
        FRESH.experiment(Cell("size-1000", 1), 0).algorithm.pool is None
    )  # drawn from 20,000 as it is
    for curve in (
        "soft-labels-down",
        "public-cifar100",
        "budget-ds-fl",
        "budget-cfd",
        "budget-feddf",
        "budget-fas-delta-4",
    ):
        with pytest.raises(UserError, match=f"{curve} cannot redraw its public samples"):
            FRESH.experiment(Cell(curve, 1), 0)


def test_our_recipe_is_the_papers_but_for_the_optimiser_augmentation_and_rounds():
    for cell in ITEMS["table1"].cells(CIFAR):
        changed = config.differences(LITERAL.experiment(cell, 0), CIFAR.experiment(cell, 0))
        assert set(changed) == {
            "rounds",
            "local.optimizer",
            "local.augment",
            "local.milestones",
            "distill.augment",
            "distill.milestones",
        }


@pytest.mark.parametrize("plan", every_plan(), ids=lambda plan: f"{plan.setting}-{plan.recipe}")
@pytest.mark.parametrize("table", ["table1", "table2"])
def test_the_columns_of_a_table_differ_in_the_sampler_alone(plan, table):
    for sampler in ("none", "random", "low-entropy", "mixed"):
        none, other = (plan.experiment(Cell(f"{table}-{s}", 1), 0) for s in ("none", sampler))
        assert other.algorithm.sampler == sampler == plan.label(f"{table}-{sampler}")
        assert set(config.differences(none, other)) <= {"name", "algorithm.sampler"}


def test_figure_b_uploads_all_of_what_the_paper_did():
    made = [CIFAR.experiment(cell, 0) for cell in ITEMS["fig-size"].cells(CIFAR)]
    assert [one.algorithm.budget for one in made] == [1000, 2000, 5000, 10_000, 20_000]
    assert {one.data.public for one in made} == {20_000}
