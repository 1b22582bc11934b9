"""From a recipe, a curve and overrides to an experiment."""

import json
from dataclasses import replace

import pytest

from fedsift.papers.fas_icc2022 import PAPER
from fedsift.reproduction.paper import Paper
from fedsift.reproduction.plans import Cell, NotWithThisRecipe, Plan, merge_tables
from fedsift.types import UserError
from tests.helpers.reproduction import CIFAR, DIGITS, NONE, make_plan


def test_merged_tables_by_hand():
    below = {"a": 1, "data": {"name": "x", "deep": {"p": 1, "q": 2}}, "only": {"below": 1}}
    above = {"a": 2, "data": {"size": 3, "deep": {"q": 9}}, "new": [1]}
    before = json.dumps([below, above])
    assert merge_tables(below, above) == {
        "a": 2,
        "data": {"name": "x", "size": 3, "deep": {"p": 1, "q": 9}},
        "only": {"below": 1},
        "new": [1],
    }
    assert json.dumps([below, above]) == before


def test_a_table_and_a_value_do_not_mix():
    assert merge_tables({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
    assert merge_tables({"a": 2}, {"a": {"b": 1}}) == {"a": {"b": 1}}


@pytest.fixture
def own_recipe(tmp_path) -> str:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nrounds = 7\n[data]\nprivate = 100\npublic = 99\n'
        "[algorithm]\nbudget = 5\n[local]\nlr = 0.5\n"
    )
    return str(file)


def test_a_curve_counts_more_than_a_recipe_of_ones_own_and_an_override_more_than_both(own_recipe):
    plan = make_plan("digits", own_recipe, 1, ("rounds=2", "local.lr=0.25", "data.public=77"))
    made = plan.experiment(Cell("table1-low-entropy", 0.1), 4)
    assert (made.name, made.seed, made.partition.alpha) == ("table1-low-entropy alpha=0.1", 4, 0.1)
    assert made.data.private == 100  # by the recipe
    assert (made.algorithm.sampler, made.algorithm.budget) == ("low-entropy", 60)  # by the curve
    assert (made.rounds, made.local.lr, made.data.public) == (2, 0.25, 77)  # by an override
    assert (
        make_plan("digits", own_recipe, 1).experiment(Cell("table1-none", 100), 0).data.public
        == 500
    )


@pytest.mark.parametrize(
    "override",
    [
        "alpha=1",
        "partition.alpha=2",
        "partition={}",
        "seed=7",
        "sweep.lr=[1, 2]",
        "sweep.seed=[0, 1]",
    ],
)
def test_alphas_seeds_and_sweeps_are_the_reproductions_own(override):
    with pytest.raises(
        UserError, match="has its own alphas and seeds; leave out alpha=, seed= and any sweep"
    ):
        make_plan("digits", "ours", 1, (override,)).experiment(Cell("table1-none", 0.1), 0)


def test_a_recipe_that_sweeps_is_refused(tmp_path):
    (tmp_path / "many.toml").write_text('[sweep]\n"local.lr" = [0.1, 0.2]\n')
    with pytest.raises(UserError, match="has its own alphas and seeds"):
        make_plan("digits", str(tmp_path / "many.toml"), 1).experiment(Cell("table1-none", 0.1), 0)


@pytest.mark.parametrize(
    ("setting", "recipe", "said"),
    [
        (
            "cifar10",
            "litteral",
            r"unknown recipe 'litteral'; did you mean 'literal'\? "
            r"\(cifar10 has fresh, fresh45, literal, ours; or a TOML file\)",
        ),
        (
            "digits",
            "literal",
            r"unknown recipe 'literal'; known: ours \(digits has ours; or a TOML file\)",
        ),
        ("digits", "nowhere.toml", "cannot read the recipe nowhere.toml: no such file"),
    ],
)
def test_a_recipe_that_is_not_there_is_a_mistake_that_names_those_that_are(setting, recipe, said):
    with pytest.raises(UserError, match=said):
        make_plan(setting, recipe, 1).experiment(Cell("table1-none", 0.1), 0)


@pytest.mark.parametrize("content", [b"rounds =", b"\xff\xfe"], ids=["not TOML", "not text"])
def test_a_recipe_that_cannot_be_read_is_named(tmp_path, content):
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the recipe .*broken\.toml"):
        make_plan("digits", str(file), 1).experiment(Cell("table1-none", 0.1), 0)


def test_an_unknown_key_in_a_recipe_or_an_override_gets_the_nearest(tmp_path):
    (tmp_path / "typo.toml").write_text("[local]\nlrr = 1\n")
    with pytest.raises(UserError, match=r"unknown key 'local\.lrr'; did you mean 'local\.lr'"):
        make_plan("digits", str(tmp_path / "typo.toml"), 1).experiment(Cell("table1-none", 0.1), 0)
    with pytest.raises(UserError, match="unknown key 'ronds'; did you mean 'rounds'"):
        make_plan("digits", "ours", 1, ("ronds=2",)).experiment(Cell("table1-none", 0.1), 0)


def test_curves_come_by_budget_not_by_name():
    """By name, 10000 would come before 2000, and 125 before 15."""
    assert CIFAR.curves("size-*") == [f"size-{n}" for n in (1000, 2000, 5000, 10000, 20000)]
    assert DIGITS.curves("size-*") == [f"size-{n}" for n in (15, 30, 60, 125, 250, 500)]
    assert DIGITS.curves("recipe-*") == []
    assert DIGITS.curves("table1-*") == [
        f"table1-{s}" for s in ("low-entropy", "mixed", "none", "random")
    ]


def test_a_curve_is_called_by_its_name():
    assert CIFAR.label("public-stl10") == "public: STL-10"
    assert CIFAR.label("size-20000") == "20,000 of 20,000"


def test_a_recipe_does_not_draw_from_fewer_samples_than_a_curve_has(tmp_path):
    text = PAPER.recipes("cifar10")["fresh"].read_text()
    (tmp_path / "mine.toml").write_text(text.replace("_from = 20000", "_from = 5000"))
    plan = make_plan("cifar10", str(tmp_path / "mine.toml"), 1)
    assert plan.experiment(Cell("table1-none", 1), 0).algorithm.pool == 2000
    with pytest.raises(
        UserError, match="table2-none has 8,000 public samples, more than the 5,000"
    ):
        plan.experiment(Cell("table2-none", 1), 0)


@pytest.mark.parametrize("number", ["0", "-1", "true", "'many'", "2.5"])
def test_a_recipe_that_draws_from_no_number_is_refused(tmp_path, number):
    (tmp_path / "mine.toml").write_text(f"redraw_public_from = {number}\n[data]\nname = 'digits'\n")
    with pytest.raises(UserError, match="`redraw_public_from` is a number of public samples, not"):
        make_plan("digits", str(tmp_path / "mine.toml"), 1).experiment(NONE, 0)


def test_the_old_key_of_a_recipe_is_named_with_its_new_one(tmp_path):
    (tmp_path / "mine.toml").write_text("anew = 600\n[data]\nname = 'digits'\n")
    with pytest.raises(UserError, match=r"has the old key `anew`; call it `redraw_public_from`"):
        make_plan("digits", str(tmp_path / "mine.toml"), 1)


def test_what_a_recipe_says_to_be_without_public_samples_is_not_redrawn(tmp_path):
    """Without the list, FedAvg is asked for a pool, and has none."""
    file, cell = tmp_path / "mine.toml", Cell("fedavg", 1)
    text = "redraw_public_from = 600\n" + PAPER.recipes("digits")["ours"].read_text()
    file.write_text(text)
    with pytest.raises(NotWithThisRecipe, match="fedavg cannot redraw its public samples"):
        make_plan("digits", str(file), 1).experiment(cell, 0)
    file.write_text(f"without_public = ['fedavg']\n{text}")
    made = make_plan("digits", str(file), 1).experiment(cell, 0)
    assert made == DIGITS.experiment(cell, 0)
    file.write_text(f"without_public = 'fedavg'\n{text}")
    with pytest.raises(UserError, match="`without_public` is a list of algorithms, not 'fedavg'"):
        make_plan("digits", str(file), 1).experiment(cell, 0)


def test_an_error_of_the_recipe_itself_is_not_blamed_on_the_pool(tmp_path):
    file = tmp_path / "mine.toml"
    text = PAPER.recipes("digits")["ours"].read_text()
    file.write_text(f"redraw_public_from = 600\n{text}\n[algorithm]\naggregator = 'nonsense'\n")
    with pytest.raises(UserError, match="unknown aggregator 'nonsense'") as caught:
        make_plan("digits", str(file), 1).experiment(NONE, 0)
    assert not isinstance(caught.value, NotWithThisRecipe)


# --- variants ---


@pytest.fixture
def paper_with_variants(tmp_path) -> Paper:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "recipe-ours.toml").write_text("rounds = 3\n[local]\nlr = 0.5\nepochs = 4\n")
    (folder / "plain.toml").write_text('name = "Plain"\n[algorithm]\nname = "fedavg"\n')
    (folder / "rich.toml").write_text('with = ["fine", "slow"]\n[local]\nlr = 0.25\n')
    (folder / "variants.toml").write_text(
        "[fine]\nlocal.lr = 0.1\nlocal.epochs = 9\n"
        '[slow]\nname = "slowly"\nrounds = 7\nlocal.epochs = 8\n'
        '[quiet]\nname = ""\nalgorithm.ema = 0.5\n'
    )
    return replace(PAPER, experiments=tmp_path, items={})


