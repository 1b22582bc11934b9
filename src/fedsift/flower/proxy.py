"""The front door of a deployment: a configuration of nginx that lets nodes in, and nobody else
who does not know the public key of one.

Flower 1.41 serves all its interfaces on one port as HTTP paths: nodes use `/v1/fleet/`; with
`/v1/control/` and `/v1/runtime/` one submits runs and takes them over, without any password. So
the SuperLink listens on loopback, and nginx passes the paths of nodes on, one by one.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from fedsift.files import write_atomic
from fedsift.flower.certificates import Certificates
from fedsift.flower.keys import PublicKey, read_foreign
from fedsift.types import UserError

CONFIG, KEYS, RUNNING = "proxy.conf", "proxy-keys.map", "proxy"  # in the folder of certificates
PORT = 8443  # of the proxy, for nodes
LINK = "127.0.0.1:8000"  # the SuperLink, for the operator and the proxy
FLEET = (  # what a registered node calls; it cannot register itself
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "confirm-message-received",
)
UPLOAD = "push-object"  # the only one with a large body
# MiB. Flower cuts what a node sends into pieces, so no honest body is larger, whatever the
# experiment; one more for the envelope, which has less than 1 kB.
PIECE = 5
BODY = PIECE + 1
RATE, BURST = 20, 200  # requests of one node: a second, and at once before they are slowed down
AT_ONCE = 16  # connections of one node that do something
# Limits of an address, as many times those of a node. Whoever knows a public key gets as far as the
# node that has it, so one address must not have the limits of all keys.
BEHIND = 8
MOST_BEHIND = 4000  # nginx counts 65,535 connections at most
LARGEST = 1 << 20  # bytes of a configuration; ours has some 6 kB
VALUES = {  # what a configuration says, and where
    "listen": r"^ *listen (\S+) ssl;$",
    "link": r"^ *proxy_pass https://(\S+)/health;$",
    "body": rf"^ *location = /v1/fleet/{UPLOAD} .*?^ *client_max_body_size (\d{{1,9}})m;$",
    "rate": r" zone=node_requests:4m rate=(\d{1,9})r/s;$",
    "behind": r"^ *# Of one address: the limits of (\d{1,9}) nodes behind it\.$",
}


@dataclass(frozen=True)
class Proxy:
    """Where it listens, where the SuperLink is, and what one node may do."""

    certificates: Certificates
    listen: str = f"0.0.0.0:{PORT}"
    link: str = LINK
    body: int = BODY  # MiB
    rate: int = RATE
    behind: int = BEHIND  # nodes that may be behind one address

    def __post_init__(self) -> None:
        if not 0 < self.behind <= MOST_BEHIND:
            raise UserError(f"--behind must be 1 to {MOST_BEHIND}, not {self.behind}")
        _check_address(self.listen)
        host, _ = _check_address(self.link)
        if not ipaddress.ip_address(host).is_loopback:
            raise UserError(
                f"the SuperLink must listen on loopback, not on {self.link}: whoever reaches its"
                " port can run code on every node"
            )

    @property
    def config(self) -> Path:
        return self.certificates.folder / CONFIG

    def write(self) -> None:
        """The configuration, and the folder that nginx runs in; the keys are kept."""
        (self.certificates.folder / RUNNING).mkdir(mode=0o700, exist_ok=True)
        keys = self.certificates.folder / KEYS
        if not keys.exists():
            write_keys(self.certificates.folder, [])
        write_atomic(self.config, self.text().encode())

    def text(self) -> str:
        folder = self.certificates.folder.resolve()
        places = {
            "KEYS": folder / KEYS,
            "CA": folder / self.certificates.ca.name,
            "SERVER_KEY": folder / self.certificates.server_key.name,
            "SERVER": folder / self.certificates.server.name,
        }
        text = TEMPLATE.replace("FLEET_PATHS", "".join(map(self._location, (*FLEET, UPLOAD))))
        for name, path in places.items():
            text = text.replace(f"<{name}>", _quote(path))
        values = {"LISTEN": self.listen, "LINK": self.link, "RATE": self.rate}
        values |= {"BEHIND": self.behind, "ADDRESS_RATE": self.behind * self.rate}
        for name, value in values.items():
            text = text.replace(f"<{name}>", str(value))
        return text

    def _location(self, name: str) -> str:
        """One path. What goes on is this path and no other, however it was spelled."""
        path, room = f"/v1/fleet/{name}", self.body if name == UPLOAD else 1
        return (
            f"        location = {path} {{\n"
            "            if ($node = '') { return 401; }\n"
            "            limit_except POST { deny all; }\n"
            f"            limit_req zone=node_requests burst={BURST};\n"
            f"            limit_req zone=address_requests burst={self.behind * BURST};\n"
            f"            limit_conn node_connections {AT_ONCE};\n"
            f"            limit_conn address_connections {self.behind * AT_ONCE};\n"
            f"            client_max_body_size {room}m;\n"
            f"            client_body_buffer_size {room + 1}m;\n"  # never a file
            f"            proxy_pass https://{self.link}{path};\n"
            "        }\n"
        )

    def command(self) -> list[str]:
        """How to start it."""
        return _command(self.certificates.folder)


def change(made: Certificates, given: Mapping[str, Any]) -> Proxy:
    """With the values that are given; the others are those of the configuration that is there."""
    given = {name: value for name, value in given.items() if value is not None}
    config = made.folder / CONFIG
    kept = _read_values(config, [name for name in VALUES if name not in given])
    return Proxy(made, **kept | given)


def _read_values(config: Path, names: list[str]) -> dict[str, Any]:
    """What a configuration says; nothing if there is none."""
    if not config.exists():
        return {}
    try:
        text = read_foreign(config, LARGEST).decode(errors="replace")
    except ValueError as error:
        raise UserError(f"{config} is not a configuration of the proxy: {error}") from None
    found = {name: re.search(VALUES[name], text, re.MULTILINE | re.DOTALL) for name in names}
    if lost := [f"--{name}" for name, value in found.items() if value is None]:
        raise UserError(f"{config} does not say it any more: give {' and '.join(lost)}")
    values = {name: value[1] for name, value in found.items() if value}
    return {name: int(text) if text.isdigit() else text for name, text in values.items()}


def write_keys(folder: Path, keys: Iterable[PublicKey]) -> None:
    """The keys that the proxy lets in; it reads them when it starts and when it is reloaded."""
    lines = [f'"{header_value(key)}" "{key.fingerprint}";\n' for key in keys]
    write_atomic(folder / KEYS, "".join(lines).encode())


def reload(folder: Path) -> list[str] | None:
    """Make a proxy that runs here read its keys again; else the command that does so there."""
    command = [*_command(folder), "-s", "reload"]
    if not (folder / RUNNING / "nginx.pid").exists():
        return command
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        return None
    return command


def header_value(key: PublicKey) -> str:
    """The key as a SuperNode sends it with every request."""
    public = serialization.load_ssh_public_key(key.text.encode())
    encoding, format = (
        serialization.Encoding.PEM,
        serialization.PublicFormat.SubjectPublicKeyInfo,
    )
    return base64.b64encode(public.public_bytes(encoding, format)).decode()


def _command(folder: Path) -> list[str]:
    here = folder.resolve()
    return ["nginx", "-p", str(here / RUNNING), "-c", str(here / CONFIG)]


def _check_address(address: str) -> tuple[str, int]:
    """An address and a port, as nginx writes them."""
    found = re.fullmatch(r"(?:(\d+\.\d+\.\d+\.\d+)|\[([0-9a-fA-F:]+)\]):(\d{1,5})", address)
    try:
        if not found or not 0 < int(found[3]) < 65536:
            raise ValueError
        host = found[1] or found[2]
        ipaddress.ip_address(host)
    except ValueError:
        raise UserError(
            f"{address!r} is not an address and a port, e.g. 0.0.0.0:{PORT} or [::]:{PORT}"
        ) from None
    return host, int(found[3])


def _quote(path: Path) -> str:
    if not re.fullmatch(r"[^\"\\$\x00-\x1f\x7f]+", str(path)):
        raise UserError(
            f"nginx cannot take the path {str(path)!r}; choose a folder with a plain name"
        )
    return f'"{path}"'


TEMPLATE = """\
# The front door of a federation, written by `fedsift flower proxy`: see docs/security.md.
# Requests that name the public key of an admitted node get to Flower's Fleet interface, which
# checks that the sender has the key itself. Everything else is refused.
worker_processes 1;
pid nginx.pid;
error_log stderr warn;  # who was refused what; keep it with systemd's journal

