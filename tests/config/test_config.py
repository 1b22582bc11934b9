import re
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import config, data, runs
from fedsift.aggregators import Era
from fedsift.algorithms import FedAvg, SoftLabelFD
from fedsift.config import SHORT, Experiment
from fedsift.data import cache
from fedsift.data.catalogue import CATALOGUE
from fedsift.types import Recipe, UserError
from tests.helpers.runs import bits, straight, tiny


def read(*overrides: str) -> Experiment:
    return config.read_experiment("digits-fas", overrides)


def value(experiment: Experiment, path: str) -> Any:
    return config.flat(experiment.model_dump())[path]


def complaint(*overrides: str, start: bool = False) -> str:
    """What is said of these overrides, at the latest when the federation is built (or starts)."""
    with pytest.raises(UserError) as caught:
        federation = config.build_federation(read(*overrides))
        if start:
            federation.start()
    return str(caught.value)


# --- presets
#
#
# -------------------------------------------------------------------------------------------------------


def data_are_here(name: str) -> bool:
    source = config.read_experiment(name).data.name
    return source not in CATALOGUE or cache.path(source).is_file()


@pytest.mark.parametrize("name", [name for name in config.presets() if data_are_here(name)])
def test_every_preset_reads_builds_and_starts(name):
    experiment = config.read_experiment(name)
    federation = config.build_federation(experiment)
    assert experiment.name == name
    assert len(federation.clients) == experiment.clients.count == 20
    assert (
        sum(len(client.data) for client in map(federation.clients.__getitem__, range(20)))
        == experiment.data.private
    )
    students = set(federation.start().server.students)
    without_a_server_model = experiment.algorithm.name in {"fd-jeong", "gossip"}
    assert students == (
        set() if without_a_server_model else {model.name for model in federation.clients.models}
    )


def test_presets_differ_only_in_what_their_name_says():
    fas = config.read_experiment("digits-fas")
    on_digits = [name for name in config.presets() if name.startswith("digits-")]
    changed = {
        name: set(config.differences(fas, config.read_experiment(name))) - {"name"}
        for name in on_digits
    }
    assert changed == {
        "digits-fas": set(),
        "digits-fas-low-entropy": {"algorithm.sampler"},
        "digits-fas-mixed-models": {"clients.models"},
        "digits-fas-soft-down": {"algorithm.download"},
        "digits-cfd": {"algorithm.name", "algorithm.budget", "distill.epochs"},
        "digits-gossip": {"algorithm.name", "algorithm.graph", "clients.cohort"},
        **{
            f"digits-{name}": {"algorithm.name"}
            for name in ("fd", "fedavg", "fedpaq", "feddf", "fd-jeong", "mix2fld", "ds-fl")
        },
    }


def test_the_cifar10_presets_are_the_papers_setting_and_differ_in_the_algorithm_alone():
    fas = config.read_experiment("cifar10-fas")
    for name in ("fd", "fedavg"):
        other = config.read_experiment(f"cifar10-{name}")
        assert set(config.differences(fas, other)) == {"name", "algorithm.name"}
        assert other.algorithm.name == name
    assert (fas.data.private, fas.data.public, fas.algorithm.budget) == (20_000, 2_000, 400)
    assert (fas.clients.count, fas.clients.cohort, fas.clients.model) == (20, 8, "resnet8")
    local = Recipe(epochs=20, batch=8, lr=0.02, optimizer="adam", milestones=(300, 600), decay=0.1)
    assert (fas.local.recipe(), fas.distill.recipe()) == (local, replace(local, lr=0.001))


def test_an_experiment_becomes_plain_parts():
    e = read(
        "budget=7",
        "aggregator=era(0.5)",
        "local.lr=0.3",
        "distill.epochs=4",
        "algorithm.temperature=2",
        "seed=3",
    )
    federation = config.build_federation(e)
    algorithm = federation.algorithm
    assert isinstance(algorithm, SoftLabelFD)
    assert (algorithm.budget, algorithm.temperature, federation.seed, federation.cohort) == (
        7,
        2.0,
        3,
        8,
    )
    assert (algorithm.local, algorithm.distill) == (Recipe(lr=0.3), Recipe(epochs=4))
    assert algorithm.aggregate == Era(0.5)


