"""Long-term keys by which hospitals know each other, and what they sign with them. Ed25519 (RFC 8032)."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64
STATEMENT_BYTES = 32


def new_identity() -> bytes:
    """A private key, 32 bytes of the operating system's entropy."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(identity: bytes) -> bytes:
    """The public key (32 bytes) of a private one. Raises ValueError when it is none."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def sign(identity: bytes, text: bytes) -> bytes:
    """64 bytes that only the holder of the private key can make of ``text``."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(text)


def statement(subject: str, run: str, round: int, *parts: str | int | list[int]) -> bytes:
    """The 32 bytes that a hospital signs to state ``parts`` of a secure sum: of one subject, for one run and one round only.

    Args:
        subject: What the statement is about.
        run: The name of the run.
        round: The number of the round.
        parts: What is stated.
    """
    return sha256(json.dumps(["polyclinic secure sum", subject, run, round, *parts]).encode()).digest()


# The hospitals of a simulation all check the same signatures.
@lru_cache(maxsize=4096)
def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the holder of the public key's private key signed ``text``.

    Args:
        public: The Ed25519 public key, 32 bytes.
        signature: What is checked. A malformed key or signature gives False.
        text: What was signed.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
