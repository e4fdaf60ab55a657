"""A run's outcome as the JSON that the command line prints and the report reads (keys: docs/reference/json.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.digests import digest
from polyclinic.evaluation.assessment import assess, pool
from polyclinic.evaluation.groups import group_names
from polyclinic.evaluation.judges import CLASSES, Judge, judge_of
from polyclinic.evaluation.privacy_text import composition
from polyclinic.objectives.objective import Objective
from polyclinic.plugins import dataset_of
from polyclinic.privacy.ledger import Ledger, past_all, spent_all
from polyclinic.privacy.ledger.statements import statements
from polyclinic.privacy.ledger.terms import History, Terms, epsilon_together, risk_of, risk_together
from polyclinic.releases.measured import Noised
from polyclinic.server.accounts import bound
from polyclinic.server.exchange.sites import Site
from polyclinic.server.federate import Outcome
from polyclinic.server.notes import cautions, notes, terms_of
from polyclinic.server.tracking import tracker_note


def summarise(outcome: Outcome, run_dir: Path, home: Path, comparison: dict[str, Any] | None = None) -> dict[str, Any]:
    """The summary of a finished run.

    Args:
        outcome: What the run left.
        run_dir: The run's folder.
        home: The folder of the ledgers of simulated hospitals.
        comparison: The comparison without privacy and with each hospital alone; None where there is none.
    """
    config, state, privacy, stepwise = outcome.config, outcome.state, outcome.privacy, outcome.program.stepwise
    simulated = all(site.simulated for site in outcome.sites)
    last = {row["site"]: row for row in state.newest_rows()}
    private = privacy is not None
    ledgers = _ledgers(outcome, home)
    spent, charged = _site_epsilons(outcome, ledgers), _charge_histories(outcome, ledgers)
    site, overlap = outcome.sites[0], _overlap(outcome)
    statement = _statement(outcome, ledgers, spent)
    unchanged, flow = _unchanged_rounds(outcome, statement), dataset_of(config).flow if simulated else None
    objective = outcome.program.objective(site.schema) if outcome.program.judged else None
    by = judge_of(objective) if objective else CLASSES
    evaluation = _evaluation(outcome, by) if outcome.program.judged else None
    first = cautions(outcome, evaluation)
    return {
        "run": str(run_dir), "rounds": state.round, "seed": config.seed, "strategy": config.strategy,
        "engine": outcome.engine, "learning_rate": state.learning_rate if stepwise else None,
        "dataset": config.dataset if simulated else outcome.sites[0].schema.name,
        "model": outcome.program.model_title(site.schema),
        "flow": flow.as_list() if flow else None,
        "metrics": {
            "pooled": _metrics(last.get("pooled"), by) | {"released": _is_pooled(outcome) if state.released else None},
            "macro": _metrics(last.get("macro"), by) | {"released": any(state.released.values()) if state.released else None},
            "sites": {
                site.name: _site_metrics(site, outcome, last.get(site.name), spent, charged, by) for site in outcome.sites
            },
        },
        "objective": _objective(objective, by) if objective else None,
        "evaluation": evaluation,
        "private_metrics": _private_metrics(outcome),
        "privacy": {
            "epsilon": _run_epsilon(outcome, charged, spent) if private and spent else None,
            "private": private, "risk": _risk(outcome, charged),
            "delta": config.privacy.delta if private else None,
            "overlap": overlap, "composition": composition(overlap, site.schema.unit),
            "unit": site.schema.unit, "relation": site.relation, "accountant": site.accountant,
            "budget": config.privacy.epsilon if private else None, "noise_multiplier": state.noise_multiplier,
            "sample_rate": config.training.sample_rate if stepwise else None,
            "steps": config.rounds * (config.training.local_steps if stepwise else 1),
            "central": _central(outcome),
        },
        "synthesis": None, "analysis": None, **statement_of(outcome),
        "model_sha256": digest(state.arrays), "seconds": state.seconds,
        "rounds_per_second": state.round / state.seconds if state.seconds else None,
        "strategy_metrics": state.strategy_metrics,
        "floor": _floor(outcome, objective, by) if objective else None,
        "comparison": comparison, "dropouts": state.dropouts, "unchanged": unchanged,
        "stopped": state.stopped, "simulation": simulated, "shared_noise": config.secure.shared_noise,
        "statement": statement, "cautions": len(first),
        "notes": [*first, *notes(outcome, unchanged, comparison), *tracker_note(run_dir)],
    }  # fmt: skip


def statement_of(outcome: Outcome) -> dict[str, Any]:
    """The program's own part of the summary, by its key."""
    learning, state = outcome.learning, outcome.state
    half, learned = (learning.half, learning.state) if learning else (None, {})
    return outcome.program.statement(half, learned, outcome.synthesizer, [*state.patients.values()], state.stopped)


