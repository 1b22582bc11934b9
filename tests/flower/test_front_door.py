"""The front door of a deployment, tried by those who should stay out: a real SuperLink on loopback
behind a real nginx with the configuration that fedsift writes, and real SuperNodes.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fedsift import runs
from fedsift.flower import (
    admission,
    certificates,
    instructions,
    keys,
    local_deployment,
    messages,
    processes,
    project,
    proxy,
    seats,
)
from fedsift.flower.messages import NEVER, Call
from fedsift.flower.run_names import RunNames
from fedsift.flower.superlink import SuperLink
from fedsift.types import UserError
from tests.helpers import front_door
from tests.helpers.real_flower import (
    PATIENCE,
    TINY,
    checkpoint,
    server_bits,
    simulated,
    until,
)
from tests.helpers.runs import lines

pytestmark = [pytest.mark.flower, front_door.needs_nginx]
MB = 1_000_000


class Door:
    """A SuperLink, the proxy before it, the operator's register, and who comes."""

    def __init__(self, home: Path, deployment: local_deployment.Deployment) -> None:
        assert deployment.certificates
        self.home, self.deployment = home, deployment
        self.port = local_deployment.free_port()
        link = f"127.0.0.1:{deployment.port}"
        self.proxy = proxy.Proxy(deployment.certificates, f"127.0.0.1:{self.port}", link)
        self.proxy.write()
        self.folder = deployment.certificates.folder
        seats.write_table(self.folder / seats.TABLE, seats.Table())
        self.register = admission.Register(self.folder, deployment)
        self.start_proxy()

    def start_proxy(self) -> None:
        command = [*self.proxy.command(), "-g", "daemon off;"]
        self.nginx = self.deployment._start("proxy", *command)
        until(lambda: self.ask("GET", "/health")[0] == 200)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make_key(self, name: str) -> Path:
        path = self.home / f"{name}.key"
        keys.create_key(path)
        return path

    def admit(self, client: int, key: Path) -> int:
        public = keys.read_public_key(keys.public_path(key))
        table = self.register.admit(client, public)
        return {seat.client: seat.node for seat in table.seats}[client]

    def lets_in(self, key: Path) -> bool:
        """Whether the proxy asks the SuperLink about a request with this key."""
        return self.ask("POST", "/v1/fleet/pull-messages", self.headers(key))[1] != b""

    def headers(self, key: Path) -> dict[str, str]:
        public = keys.read_public_key(keys.public_path(key))
        kind = {"content-type": "application/protobuf"}
        return kind | {"flwr-public-key": proxy.header_value(public)}

    def node(self, name: str, client: int, key: Path) -> subprocess.Popen[bytes]:
        settings = f'partition-id={client} memory="{self.home / "memory"}"'
        settings += f' data="{self.private(client)}"'
        ca = str(self.proxy.certificates.ca)
        words = instructions.supernode_command(self.address, ca, str(key), settings)
        port = str(local_deployment.free_port())
        return self.deployment._start(name, *words, "--port", port)

    def private(self, client: int) -> Path:
        """A file of this client's node that nobody else should read."""
        path = self.home / f"private-{client}"
        path.write_text(f"patient {client}17")
        return path

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: object = b""
    ):
        """A request as it stands; the status, and the answer where it is the SuperLink's."""
        line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.trust())
        try:
            line.putrequest(method, path, skip_accept_encoding=True)
            for name, value in (headers or {}).items():
                line.putheader(name, value)
            line.putheader("content-length", "0")
            line.endheaders()
            answer = line.getresponse()
            content = answer.read()
            return answer.status, b"" if b"nginx" in content else content
        except OSError:
            return 0, b""
        finally:
            line.close()

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.proxy.certificates.ca))


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    home = tmp_path_factory.mktemp("door")
    made = certificates.create(home / "certs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", front_door.PATH)
        with local_deployment.Deployment(home / "flower", made) as deployment:
            yield Door(home, deployment)
    assert not deployment.alive()


@pytest.fixture(scope="module")
def members(door):
    """Keys of two nodes that have been admitted, as clients 0 and 1."""
    made = [door.make_key("first"), door.make_key("second")]
    for client, key in enumerate(made):
        door.admit(client, key)
    until(lambda: door.lets_in(made[1]))
    return made


