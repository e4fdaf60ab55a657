"""The order that keeps every epsilon true: check, charge the ledger, and only then compute from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR
from typing import Generic

from dp_accounting import DpEvent
from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log

from polyclinic.client.calls import Answer, Call, ledger_fields
from polyclinic.client.home.hospital import Hospital, open_held_out, open_ledgers
from polyclinic.client.home.releases import Reply, is_released, read_release, write_release
from polyclinic.client.home.state import check_records
from polyclinic.errors import BudgetRefused, PolyclinicError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.ledger import Charge, Ledger, Limit, charge_all, spent_all
from polyclinic.privacy.ledger.terms import check_plan
from polyclinic.wire.messages import RECORD, AskRequest, R, TrainRequest

Account = Callable[[Sequence[Hospital]], list[Ledger]]


@dataclass(frozen=True)
class Release(Generic[R]):
    """What hospitals are asked to release.

    Args:
        purpose, round: Its name in the ledger, beside the run.
        allow: Raises PolyclinicError for a call that the hospital's policy or its records refuse.
        event: What the release costs.
        identify: The digest of all that decides its numbers.
        compute: The replies to calls that were charged, with each ledger's epsilon.
        once: Also a simulated hospital sends what it sent before, and refuses another question of the purpose and round.
        account: The ledgers that are charged.
        everyone: A real hospital's held-out patients are asked too, and their ledger is charged first: where it refuses,
            nothing else is charged. So it is with every release where a run chose who is held out, since a patient of either
            ledger may then be on the side that is asked.
        plan: All charges that the run will make (``ledger.Charge``).
    """

    purpose: str
    round: int
    allow: Callable[[Call[R]], None]
    event: Callable[[Call[R]], DpEvent]
    identify: Callable[[Call[R]], str]
    compute: Callable[[Sequence[Call[R]], Sequence[float]], list[RecordDict]]
    once: bool = False
    account: Account = open_ledgers
    everyone: bool = False
    plan: Callable[[Call[R]], str] = lambda call: call.request.plan

    def reply(self, call: Call[R]) -> Reply:
        """Which of the hospital's replies it is."""
        return Reply(call.hospital.home, call.request.run, self.purpose, self.round)

    def earlier_reply(self, call: Call[R]) -> RecordDict | None:
        """The reply that left before, with the ledger's epsilon of now. Raises PolyclinicError where the ledger does not hold
        it."""
        hospital, run, reply = call.hospital, call.request.run, self.reply(call)
        content = read_release(reply, self.identify(call))
        if content is None and self.once and is_released(reply):
            raise PolyclinicError(
                f"{hospital.site}: refused: round {self.round} was already answered to another question."
            )
        if content is not None:
            if self.round not in {row.round for row in self.account([hospital])[0].charges(self.purpose, run)}:
                raise behind(hospital, f"the reply to {self.purpose!r} of round {self.round}")
            spent = spent_all(open_ledgers([hospital]))[0]
            content[RECORD] = ConfigRecord({**content[RECORD], **ledger_fields(hospital, spent)})  # type: ignore[dict-item]
        return content

    def charge(self, call: Call[R]) -> Charge:
        """What the ledger is asked for; a simulated hospital's streams make the same numbers again, at no cost."""
        name = self.identify(call) if call.hospital.simulated else ""
        return Charge(
            self.event(call), self.purpose, call.request.run, self.round, name, self.plan(call), self._limits(call)
        )

    def _limits(self, call: Call[R]) -> tuple[Limit, ...]:
        """The policy's, where the run, or the question, that a person approved or signed may cost as much as it asked for: a
        question for one answer."""
        hospital, most = call.hospital, call.hospital.approved_epsilon(call.config)
        if hospital.holds_to_terms and isinstance(call.request, AskRequest):
            most = epsilon(self.event(call), hospital.terms.delta, "pld", hospital.terms.relation)
        elif self.account is open_held_out and not hospital.moves_patients and most < math.inf:
            most = hospital.metrics_epsilon(call.config) or 0.0
        return hospital.limits(most, call.config.participation.submitter)


