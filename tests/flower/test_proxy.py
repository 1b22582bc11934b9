"""Certificates, the proxy's configuration, the printed commands, and admitting nodes: without
Flower. The proxy at work before a SuperLink is in test_front_door.
"""

import contextlib
import re
import shlex
import socket
import ssl
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.flower import admission, certificates, keys, proxy, seats
from fedsift.flower.local_deployment import free_port
from fedsift.flower.proxy import Proxy
from fedsift.flower.superlink import SuperLink
from fedsift.types import UserError
from tests.helpers import front_door
from tests.helpers.cli import fedsift
from tests.helpers.json_shapes import read_printed
from tests.helpers.real_flower import until


def read_certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_certificate_is_for_the_hosts_and_signed_by_the_authority(tmp_path):
    made = certificates.create(tmp_path / "certs", ["10.0.0.7", "server.example"], days=3)
    authority, server = read_certificate(made.ca), read_certificate(made.server)
    server.verify_directly_issued_by(authority)
    hosts = ["10.0.0.7", "server.example", "127.0.0.1", "localhost", "::1"]
    assert certificates.read_hosts(made) == hosts
    assert 2 <= (server.not_valid_after_utc - server.not_valid_before_utc).days <= 3
    assert (authority.not_valid_after_utc - authority.not_valid_before_utc).days >= 3650
    secret = [made.server_key, made.ca_key]
    assert len({file.read_bytes() for file in secret}) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in secret} == {0o600}
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    with pytest.raises(UserError, match="has certificates already; add --renew"):
        certificates.create(tmp_path / "certs")


def test_a_renewed_certificate_is_of_the_same_authority_and_for_the_same_hosts(tmp_path):
    made = certificates.create(tmp_path, ["server.example"], days=1)
    authority, old = made.ca.read_bytes(), read_certificate(made.server)
    certificates.renew(tmp_path, days=300)
    new = read_certificate(made.server)
    assert made.ca.read_bytes() == authority
    new.verify_directly_issued_by(read_certificate(made.ca))
    assert new.not_valid_after_utc > old.not_valid_after_utc
    assert certificates.read_hosts(made) == ["server.example", "127.0.0.1", "localhost", "::1"]
    key = serialization.load_pem_private_key(made.server_key.read_bytes(), None)
    assert key.public_key() == new.public_key() != old.public_key()
    certificates.renew(tmp_path, ["other.example"])
    assert certificates.read_hosts(made)[0] == "other.example"
    made.ca_key.write_bytes(made.server_key.read_bytes())
    with pytest.raises(UserError, match="is not the key of"):
        certificates.renew(tmp_path)
    made.ca_key.unlink()
    with pytest.raises(UserError, match=r"ca.key: it cannot be read"):
        certificates.renew(tmp_path)


@pytest.mark.parametrize("host", ["", "a b", "server.example;", "ä.example", "x" * 300, "-x"])
def test_a_host_that_cannot_be_is_refused(host, tmp_path):
    with pytest.raises(UserError, match="is not a name or an address of a host"):
        certificates.create(tmp_path, [host])
    assert not list(tmp_path.iterdir())


# --- the configuration ---


def test_every_path_has_its_rule_and_goes_on_to_loopback_under_its_own_name(tmp_path):
    made = certificates.create(tmp_path / "certs")
    text = Proxy(made, "0.0.0.0:8443", "127.0.0.1:8000").text()
    assert "<" not in text
    found = re.findall(r"location = (\S+) \{(.*?)\n        \}", text, re.DOTALL)
    assert [path for path, _ in found] == [
        *(f"/v1/fleet/{name}" for name in (*proxy.FLEET, proxy.UPLOAD)),
        "/health",
    ]
    for path, rule in found:
        assert f"proxy_pass https://127.0.0.1:8000{path};" in rule
        assert ("if ($node = '') { return 401; }" in rule) == (path != "/health")
    sizes = {path: re.findall(r"max_body_size (\d+)m", rule) for path, rule in found}
    assert sizes["/v1/fleet/push-object"] == ["6"] and sizes["/v1/fleet/push-messages"] == ["1"]
    assert "location / {\n            deny all;" in text


