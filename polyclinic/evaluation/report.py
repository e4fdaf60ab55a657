"""The report of a run: one page that opens without a network, written from the files of its run folder.

It only reads what the run left (summary.json, rounds.parquet, config.toml, versions.json); it measures nothing and
touches no record. What the privacy statement does not cover is said on the page, next to what it does.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.errors import DataError
from polyclinic.evaluation.attacks.section import attack_section
from polyclinic.evaluation.flow_diagram import plot_flow
from polyclinic.evaluation.metrics import macro_average
from polyclinic.evaluation.plots import plot_auroc, plot_epsilon, plot_loss, to_png, to_svg
from polyclinic.evaluation.posterior_plot import plot_posterior
from polyclinic.evaluation.privacy_text import (
    central_sentence,
    composition,
    covered,
    not_covered,
    relation_meaning,
    risk_sentence,
    share,
    warnings,
)
from polyclinic.evaluation.report_template import STYLE, TEMPLATE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary = Mapping[str, Any]
MOST_ROWS = 60
FEW_ROWS = 10
COMPARISONS = {
    "without_dp": ("Without privacy", "the same federated training without noise."),
    "alone": ("Trained alone", "each hospital's own model, trained on its own patients only."),
}


def render_report(run_dir: Path) -> Path:
    """Writes ``report.html`` into a run folder and returns its path.

    Raises DataError if summary.json or rounds.parquet is missing or cannot be read; the other files are optional.
    """
    from jinja2 import Environment  # with the plots' matplotlib, only at the end of a run
    from markupsafe import Markup

    run_dir = Path(run_dir)
    summary, rounds = read_run(run_dir)
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        metric=_metric, epsilon=_epsilon, budget=_budget, delta=_delta, count=_count, share=_share
    )
    context = report_context(summary, rounds) | {
        "config": _text(run_dir / "config.toml"),
        "versions": _text(run_dir / "versions.json"),
        "attacks": attack_section(run_dir),
        "style": Markup(STYLE),  # ours alone: no run's text in it
    }
    page = run_dir / "report.html"
    partial = page.with_suffix(".partial")
    partial.write_text(environment.from_string(TEMPLATE).render(context), encoding="utf-8")
    partial.replace(page)
    return page


def write_plots(run_dir: Path) -> list[Path]:
    """Writes ``plots/{auroc,loss,epsilon}.svg`` and ``.png`` into a run folder and returns their paths.

    Epsilon is left out when no site spent any; ``posterior`` stands for the first two where the run found one. Raises DataError
    as ``render_report`` does.
    """
    folder = Path(run_dir) / "plots"
    figures = run_figures(*read_run(Path(run_dir)))
    folder.mkdir(exist_ok=True)
    written = []
    for name, figure in figures.items():
        written += [folder / f"{name}.svg", folder / f"{name}.png"]
        written[-2].write_text(to_svg(figure), encoding="utf-8")
        written[-1].write_bytes(to_png(figure))
    return written


def read_run(run_dir: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """The summary and the rounds table of a run folder; DataError if either is missing or cannot be read."""
    for name in ("summary.json", "rounds.parquet"):
        if not (run_dir / name).is_file():
            raise DataError(f"{run_dir} is not a finished run: it has no {name}.")
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        rounds = pd.read_parquet(run_dir / "rounds.parquet")
    except (ValueError, OSError) as error:  # pyarrow's errors are both
        raise DataError(f"{run_dir} holds a summary.json or rounds.parquet that cannot be read.") from error
    if not isinstance(summary, dict):
        raise DataError(f"{run_dir / 'summary.json'} must hold one JSON object.")
    return summary, rounds


def run_figures(summary: Summary, rounds: pd.DataFrame) -> dict[str, Figure]:
    """The figures of a run by name: auroc and loss, or the posterior; epsilon where some site spent any."""
    sites = _part(_part(summary, "metrics"), "sites")
    floor = _part(summary, "floor").get("auroc", 0.5 if summary.get("floor") else None)
    if posterior := _part(summary, "posterior"):
        figures = {"posterior": plot_posterior(posterior["parameters"])} if posterior["finished"] else {}
    else:
        figures = {"auroc": plot_auroc(rounds, _finite(floor)), "loss": plot_loss(rounds)}
    if "epsilon" in rounds.columns and bool(pd.to_numeric(rounds["epsilon"], errors="coerce").gt(0).any()):
        budgets = {name: _finite(site.get("budget")) for name, site in sites.items()}
        figures["epsilon"] = plot_epsilon(rounds, budgets)
    return figures


def report_context(summary: Summary, rounds: pd.DataFrame) -> dict[str, Any]:
    """What the template shows of a summary and its rounds table, as plain values. A missing key reads as not known."""
    metrics, statement = _part(summary, "metrics"), _part(summary, "statement")
    known = {key: value for key, value in _part(summary, "privacy").items() if value is not None}
    privacy = {"epsilon": None, "delta": None, "relation": "", "accountant": "", "overlap": 1, **statement, **known}
    private = _finite(privacy["epsilon"]) is not None
    unit = str(privacy.get("unit") or "patient")
    central = _part(_part(summary, "privacy"), "central")
    simulation = summary.get("simulation", True) is not False
    sites, pooled, macro = (_part(metrics, key) for key in ("sites", "pooled", "macro"))
    comparisons = _comparisons(_part(summary, "comparison"))
    ledgers = _ledgers(_part(statement, "sites"))
    server = _ledgers({"federation": statement["central"]} if statement.get("central") else {})
    shown = [pooled, macro, *_shown(sites).values()]
    for comparison in comparisons:
        shown += [
            comparison["pooled"],
            comparison["macro"],
            *(comparison["sites"].get(name, {}) for name in _shown(sites)),
        ]
    cells = [_metric(row.get(key, "")) for row in shown for key in ("auroc", "accuracy")]
    dropouts = _dropouts(summary.get("dropouts") or [])
    strategy, dataset = str(summary.get("strategy", "a strategy")), str(summary.get("dataset", "records"))
    return {
        "title": _title(summary, dataset, strategy, len(sites)),
        "subtitle": _subtitle(summary, simulation),
        "sentence": _sentence(summary, len(sites), simulation),
        "private": private,
        "privacy": privacy,
        "unit": unit,
        "composition": composition(int(privacy["overlap"]), unit),
        "central": central_sentence(central) if central else "",
        "relation_meaning": relation_meaning(str(privacy["relation"]), unit),
        "risk": risk_sentence(privacy["risk"], unit, str(privacy["relation"])) if privacy.get("risk") else "",
        "simulation": simulation,
        "warnings": warnings(
            sites if private else {}, [*ledgers, *server] if private else server, _finite(privacy["delta"])
        ),
        "rounds": summary.get("rounds"),
        "patients": sum(int(site.get("patients") or 0) for site in sites.values()),
        "pooled": pooled,
        "macro": macro,
        "floor_accuracy": _finite(_part(summary, "floor").get("accuracy")),
        "sites": len(sites),
        "hospitals": [
            {"name": name, "spent": _spent(site), **site, "risk": _part(site, "risk")}
            for name, site in _shown(sites).items()
        ],
        "spread": _spread(sites),
        "few": FEW_ROWS,
        "comparisons": comparisons,
        "synthesis": _synthesis(_part(summary, "synthesis"), pooled),
        "posterior": _part(summary, "posterior"),
        "has_undefined": "undefined" in cells,
        "has_missing": "–" in cells,
        "plots": [_embedded(name, figure) for name, figure in run_figures(summary, rounds).items()],
        "flow": _embedded("flow", plot_flow(Flow.from_list(summary["flow"]))) if summary.get("flow") else None,
        "dropouts": dropouts[:MOST_ROWS],
        "more_dropouts": len(dropouts[MOST_ROWS:]),
        "ledgers": _telling(ledgers),
        "more_ledgers": len(ledgers) - len(_telling(ledgers)),
        "covers": covered(unit),
        "does_not_cover": not_covered(
            unit,
            private,
            simulation,
            bool(comparisons),
            _has_train_loss(rounds),
            int(privacy["overlap"]),
            judged=not _part(summary, "posterior"),
        ),
        "notes": list(summary.get("notes") or []),
        "facts": [
            (label, summary[key])
            for label, key in (
                ("Run folder", "run"),
                ("Seed", "seed"),
                ("Engine", "engine"),
                ("Model, SHA-256", "model_sha256"),
            )
            if summary.get(key) is not None
        ],
    }


def _synthesis(told: Summary, pooled: Summary) -> dict[str, Any] | None:
    """What the page says of a run that draws synthetic patients."""
    if not told:
        return None
    rows = [{"name": str(told.get("method")), **pooled}]
    for name, row in _part(told, "baselines").items():
        rows.append({"name": name, **row})
    return {**told, "rows": rows}


def _title(summary: Summary, dataset: str, strategy: str, sites: int) -> str:
    done = "synthesised" if _part(summary, "synthesis") else "trained"
    return f"{dataset}, {done} by {strategy} over {sites} {'hospital' if sites == 1 else 'hospitals'}"


def _subtitle(summary: Summary, simulation: bool) -> str:
    parts = [Path(str(summary["run"])).name] if summary.get("run") else []
    parts += ["simulation on one machine" if simulation else "federated run", f"seed {summary.get('seed', 'not set')}"]
    seconds, pace = _finite(summary.get("seconds")), _finite(summary.get("rounds_per_second"))
    if seconds is not None:
        parts.append(f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
    if pace is not None:
        parts.append(f"{pace:.3g} rounds per second")
    return " · ".join(parts)


def _sentence(summary: Summary, sites: int, simulation: bool) -> str:
    rounds = _count(summary.get("rounds"))
    where = (
        "The hospitals were simulated on one machine, each with its own share of the records."
        if simulation
        else "Records stayed at their hospital; updates of the model are what travelled."
    )
    what = "generator of synthetic patients" if _part(summary, "synthesis") else "shared model"
    what = "posterior" if _part(summary, "posterior") else what
    return (
        f"One {what} for {summary.get('dataset', 'the records')} was trained by {sites} "
        f"{'hospital' if sites == 1 else 'hospitals'} in {rounds} {'round' if rounds == '1' else 'rounds'} "
        f"with the strategy {summary.get('strategy', 'not recorded')}. {where}"
    )


def _shown(sites: Summary) -> Summary:
    """All sites; of very many those with the lowest and the highest AUROC, or the first where none has any."""
    if len(sites) <= MOST_ROWS:
        return sites
    ranked = _by_auroc(sites)
    chosen = {*ranked[:FEW_ROWS], *ranked[-FEW_ROWS:]} or {*list(sites)[: 2 * FEW_ROWS]}
    return {name: sites[name] for name in (*ranked, *sites) if name in chosen}


def _by_auroc(sites: Summary) -> list[str]:
    known = {name: auroc for name, site in sites.items() if (auroc := _finite(site.get("auroc"))) is not None}
    return sorted(known, key=known.__getitem__)


def _spread(sites: Summary) -> list[float]:
    """AUROC of the site at each tenth, quarter, half, three quarters and nine tenths of very many."""
    ranked = _by_auroc(sites)
    if len(sites) <= MOST_ROWS or not ranked:
        return []
    return [float(sites[ranked[round(share * (len(ranked) - 1))]]["auroc"]) for share in (0.1, 0.25, 0.5, 0.75, 0.9)]


def _telling(ledgers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All ledgers; of very many those that are not intact first, and then those that spent most."""
    if len(ledgers) <= MOST_ROWS:
        return ledgers
    ranked = sorted(ledgers, key=lambda one: (one["intact"] == "intact", -(_finite(one["epsilon"]) or math.inf)))
    return ranked[: 2 * FEW_ROWS]


