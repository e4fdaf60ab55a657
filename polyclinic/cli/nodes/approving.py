"""``polyclinic hospital pending``, ``show``, ``approve``, ``deny``, ``stop``, ``pause``, ``resume``: people decide on runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyclinic.cli.nodes import deploying
from polyclinic.cli.nodes.deploying import Folder
from polyclinic.cli.terminal import Json, answer, loading, significant, table

if TYPE_CHECKING:
    from pathlib import Path

    from polyclinic.client.home.approvals import Approval
    from polyclinic.deployment.hospital import HospitalNode

RunName = Annotated[str, typer.Argument(help="The run's name, as `pending` shows it.")]
Why = Annotated[str, typer.Option(help="One line, which the coordinator is told.")]
_DIGITS = 12


def pending(
    folder: Folder,
    every: Annotated[bool, typer.Option("--all", help="Also the runs that somebody has decided on.")] = False,
    as_json: Json = False,
) -> None:
    """The runs that wait for somebody here to approve or deny them."""
    with loading():
        from polyclinic.client.home.approvals import approvals

    node = _read(folder)
    listed = [one for one in map(_facts, approvals(node.home)) if every or one["state"] == "pending"]
    columns = ("run", "terms", "state", "task", "model", "rounds", "epsilon", "asked")
    rows = [[one["terms"][:_DIGITS] if name == "terms" else str(one[name]) for name in columns] for one in listed]
    none = "No run has asked." if every else "No run waits."
    answer(as_json, listed, table(columns, rows, words=("run", "terms", "state", "task", "model")) if listed else none)
    if not node.policy.require_approval:
        deploying.warn(
            ["The policy has require-approval at false: runs that it allows begin without anybody's approval."]
        )


def show(folder: Folder, run: RunName, as_json: Json = False) -> None:
    """All terms of a run that asked: what it is, what leaves, what it would cost of the budget, and where it stands."""
    with loading():
        from polyclinic.client.home.approvals import approval_named
        from polyclinic.deployment.monitoring.status import ledger_status

    node = _read(folder)
    ledger = ledger_status(node)
    facts = _facts(approval_named(node.home, run)) | {"spent": ledger["epsilon"], "budget": ledger["budget"]}
    asks = "no privacy" if facts["epsilon"] is None else "keys of another version"
    if facts["epsilon"]:
        asks = f"ε = {facts['epsilon']:g}"
    budget = "no limit" if ledger["budget"] is None else f"{ledger['budget']:g}"
    spent = "unbounded" if ledger["epsilon"] is None else significant(ledger["epsilon"])
    what = ", ".join(facts[name] for name in ("task", "model", "strategy") if facts[name])
    metrics = ""
    if facts["metrics"] not in ("", "none"):
        metrics = (
            f"; metrics: {facts['metrics']}, for up to ε = {node.policy.metrics_epsilon:g} more of held-out patients"
        )
    settings = [f"  {key} = {value!r}" for key, value in facts["settings"].items()]
    answer(
        as_json, facts, f"{run}: {facts['state']}{_decision(facts)}",
        f"It asks for {asks}; spent so far: {spent}; budget: {budget}.",
        f"{what}, {facts['rounds']} rounds{metrics}",
        f"Code: {facts['code']}", "All settings that are not usual:", *settings,
        f"`polyclinic hospital approve {folder} {run} --terms {facts['terms']}` lets it begin.",
    )  # fmt: skip


def approve(
    folder: Folder,
    run: RunName,
    terms: Annotated[str, typer.Option(help="All digits of the terms, as `show` has them.")],
    days: Annotated[
        float | None, typer.Option(help="For how many days; the policy's approval-days where it is not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a run begin, or go on, under the terms that were shown; under others it waits anew."""
    _decide(folder, run, "approved", as_json, terms=terms, days=days)


def deny(
    folder: Folder,
    run: RunName,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Refuse a run, also one that was approved and has begun: nothing more is computed or charged for it."""
    _decide(folder, run, "denied", as_json, why=why)


def stop(folder: Folder, run: RunName, why: Why = "", as_json: Json = False) -> None:
    """Stop a run here, whether or not runs need an approval: nothing more is computed or charged for it. Others go on."""
    with loading():
        from polyclinic.client.home import approvals

    facts = _facts(approvals.stop(_read(folder).home, run, why))
    answer(as_json, facts, f"{run}: denied{_decision(facts)}")


def pause(folder: Folder, why: Why = "", as_json: Json = False) -> None:
    """Hold up all runs here until `resume`: nothing is computed, charged or released meanwhile. The node stays connected."""
    with loading():
        from polyclinic.client.home import approvals

    home = _read(folder).home
    approvals.pause(home, why)
    answer(
        as_json, approvals.paused(home), "Paused: no run computes, charges or releases anything here until `resume`."
    )


def resume(folder: Folder, as_json: Json = False) -> None:
    """End a pause: runs that still go on ask this hospital again in their next round."""
    with loading():
        from polyclinic.client.home import approvals

    approvals.resume(_read(folder).home)
    answer(as_json, {"resumed": True}, "Resumed.")


def _decide(
    folder: Path, run: str, state: Literal["approved", "denied"], as_json: bool, terms: str = "", days: float | None = None,
    why: str = "",
) -> None:  # fmt: skip
    with loading():
        from polyclinic.client.home.approvals import decide

    node = _read(folder)
    days = node.policy.approval_days if days is None else days
    facts = _facts(decide(node.home, run, terms, state, days, why))
    answer(as_json, facts, f"{run}: {state}{_decision(facts)}")


def _decision(facts: dict[str, Any]) -> str:
    """Who decided and until when it holds, to stand after the state; empty where nobody has."""
    until = f", until {facts['until']}" if facts["until"] else ""
    return f" by {facts['by']} at {facts['decided']}{until}" if facts["decided"] else ""


def _facts(approval: Approval) -> dict[str, Any]:
    """An approval as JSON, with what the run's configuration says of the most important."""
    from contextlib import suppress
    from datetime import UTC, datetime

    from polyclinic.config import RunConfig
    from polyclinic.errors import ConfigError
    from polyclinic.releases.kinds import read_question

    facts: dict[str, Any] = dict.fromkeys(("task", "model", "strategy", "rounds", "epsilon", "metrics"), "")
    with suppress(ConfigError):  # which settings of a version that had other keys may raise
        config = RunConfig.build(approval.settings)
        # A coordinator's text could otherwise move the cursor, or look like another line.
        names = {"task": config.task, "model": config.model, "strategy": config.strategy}
        facts |= {key: name if name.isprintable() else repr(name) for key, name in names.items()}
        epsilon = config.privacy.epsilon if config.privacy.dp else None
        facts |= {"rounds": config.rounds, "epsilon": epsilon, "metrics": config.evaluation.metrics}
    if asked := approval.settings.get("question"):
        question = read_question(asked)
        facts = dict.fromkeys(facts, "") | {"task": question.task, "epsilon": question.epsilon, "rounds": 1}
    return {
        "run": approval.run, "terms": approval.digest, "state": approval.stands(datetime.now(UTC)), **facts,
        "code": approval.code, "settings": approval.settings,
        **{name: getattr(approval, name) for name in ("asked", "decided", "until", "by", "why")},
    }  # fmt: skip


def _read(folder: Path) -> HospitalNode:
    with loading():
        from polyclinic.deployment.hospital import HospitalNode

    return HospitalNode.read(folder)
