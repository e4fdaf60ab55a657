"""The cryptography of secure aggregation: who adds masks that cancel, and how a drop-out's are removed.

Every two parties agree on a seed; one adds the words that follow from it, the other takes them away. Each adds words of a seed
of its own too. Seeds are shared among all, so that enough of them can give back one of a party's two, never fewer.
Keys by X25519 and HKDF, sealing by AES-GCM, words by AES in counter mode, shares by Shamir's polynomials.
Bonawitz et al. 2017, section 4.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Words = npt.NDArray[np.unsignedinteger[Any]]

# A share is a number below the prime, which is above every seed.
PRIME = 2**130 - 5
SEED_BYTES, SHARE_BYTES, KEY_BYTES = 16, 17, 32
SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
_ANY = X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))


def is_safe_threshold(threshold: int, count: int) -> bool:
    """Whether ``threshold`` of ``count`` parties may open a sum: at least two, and more than two thirds of them.

    Let parties release shares only for survivors that ``threshold`` of them signed. A server cannot then have two different
    lists accepted unless 2 * threshold - count parties help it, which is more than a third of them. Bonawitz et al. 2017,
    section 6 and Theorem 6.5.
    """
    return max(2, 2 * count // 3 + 1) <= threshold <= count


def new_seed() -> bytes:
    """16 bytes of the operating system's entropy, in simulations too: masks cancel, so no result depends on them."""
    return secrets.token_bytes(SEED_BYTES)


def public_key(seed: bytes) -> bytes:
    """The X25519 public key (32 bytes) whose private key follows from ``seed``."""
    return private_key(seed).public_key().public_bytes_raw()


def private_key(seed: bytes) -> X25519PrivateKey:
    """The private key that follows from ``seed``."""
    return X25519PrivateKey.from_private_bytes(_derive(seed, "private key"))


@lru_cache(maxsize=4096)
def is_usable(public_key: bytes) -> bool:
    """Whether a public key gives a secret with a private one; a few points of small order do with none. RFC 7748, section 6.1."""
    try:
        _ANY.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        return False
    return True


def agree(own: X25519PrivateKey, their_public_key: bytes, purpose: str) -> bytes:
    """32 bytes that only the two parties know; the same from either side.

    Args:
        own: One party's private key.
        their_public_key: The other party's, 32 bytes.
        purpose: What the bytes are for; another purpose gives other bytes.

    Raises:
        ValueError: for an impossible key.
    """
    shared = own.exchange(X25519PublicKey.from_public_bytes(their_public_key))
    return _derive(shared, f"agreed {purpose}")


def seal(key: bytes, text: bytes, sender: int, receiver: int) -> bytes:
    """``text`` encrypted and authenticated, with who sends it to whom.

    Args:
        key: Of sender and receiver, as ``agree`` gives it.
        text: What is sent.
        sender: The sender's number.
        receiver: The receiver's number.
    """
    nonce = secrets.token_bytes(12)
    return nonce + AESGCM(key).encrypt(nonce, text, f"{sender} {receiver}".encode())


def unseal(key: bytes, sealed: bytes, sender: int, receiver: int) -> bytes:
    """The text that ``seal`` took.

    Args:
        key: Of sender and receiver, as ``agree`` gives it.
        sealed: What ``seal`` returned.
        sender: The number of the party that it is said to be from.
        receiver: The number of the party that it is for.

    Raises:
        ValueError: when it was altered, or is from or for another.
    """
    try:
        return bytes(AESGCM(key).decrypt(sealed[:12], sealed[12:], f"{sender} {receiver}".encode()))
    except InvalidTag:
        raise ValueError("A sealed share was altered, or is not from whom it is said to be.") from None


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares 1 to ``count`` of a seed, of 17 bytes each: any ``threshold`` of them give it back, fewer say nothing.

    Shamir 1979, modulo 2^130 - 5.

    Args:
        seed: 16 bytes.
        threshold: Number of shares that give it back.
        count: Number of shares.

    Raises:
        ValueError: unless 1 <= threshold <= count.
    """
    if not 1 <= threshold <= count:
        raise ValueError(f"threshold must lie in [1, {count}], got {threshold}.")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [int.from_bytes(seed, "big")]
    shares = []
    for point in range(1, count + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The seed of which these are shares, by their number from 1; other bytes when they are too few or not of one seed."""
    points = tuple(sorted(shares))
    values = (int.from_bytes(shares[point], "big") for point in points)
    secret = sum(weight * value for weight, value in zip(_weights(points), values, strict=True)) % PRIME
    return secret.to_bytes(SHARE_BYTES, "big")[-SEED_BYTES:]


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's coefficients at 0; the same for all seeds of a round."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


def commitment(seed: bytes) -> bytes:
    """What is told of a seed beforehand, so that shares that are not of it are noticed."""
    return sha256(b"polyclinic secure aggregation " + seed).digest()


def own_mask(seed: bytes, size: int, word: np.dtype[Any]) -> Words:
    """The ``size`` words that a party adds by itself.

    Args:
        seed: The party's secret for its own mask.
        size: Number of words.
        word: The unsigned integers.
    """
    return _words(_derive(seed, "own mask"), size, word)


def pair_masks(
    seed: bytes, index: int, public_keys: Mapping[int, bytes], size: int, word: np.dtype[Any], purpose: str
) -> Words:
    """The ``size`` words that party ``index`` adds for all others of ``public_keys``: these of all parties sum to zero.

    Of two parties the one with the smaller index adds and the other subtracts, modulo the word.

    Args:
        seed: Of the party's private key.
        index: The party's own number.
        public_keys: Of all parties, by number; the party's own is passed over.
        size: Number of words.
        word: The unsigned integers.
        purpose: Names run and round, so that keys used twice by mistake would still not give the same words.
    """
    own, total = private_key(seed), np.zeros(size, dtype=word)
    for other, key in public_keys.items():
        if other != index:
            words = _words(agree(own, key, f"mask {purpose}"), size, word)
            total = total + words if index < other else total - words
    return total


def _derive(secret: bytes, purpose: str) -> bytes:
    info = f"polyclinic secure aggregation: {purpose}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def _words(key: bytes, size: int, word: np.dtype[Any]) -> Words:
    # Every key serves for one keystream only, so the counter begins at zero.
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    # Little-endian on every machine, or masks of unlike machines would not cancel.
    return np.frombuffer(stream.update(bytes(size * word.itemsize)), dtype=word.newbyteorder("<")).astype(word)
