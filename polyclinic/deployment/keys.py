"""A node's key pair, by which the SuperLink knows it: ECDSA on NIST P-384, in OpenSSH's form, as Flower reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from polyclinic.errors import ConfigError


@dataclass(frozen=True)
class NodeKey:
    """``private`` is a file's content; ``public`` one line."""

    private: bytes
    public: str


def make_node_key(site: str) -> NodeKey:
    """A new pair; the site's name becomes the public key's comment."""
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return NodeKey(private, f"{line} {'-'.join(site.split())}")


def read_public_key(path: Path) -> bytes:
    """The key as Flower's control takes it (PEM). Raises ConfigError for anything but a public P-384 key of OpenSSH's form."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The public key {path} cannot be read: {error.strerror}.") from None
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{path} is a private key; the hospital keeps that and sends its node.pub.")
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} is no public key of OpenSSH's form.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError(f"{path} is no ECDSA key on NIST P-384, as `polyclinic hospital init` makes it.")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_private_key(path: Path) -> None:
    """Raises ConfigError for anything but a private P-384 key of OpenSSH's form without a passphrase."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError(
            f"{path} is no private key, or a damaged one; restore it from a backup, or make a new one with `polyclinic hospital "
            "rekey`, which the coordinator's operator then registers."
        )
