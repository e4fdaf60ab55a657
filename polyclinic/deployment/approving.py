"""What a person at the hospital is shown of a run before deciding on it, by the command line and by the page."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from polyclinic.client.home.approvals import Approval
from polyclinic.client.home.policy import Policy
from polyclinic.config import RunConfig
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.deployment.monitoring.status import ledger_status
from polyclinic.errors import ConfigError
from polyclinic.releases.kinds import read_question
from polyclinic.wire.submissions import SUBMITTER

#: Digits of the terms' digest by which a person tells runs apart; all of them approve.
DIGITS = 12


def facts(approval: Approval, policy: Policy) -> dict[str, Any]:
    """An approval as JSON, with what the run's configuration says of the most important, and ``leaves``, a sentence a thing.

    Of ``signed``: whether the policy names the submitter, whose signature the run then had to bring.
    Of ``epsilon``: it is None without privacy; "" stands for what settings of another version do not say.
    A run that told no settings has "" for all, also for ``terms``.
    """
    shown: dict[str, Any] = dict.fromkeys(("task", "model", "strategy", "rounds", "epsilon", "metrics"), "") | {
        "leaves": []
    }
    if approval.digest:  # without one the run told no settings
        with suppress(ConfigError):  # which settings of a version that had other keys may raise
            shown |= _figures(RunConfig.build(approval.settings), policy)
    if asked := approval.settings.get("question"):
        question = read_question(asked)
        shown = dict.fromkeys(shown, "") | {"task": question.task, "epsilon": question.epsilon, "rounds": 1}
        noise = "without noise" if question.epsilon is None else f"with noise for ε = {question.epsilon:g}"
        shown["leaves"] = [f"One answer to the question, {noise}."]
    submitter = str(approval.settings.get(SUBMITTER, ""))
    return {
        "run": approval.run, "terms": approval.digest, "state": approval.stands(datetime.now(UTC)), **shown,
        "submitter": submitter, "signed": submitter in policy.submitters, "code": approval.code,
        "settings": approval.settings,
        **{name: getattr(approval, name) for name in ("asked", "decided", "until", "by", "why")},
    }  # fmt: skip


def _figures(config: RunConfig, policy: Policy) -> dict[str, Any]:
    # A coordinator's text could otherwise move the cursor, or look like another line.
    names = {"task": config.task, "model": config.model, "strategy": config.strategy}
    return {key: name if name.isprintable() else repr(name) for key, name in names.items()} | {
        "rounds": config.rounds, "epsilon": config.privacy.epsilon if config.privacy.dp else None,
        "metrics": config.evaluation.metrics, "leaves": _leaves(config, policy),
    }  # fmt: skip


def spending(node: HospitalNode) -> dict[str, float | None]:
    """``spent`` and ``budget`` of the hospital's ledger; None is unbounded, or no limit."""
    status = ledger_status(node)
    return {"spent": status["epsilon"], "budget": status["budget"]}


def share_of_budget(facts: dict[str, Any], budget: float | None) -> str:
    """What of the whole budget a run asks for, in percent; empty where either has no number."""
    return f"{facts['epsilon'] / budget:.0%}" if facts["epsilon"] and budget else ""


def _leaves(config: RunConfig, policy: Policy) -> list[str]:
    noise = f"with noise for ε = {config.privacy.epsilon:g} in all" if config.privacy.dp else "without noise"
    secure = ", which the coordinator sees only as a sum over hospitals" if config.secure.aggregation else ""
    leaves = [f"After each of {config.rounds} rounds an update of what is trained, {noise}{secure}."]
    if config.asks_statistics:
        leaves.append("Before the first round numbers of patients by label, paid for by the same ε." if config.privacy.dp else
                      "Before the first round exact numbers of patients by label.")  # fmt: skip
    exact = policy.release_metrics and config.evaluation.metrics == "exact"
    if exact:
        leaves.append("Exact metrics of held-out patients and their number.")
        leaves += ["The score and the label of each held-out patient."] if policy.release_predictions else []
    elif config.evaluation.metrics != "none" and policy.metrics_epsilon:
        leaves.append(f"Metrics of held-out patients with noise, for up to ε = {policy.metrics_epsilon:g} of theirs.")
    return leaves