def test_the_share_of_old_weights_a_server_keeps_reaches_the_algorithm():
    keeping, usual = (config.algorithm(read(*settings)) for settings in (["algorithm.ema=0.5"], []))
    assert isinstance(keeping, SoftLabelFD) and isinstance(usual, SoftLabelFD)
    assert (keeping.ema, usual.ema) == (0.5, 0)
    assert "algorithm.ema" in config.unused(
        config.read_experiment("digits-fedavg", ["algorithm.ema=0.5"])
    )


def test_a_pool_of_all_public_samples_plays_bit_for_bit_as_none(tmp_path):
    e = tiny("digits-fas")
    usual, all_of_them, some = (
        bits(straight(tmp_path / str(n), tiny("digits-fas", *settings)))
        for n, settings in enumerate(
            ([], [f"algorithm.pool={e.data.public}"], [f"algorithm.pool={e.data.public - 1}"])
        )
    )
    for name in (runs.METRICS, runs.LEDGER, runs.CHECKPOINT):
        assert usual[name] == all_of_them[name]
    assert some[runs.CHECKPOINT] != usual[runs.CHECKPOINT]
    assert "algorithm.pool" in config.unused(
        config.read_experiment("digits-fedavg", ["algorithm.pool=5"])
    )


def test_memory_reaches_the_engine_that_needs_a_bound():
    bounded = read("memory=0.5", "engine=batched", "device=cpu")
    assert bounded.where == ("batched", "cpu", "float32", 0.5)
    assert "memory" not in config.unused(bounded)
    assert "memory" in config.unused(read("memory=0.5", "engine=sequential"))
    with pytest.raises(UserError, match="memory: input should be greater than 0"):
        read("memory=0")


def test_a_server_that_keeps_nothing_plays_bit_for_bit_as_one_that_was_not_asked(tmp_path):
    usual, none, half = (
        bits(straight(tmp_path / str(n), tiny("digits-fas", *settings)))
        for n, settings in enumerate(([], ["algorithm.ema=0"], ["algorithm.ema=0.5"]))
    )
    for name in (runs.METRICS, runs.LEDGER, runs.CHECKPOINT):
        assert usual[name] == none[name]
    assert half[runs.CHECKPOINT] != usual[runs.CHECKPOINT]


# --- a split is made once ---


def test_experiments_with_the_same_data_part_and_seed_share_their_task():
    """The cells of a table: another alpha, sampler or recipe is the same split."""
    one = config.build_federation(read("alpha=0.1", "sampler=none", "local.lr=0.5")).task
    assert config.build_federation(read("alpha=100", "sampler=mixed", "clients=10")).task is one


@pytest.mark.parametrize(
    "setting",
    ["seed=1", "data.private=700", "data.public=400", "data.test=90", "data.normalise=standard"],
)
def test_another_seed_or_data_part_is_another_task(setting):
    one, other = (config.build_federation(read(*settings)).task for settings in ((), (setting,)))
    assert one is not other
    assert runs.fingerprint_task(one) != runs.fingerprint_task(other)


def test_a_task_out_of_the_cache_is_the_one_made_without_it():
    cached, fresh = (
        config.build_federation(read()).task,
        data.split(data.load_dataset("digits"), 800, 500),
    )
    assert cached is not fresh
    assert (
        runs.fingerprint_task(cached)
        == runs.fingerprint_task(fresh)
        == runs.fingerprint_task.__wrapped__(fresh)
    )


def test_playing_leaves_the_shared_task_as_it_was(tmp_path):
    task = config.build_federation(tiny()).task
    before = runs.fingerprint_task.__wrapped__(task)
    straight(tmp_path / "run", tiny())
    assert config.build_federation(tiny()).task is task
    assert runs.fingerprint_task.__wrapped__(task) == before


