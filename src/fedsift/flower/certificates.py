"""A private certificate authority, server certificate and node keys, for TLS and authentication."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsift.files import write_atomic
from fedsift.types import UserError

SECRET = 0o600


@dataclass(frozen=True)
class Certificates:
    """The files in a folder that `create` made."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def node_key(self, node: int) -> Path:
        return self.folder / f"node-{node}.key"

    def node_public_key(self, node: int) -> Path:
        return self.folder / f"node-{node}.pub"


def create(
    folder: Path, nodes: int, hosts: Sequence[str] = ("127.0.0.1", "localhost"), days: int = 365
) -> Certificates:
    """An authority, a server certificate signed for `hosts`, node key pairs. Old files stay."""
    made = Certificates(folder)
    if made.ca.exists():
        raise UserError(
            f"{folder} has certificates already; choose another folder, or remove it to start again"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, authority_key = _authority(days)
    server_key = ec.generate_private_key(ec.SECP384R1())
    certificate = _sign(
        "fedsift server", server_key.public_key(), authority, authority_key, hosts, days
    )
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        write_atomic(
            made.node_key(node), _private(key, serialization.PrivateFormat.OpenSSH), SECRET
        )
        write_atomic(made.node_public_key(node), _public(key))
    write_atomic(folder / "ca.key", _private(authority_key), SECRET)
    write_atomic(made.server_key, _private(server_key), SECRET)
    write_atomic(made.server, certificate.public_bytes(serialization.Encoding.PEM))
    write_atomic(
        made.ca, authority.public_bytes(serialization.Encoding.PEM)
    )  # last: now it is complete
    return made


def commands(made: Certificates, nodes: int, host: str) -> str:
    """How to start a federation with these files: each block on its own machine."""
    ca, home = made.ca.name, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
    lines = [
        "# on the server (it needs ca.crt, server.crt and server.key)",
        f"{home} flower-superlink --host 0.0.0.0 --port 8000 --ssl-ca-certfile {ca} "
        f"--ssl-certfile {made.server.name} "
        f"--ssl-keyfile {made.server_key.name} --enable-supernode-auth",
        "",
        "# where you submit from: ~/.flwr/config.toml",
        f'#   [superlink]\n#   default = "ours"\n#   [superlink.ours]\n#   address = "{host}:8000"',
        f'#   root-certificates = "{made.ca.resolve()}"',
        *(
            f"flwr supernode register {made.node_public_key(node).name} ours"
            for node in range(nodes)
        ),
        "flwr run PROJECT ours --stream",
    ]
    for node in range(nodes):
        lines += [
            "",
            f"# on node {node} (it needs ca.crt and node-{node}.key)",
            f"flower-supernode --superlink {host}:8000 --root-certificates {ca} "
            f"--auth-supernode-private-key {made.node_key(node).name} "
            f"--node-config 'partition-id={node} memory=\"/var/lib/fedsift\"'",
        ]
    return "\n".join(lines) + "\n"


def _authority(days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedsift private authority")
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    built = (
        _start_certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return built.sign(key, hashes.SHA384()), key


def _sign(
    name: str,
    key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _start_certificate(_name(name), authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(
    key: ec.EllipticCurvePrivateKey,
    format: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption())


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
