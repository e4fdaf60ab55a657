"""The server's half of a secure sum: it relays keys and sealed shares, adds masked updates, and opens the sum alone.

Four exchanges stand around a round's training: keys, shares, and afterwards who arrived and what removes the masks. A
hospital may drop out of any of them, up to ``secure.dropouts`` of the round's cohort; with more the sum stays closed. The
server passes on what hospitals sign for each other, and leaves out those whose signatures would stop the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from polyclinic.config import secure_terms
from polyclinic.errors import whose
from polyclinic.privacy.secure import secure_sum
from polyclinic.privacy.secure.distributed import SumTerms
from polyclinic.privacy.secure.secure_sum import KEY_BYTES, SEALED_BYTES, SHARE_BYTES
from polyclinic.privacy.secure.signatures import SIGNATURE_BYTES, STATEMENT_BYTES, is_signed, statement
from polyclinic.server.exchange.cohort import secure_threshold
from polyclinic.server.exchange.merging import arrays_of
from polyclinic.server.exchange.replies import TooFew
from polyclinic.server.exchange.sites import Site, SiteGrid
from polyclinic.server.state import Run
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.compression import flatten, unflatten
from polyclinic.wire.messages import (
    SECURE,
    SECURE_CONFIRM,
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_UNMASK,
    Request,
    SecureConfirmRequest,
    SecureKeysRequest,
    SecureSharesRequest,
    SecureUnmaskRequest,
)

Dropped = list[tuple[Site, str]]


class SumRefused(TooFew):
    """Fewer hospitals than the threshold are left in a phase; nothing of the round's updates is known."""


@dataclass(frozen=True, eq=False)
class Opened:
    """``reply`` with the mean alone; who did not help to remove masks; what has been spent of a whole hospital."""

    reply: Message
    dropped: Dropped
    epsilon: float | None