def _has_train_loss(rounds: pd.DataFrame) -> bool:
    return "train_loss" in rounds.columns and bool(rounds["train_loss"].notna().any())


def _dropouts(dropouts: Sequence[Summary]) -> list[dict[str, str]]:
    """One row for each site and reason, its rounds written as ranges: a refused budget repeats to the last round."""
    missed: dict[tuple[str, str], list[int]] = {}
    for dropout in dropouts:
        missed.setdefault((str(dropout["site"]), str(dropout["reason"])), []).append(int(dropout["round"]))
    return [{"site": site, "reason": reason, "rounds": _ranges(found)} for (site, reason), found in missed.items()]


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)


def _ledgers(sites: Mapping[str, Any]) -> list[dict[str, Any]]:
    words = {True: "intact", False: "broken", None: "not checked"}
    return [
        {
            "name": name,
            "epsilon": site.get("epsilon"),
            "budget": site.get("budget"),
            "delta": site.get("delta"),
            "risk": _part(site, "risk"),
            "charges": len(site["events"]) if isinstance(site.get("events"), list) else site.get("events"),
            "intact": words.get(site.get("intact"), "not checked"),
        }
        for name, site in sites.items()
    ]


def _comparisons(comparison: Summary) -> list[dict[str, Any]]:
    found = []
    for key, (title, meaning) in COMPARISONS.items():
        if comparison.get(key):
            part = _part(comparison, key)
            sites = _part(part, "sites")
            macro = macro_average([{m: _finite(s.get(m)) for m in ("auroc", "accuracy")} for s in sites.values()])
            given = {"title": title, "meaning": meaning, "sites": sites, "pooled": _part(part, "pooled")}
            found.append(given | {"macro": _part(part, "macro") or macro})
    return found