def _objective(objective: Objective, by: Judge) -> dict[str, Any]:
    """What the model was trained towards, and by what it is judged."""
    description = {
        "name": objective.name,
        "label": objective.label,
        "unit": objective.unit,
        "predicts": objective.predicts,
    }
    return description | by.as_dict()


def _evaluation(outcome: Outcome, by: Judge) -> dict[str, Any]:
    config, schema = outcome.config, outcome.sites[0].schema
    groups = group_names(schema, config.evaluation.groups) if config.evaluation.groups else ()
    if not outcome.state.released:
        return {"undefined": "no hospital was asked for metrics"}
    return assess(outcome.state.predictions or {}, config.seed, config.evaluation.groups, groups, by)


def _is_pooled(outcome: Outcome) -> bool:
    """Whether some hospital let predictions or noised counts leave."""
    state = outcome.state
    return any(len(part.labels) for part in (state.predictions or {}).values()) or bool(state.score_counts)


def _private_metrics(outcome: Outcome) -> dict[str, Any] | None:
    """The last round's noised figures, with the error of their noise and what they cost; None where none were asked for."""
    state = outcome.state
    if not (state.score_counts or state.withheld):
        return None
    spent = [(state.held_out[site.name], site.delta) for site in outcome.sites if site.name in state.held_out]
    return {
        "epsilon": max((epsilon for epsilon, _ in spent), default=None),
        "delta": max((delta for _, delta in spent), default=None), "withheld": state.withheld,
        "pooled": Noised.pool(state.score_counts.values()).summary() if state.score_counts else None,
        "sites": {name: part.summary() | {"epsilon": state.held_out[name]} for name, part in state.score_counts.items()},
    }  # fmt: skip


def _central(outcome: Outcome) -> dict[str, Any] | None:
    """The guarantee to whole hospitals, with the risk that the server's ledger says; None without."""
    if not outcome.central:
        return None
    rest = {key: value for key, value in outcome.central.items() if key != "ledger"}
    return rest | {"risk": outcome.central["ledger"]["risk"]}


def _metrics(row: dict[str, Any] | None, by: Judge) -> dict[str, float | None]:
    return {name: row.get(name) if row else None for name in by.by_round}


def _ledgers(outcome: Outcome, home: Path) -> dict[str, Ledger]:
    """The ledgers of the run's simulated hospitals by name; a real hospital's stays there."""
    path = home / "ledger.sqlite"
    ledgers = Ledger.read_all(path) if path.exists() else {}
    return {site.name: ledgers[site.name] for site in outcome.sites if site.simulated and site.name in ledgers}


def _site_epsilons(outcome: Outcome, ledgers: dict[str, Ledger]) -> dict[str, float]:
    """Each site's epsilon: by its ledger where that is at hand; else the larger of its word and what it must have spent."""
    if outcome.privacy is None:
        return {}
    state, terms = outcome.state, terms_of(outcome)
    spent = {name: bound(state.accounts.get(name), state.epsilon.get(name), by) for name, by in terms.items()}
    if ledgers:
        spent |= zip(ledgers, spent_all([*ledgers.values()]), strict=True)
    return {name: epsilon for name, epsilon in spent.items() if epsilon is not None}


def _overlap(outcome: Outcome) -> int:
    """The most hospitals of this run that may hold one patient's records, as whoever allows for most of them declares."""
    declared = max(1 + site.elsewhere for site in outcome.sites)
    return min(max(declared, outcome.config.privacy.overlap), len(outcome.sites))


