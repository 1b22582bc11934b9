"""The user's side of Flower: tasks, settings, projects, messages, and the verbs of
the command line.
"""

import inspect
import re
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from fedsift import config, runs
from fedsift.codecs import WireError
from fedsift.flower import local_deployment, messages, processes, project
from fedsift.flower.messages import Answer, Call, Refusal
from fedsift.flower.settings import Settings, settings
from fedsift.flower.site import make_site
from fedsift.types import UserError
from tests.helpers.cli import fedsift
from tests.helpers.fake_flower import TINY, a_task, federation, overrides, play, same_server
from tests.helpers.hostile_records import check_message
from tests.helpers.json_shapes import read_printed
from tests.helpers.layouts import FLOWER
from tests.helpers.runs import lines, straight, tiny


def test_plain_arrays_are_enough(task, tmp_path, monkeypatch):
    """The same numbers as arrays and as fedsift's own types: they are normalised by the public set
    alike.
    """
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "types")
    typed = play(task, grid, how)

    def raw(samples):
        return samples.store.values[torch.from_numpy(samples.rows)].numpy()

    def pair(labelled):
        return raw(labelled.samples), labelled.labels

    public, test, private = task.public, task.test, task.private
    monkeypatch.setattr(task, "public", lambda e, n: raw(public(e, n)))
    monkeypatch.setattr(task, "test", lambda e, n: pair(test(e, n)))
    monkeypatch.setattr(task, "private", lambda e, n: pair(private(e, n)))
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "arrays")
    assert same_server(play(task, grid, how).state, typed.state)


@pytest.mark.slow
def test_a_node_may_choose_its_model_among_those_of_the_experiment(task, tmp_path, caplog):
    grid, how = federation(task, overrides("mixed models", 2), 4, tmp_path / "run")
    grid.nodes[7].config["model"] = "cnn"  # the experiment gives it mlp
    play(task, grid, how)
    assert "node 7 is client 0 with model cnn" in caplog.text
    grid, how = federation(task, overrides("mixed models", 2), 4, tmp_path / "alone")
    for node in grid.nodes.values():
        node.config["model"] = "mlp"
    run = play(task, grid, how)
    assert set(run.state.server.students) == {
        "mlp",
        "cnn",
    }  # nobody has a cnn; its student learns all the same


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("CLASSES", None, r"must say how many classes there are, e.g. CLASSES = 10"),
        (
            "private",
            lambda e, n: (np.zeros((5, 9, 9), np.uint8), np.zeros(5, int)),
            r"private gives 5 samples of shape",
        ),
        (
            "private",
            lambda e, n: (np.zeros((5, 8, 8), np.uint8), np.full(5, 11)),
            r"at least 12 classes, not 10",
        ),
    ],
)
def test_mistakes_in_a_task_are_said_plainly(name, value, complaint, task, monkeypatch):
    monkeypatch.setattr(task, name, value)
    with pytest.raises(UserError, match=complaint):
        make_site(task, Settings(overrides=TINY), {"partition-id": 0}).client()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("patience=3", "patience is for simulations"),
        ('"topology=edges(2)"', "edge servers are for"),
    ],
)
def test_what_only_a_simulation_has_is_refused(setting, complaint, task):
    with pytest.raises(UserError, match=complaint):
        make_site(task, Settings(overrides=f"{TINY} {setting}"), {"partition-id": 0})


def test_gossip_has_no_server(task, tmp_path):
    grid, how = federation(task, f"{TINY} cohort=4 algorithm=gossip", 4, tmp_path / "run")
    with pytest.raises(
        UserError, match="gossip has no server, so it cannot run on Flower; use `fedsift run`"
    ):
        play(task, grid, how)


def test_a_minimum_above_the_cohort_is_a_mistake(task, tmp_path):
    grid, how = federation(task, TINY, 4, tmp_path / "run", minimum=4)
    with pytest.raises(UserError, match=r"a minimum of 4 replies in a cohort of 3"):
        play(task, grid, how)


