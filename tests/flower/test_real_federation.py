"""A real Flower federation of processes on loopback: a few runs that show what the tests in one
process cannot.
"""

import contextlib
import csv
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import fedsift
from fedsift import runs
from fedsift.algorithms.audits import SECRET_BYTES, derive_secret
from fedsift.flower import certificates, keys, local_deployment, processes, project
from tests.helpers.pages import find_command, read_words
from tests.helpers.real_flower import (
    PATIENCE,
    TINY,
    checkpoint,
    server_bits,
    simulated,
    until,
)
from tests.helpers.runs import lines, straight

pytestmark = pytest.mark.flower

FOREST, BOOSTING = "RandomForestClassifier", "GradientBoostingClassifier"
MISCHIEF = '''
"""Nodes that misbehave as their settings say."""
import time
from pathlib import Path

import task
from fedsift.flower import client, client_app
from fedsift.flower.messages import Answer

honest_turn, honest_site = client.take_turn, client.make_site


def take_turn(here, call, context):
    mischief = context.node_config.get("mischief")
    if mischief == "raise":
        raise RuntimeError("patient 17")
    if mischief == "malformed":
        return Answer(call.round, False, b"nonsense")
    if mischief == "huge":
        return Answer(call.round, False, bytes(60_000_000))
    if mischief in ("hang", "die"):
        Path(context.node_config["sign"]).touch()
        time.sleep(300)
    return honest_turn(here, call, context)


def make_site(task, how, node):
    if node.get("mischief") == "version":
        client.PROTOCOL = 1
    return honest_site(task, how, node)


client.take_turn, client.make_site = take_turn, make_site
app = client_app(task)
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / "app"
    project.create(folder)
    (folder / "client_app.py").write_text(MISCHIEF)
    task = (folder / "task.py").read_text()
    honest = "config.build_task(experiment).public"
    other = f'{honest}[[0, 2, 1]] if node.get("mischief") == "public" else {honest}'
    assert task.count(f"{honest}\n") == 1
    task = task.replace(f"{honest}\n", f"{other}\n")
    (folder / "task.py").write_text(task)
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A SuperLink and three SuperNodes, each with a file of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIFT_DATA", str(home / "data"))  # where the server keeps its start
        deployment = local_deployment.Deployment(home)
    write_hospitals(home)
    with deployment:
        for client in range(3):
            add_hospital(deployment, client)
        yield deployment
    assert not deployment.alive()


@pytest.fixture(scope="module")
def four(three):
    """And a fourth. It joins late: every message to a node is a process."""
    add_hospital(three, 3)
    return three


def add_hospital(deployment, client):
    home = deployment.home
    own = {"memory": str(home / "memory"), "data": str(home / f"hospital-{client}.csv")}
    deployment.node({"partition-id": client} | own)


@pytest.fixture(scope="module")
def pace():
    """Seconds a round has taken here: a deadline must suit the machine."""
    return [15.0]


def submit(deployment, app, folder, overrides, **how):
    return deployment.submit(
        app, {"overrides": overrides, "folder": str(folder), "wait": 120.0, "poll": 0.2} | how
    )


def test_three_nodes_equal_a_simulation_also_when_the_server_is_killed_and_resumed(
    three, app, pace, tmp_path, monkeypatch
):
    """CFD: delta codes both ways and a model at every node, a memory of labels and a start made at
    the server, so everything there is to lose would be missed.
    """
    parts = "start=simclr(epochs=3) aggregator=memory(era(0.1))"
    overrides = f"{TINY} clients=3 cohort=3 rounds=2 algorithm=cfd budget=20 {parts}"
    folder = tmp_path / "run"
    submit(three, app, folder, overrides)
    until(lambda: len(lines(folder / runs.TIMING)) == 1)
    time.sleep(3)  # in the middle of the next round: all its messages are on their way
    servers = [
        pid
        for pid in processes.find_marked(three.mark)
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    again = submit(three, app, folder, overrides)
    state = checkpoint(folder, 2)
    assert server_bits(state) == server_bits(
        simulated(app, tmp_path / "simulated", overrides, monkeypatch)
    )
    assert lines(folder / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)
    for here, there in zip(
        lines(folder / runs.METRICS), lines(tmp_path / "simulated" / runs.METRICS), strict=True
    ):
        assert (
            here["accuracies"] == there["accuracies"]
            and here["client_accuracy"] == there["client_accuracy"]
        )
    assert "starts over" not in three.log(again)
    pace += [row["seconds"] for row in lines(folder / runs.TIMING)[1:]]


def test_sift_with_memory_and_start_on_three_nodes_equals_a_simulation(
    three, app, tmp_path, monkeypatch
):
    """Labels of own classes, a memory of labels, replay, EMA, and updates on the way down."""
    parts = "algorithm.bytes=60 algorithm.mode=labels start=simclr(epochs=3)"
    parts += " algorithm.down_codec=updates(1)"
    overrides = f"{TINY} clients=3 cohort=2 rounds=2 algorithm=sift {parts}"
    folder = tmp_path / "run"
    submit(three, app, folder, overrides)
    state = checkpoint(folder, 2)
    there = simulated(app, tmp_path / "simulated", overrides, monkeypatch)
    assert state.server.memory["aggregator"]  # something is remembered
    assert server_bits(state) == server_bits(there)
    assert lines(folder / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)


def test_trust_with_audits_on_three_nodes_equals_a_simulation_with_its_secret(
    three, app, tmp_path, monkeypatch
):
    """The server draws its secret from chance; the checkpoint has it."""
    parts = "aggregator=trust(memory(era(0.1))) algorithm.audit=8"
    overrides = f"{TINY} clients=3 cohort=3 rounds=2 algorithm=fas {parts}"
    folder = tmp_path / "run"
    submit(three, app, folder, overrides)
    state = checkpoint(folder, 2)
    secret = state.server.memory["secret"].tobytes()
    assert len(secret) == SECRET_BYTES and secret != derive_secret(0)
    there = simulated(app, tmp_path / "simulated", overrides, monkeypatch, secret)
    assert state.server.memory["aggregator"] and server_bits(state) == server_bits(there)
    assert lines(folder / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)
    for here, there in zip(
        lines(folder / runs.METRICS), lines(tmp_path / "simulated" / runs.METRICS), strict=True
    ):
        assert all(here[name] == there[name] for name in ("accuracies", "trust", "voteless"))
    # up: 8 answers of 10 classes in 27 bits
    # down: how many are asked about, which 8 of 30 in 23 bits (30 over 8 is 5,852,925), a checksum
    for way, more in (("up", 4), ("down", 1 + 3 + 4)):
        first, second = [set(row[way].values()) for row in lines(folder / runs.LEDGER)]
        assert second == {size + more for size in first}


def write_hospitals(folder):
    """The breast-cancer table: 30 rows for each of four, 80 public ones and 100 for the test."""
    data = fedsift.load_dataset("breast-cancer")
    assert data.names is not None
    columns = [f"measure {number}" for number in range(data.x.shape[1])]
    rows = iter(np.random.default_rng(0).permutation(len(data.x)))
    for name, parts in {
        **{f"hospital-{client}": {"train": 30} for client in range(4)},
        "shared": {"public": 80, "test": 100},
    }.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*columns, "tumour", "part"])
            for part, count in parts.items():
                for row in itertools.islice(rows, count):
                    label = "" if part == "public" else data.names[data.y[row]]
                    out.writerow([*data.x[row].tolist(), label, part])


HOSPITALS = """
import fedsift

CLASSES = ("benign", "malignant")


def load(path):
    return fedsift.load_dataset(f"csv:{path}", target="tumour", split="part", classes=CLASSES)


def public(experiment, node):
    return load(SHARED)


def test(experiment, node):
    return load(SHARED)


def private(experiment, node):
    return load(node["data"])
"""


def test_four_nodes_with_their_own_files_and_models_equal_a_simulation(four, tmp_path):
    """Two networks, a random forest and gradient boosting; each node reads the file it was started
    with, and keeps its own model.
    """
    pytest.importorskip("sklearn")
    app, folder, other = (tmp_path / name for name in ("app", "run", "simulated"))
    project.create(app)
    (app / "task.py").write_text(HOSPITALS.replace("SHARED", repr(str(four.home / "shared.csv"))))
    trees = [f"sklearn:{name}(n_estimators=5)" for name in (FOREST, BOOSTING)]
    models = ",".join(f'"{name}"=1' for name in ("mlp", "mlp(width=0.5)", *trees))
    words = ["rounds=2", "clients=4", "cohort=4", "device=cpu", "algorithm=fas", "budget=30"]
    words += ["algorithm.download=soft-labels", f"clients.models={{{models}}}", "local.lr=0.01"]
    submit(four, app, folder, shlex.join(words))
    state = checkpoint(folder, 2)
    words += [f"data.name=csv:{four.home}/shared.csv", f"data.clients={four.home}/hospital-*.csv"]
    words += ["data.target=tumour", "data.split=part", "data.classes=benign,malignant"]
    straight(other, fedsift.read_experiment("digits-fas", words))
    assert server_bits(state) == server_bits(checkpoint(other, 2))
    ledger = lines(folder / runs.LEDGER)
    assert ledger == lines(other / runs.LEDGER)
    assert all(set(row["up"]) == set("0123") and "missing" not in row for row in ledger)
    here, there = (
        [
            [row[name] for name in ("accuracies", "client_accuracy")]
            for row in lines(f / "metrics.jsonl")
        ]
        for f in (folder, other)
    )
    assert here == there and min(here[-1][0].values()) > 0.8


def test_a_round_completes_whoever_fails_in_it(four, app, pace, tmp_path):
    """Of eleven clients four are honest; the ledger and the log name the other seven."""
    signs = {name: tmp_path / name for name in ("hang", "die")}
    nodes = {
        client: four.node(
            {"partition-id": client, "mischief": name, "sign": str(signs.get(name, tmp_path))}
        )
        for client, name in enumerate(
            ("raise", "hang", "die", "malformed", "public", "version", "huge"), 4
        )
    }
    overrides = f"{TINY} clients=11 cohort=11 rounds=1 algorithm=fas"
    run = submit(
        four, app, tmp_path / "run", overrides, deadline=max(25.0, 4 * pace[-1]), minimum=4
    )
    until(lambda: all(sign.exists() for sign in signs.values()))
    os.killpg(nodes[6].pid, signal.SIGKILL)
    until(lambda: lines(tmp_path / "run" / runs.TIMING))
    (row,) = lines(tmp_path / "run" / runs.LEDGER)
    assert set(row["up"]) == set("0123")
    why = row["missing"]
    assert re.match(r"RuntimeError in take_turn \(client_app.py, line \d+\); the node's", why["4"])
    assert why["5"].startswith("no reply within") and re.match(
        "no reply within|Flower error", why["6"]
    )
    assert why["7"] == "its message is refused: truncated message: 8 bytes, a header alone has 13"
    assert why["8"].startswith("its public set is not the server's")
    assert why["9"].startswith("it has wire protocol 1 (fedsift ")
    assert re.fullmatch(r"its reply has more than \d+ bytes", why["10"])
    assert lines(tmp_path / "run" / runs.METRICS)[0]["missing"] == why
    log = four.log(run)
    for client in range(4, 11):
        assert f"round 0 is without client {client}: " in log
    assert "is refused: its public set is not the server's" in log
    assert "is refused: it has wire protocol 1" in log
    assert "patient 17" not in log
    kept = (tmp_path / "run" / "server.log").read_text()
    assert "is refused: its public set is not the server's" in kept and "\x1b" not in kept
    told = "fedsift: the server refuses this node: its public set is not the server's"
    until(lambda: told in (four.home / "node-8.log").read_text())


def test_tls_and_authentication_let_registered_nodes_in_and_nobody_else(app, tmp_path, monkeypatch):
    made = certificates.create(tmp_path / "certificates")
    known, unknown = tmp_path / "known.key", tmp_path / "unknown.key"
    for key in (known, unknown):
        keys.create_key(key)
    with local_deployment.Deployment(tmp_path / "home", made) as deployment:
        deployment.register(keys.public_path(known))
        node = deployment.node({"partition-id": 0}, known)
        strangers = {
            "unregistered key": deployment.node({"partition-id": 0}, unknown),
            "no key": deployment.node({"partition-id": 0}),
            "plaintext": deployment.node({"partition-id": 0}, trust=False, retries=3),
        }
        overrides = f"{TINY} clients=1 cohort=1 rounds=1 algorithm=fas"
        submit(deployment, app, tmp_path / "run", overrides)
        state = checkpoint(tmp_path / "run", 1)
        assert server_bits(state) == server_bits(
            simulated(app, tmp_path / "simulated", overrides, monkeypatch)
        )
        assert node.poll() is None
        refused = {name: until(lambda node=node: node.poll()) for name, node in strangers.items()}
        assert all(refused.values()), refused
    assert not deployment.alive()


def test_a_node_that_was_refused_takes_part_once_it_is_fixed(app, tmp_path):
    """With the same key, and so with the same name at Flower."""
    made = certificates.create(tmp_path / "certificates")
    own = [tmp_path / f"{node}.key" for node in range(2)]
    with local_deployment.Deployment(tmp_path / "home", made) as deployment:
        for key in own:
            keys.create_key(key)
            deployment.register(keys.public_path(key))
        deployment.node({"partition-id": 0}, own[0])
        wrong = deployment.node({"partition-id": 1, "mischief": "public"}, own[1])
        overrides = f"{TINY} clients=2 cohort=2 rounds=30 algorithm=fas"
        ledger = tmp_path / "run" / runs.LEDGER
        submit(deployment, app, tmp_path / "run", overrides)
        until(lambda: lines(ledger))
        missing = lines(ledger)[0]["missing"]
        assert missing["1"].startswith("its public set is not the server's: other samples")
        wrong.send_signal(signal.SIGTERM)
        wrong.wait(PATIENCE)
        deployment.node({"partition-id": 1}, own[1])
        until(lambda: "1" in lines(ledger)[-1]["up"])
        row = lines(ledger)[-1]
        assert set(row["up"]) == {"0", "1"} and "missing" not in row
    assert not deployment.alive()


def test_up_ends_with_its_terminal_and_goes_on_also_after_a_dead_superlink(tmp_path, monkeypatch):
    mark = uuid.uuid4().hex
    environment = os.environ | {"FEDSIFT_TEST": mark}

    def left():
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"FEDSIFT_TEST={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield entry.name

    fedsift = [sys.executable, "-m", "fedsift", "flower"]
    subprocess.run(
        [*fedsift, "new", "app"], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    about = tmp_path / "app" / "pyproject.toml"
    slow = about.read_text().replace("wait = 60.0", f"wait = {PATIENCE:.1f}")  # machines are
    about.write_text(slow)
    folder = tmp_path / "run"
    models = 'clients.models={"task:network"=1,"mlp"=1}'  # with quotes
    words = read_words(find_command("docs/deploy.md", "fedsift flower up app"))
    command = [
        *fedsift,
        *words[2:],
        *TINY.split(),
        "rounds=2",
        models,
        "--nodes",
        "2",
        "--out",
        str(folder),
        "--track",
        "csv",
    ]
    first = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with first:
        until(lambda: (folder / runs.CHECKPOINT).is_file() or first.poll() is not None)
        first.send_signal(signal.SIGHUP)  # as a closed terminal does
        _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 129, said.decode()
    assert not list(left())
    go_on = shlex.split(said.decode().split("Resume with:\n")[1].strip().splitlines()[0])
    assert go_on[:3] == ["fedsift", "flower", "up"]
    with (
        open(tmp_path / "said", "w") as said_file,
        subprocess.Popen(
            [*fedsift, *go_on[2:], "--supervise"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said_file,
            text=True,
        ) as again,
    ):
        until(lambda: "is submitted at round 2 of 2" in (tmp_path / "said").read_text())
        for pid in left():
            with contextlib.suppress(OSError):
                if b"flower-superlink" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
        shown, _ = again.communicate(timeout=PATIENCE)
    told = (tmp_path / "said").read_text()
    assert again.returncode == 0, told
    assert "test accuracy" in shown and "run folder" in shown and "round 2/2" in told
    assert "the SuperLink ended (exit code -9)" in told and "trying again in 5 s" in told
    assert not list(left())
    check_tracked(folder)
    overrides = f"{TINY} rounds=2 clients=2 cohort=2 {shlex.quote(models)}"
    state = simulated(tmp_path / "app", tmp_path / "simulated", overrides, monkeypatch)
    assert server_bits(checkpoint(folder, 2)) == server_bits(state)


def check_tracked(folder):
    """A row for each of the two rounds, though two commands told them; by hand from the run."""
    with open(folder / "figures.csv", newline="") as file:
        told = list(csv.DictReader(file))
    assert [row["round"] for row in told] == ["0", "1"]
    kept, so_far = [lines(folder / name) for name in (runs.METRICS, runs.LEDGER, runs.TIMING)], 0
    for row, metrics, sent, timing in zip(told, *kept, strict=True):
        up, down = (sum(sent[way].values()) for way in ("up", "down"))
        so_far += up
        wanted = {"accuracy": metrics["accuracy"], "seconds": timing["seconds"]}
        wanted |= {"uplink_bytes": up, "downlink_bytes": down, "uplink_bytes_so_far": so_far}
        wanted |= {"clients": len(sent["up"]), "missing": len(sent.get("missing", {}))}
        assert {name: float(row[name]) for name in wanted} == wanted
        assert row["disagreement"] == ""  # it needs all models in one place


def test_up_uses_flowers_simulation_where_ray_is_there(tmp_path, monkeypatch):
    pytest.importorskip(
        "ray",
        reason="Flower's simulation needs ray (225 MB), which is not among the tested packages",
    )
    project.create(tmp_path / "app")
    overrides = f"{TINY} rounds=2 algorithm=cfd budget=20"  # memory in the state of the run
    command = [
        sys.executable,
        "-m",
        "fedsift",
        "flower",
        "up",
        "app",
        *overrides.split(),
        "--simulation",
    ]
    subprocess.run([*command, "--out", "run"], cwd=tmp_path, check=True, capture_output=True)
    left = [entry for entry in Path("/proc").glob("[0-9]*") if lives_in(entry, tmp_path)]
    assert not left
    state = simulated(tmp_path / "app", tmp_path / "simulated", overrides, monkeypatch)
    assert server_bits(checkpoint(tmp_path / "run", 2)) == server_bits(state)


def lives_in(process, folder):
    """Whether a process was started in this folder; Ray's rub out their environment."""
    with contextlib.suppress(OSError):
        return str(folder) in str((process / "cwd").readlink())
    return False
