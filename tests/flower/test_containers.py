"""The image and the compose files, where a Docker daemon answers: server, node and one round."""

import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from fedsift import runs
from fedsift.flower import project, units
from fedsift.flower.local_deployment import free_port
from tests.helpers.real_flower import TINY

pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]
STATE = "/var/lib/fedsift"
DOWNLOADS = 1800  # seconds for the base image and torch
HEALTH = f"""
from pathlib import Path
from fedsift.flower.superlink import SuperLink

link = SuperLink("network:8443", Path("/tmp"), Path("{STATE}/certs/ca.crt"))
raise SystemExit(not link.is_healthy())
"""


class Compose:
    """Server and node as one project of Docker's: `network` is then the server's name."""

    def __init__(self, folder: Path) -> None:
        name = f"fedsift-test-{uuid.uuid4().hex[:8]}"
        self.folder, self.image = folder, name
        for file in ("compose.server.yml", "compose.node.yml"):
            text = (folder / file).read_text().replace("image: fedsift", f"image: {name}")
            text = text.replace('"8443:8443"', f'"127.0.0.1:{free_port()}:8443"')
            (folder / file).write_text(text)
        self.words = ["docker", "compose", "--project-name", name]
        self.words += ["-f", "compose.server.yml", "-f", "compose.node.yml"]

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.words, *words]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=DOWNLOADS
        )

    def do(self, *words: str) -> str:
        done = self.ask(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def in_container(self, *words: str) -> str:
        return self.do("run", "--rm", "--no-deps", "-T", "network", *words)

    def end(self) -> None:
        self.ask("down", "--timeout", "10", "--remove-orphans")
        subprocess.run(["docker", "image", "rm", self.image], capture_output=True, check=False)


@pytest.fixture
def compose(tmp_path):
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        asked = None
    if asked is None or asked.returncode:
        pytest.skip("no Docker daemon answers `docker info`")
    app = tmp_path / "app"
    project.create(app)
    units.write_units(app, "/opt/fedsift", STATE, "fedsift")
    settings = (app / "pyproject.toml").read_text()
    mine = f'overrides = "{TINY} clients=1 cohort=1 rounds=1"'
    assert settings.count('overrides = ""') == 1
    (app / "pyproject.toml").write_text(settings.replace('overrides = ""', mine))
    made = Compose(app / "deploy")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", made.folder, ROOT], check=True, capture_output=True)
    shutil.copy(ROOT / "constraints.txt", made.folder)
    state = made.folder / "state"
    state.mkdir()
    state.chmod(0o777)  # an operator gives it to user 10001, which needs root
    shutil.copytree(app, state / "app", ignore=shutil.ignore_patterns("deploy"))
    shutil.copy(made.folder / "node.toml", state)
    environment = (made.folder / "node.env").read_text()
    assert "server.example:8443" in environment
    environment = environment.replace("server.example:8443", "network:8443")
    (made.folder / "node.env").write_text(environment)
    yield made
    made.end()


def test_a_server_and_a_node_in_containers_play_a_round(compose):
    compose.do("build")
    assert compose.in_container("id", "-u").strip() == "10001"
    certs = f"{STATE}/certs"
    compose.in_container("fedsift", "flower", "certs", certs, "--nodes", "1", "--host", "network")
    compose.in_container("cp", f"{certs}/ca.crt", f"{STATE}/ca.crt")
    compose.in_container("mkdir", "-m", "700", f"{STATE}/memory")
    compose.in_container("fedsift", "flower", "key", f"{STATE}/node.key")
    compose.do("up", "--detach", "network", "superlink", "proxy")
    end = time.monotonic() + 300
    while compose.ask("exec", "-T", "proxy", "python", "-c", HEALTH).returncode:
        assert time.monotonic() < end, compose.ask("logs").stdout
        time.sleep(1)
    admit = ("fedsift", "flower", "admit", certs, "0", f"{STATE}/node.key.pub")
    compose.do("exec", "-T", "proxy", *admit)
    compose.do("up", "--detach", "node")
    table = compose.do("run", "--rm", "-T", "run")
    assert "test accuracy" in table
    (row,) = runs.load_run(compose.folder / "state" / "runs" / "app").ledger
    assert set(row.up) == {0} and not row.missing
