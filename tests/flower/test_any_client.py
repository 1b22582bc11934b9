"""Nodes whose models are no networks: forests by name, failures, black boxes."""

import shlex

import pytest

from fedsift import runs
from fedsift.flower.settings import Settings
from fedsift.flower.site import make_site
from fedsift.types import UserError
from tests.helpers.black_box import answer_evenly, serving
from tests.helpers.fake_flower import TINY, Node, a_task, federation, play
from tests.helpers.runs import lines

pytest.importorskip("sklearn")
FOREST = "sklearn:RandomForestClassifier(n_estimators=4)"


@pytest.fixture
def task(tmp_path):
    return a_task(tmp_path / "app")


def words(*settings):
    down = "algorithm.download=soft-labels"
    return shlex.join([*TINY.split(), "cohort=4", "rounds=2", "algorithm=fas", down, *settings])


def test_a_node_of_a_black_box_knows_its_address_by_itself(task, tmp_path):
    overrides = words('clients.models={"mlp"=3,"remote"=1}')
    grid, how = federation(task, overrides, 4, tmp_path / "run")
    with serving(answer_evenly(10)) as (address, asked):
        grid.nodes[37] = Node(task, 3, {"overrides": overrides}, address=address)
        with pytest.warns(UserWarning, match="remote is asked and never trained"):
            play(task, grid, how)
    assert [len(rows) for rows in asked] == [30, 30]
    assert all(set(row["up"]) == set("0123") for row in lines(tmp_path / "run" / runs.LEDGER))


def test_an_address_is_never_taken_from_the_project(task):
    overrides = words('clients.models={"mlp"=3,"http://127.0.0.1:9/x"=1}')
    with pytest.raises(UserError, match=r"names the address http://127.0.0.1:9/x; write remote"):
        make_site(task, Settings(overrides=overrides), {"partition-id": 3})
    site = make_site(task, Settings(overrides=words("model=remote")), {"partition-id": 3})
    with pytest.raises(UserError, match="start its SuperNode with --node-config 'address="):
        site.client()


def test_a_node_whose_model_fails_is_missing_and_its_data_are_not_quoted(task, tmp_path):
    class Broken:
        def fit(self, x, y, sample_weight=None):
            raise ValueError(f"patient 17 is {x[0, 0]}")

        def predict_proba(self, x):
            return x

    task.Broken = Broken
    import sys

    sys.modules["task"], before = task, sys.modules.get("task")
    try:
        overrides = words('clients.models={"mlp"=3,"task:Broken"=1}', "rounds=1")
        grid, how = federation(task, overrides, 4, tmp_path / "run")
        play(task, grid, how)
    finally:
        sys.modules.pop("task")
        if before:
            sys.modules["task"] = before
    (row,) = lines(tmp_path / "run" / runs.LEDGER)
    assert row["missing"] == {"3": "its model failed: Broken.fit raised ValueError"}
