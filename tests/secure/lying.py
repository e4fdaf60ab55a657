"""A server of a secure sum that tells hospitals different parties and survivors: what it could open, by search, and a server
that tries it against hospitals' own code."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from polyclinic.config import secure_terms
from polyclinic.privacy.secure import secure_sum
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import (
    RECORD,
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
    TrainRequest,
)
from tests.secure.ward import TRAIN, Ward

#: What the server tells one hospital: for whom to mask, and who arrived.
Story = tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True)
class Attack:
    """``stories``: by hospital. They open the sum of ``victims`` by the pair masks of ``ghosts``, said to have dropped out."""

    threshold: int
    stories: tuple[Story, ...]
    victims: tuple[int, ...]
    ghosts: tuple[int, ...]


def stories(hospital: int, count: int, threshold: int) -> Iterator[Story]:
    """All that a hospital accepts: lists with itself and at least ``threshold`` hospitals."""
    for parties in _with(hospital, range(count), threshold):
        for survivors in _with(hospital, parties, threshold):
            yield parties, survivors


def _with(hospital: int, among: Any, fewest: int) -> Iterator[frozenset[int]]:
    others = sorted(set(among) - {hospital})
    for chosen in chain.from_iterable(combinations(others, size) for size in range(fewest - 1, len(others) + 1)):
        yield frozenset({hospital, *chosen})


def smallest_opened(told: Mapping[int, Story], count: int, threshold: int, agreeing: bool) -> int | None:
    """The fewest hospitals whose sum alone a server opens when it tells ``told`` to all that are not on its side.

    Hospitals on its side show all shares and sign everything. ``agreeing``: hospitals show shares only when the threshold of
    hospitals signed the same story; without, whenever they are asked.
    """
    helping = count - len(told)
    same = {story: sum(other == story for other in told.values()) + helping for story in told.values()}
    showing = [story for story in told.values() if not agreeing or same[story] >= threshold]
    own, pairs = set[int](), set(range(count)) - set(told)
    for hospital in told:
        if sum(hospital in survivors for _, survivors in showing) + helping >= threshold:
            own.add(hospital)
        if sum(hospital in parties - survivors for parties, survivors in showing) + helping >= threshold:
            pairs.add(hospital)
    sizes = [size for first in told if (size := _closed(first, told, own, pairs))]
    return min(sizes, default=None)


def _closed(first: int, told: Mapping[int, Story], own: set[int], pairs: set[int]) -> int | None:
    """How many hospitals' updates must be added to that of ``first`` until no unknown mask is left in the sum, if any do."""
    inside, waiting = {first}, [first]
    while waiting:
        hospital = waiting.pop()
        if hospital not in own:
            return None
        for other in told[hospital][0] - pairs - {hospital} if hospital not in pairs else ():
            if hospital not in told[other][0]:
                return None
            if other not in inside:
                inside.add(other)
                waiting.append(other)
    return len(inside)


def every_story(count: int, threshold: int, helping: int = 0) -> Iterator[dict[int, Story]]:
    """All that a server with the last ``helping`` hospitals on its side may tell the others."""
    honest = range(count - helping)
    for told in product(*(list(stories(hospital, count, threshold)) for hospital in honest)):
        yield dict(zip(honest, told, strict=True))


def plan(count: int, threshold: int) -> Attack | None:
    """The attack without help that opens the sum of the fewest hospitals, if one of fewer than the threshold can be opened.

    The victims mask for each other and for the ghosts alone; the threshold of hospitals must say that each ghost dropped out,
    of whom each may say so of as many as its list is longer than the threshold, and not of itself: a flow.
    """
    for victims in range(1, threshold):
        for ghosts in range(threshold - victims, count - victims + 1):
            if attack := _assigned(count, threshold, victims, ghosts):
                return attack
    return None


def _assigned(count: int, threshold: int, victims: int, ghosts: int) -> Attack | None:
    missing = range(victims, victims + ghosts)
    lists = [frozenset(range(victims + ghosts if index < victims else count)) for index in range(count)]
    source, sink = 2 * count, 2 * count + 1
    capacity = np.zeros((2 * count + 2, 2 * count + 2), dtype=np.int32)
    for index, parties in enumerate(lists):
        capacity[source, index] = len(parties) - threshold
        for ghost in missing:
            capacity[index, count + ghost] = ghost != index
            capacity[count + ghost, sink] = threshold
    found = maximum_flow(csr_array(capacity), source, sink)
    if found.flow_value < threshold * ghosts:
        return None
    flow = found.flow.toarray()
    told = tuple(
        (parties, parties - {ghost for ghost in missing if flow[index, count + ghost] > 0})
        for index, parties in enumerate(lists)
    )
    return Attack(threshold, told, tuple(range(victims)), tuple(missing))


