"""systemd units, Dockerfile and compose files: what they start exists and is asked for rightly.
Docker itself is run by test_containers.py.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedsift.cli import app as fedsift_app
from fedsift.flower import project, units
from fedsift.types import UserError
from tests.helpers.cli import fedsift

STATE = "/var/lib/fedsift"
UNITS = ["fedsift-node", "fedsift-proxy", "fedsift-run", "fedsift-superlink"]
ENVIRONMENT = ["FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """What `fedsift flower units` writes, by name."""
    monkeypatch.chdir(tmp_path)
    project.create(Path("app"))
    done = fedsift("flower", "units", "app")
    assert done.exit_code == 0, done.stderr
    return {path.name: path.read_text() for path in Path("app/deploy").iterdir()}


def read_unit(text):
    """Values by key, in lists, as a key may stand twice."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        if found := re.match(r"(\w+)=(.*)", line):
            values.setdefault(found[1], []).append(found[2])
    return values


def check_command(words):
    """By the parser of the program itself: an unknown option would exit."""
    program, *rest = words
    if Path(program).name == "flower-superlink":
        return _parse_args_run_superlink().parse_args(rest)
    if Path(program).name == "flower-supernode":
        return _parse_args_run_supernode().parse_args(rest)
    if Path(program).name == "fedsift":
        verbs = typer.main.get_command(fedsift_app)
        assert rest[0] == "flower"
        verb = verbs.commands["flower"].commands[rest[1]]  # type: ignore[attr-defined]
        return verb.make_context(rest[1], list(rest[2:])).params
    assert Path(program).name == "nginx"
    return rest


def test_all_files_are_written_without_gaps(files):
    others = {"Dockerfile", "compose.server.yml", "compose.node.yml", "node.env", "node.toml"}
    assert files.keys() == {f"{unit}.service" for unit in UNITS} | others
    assert not [name for name, text in files.items() if re.search(r"@[A-Z]+@|<[A-Z_]+>", text)]


@pytest.mark.parametrize("name", UNITS)
def test_units_run_as_nobody_special_and_say_nothing_to_others(name, files):
    unit = read_unit(files[f"{name}.service"])
    assert unit["User"] == ["fedsift"] and unit["ProtectSystem"] == ["strict"]
    assert unit["ReadWritePaths"] == [STATE] and unit["NoNewPrivileges"] == ["yes"]
    said = " ".join(unit["Environment"]).split()
    assert set(ENVIRONMENT) <= set(said) and f"FLWR_HOME={STATE}/flwr" in said
    assert "PATH=/opt/fedsift/bin:/usr/bin:/bin" in said  # SuperLink and SuperNode start others
    again = "on-failure" if name == "fedsift-run" else "always"
    assert unit["Restart"] == [again]
    limit = ["20G"] if name == "fedsift-superlink" else None  # what admitted nodes can make it keep
    assert unit.get("LimitFSIZE") == limit
    for command in unit["ExecStart"] + [line[1:] for line in unit.get("ExecStartPre", [])]:
        check_command(shlex.split(command))


def test_the_superlink_listens_on_loopback_and_remembers(files):
    (command,) = read_unit(files["fedsift-superlink.service"])["ExecStart"]
    asked = check_command(shlex.split(command))
    assert (asked.host, asked.port, asked.enable_supernode_auth) == ("127.0.0.1", 8000, True)
    assert asked.database == f"{STATE}/certs/superlink.db"


def test_a_node_never_gives_up_and_its_settings_are_files(files):
    (command,) = read_unit(files["fedsift-node.service"])["ExecStart"]
    env = dict(line.split("=", 1) for line in files["node.env"].splitlines() if line[:1] == "F")
    for name, value in env.items():
        command = command.replace(f"${{{name}}}", value)
    asked = check_command(shlex.split(command))
    assert asked.superlink == "server.example:8443" and asked.max_retries is None
    assert asked.node_config == f"{STATE}/node.toml"
    settings = Path("app/deploy/node.toml")
    assert parse_config_args([str(settings)]) == tomllib.loads(settings.read_text())
    assert tomllib.loads(settings.read_text())["partition-id"] == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_units(tmp_path):
    programs = tmp_path / "programs" / "bin"
    programs.mkdir(parents=True)
    for name in ("fedsift", "flower-superlink", "flower-supernode"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    project.create(tmp_path / "app")
    made = units.write_units(tmp_path / "app", str(programs.parent), str(tmp_path), "root")
    paths = [str(path) for path in made if path.suffix == ".service"]
    if not Path("/usr/sbin/nginx").exists():
        paths = [path for path in paths if "proxy" not in path]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "fedsift-" in line]
    assert not ours, done.stderr


def test_compose_files_start_the_same_with_as_few_rights(files):
    server = yaml.safe_load(files["compose.server.yml"])["services"]
    node = yaml.safe_load(files["compose.node.yml"])["services"]
    assert server.keys() == {"network", "superlink", "proxy", "run"} and node.keys() == {"node"}
    for service in (*server.values(), *node.values()):
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    network = server.pop("network")  # that all share; it does nothing, so it does not end
    assert network["command"] == ["sleep", "infinity"] and network["ports"] == ["8443:8443"]
    for service in server.values():
        check_command(service["command"])
        assert service["network_mode"] == "service:network" and "ports" not in service
    asked = check_command(server["superlink"]["command"])
    assert (asked.host, asked.database) == ("127.0.0.1", f"{STATE}/certs/superlink.db")
    shell = node["node"]["command"][2].replace("$$", "$").removeprefix("exec ")
    assert check_command(shlex.split(shell)).node_config == "$FEDSIFT_NODE_CONFIG"


def test_the_dockerfile_ends_as_a_user_without_rights(files):
    lines = files["Dockerfile"].replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    words = [word for word, _ in steps]
    assert words[0] == "FROM" and set(words) <= {
        *("FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD")
    }
    assert words.index("USER") > max(n for n, word in enumerate(words) if word in ("RUN", "COPY"))
    assert dict(steps)["USER"] == "fedsift"
    for setting in ENVIRONMENT:
        assert setting in dict(steps)["ENV"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (("bin", "/state", "me"), "must be an absolute path"),
        (("/bin", "/st ate", "me"), "must be an absolute path"),
        (("/bin", "/state\nExecStart=x", "me"), "must be an absolute path"),
        (("/bin", "/state", "me\nUser=root"), "is no name of a user"),
    ],
)
def test_what_would_break_a_unit_is_refused(values, complaint, tmp_path):
    project.create(tmp_path / "app")
    with pytest.raises(UserError, match=complaint):
        units.write_units(tmp_path / "app", *values)
    assert not (tmp_path / "app" / "deploy").exists()
