"""What the hospitals of a secure sum sign for each other, so that none goes on when the server tells them different things.

A hospital signs its keys, then the sum's terms with everyone's keys, and last the outcome: the question, the hospitals for
which it masked its update, and whose updates arrived. It trains only when all for which it masks signed the same terms, and
helps to open the sum only when the threshold of hospitals signed the same outcome. Each signature is for one run and round.
Bonawitz et al. 2017, section 6, whose check of consistency covers the survivors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from polyclinic.client.calls import Call
from polyclinic.client.home.identity import identity
from polyclinic.client.home.secure_files import refusal
from polyclinic.privacy.secure.secure_sum import KEY_BYTES
from polyclinic.privacy.secure.signatures import SIGNATURE_BYTES, is_signed, public_identity, sign, statement
from polyclinic.types import Arrays
from polyclinic.wire.messages import RoundRequest, TrainRequest

A = TypeVar("A", bound=RoundRequest)


def own_identity(call: Call[A]) -> bytes:
    """The private key with which the call's hospital signs."""
    return identity(call.hospital.home, durable=not call.hospital.simulated)


def sign_statement(call: Call[A], name: str, stated: bytes) -> Arrays:
    """The answer that holds a statement as ``name``, (32,) uint8, and this hospital's ``signature`` of it, (64,) uint8.

    Args:
        call: The message; its hospital signs with its own identity.
        name: The name under which the statement is in the answer.
        stated: The statement, 32 bytes.
    """
    signature = sign(own_identity(call), stated)
    return {name: np.frombuffer(stated, dtype=np.uint8), "signature": np.frombuffer(signature, dtype=np.uint8)}


def keys_statement(call: Call[A], site: int, sealing: bytes, mask: bytes) -> bytes:
    """States that a hospital's keys are those of place ``site``.

    Args:
        call: The message; its run and round are part of the statement.
        site: The hospital's index in the sum.
        sealing: The public key to which others seal their shares.
        mask: The public key from which pairs of hospitals derive their masks.
    """
    return statement("keys", call.request.run, call.request.round, site, sealing.hex(), mask.hex())


def terms_statement(call: Call[A], listed: str) -> bytes:
    """States the sum's terms: the list of hospitals with its threshold (``listed``, a digest), and the run's configuration."""
    return statement("terms", call.request.run, call.request.round, listed, call.config.decided)


def outcome_statement(call: Call[A], secrets: Arrays, survivors: list[int]) -> bytes:
    """States the terms, the question that was trained on, for whom the update was masked, and whose updates arrived.

    Args:
        call: The message; its run and round are part of the statement.
        secrets: The hospital's file of the round, with ``terms``, ``question`` and ``parties``.
        survivors: The indices of the hospitals whose updates arrived.
    """
    terms, question = secrets["terms"].tobytes().hex(), secrets["question"].tobytes().hex()
    parties = secrets["parties"].tolist()
    return statement("outcome", call.request.run, call.request.round, terms, question, parties, survivors)


def check_keys_signed(call: Call[A], public: Arrays, peers: list[int]) -> None:
    """Checks that each pair of keys was signed for its place by an identity of its own.

    Where the policy has a list of known hospitals, every identity must be on it or the hospital's own.

    Args:
        call: The message of the round.
        public: ``sealing``, ``mask``, ``identity`` and ``signature`` of each hospital, uint8, one row each.
        peers: The hospitals' indices, in the order of the rows.

    Raises:
        PolyclinicError: A signature is missing or wrong, an identity comes twice, or the policy does not know it.
    """
    count, policy = len(peers), call.hospital.policy
    if public["identity"].shape != (count, KEY_BYTES) or public["signature"].shape != (count, SIGNATURE_BYTES):
        raise refusal(call, "the signatures are not one for each hospital")
    allowed = {bytes.fromhex(key) for key in policy.known_hospitals} | {public_identity(own_identity(call))}
    rows = zip(*(map(bytes, public[name]) for name in ("sealing", "mask", "identity", "signature")), strict=True)
    signers: set[bytes] = set()
    for peer, (sealing, mask, signer, signature) in zip(peers, rows, strict=True):
        if signer in signers or not is_signed(signer, signature, keys_statement(call, peer, sealing, mask)):
            raise refusal(call, f"the keys of hospital {peer} are not signed by an identity of its own")
        if policy.known_hospitals and signer not in allowed:
            raise refusal(call, f"the keys of hospital {peer} are not signed by a hospital that the policy knows")
        signers.add(signer)


def check_terms_signed(call: Call[TrainRequest], secrets: Arrays, parties: Sequence[int]) -> None:
    """Checks that every one of the ``parties`` signed the terms as this hospital was told them.

    The terms hold the configuration of this very call: one that changed since they were signed is refused as well.

    Args:
        call: The request to train, with one signature for each party.
        secrets: The hospital's file of the round, with ``listed`` and the identities of all hospitals.
        parties: The indices of the hospitals for which this one would mask, in the order of the signatures.

    Raises:
        PolyclinicError: A signature is missing or is not of these terms.
    """
    signatures = call.request.secure_signatures or []
    if len(signatures) != len(parties):
        raise refusal(call, "the signatures of the sum's terms are not one for each hospital")
    terms = terms_statement(call, secrets["listed"].tobytes().hex())
    identities = _identities(secrets)
    for party, signature in zip(parties, signatures, strict=True):
        if not is_signed(identities[party], signature, terms):
            raise refusal(
                call,
                f"hospital {party} did not sign the list of hospitals and the terms that this one was told, or runs another "
                "version",
            )


def check_outcome_signed(call: Call[A], secrets: Arrays, received: Arrays) -> None:
    """Checks that at least the threshold of survivors signed the outcome that this hospital signed.

    Args:
        call: The message of the round.
        secrets: The hospital's file of the round, with ``survivors``, ``outcome``, ``threshold`` and the identities.
        received: ``signers``, the sorted indices of those who signed, and their ``signatures``, (signers, 64) uint8.

    Raises:
        PolyclinicError: The signatures are not one from each signer, or fewer than the threshold are valid.
    """
    survivors, signers = secrets["survivors"].tolist(), received["signers"].tolist()
    if signers != sorted(set(signers) & set(survivors)) or received["signatures"].shape != (
        len(signers),
        SIGNATURE_BYTES,
    ):
        raise refusal(call, "the signatures of the outcome are not one from each of some survivors")
    identities, outcome = _identities(secrets), secrets["outcome"].tobytes()
    agreed = sum(
        is_signed(identities[signer], bytes(row), outcome)
        for signer, row in zip(signers, received["signatures"], strict=True)
    )
    threshold = int(secrets["threshold"][0])
    if agreed < threshold:
        raise refusal(
            call,
            f"{agreed} hospitals signed the question, the parties and the survivors that this one was told, fewer than the "
            f"threshold {threshold}",
        )


def _identities(secrets: Arrays) -> dict[int, bytes]:
    return {peer: bytes(row) for peer, row in zip(secrets["peers"].tolist(), secrets["identities"], strict=True)}