events {
    worker_connections 1024;
}

http {
    access_log off;
    server_tokens off;
    # Bodies are kept in memory and are smaller than their buffers: these stay empty.
    client_body_temp_path body;
    proxy_temp_path temporary;
    fastcgi_temp_path temporary-fastcgi;
    uwsgi_temp_path temporary-uwsgi;
    scgi_temp_path temporary-scgi;

    # Public keys of admitted nodes. The SuperLink checks the signature, once it has read the
    # request. This keeps out the bodies of all who do not know such a key.
    map_hash_bucket_size 1024;
    map_hash_max_size 65536;
    # Limits go by fingerprint: nginx counts no connections of a name above 255 bytes.
    map $http_flwr_public_key $node {
        default "";
        include <KEYS>;
    }
    limit_req_zone $node zone=node_requests:4m rate=<RATE>r/s;
    limit_conn_zone $node zone=node_connections:4m;
    # Of one address: the limits of <BEHIND> nodes behind it.
    limit_req_zone $binary_remote_addr zone=address_requests:4m rate=<ADDRESS_RATE>r/s;
    limit_conn_zone $binary_remote_addr zone=address_connections:4m;
    limit_req_zone $binary_remote_addr zone=visitors:4m rate=2r/s;

    # A sender that stops is cut off; one that sends slowly holds up nobody else.
    client_header_timeout 20s;
    client_body_timeout 60s;
    send_timeout 60s;
    reset_timedout_connection on;

    server {
        listen <LISTEN> ssl;
        ssl_certificate <SERVER>;
        ssl_certificate_key <SERVER_KEY>;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sessions:4m;

        proxy_http_version 1.1;
        proxy_set_header Host $host;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header Connection "";
        proxy_ssl_trusted_certificate <CA>;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 300s;
        proxy_max_temp_file_size 0;
        client_max_body_size 1m;
        client_body_buffer_size 2m;

FLEET_PATHS        location = /health {
            limit_except GET { deny all; }
            limit_req zone=visitors burst=20 nodelay;
            proxy_pass https://<LINK>/health;
        }
        location / {
            deny all;
        }
    }
}
"""