def _run_epsilon(outcome: Outcome, charged: dict[str, History], spent: dict[str, float]) -> float:
    """The run's epsilon for a patient of as many hospitals as may be: the largest of one, or what the worst spent together."""
    largest, overlap = max(spent.values()), _overlap(outcome)
    if overlap == 1:
        return largest
    site = outcome.sites[0]
    terms = Terms("", outcome.config.privacy.delta, site.relation, accountant=site.accountant)
    return max(largest, epsilon_together([*charged.values()], overlap, terms))


def _risk(outcome: Outcome, charged: dict[str, History]) -> dict[str, float] | None:
    """The run's risk, of the same patient as its epsilon; None where no hospital told what it was charged."""
    if not charged:
        return None
    return risk_together([*charged.values()], _overlap(outcome), outcome.sites[0].relation).as_dict()


def _charge_histories(outcome: Outcome, ledgers: dict[str, Ledger]) -> dict[str, History]:
    """What each site has spent: of a real hospital at least what it must have, and by the ledgers of simulated ones."""
    accounts = {name: account.spent_history() for name, account in outcome.state.accounts.items()}
    return accounts | (dict(zip(ledgers, past_all([*ledgers.values()]), strict=True)) if ledgers else {})


def _site_metrics(
    site: Site,
    outcome: Outcome,
    row: dict[str, Any] | None,
    spent: dict[str, float],
    charged: dict[str, History],
    by: Judge,
) -> dict[str, Any]:
    state, private = outcome.state, outcome.privacy is not None
    return {
        "patients": state.patients.get(site.name), **_metrics(row, by), "released": state.released.get(site.name),
        "epsilon": spent.get(site.name) if private else None, "delta": site.delta if private else None,
        "risk": risk_of(charged[site.name], site.relation).as_dict() if site.name in charged else None,
        "budget": site.budget, "rounds_joined": state.joined.get(site.name, 0),
    }  # fmt: skip


def _floor(outcome: Outcome, objective: Objective, by: Judge) -> dict[str, float | None] | None:
    """What the best constant prediction reaches for all held-out patients together; None where none were told."""
    released = {name: part for name, part in (outcome.state.predictions or {}).items() if len(part.labels)}
    if not released:
        return None
    labels = pool(released).labels
    return by.floor(labels, objective.constant(labels))


def _statement(outcome: Outcome, ledgers: dict[str, Ledger], spent: dict[str, float]) -> dict[str, Any]:
    """What was spent where: whole ledgers in a simulation; a real hospital's ledger stays there, its totals are here.

    ``said`` is a real hospital's own word, which ``epsilon`` is never below.
    """
    whole = dict(zip(ledgers, statements([*ledgers.values()]), strict=True)) if ledgers else {}
    sites = {
        site.name: whole.get(site.name) or {
            "site": site.name, "epsilon": spent.get(site.name), "said": outcome.state.epsilon.get(site.name),
            "delta": site.delta, "budget": site.budget, "relation": site.relation, "accountant": site.accountant,
        }
        for site in outcome.sites
    }  # fmt: skip
    first = outcome.sites[0]
    return {
        "unit": first.schema.unit, "relation": first.relation, "accountant": first.accountant,
        "delta": first.delta, "sites": sites, "central": outcome.central and outcome.central["ledger"],
    }  # fmt: skip


def _unchanged_rounds(outcome: Outcome, statement: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds that changed no model, why, and the hospitals (by their ledgers) that were charged all the same.

    ``central``: whether the server's ledger was, for what it tells of whole hospitals.
    """

    def rounds(ledger: dict[str, Any] | None, purpose: str) -> set[int]:
        events = ledger.get("events", ()) if ledger else ()
        return {event["round"] for event in events if (event["run"], event["purpose"]) == (outcome.run, purpose)}

    if not outcome.state.unchanged:
        return []
    trained = {site: rounds(ledger, "train") for site, ledger in statement["sites"].items()}
    summed = rounds(statement["central"], "secure-sum")
    return [
        entry | {"charged": [site for site, numbers in trained.items() if entry["round"] in numbers],
                 "central": entry["round"] in summed}
        for entry in outcome.state.unchanged
    ]  # fmt: skip