@pytest.mark.parametrize(
    ("given_", "complaint"),
    [
        ({"deadlin": 3.0}, "unknown setting 'deadlin'; did you mean 'deadline'"),
        ({"minimum": 1.5}, "setting minimum must be of type int, not 1.5"),
        ({"minimum": True}, "setting minimum must be of type int, not True"),
        ({"poll": 0.0}, "must be above 0: poll = 0.0"),
        ({"deadline": float("nan")}, "must be above 0: deadline = nan"),
    ],
)
def test_settings_are_checked(given_, complaint):
    with pytest.raises(UserError, match=complaint):
        settings(given_)
    assert settings({"deadline": 30}) == Settings(deadline=30.0)


def test_flowers_own_overhead_stands_beside_the_ledger(task, tmp_path):
    """All bytes as Flower serialises them = payload + overhead; a hand count of one message."""
    grid, how = federation(task, overrides("fas", 2), 4, tmp_path / "run")
    run = play(task, grid, how)
    timing, ledger = lines(run.folder / runs.TIMING), lines(run.folder / runs.LEDGER)
    down = [server_size(m) for m in grid.sent if m.metadata.group_id == "1"]
    assert timing[1]["overhead_down"] == sum(down) - sum(ledger[1]["down"].values())
    assert 0 < timing[1]["overhead_up"] < 5000
    assert timing[0]["overhead_down"] > timing[1]["overhead_down"]  # greetings


def server_size(message):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(thing.deflate()) for thing in get_all_nested_objects(message).values())


# --- projects, the command line ---


def test_a_new_project_is_a_whole_flower_app(tmp_path):
    made = project.create(tmp_path / "My App!")
    assert {file.name for file in made} == {
        "client_app.py",
        "experiment.toml",
        "pyproject.toml",
        "server_app.py",
        "task.py",
    }
    about = tomllib.loads((tmp_path / "My App!" / "pyproject.toml").read_text())
    assert about["project"]["name"] == "my-app"
    assert (
        settings(about["tool"]["flwr"]["app"]["config"]) == Settings()
    )  # the file shows the defaults
    experiment = config.read_experiment(str(tmp_path / "My App!" / "experiment.toml"))
    assert (experiment.clients.count, experiment.clients.model) == (4, "task:network")
    with pytest.raises(UserError, match="exists and is not empty"):
        project.create(tmp_path / "My App!")


def test_a_new_project_names_every_setting_with_its_default_and_what_it_is(tmp_path):
    project.create(tmp_path / "app")
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    there = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    known = {name.replace("_", "-"): value for name, value in asdict(Settings()).items()}
    assert there == known and list(there) == list(known)
    told = dict(re.findall(r"^([\w-]+) = .*?  # (.+)$", text, re.MULTILINE))
    rows = re.findall(r"^    (\w+): \w+ = .*?  # (.+)$", inspect.getsource(Settings), re.MULTILINE)
    about = {name.replace("_", "-"): line for name, line in rows}
    assert about.keys() == known.keys()
    in_other_words = {"experiment", "overrides", "folder", "seats"}
    assert [key for key in known if told[key] != about[key] and key not in in_other_words] == []


def test_mistakes_of_up_are_said_before_anything_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fedsift("flower", "new", "app").exit_code == 0
    for words, complaint in (
        (["nowhere"], "has no experiment.toml; make a project with: fedsift flower new nowhere"),
        (["app", "algorithm=gossip"], "gossip has no server, so it cannot run on Flower"),
        (["app", "attack=wrong", "attackers=0.5"], "attack is for simulations"),
        (["app", "clients.models={mlp=3}"], "clients.models names 3 clients, but there are 4"),
        (["app", "sampler=entropi"], "unknown sampler 'entropi'"),
        (["app", "--resume"], "--resume needs --out"),
        (["app", "--out", "app"], "app exists; add --resume to resume it"),
    ):
        done = fedsift("flower", "up", *words)
        assert (done.exit_code, done.stdout) == (2, "") and complaint in done.stderr
    assert not (tmp_path / "runs").exists()


class StoppedDeployment:
    """Ctrl-C comes once the run folder is there."""

    def __init__(self, home, simulation, database):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def node(self, settings):
        pass

    def submit(self, folder, how, count):
        Path(how["folder"]).mkdir(parents=True)
        raise KeyboardInterrupt


