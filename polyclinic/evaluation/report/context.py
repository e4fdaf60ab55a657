"""What the sections of a run's report show, as plain values, from its summary and its rounds.

What the privacy statement does not cover is said on the page, next to what it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.evaluation.formats import (
    Summary,
    count,
    dataset_title,
    epsilon,
    finite,
    mark_withheld,
    metric,
    part,
    size,
    spending,
)
from polyclinic.evaluation.judges import groups_shown, headline, in_line, predicts_numbers, titles
from polyclinic.evaluation.metrics import REPLIED, macro_average
from polyclinic.evaluation.privacy_text import (
    NOT_RELEASED,
    RELATIONS,
    central_sentence,
    composition,
    epsilon_scope,
    held_out_sentence,
    not_covered,
    relation_meaning,
    risk_sentence,
    warnings,
)

MOST_ROWS = 60
FEW_ROWS = 10
COMPARISONS = {
    "without_dp": ("Without privacy", "one model of all hospitals' patients, without noise."),
    "alone": ("Trained alone", "each hospital's own model, of its own patients only."),
}


def report_context(summary: Summary, rounds: pd.DataFrame) -> dict[str, Any]:
    """What the template shows of a summary and its rounds table, as plain values. A missing key reads as not known."""
    metrics, statement = part(summary, "metrics"), part(summary, "statement")
    recorded = {key: value for key, value in part(summary, "privacy").items() if value is not None}
    privacy = {"epsilon": None, "delta": None, "relation": "", "accountant": "", "overlap": 1, **statement, **recorded}
    private = bool(privacy.get("private"))  # as the run was configured, whatever a hospital said of its epsilon
    unit, relation = str(privacy.get("unit") or "patient"), str(privacy["relation"])
    central = part(part(summary, "privacy"), "central")
    simulation = summary.get("simulation", True) is not False
    pooled, macro = (mark_withheld(part(metrics, key)) for key in ("pooled", "macro"))
    sites = {name: mark_withheld(site) for name, site in part(metrics, "sites").items()}
    first, second = scores = headline(summary)
    names = titles(summary)
    comparisons = _comparisons(part(summary, "comparison"), scores)
    estimates = part(part(summary, "evaluation"), "sites")
    ledgers = _ledgers(part(statement, "sites"))
    server = _ledgers({"federation": statement["central"]} if statement.get("central") else {})
    runs = [{"sites": sites, "pooled": pooled, "macro": macro}, *comparisons]
    hospitals = [
        {**site, "name": name, "spent": spending(site, private), "risk": part(site, "risk"), "estimates": estimates.get(name),
         "scores": [part(run["sites"], name) for run in runs]}
        for name, site in _select_sites(sites, first).items()
    ]  # fmt: skip
    patients = _patients({name: sites[name] for name in estimates if name in sites} or sites)
    totals = [
        {"name": name, "patients": number, "scores": [run[key] for run in runs]}
        for name, number, key in (("Pooled", count(patients), "pooled"), ("Mean over hospitals", "", "macro"))
    ]
    if floor := part(summary, "floor"):
        totals.append({"name": "Constant prediction", "patients": "", "scores": [floor for run in runs]})
    cells = [metric(row.get(key, "")) for shown in (*hospitals, *totals) for row in shown["scores"] for key in scores]
    scored = not part(summary, "analysis")
    judged = scored and macro.get("released") is not False
    noised = part(part(summary, "private_metrics"), "sites")
    measured = [name for name, site in sites.items() if any(finite(site.get(key)) is not None for key in scores)]
    whose = f" of {unit}s trained on" if noised else ""
    dropouts = _dropouts(summary.get("dropouts") or [])
    return {
        "title": _title(summary, len(sites)),
        "subtitle": _subtitle(summary, simulation),
        "sentence": _sentence(summary, sites, simulation),
        "private": private,
        "privacy": privacy,
        "known_epsilon": "not known" if finite(privacy["epsilon"]) is None else epsilon(privacy["epsilon"]),
        "unit": unit,
        "composition": composition(int(privacy["overlap"]), unit),
        "central": central_sentence(central) if central else "",
        "relation_meaning": relation_meaning(relation, unit),
        "whose": whose,
        "risk": risk_sentence(privacy["risk"], unit, relation, whose)
        if relation in RELATIONS and privacy.get("risk")
        else "",
        "simulation": simulation,
        "warnings": warnings(
            part(metrics, "sites") if private else {},
            [*ledgers, *server] if private else server,
            finite(privacy["delta"]),
        ),
        "rounds": summary.get("rounds"),
        "patients_sentence": _patients_sentence(sites),
        "pooled_of": _pooled_of(pooled, sites, estimates),
        "pooled": pooled,
        "floor": floor,
        "sites": len(sites),
        "hospitals": hospitals,
        "totals": totals,
        "spread": _spread(sites, first),
        "scores": scores,
        "titles": (names[first], names[second]),
        "in_line": in_line(names[first]),
        "predicts_numbers": predicts_numbers(summary),
        "objective": part(summary, "objective"),
        "few": FEW_ROWS,
        "comparisons": comparisons,
        "synthesis": _synthesis(part(summary, "synthesis"), pooled),
        "analysis": part(summary, "analysis"),
        "scored": scored,
        "judged": judged,
        "private_metrics": _private_metrics(part(summary, "private_metrics"), unit, names),
        "strategy_metrics": _strategy_metrics(summary),
        "has_undefined": "undefined" in cells,
        "has_withheld": NOT_RELEASED in cells,
        "has_missing": "–" in cells,
        "dropouts": dropouts[:MOST_ROWS],
        "more_dropouts": len(dropouts[MOST_ROWS:]),
        "ledgers": _telling(ledgers),
        "more_ledgers": len(ledgers) - len(_telling(ledgers)),
        "covers": epsilon_scope(unit, bool(part(summary, "analysis"))),
        "does_not_cover": not_covered(
            unit,
            private,
            simulation,
            bool(comparisons),
            "train_loss" in rounds and bool(rounds["train_loss"].notna().any()),
            int(privacy["overlap"]),
            exact=judged and not (noised and set(measured) <= noised.keys()),
        ),
        "notes": list(summary.get("notes") or []),
        "cautions": summary.get("cautions") or 0,
        "summary": summary,
    }


def _private_metrics(metrics: Summary, unit: str, titles: Mapping[str, str]) -> dict[str, Any] | None:
    """The table of private metrics: each figure with the standard error of its noise."""
    if not part(metrics, "sites"):
        return None
    rows = [*sorted(part(metrics, "sites").items()), ("Pooled", part(metrics, "pooled"))]
    names = list(part(part(metrics, "pooled"), "metrics"))
    return {
        "titles": [titles.get(name, "Held-out patients") for name in names],
        "sentence": held_out_sentence(metrics, unit),
        "rows": [
            {
                "name": name,
                "cells": [
                    _with_error(part(part(row, "metrics"), key), ".0f" if key == "patients" else ".3f") for key in names
                ],
            }
            for name, row in rows
        ],
    }


def _strategy_metrics(summary: Summary) -> dict[str, Any] | None:
    """What the strategy itself measured in the last round in which it did."""
    for of_round in reversed(summary.get("strategy_metrics") or []):
        own = [
            (phase, name, value)
            for phase in ("train", "evaluate", "server") for name, value in part(of_round, phase).items()
            if name not in REPLIED and finite(value) is not None
        ]  # fmt: skip
        if own:
            return {"round": of_round["round"], "rows": own}
    return None


def _with_error(estimate: Summary, how: str) -> str:
    value, error = finite(estimate.get("value")), finite(estimate.get("error"))
    return "undefined" if value is None or error is None else f"{value:{how}} ± {error:{how}}"


def _patients(sites: Summary) -> int | str:
    """Patients of the hospitals that told how many they have."""
    counts = [int(count) for site in sites.values() if (count := finite(site.get("patients"))) is not None]
    withheld = any(site.get("patients") == NOT_RELEASED for site in sites.values())
    return NOT_RELEASED if withheld and not counts else sum(counts)


def _patients_sentence(sites: Summary) -> str:
    silent = sum(site.get("patients") == NOT_RELEASED for site in sites.values())
    if not silent:
        return f"{count(_patients(sites))} patients"
    if silent == len(sites):
        return "numbers of patients not released"
    return f"{count(_patients(sites))} patients at {len(sites) - silent} of them, the others' number not released"


def _pooled_of(pooled: Summary, sites: Summary, estimates: Summary) -> str:
    """Over whose held-out patients the pooled figures are."""
    if pooled.get("released") is False:
        return "no hospital's policy lets predictions of held-out patients leave"
    some = estimates and len(estimates) < len(sites)
    return f"over the held-out patients of {f'{len(estimates)} of {len(sites)}' if some else 'all'} hospitals"


def _synthesis(synthesis: Summary, pooled: Summary) -> dict[str, Any] | None:
    """What the page says of a run that draws synthetic patients."""
    if not synthesis:
        return None
    rows = [{"name": str(synthesis.get("method")), **pooled}]
    for name, row in part(synthesis, "baselines").items():
        rows.append({"name": name, **row})
    return {**synthesis, "rows": rows}


def _subtitle(summary: Summary, simulation: bool) -> str:
    parts = [Path(str(summary["run"])).name] if summary.get("run") else []
    parts += ["simulation on one machine" if simulation else "federated run", f"seed {summary.get('seed', 'not set')}"]
    seconds, pace = finite(summary.get("seconds")), finite(summary.get("rounds_per_second"))
    if seconds is not None:
        parts.append(f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
    if pace is not None:
        parts.append(f"{pace:.3g} rounds per second")
    return " · ".join(parts)


def _title(summary: Summary, sites: int) -> str:
    dataset, over = dataset_title(summary), f"over {sites} {'hospital' if sites == 1 else 'hospitals'}"
    if analysis := part(summary, "analysis"):
        return f"{analysis['title']}, of {dataset} {over}"
    done = "synthesised" if part(summary, "synthesis") else "trained"
    return f"{dataset}, {done} by {summary.get('strategy', 'a strategy')} {over}"


def _sentence(summary: Summary, sites: Summary, simulation: bool) -> str:
    trained = sum(site.get("rounds_joined") != 0 for site in sites.values())
    by = f"{trained} of {len(sites)}" if trained < len(sites) else str(trained)
    hospitals = f"{by} {'hospital' if by == '1' else 'hospitals'}"
    rounds = f"{count(summary.get('rounds'))} {'round' if summary.get('rounds') == 1 else 'rounds'}"
    travelled = "sums over patients" if part(summary, "analysis") else "updates of the model"
    where = (
        "The hospitals were simulated on one machine, each with its own share of the records."
        if simulation
        else f"Records stayed at their hospital; {travelled} are what travelled."
    )
    objective, what = part(summary, "objective"), "generator of synthetic patients"
    if part(summary, "analysis"):
        added = "with noise" if part(summary, "privacy").get("private") else "exact"
        return f"In {rounds} {hospitals} answered with sums over patients, {added}. {where}"
    if not part(summary, "synthesis"):
        unit = f" ({objective['unit']})" if objective.get("unit") else ""
        what = f"shared model, {summary.get('model')} of {objective['label']}{unit}," if objective else "shared model"
    return (
        f"One {what} for {dataset_title(summary)} was trained by {hospitals} in {rounds} "
        f"with the strategy {summary.get('strategy', 'not recorded')}. {where}"
    )


def _select_sites(sites: Summary, metric: str) -> Summary:
    """All sites; of very many those with the lowest and the highest ``metric``, or the first where none has any."""
    if len(sites) <= MOST_ROWS:
        return sites
    ranked = _by_metric(sites, metric)
    chosen = {*ranked[:FEW_ROWS], *ranked[-FEW_ROWS:]} or {*list(sites)[: 2 * FEW_ROWS]}
    return {name: sites[name] for name in (*ranked, *sites) if name in chosen}


def _by_metric(sites: Summary, metric: str) -> list[str]:
    values = {name: value for name, site in sites.items() if (value := finite(site.get(metric))) is not None}
    return sorted(values, key=values.__getitem__)


def _spread(sites: Summary, metric: str) -> list[float]:
    """The metric of the site at each tenth, quarter, half, three quarters and nine tenths of very many."""
    ranked = _by_metric(sites, metric)
    if len(sites) <= MOST_ROWS or not ranked:
        return []
    return [float(sites[ranked[round(share * (len(ranked) - 1))]][metric]) for share in (0.1, 0.25, 0.5, 0.75, 0.9)]


def _telling(ledgers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All ledgers; of very many those that are not intact first, and then those that spent most."""
    if len(ledgers) <= MOST_ROWS:
        return ledgers
    ranked = sorted(
        ledgers, key=lambda ledger: (ledger["intact"] == "intact", -(finite(ledger["epsilon"]) or math.inf))
    )
    return ranked[: 2 * FEW_ROWS]