def test_a_file_of_data_that_changes_is_split_anew(tmp_path):
    file, sizes = tmp_path / "mine.npz", ["data.private=40", "data.public=30"]
    x, y = np.random.default_rng(0).random((100, 1, 4, 4), np.float32), np.arange(100) % 2
    np.savez(file, x=x, y=y)
    one = config.build_federation(read(f"data.name=npz:{file}", *sizes)).task
    assert config.build_federation(read(f"data.name=npz:{file}", *sizes)).task is one
    np.savez(file, x=x / 2, y=y, more=0)
    assert runs.fingerprint_task(
        config.build_federation(read(f"data.name=npz:{file}", *sizes)).task
    ) != runs.fingerprint_task(one)


def test_the_values_of_the_partition_that_its_kind_takes_are_given_to_it():
    iid, shards = (
        config.build_federation(read(f"partition.kind={kind}", "partition.shards=1"))
        for kind in ("iid", "shards")
    )
    assert (
        max((client.label_counts > 0).sum() for client in map(iid.clients.__getitem__, range(20)))
        == 10
    )
    assert (
        max(
            (client.label_counts > 0).sum() for client in map(shards.clients.__getitem__, range(20))
        )
        <= 2
    )


def test_views_take_alpha_and_samples_and_any_number_of_clients():
    e = read("partition.kind=views", "partition.samples=10", "alpha=1e6", "clients=1000000")
    assert config.build_federation(e).clients[-1].label_counts.tolist() == [1] * 10
    assert config.unused(e) == ["partition.shards"]


# --- overrides
#
#
# -----------------------------------------------------------------------------------------------------

OVERRIDES = {
    "alpha": ("0.25", 0.25),
    "clients": ("9", 9),
    "cohort": ("3", 3),
    "model": ("mlp", "mlp"),
    "sampler": ("none", "none"),
    "budget": ("11", 11),
    "codec": ("float16", "float16"),
    "aggregator": ("era(0.05)", "era(0.05)"),
    "algorithm": ("fedavg", "fedavg"),
}


def test_all_short_names_are_tested_here():
    assert set(OVERRIDES) == set(SHORT)


@pytest.mark.parametrize("short", OVERRIDES)
def test_short_names_and_full_paths_set_the_same_key(short):
    text, expected = OVERRIDES[short]
    by_short, by_path = read(f"{short}={text}"), read(f"{SHORT[short]}={text}")
    assert by_short == by_path
    assert value(by_short, SHORT[short]) == expected
    assert config.full_path(f"{short}={text}") == SHORT[short]


@pytest.mark.parametrize(
    ("override", "path", "expected"),
    [
        ("seed=4", "seed", 4),
        (" seed = 4 ", "seed", 4),
        ("local.lr=1e-4", "local.lr", 1e-4),
        ("local.lr=.5", "local.lr", 0.5),
        ("local.milestones=[3, 5]", "local.milestones", (3, 5)),
        ("local.nesterov=true", "local.nesterov", True),
        ("clients.models={cnn = 12, mlp = 8}", "clients.models", {"cnn": 12, "mlp": 8}),
        ("sampler=low-entropy", "algorithm.sampler", "low-entropy"),
        ('sampler="low-entropy"', "algorithm.sampler", "low-entropy"),
        ("model=resnet8(norm=group, width=0.5)", "clients.model", "resnet8(norm=group, width=0.5)"),
        ("name=a = b", "name", "a = b"),
    ],
)
def test_values_are_read_as_toml_and_bare_words_as_text(override, path, expected):
    assert value(read(override), path) == expected


def test_later_overrides_win():
    assert read("seed=1", "seed=2").seed == 2


def test_a_model_for_all_replaces_a_mixture():
    e = config.read_experiment("digits-fas-mixed-models", ["model=mlp"])
    assert e.clients.models is None
    assert {model.name for model in config.build_federation(e).clients.models} == {"mlp"}


def test_a_mixture_of_models_is_dealt_in_the_numbers_given():
    everyone = config.build_federation(read("clients.models={cnn = 12, mlp = 8}")).clients
    assert [everyone[i].model.name for i in range(20)] == ["cnn"] * 12 + ["mlp"] * 8