@dataclass(frozen=True, eq=False)
class SecureSum:
    """One round's sum after keys and shares were exchanged; all of it is public.

    ``peers``: who sent keys
    ``parties``: who of them shared its seeds, so that updates are masked for these
    ``keys``, ``shared``: the answers of both exchanges, by the hospital's index
    ``scale``: what makes weighted updates of what is summed
    """

    run: Run
    round: int
    terms: SumTerms
    peers: tuple[Site, ...]
    parties: tuple[Site, ...]
    keys: dict[int, Arrays]
    shared: dict[int, Arrays]
    weights: dict[str, float]
    scale: float = 1.0

    @property
    def indices(self) -> list[int]:
        """The parties as hospitals know each other."""
        return [site.index for site in self.parties]

    @property
    def signatures(self) -> list[bytes]:
        """The parties' signatures of the sum's terms."""
        return [bytes(self.shared[index]["signature"]) for index in self.indices]

    def problem(self, reply: Message) -> str | None:
        """Why a reply is no masked update, or None."""
        records = arrays_of(reply)
        arrays = from_record(records[0][1]) if len(records) == 1 else {}
        masked = arrays.get("masked")
        if masked is None or len(arrays) != 1 or masked.shape != (self.terms.size,) or masked.dtype != self.terms.word:
            return f"the reply is not one masked vector of {self.terms.size} numbers"
        return None

    def open(self, replies: Sequence[tuple[Site, Message]], origin: Arrays, key: str) -> Opened:
        """The mean of the answers of the hospitals that replied, weighted, as a strategy would see it of one hospital alone.

        Args:
            replies: The hospitals that replied, with their masked answers.
            origin: From which answers are differences (``Program.origin``).
            key: The metric that carries the total weight.

        Raises:
            SumRefused: Fewer than the threshold help to remove the masks.
            BudgetRefused: The ledger refuses the charge.
        """
        arrived = {site.index: from_record(arrays_of(reply)[0][1])["masked"] for site, reply in replies}
        epsilon = self._charge(arrived)
        confirmed, silent = self._confirm_survivors([site for site, _ in replies])
        shares, dropped = self._shares(confirmed)
        question = _most_common(bytes(arrays["question"]) for arrays in confirmed.values())
        total = sum(arrived.values(), np.zeros(self.terms.size, dtype=self.terms.word))
        for party in self.parties:
            seed = self._seed(party, {point: rows[party.index] for point, rows in shares.items()}, arrived)
            total = total - self._mask(party.index, seed, arrived, question)
        weight = sum(self.weights[site.name] for site, _ in replies)
        mean = unflatten(
            flatten(origin, np.float64) + self.scale * self.terms.total(total) / weight, _as_float64(origin)
        )
        reply = copy(replies[0][1])
        reply.content = RecordDict({"arrays": to_record(mean), "metrics": MetricRecord({key: weight})})
        return Opened(reply, silent + dropped, epsilon)

    def _charge(self, arrived: dict[int, np.ndarray]) -> float | None:
        """Pay for the sum before it can be opened; the same updates again have the same sum, which is paid for once."""
        if self.run.ledger is None:
            return None
        release = sha256(b"".join(vector.tobytes() for _, vector in sorted(arrived.items()))).hexdigest()
        # How many drop out follows from no answer, so that every number that may be left counts as declared.
        sums = [
            (self.terms.event(left), self.run.config.rounds)
            for left in range(self.terms.threshold, self.terms.parties + 1)
        ]
        event = self.terms.event(len(arrived))
        return self.run.ledger.charge(event, "secure-sum", self.run.name, self.round, release, sums)

    def _confirm_survivors(self, survivors: Sequence[Site]) -> tuple[dict[int, Arrays], Dropped]:
        """The signatures of the survivors that signed the same outcome, by index."""
        alive = {"survivors": np.array([site.index for site in survivors], dtype=np.int64)}
        signed = {"question": (KEY_BYTES,), "outcome": (STATEMENT_BYTES,), "signature": (SIGNATURE_BYTES,)}
        answers, dropped = _ask(
            self.run, self.round, survivors, SECURE_CONFIRM, SecureConfirmRequest, lambda site: alive, signed
        )
        answers, unlike = _alike(survivors, answers, self.keys, "outcome")
        _check_enough(answers, dropped + unlike, self.terms.threshold, f"Round {self.round}, confirming who arrived")
        return answers, dropped + unlike

    def _shares(self, confirmed: Mapping[int, Arrays]) -> tuple[dict[int, dict[int, bytes]], Dropped]:
        """By the number of the hospital that holds them, its share of each party's seed."""
        agreed = {
            "signers": np.array(sorted(confirmed), dtype=np.int64),
            "signatures": np.stack([confirmed[index]["signature"] for index in sorted(confirmed)]),
        }

        def message(site: Site) -> Arrays:
            senders = [index for index in self.indices if index != site.index]
            row = self._position(site.index)
            return agreed | {
                "senders": np.array(senders, dtype=np.int64),
                "sealed": np.stack([self.shared[index]["sealed"][row] for index in senders]),
            }

        wanted = {"shares": (len(self.parties), SHARE_BYTES)}
        signers = [site for site in self.parties if site.index in confirmed]
        answered, dropped = _ask(self.run, self.round, signers, SECURE_UNMASK, SecureUnmaskRequest, message, wanted)
        _check_enough(answered, dropped, self.terms.threshold, f"Round {self.round}, removing masks")
        shares = {
            self._position(index) + 1: dict(zip(self.indices, map(bytes, arrays["shares"]), strict=True))
            for index, arrays in list(answered.items())[: self.terms.threshold]
        }
        return shares, dropped

    def _position(self, index: int) -> int:
        return [site.index for site in self.peers].index(index)

    def _seed(self, party: Site, shares: dict[int, bytes], arrived: dict[int, np.ndarray]) -> bytes:
        """The seed of the own mask of a party that arrived, of the pair masks of one that did not."""
        seed, keys = secure_sum.join(shares), self.keys[party.index]
        if party.index in arrived:
            fits = secure_sum.commitment(seed) == bytes(keys["commitment"])
        else:
            fits = secure_sum.public_key(seed) == bytes(keys["mask"])
        if not fits:
            raise SumRefused(f"Round {self.round}: the shares of a seed of {party.name!r} do not fit its keys.")
        return seed

    def _mask(self, index: int, seed: bytes, arrived: dict[int, np.ndarray], question: bytes) -> secure_sum.Words:
        """What a party's seed leaves in the sum of those that arrived."""
        size, word = self.terms.size, self.terms.word
        if index in arrived:
            return secure_sum.own_mask(seed, size, word)
        # What this party would have added for each that arrived is what they took away together.
        others = {other: bytes(self.keys[other]["mask"]) for other in arrived}
        purpose = self.terms.purpose(self.run.name, self.round, question)
        pairs = secure_sum.pair_masks(seed, index, others, size, word, purpose)
        return np.zeros(size, dtype=word) - pairs