def test_a_variant_is_put_on_top_of_a_curve_and_the_last_one_counts(paper_with_variants):
    plan = Plan(paper_with_variants, "digits", "ours")
    made = plan.experiment(Cell("plain+fine+slow", 0.1), 0)
    assert (made.local.lr, made.local.epochs, made.rounds) == (0.1, 8, 7)
    assert made.name == "plain+fine+slow alpha=0.1"
    other = plan.experiment(Cell("plain+slow+fine", 0.1), 0)
    assert (other.local.epochs, other.rounds) == (9, 7)
    assert plan.experiment(Cell("plain", 0.1), 0).local.epochs == 4
    assert plan.curves("*") == ["plain", "rich"]


def test_tables_that_a_curve_is_made_with_count_less_than_the_curve(paper_with_variants):
    plan = Plan(paper_with_variants, "digits", "ours")
    made = plan.experiment(Cell("rich", 0.1), 0)
    assert (made.local.lr, made.local.epochs, made.rounds) == (0.25, 8, 7)


def test_a_label_names_the_curve_and_then_its_variants(paper_with_variants):
    plan = Plan(paper_with_variants, "digits", "ours")
    assert plan.label("plain+slow+quiet+fine") == "Plain, slowly, fine"


def test_an_unknown_variant_is_named(paper_with_variants):
    plan = Plan(paper_with_variants, "digits", "ours")
    with pytest.raises(UserError, match="unknown variant 'slwo'; did you mean 'slow'"):
        plan.experiment(Cell("plain+slwo", 0.1), 0)
    with pytest.raises(UserError, match="unknown variant 'any'"):
        DIGITS.experiment(Cell("fedavg+any", 0.1), 0)