# --- files
#
#
# ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_and_gives_its_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "rounds = 3\n[algorithm]\nbudget = 5\n[clients]\nmodels = {cnn = 12, mlp = 8}\n"
    )
    e = config.read_experiment(str(path), ["seed=9"])
    assert (e.name, e.rounds, e.seed, e.algorithm.budget) == ("mine", 3, 9, 5)
    assert e.clients.models == {"cnn": 12, "mlp": 8}


def test_what_is_not_said_is_the_default(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert config.differences(
        config.read_experiment(str(tmp_path / "empty.toml")), Experiment()
    ) == {"name": ("empty", "experiment")}


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"^cannot read nowhere\.toml: .*No such file"):
        config.read_experiment("nowhere.toml")


def test_a_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "odd.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"odd\.toml is not valid TOML: .*line 1"):
        config.read_experiment(str(tmp_path / "odd.toml"))


def test_a_short_name_in_a_file_is_answered_with_its_full_path(tmp_path):
    # Short names are for the command line. "unknown key 'budget'; did you mean 'budget'?" helps
    # nobody.
    (tmp_path / "short.toml").write_text("budget = 5\n")
    with pytest.raises(UserError, match=r"algorithm\.budget"):
        config.read_experiment(str(tmp_path / "short.toml"))


