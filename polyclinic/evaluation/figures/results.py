"""The figures of a run's result by name: those of its report, and those that ``RunResult.plot`` draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from polyclinic.errors import ConfigError, nearest
from polyclinic.evaluation.figures.analyses import ANALYSES
from polyclinic.evaluation.figures.rounds import plot_epsilon, plot_loss, plot_metric
from polyclinic.evaluation.figures.utility import (
    plot_calibration,
    plot_decision,
    plot_hospitals,
    plot_pr,
    plot_roc,
)
from polyclinic.evaluation.formats import Summary, finite, part
from polyclinic.evaluation.judges import LARGER_IS_BETTER, headline, predicts_numbers, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A function of a summary, its rounds and perhaps axes to draw on; None where the run recorded nothing of the kind.
Draw = Callable[[Summary, pd.DataFrame, "Axes | None"], "Figure | None"]


def _rounds(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    first = headline(summary)[0]
    if not _is_recorded(summary, rounds, first):
        return None
    floor = finite(part(summary, "floor").get(first))
    words = "Higher is better." if first in LARGER_IS_BETTER else "Lower is better."
    floors = {} if floor is None else {"constant prediction": floor}
    return plot_metric(rounds, first, titles(summary)[first], words, floors, ax)


def _loss(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    return plot_loss(rounds, ax) if _is_recorded(summary, rounds, "loss") else None


def _epsilon(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    sites = part(part(summary, "metrics"), "sites")
    budgets = {name: finite(site.get("budget")) for name, site in sites.items()}
    return plot_epsilon(rounds, budgets, ax) if _numbers(rounds, "epsilon").gt(0).any() else None


def _analysis(name: str, summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    numbers = part(part(summary, "analysis"), "numbers").get(name)
    return ANALYSES[name](numbers, ax) if numbers else None


def _sites(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    evaluation, first = _evaluation(summary), headline(summary)[0]
    sites = {name: row[first] for name, row in evaluation.get("sites", {}).items()}
    return plot_hospitals(sites, evaluation["pooled"][first]["value"], titles(summary)[first], ax) if sites else None


def _roc(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    judged = _evaluation(summary)
    return plot_roc(judged["curves"], judged["pooled"]["auroc"], ax) if judged.get("curves") else None


def _pr(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    judged = _evaluation(summary)
    return plot_pr(judged["curves"], judged["pooled"]["auprc"], ax) if judged.get("curves") else None


def _calibration(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    evaluation, objective, label = _evaluation(summary), part(summary, "objective"), None
    if predicts_numbers(summary):
        label = ", ".join(filter(None, (objective["label"], objective["unit"])))
    return plot_calibration(evaluation["calibration"], label, ax) if evaluation.get("calibration") else None


def _decision(summary: Summary, rounds: pd.DataFrame, ax: Axes | None) -> Figure | None:
    judged = _evaluation(summary)
    return plot_decision(judged["decision"], ax) if judged.get("decision") else None


#: The figures by section of the report and name.
SECTIONS: Mapping[str, Mapping[str, Draw]] = {
    "analysis": {name: partial(_analysis, name) for name in ANALYSES},
    "training": {"rounds": _rounds, "loss": _loss, "epsilon": _epsilon},
    "utility": {"sites": _sites, "roc": _roc, "pr": _pr, "calibration": _calibration, "decision": _decision},
}
FIGURES: Mapping[str, Draw] = {name: draw for section in SECTIONS.values() for name, draw in section.items()}


def result_figures(summary: Summary, rounds: pd.DataFrame, section: str) -> dict[str, Figure]:
    """Return the figures of a section by name, of which the run recorded something.

    Args:
        summary: The run's summary.
        rounds: The run's table of rounds.
        section: A key of ``SECTIONS``.
    """
    drawn = {name: draw(summary, rounds, None) for name, draw in SECTIONS[section].items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_figure(summary: Summary, rounds: pd.DataFrame, name: str, ax: Axes | None = None) -> Axes:
    """Draw the figure ``name`` on ``ax``, or on a new figure of pyplot, and return the axes.

    Args:
        summary: The run's summary.
        rounds: The run's table of rounds.
        name: A key of ``FIGURES``.
        ax: Axes to draw on; None makes a new figure.

    Raises:
        ConfigError: For a name that is not in ``FIGURES``, or of which the run recorded nothing.
    """
    if name not in FIGURES:
        raise ConfigError(f"There is no figure {name!r}; the figures are {', '.join(FIGURES)}.{nearest(name, FIGURES)}")
    if ax is None:
        from matplotlib import pyplot  # a notebook shows its figures

        figure, axes = pyplot.subplots(layout="compressed", figsize=(7.6, 4.2))
        try:
            return draw_figure(summary, rounds, name, axes)
        except ConfigError:
            pyplot.close(figure)
            raise
    if FIGURES[name](summary, rounds, ax) is None:
        why = part(summary, "evaluation").get("undefined") if name in SECTIONS["utility"] else None
        raise ConfigError(f"The run has no figure {name!r}: {why or 'it recorded nothing of the kind'}.")
    return ax


def _evaluation(summary: Summary) -> Summary:
    """The run's evaluation; empty where there is none, or where it is undefined."""
    evaluation = part(summary, "evaluation")
    return {} if evaluation.get("undefined") else evaluation


def _is_recorded(summary: Summary, rounds: pd.DataFrame, metric: str) -> bool:
    return not part(summary, "analysis") and bool(_numbers(rounds, metric).notna().any())


def _numbers(rounds: pd.DataFrame, metric: str) -> pd.Series:
    return pd.to_numeric(rounds.get(metric, pd.Series()), errors="coerce")