class LyingServer:
    """Asks a ward's hospitals one by one, and collects what they answer; ``refused``: the reasons of those that did not."""

    def __init__(self, ward: Ward, round: int = 1, run: str = "run") -> None:
        self.ward, self.places = ward, {"run": run, "round": round}
        self.count, self.size = ward.updates.shape
        self.refused: list[str] = []
        self.keys: dict[int, Arrays] = {}
        self.shared: dict[int, Arrays] = {}

    def ask(self, index: int, kind: str, request: Request, arrays: Arrays | None = None, name: str = SECURE) -> Arrays:
        """What a hospital answers; nothing where it refuses."""
        content = RecordDict({name: to_record(arrays)} if arrays else {})
        content[RECORD] = request.record()
        answer = self.ward.ask(Message(content, index + 1, kind, group_id=str(index)))
        if isinstance(answer, Exception):
            self.refused.append(str(answer))
            return {}
        return from_record(answer[name])

    def exchange_keys(self) -> None:
        for index in range(self.count):
            self.keys[index] = self.ask(index, SECURE_KEYS, SecureKeysRequest(site=index, **self.places))

    def public(self) -> Arrays:
        """The list of keys as an honest server passes it on."""
        listed = {name: np.stack([self.keys[index][name] for index in range(self.count)])
                  for name in ("sealing", "mask", "identity", "signature")}  # fmt: skip
        return listed | {"peers": np.arange(self.count), "weights": np.ones(self.count)}

    def share(self, threshold: int) -> bool:
        """Whether all hospitals shared their seeds and signed the terms."""
        for index in range(self.count):
            request = SecureSharesRequest(site=index, threshold=threshold, **self.places)
            self.shared[index] = self.ask(index, SECURE_SHARES, request, self.public())
        return all(self.shared.values())

    def train(self, index: int, parties: Sequence[int], model: float = 0.0, **changes: Any) -> np.ndarray | None:
        """A hospital's masked update."""
        signatures = [bytes(self.shared[party]["signature"]) for party in parties]
        asked = (
            {"site": index, "secure_parties": list(parties), "secure_signatures": signatures} | self.places | changes
        )
        given = {"w": np.full(self.size, model)}
        return self.ask(index, TRAIN, TrainRequest(**asked), given, "arrays").get("masked")

    def confirm(self, index: int, survivors: Sequence[int]) -> Arrays:
        return self.ask(
            index, SECURE_CONFIRM, SecureConfirmRequest(site=index, **self.places), {"survivors": np.array(survivors)}
        )

    def unmask(self, index: int, parties: Sequence[int], signatures: Mapping[int, np.ndarray]) -> Arrays:
        senders = [party for party in parties if party != index]
        told = {
            "signers": np.array(sorted(signatures)),
            "signatures": np.stack([signatures[signer] for signer in sorted(signatures)]),
            "senders": np.array(senders), "sealed": np.stack([self.shared[sender]["sealed"][index] for sender in senders]),
        }  # fmt: skip
        return self.ask(index, SECURE_UNMASK, SecureUnmaskRequest(site=index, **self.places), told)

    def carry_out(self, attack: Attack) -> np.ndarray | None:
        """The (size,) sum of the victims' updates; None where hospitals refuse what it takes."""
        self.exchange_keys()
        if not self.share(attack.threshold):
            return None
        masked = [self.train(index, sorted(parties)) for index, (parties, _) in enumerate(attack.stories)]
        signed = {index: self.confirm(index, sorted(survivors)) for index, (_, survivors) in enumerate(attack.stories)}
        shares: dict[tuple[int, bool], dict[int, bytes]] = {}
        for index, (parties, survivors) in enumerate(attack.stories):
            signatures = {other: signed[other]["signature"] for other in survivors if signed[other]}
            rows = self.unmask(index, sorted(parties), signatures).get("shares", ())
            for party, row in zip(sorted(parties), rows, strict=False):
                shares.setdefault((party, party in survivors), {})[index + 1] = bytes(row)
        wanted = [(victim, True) for victim in attack.victims] + [(ghost, False) for ghost in attack.ghosts]
        if any(len(shares.get(seed, ())) < attack.threshold for seed in wanted):
            return None
        terms = secure_terms(self.ward.config, self.size, self.count, attack.threshold)
        seeds = {seed: secure_sum.join(dict(list(shares[seed].items())[: attack.threshold])) for seed in wanted}
        total = np.zeros(self.size, dtype=terms.word)
        for victim in attack.victims:
            total += masked[victim] - secure_sum.own_mask(seeds[victim, True], self.size, terms.word)
        keys = {victim: bytes(self.keys[victim]["mask"]) for victim in attack.victims}
        for ghost in attack.ghosts:
            question = self.ward.question({"w": np.zeros(self.size)})
            purpose = terms.purpose(self.places["run"], self.places["round"], question)  # type: ignore[arg-type]
            total += secure_sum.pair_masks(seeds[ghost, False], ghost, keys, self.size, terms.word, purpose)
        return terms.total(total)
