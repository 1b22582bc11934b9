"""Which values an experiment may have, and what is said of the others."""

import inspect
from dataclasses import fields

import pytest

from fedsift.algorithms import ALGORITHMS
from fedsift.config.schema import AlgorithmSection, Experiment, describe_keys, section_type
from fedsift.types import Recipe, UserError
from tests.helpers.experiments import complaint

KEYS = "(run `fedsift new PRESET FILE.toml` to see all keys)"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        # unknown keys
        ("bugdet=5", f"unknown key 'bugdet'; did you mean 'budget'? {KEYS}"),
        ("sede=5", f"unknown key 'sede'; did you mean 'seed'? {KEYS}"),
        ("local.lrr=1", f"unknown key 'local.lrr'; did you mean 'local.lr'? {KEYS}"),
        ("algoritm.budget=1", f"unknown key 'algoritm'; did you mean 'algorithm'? {KEYS}"),
        ("seed", "cannot read 'seed'; an override is key=value, e.g. alpha=0.1 or local.lr=0.01"),
        # wrong types
        (
            "cohort=x",
            "clients.cohort: input should be a valid integer, unable to parse string as "
            "an integer (got 'x')",
        ),
        (
            "budget=1.5",
            "algorithm.budget: input should be a valid integer, got a number with a "
            "fractional part (got 1.5)",
        ),
        (
            "budget=",
            "algorithm.budget: input should be a valid integer, unable to parse string "
            "as an integer (got '')",
        ),
        ("sampler=3", "algorithm.sampler: input should be a valid string (got 3)"),
        ("local=3", "local is a section with keys epochs, batch, lr,"),
        ("clients.models=cnn", "clients.models: input should be a valid dictionary (got 'cnn')"),
        ("local.milestones=3", "local.milestones: input should be a valid tuple (got 3)"),
        ("seed.more=3", "seed: input should be a valid integer"),
        # out of range
        ("alpha=0", "partition.alpha: input should be greater than 0 (got 0)"),
        ("alpha=-1", "partition.alpha: input should be greater than 0 (got -1)"),
        ("alpha=nan", "partition.alpha: input should be a finite number (got nan)"),
        ("budget=0", "a budget of 0 soft labels uploads nothing; give at least 1"),
        ("seed=-1", "seed: input should be greater than or equal to 0 (got -1)"),
        ("local.momentum=1", "local.momentum must be 0 or more and below 1, not 1"),
        ("algorithm.ema=1", "ema is a share of the old weights, from 0 to below 1, not 1"),
        ("algorithm.ema=-0.5", "ema is a share of the old weights, from 0 to below 1, not -0.5"),
        ("local.lr=0", "local.lr must be above 0, not 0"),
        ("local.lr=nan", "local.lr: input should be a finite number (got nan)"),
        ("distill.epochs=0", "distill.epochs must be a whole number, 1 or more, not 0"),
        ("local.batch=1.5", "local.batch: input should be a valid integer, got a number with"),
        ("local.decay=-1", "local.decay must be 0 or more, not -1"),
        ("local.weight_decay=-1", "local.weight_decay must be 0 or more, not -1"),
        ("local.milestones=[-1]", "local.milestones must be epochs from 0 on, not [-1]"),
        ("local.milestones=[3, -2]", "local.milestones must be epochs from 0 on, not [3, -2]"),
        ("alpha=1e-300", "alpha must be from 1e-06 to 1e+06, not 1e-300"),
        ("alpha=1e7", "alpha must be from 1e-06 to 1e+06, not 10000000"),
        ("clients.models={}", "clients.models: name at least one model, as in {cnn = 12, mlp = 8}"),
        ("data.test=0", "data.test: input should be greater than 0 (got 0)"),
        (
            "data.public=0",
            "data.public: input should be greater than 0 (got 0); no public set? hold",
        ),
        ("device=gpu", "device: input should be 'auto', 'cpu' or 'cuda' (got 'gpu')"),
        # unknown parts
        (
            "sampler=entropi",
            "unknown sampler 'entropi'; did you mean 'low-entropy'? (fedsift ls samplers)",
        ),
        ("model=resnet9", "unknown model 'resnet9'; did you mean 'resnet8'? (fedsift ls models)"),
        (
            "clients.models={cnm = 20}",
            "unknown model 'cnm'; did you mean 'cnn'? (fedsift ls models)",
        ),
        (
            "aggregator=eraa",
            "unknown aggregator 'eraa'; did you mean 'era'? (fedsift ls aggregators)",
        ),
        ("codec=float8", "unknown codec 'float8'; did you mean 'float32'? (fedsift ls codecs)"),
        (
            "algorithm=fedavgg",
            "unknown algorithm 'fedavgg'; did you mean 'fedavg'? (fedsift ls algorithms)",
        ),
        (
            "data.name=digit",
            "unknown dataset 'digit'; did you mean 'digits'? (fedsift ls datasets)",
        ),
        (
            "partition.kind=dirichlt",
            "unknown partition 'dirichlt'; did you mean 'dirichlet'? (fedsift ls partitions)",
        ),
        (
            "engine=sequental",
            "unknown engine 'sequental'; did you mean 'sequential'? (fedsift ls engines)",
        ),
        (
            "local.optimizer=sdg",
            "local.optimizer must be one of adam, adamw, sgd, not 'sdg'",
        ),
        (
            "distill.augment=crop",
            "distill.augment must be one of none, crop-flip, not 'crop'",
        ),
        (
            "algorithm.download=soft",
            "unknown download 'soft'; did you mean 'soft-labels'? (weights or soft-labels)",
        ),
        ("algorithm.down_codec=float64", "unknown codec 'float64'; did you mean 'float"),
        (
            "data.normalise=scaled",
            "unknown normalisation 'scaled'; did you mean 'scale'? (standard, scale or none)",
        ),
        # values of parts
        ("aggregator=era(0)", "era needs a temperature above 0, not 0"),
        (
            "aggregator=era(weights=sure)",
            "unknown weights 'sure'; known: equal, certainty (equal or certainty)",
        ),
        ("aggregator=mean(1)", "aggregator 'mean' takes no values, but 'mean(1)' gives some"),
        ("model=cnn(widht=2)", "model 'cnn(widht=2)': got an unexpected keyword argument 'widht'"),
        # numbers that do not fit together
        ("cohort=21", "a cohort of 21 cannot be drawn from 20 clients"),
        ("clients=801", "801 clients but only 800 private samples: each client needs at least one"),
        ("data.private=1700", "2200 samples asked for (private 1700 + public 500), 1797 there"),
        ("clients.models={cnn = 12, mlp = 7}", "models are given to 19 clients, but there are 20"),
        ("data.name=nowhere.npz", "no such file: nowhere.npz"),
    ],
)
def test_a_bad_value_is_a_mistake_that_says_what_to_change(override, said):
    assert complaint(override).startswith(said)