@pytest.fixture(scope="module")
def nodes(door, members):
    """The nodes of clients 0 and 1."""
    return [door.node(f"real-{client}", client, key) for client, key in enumerate(members)]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / "app"
    project.create(folder)
    return folder


@pytest.fixture(scope="module")
def intruder(door, tmp_path_factory):
    """What a participant has: the authority's certificate, and Flower's command line."""
    link = SuperLink(door.address, tmp_path_factory.mktemp("intruder"), door.proxy.certificates.ca)
    link.write_connection()
    return link


# --- paths ---


def test_only_the_paths_of_nodes_lead_to_flower_of_all_that_it_has(door):
    """Flower's own list of its paths, so that new ones are seen."""
    direct = http.client.HTTPSConnection(door.proxy.link, timeout=30, context=door.trust())
    direct.request("GET", "/openapi.json")
    described = json.loads(direct.getresponse().read())["paths"]
    direct.close()
    ways = [(method.upper(), path) for path, methods in described.items() for method in methods]
    assert len(ways) > 60
    refused = {way for way in ways if door.ask(*way)[0] == 403}
    passed = {("GET", "/health"), ("HEAD", "/health")} | {
        ("POST", f"/v1/fleet/{name}") for name in (*proxy.FLEET, proxy.UPLOAD)
    }
    assert set(ways) - refused == passed
    assert {door.ask(*way)[0] for way in passed} == {200, 401}  # nodes need a key
    for path in ("/", "/docs", "/openapi.json", "/v1/fleet/", "/v2/fleet/pull-messages"):
        assert door.ask("GET", path)[0] == 403 == door.ask("POST", path)[0]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/pull-messages/../../control/list-nodes",
        "/v1/fleet/pull-messages/%2E%2E/%2E%2E/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "//v1//control//list-nodes",
        "/v1/control/list-nodes?/v1/fleet/pull-messages",
        "/v1/control/list-nodes%3f",
        "/v1/control/list-nodes/",
        "/%76%31/control/list-nodes",
        "/V1/Control/List-Nodes",
        "https://127.0.0.1/v1/control/list-nodes",
        "/v1/fleet/pull-messages;/../control/list-nodes",
    ],
)
def test_no_spelling_of_a_path_leads_past_the_proxy(path, door, members):
    for key in (None, members[1]):
        headers = {"content-type": "application/protobuf"} if key is None else door.headers(key)
        status, answer = door.ask("POST", path, headers)
        assert (status, answer) == (403, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-nodes/../../fleet/pull-messages",
        "/v1/control/list-nodes/%2e%2e/%2e%2e/fleet/pull-messages",
        "/v1/control/list-nodes#/../../../fleet/pull-messages",
    ],
)
def test_what_goes_on_is_the_path_of_the_rule_and_not_the_one_that_was_sent(path, door, members):
    """nginx sees the path of nodes here; Flower must not see another one."""
    status, answer = door.ask("POST", path, door.headers(members[1]))
    assert (status, answer) in [(403, b""), (401, NO_SIGNATURE)]


NO_SIGNATURE = b'{"detail":"Invalid SuperNode authentication"}'


def test_a_node_without_a_key_or_with_an_unknown_one_is_refused_at_the_door(door, members):
    way = ("POST", "/v1/fleet/push-object")
    stranger = door.make_key("stranger")
    assert door.ask(*way) == (401, b"") == door.ask(*way, door.headers(stranger))
    known = door.headers(members[0])
    assert door.ask(*way, known) == (401, NO_SIGNATURE)  # Flower asks for a signature
    assert door.ask("GET", "/v1/fleet/push-object", known) == (403, b"")
    assert door.ask("PUT", "/v1/fleet/push-object", known) == (403, b"")


# --- bodies ---


def send_body(door, headers, size, chunked):
    """Send as much of it as the other side takes; the status of the answer."""
    line = door.trust().wrap_socket(
        socket.create_connection(("127.0.0.1", door.port), timeout=60),
        server_hostname="127.0.0.1",
    )
    kind = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    head = ["POST /v1/fleet/push-object HTTP/1.1", "host: x", kind]
    head += [f"{name}: {value}" for name, value in headers.items()]
    piece = bytes(1 << 20)
    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
    sent = 0
    try:
        line.sendall("\r\n".join([*head, "", ""]).encode())
        while sent < size:
            line.sendall(framed)
            sent += len(piece)
    except OSError:
        pass  # it has hung up
    try:
        answer = line.recv(100)
    except OSError:
        answer = b""
    line.close()
    return sent, answer.split(b" ")[1:2]


