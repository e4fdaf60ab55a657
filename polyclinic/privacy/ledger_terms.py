"""By which terms a site's spending is measured, and the epsilon of recorded charges under them.

A ledger holds events as JSON text, an *entry* each; what was spent is how often each entry was charged.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import (
    Accountant,
    Relation,
    check_terms,
    composition_of,
    epsilon,
    event_from_json,
    event_to_json,
)
from polyclinic.privacy.risk import Risk, risk, worst

# Equal parts of a composition: an entry and how often it was charged, in order of the entries.
Spent = tuple[tuple[str, int], ...]
_MOST_CHOICES = 100
_MOST_SITES = 1000


@dataclass(frozen=True)
class Terms:
    """What a site's spending is measured by. ``budget`` is the lifetime epsilon that the policy allows now, None for
    unlimited (a simulation without privacy); budget and accountant may change later, the rest may not.

    Raises ConfigError naming the term that is impossible.
    """

    site: str
    delta: float
    relation: Relation = "add-remove"
    unit: str = "patient"
    budget: float | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        check_terms(self.delta, self.accountant, self.relation)
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget > 0):
            raise ConfigError(f"budget must be positive and finite, or None for unlimited, got {self.budget}.")


def entry_of(event: DpEvent) -> str:
    """The text that is recorded of ``event``."""
    try:
        return _written(event)
    except TypeError:  # a composition anywhere in it holds a list, which no cache can keep
        return _written.__wrapped__(event)


@lru_cache(maxsize=256)
def _written(event: DpEvent) -> str:
    return json.dumps(event_to_json(event), sort_keys=True)


def counted(entries: Iterable[str]) -> Spent:
    """How often each entry was charged."""
    return tuple(sorted(Counter(entries).items()))


def to_text(spent: Spent) -> str:
    """For messages."""
    return json.dumps(spent)


def from_text(text: str) -> Spent:
    """What ``to_text`` wrote. Raises ValueError or TypeError for anything else."""
    return tuple(sorted((str(entry), int(count)) for entry, count in json.loads(text)))


def with_entry(past: Spent, entry: str) -> Spent:
    """What was spent with ``entry`` charged once more."""
    counts = dict(past)
    return tuple(sorted((counts | {entry: counts.get(entry, 0) + 1}).items()))


def together(spent: Sequence[Spent], most: int) -> Spent:
    """At least what any ``most`` of the sites have spent together: each entry as often as at those that were charged it
    most often. More events never cost less.
    """
    counts: dict[str, list[int]] = {}
    for one in spent:
        for entry, count in one:
            counts.setdefault(entry, []).append(count)
    return tuple(sorted((entry, sum(sorted(found)[-most:])) for entry, found in counts.items()))


def composed(spent: Spent) -> DpEvent:
    """The recorded events as one. Raises LookupError for an entry that cannot be accounted."""
    try:
        return ComposedDpEvent(
            [SelfComposedDpEvent(event_from_json(json.loads(entry)), count) for entry, count in spent]
        )
    except (ConfigError, ValueError) as error:
        raise LookupError(str(error)) from error


def check_told(spent: Spent, relation: Relation) -> None:
    """Raises LookupError for what cannot be accounted, alone or with as many charges of other sites as there may be."""
    try:
        composition_of(composed(tuple((entry, _MOST_SITES * count) for entry, count in spent)), relation)
    except ConfigError as error:
        raise LookupError(str(error)) from error


def epsilon_of(spent: Spent, terms: Terms, quick: bool = False) -> float:
    """An upper bound on what ``spent`` costs at the terms' delta, by their accountant under their relation.

    ``quick`` as in ``accounting.epsilon``. Raises LookupError for an entry that cannot be accounted.
    """
    return _epsilon(spent, terms.delta, terms.accountant, terms.relation, quick)


# Sites of a simulation mostly have spent the same.
@lru_cache(maxsize=4096)
def _epsilon(spent: Spent, delta: float, accountant: Accountant, relation: Relation, quick: bool) -> float:
    try:
        return epsilon(composed(spent), delta, accountant, relation, quick)
    except ConfigError as error:
        raise LookupError(str(error)) from error


def epsilon_together(spent: Sequence[Spent], most: int, terms: Terms) -> float:
    """The epsilon of a patient with records at any ``most`` of the sites: the worst choice of so many, composed.

    Every choice is tried, those of sites that spent the same once; where that would be very many, one bound holds for all.
    Raises LookupError as ``epsilon_of`` does.
    """
    return max(epsilon_of(choice, terms) for choice in _choices(spent, most))


@lru_cache(maxsize=4096)
def risk_of(spent: Spent, relation: Relation) -> Risk:
    """An upper bound on a patient's risk after ``spent``. Raises LookupError for an entry that cannot be accounted."""
    try:
        return risk(composed(spent), relation)
    except ConfigError as error:
        raise LookupError(str(error)) from error


def risk_together(spent: Sequence[Spent], most: int, relation: Relation) -> Risk:
    """The risk of a patient with records at any ``most`` of the sites, as ``epsilon_together`` finds epsilon."""
    return worst(risk_of(choice, relation) for choice in _choices(spent, most))


def _choices(spent: Sequence[Spent], most: int) -> set[Spent]:
    """What any ``most`` of the sites have spent together; one bound for all where there are very many choices."""
    most = min(most, len(spent))
    if most == 1:
        return set(spent)
    unlike = [one for one, count in sorted(Counter(spent).items()) for _ in range(min(count, most))]
    if math.comb(len(unlike), most) > _MOST_CHOICES:
        return {together(spent, most)}
    return {together(chosen, most) for chosen in combinations(unlike, most)}
