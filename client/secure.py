"""The hospital's half of a secure sum: its keys, shares of its seeds, its masked update, and what removes others' masks.

What it signs in each phase, and whose signatures it asks for, is in ``polyclinic.client.agreement``.

Each phase of a round is answered once. Asked the same again, a hospital sends what it sent before; asked otherwise, it
refuses: two answers from the same seeds could be subtracted, and two sums with the same update as well. Its secrets are
erased when it has told what removes the round's masks, or when a later round of the run begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from polyclinic.client.agreement import (
    check_keys_signed,
    check_outcome_signed,
    check_terms_signed,
    keys_statement,
    outcome_statement,
    own_identity,
    sign_statement,
    terms_statement,
)
from polyclinic.client.calls import Answer, Call, each
from polyclinic.client.checks import check_names, check_policy, check_shared_noise
from polyclinic.client.home.releases import Reply, is_released
from polyclinic.client.home.secure_files import (
    erase_earlier_secrets,
    erase_secrets,
    make_room,
    once,
    read_secrets,
    refusal,
    write_secrets,
)
from polyclinic.config import secure_terms
from polyclinic.digests import digest
from polyclinic.privacy.secure import secure_sum
from polyclinic.privacy.secure.distributed import SumTerms
from polyclinic.privacy.secure.secure_sum import KEY_BYTES, SEALED_BYTES, SEED_BYTES, SHARE_BYTES
from polyclinic.privacy.secure.signatures import public_identity
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record
from polyclinic.wire.compression import flatten
from polyclinic.wire.messages import (
    SECURE,
    RoundRequest,
    SecureConfirmRequest,
    SecureKeysRequest,
    SecureSharesRequest,
    SecureUnmaskRequest,
    TrainRequest,
)

A = TypeVar("A", bound=RoundRequest)
# What a phase's message holds.
_PUBLIC = {
    "peers": np.int64, "sealing": np.uint8, "mask": np.uint8, "identity": np.uint8, "signature": np.uint8,
    "weights": np.float64,
}  # fmt: skip
_ARRIVED = {"survivors": np.int64}
_AGREED = {"signers": np.int64, "signatures": np.uint8, "senders": np.int64, "sealed": np.uint8}
# The parts of a hospital's secrets that are made first: seeds of the key that seals, of pair masks, and of its own mask.
_SEEDS = ("sealing", "mask", "own")


def keys(calls: Sequence[Call[SecureKeysRequest]]) -> list[Answer]:
    """Two public keys for the round, signed, and a commitment to the seed of the hospital's own mask."""

    def answer(call: Call[SecureKeysRequest]) -> Arrays:
        _check_allowed(call)
        seeds = {name: secure_sum.new_seed() for name in _SEEDS}
        make_room(call)
        erase_earlier_secrets(call)
        write_secrets(call, {
            "site": np.array([call.request.site], dtype=np.int64),
            **{name: _bytes(seed, SEED_BYTES) for name, seed in seeds.items()},
        })  # fmt: skip
        sealing, mask = (secure_sum.public_key(seeds[name]) for name in ("sealing", "mask"))
        signature = sign_statement(call, "keys", keys_statement(call, call.request.site, sealing, mask))["signature"]
        return {
            "sealing": _bytes(sealing, KEY_BYTES), "mask": _bytes(mask, KEY_BYTES),
            "commitment": _bytes(secure_sum.commitment(seeds["own"]), KEY_BYTES),
            "identity": _bytes(public_identity(own_identity(call)), KEY_BYTES), "signature": signature,
        }  # fmt: skip

    return each(lambda call: once(call, "secure-keys", "", answer), calls)


def _check_allowed(call: Call[SecureKeysRequest]) -> None:
    """Raises PolyclinicError before anything is made for a sum to which no policy check of its training would lead."""
    config = call.config
    if not config.secure.aggregation:
        raise refusal(call, "the run's configuration has secure.aggregation at false")
    check_names(call.hospital, config)
    if not config.privacy.dp:
        check_policy(call.hospital, config.task, None)
    if config.secure.shared_noise:
        check_shared_noise(call.hospital)