def _embedded(name: str, figure: Figure) -> dict[str, str]:
    encoded = base64.b64encode(to_svg(figure).encode()).decode()
    by_round = "by round at the hospitals; the numbers are in rounds.csv."
    alt = {
        "auroc": f"AUROC on held-out patients {by_round}",
        "posterior": "Each parameter's mean and 95 % interval; the numbers are in posterior.json.",
        "loss": f"Loss on held-out patients {by_round}",
        "epsilon": f"Epsilon spent {by_round}",
        "flow": "Rows and patients left after each step; the numbers are in summary.json.",
    }[name]
    return {"source": f"data:image/svg+xml;base64,{encoded}", "alt": alt}


def _part(mapping: Summary, key: str) -> dict[str, Any]:
    value = mapping.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else "not recorded"


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _metric(value: object) -> str:
    number = _finite(value)
    # jinja2 passes its Undefined for a key that is absent, which is neither None nor a number
    return f"{number:.3f}" if number is not None else "undefined" if value is None or isinstance(value, float) else "–"


def _epsilon(value: object) -> str:
    number = _finite(value)
    return "no guarantee" if number is None else f"{number:.2f}" if number >= 0.01 or number == 0 else f"{number:.1e}"


def _budget(value: object) -> str:
    number = _finite(value)
    return "no limit" if number is None else f"{number:g}"


def _spent(site: Summary) -> str:
    if _finite(site.get("epsilon")) is None:
        return "no guarantee"
    budget = _finite(site.get("budget"))
    return _epsilon(site["epsilon"]) + (f" of {budget:g}" if budget is not None else " (no limit)")


def _delta(value: object) -> str:
    number = _finite(value)
    return "–" if number is None else f"{number:.1e}".replace("e-0", "e-")


def _share(value: object) -> str:
    number = _finite(value)
    return "–" if number is None else share(number)


def _count(value: object) -> str:
    number = _finite(value)
    return "–" if number is None else f"{number:,.0f}"
