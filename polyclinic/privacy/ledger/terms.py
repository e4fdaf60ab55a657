"""By which terms a site's spending is measured, and the epsilon of recorded charges under them.

A ledger holds events as JSON text, an *entry* each; what was spent is how often each entry was charged.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain, combinations
from typing import Any, NamedTuple

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
from polyclinic.privacy.accounting.filter import MOST_SINGLES, Piece, filter_epsilon, is_gaussian
from polyclinic.privacy.accounting.risk import Risk, risk, worst
from polyclinic.privacy.events import Composition, merge_events
from polyclinic.privacy.streams import LEAST_DELTA

# Entries and how often each was charged, or is planned to be, in order of the entries.
Spent = tuple[tuple[str, int], ...]
_MOST_CHOICES = 100
_SPARE = 10
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_SITES = 1000
_MOST_ENTRIES, _MOST_PLANNED = 1000, 10**9


class Block(NamedTuple):
    """What one run has spent.

    ``plan``: the charges that the run declared with its first one, or that first charge where it declared none.
    ``charged``: what was charged of the plan.  ``beside``: what was charged and is not in the plan.

    Examples:
        >>> Block("run-1", plan=(("step", 3),)).with_charges("step", 5)
        Block(run='run-1', plan=(('step', 3),), charged=(('step', 3),), beside=(('step', 2),))
    """

    run: str
    plan: Spent
    charged: Spent = ()
    beside: Spent = ()

    def with_charges(self, entry: str, count: int = 1) -> Block:
        """The block with ``entry`` charged ``count`` times more, of the plan as far as that goes."""
        inside = min(count, dict(self.plan).get(entry, 0) - dict(self.charged).get(entry, 0))
        return self._replace(
            charged=_sum(self.charged, entry, inside), beside=_sum(self.beside, entry, count - inside)
        )  # fmt: skip


# A site's whole spending, its runs in the order of their first charges.
History = tuple[Block, ...]


@dataclass(frozen=True)
class Terms:
    """What a site's spending is measured by.

    ``budget``: the lifetime epsilon that the policy allows now, None for unlimited (a simulation without privacy).
    ``records``: which records a simulated site holds, in words; empty for a hospital's own. Budget and accountant may change
    later, the rest may not.

    Raises ConfigError naming the term that is impossible.

    Examples:
        >>> Terms("north", delta=1e-5, budget=3.0).relation
        'add-remove'
        >>> Terms("north", delta=1e-5, budget=-1.0)
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: budget must be positive and finite, or None for unlimited, got -1.0.
    """

    site: str
    delta: float
    relation: Relation = "add-remove"
    unit: str = "patient"
    budget: float | None = None
    accountant: Accountant = "pld"
    records: str = ""

    def __post_init__(self) -> None:
        check_terms(self.delta, self.accountant, self.relation)
        if self.delta < LEAST_DELTA:
            raise ConfigError(
                f"delta must be at least {LEAST_DELTA:g}, got {self.delta:g}: noise in floating point has no tails for less."
            )
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget > 0):
            raise ConfigError(f"budget must be positive and finite, or None for unlimited, got {self.budget}.")


def entry_of(event: DpEvent) -> str:
    """The text that is recorded of ``event``.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> entry_of(gaussian_event(4.0))
        '{"noise_multiplier": 4.0, "type": "GaussianDpEvent"}'
    """
    try:
        return _event_text(event)
    except TypeError:  # a composition anywhere in it holds a list, which no cache can keep
        return _event_text.__wrapped__(event)


@lru_cache(maxsize=256)
def _event_text(event: DpEvent) -> str:
    return json.dumps(event_to_json(event), sort_keys=True)


def plan_text(charges: Iterable[tuple[DpEvent, int]]) -> str:
    """A plan of charges, each with how often it will be made at most, as a message and a ledger hold it.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> read_plan(plan_text([(gaussian_event(4.0), 3), (gaussian_event(4.0), 2)]))
        (('{"noise_multiplier": 4.0, "type": "GaussianDpEvent"}', 5),)
    """
    counts: Counter[str] = Counter()
    for event, count in charges:
        counts[entry_of(event)] += count
    return json.dumps(sorted((entry, count) for entry, count in counts.items() if count))


@lru_cache(maxsize=256)
def read_plan(text: str) -> Spent:
    """The plan that ``plan_text`` wrote; empty for an empty text.

    Raises ConfigError for anything else, and for events that no accountant takes.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> plan = read_plan(plan_text([(gaussian_event(4.0), 10)]))
        >>> [(entry == entry_of(gaussian_event(4.0)), count) for entry, count in plan], read_plan("")
        ([(True, 10)], ())
    """
    try:
        plan = _read_spent(json.loads(text)) if text else ()
        if len(plan) > _MOST_ENTRIES or not all(0 < count <= _MOST_PLANNED for _, count in plan):
            raise ValueError(f"at most {_MOST_ENTRIES} charges, each at most {_MOST_PLANNED:g} times, may be declared")
        # Not from the cache, where 2 and 2.0 are one event: whichever text came first would stand for both.
        canonical = {_event_text.__wrapped__(event_from_json(json.loads(entry))) for entry, _ in plan}
        if sorted(canonical) != [entry for entry, _ in plan]:
            raise ValueError("an event is not written as the ledger writes it")
        if len(_composition(plan)) > _MOST_ENTRIES:
            raise ValueError(f"at most {_MOST_ENTRIES} different events may be declared")
        return plan
    except (ConfigError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigError(f"The declared plan of charges cannot be read: {str(error).rstrip('.')}.") from None


def with_spares(past: History, run: str, plan: str, terms: Terms) -> str:
    """A plan that reserves the budget, with up to a tenth more of every charge that it repeats.

    It has the spares only as far as the budget has room for all of that. A round that is charged again after a crash is then
    still one of the plan. Any other plan stays as it is: the filter allows charges beside it, and would count spares that
    nobody asks for.

    Args:
        past: The ledger's history before the run.
        run: The name of the run.
        plan: As ``plan_text`` writes it.
        terms: Of the site.

    Examples:
        >>> from polyclinic.privacy.events import dpsgd_event
        >>> plan = plan_text([(dpsgd_event(0.05, 1.0, steps=5), 10)])
        >>> read_plan(with_spares((), "run-1", plan, Terms("north", 1e-5, budget=2.8)))[0][1]
        11
        >>> with_spares((), "run-1", plan, Terms("north", 1e-5, budget=9.0)) == plan  # the filter has room beside it
        True
    """
    declared = read_plan(plan)
    more = tuple((entry, count + math.ceil(count / _SPARE) if count > 1 else count) for entry, count in declared)
    if past or any(count > _MOST_PLANNED for _, count in more):
        return plan
    reserve = all(reserving_run((Block(run, each, each),), terms) is not None for each in (declared, more))
    return json.dumps(more) if reserve else plan


@lru_cache(maxsize=256)
def check_plan(text: str, relation: Relation) -> None:
    """Raises ConfigError for a plan that cannot be read, or not be accounted under the relation.

    Examples:
        >>> from dp_accounting import RandomizedResponseDpEvent
        >>> plan = plan_text([(RandomizedResponseDpEvent(0.5, 2), 1)])
        >>> check_plan(plan, "replace-one")  # under "add-remove" it is a ConfigError
    """
    composition_of(compose_spent(read_plan(text)), relation)


def to_text(history: History) -> str:
    """For messages; runs are named by digests.

    Examples:
        >>> from_text(to_text((Block("run-1", (("step", 3),)),)))[0].run == run_digest("run-1")
        True
    """
    return json.dumps([(run_digest(run), *spent) for run, *spent in history])


def run_digest(run: str) -> str:
    """The name by which ledgers speak of a run to others: equal at all hospitals, and of no other meaning; its own digest.

    Examples:
        >>> run_digest("run-1")[:8], run_digest(run_digest("run-1")) == run_digest("run-1")
        ('4e65d3fb', True)
    """
    return run if _DIGEST.fullmatch(run) else sha256(run.encode()).hexdigest()


def from_text(text: str) -> History:
    """What ``to_text`` wrote. Raises ValueError or TypeError for anything else, and for blocks that no ledger has: a run twice,
    or more charged of a plan than the plan declares.

    Examples:
        >>> from_text('[["run-1", [["step", 3]], [["step", 1]], []]]')
        (Block(run='run-1', plan=(('step', 3),), charged=(('step', 1),), beside=()),)
        >>> from_text('[["run-1", [["step", 3]], [["step", 4]], []]]')
        Traceback (most recent call last):
            ...
        ValueError: more was charged of a plan than it declares
    """
    history = tuple(Block(str(run), *map(_read_spent, spent)) for run, *spent in json.loads(text))
    for block in history:
        counts = [count for spent in block[1:] for _, count in spent]
        if not block.plan or not all(0 < count <= _MOST_PLANNED for count in counts):
            raise ValueError("a run declares no plan, or a charge was made no time")
        if any(len(dict(spent)) < len(spent) for spent in block[1:]):
            raise ValueError("a charge is told twice")
        if Counter(dict(block.charged)) - Counter(dict(block.plan)):
            raise ValueError("more was charged of a plan than it declares")
    if len({block.run for block in history}) < len(history):
        raise ValueError("a run is told twice")
    return history


def _read_spent(pairs: Iterable[tuple[object, Any]]) -> Spent:
    return tuple(sorted((str(entry), int(count)) for entry, count in pairs))


def with_charge(past: History, run: str, entry: str, plan: Spent = (), count: int = 1) -> History:
    """The history with ``entry`` charged ``count`` times more for ``run``.

    A charge that costs nothing leaves the history as it is.

    Args:
        past: The history before.
        run: The name of the run.
        entry: The event's text, as ``entry_of`` gives it.
        plan: The charges that the run declares; counts with its first charge only, which is the plan where none is given.
        count: How often it is charged.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> entry = entry_of(gaussian_event(4.0))
        >>> history = with_charge((), "run-1", entry, plan=((entry, 2),), count=3)
        >>> [[count for _, count in spent] for spent in (history[0].plan, history[0].charged, history[0].beside)]
        [[2], [2], [1]]
    """
    if not is_costly(entry):
        return past
    for place, block in enumerate(past):
        if block.run == run:
            return (*past[:place], block.with_charges(entry, count), *past[place + 1 :])
    return (*past, Block(run, plan or ((entry, 1),)).with_charges(entry, count))


def flat(history: History) -> Spent:
    """How often each entry was charged, whatever the run.

    Examples:
        >>> runs = [Block(run, (("step", 3),), charged=(("step", 3),)) for run in ("run-1", "run-2")]
        >>> flat((*runs, Block("run-3", (("sum", 1),), charged=(("sum", 1),))))
        (('step', 6), ('sum', 1))
    """
    counts: Counter[str] = Counter()
    for block in history:
        counts.update(dict(block.charged))
        counts.update(dict(block.beside))
    return tuple(sorted(counts.items()))


def _sum(spent: Spent, entry: str, count: int) -> Spent:
    if not count:
        return spent
    counts = dict(spent)
    return tuple(sorted((counts | {entry: counts.get(entry, 0) + count}).items()))


def together(histories: Sequence[History], most: int) -> History:
    """At least what any ``most`` of the sites have spent together: of each run, every entry as often as at those that planned
    or were charged it most often. More events never cost less, and a run declares its plan to all sites before they answer.

    Examples:
        >>> sites = [(Block("run-1", (("step", 3),), charged=(("step", count),)),) for count in (1, 2, 3)]
        >>> together(sites, most=2)
        (Block(run='run-1', plan=(('step', 6),), charged=(('step', 5),), beside=()),)
    """
    runs: dict[str, list[Block]] = {}
    for history in histories:
        for block in history:
            runs.setdefault(block.run, []).append(block)
    return tuple(
        Block(run, *(_most_often(spent, most) for spent in list(zip(*blocks, strict=True))[1:]))
        for run, blocks in runs.items()
    )


def _most_often(spent: Sequence[Spent], most: int) -> Spent:
    counts: dict[str, list[int]] = {}
    for entry, count in chain.from_iterable(spent):
        counts.setdefault(entry, []).append(count)
    return tuple(sorted((entry, sum(sorted(times)[-most:])) for entry, times in counts.items()))


@contextmanager
def accountable() -> Iterator[None]:
    """Turns what a recorded event or plan raises that cannot be accounted into LookupError; also around a function.

    Examples:
        >>> with accountable():
        ...     check_terms(2.0, "pld", "add-remove")
        Traceback (most recent call last):
            ...
        LookupError: delta must lie in (0, 1) and be at least 1e-100, got 2.0.
    """
    try:
        yield
    except (ConfigError, ValueError) as error:
        raise LookupError(str(error)) from error


@accountable()
def compose_spent(spent: Spent) -> DpEvent:
    """The recorded events as one. Raises LookupError for an entry that cannot be accounted.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> merge_events(compose_spent(((entry_of(gaussian_event(2.0)), 4),)))
        ((GaussianDpEvent(noise_multiplier=1.0), 1),)
    """
    return ComposedDpEvent([SelfComposedDpEvent(event_from_json(json.loads(entry)), count) for entry, count in spent])


@accountable()
def check_told(history: History, relation: Relation) -> None:
    """Raises LookupError for what cannot be accounted, alone or with as many charges of other sites as there may be.

    Examples:
        >>> from dp_accounting import RandomizedResponseDpEvent
        >>> history = with_charge((), "run-1", entry_of(RandomizedResponseDpEvent(0.5, 2)))
        >>> check_told(history, "replace-one")
        >>> check_told(history, "add-remove")
        Traceback (most recent call last):
            ...
        LookupError: Randomised response answers for a patient who is there: relation must be 'replace-one'.
    """
    composition_of(compose_spent(tuple((entry, _MOST_SITES * count) for entry, count in flat(history))), relation)
    pieces_of(history)


def epsilon_of(history: History, terms: Terms, quick: bool = False) -> float:
    """An upper bound on what ``history`` costs at the terms' delta under their relation.

    Args:
        history: Within one declared plan, the terms' accountant bounds it. Otherwise the privacy filter does, since later
            requests may have been chosen by earlier answers.
        terms: Of the site.
        quick: As in ``accounting.epsilon``.

    Raises:
        LookupError: for an entry that cannot be accounted.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> terms, entry = Terms("north", delta=1e-5), entry_of(gaussian_event(4.0))
        >>> one_run = with_charge(with_charge((), "run-1", entry, plan=((entry, 2),)), "run-1", entry)
        >>> two_runs = with_charge(with_charge((), "run-1", entry), "run-2", entry)  # the second may follow from the first
        >>> round(epsilon_of(one_run, terms), 2), round(epsilon_of(two_runs, terms), 2)
        (1.36, 1.38)
    """
    if len(history) <= 1 and not any(block.beside for block in history):
        return _epsilon(flat(history), terms.delta, terms.accountant, terms.relation, quick)
    return filtered_epsilon(history, terms)


def filtered_epsilon(history: History, terms: Terms) -> float:
    """The least budget at the terms' delta that allows ``history`` by the privacy filter alone. Raises as ``epsilon_of``.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> history = with_charge((), "run-1", entry_of(gaussian_event(4.0)))
        >>> terms = Terms("north", delta=1e-5)
        >>> round(epsilon_of(history, terms), 2), round(filtered_epsilon(history, terms), 2)
        (0.93, 0.94)
    """
    return _history_epsilon(history, terms.delta, terms.relation)


def is_affordable(history: History, terms: Terms) -> bool:
    """Whether the budget allows ``history``, however its requests were chosen by the answers before them.

    A first plan that the filter alone would not allow, but its own composition does, reserves the whole budget: nothing
    beside it is affordable then.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> history = with_charge((), "run-1", entry_of(gaussian_event(4.0)))
        >>> [is_affordable(history, Terms("north", delta=1e-5, budget=budget)) for budget in (0.5, 1.0)]
        [False, True]
    """
    if terms.budget is None:
        return True
    if reserving_run(history, terms) is not None:
        return len(history) == 1 and not history[0].beside
    return filtered_epsilon(history, terms) <= terms.budget


def reserving_run(history: History, terms: Terms) -> str | None:
    """The run whose plan, declared before any other charge, reserves the whole budget; None where none does.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> history = with_charge((), "run-1", entry_of(gaussian_event(4.0)))
        >>> [reserving_run(history, Terms("north", delta=1e-5, budget=budget)) for budget in (0.935, 3.0)]
        ['run-1', None]
    """
    if terms.budget is None or not history:
        return None
    run, plan, *_ = history[0]
    if filtered_epsilon((Block(run, plan, plan),), terms) <= terms.budget:
        return None
    spends = _epsilon(plan, terms.delta, terms.accountant, terms.relation, False)
    return run if spends <= terms.budget else None


@lru_cache(maxsize=4096)
def pieces_of(history: History) -> tuple[Piece, ...]:
    """What the filter composes: of each run its Gaussian charges, its plan's other charges as a whole once one of them was
    made, and each charge beside the plan.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event, pure_event
        >>> history = with_charge((), "run-1", entry_of(gaussian_event(4.0)))
        >>> history = with_charge(history, "run-1", entry_of(pure_event(0.5)))  # which the run did not declare
        >>> [(piece.composition, piece.place) for piece in pieces_of(history)]
        [(((GaussianDpEvent(noise_multiplier=4.0), 1),), 1), (((ApproximateDpEvent(epsilon=0.5, delta=0.0), 1),), 0)]
    """
    pieces = []
    for place, block in enumerate(history, start=1):
        gaussian = tuple(part for part in flat((block,)) if _is_gaussian(part[0]))
        pieces.append(Piece(_composition(gaussian), place))
        if any(not _is_gaussian(entry) for entry, _ in block.charged):
            pieces.append(Piece(_composition(tuple(part for part in block.plan if not _is_gaussian(part[0]))), place))
        for entry, count in block.beside:
            if not _is_gaussian(entry):
                # One more than the filter allows says enough of a hospital's word that there were millions.
                pieces += [Piece(_composition(((entry, 1),)))] * min(count, MOST_SINGLES + 1)
    return tuple(pieces)


@lru_cache(maxsize=4096)
def is_costly(entry: str) -> bool:
    """Whether a charge costs anything, or cannot be accounted at all.

    Examples:
        >>> from dp_accounting import NoOpDpEvent
        >>> from polyclinic.privacy.events import gaussian_event
        >>> is_costly(entry_of(gaussian_event(4.0))), is_costly(entry_of(NoOpDpEvent()))
        (True, False)
    """
    try:
        return bool(_composition(((entry, 1),)))
    except LookupError:
        return True


@lru_cache(maxsize=4096)
def _composition(spent: Spent) -> Composition:
    return merge_events(compose_spent(spent))


def _is_gaussian(entry: str) -> bool:
    return is_gaussian(_composition(((entry, 1),)))


@lru_cache(maxsize=4096)
@accountable()
def _history_epsilon(history: History, delta: float, relation: Relation) -> float:
    composition_of(compose_spent(flat(history)), relation)  # refuses what means nothing under the relation
    return filter_epsilon(pieces_of(history), delta, relation)


# Sites of a simulation mostly have spent the same.
@lru_cache(maxsize=4096)
@accountable()
def _epsilon(spent: Spent, delta: float, accountant: Accountant, relation: Relation, quick: bool) -> float:
    return epsilon(compose_spent(spent), delta, accountant, relation, quick)


def epsilon_together(histories: Sequence[History], most: int, terms: Terms) -> float:
    """The epsilon of a patient with records at any ``most`` of the sites: the worst choice of so many, composed.

    Every choice is tried, those of sites that spent the same once; where that would be very many, one bound holds for all.

    Args:
        histories: Of each site.
        most: The number of sites that may hold records of one patient.
        terms: Delta, relation and accountant of all sites.

    Raises:
        LookupError: as ``epsilon_of`` does.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> sites = [with_charge((), "run-1", entry_of(gaussian_event(noise))) for noise in (2.0, 4.0, 8.0)]
        >>> [round(epsilon_together(sites, most, Terms("all", delta=1e-5)), 2) for most in (1, 2, 3)]
        [1.99, 2.26, 2.32]
    """
    return max(epsilon_of(choice, terms) for choice in _choices(histories, most))


@lru_cache(maxsize=4096)
@accountable()
def risk_of(history: History, relation: Relation) -> Risk:
    """An upper bound on a patient's risk after ``history``, its events taken as fixed in advance.

    Raises LookupError for an entry that cannot be accounted.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> round(risk_of(with_charge((), "run-1", entry_of(gaussian_event(4.0))), "add-remove").advantage, 2)
        0.1
    """
    return risk(compose_spent(flat(history)), relation)


def risk_together(histories: Sequence[History], most: int, relation: Relation) -> Risk:
    """The risk of a patient with records at any ``most`` of the sites, over the choices that ``epsilon_together`` tries.

    Args:
        histories: Of each site.
        most: The number of sites that may hold records of one patient.
        relation: The neighbouring relation of all sites.

    Raises:
        LookupError: for an entry that cannot be accounted.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> sites = [with_charge((), "run-1", entry_of(gaussian_event(4.0))) for _ in range(3)]
        >>> [round(risk_together(sites, most, "add-remove").advantage, 2) for most in (1, 3)]
        [0.1, 0.17]
    """
    return worst(risk_of(choice, relation) for choice in _choices(histories, most))


def _choices(histories: Sequence[History], most: int) -> set[History]:
    """What any ``most`` of the sites have spent together; one bound for all where there are very many choices."""
    most = min(most, len(histories))
    if most == 1:
        return set(histories)
    unlike = [each for each, count in sorted(Counter(histories).items()) for _ in range(min(count, most))]
    if math.comb(len(unlike), most) > _MOST_CHOICES:
        return {together(histories, most)}
    return {together(chosen, most) for chosen in combinations(unlike, most)}