def shares(calls: Sequence[Call[SecureSharesRequest]]) -> list[Answer]:
    """A share of both seeds for every hospital of the round, each sealed for the one that it is for, and the signed terms."""

    def answer(call: Call[SecureSharesRequest]) -> Arrays:
        secrets, public, threshold = read_secrets(call), _phase_arrays(call, _PUBLIC), call.request.threshold
        peers = [int(peer) for peer in public["peers"]]
        _check_peers(call, secrets, public, peers)
        check_keys_signed(call, public, peers)
        count, own_index = len(peers), call.request.site
        _check_threshold(call, threshold, count)
        parts = list(zip(
            secure_sum.split(secrets["own"].tobytes(), threshold, count),
            secure_sum.split(secrets["mask"].tobytes(), threshold, count), strict=True,
        ))  # fmt: skip
        own_key = secure_sum.private_key(secrets["sealing"].tobytes())
        sealed = np.zeros((count, SEALED_BYTES), dtype=np.uint8)
        for row, (peer, key, (own, mask)) in enumerate(zip(peers, public["sealing"], parts, strict=True)):
            if peer != own_index:
                agreed = secure_sum.agree(own_key, key.tobytes(), _purpose(call, "seal"))
                sealed[row] = _bytes(secure_sum.seal(agreed, own + mask, own_index, peer), SEALED_BYTES)
        listed = digest(threshold, public)
        write_secrets(call, secrets | {
            "peers": np.array(peers, dtype=np.int64), "sealing-keys": public["sealing"], "mask-keys": public["mask"],
            "identities": public["identity"], "threshold": np.array([threshold], dtype=np.int64),
            "weight": public["weights"][[peers.index(own_index)]],
            "listed": np.frombuffer(bytes.fromhex(listed), dtype=np.uint8),
            "kept-share": _bytes(parts[peers.index(own_index)][0], SHARE_BYTES),
        })  # fmt: skip
        return {"sealed": sealed} | sign_statement(call, "terms", terms_statement(call, listed))

    def identity(call: Call[SecureSharesRequest]) -> str:
        return digest(call.request.threshold, _phase_arrays(call, _PUBLIC), call.config.decisive())

    return each(lambda call: once(call, "secure-shares", identity(call), answer), calls)


def _check_threshold(call: Call[SecureSharesRequest], threshold: int, count: int) -> None:
    if not secure_sum.is_safe_threshold(threshold, count):
        raise refusal(call, f"the threshold {threshold} is not over two thirds of {count} hospitals, and at least 2")


def check_upload(call: Call[TrainRequest], origin: Arrays) -> None:
    """Raises PolyclinicError, before anything is charged, when a difference from ``origin`` cannot leave under agreed masks."""
    request = call.request
    if is_released(Reply(call.hospital.home, request.run, "train", request.round)):
        return  # what left is sent again, or the question is refused
    secrets, parties = read_secrets(call), request.secure_parties or []
    if "peers" not in secrets:
        raise refusal(call, "no shares of its seeds were made in this round")
    if (
        parties != sorted(set(parties) & set(secrets["peers"].tolist()))
        or request.site not in parties
        or len(parties) < int(secrets["threshold"][0])
    ):
        raise refusal(call, f"an upload for the hospitals {parties} is not one for those that shared their seeds")
    check_terms_signed(call, secrets, parties)
    if not _terms(call, secrets, origin).resolves(flatten(origin, np.float64)):
        raise refusal(call, "the model's numbers are too large for one patient's part to be kept apart from rounding")