def _dropouts(dropouts: Sequence[Summary]) -> list[dict[str, str]]:
    """One row for each site and reason, its rounds written as ranges: a refused budget repeats to the last round."""
    missed: dict[tuple[str, str], list[int]] = {}
    for dropout in dropouts:
        missed.setdefault((str(dropout["site"]), str(dropout["reason"])), []).append(int(dropout["round"]))
    return [{"site": site, "reason": reason, "rounds": _ranges(rounds)} for (site, reason), rounds in missed.items()]


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(set(numbers) - {0}):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in spans]
    return ", ".join([*(["before the first"] if 0 in numbers else []), *texts])


def _ledgers(sites: Mapping[str, Any]) -> list[dict[str, Any]]:
    words = {True: "intact", False: "broken", None: "not checked"}
    return [
        {
            "name": name,
            "epsilon": site.get("epsilon"),
            "budget": site.get("budget"),
            "delta": site.get("delta"),
            "risk": part(site, "risk"),
            "charges": len(site["events"]) if isinstance(site.get("events"), list) else site.get("events"),
            "intact": words.get(site.get("intact"), "not checked"),
        }
        for name, site in sites.items()
    ]


def _comparisons(comparison: Summary, scores: Sequence[str]) -> list[dict[str, Any]]:
    comparisons = []
    for key, (title, meaning) in COMPARISONS.items():
        if comparison.get(key):
            trained = part(comparison, key)
            sites = part(trained, "sites")
            macro = macro_average([{m: finite(s.get(m)) for m in scores} for s in sites.values()])
            given = {"title": title, "meaning": meaning, "sites": sites, "pooled": part(trained, "pooled")}
            comparisons.append(given | {"macro": part(trained, "macro") or macro})
    return comparisons


