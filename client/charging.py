"""The order that keeps every epsilon true: check, charge the ledger, and only then compute from records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import ERROR

from dp_accounting import DpEvent
from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log

from polyclinic.client.calls import Answer, Call, told
from polyclinic.client.hospital import Hospital, open_held_out, open_ledgers
from polyclinic.client.releases import read_release, released, write_release
from polyclinic.client.state import check_records
from polyclinic.errors import BudgetRefused, PolyclinicError
from polyclinic.messages import RECORD, AskRequest, R
from polyclinic.privacy.ledger import Charge, Ledger, charge_all, spent_all
from polyclinic.privacy.ledger_terms import check_plan

Account = Callable[[Sequence[Hospital]], list[Ledger]]


def charged(
    calls: Sequence[Call[R]], allow: Callable[[Call[R]], None], event: Callable[[Call[R]], DpEvent], purpose: str, round: int,
    identify: Callable[[Call[R]], str], release: Callable[[Sequence[Call[R]], Sequence[float]], list[RecordDict]],
    once: bool = False, account: Account = open_ledgers, everyone: bool = False,
    plan: Callable[[Call[R]], str] = lambda call: call.request.plan,
) -> list[Answer]:  # fmt: skip
    """Check, charge what ``event`` says, and only then compute; what was released before is given again and costs nothing.

    A simulated site's streams make the same numbers again, so its charge is recognised by the release's digest. A real
    hospital's would make others: it keeps its last replies and sends those. ``once``: so does a simulated one, and another
    question of the same purpose and round is refused. ``account``: the ledgers that are charged. ``everyone``: a real
    hospital's held-out patients are asked too, and their ledger is charged first: where it refuses, nothing else is charged.
    ``plan``: all charges that the run will make (``ledger.Charge``).
    """
    answers: dict[int, Answer] = {}
    open_calls: list[int] = []
    for index, call in enumerate(calls):
        hospital = call.hospital
        try:
            allow(call)
            check_plan(plan(call), hospital.policy.relation)
            check_same_records(call)
            kept = (
                _kept(call, purpose, round, identify(call), once, account) if once or not hospital.simulated else None
            )
            if everyone and kept is None and not hospital.simulated:
                _charge_held_out(call, Charge(event(call), purpose, call.request.run, round))
        except PolyclinicError as error:
            answers[index] = error
            continue
        if kept is None:
            open_calls.append(index)
        else:
            answers[index] = kept
    if open_calls:
        results = charge_all([
            (ledger, Charge(event(calls[index]), purpose, calls[index].request.run, round,
                            identify(calls[index]) if calls[index].hospital.simulated else "", plan(calls[index])))
            for index, ledger in zip(open_calls, account([calls[i].hospital for i in open_calls]), strict=True)
        ])  # fmt: skip
        answers |= {i: after for i, after in zip(open_calls, results, strict=True) if isinstance(after, BudgetRefused)}
        paid = [
            (i, after) for i, after in zip(open_calls, results, strict=True) if not isinstance(after, BudgetRefused)
        ]
        working = [calls[index] for index, _ in paid]
        with _sealed(working):
            replies = release(working, [after for _, after in paid]) if paid else []
            for call, reply in zip(working, replies, strict=True):
                if once or not call.hospital.simulated:
                    write_release(call.hospital.home, call.request.run, purpose, round, identify(call), reply,
                                  call.config.rounds_kept, durable=not call.hospital.simulated)  # fmt: skip
        answers |= {index: reply for (index, _), reply in zip(paid, replies, strict=True)}
    return [answers[index] for index in range(len(calls))]


def check_same_records(call: Call[R]) -> None:
    """Raises PolyclinicError when the hospital's records changed since its first charge for the run.

    Cyclic batches are dealt by the patients' order, which must then be the same too. A query of its own is one message, and a
    simulation's records are a dataset's.
    """
    hospital, cyclic = call.hospital, call.config.batching == "cyclic"
    if not isinstance(call.request, AskRequest) and (cyclic or not hospital.simulated):
        shard = hospital.shard()
        contents = shard.digest if cyclic else shard.contents
        check_records(hospital.home, call.request.run, hospital.site, contents, not hospital.simulated)


def _charge_held_out(call: Call[R], charge: Charge) -> None:
    """Raises BudgetRefused, which says whose budget it is, where the held-out patients' ledger refuses."""
    after = charge_all([(open_held_out([call.hospital])[0], charge)])[0]
    if isinstance(after, BudgetRefused):
        raise BudgetRefused(f"Held-out patients: {after}")


def _kept(call: Call[R], purpose: str, round: int, identity: str, once: bool, account: Account) -> RecordDict | None:
    """The reply that left before, with the ledger's epsilon of now. Raises PolyclinicError where the ledger does not hold it."""
    hospital = call.hospital
    kept = read_release(hospital.home, call.request.run, purpose, round, identity)
    if kept is None and once and released(hospital.home, call.request.run, purpose, round):
        raise PolyclinicError(f"{hospital.site}: refused: round {round} was already answered to another question.")
    if kept is not None:
        if round not in {row.round for row in account([hospital])[0].charges(purpose, call.request.run)}:
            raise behind(hospital, f"the reply to {purpose!r} of round {round}")
        spent = spent_all(open_ledgers([hospital]))[0]
        kept[RECORD] = ConfigRecord({**kept[RECORD], **told(hospital, spent)})  # type: ignore[dict-item]
    return kept


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