def begin(
    run: Run,
    cohort: Sequence[Site],
    arrays: Arrays,
    public_patients: Mapping[str, float],
    number: int,
    noise_multiplier: float | None = None,
    learning_rate: float = 0.0,
) -> tuple[SecureSum, Dropped]:
    """Exchanges keys and shares with the round's ``cohort`` for a sum of answers like ``arrays``; also who dropped out.

    Args:
        run: The run.
        cohort: The hospitals of the round.
        arrays: Arrays like an answer.
        public_patients: Counts of patients that were paid for or are public, by site. A hospital's weight is its share
            of the largest, or 1 where there are none.
        number: The round.
        noise_multiplier: Noise over the clip norm; None without privacy.
        learning_rate: The learning rate that scales sums of gradients, where hospitals share a common noise.

    Raises:
        SumRefused: Too few hospitals are left.
        ConfigError: There never were enough.
    """
    threshold = secure_threshold(run.config, len(cohort))
    wanted = dict.fromkeys(("sealing", "mask", "commitment", "identity"), (KEY_BYTES,)) | {
        "signature": (SIGNATURE_BYTES,)
    }
    keys, dropped = _ask(run, number, cohort, SECURE_KEYS, SecureKeysRequest, lambda site: {}, wanted)
    dropped += [(site, "its keys are impossible or not signed") for site in cohort
                if site.index in keys and not _is_usable(keys[site.index], run.name, number, site.index)]  # fmt: skip
    keys = {index: arrays for index, arrays in keys.items() if _is_usable(arrays, run.name, number, index)}
    _check_enough(keys, dropped, threshold, f"Round {number}, keys")
    peers = tuple(site for site in cohort if site.index in keys)
    counted = [public_patients.get(site.name) for site in cohort]
    patient_counts = [count for count in counted if count is not None]
    weights = {
        site.name: count / max(patient_counts) if count is not None and len(patient_counts) == len(cohort) else 1.0
        for site, count in zip(cohort, counted, strict=True)
    }
    public = {name: np.stack([keys[site.index][name] for site in peers])
              for name in ("sealing", "mask", "identity", "signature")}  # fmt: skip
    public["peers"] = np.array([site.index for site in peers], dtype=np.int64)
    public["weights"] = np.array([weights[site.name] for site in peers])
    shared, later = _ask(
        run, number, peers, SECURE_SHARES, partial(SecureSharesRequest, threshold=threshold), lambda site: public,
        {"sealed": (len(peers), SEALED_BYTES), "terms": (STATEMENT_BYTES,), "signature": (SIGNATURE_BYTES,)},
    )  # fmt: skip
    shared, unlike = _alike(peers, shared, keys, "terms")
    later += unlike
    _check_enough(shared, dropped + later, threshold, f"Round {number}, shares")
    terms = secure_terms(run.config, flatten(arrays).size, len(peers), threshold, noise_multiplier)
    # Where gradient sums are summed, a hospital's weighted update is the learning rate times its own, over the largest count.
    scale = learning_rate / max(patient_counts, default=1.0) if run.config.secure.shared_noise else 1.0
    parties = tuple(site for site in peers if site.index in shared)
    return SecureSum(run, number, terms, peers, parties, keys, shared, weights, scale), dropped + later


def _is_usable(keys: Arrays, run: str, number: int, index: int) -> bool:
    """Whether hospitals would take the keys of another for this place."""
    sealing, mask, signer = (bytes(keys[name]) for name in ("sealing", "mask", "identity"))
    stated = statement("keys", run, number, index, sealing.hex(), mask.hex())
    possible = secure_sum.is_usable(sealing) and secure_sum.is_usable(mask)
    return possible and is_signed(signer, bytes(keys["signature"]), stated)


def _alike(
    sites: Sequence[Site], answers: Mapping[int, Arrays], keys: Mapping[int, Arrays], name: str
) -> tuple[dict[int, Arrays], Dropped]:
    """The answers that hold the statement ``name`` that most hospitals signed, and who did not sign it."""
    signed = {
        index: bytes(arrays[name]) for index, arrays in answers.items()
        if is_signed(bytes(keys[index]["identity"]), bytes(arrays["signature"]), bytes(arrays[name]))
    }  # fmt: skip
    most = _most_common(signed.values())
    reason = f"it signed another {name} than the others, as a hospital of another version would"
    unlike = [(site, reason) for site in sites if site.index in answers and signed.get(site.index) != most]
    return {index: arrays for index, arrays in answers.items() if signed.get(index) == most}, unlike


def _most_common(values: Iterable[bytes]) -> bytes:
    """The value that is there most often; empty when there is none."""
    return next((value for value, _ in Counter(values).most_common(1)), b"")


def _ask(
    run: Run, number: int, sites: Sequence[Site], kind: str, request: Callable[..., Request],
    message: Callable[[Site], Arrays], wanted: Mapping[str, tuple[int, ...]],
) -> tuple[dict[int, Arrays], Dropped]:  # fmt: skip
    """The arrays that each site answered, by its index, if they are bytes of the ``wanted`` shapes; and who gave none."""
    messages = []
    for site in sites:
        arrays = message(site)
        messages.append(Message(RecordDict({SECURE: to_record(arrays)} if arrays else {}), site.id, kind))

    def request_for(site: Site) -> Request:
        return request(run=run.name, site=site.index, home=run.home, round=number)

    exchange = SiteGrid(run.grid, sites, request_for, {}).exchange(messages, run.config.timeout)
    answers: dict[int, Arrays] = {}
    for site, reply in exchange.replies:
        record = reply.content.get(SECURE)
        arrays = from_record(record) if isinstance(record, ArrayRecord) else {}
        if {name: (value.shape, value.dtype) for name, value in arrays.items()} == {
            name: (shape, np.dtype(np.uint8)) for name, shape in wanted.items()
        }:
            answers[site.index] = arrays
        else:
            exchange.dropped.append((site, f"the reply does not hold {', '.join(wanted)}"))
    return answers, exchange.dropped


def _check_enough(replies: dict[int, Any], dropped: Dropped, threshold: int, when: str) -> None:
    if len(replies) < threshold:
        reasons = whose((site.name, reason) for site, reason in dropped)
        replied = f"{len(replies)} {'hospital' if len(replies) == 1 else 'hospitals'} replied"
        raise SumRefused(f"{when}: {replied}, the secure sum needs {threshold}. {reasons}")


def _as_float64(arrays: Arrays) -> Arrays:
    return {
        name: value.astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in arrays.items()
    }