def charge_calls(calls: Sequence[Call[R]], release: Release[R]) -> list[Answer]:
    """Check, charge what the release costs, and only then compute; what was released before is given again at no cost.

    A simulated site's streams make the same numbers again, so its charge is recognised by the release's digest. A real
    hospital's would make others: it keeps its last replies and sends those.
    """
    answers: dict[int, Answer] = {}
    unpaid: list[int] = []
    for index, call in enumerate(calls):
        real = not call.hospital.simulated
        try:
            release.allow(call)
            check_plan(release.plan(call), call.hospital.policy.relation)
            check_same_records(call)
            earlier = release.earlier_reply(call) if release.once or real else None
            if (release.everyone or call.hospital.moves_patients) and earlier is None and real:
                _charge_others(call, release)
        except PolyclinicError as error:
            answers[index] = error
            continue
        if earlier is None:
            unpaid.append(index)
        else:
            answers[index] = earlier
    if unpaid:
        ledgers = release.account([calls[index].hospital for index in unpaid])
        charges = [(ledger, release.charge(calls[index])) for ledger, index in zip(ledgers, unpaid, strict=True)]
        # The server has a simulation's ledger on the disk before its checkpoint counts on a round.
        simulated = all(call.hospital.simulated and isinstance(call.request, TrainRequest) for call in calls)
        results = dict(zip(unpaid, charge_all(charges, durable=not simulated), strict=True))
        answers |= {index: after for index, after in results.items() if isinstance(after, BudgetRefused)}
        paid = {index: after for index, after in results.items() if not isinstance(after, BudgetRefused)}
        working = [calls[index] for index in paid]
        with _sealed(working):
            replies = release.compute(working, list(paid.values())) if paid else []
            for call, reply in zip(working, replies, strict=True):
                if release.once or not call.hospital.simulated:
                    write_release(
                        release.reply(call), release.identify(call), reply, call.config.checkpoints.rounds_kept,
                        durable=not call.hospital.simulated,
                    )  # fmt: skip
        answers |= zip(paid, replies, strict=True)
    return [answers[index] for index in range(len(calls))]


def check_same_records(call: Call[R]) -> None:
    """Raises PolyclinicError when the hospital's records changed since its first charge for the run.

    Cyclic batches are dealt by the patients' order, which must then be the same too. A query of its own is one message, and a
    simulation's records are a dataset's.
    """
    hospital, cyclic = call.hospital, call.config.training.batching == "cyclic"
    if not isinstance(call.request, AskRequest) and (cyclic or not hospital.simulated):
        check_records(hospital.home, call.request.run, hospital.site, hospital.began(cyclic), not hospital.simulated)


def _charge_others(call: Call[R], release: Release[R]) -> None:
    """Charge the ledger of the patients on the other side; raises BudgetRefused, which says whose it is, where that refuses."""
    others, whose = (open_ledgers, "Training") if release.account is open_held_out else (open_held_out, "Held-out")
    charge = release.charge(call)
    if not call.hospital.moves_patients:
        charge = replace(charge, plan="")
    after = charge_all([(others([call.hospital])[0], charge)])[0]
    if isinstance(after, BudgetRefused):
        raise BudgetRefused(f"{whose} patients: {after}")


def behind(hospital: Hospital, what: str) -> PolyclinicError:
    """Why nothing goes on from ``what`` was kept beside a ledger that is older: what it spent since is forgotten there."""
    return PolyclinicError(
        f"{hospital.site}: refused: the ledger does not hold the charge for {what}, which the hospital kept; it is older than "
        "the files beside it: restore the newest ledger."
    )


@contextmanager
def _sealed(calls: Sequence[Call[R]]) -> Iterator[None]:
    """After the charge, even which error a real hospital has may depend on a record: all get one constant sentence."""
    try:
        yield
    except Exception as error:
        if all(call.hospital.simulated for call in calls):
            raise
        log(ERROR, "This hospital failed after its ledger was charged.", exc_info=error)
        raise PolyclinicError("the hospital failed; its own log has the details") from None
