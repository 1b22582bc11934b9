"""`fedsift flower check`: what it finds on a node in order, and on others."""

import socket
import ssl
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedsift.flower import certificates, keys, project
from fedsift.flower.node_check import Finding, judge_clock, look_at_server
from tests.helpers.cli import fedsift
from tests.helpers.json_shapes import read_printed

NODE = "partition-id=0"
PUBLIC = "config.build_task(experiment).public"
PRIVATE = 'config.build_clients(experiment)[node["partition-id"]].data'


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A new project; its task is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "task", raising=False)
    project.create(Path("app"))
    yield Path("app")
    sys.modules.pop("task", None)


def change_task(app, old, new):
    text = (app / "task.py").read_text()
    assert text.count(old) == 1
    (app / "task.py").write_text(text.replace(old, new))


def check(*words, code=0):
    """Findings by what they are about."""
    sys.modules.pop("task", None)
    done = fedsift("flower", "check", "app", *words, "--json")
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    found = [Finding(**values) for values in read_printed("flower check", done.stdout)]
    assert (code == 1) == any(finding.level == "error" for finding in found)
    return {finding.about: finding for finding in found}


def test_a_node_in_order_has_no_error(app):
    found = check("--node-config", NODE)
    assert {finding.level for finding in found.values()} == {"ok"}
    data = ["public set", "private data", "ranges", "model"]
    assert list(found) == ["versions", "project", *data, "memory"]
    assert "app: fas, 5 rounds, 4 clients" in found["project"].text
    counts = found["private data"].text.split("(")[-1].split(")")[0]
    assert sum(map(int, counts.split())) == 200  # of one of four clients
    print_out = fedsift("flower", "check", "app", "--node-config", NODE).stdout.splitlines()
    assert print_out[0].startswith("ok       versions: fedsift ") and len(print_out) == 7


def test_the_fingerprint_of_the_public_set_is_compared(app):
    mine = check("--node-config", NODE)["public set"].text.split(", ")[-1].split()[0]
    assert len(mine) == 64
    assert check("--node-config", NODE, "--expect", mine)["public set"].text.endswith("expected)")
    change_task(app, PUBLIC, f"{PUBLIC}[[1, 0, *range(2, 500)]]")  # another order
    other = check("--node-config", NODE, "--expect", mine, code=1)["public set"]
    assert other.level == "error" and "another order; get the server's file" in other.text


def test_a_server_has_no_private_data_to_look_at(app):
    assert "not looked at" in check()["private data"].text


@pytest.mark.parametrize(
    ("private", "complaint"),
    [
        ('np.load(node["data"])', "KeyError: 'data'"),
        ("(np.zeros((5, 9, 9)), np.zeros(5, int))", "private gives 5 samples of shape"),
        ("(np.zeros((5, 8, 8)), np.full(5, 11))", "at least 12 classes, not 10"),
        ("(np.full((5, 8, 8), np.nan), np.zeros(5, int))", "x has 320 values that are not finite"),
    ],
)
def test_private_data_that_do_not_fit_are_an_error(private, complaint, app):
    change_task(app, PRIVATE, private)
    change_task(app, "from torch import nn", "import numpy as np\nfrom torch import nn")
    found = check("--node-config", NODE, code=1)["private data"]
    assert found.level == "error" and complaint in found.text


def test_private_data_in_another_unit_are_a_warning(app):
    unit = f"own = {PRIVATE}; values = own.samples.store.values.numpy()[own.samples.rows]"
    change_task(app, f"return {PRIVATE}", f"{unit}; return values.astype(float) * 1e4, own.labels")
    found = check("--node-config", NODE)["ranges"]
    assert found.level == "warning" and "another unit or another scaling?" in found.text


def test_values_that_are_not_finite_are_found_in_samples_too(app):
    change_task(app, f"return {PRIVATE}", f"own = {PRIVATE}; own.targets[0] /= 0; return own")
    found = check("--node-config", NODE, code=1)["private data"]
    assert found.text == "some values are not finite; remove those samples"


def test_a_number_out_of_range_and_a_broken_project_are_errors(app):
    assert (
        "N from 0 to 3, not 4"
        in check("--node-config", "partition-id=4", code=1)["private data"].text
    )
    (app / "task.py").write_text("CLASSES = ")
    broken = check("--node-config", NODE, code=1)
    assert broken["project"].text.startswith("SyntaxError") and "model" not in broken
    done = fedsift("flower", "check", "app", "--node-config", 'a="b')
    assert done.exit_code == 2 and "--node-config cannot be read" in done.stderr