def mask_update(call: Call[TrainRequest], trained: Arrays, origin: Arrays, question: str) -> Arrays:
    """The words that leave for a difference: clipped, rounded, noised, and masked; uniform to all but the sum.

    Call ``check_upload`` before. The hospital keeps for whom it masked, and what it was asked.

    Args:
        call: The request to train, which names the parties of the sum.
        trained: The model after training.
        origin: The model that was sent, from which the difference is taken.
        question: The digest, in hexadecimal, of all that must be the same for every hospital of the sum.
    """
    secrets, request = read_secrets(call), call.request
    keys = dict(zip(secrets["peers"].tolist(), (row.tobytes() for row in secrets["mask-keys"]), strict=True))
    parties = {party: keys[party] for party in request.secure_parties or []}
    difference = flatten(trained, np.float64) - flatten(origin, np.float64)
    terms = _terms(call, secrets, origin)
    weight = 1.0 if call.config.secure.shared_noise else float(secrets["weight"][0])
    rounding = call.hospital.stream("secure-rounding", request.round)
    integers = terms.noised(
        terms.rounded(difference, weight, rounding), call.hospital.stream("secure-noise", request.round)
    )
    own = secure_sum.own_mask(secrets["own"].tobytes(), terms.size, terms.word)
    purpose = terms.purpose(request.run, request.round, bytes.fromhex(question))
    pairs = secure_sum.pair_masks(secrets["mask"].tobytes(), request.site, parties, terms.size, terms.word, purpose)
    write_secrets(call, secrets | {
        "parties": np.array(list(parties), dtype=np.int64),
        "question": np.frombuffer(bytes.fromhex(question), dtype=np.uint8),
        "terms": np.frombuffer(terms_statement(call, secrets["listed"].tobytes().hex()), dtype=np.uint8),
    })  # fmt: skip
    return {"masked": terms.words(integers) + own + pairs}


def _terms(call: Call[TrainRequest], secrets: Arrays, origin: Arrays) -> SumTerms:
    parties, threshold = len(secrets["peers"]), int(secrets["threshold"][0])
    return secure_terms(call.config, flatten(origin).size, parties, threshold, call.request.noise_multiplier)


def confirm(calls: Sequence[Call[SecureConfirmRequest]]) -> list[Answer]:
    """The signed outcome of the round, with the survivors that this hospital is told."""

    def answer(call: Call[SecureConfirmRequest]) -> Arrays:
        secrets, survivors = read_secrets(call), _phase_arrays(call, _ARRIVED)["survivors"].tolist()
        if "parties" not in secrets:
            raise refusal(call, "it sent no masked update in this round")
        parties = secrets["parties"].tolist()
        if survivors != sorted(set(survivors) & set(parties)) or call.request.site not in survivors:
            raise refusal(call, f"the survivors {survivors} are not hospitals for which it masked its update")
        if len(survivors) < int(secrets["threshold"][0]):
            raise refusal(call, f"{len(survivors)} survivors are fewer than the threshold {secrets['threshold'][0]}")
        outcome = outcome_statement(call, secrets, survivors)
        write_secrets(call, secrets | {
            "survivors": np.array(survivors, dtype=np.int64), "outcome": np.frombuffer(outcome, dtype=np.uint8),
        })  # fmt: skip
        return {"question": secrets["question"]} | sign_statement(call, "outcome", outcome)

    return each(lambda call: once(call, "secure-confirm", digest(_phase_arrays(call, _ARRIVED)), answer), calls)


