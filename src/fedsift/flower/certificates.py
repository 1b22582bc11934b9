"""A private certificate authority and the server's certificate, for TLS."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsift.files import write_atomic
from fedsift.flower.keys import SECRET, private_bytes, read_foreign
from fedsift.types import UserError

# Flower's own processes on the server, and the proxy, reach the SuperLink by these.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST = 1 << 16  # bytes of a certificate or its key
AUTHORITY_DAYS = 3650  # nodes have a copy of ca.crt, so it outlives the server's certificates


@dataclass(frozen=True)
class Certificates:
    """The files in a folder that `create` made."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


def create(folder: Path, hosts: Sequence[str] = LOOPBACK, days: int = 365) -> Certificates:
    """An authority, and a server certificate signed for `hosts` and loopback. Old files stay."""
    made = Certificates(folder)
    if made.ca.exists():
        raise UserError(
            f"{folder} has certificates already; add --renew for a new server certificate of the"
            " same authority, or choose another folder"
        )
    _check_hosts(hosts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, authority_key = _authority(max(days, AUTHORITY_DAYS))
    write_atomic(made.ca_key, private_bytes(authority_key), SECRET)
    _write_server(made, authority, authority_key, hosts, days)
    write_atomic(
        made.ca, authority.public_bytes(serialization.Encoding.PEM)
    )  # last: now it is complete
    return made


def renew(folder: Path, hosts: Sequence[str] | None = None, days: int = 365) -> Certificates:
    """A new key and certificate of the server from the same authority: nodes need nothing new.

    Without `hosts`, those of the old certificate.
    """
    made = Certificates(folder)
    authority, content = _read_certificate(made.ca), _read(made.ca_key)
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        authority.public_key()
    ):
        raise UserError(f"{made.ca_key} is not the key of {made.ca}; bring back the right one")
    left = (authority.not_valid_after_utc - datetime.now(UTC)).days
    if left < 1:
        raise UserError(f"the authority in {folder} has expired; make new ones in another folder")
    _check_hosts(hosts or ())
    _write_server(made, authority, key, hosts or read_hosts(made), min(days, left))
    return made


def read_hosts(made: Certificates) -> list[str]:
    """The names and addresses that the server's certificate is for, in their order."""
    extensions = _read_certificate(made.server).extensions
    with contextlib.suppress(x509.ExtensionNotFound):
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names]
    raise UserError(f"{made.server} names no host; renew it with --host NAME")


def _write_server(
    made: Certificates,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys([*hosts, *LOOPBACK]))
    signed = _sign("fedsift server", key.public_key(), authority, authority_key, names, days)
    write_atomic(made.server_key, private_bytes(key), SECRET)
    write_atomic(made.server, signed.public_bytes(serialization.Encoding.PEM))


def _read_certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise UserError(f"{path} is not a certificate") from None


def _read(path: Path) -> bytes:
    try:
        return read_foreign(path, LARGEST)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


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


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-f:]{2,39}", host):
            raise UserError(f"{host!r} is not a name or an address of a host")


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
