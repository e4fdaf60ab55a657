"""The figures of a run's report, and how they stand on a page that loads nothing."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pandas as pd

from polyclinic.evaluation.plots import plot_auroc, plot_epsilon, plot_loss
from polyclinic.evaluation.posterior_plot import plot_posterior
from polyclinic.evaluation.report.formats import Summary, finite, part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_ROUND = "by round at the hospitals; the numbers are in rounds.csv."
ALT = {
    "auroc": f"AUROC on held-out patients {_BY_ROUND}",
    "posterior": "Each parameter's mean and 95 % interval; the numbers are in posterior.json.",
    "loss": f"Loss on held-out patients {_BY_ROUND}",
    "epsilon": f"Epsilon spent {_BY_ROUND}",
    "hospitals": "AUROC at each hospital with 95 % intervals; the numbers are in summary.json.",
    "calibration": "Calibration curve: share that came about by predicted probability; the numbers are in summary.json.",
    "decision": "Decision curve: net benefit by threshold; the numbers are in summary.json.",
    "columns": "Shares by value of the columns that are least alike; the numbers are in quality.json.",
    "correlations": "Correlations of held-out and of synthetic patients, and their difference; the numbers are in quality.json.",
    "trajectory": "Median and middle half over visits by arm, held-out and synthetic patients; the numbers are in quality.json.",
    "codes": "Share of patients with each code, synthetic against held-out; the numbers are in quality.json.",
    "transfer": "AUROC of classifiers by what trained them; the numbers are in quality.json.",
    "flow": "Rows and patients left after each step; the numbers are in summary.json.",
}


def run_figures(summary: Summary, rounds: pd.DataFrame) -> dict[str, Figure]:
    """The figures of a run by name: auroc and loss where any left, or the posterior; epsilon where some site spent any."""
    sites = part(part(summary, "metrics"), "sites")
    floor = part(summary, "floor").get("auroc", 0.5 if summary.get("floor") else None)
    if posterior := part(summary, "posterior"):
        figures = {"posterior": plot_posterior(posterior["parameters"])} if posterior["finished"] else {}
    else:
        drawn = [
            name
            for name in ("auroc", "loss")
            if pd.to_numeric(rounds.get(name, pd.Series()), errors="coerce").notna().any()
        ]
        figures = {name: plot_auroc(rounds, finite(floor)) if name == "auroc" else plot_loss(rounds) for name in drawn}
    if "epsilon" in rounds.columns and bool(pd.to_numeric(rounds["epsilon"], errors="coerce").gt(0).any()):
        budgets = {name: finite(site.get("budget")) for name, site in sites.items()}
        figures["epsilon"] = plot_epsilon(rounds, budgets)
    return figures


def alt(name: str) -> str:
    """The text of a figure by its name, which may end in a number: ``codes-1``."""
    return ALT[name.split("-")[0]]


def embedded(svg: str, alt: str) -> dict[str, str]:
    """``source`` and ``alt`` of an image that holds the figure itself."""
    return {"source": f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", "alt": alt}