def unmask(calls: Sequence[Call[SecureUnmaskRequest]]) -> list[Answer]:
    """Of every hospital for which this one masked, one share: of its own mask if it arrived, of its pair masks if not."""

    def answer(call: Call[SecureUnmaskRequest]) -> Arrays:
        secrets, agreed = read_secrets(call), _phase_arrays(call, _AGREED)
        if "outcome" not in secrets:
            raise refusal(call, "it has signed no outcome of this round")
        check_outcome_signed(call, secrets, agreed)
        parties, survivors = secrets["parties"].tolist(), secrets["survivors"].tolist()
        senders = [party for party in parties if party != call.request.site]
        if agreed["senders"].tolist() != senders or agreed["sealed"].shape != (len(senders), SEALED_BYTES):
            raise refusal(call, "the sealed shares are not one from each other hospital for which it masked its update")
        sealed = dict(zip(senders, (row.tobytes() for row in agreed["sealed"]), strict=True))
        return {"shares": _open_shares(call, secrets, sealed, parties, survivors)}

    def last(call: Call[SecureUnmaskRequest]) -> RecordDict:
        # Not by who signed: whoever else agreed to the same outcome, the same shares leave.
        agreed = _phase_arrays(call, _AGREED)
        identity = digest({name: agreed[name] for name in ("senders", "sealed")})
        reply = once(call, "secure-unmask", identity, answer)
        erase_secrets(call)
        return reply

    return each(last, calls)


def _open_shares(
    call: Call[SecureUnmaskRequest],
    secrets: Arrays,
    sealed: Mapping[int, bytes],
    parties: list[int],
    survivors: list[int],
) -> np.ndarray:
    """The one share of each party's two that may leave: (parties, 17)."""
    own_key, peers, rows = secure_sum.private_key(secrets["sealing"].tobytes()), secrets["peers"].tolist(), []
    for party in parties:
        if party == call.request.site:
            rows.append(secrets["kept-share"])
            continue
        key = secrets["sealing-keys"][peers.index(party)].tobytes()
        agreed = secure_sum.agree(own_key, key, _purpose(call, "seal"))
        try:
            both = secure_sum.unseal(agreed, sealed[party], party, call.request.site)
        except ValueError as error:
            raise refusal(call, str(error).rstrip(".")) from None
        rows.append(_bytes(both[:SHARE_BYTES] if party in survivors else both[SHARE_BYTES:], SHARE_BYTES))
    return np.stack(rows)


def _check_peers(call: Call[SecureSharesRequest], secrets: Arrays, public: Arrays, peers: list[int]) -> None:
    """The list of public keys holds this hospital's own at its place, and none that is impossible or there twice."""
    own = call.request.site
    if peers != sorted(set(peers)) or own not in peers:
        raise refusal(call, f"the hospitals {peers} are not in order, or it is not among them")
    for name in ("sealing", "mask"):
        if public[name].shape != (len(peers), KEY_BYTES) or len({row.tobytes() for row in public[name]}) < len(peers):
            raise refusal(call, f"the {name} keys are not one for each hospital")
        if public[name][peers.index(own)].tobytes() != secure_sum.public_key(secrets[name].tobytes()):
            raise refusal(call, f"the {name} key at its place is not its own")
        for peer, row in zip(peers, public[name], strict=True):
            if not secure_sum.is_usable(row.tobytes()):
                raise refusal(call, f"the {name} key of hospital {peer} is of small order")
    weights = public["weights"]
    if weights.shape != (len(peers),) or not ((weights > 0) & (weights <= 1)).all():
        raise refusal(call, "the weights are not one above 0 and at most 1 for each hospital")


def _phase_arrays(call: Call[A], wanted: Mapping[str, type]) -> Arrays:
    """The arrays of a phase's message."""
    record = call.content.get(SECURE)
    arrays = from_record(record) if isinstance(record, ArrayRecord) else {}
    if {name: value.dtype for name, value in arrays.items()} != wanted or any(
        value.ndim != (2 if value.dtype == np.uint8 else 1) for value in arrays.values()
    ):
        raise refusal(call, f"the message does not hold {', '.join(wanted)}, lists of numbers and tables of bytes")
    return arrays


def _purpose(call: Call[A], what: str) -> str:
    return f"{what} {call.request.run} {call.request.round}"


def _bytes(value: bytes, size: int) -> np.ndarray:
    if len(value) != size:
        raise ValueError(f"{size} bytes are needed, not {len(value)}.")
    return np.frombuffer(value, dtype=np.uint8)