def resident(pid):
    """Bytes of memory that a process and its children hold."""
    family = {pid} | processes.descendants({pid}, processes.processes())
    pages = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("chunked", [False, True])
def test_three_bodies_of_400_mb_cost_no_memory(chunked, door, members):
    """Of a stranger, and of a node that has been admitted."""
    stranger = door.make_key(f"large-{chunked}")
    before = {
        pid: resident(pid) for pid in (door.deployment.running["superlink"].pid, door.nginx.pid)
    }
    for headers in (door.headers(stranger), door.headers(members[1])):
        for _ in range(3):
            sent, status = send_body(door, headers, 400 * MB, chunked)
            assert status in ([], [b"401"], [b"413"]) and (sent < 400 * MB or status)
    grown = {pid: resident(pid) - was for pid, was in before.items()}
    assert max(grown.values()) < 50 * MB, grown
    assert door.ask("GET", "/health")[0] == 200


def test_one_node_has_so_many_requests_at_once_and_others_are_not_held_up(door, members):
    """Requests whose body does not come; the proxy waits for each of them, but not for all."""
    head = ["POST /v1/fleet/push-object HTTP/1.1", "host: x", "content-length: 9"]
    head += [f"{name}: {value}" for name, value in door.headers(members[0]).items()]
    held = []
    try:
        for _ in range(proxy.AT_ONCE + 4):
            line = socket.create_connection(("127.0.0.1", door.port), timeout=30)
            held.append(door.trust().wrap_socket(line, server_hostname="127.0.0.1"))
            held[-1].sendall("\r\n".join([*head, "", ""]).encode())
        said: dict[int, bytes] = {}
        until(lambda: said.update(hear(held, said)) or len(said) >= 4)
        assert set(said.values()) == {b"HTTP/1.1 503"} and len(said) == 4
        assert door.lets_in(members[1])
    finally:
        for line in held:
            line.close()


def hear(held, said):
    """What has come on those that have said nothing yet."""
    for number, line in enumerate(held):
        line.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            if number not in said:
                yield number, line.recv(12)


# --- the seven intrusions ---


def test_a_participant_cannot_list_register_submit_or_stop(door, members, intruder, app):
    """With the authority's certificate and Flower's own commands. Without the proxy all succeed;
    a submitted project could read the files of every node.
    """
    second_vote = keys.public_path(door.make_key("second-vote"))
    before = asked_for(door, "/v1/control/")
    for words in (
        ("supernode", "list", "local"),
        ("supernode", "register", str(second_vote), "local"),
        ("run", str(app), "local"),
        ("stop", "1", "local"),
    ):
        with pytest.raises(UserError, match=r"403|orbidden|ermission"):
            intruder.flwr(*words, "--format", "json")
    assert asked_for(door, "/v1/control/") == before > 0  # those of the operator


def asked_for(door, path):
    """How often the SuperLink was asked for such a path."""
    return (door.deployment.home / "superlink.log").read_text().count(path)


def test_nobody_takes_the_servers_process_or_anothers_seat_and_the_run_is_as_simulated(
    door, request, app, tmp_path, monkeypatch
):
    """A SuperExec of an intruder waits for the operator's run, and asks more often than the
    operator's own. The owner of the key of client 2 says that it is client 0, and is there first.
    """
    dishonest = door.make_key("dishonest")
    door.admit(2, dishonest)
    thief = start_superexec(door, tmp_path / "thief.log")
    impostor = door.node("impostor", 0, dishonest)
    activated = asked_for(door, "/v1/fleet/activate-node")
    until(lambda: asked_for(door, "/v1/fleet/activate-node") > activated)
    nodes = request.getfixturevalue("nodes")
    overrides = f"{TINY} clients=2 cohort=2 rounds=2 algorithm=cfd budget=20"
    run = submit(door, app, tmp_path / "run", overrides)
    state = checkpoint(tmp_path / "run", 2)
    assert server_bits(state) == server_bits(
        simulated(app, tmp_path / "simulated", overrides, monkeypatch)
    )
    assert lines(tmp_path / "run" / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)
    assert all(node.poll() is None for node in [*nodes, impostor])
    log = door.deployment.log(run)
    assert "its key belongs to client 2, but it says that it is client 0" in log
    said = (tmp_path / "thief.log").read_text()
    assert thief.poll() or "403" in said
    assert "flwr-serverapp" not in said
    impostor.terminate()  # every message to it would be a process
    impostor.wait(PATIENCE)


