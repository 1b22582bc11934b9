"""An experiment becomes parts: a federation, a task that is made once, and the keys not used."""

import re

import numpy as np
import pytest
import torch

from fedsift import config, data, runs
from fedsift.aggregators import Era
from fedsift.algorithms import FedAvg, SoftLabelFD
from fedsift.data import cache
from fedsift.data.catalogue import CATALOGUE
from fedsift.samplers import SAMPLERS
from fedsift.types import Recipe, UserError
from tests.helpers.experiments import complaint, read
from tests.helpers.runs import bits, straight, tiny


def data_are_here(name: str) -> bool:
    source = config.read_experiment(name).data.name
    return source not in CATALOGUE or cache.path(source).is_file()


@pytest.mark.parametrize("name", [name for name in config.presets() if data_are_here(name)])
def test_every_preset_reads_builds_and_starts(name):
    experiment = config.read_experiment(name)
    federation = config.build_federation(experiment)
    assert experiment.name == name
    count = 20 if name.startswith("digits") else experiment.clients.count
    assert len(federation.clients) == experiment.clients.count == count
    dealt = sum(len(client.data) for client in map(federation.clients.__getitem__, range(count)))
    assert dealt == (experiment.data.private or len(federation.task.private))
    students = set(federation.start().server.students)
    without_a_server_model = experiment.algorithm.name in {"fd-jeong", "gossip"}
    networks = {model.name for model in federation.clients.models if model.is_network}
    assert students == (set() if without_a_server_model else networks)


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
    keeping, usual = (
        config.build_algorithm(read(*settings)) for settings in (["algorithm.ema=0.5"], [])
    )
    assert isinstance(keeping, SoftLabelFD) and isinstance(usual, SoftLabelFD)
    assert (keeping.ema, usual.ema) == (0.5, 0)
    assert "algorithm.ema" in config.list_unused(
        config.read_experiment("digits-fd-jeong", ["algorithm.ema=0.5"])
    )


def test_a_pool_of_all_public_samples_plays_bit_for_bit_as_none(tmp_path):
    public = tiny("digits-fas").data.public or 0
    usual, all_of_them, some = (
        bits(straight(tmp_path / str(n), tiny("digits-fas", *settings)))
        for n, settings in enumerate(
            ([], [f"algorithm.pool={public}"], [f"algorithm.pool={public - 1}"])
        )
    )
    for name in (runs.METRICS, runs.LEDGER, runs.CHECKPOINT):
        assert usual[name] == all_of_them[name]
    assert some[runs.CHECKPOINT] != usual[runs.CHECKPOINT]
    assert "algorithm.pool" in config.list_unused(
        config.read_experiment("digits-fedavg", ["algorithm.pool=5"])
    )


def test_memory_reaches_the_engine_that_needs_a_bound():
    bounded = read("memory=0.5", "engine=batched", "device=cpu")
    assert bounded.where == ("batched", "cpu", "float32", 0.5, None)
    assert "memory" not in config.list_unused(bounded)
    assert "memory" in config.list_unused(read("memory=0.5", "engine=sequential"))
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


def test_experiments_with_the_same_data_part_and_seed_share_their_task():
    """The cells of a table: another alpha, sampler or recipe is the same split."""
    one = config.build_federation(read("alpha=0.1", "sampler=none", "local.lr=0.5")).task
    assert config.build_federation(read("alpha=100", "sampler=mixed", "clients=10")).task is one


@pytest.mark.parametrize(
    "setting",
    [
        "seed=1",
        "data.private=700",
        "data.public=400",
        "data.test=90",
        "data.normalise=standard",
        "data.validation=497",
    ],
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
    assert config.list_unused(e) == ["partition.shards"]


def test_a_model_for_all_replaces_a_mixture():
    e = config.read_experiment("digits-fas-mixed-models", ["model=mlp"])
    assert e.clients.models is None
    assert {model.name for model in config.build_federation(e).clients.models} == {"mlp"}


def test_a_mixture_of_models_is_dealt_in_the_numbers_given():
    everyone = config.build_federation(read("clients.models={cnn = 12, mlp = 8}")).clients
    assert [everyone[i].model.name for i in range(20)] == ["cnn"] * 12 + ["mlp"] * 8


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


def test_fedavg_uses_no_budget_sampler_or_aggregator():
    e = read("algorithm=fedavg", "sampler=mixed", "aggregator=era", "codec=float16")
    used_by_others = ["algorithm.budget", "algorithm.sampler", "algorithm.aggregator"]
    assert config.list_unused(e) == [
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
    assert config.list_unused(e) == ["partition.alpha", "partition.samples"]


def test_unused_keys_are_explained_where_the_algorithm_knows_why():
    by_signature = config.explain_unused(read("algorithm=fedavg"))
    assert by_signature == dict.fromkeys(config.list_unused(read("algorithm=fedavg")), "")
    votes = config.explain_unused(read("algorithm.votes=histogram"))
    assert votes["algorithm.vote_bits"] == "votes=histogram sends no votes; set votes=expertise"
    assert "algorithm.votes" not in votes and votes["partition.shards"] == ""


def test_a_federation_and_its_unused_keys_are_built_at_once():
    e = config.read_experiment("digits-fedavg", ["sampler=mixed"])
    built = config.build_parts(e)
    assert built.unused == config.list_unused(e)
    assert "algorithm.sampler" in built.unused and "distill." in built.unused
    assert built.federation.task is config.build_task(e)
    assert built.federation.clients is config.build_clients(e)


def test_clients_are_dealt_once_for_the_same_data_partition_and_seed():
    one = config.build_clients(read("sampler=none"))
    assert config.build_clients(read("sampler=mixed", "local.lr=0.5")) is one
    assert config.build_clients(read("alpha=0.3")) is not one
    assert config.build_clients(read("seed=1")) is not one


def test_values_in_brackets_go_before_those_of_the_section():
    algorithm = config.build_algorithm(read("algorithm=fas(budget=5, sampler=none)", "budget=7"))
    assert isinstance(algorithm, SoftLabelFD)
    assert (algorithm.budget, algorithm.sampler) == (5, SAMPLERS["none"])


def test_the_values_an_algorithm_chose_are_told():
    told = config.resolve_values(read("algorithm=fas"))
    assert (told["algorithm.sampler"], told["algorithm.aggregator"]) == ("mixed", "mean")
    told = config.resolve_values(read("algorithm=fas(sampler=none)"))
    assert told["algorithm.sampler"] == "none"
