"""Presets, files and overrides become an experiment, and an experiment becomes a file."""

import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import config
from fedsift.config import SHORT, Experiment
from fedsift.types import Recipe, UserError
from tests.helpers.experiments import read, value


def test_presets_differ_only_in_what_their_name_says():
    fas = config.read_experiment("digits-fas")
    on_digits = [name for name in config.presets() if name.startswith("digits-")]
    changed = {
        name: set(config.differences(fas, config.read_experiment(name))) - {"name"}
        for name in on_digits
    }
    assert changed == {
        "digits-fas": set(),
        "digits-sift": {"algorithm.name", "algorithm.bytes"},
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


def test_only_known_images_have_a_usual_size():
    sizes = {
        name: (e.data.private, e.data.public)
        for name in ("digits", "npz:mine.npz", "csv:mine.csv", "folder:mine", "mine:make")
        for e in [read(f"data.name={name}")]
    }
    assert sizes.pop("digits") == (800, 500)
    assert set(sizes.values()) == {(None, None)}


def test_the_cifar10_presets_are_the_papers_setting_and_differ_in_the_algorithm_alone():
    fas = config.read_experiment("cifar10-fas")
    for name in ("fd", "fedavg"):
        other = config.read_experiment(f"cifar10-{name}")
        assert set(config.differences(fas, other)) == {"name", "algorithm.name"}
        assert other.algorithm.name == name
    assert (fas.data.private, fas.data.public, fas.algorithm.budget) == (20_000, 2_000, 400)
    assert (fas.clients.count, fas.clients.cohort, fas.clients.model) == (20, 8, "resnet8")
    local = Recipe(epochs=20, batch=8, lr=0.02, optimizer="adam", milestones=(300, 600), decay=0.1)
    assert (fas.local, fas.distill) == (local, replace(local, lr=0.001))


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


def test_a_file_is_read_and_gives_its_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "rounds = 3\n[algorithm]\nbudget = 5\n[clients]\nmodels = {cnn = 12, mlp = 8}\n"
    )
    e = config.read_experiment(str(path), ["seed=9"])
    assert (e.name, e.rounds, e.seed, e.algorithm.budget) == ("mine", 3, 9, 5)
    assert e.clients.models == {"cnn": 12, "mlp": 8}


def test_what_is_not_said_is_the_default(tmp_path):
    (tmp_path / "short.toml").write_text("seed = 0\n")
    assert config.differences(
        config.read_experiment(str(tmp_path / "short.toml")), Experiment()
    ) == {"name": ("short", "experiment")}


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_is_refused_in_words(tmp_path, text):
    (tmp_path / "empty.toml").write_text(text)
    with pytest.raises(UserError, match=r"empty\.toml is empty; `fedsift new PRESET FILE\.toml`"):
        config.read_experiment(str(tmp_path / "empty.toml"))


@pytest.mark.parametrize(
    "key, meant",
    {
        "learning_rate": "local.lr or distill.lr",
        "lr": "local.lr or distill.lr",
        "epochs": "local.epochs or distill.epochs",
        "batch_size": "local.batch or distill.batch",
        "dataset": "data.name",
        "num_clients": "clients",
        "n_clients": "clients",
        "num_rounds": "rounds",
    }.items(),
)
def test_usual_names_of_other_libraries_lead_to_the_key(key, meant):
    with pytest.raises(UserError, match=f"^unknown key '{key}'; did you mean {meant}[?]$"):
        config.read_experiment("digits-fas", [f"{key}=1"])


def test_every_synonym_leads_to_keys_that_exist():
    from fedsift.overrides import SYNONYMS

    known = config.resolve_values(config.read_experiment("digits-fas")) | config.SHORT
    meant = {key for keys in SYNONYMS.values() for key in keys}
    assert sorted(key for key in meant if key not in known) == []
    assert [key for key in SYNONYMS if key in known] == []


@pytest.mark.parametrize("name", ["mnist", "digits", "cifar10"])
def test_a_data_set_given_as_a_preset_is_told_apart(name):
    with pytest.raises(UserError, match=f"{name} is a data set, .*data.name={name}"):
        config.read_experiment(name)


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"^no such file: nowhere\.toml$"):
        config.read_experiment("nowhere.toml")


def test_a_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "odd.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"odd\.toml is not valid TOML: .*line 1"):
        config.read_experiment(str(tmp_path / "odd.toml"))