@pytest.mark.parametrize("words", [["clients=2", "cohort=2"], ["clients=3", "--nodes", "2"]])
def test_the_command_that_resumes_names_each_setting_once(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_deployment, "Deployment", StoppedDeployment)
    project.create(Path("app"))
    out = tmp_path / "mine"
    again = ["fedsift", "flower", "up", "app", "clients=2", "cohort=2"]
    again += ["--resume", "--out", str(out)]
    for words_now in ([*words, "--out", "mine"], again[4:]):
        done = fedsift("flower", "up", "app", *words_now)
        assert done.exit_code == 130
        assert shlex.split(done.stderr.splitlines()[-1]) == again
        out.rmdir()


class PlayedDeployment(StoppedDeployment):
    """The run is played at once, in this process."""

    def submit(self, folder, how, count):
        straight(Path(how["folder"]), tiny(rounds=5))
        return "17"


def test_up_prints_what_the_run_came_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_deployment, "Deployment", PlayedDeployment)
    project.create(Path("app"))
    done = fedsift("flower", "up", "app", "--out", "mine", "--json")
    assert done.exit_code == 0, (done.stderr, done.exception)
    told = read_printed("flower up", done.stdout)
    assert (told["run"], told["rounds"]) == (str(tmp_path / "mine"), 5)
    sent = [sum(row["up"].values()) for row in lines(tmp_path / "mine" / runs.LEDGER)]
    assert told["uplink_bytes"] == sum(sent) > 0


@pytest.mark.parametrize(("written", "waits"), [("60.0", 80.0), ("300.0", 300.0)])
def test_up_waits_as_long_as_the_project_says_and_ten_seconds_a_node(
    written, waits, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asked = []

    class Asked(StoppedDeployment):
        def submit(self, folder, how, count):
            asked.append(how["wait"])
            super().submit(folder, how, count)

    monkeypatch.setattr(local_deployment, "Deployment", Asked)
    project.create(Path("app"))
    about = Path("app/pyproject.toml")
    about.write_text(about.read_text().replace("wait = 60.0", f"wait = {written}"))
    assert fedsift("flower", "up", "app", "--nodes", "2").exit_code == 130
    assert asked == [waits]


PICK = """

def pick(probs, label_counts, budget, draws):
    import numpy as np

    return np.arange(budget)
"""


def test_a_plug_in_must_be_in_the_project(tmp_path):
    task = a_task(tmp_path / "app")
    with pytest.raises(
        UserError,
        match=r"algorithm\.sampler names mine:pick, .* the project's own task\.py; "
        "move it there and write task:pick$",
    ):
        make_site(task, Settings(overrides=f"{TINY} sampler=mine:pick"), {})


def test_up_finds_the_plug_ins_of_the_project_and_refuses_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(local_deployment, "Deployment", StoppedDeployment)
    project.create(Path("app"))
    Path("mine.py").write_text(PICK)
    refused = fedsift("flower", "up", "app", "sampler=mine:pick")
    assert refused.exit_code == 2 and "move it there and write task:pick" in refused.stderr
    Path("app/task.py").write_text(Path("app/task.py").read_text() + PICK)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "task", raising=False)
        started = fedsift("flower", "up", "app", "sampler=task:pick")
        sys.modules.pop("task", None)
    assert started.exit_code == 130, started.stderr


def test_a_deployment_stops_what_it_started_and_theirs_and_nothing_else(tmp_path):
    """A process that detaches itself and rubs out its environment is stopped all the same; one of
    ours is not touched.
    """
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    deployment = local_deployment.Deployment(tmp_path)
    hidden = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = (
        f"import subprocess; subprocess.Popen({hidden!r}, env={{}}, start_new_session=True).wait()"
    )
    deployment._start("one", sys.executable, "-c", child)
    while len(deployment.alive()) < 2:
        time.sleep(0.02)
    started = deployment.alive()
    deployment.stop()
    assert not deployment.alive() and not started & processes.processes().keys()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_simulation_without_ray_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    fedsift("flower", "new", "app")
    done = fedsift("flower", "up", "app", "--simulation")
    assert done.exit_code == 2 and "install it with: pip install 'flwr[simulation]'" in done.stderr


# --- messages ---


@given(st.integers(-1, 2**31), st.integers(0, 2**31), st.binary(max_size=300))
def test_messages_arrive_as_they_were_sent(last, more, payload):
    call = Call("ab" * 16, last + 1 + more, last, payload)
    assert messages.read(messages.write(call), Call) == call
    assert messages.read(messages.write(Refusal("no", True)), Answer, Refusal) == Refusal(
        "no", True
    )