def submit(door, app, folder, overrides):
    how = {"overrides": overrides, "folder": str(folder), "wait": 120.0, "poll": 0.2}
    return door.deployment.submit(app, how | {"seats": str(door.folder / seats.TABLE)})


def start_superexec(door, log):
    """What runs a ServerApp, if the SuperLink gives it one."""
    ca = str(door.proxy.certificates.ca)
    words = ["flower-superexec", "--root-certificates", ca, "--runtime-api-address", door.address]
    often = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01"}
    with open(log, "wb") as file:
        started = subprocess.Popen(
            words, env=door.deployment.environment | often, stdout=file, stderr=file, cwd=log.parent
        )
    door.deployment.processes.append(started)
    return started


STEAL = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("steal")
def steal(message, context):
    text = Path(context.node_config["data"]).read_text()
    return Message(RecordDict({"loot": ConfigRecord({"text": text})}), reply_to=message)
"""
COLLECT = """
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    ask = [Message(RecordDict(), node, "query.steal") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(ask, timeout=60):
        if reply.has_content():
            print("loot:", reply.content["loot"]["text"])
    Path(SIGN).touch()
"""
FILES = (  # what a web server gives away that looks for files
    "/etc/passwd",
    "/../../../../../etc/passwd",
    "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/v1/fleet/../../../../../etc/passwd",
    "/nodes.json",
    "/ca.key",
    "/server.key",
    "/proxy.conf",
    "/proxy-keys.map",
    "/../ca.key",
    "file:///etc/passwd",
)


def test_a_participant_cannot_read_files_of_a_node_or_of_the_server(
    door, members, nodes, intruder, tmp_path
):
    """A project that reads files: refused when a participant submits it. The operator's own run of
    it shows that it works, and a participant cannot read what that run has found.
    """
    evil = tmp_path / "evil"
    project.create(evil)
    (evil / "client_app.py").write_text(STEAL)
    sign = tmp_path / "sign"
    (evil / "server_app.py").write_text(COLLECT.replace("SIGN", repr(str(sign))))
    with pytest.raises(UserError, match="403"):
        intruder.flwr("run", str(evil), "local", "--format", "json")
    run = door.deployment.submit(evil, {})
    until(sign.exists)  # asking Flower takes seconds of work
    until(lambda: door.deployment.status(run) == "finished:completed")
    found = door.deployment.log(run)
    assert all(f"loot: patient {client}17" in found for client in range(2))
    for words in (("log", run, "local", "--show"), ("list", "local"), ("pull", run, "local")):
        said = intruder._run("flwr", *words)
        assert "403" in said.stdout + said.stderr and "patient" not in said.stdout + said.stderr
    for headers in (None, door.headers(members[0])):
        for method, path in ((method, path) for method in ("GET", "POST") for path in FILES):
            status, answer = door.ask(method, path, headers)
            assert status in (400, 403) and answer == b""


# --- in the server's name ---


def forge(door, key, run, node, call, monkeypatch):
    """An admitted node sends a call to another one as if it were the server; whether the SuperLink
    took it.
    """
    private = load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    ca, pair = str(door.proxy.certificates.ca), (private, private.public_key())
    for name, value in {"run": int(run), "node": SUPERLINK_NODE_ID, "task": 1}.items():
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", value)
    message = Message(messages.write(call), node, messages.TURN, ttl=120)
    message.metadata.__dict__["_message_id"] = message.object_id
    warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's own call
    with http_request_response(door.address, False, ca, pair, max_retries=1) as calls:
        send, push = calls[2], calls[6]
        wanted, session = send(message, get_object_tree(message), 0.0)
        for id, part in get_all_nested_objects(message).items():
            if id in wanted:
                push(int(run), session, id, part.deflate())
    return bool(wanted)


def test_a_node_that_speaks_in_the_servers_name_changes_no_bit(
    door, nodes, app, tmp_path, monkeypatch
):
    """Flower lets it, if it knows the other's random number, which it is not told. It does not
    know under which name the other remembers the run, so that memory stays as it is.
    """
    forger = door.make_key("forger")
    door.admit(3, forger)
    until(lambda: door.lets_in(forger))
    overrides = f"{TINY} clients=2 cohort=2 rounds=3 algorithm=cfd budget=20 seed=2"
    run = submit(door, app, tmp_path / "run", overrides)
    until(lambda: runs.rounds_played(tmp_path / "run") == 1)
    own = RunNames.of(tmp_path / "run").of_client(3)  # what a node in that seat is told
    call = Call(own, 1, NEVER, b"forged")
    assert not forge(door, forger, run, 2**63 + 12345, call, monkeypatch)  # a guess
    table = seats.read_table(door.folder / seats.TABLE)
    (victim,) = (seat.node for seat in table.seats if seat.client == 0)
    assert forge(door, forger, run, victim, call, monkeypatch)
    state = checkpoint(tmp_path / "run", 3)
    until(lambda: "client 0: told the server: " in node_log(door, 0))
    there = simulated(app, tmp_path / "simulated", overrides, monkeypatch)
    assert server_bits(state) == server_bits(there)
    assert lines(tmp_path / "run" / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)
    assert all(node.poll() is None for node in nodes)


def node_log(door, client):
    return (door.deployment.home / f"real-{client}.log").read_text()


# --- faults of the proxy ---


def test_a_proxy_that_is_killed_and_started_again_costs_time_and_no_bit(
    door, nodes, app, tmp_path, monkeypatch
):
    """In a round: nodes have their messages, and cannot hand their answers in."""
    overrides = f"{TINY} clients=2 cohort=2 rounds=2 algorithm=cfd budget=20 seed=1"
    submit(door, app, tmp_path / "run", overrides)
    until(lambda: runs.rounds_played(tmp_path / "run") == 1)
    time.sleep(2)
    os.killpg(door.nginx.pid, signal.SIGKILL)
    until(lambda: door.ask("GET", "/health")[0] == 0)
    time.sleep(5)
    assert runs.rounds_played(tmp_path / "run") == 1
    door.start_proxy()
    state = checkpoint(tmp_path / "run", 2)
    there = simulated(app, tmp_path / "simulated", overrides, monkeypatch)
    assert server_bits(state) == server_bits(there)
    assert lines(tmp_path / "run" / runs.LEDGER) == lines(tmp_path / "simulated" / runs.LEDGER)
    assert all(node.poll() is None for node in nodes)


def test_a_command_that_was_killed_or_cut_off_is_finished_by_the_next_one(door, members):
    key = door.make_key("cut-short")
    door.deployment.register(keys.public_path(key))  # killed before it wrote the table
    node = door.admit(2, key)
    until(lambda: door.lets_in(key))
    assert door.register.list_nodes()[node] == admission.NEW
    nobody = SuperLink(f"127.0.0.1:{local_deployment.free_port()}", door.home / "nobody")
    nobody.home.mkdir()
    nobody.write_connection()
    with pytest.raises(UserError, match="give the same command again"):
        replace(door.register, link=nobody).revoke(2)
    until(lambda: not door.lets_in(key))
    assert node in door.register.list_nodes()
    door.register.revoke(2)
    assert node not in door.register.list_nodes()


def test_a_revoked_node_is_out_and_a_renewed_key_is_in(door, members):
    """Last: it takes the second node's key away."""
    renewed = door.make_key("renewed")
    node = door.admit(1, renewed)
    until(lambda: door.lets_in(renewed) and not door.lets_in(members[1]))
    with pytest.raises(UserError, match="was revoked"):
        door.admit(1, members[1])
    door.register.revoke(1)
    until(lambda: not door.lets_in(renewed))
    assert node not in door.register.list_nodes()
    refused = door.node("refused", 1, renewed)
    until(lambda: refused.poll() is not None)  # with code 0: so is a SuperNode that gets a 401