DEEP = 20_000


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * DEEP}{']' * DEEP}",
        f"a = {'[' * DEEP}",
        f"[{'.'.join('a' * DEEP)}]",
        f"local.{'.'.join('a' * DEEP)} = 1",
        f"seed.{'.'.join('a' * DEEP)} = 1",
        f"clients.models.{' . '.join('a' * DEEP)} = 1",
        f"local.{'.'.join('a' * 150)} = 1",
        f"sweep.{'.'.join('a' * DEEP)} = [1]",
    ],
    ids=["lists", "open-lists", "table", "section", "value", "dict", "shorter", "sweep"],
)
def test_a_file_that_is_nested_too_deeply_is_answered_in_one_sentence(tmp_path, text):
    (tmp_path / "deep.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        config.read_experiment(str(tmp_path / "deep.toml"))
    path = tmp_path / "deep.toml"
    assert str(caught.value) == f"{path} is not an experiment: its values are nested too deeply"


def test_a_file_that_is_too_large_or_has_no_end_is_not_read(tmp_path):
    large = tmp_path / "large.toml"
    large.write_text("# " + "x" * 2**20)
    with pytest.raises(UserError, match=r"large.toml: it has 1,048,578 bytes; 1,048,576 are the m"):
        config.read_experiment(str(large))
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"cannot read .*zero.toml: it is not a plain file"):
        config.read_experiment(str(tmp_path / "zero.toml"))


def test_a_number_of_thousands_of_digits_is_one_sentence(tmp_path):
    (tmp_path / "long.toml").write_text(f"seed = {'9' * 5000}")
    with pytest.raises(UserError, match=r"long.toml is not valid TOML: "):
        config.read_experiment(str(tmp_path / "long.toml"))


@pytest.mark.parametrize(
    "override",
    [
        f"local.milestones={'[' * DEEP}{']' * DEEP}",
        f"sweep={{{'.'.join('a' * DEEP)} = [1]}}",
        f"seed.{'.'.join('a' * DEEP)}=1",
    ],
    ids=["list", "sweep", "key"],
)
def test_an_override_that_is_nested_too_deeply_is_answered_in_one_sentence(override):
    with pytest.raises(UserError) as caught:
        config.read_experiment("digits-fas", [override])
    assert len(str(caught.value)) < 200
    assert "too deeply" in str(caught.value) or "too many sections" in str(caught.value)


def test_a_short_name_in_a_file_is_answered_with_its_full_path(tmp_path):
    # Short names are for the command line. "unknown key 'budget'; did you mean 'budget'?" helps
    # nobody.
    (tmp_path / "short.toml").write_text("budget = 5\n")
    with pytest.raises(UserError, match=r"algorithm\.budget"):
        config.read_experiment(str(tmp_path / "short.toml"))


def test_a_key_below_a_value_is_a_mistake(tmp_path):
    (tmp_path / "flat.toml").write_text("seed = 3\n")
    with pytest.raises(UserError, match=r"cannot set 'seed\.more': 'seed' is not a section"):
        config.read_experiment(str(tmp_path / "flat.toml"), ["seed.more=1"])


def test_an_unknown_preset_gets_the_nearest():
    with pytest.raises(UserError) as caught:
        config.read_experiment("digits-fedavgg")
    assert (
        str(caught.value)
        == "unknown preset 'digits-fedavgg'; did you mean 'digits-fedavg'? (fedsift ls presets)"
    )


@pytest.mark.parametrize("name", config.presets())
def test_a_preset_written_to_a_file_reads_back_equal(tmp_path, name):
    e = config.read_experiment(name)
    (tmp_path / "copy.toml").write_text(config.to_toml(e))
    assert config.read_experiment(str(tmp_path / "copy.toml")) == e


def test_every_key_is_written_also_those_without_a_value():
    text = config.to_toml(read())
    for path in config.flat(read().model_dump()):
        assert re.search(rf"^(# )?{path.split('.')[-1]} =", text, re.MULTILINE), path
    assert re.search(r"^# sampler = \"mixed\" +# which public samples", text, re.MULTILINE)
    assert re.search(r"^# gamma = +# weight of the pull", text, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["fas", "fas(sampler=none)", "cfd", "mine:Own", "fas(((", "gossip"]
)
def test_what_is_left_to_the_algorithm_stays_so_when_written_and_read(name):
    e = read(f"algorithm={name}")
    text = config.to_toml(e)
    assert config.check_experiment(tomllib.loads(text)) == e
    assert ("# sampler =  " in text) == (name in ("mine:Own", "fas(((", "gossip"))


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
                {
                    "models": st.none()
                    | st.dictionaries(NAME, st.integers(1, 9), min_size=1, max_size=3)
                }
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