def test_several_wrong_values_are_all_reported():
    said = complaint("alpha=0", "cohort=x")
    assert "partition.alpha" in said
    assert "clients.cohort" in said


def test_nesterov_without_momentum_is_a_mistake():
    assert "momentum" in complaint("local.optimizer=sgd", "local.momentum=0", "local.nesterov=true")


def test_every_problem_of_a_recipe_is_named_with_its_key():
    said = complaint("local.lr=-1", "local.momentum=2", "distill.batch=0")
    assert said == (
        "local.lr must be above 0, not -1.0; local.momentum must be 0 or more and below "
        "1, not 2.0; "
        "distill.batch must be a whole number, 1 or more, not 0"
    )


def test_a_recipe_says_the_same_from_python():
    with pytest.raises(UserError) as caught:
        Recipe(lr=-1, epochs=0)
    assert (
        str(caught.value)
        == "epochs must be a whole number, 1 or more, not 0; lr must be above 0, not -1"
    )


def test_the_sections_of_recipes_have_the_keys_of_a_recipe():
    keys = [field.name for field in fields(Recipe)]
    assert [*describe_keys(section_type("local"))] == keys
    assert [*describe_keys(section_type("distill"))] == keys


def test_the_algorithm_section_has_every_parameter_of_every_algorithm():
    taken = {
        name
        for make in ALGORITHMS.values()
        for name in inspect.signature(make).parameters
        if name not in ("local", "distill")
    }
    assert {*describe_keys(AlgorithmSection)} == taken | {"name"}


def test_every_key_has_a_description():
    sections = [Experiment, *filter(None, map(section_type, describe_keys(Experiment)))]
    without = [
        (section.__name__, key)
        for section in sections
        for key, about in describe_keys(section).items()
        if not about and not section_type(key, section)
    ]
    assert len(sections) == 7
    assert without == []