def test_an_address_has_the_limits_of_so_many_nodes(tmp_path):
    # 20 requests a second, 200 at once before they are slowed down, 16 connections; times 3.
    made = certificates.create(tmp_path / "certs")
    text = Proxy(made, behind=3).text()
    assert "$binary_remote_addr zone=address_requests:4m rate=60r/s;" in text
    rules = re.findall(r"location = /v1/fleet/\S+ \{(.*?)\n        \}", text, re.DOTALL)
    assert len(rules) == 10
    for rule in rules:
        assert "limit_req zone=node_requests burst=200;" in rule
        assert "limit_req zone=address_requests burst=600;" in rule
        assert "limit_conn node_connections 16;" in rule
        assert "limit_conn address_connections 48;" in rule
    for behind in (0, 4001):
        with pytest.raises(UserError, match=f"--behind must be 1 to 4000, not {behind}"):
            Proxy(made, behind=behind)


@front_door.needs_nginx
@pytest.mark.parametrize("behind", [1, proxy.MOST_BEHIND])
def test_nginx_takes_the_configuration(behind, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", front_door.PATH)
    made = certificates.create(tmp_path / "certs")
    front = Proxy(made, f"127.0.0.1:{free_port()}", "[::1]:8000", behind=behind)
    front.write()
    proxy.write_keys(made.folder, [keys.create_key(tmp_path / "node.key")])
    tried = subprocess.run([*front.command(), "-t"], capture_output=True, text=True)
    assert tried.returncode == 0 and "test is successful" in tried.stderr, tried.stderr


@front_door.needs_nginx
def test_one_address_cannot_use_the_limits_of_all_keys(tmp_path, monkeypatch):
    """A stranger knows two public keys. No SuperLink runs, so who comes through gets a 502."""
    monkeypatch.setenv("PATH", front_door.PATH)
    made = certificates.create(tmp_path / "certs")
    links = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    front = Proxy(made, *links, behind=1)
    front.write()
    known = [keys.create_key(tmp_path / f"{name}.key") for name in "ab"]
    proxy.write_keys(made.folder, known)
    door = Door(int(links[0].rpartition(":")[2]), made.ca)
    nginx = subprocess.Popen([*front.command(), "-g", "daemon off;"], stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        stack.callback(nginx.wait, 20)
        stack.callback(nginx.terminate)
        until(door.is_open)
        for number in range(proxy.AT_ONCE):
            stack.enter_context(door.hold(known[number % 2]))
        until(lambda: door.ask(known[1], "127.0.0.1") == b"503")
        assert door.ask(known[1], "127.0.0.2") == b"502"


@dataclass(frozen=True)
class Door:
    """The proxy, as those see it who know its port."""

    port: int
    ca: Path

    def is_open(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    def hold(self, key: keys.PublicKey) -> socket.socket:
        """A request whose body does not come."""
        return self._begin(key, "127.0.0.1", 9)

    def ask(self, key: keys.PublicKey, address: str) -> bytes:
        """The status of a request that comes from this address of the machine."""
        with self._begin(key, address, 0) as line:
            return line.recv(100).split(b" ")[1]

    def _begin(self, key: keys.PublicKey, address: str, size: int) -> socket.socket:
        trust = ssl.create_default_context(cafile=str(self.ca))
        plain = socket.create_connection(("127.0.0.1", self.port), 30, (address, 0))
        line = trust.wrap_socket(plain, server_hostname="127.0.0.1")
        head = ["POST /v1/fleet/push-object HTTP/1.1", "host: x", f"content-length: {size}"]
        head += [f"flwr-public-key: {proxy.header_value(key)}", "", ""]
        line.sendall("\r\n".join(head).encode())
        return line


def test_the_superlink_must_listen_on_loopback_and_addresses_are_checked(tmp_path):
    made = certificates.Certificates(tmp_path)
    for link in ("0.0.0.0:8000", "10.0.0.7:8000", "[::]:8000"):
        with pytest.raises(UserError, match="the SuperLink must listen on loopback"):
            Proxy(made, link=link)
    assert Proxy(made, link="[::1]:8000", listen="[::]:443").listen == "[::]:443"
    for listen in ("8443", "server:8443", "0.0.0.0:0", "0.0.0.0:70000", "1.2.3.4:1; x", "::1:5"):
        with pytest.raises(UserError, match="is not an address and a port"):
            Proxy(made, listen=listen)
    odd = tmp_path / 'a"; evil'
    with pytest.raises(UserError, match="nginx cannot take the path"):
        Proxy(certificates.Certificates(odd)).text()


def test_the_limit_is_above_the_largest_piece_that_flower_sends():
    from flwr.app import Array
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    assert proxy.PIECE << 20 == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    size = 3 * (proxy.PIECE << 20) + 1
    array = Array("uint8", (size,), "bytes", np.random.default_rng(0).bytes(size))
    bodies = [
        PushObjectRequest(
            run_id=2**63, object_id="f" * 64, session_id="f" * 64, object_content=part.deflate()
        ).SerializeToString()
        for part in get_all_nested_objects(array).values()
    ]
    assert size < sum(map(len, bodies)) and max(map(len, bodies)) < (proxy.PIECE << 20) + 1000


def test_a_key_at_the_proxy_is_what_a_supernode_sends(tmp_path):
    from base64 import b64encode

    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    made = keys.create_key(tmp_path / "node.key")
    private = serialization.load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    sent = b64encode(public_key_to_bytes(private.public_key())).decode()
    assert proxy.header_value(made) == sent
    proxy.write_keys(tmp_path, [made])
    assert (tmp_path / proxy.KEYS).read_text() == f'"{sent}" "{made.fingerprint}";\n'


# --- the commands ---


def test_certs_prints_commands_for_every_machine(tmp_path):
    folder = tmp_path / "certs"
    done = fedsift("flower", "certs", str(folder), "--nodes", "2", "--host", "server.example")
    assert done.exit_code == 0, done.stderr
    text = (folder / "commands.txt").read_text()
    assert text in done.stdout
    commands = [shlex.split(line) for line in text.splitlines() if line and line[0] != "#"]
    flower = [words for words in commands if any("flower-super" in word for word in words)]
    link, node = flower
    for words in flower:
        assert "FLWR_TELEMETRY_ENABLED=0" in words
    assert link[link.index("--database") + 1] == str(folder / "superlink.db")
    assert link[link.index("--host") + 1] == "127.0.0.1" and "--enable-supernode-auth" in link
    assert node[node.index("--superlink") + 1] == "server.example:8443"
    assert "Restart=always" in text and not list(folder.glob("node*key"))
    assert [
        f"fedsift flower admit {folder} {client} node-{client}.key.pub" in text for client in (0, 1)
    ]
    assert f"fedsift flower submit PROJECT clients=2 cohort=2 --certs {folder} --supervise" in text
    (check,) = [words for words in commands if words[:3] == ["fedsift", "flower", "check"]]
    assert check[3:6] == ["PROJECT", "clients=2", "cohort=2"]
    assert check[check.index("--server") + 1] == "server.example:8443"
    assert seats.read_table(folder / "nodes.json") == seats.Table()
    assert (folder / proxy.CONFIG).is_file() and (folder / proxy.KEYS).read_text() == ""


def test_the_configuration_can_be_written_again_with_other_limits(tmp_path):
    folder = tmp_path / "certs"
    assert "make them with" in fedsift("flower", "proxy", str(folder)).stderr
    fedsift("flower", "certs", str(folder))
    key = keys.create_key(tmp_path / "node.key")
    proxy.write_keys(folder, [key])
    words = [
        "--listen",
        "127.0.0.1:9443",
        "--link",
        "127.0.0.1:9000",
        "--body",
        "40",
        "--rate",
        "5",
    ]
    done = fedsift("flower", "proxy", str(folder), *words)
    assert done.exit_code == 0, done.stderr
    text = (folder / proxy.CONFIG).read_text()
    for part in ("listen 127.0.0.1:9443 ssl", "127.0.0.1:9000/v1", "body_size 40m", "rate=5r/s"):
        assert part in text
    assert key.fingerprint in (folder / proxy.KEYS).read_text()  # who was in stays in
    assert "127.0.0.1:9000" in (folder / "flwr" / "config.toml").read_text()


def test_what_no_option_names_stays_in_the_configuration(tmp_path):
    folder = tmp_path / "certs"
    fedsift("flower", "certs", str(folder), "--listen", "[::]:443", "--link", "127.0.0.1:9000")
    config, link = folder / proxy.CONFIG, folder / "flwr" / "config.toml"
    first, said = config.read_text(), link.read_text()
    assert fedsift("flower", "proxy", str(folder)).exit_code == 0
    assert (config.read_text(), link.read_text()) == (first, said)
    assert fedsift("flower", "proxy", str(folder), "--body", "12").exit_code == 0
    assert (config.read_text(), link.read_text()) == (
        first.replace("6m;", "12m;").replace("7m;", "13m;"),
        said,
    )
    fedsift("flower", "proxy", str(folder), "--rate", "5")
    fedsift("flower", "proxy", str(folder), "--behind", "20")
    done = fedsift("flower", "proxy", str(folder), "--listen", "127.0.0.1:8444")
    assert done.exit_code == 0, done.stderr
    addresses = "127.0.0.1:8444", "127.0.0.1:9000"
    wanted = Proxy(certificates.Certificates(folder), *addresses, 12, 5, 20)
    assert config.read_text() == wanted.text()


def test_a_configuration_that_was_changed_by_hand_is_not_guessed(tmp_path):
    made = certificates.create(tmp_path / "certs")
    front = Proxy(made, "127.0.0.1:8444")
    front.write()
    front.config.write_text(front.text().replace("listen 127", "listen  127"))
    done = fedsift("flower", "proxy", str(made.folder), "--body", "12")
    assert done.exit_code == 2 and "does not say it any more: give --listen" in done.stderr
    words = ["--body", "12", "--listen", "127.0.0.1:8444"]
    assert fedsift("flower", "proxy", str(made.folder), *words).exit_code == 0
    front.config.write_text(front.text().replace(proxy.LINK, "10.0.0.7:8000"))
    done = fedsift("flower", "proxy", str(made.folder))
    assert "the SuperLink must listen on loopback" in done.stderr
    front.config.unlink()
    assert fedsift("flower", "proxy", str(made.folder)).exit_code == 0
    assert front.config.read_text() == Proxy(made).text()


# --- admitting ---


class FakeLink:
    """What Flower's command line says of a SuperLink: a key can be registered once and for ever."""

    def __init__(self):
        self.nodes, self.keys = {}, set()

    def flwr(self, *words):
        if words[:2] == ("supernode", "list"):
            return {"nodes": [{"node-id": str(n), "status": s} for n, s in self.nodes.items()]}
        if words[:2] == ("supernode", "register"):
            with open(words[2]) as file:
                key = file.read()
            if key in self.keys:
                raise UserError("Public key already in use")
            self.keys.add(key)
            self.nodes[2**63 + len(self.nodes)] = "registered"
            return {"node-id": max(self.nodes)}
        assert words[:2] == ("supernode", "unregister")
        self.nodes[int(words[2])] = "unregistered"
        return {}


@pytest.fixture
def register(tmp_path):
    seats.write_table(tmp_path / seats.TABLE, seats.Table())
    return admission.Register(tmp_path, FakeLink())


def let_in(register):
    """Fingerprints of the keys that the proxy knows."""
    return re.findall(r'" "(\S+)";', (register.folder / proxy.KEYS).read_text())


def test_a_node_is_admitted_renewed_and_revoked(register, tmp_path):
    first, second, other = (keys.create_key(tmp_path / f"{name}.key") for name in "abc")
    assert register.admit(0, first) == register.admit(0, first)  # twice is once
    register.admit(1, other)
    (node, _) = register.list_nodes()
    assert seats.read_table(register.path).find_objection(node, 0) is None
    assert let_in(register) == [first.fingerprint, other.fingerprint]
    with pytest.raises(UserError, match="this is the key of client 1; every node needs its own"):
        register.admit(0, other)
    register.admit(0, second)  # renewed
    assert let_in(register) == [second.fingerprint, other.fingerprint]
    assert node not in register.list_nodes()
    with pytest.raises(UserError, match="was revoked; make a new one at the node"):
        register.admit(2, first)
    register.revoke(0)
    assert let_in(register) == [other.fingerprint] and len(register.list_nodes()) == 1
    with pytest.raises(UserError, match="client 0 has no key"):
        register.revoke(0)


def test_a_superlink_that_lost_its_database_is_told_all_keys_again(register, tmp_path):
    made = [keys.create_key(tmp_path / f"{name}.key") for name in "ab"]
    for client, key in enumerate(made):
        register.admit(client, key)
    before = seats.read_table(register.path)
    assert register.register_again() == before
    register.link.nodes, register.link.keys = {99: "online"}, set()
    table = register.register_again()
    assert [seat.key for seat in table.seats] == made and not table.revoked
    assert {seat.node for seat in table.seats} == register.list_nodes().keys() - {99}


class Down:
    """A SuperLink that does not answer."""

    def flwr(self, *words):
        raise UserError("unavailable")


def test_a_node_is_out_even_where_the_superlink_cannot_be_asked(register, tmp_path):
    """And the same command again shuts it out there too."""
    register.admit(0, keys.create_key(tmp_path / "a.key"))
    (node,) = register.list_nodes()
    reloads = []
    cut = replace(register, link=Down(), reload=lambda folder: reloads.append(let_in(register)))
    with pytest.raises(UserError, match=r"unavailable; .* give the same command again"):
        cut.revoke(0)
    table = seats.read_table(register.path)
    assert table.seats == () and table.leaving == (node,)
    assert reloads == [[]]  # once, and without the key
    assert node in register.list_nodes()
    assert register.revoke(0).leaving == () and node not in register.list_nodes()
    with pytest.raises(UserError, match="client 0 has no key"):
        register.revoke(0)


def test_a_renewal_that_was_cut_short_is_finished_by_the_same_command(register, tmp_path):
    old, new = (keys.create_key(tmp_path / f"{name}.key") for name in "ab")
    register.admit(0, old)
    (node,) = register.list_nodes()

    class KeepsNodes:
        """It takes keys and answers no more where one should go."""

        def flwr(self, *words):
            if words[1] == "unregister":
                raise UserError("unavailable")
            return register.link.flwr(*words)

    reloads = []
    cut = replace(
        register, link=KeepsNodes(), reload=lambda folder: reloads.append(let_in(register))
    )
    with pytest.raises(UserError, match="unavailable"):
        cut.admit(0, new)
    assert reloads == [[new.fingerprint]] and node in register.list_nodes()
    register.admit(0, new)
    assert node not in register.list_nodes() and len(register.list_nodes()) == 1


def test_any_later_command_finishes_a_revocation(register, tmp_path):
    for client in range(3):
        register.admit(client, keys.create_key(tmp_path / f"{client}.key"))
    cut = replace(register, link=Down())
    for client in (0, 1):
        with pytest.raises(UserError, match="unavailable"):
            cut.revoke(client)
    assert len(register.list_nodes()) == 3
    proxy.write_keys(register.folder, [keys.create_key(tmp_path / "stale.key")])  # killed before it
    table = register.register_again()
    assert table.leaving == () and len(register.list_nodes()) == 1
    assert let_in(register) == [seat.key.fingerprint for seat in table.seats]


def register_and_die(register, key, tmp_path):
    """What a command leaves that was killed before it wrote the table."""
    file = tmp_path / "killed.pub"
    file.write_text(f"{key.text}\n")
    return register.link.flwr("supernode", "register", str(file))["node-id"]


def test_a_key_that_was_registered_and_not_written_gets_its_seat(register, tmp_path):
    first, second, third = (keys.create_key(tmp_path / f"{name}.key") for name in "abc")
    register.admit(0, first)
    node = register_and_die(register, second, tmp_path)
    assert register.admit(1, second).of_client(1) == seats.Seat(1, node, second)
    register.link.nodes[register_and_die(register, third, tmp_path)] = "online"  # it has come
    with pytest.raises(UserError, match=r"does not say as which node; make a new one at the node"):
        register.admit(2, third)


def test_which_of_two_nodes_has_a_key_is_not_guessed(register, tmp_path):
    made = [keys.create_key(tmp_path / f"{name}.key") for name in "ab"]
    for key in made:
        register_and_die(register, key, tmp_path)
    with pytest.raises(UserError, match="nodes without a client are listed by"):
        register.admit(0, made[0])
    assert seats.read_table(register.path) == seats.Table()


def test_the_commands_reload_the_proxy_before_they_ask_the_superlink(tmp_path, monkeypatch):
    """So it knows, whatever comes then."""
    link, folder = FakeLink(), str(tmp_path / "certs")
    reloads: list[object] = []
    monkeypatch.setattr(SuperLink, "flwr", lambda self, *words: link.flwr(*words))
    monkeypatch.setattr(proxy, "reload", reloads.append)
    fedsift("flower", "certs", folder)
    keys.create_key(tmp_path / "node.key")
    fedsift("flower", "admit", folder, "0", str(tmp_path / "node.key.pub"))
    (node,) = link.nodes
    reloads.clear()
    monkeypatch.setattr(SuperLink, "flwr", Down.flwr)
    done = fedsift("flower", "revoke", folder, "0")
    assert done.exit_code == 2 and "give the same command again" in done.stderr
    assert len(reloads) == 1
    monkeypatch.setattr(SuperLink, "flwr", lambda self, *words: link.flwr(*words))
    told = fedsift("flower", "nodes", folder).stderr
    assert f"node {node} (registered) has a revoked key: shut it out with" in told
    assert fedsift("flower", "revoke", folder, "0").exit_code == 0
    assert link.nodes == {node: "unregistered"} and len(reloads) == 2


def test_the_commands_admit_list_and_revoke(tmp_path, monkeypatch):
    link = FakeLink()
    monkeypatch.setattr(SuperLink, "flwr", lambda self, *words: link.flwr(*words))
    folder, key = str(tmp_path / "certs"), tmp_path / "node.key"
    done = fedsift("flower", "nodes", folder)
    assert done.exit_code == 2 and "make it with: fedsift flower certs" in done.stderr
    fedsift("flower", "certs", folder)
    fedsift("flower", "key", str(key))
    done = fedsift("flower", "admit", folder, "3", str(key))
    assert done.exit_code == 2 and "is a private key, which must stay" in done.stderr
    done = fedsift("flower", "admit", folder, "3", f"{key}.pub")
    assert done.exit_code == 0, done.stderr
    fingerprint = keys.read_public_key(keys.public_path(key)).fingerprint
    assert f"client 3 is node {2**63}, with the key {fingerprint}" in done.stdout
    assert "nginx" in done.stderr and "-s reload" in done.stderr  # it does not run here
    link.nodes[77] = "online"
    done = fedsift("flower", "nodes", folder)
    assert done.stdout == f"client 3  {fingerprint}  node {2**63}  registered\n"
    assert "node 77 (online) has no client" in done.stderr
    told = read_printed("flower nodes", fedsift("flower", "nodes", folder, "--json").stdout)
    seat = {"client": 3, "node": 2**63, "fingerprint": fingerprint}
    assert told == {"nodes": [seat | {"status": "registered"}], "without_client": {"77": "online"}}
    link.nodes, link.keys = {}, set()
    assert "run this again with --register" in fedsift("flower", "nodes", folder).stdout
    assert fedsift("flower", "nodes", folder, "--register").stdout.endswith("registered\n")
    done = fedsift("flower", "revoke", folder, "3", "--json")
    assert read_printed("flower revoke", done.stdout) == {"revoked": 3}
    assert fedsift("flower", "nodes", folder).stdout == ""
    assert fedsift("flower", "revoke", folder, "3").exit_code == 2
    new = keys.create_key(tmp_path / "new.key")
    told = fedsift("flower", "admit", folder, "3", str(tmp_path / "new.key.pub"), "--json").stdout
    seat = {"client": 3, "node": max(link.nodes), "fingerprint": new.fingerprint}
    assert read_printed("flower admit", told) == seat


def test_two_commands_do_not_change_the_table_at_once(register, tmp_path):
    key = keys.create_key(tmp_path / "a.key")
    with register._lock(), pytest.raises(UserError, match="another command is changing"):
        register.admit(0, key)


def test_a_proxy_that_does_not_run_here_is_reloaded_by_hand(tmp_path, monkeypatch):
    made = certificates.create(tmp_path)
    Proxy(made).write()
    words = ["nginx", "-p", str(tmp_path / "proxy"), "-c", str(tmp_path / "proxy.conf")]
    assert proxy.reload(tmp_path) == [*words, "-s", "reload"]
    (tmp_path / "proxy" / "nginx.pid").write_text("1")
    called = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: called.append(words))
    assert proxy.reload(tmp_path) is None and called == [[*words, "-s", "reload"]]