# --- mistakes
#
#
# ------------------------------------------------------------------------------------------------------

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
            "clients.cohort: input should be a valid integer, unable to parse string as an integer (got 'x')",
        ),
        (
            "budget=1.5",
            "algorithm.budget: input should be a valid integer, got a number with a fractional part (got 1.5)",
        ),
        (
            "budget=",
            "algorithm.budget: input should be a valid integer, unable to parse string as an integer (got '')",
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
        ("budget=0", "algorithm.budget: input should be greater than 0 (got 0)"),
        ("seed=-1", "seed: input should be greater than or equal to 0 (got -1)"),
        ("local.momentum=1", "local.momentum: input should be less than 1 (got 1)"),
        ("algorithm.ema=1", "algorithm.ema: input should be less than 1 (got 1)"),
        (
            "algorithm.ema=-0.5",
            "algorithm.ema: input should be greater than or equal to 0 (got -0.5)",
        ),
        ("data.test=0", "data.test: input should be greater than 0 (got 0)"),
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
            "local: unknown optimizer 'sdg'; did you mean 'sgd'? (one of adam, adamw, sgd)",
        ),
        (
            "distill.augment=crop",
            "distill: unknown augment 'crop'; did you mean 'crop-flip'? (one of none, crop-flip)",
        ),
        (
            "algorithm.download=soft",
            "unknown download 'soft'; did you mean 'soft-labels'? (weights or soft-labels)",
        ),
        ("algorithm.down_codec=float64", "unknown codec 'float64'; did you mean 'float"),
        (
            "data.normalise=scaled",
            "unknown normalisation 'scaled'; did you mean 'scale'? (standard or scale)",
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


def test_a_budget_above_the_public_set_is_a_mistake_at_the_start():
    assert (
        complaint("budget=501", start=True)
        == "budget 501 is larger than the public set (500 samples)"
    )


def test_fedavg_with_a_mixture_of_models_is_a_mistake_at_the_start():
    said = complaint("algorithm=fedavg", "clients.models={cnn = 12, mlp = 8}", start=True)
    assert (
        said
        == "to average weights all clients need one model, not cnn, mlp; use fd or fas, or feddf"
    )


def test_a_device_that_is_not_there_is_a_mistake(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no CUDA device here" in complaint("device=cuda")


def test_a_key_below_a_value_is_a_mistake(tmp_path):
    (tmp_path / "flat.toml").write_text("seed = 3\n")
    with pytest.raises(UserError, match=r"cannot set 'seed\.more': 'seed' is not a section"):
        config.read_experiment(str(tmp_path / "flat.toml"), ["seed.more=1"])


def test_nesterov_without_momentum_is_a_mistake():
    assert "momentum" in complaint("local.optimizer=sgd", "local.momentum=0", "local.nesterov=true")


def test_an_unknown_preset_gets_the_nearest():
    with pytest.raises(UserError) as caught:
        config.read_experiment("digits-fedavgg")
    assert (
        str(caught.value)
        == "unknown preset 'digits-fedavgg'; did you mean 'digits-fedavg'? (fedsift ls presets)"
    )


@pytest.mark.parametrize(
    "override",
    [
        "sampler=x",
        "model=x",
        "aggregator=x",
        "codec=x",
        "algorithm=x",
        "data.name=x",
        "partition.kind=x",
        "engine=x",
    ],
)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # typer, on import, uses what click will drop
def test_the_list_that_a_mistake_points_to_exists(override):
    from typer.testing import CliRunner

    from fedsift.cli import app

    (kind,) = re.findall(r"fedsift ls (\w+)", complaint(override))
    assert CliRunner().invoke(app, ["ls", kind]).exit_code == 0


# --- what is not used ---


def test_fedavg_uses_no_budget_sampler_or_aggregator():
    e = read("algorithm=fedavg", "sampler=mixed", "aggregator=era", "codec=float16")
    used_by_others = ["algorithm.budget", "algorithm.sampler", "algorithm.aggregator"]
    assert config.unused(e) == [
        *used_by_others,
        "partition.shards",
        "partition.samples",
        "distill.",
    ]
    assert isinstance(config.build_federation(e).algorithm, FedAvg)


def test_fas_uses_all_of_its_section():
    e = read(
        "sampler=none",
        "aggregator=era",
        "codec=float16",
        "algorithm.temperature=2",
        "partition.kind=shards",
    )
    assert config.unused(e) == ["partition.alpha", "partition.samples"]


# --- writing
#
#
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", config.presets())
def test_a_preset_written_to_a_file_reads_back_equal(tmp_path, name):
    e = config.read_experiment(name)
    (tmp_path / "copy.toml").write_text(config.to_toml(e))
    assert config.read_experiment(str(tmp_path / "copy.toml")) == e


def test_every_key_is_written_also_those_without_a_value():
    text = config.to_toml(read())
    for path in config.flat(read().model_dump()):
        assert re.search(rf"^(# )?{path.split('.')[-1]} =", text, re.MULTILINE), path
    assert re.search(r"^# sampler = +# which ones", text, re.MULTILINE)


NAME = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=8)
POSITIVE = st.floats(1e-300, 1e300)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(
        {
            "name": NAME,
            "seed": st.integers(0, 2**80),
            "partition": st.fixed_dictionaries({"alpha": POSITIVE}),
            "local": st.fixed_dictionaries(
                {
                    "lr": POSITIVE,
                    "milestones": st.lists(st.integers(0, 99), max_size=3),
                    "nesterov": st.booleans(),
                }
            ),
            "algorithm": st.fixed_dictionaries(
                {"sampler": st.none() | NAME, "temperature": st.none() | POSITIVE}
            ),
            "clients": st.fixed_dictionaries(
                {"models": st.none() | st.dictionaries(NAME, st.integers(1, 9), max_size=3)}
            ),
            "data": st.fixed_dictionaries({"test": st.none() | st.integers(1, 500)}),
        }
    )
)
def test_an_experiment_written_as_toml_reads_back_equal(values):
    e = config.check_experiment(values)
    assert config.check_experiment(tomllib.loads(config.to_toml(e))) == e


def test_a_name_may_hold_any_character():
    e = config.check_experiment({"name": 'smile \N{SLIGHTLY SMILING FACE} "quoted" \\ \x7f'})
    assert config.check_experiment(tomllib.loads(config.to_toml(e))) == e


def test_differences_are_given_by_full_path_with_both_values():
    one, other = (
        read("alpha=0.1", "clients.models={cnn = 20}"),
        read("alpha=100", "local.milestones=[3]"),
    )
    assert config.differences(one, other) == {
        "partition.alpha": (0.1, 100.0),
        "clients.models": ({"cnn": 20}, None),
        "local.milestones": ((), (3,)),
    }
    assert config.differences(one, one) == {}