def test_overrides_are_those_that_will_be_submitted(app):
    assert "app: fas, 7 rounds" in check("rounds=7")["project"].text
    assert "unknown sampler 'entropi'" in check("sampler=entropi", code=1)["project"].text


def test_the_node_config_may_be_a_file(app):
    Path("node.toml").write_text("partition-id = 4\n")
    assert "not 4" in check("--node-config", "node.toml", code=1)["private data"].text


def test_settings_come_from_the_environment(app, monkeypatch):
    monkeypatch.setenv("FEDSIFT_NODE_CONFIG", "partition-id=4")
    monkeypatch.setenv("FEDSIFT_SERVER", "nowhere")
    found = check(code=1)
    assert "not 4" in found["private data"].text
    assert found["server"].text == "nowhere is no address; write HOST:PORT"


def test_folder_and_key_must_be_for_their_owner_alone(app, tmp_path):
    key = tmp_path / "node.key"
    keys.create_key(key)
    words = ("--node-config", f'{NODE} memory="{tmp_path / "memory"}"', "--key")
    found = check(*words, str(key), code=1)
    assert "install -d -m 700" in found["memory"].text and found["key"].level == "ok"
    (tmp_path / "memory").mkdir(mode=0o755)
    key.chmod(0o640)
    found = check(*words, str(key), code=1)
    assert found["memory"].level == "warning" and "chmod 700" in found["memory"].text
    assert found["key"].level == "error" and "chmod 600" in found["key"].text
    (tmp_path / "memory").chmod(0o700)
    key.chmod(0o600)
    assert {finding.level for finding in check(*words, str(key)).values()} == {"ok"}
    key.write_text("nonsense")
    key.chmod(0o600)
    assert check(*words, str(key), code=1)["key"].level == "error"
    assert "No such file" in check(*words, "nowhere", code=1)["key"].text


# --- the server and its clock ---


@pytest.mark.parametrize(
    ("ahead", "level"),
    [
        (0.0, "ok"),
        (2.4, "ok"),
        (3.0, "warning"),
        (5.0, "error"),
        (-60.0, "warning"),
        (-305, "error"),
    ],
)
def test_the_clock_is_held_against_flowers_limits(ahead, level):
    """5 s ahead and 305 s behind are refused by Flower."""
    assert judge_clock(ahead).level == level


class Answer(BaseHTTPRequestHandler):
    """As a SuperLink: /health is there; the server's attribute says how wrong its clock is."""

    server: Any

    def do_GET(self):
        self.send_response_only(200 if self.path == "/health" else 404)
        self.send_header("Date", formatdate(time.time() + self.server.late, usegmt=True))
        self.end_headers()

    def log_message(self, *_):
        pass


class SixServer(HTTPServer):
    address_family = socket.AF_INET6


@pytest.fixture
def serve():
    started = []

    def start(made=None, late=0.0, host="127.0.0.1"):
        server = (SixServer if ":" in host else HTTPServer)((host, 0), Answer)
        server.late = late  # type: ignore[attr-defined]
        if made:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(made.server, made.server_key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        started.append((server, thread))
        return f"{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()


def levels(server, ca=None):
    return {finding.about: finding.level for finding in look_at_server(server, ca)}


def test_a_server_in_plaintext_is_a_warning(serve):
    expected = {"server": "ok", "certificate": "warning", "SuperLink": "ok", "clock": "ok"}
    assert levels(serve()) == expected
    assert levels(serve(late=-20.0))["clock"] == "error"  # the node is ahead of it
    assert levels(serve(late=400.0))["clock"] == "error"


def test_the_certificate_is_checked_against_the_authority(serve, tmp_path, monkeypatch):
    made = certificates.create(tmp_path / "ours", days=60)
    short = certificates.create(tmp_path / "short", days=10)
    monkeypatch.setattr(certificates, "LOOPBACK", ())
    elsewhere = certificates.create(tmp_path / "elsewhere", ["server.example"])
    address = serve(made)
    assert set(levels(address, made.ca).values()) == {"ok"}
    assert levels(address, short.ca) == {"server": "ok", "certificate": "error"}
    assert levels(serve(short), short.ca)["certificate"] == "warning"  # ten days left
    assert levels(serve(elsewhere), elsewhere.ca)["certificate"] == "error"  # another name
    assert levels(address)["server"] == "error"  # plaintext to a port with TLS


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_a_server_may_have_an_ipv6_address(serve, tmp_path):
    made = certificates.create(tmp_path / "certs", days=60)
    assert set(levels(serve(made, host="::1"), made.ca).values()) == {"ok"}


def test_nobody_there_is_an_error(serve):
    (found,) = look_at_server("127.0.0.1:1", None)
    assert found.level == "error" and "refused" in found.text
