"""What each real hospital has spent, as far as the server can know: by the hospital's word, and by what it was asked.

A hospital's ledger stays at the hospital, so its word may be old, since an answer was lost after the charge, or false. But
the server knows the public settings of each request, and with them what answering it must have cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dp_accounting import DpEvent

from polyclinic.privacy.events import merged
from polyclinic.privacy.ledger.terms import (
    History,
    Terms,
    entry_of,
    epsilon_of,
    flat,
    from_text,
    read_plan,
    to_text,
    with_charge,
)

# Two machines' arithmetic differs by far less, and a false word that matters by far more.
ROUNDING = 1e-6
#: Ends the name of a request that may have been sent after the newest checkpoint of a run that was broken off.
LOST = "lost"


@dataclass
class Account:
    """One real hospital's spending.

    ``run``: the run's name as ledgers tell it (``ledger.terms.run_digest``)
    ``plan``: the charges that it declares
    ``charged``: what the hospital's ledger has spent as it said last (``ledger.terms.to_text``)
    ``before``: what other runs had spent when it said so first; None until it does
    ``asked``: the requests of this run, by the entry that each must have been charged with
    ``unanswered``: those of them whose answer never came; they may have been charged all the same
    """

    run: str = ""
    plan: str = ""
    charged: str | None = None
    before: str | None = None
    asked: dict[str, list[str]] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)

    def has(self, kind: str) -> bool:
        """Whether a request that costs something and whose name begins with the word ``kind`` was sent."""
        every = [request.split() for requests in self.asked.values() for request in requests]
        return any(words[0] == kind and words[-1] != LOST for words in every)

    def ask(self, request: str, event: DpEvent) -> None:
        """Note a request that was sent, and what it costs; one that is sent again is the same release, and free ones are none."""
        self.refuse(f"{request} {LOST}")
        if merged(event) and not any(request in requests for requests in self.asked.values()):
            self.asked.setdefault(entry_of(event), []).append(request)
            self.unanswered.append(request)

    def refuse(self, request: str) -> None:
        """Note that the hospital's policy or budget refused a request, which was then not charged."""
        if request in self.unanswered:
            self.unanswered.remove(request)
            for requests in self.asked.values():
                if request in requests:
                    requests.remove(request)

    def hear(self, request: str | None, charged: str) -> None:
        """Note the entries that came with the answer to ``request``, which None says is of a kind that costs nothing."""
        self.charged = charged  # also with what it was asked before the run was broken off
        for lost in [name for name in self.unanswered if name.endswith(f" {LOST}")]:
            self.refuse(lost)
        if request in self.unanswered:
            self.unanswered.remove(request)
        if self.before is None:
            self.before = to_text(tuple(block for block in from_text(charged) if block.run != self.run))

    def spent_history(self, unanswered: bool = True) -> History:
        """At least what the hospital was charged: what it says, and what it had been charged before and was asked since.

        unanswered: count also what may have been charged without an answer.
        """
        history = from_text(self.charged or "[]")
        needed = Counter(dict(flat(from_text(self.before or "[]")))) + self._count_asked(unanswered)
        return self._with(history, needed - Counter(dict(flat(history))))

    def asked_alone(self) -> History:
        """What the requests of this run may have cost the hospital, whatever it says of its ledger."""
        return self._with((), self._count_asked(unanswered=True))

    def answered_history(self) -> History:
        """What the requests of this run that the hospital answered must have cost it."""
        return self._with((), self._count_asked(unanswered=False))

    def _count_asked(self, unanswered: bool) -> Counter[str]:
        return Counter(
            {entry: sum(unanswered or request not in self.unanswered for request in requests)
             for entry, requests in self.asked.items()}
        )  # fmt: skip

    def _with(self, history: History, more: Counter[str]) -> History:
        for entry, count in sorted(more.items()):
            if count > 0:
                history = with_charge(history, self.run, entry, read_plan(self.plan), count)
        return history


def bound(account: Account | None, reported: float | None, terms: Terms) -> float | None:
    """The larger of the epsilon that a hospital says and what it must have spent; None where nothing is known.

    Args:
        account: The server's account of the hospital; None where there is none.
        reported: The epsilon that the hospital said last; None where it said none.
        terms: The terms of its ledger, with its delta.
    """
    if account is None:
        return reported
    return max(reported or 0.0, epsilon_of(account.spent_history(), terms), epsilon_of(account.asked_alone(), terms))


def doubts(accounts: Mapping[str, Account], reported: Mapping[str, float], terms: Mapping[str, Terms]) -> list[str]:
    """A sentence on each hospital whose word cannot be true, or is older than what it was asked last.

    Args:
        accounts: The server's account of each hospital.
        reported: The epsilon that each hospital said last.
        terms: The terms of each hospital's ledger, with its budget.
    """
    sentences = []
    for site in sorted(set(accounts) & set(terms)):
        account, by, word = accounts[site], terms[site], reported.get(site)
        if word is None:
            if account.asked:
                sentences.append(
                    f"{site} said nothing of its ledger: its epsilon here is what the requests that it was sent may have cost "
                    f"it, {epsilon_of(account.spent_history(), by):.4g}; its own ledger has the figure that counts."
                )
            continue
        least, most = epsilon_of(account.spent_history(unanswered=False), by), epsilon_of(account.spent_history(), by)
        cost = f"what it answered in this run cost at least {epsilon_of(account.answered_history(), by):.4g}"
        if word < least * (1 - ROUNDING):
            sentences.append(
                f"{site} says that its epsilon is {word:.4g}, but {cost}, and with what it was charged before {least:.4g}; "
                "its word is not believed, and the larger figure counts."
            )
        elif word > _highest(account, by) * (1 + ROUNDING):
            budget = "" if by.budget is None else f" and its budget is {by.budget:.4g}"
            sentences.append(
                f"{site} says that its epsilon is {word:.4g}, but the charges that it tells of cost at most "
                f"{most:.4g}{budget}; {cost}. An epsilon of the whole run is the largest of all hospitals', so that this word "
                "is in it."
            )
        if most > max(word, least) * (1 + ROUNDING):
            sentences.append(
                f"{site} said last that its epsilon is {word:.4g}; requests whose answer never came may have been charged, so "
                f"that {most:.4g} counts here, and its own ledger has the figure that counts."
            )
    return sentences


def _highest(account: Account, terms: Terms) -> float:
    """The largest figure that an honest hospital could give: it may charge by a faster or another bound."""
    spent = account.spent_history()
    return max(epsilon_of(spent, terms, quick=True), epsilon_of(spent, replace(terms, accountant="rdp")))
