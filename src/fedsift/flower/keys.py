"""The key of a node: made where the node is, and known to the server by its public half only."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift import files
from fedsift.files import write_atomic
from fedsift.types import UserError

SECRET = 0o600
LONGEST = 4096  # bytes of a public key's file; ours have about 250
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)  # those that Flower takes


@dataclass(frozen=True)
class PublicKey:
    """The two words of a line of OpenSSH: the kind and the key, without a comment."""

    text: str

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it, so that two people can compare it over the telephone."""
        digest = hashlib.sha256(base64.b64decode(self.text.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def create_key(path: Path) -> PublicKey:
    """A new private key in `path`, for its owner alone, and the public one in `path`.pub."""
    public = public_path(path)
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise UserError(f"{file} exists; choose another name, or move it away first")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it first")
    key = ec.generate_private_key(ec.SECP384R1())
    write_atomic(path, private_bytes(key, serialization.PrivateFormat.OpenSSH), SECRET)
    made = PublicKey(_openssh(key.public_key()))
    write_atomic(public, f"{made.text}\n".encode())
    return made


def public_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def read_public_key(path: Path) -> PublicKey:
    """The public key that somebody sent; a private one is refused, as it should never be sent."""
    try:
        content = read_foreign(path, LONGEST)
    except ValueError as error:
        raise UserError(f"{path} is not a public key of a node: {error}") from None
    if b"PRIVATE KEY" in content:
        raise UserError(
            f"{path} is a private key, which must stay on its node; make a new one there with:"
            " fedsift flower key FILE, and send FILE.pub"
        )
    try:
        return parse_public_key(content.decode())
    except (UserError, UnicodeDecodeError):
        raise UserError(
            f"{path} is not a public key of a node; make one there with: fedsift flower key FILE"
        ) from None


def read_foreign(path: Path, most: int) -> bytes:
    """The content of a file that somebody else wrote; ValueError says why it cannot be taken."""
    try:
        return files.read_bounded(path, most)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None


def parse_public_key(text: str) -> PublicKey:
    """Checked: one key of OpenSSH's format on a curve that Flower takes."""
    try:
        if len(text) > LONGEST or len(text.strip().splitlines()) != 1:
            raise ValueError
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise UserError("this is not a public key of a node") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise UserError("this is not a public key on a curve that Flower takes")
    return PublicKey(_openssh(key))


def private_bytes(
    key: ec.EllipticCurvePrivateKey,
    format: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption())


def _openssh(key: ec.EllipticCurvePublicKey) -> str:
    encoding, format = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(encoding, format).decode()