NAMES = ["kind", "x", *{name for one in FLOWER for name in one.__dataclass_fields__}]
texts = st.one_of(st.text(max_size=5), st.sampled_from([type(one).__name__ for one in FLOWER]))
numbers = st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**64 - 1))
values = st.one_of(numbers, st.floats(), texts, st.binary(max_size=5), st.booleans())


@given(
    st.sampled_from(FLOWER),
    st.dictionaries(st.sampled_from(sorted(NAMES)), st.one_of(values, st.lists(numbers))),
    st.sets(st.sampled_from(sorted(NAMES))),
    st.sampled_from([None, b"", b"abc"]),
)
def test_whatever_arrives_is_a_message_or_a_wire_error(honest, changed, left_out, payload):
    """Some values are changed or added, some left out; a payload comes or does not."""
    records = messages.write(honest)
    sent = {
        name: value
        for name, value in (dict(records.config_records["fedsift"]) | changed).items()
        if name not in left_out
    }
    records["fedsift"] = ConfigRecord(sent)
    if payload is not None:
        records["payload"] = ArrayRecord({"bytes": Array("uint8", (3,), "bytes", payload)})
    try:
        found = messages.read(records, *map(type, FLOWER))
    except WireError:
        return
    check_message(found)
    carried = {"kind": type(found).__name__} | asdict(found)
    assert ("payload" in carried) == ("payload" in records)
    carried.pop("payload", None)
    assert carried == sent


@pytest.mark.parametrize("honest", FLOWER, ids=lambda one: type(one).__name__)
def test_every_value_is_needed_once_and_has_its_type(honest):
    values = dict(messages.write(honest).config_records["fedsift"])
    wrong = [values | {name: odd} for name in values for odd in (1, 0.5, True, "x", b"x", [], [1])]
    wrong = [odd for odd in wrong if list(map(type, odd.values())) != types_of(values)]
    wrong += [{key: values[key] for key in values if key != name} for name in values]
    wrong += [values | {name: b"x"} for name in ("payload", "x")]
    for odd in wrong:
        records = messages.write(honest)
        records["fedsift"] = ConfigRecord(odd)
        with pytest.raises(WireError):
            messages.read(records, type(honest))
    for record in (ConfigRecord({"x": 1}), MetricRecord({"x": 1}), ArrayRecord({})):
        for place in ("more", "payload", "fedsift"):
            records = messages.write(honest)
            records[place] = record
            with pytest.raises(WireError):
                messages.read(records, type(honest))
    assert messages.read(messages.write(honest), type(honest)) == honest


def types_of(values):
    return [type(value) for value in values.values()]


@pytest.mark.parametrize("run", ["../../etc", "AB" * 16, "ab" * 15, "ab" * 16 + "\n", ""])
def test_a_run_is_named_so_that_its_name_can_be_a_folder(run):
    """It becomes one on the node's disk."""
    with pytest.raises(WireError, match="impossible run or round"):
        messages.read(messages.write(Call(run, 1, 0, b"")), Call)


@pytest.mark.parametrize("why", ["a\nfedsift: round 1 done", "x" * 501, "\x1b[31m"])
def test_a_refusal_cannot_forge_the_log(why):
    with pytest.raises(WireError, match="of many lines or without end"):
        messages.read(messages.write(Refusal(why)), Refusal)
    assert messages.read(messages.write(Refusal(messages.one_line(why))), Refusal).why.isprintable()


def test_a_call_for_a_round_beyond_the_end_is_refused(task, tmp_path):
    grid, _ = federation(task, overrides("fas", 2), 1, tmp_path)
    (node,) = grid.nodes.values()
    message = Message(
        messages.write(Call("ab" * 16, 2, -1, b"")), dst_node_id=7, message_type=messages.TURN
    )
    assert messages.read(node(message).content, Refusal).why == "round 2 of an experiment of 2"


def test_without_flower_the_error_names_the_extra():
    script = "import sys; sys.modules['flwr'] = None; import fedsift.flower"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "install it with: pip install 'fedsift[flower]'" in done.stderr


def test_the_apps_are_there():
    from fedsift import flower

    assert callable(flower.client_app) and callable(flower.server_app)
    with pytest.raises(AttributeError, match="no attribute 'app'"):
        _ = flower.app