def cost(summary: Summary, rounds: pd.DataFrame) -> dict[str, Any] | None:
    """What the section shows; None where the rounds tell nothing of it."""
    costs: list[tuple[str, str]] = []
    seconds, sent = finite(summary.get("seconds")), rounds
    if seconds is not None:
        costs.append(("Training", f"{seconds:,.1f} s"))
    for column, name in (("bytes_down", "To the hospitals"), ("bytes_up", "From the hospitals")):
        sent = pd.to_numeric(rounds[column], errors="coerce").dropna() if column in rounds.columns else pd.Series()
        if len(sent):
            costs.append((name, f"{size(float(sent.sum()))}; {size(float(sent.mean()))} for a hospital and round"))
    simulated = pd.to_numeric(rounds.get("simulated_seconds", pd.Series()), errors="coerce")
    if simulated.notna().any():
        slowest = simulated.groupby(rounds["round"]).max().sum()
        costs.append(("Simulated time", f"{slowest:,.1f} s, each round as long as its slowest hospital"))
    return {"cost": costs} if costs else None


def utility(summary: Summary) -> dict[str, Any] | None:
    """What the section on utility shows; None for a run without an evaluation (an analysis, or one of before there was any)."""
    evaluation = part(summary, "evaluation")
    shown, of_groups = titles(summary), groups_shown(summary)
    names = {"metrics": shown, "of_groups": of_groups, "names": [shown[key] for key in of_groups]}
    names["hospitals"] = dict(list(part(evaluation, "sites").items())[:MOST_ROWS])
    return {"evaluation": evaluation, "groups": evaluation.get("groups"), **names} if evaluation else None
