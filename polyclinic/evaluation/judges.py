"""How good predictions are, by their kind: a judge names its metrics and computes them, of many resamples at once.

Metrics of classes are in ``metrics``; here are those of ordered classes, several labels, numbers, counts and survival. What the
data do not define is NaN of resamples and ``None`` of a hospital's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from polyclinic.evaluation import survival
from polyclinic.evaluation.intervals import ratio
from polyclinic.evaluation.metrics import BINS, METRICS, Metrics, classification_metrics, weighted_metrics
from polyclinic.types import Floats, Labels

if TYPE_CHECKING:
    from polyclinic.objectives.counts import Poisson
    from polyclinic.objectives.numbers import Quantile
    from polyclinic.objectives.objective import Objective
    from polyclinic.objectives.survival import Hazards

_CLASSES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "accuracy": "Accuracy",
    "f1": "F1",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "sensitivity_at_90": "Sensitivity at 90 % specificity",
    "loss": "Loss",
    "brier": "Brier score",
    "calibration_error": "Calibration error",
    "calibration_in_the_large": "Calibration in the large",
    "calibration_slope": "Calibration slope",
}
_RANKS = {"kappa": "Weighted kappa", "rank_error": "Mean error of the rank"}
_NUMBERS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R2",
    "loss": "Loss",
    "calibration_in_the_large": "Calibration in the large",
    "calibration_slope": "Calibration slope",
}
_QUANTILES = {"mae": "MAE", "pinball": "Pinball loss", "coverage": "Coverage", "loss": "Loss"}
_COUNTS = {"mae": "MAE", "deviance": "Deviance", **{name: _NUMBERS[name] for name in list(_NUMBERS)[1:]}}
_SETS = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "loss": "Loss",
    "brier": "Brier score",
    "calibration_in_the_large": "Calibration in the large",
}
_SURVIVAL = {
    "concordance": "Concordance",
    "concordance_uno": "Concordance (Uno)",
    "auroc_over_time": "AUROC over time",
    "brier": "Integrated Brier score",
    "loss": "Loss",
    "calibration_in_the_large": "Calibration in the large",
}
#: The title of every metric that a judge of some kind has.
TITLES = {**_CLASSES, **_RANKS, **_QUANTILES, **_COUNTS, **_SURVIVAL, "brier": "Brier score"}
#: Metrics of which the smallest is the worst; of the others it is the one farthest from 0.
LARGER_IS_BETTER = frozenset({
    "auroc", "auprc", "accuracy", "f1", "sensitivity", "specificity", "sensitivity_at_90", "kappa", "r2", "coverage",
    "calibration_slope", "concordance", "concordance_uno", "auroc_over_time",
})  # fmt: skip
_OF_LABEL = "auroc of "
_IN_UNIT = frozenset({"mae", "rmse", "pinball", "calibration_in_the_large"})


def in_line(title: str) -> str:
    """A metric's title within a line: an abbreviation as it is, a word without its capital."""
    return title if title[1:2].isupper() or title[1:2].isdigit() else title[:1].lower() + title[1:]


Weighted = Callable[[Labels, Floats, Floats], Floats]


@dataclass(frozen=True)
class Judge:
    """What predictions of one kind are judged by.

    Args:
        titles: By metric, in the order of ``with_weights``.
        headline: The two metrics that tables and figures show, the first of which orders hospitals.
        by_round: Those of each round, of which the second is the headline's first.
        of_groups: Those of groups of patients and of each hospital.
        compared: Those by which runs are compared.
        with_weights: Of labels (n, ...), predictions (n, C) and weights (B, n), at least 0, which say how often each row
            counts. Gives (B, M) metrics, NaN where one is undefined.
        exact: Of labels and predictions, a hospital's own metrics of a round.
        calibrated: By metric of calibration its value where predictions are true.
        has_classes: Whether labels are class numbers and predictions their probabilities.
        calibration: Of labels and predictions, what a calibration curve is drawn of; None where there is none.
    """

    titles: Mapping[str, str]
    headline: tuple[str, str]
    by_round: tuple[str, ...]
    of_groups: tuple[str, ...]
    compared: tuple[str, ...]
    with_weights: Weighted
    exact: Callable[[Labels, Floats], Metrics]
    calibrated: Mapping[str, float]
    has_classes: bool = False
    calibration: Callable[[Labels, Floats], tuple[Floats, Floats]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """What a run's summary says of the judge."""
        return {
            "metrics": dict(self.titles), "headline": list(self.headline), "groups": list(self.of_groups),
            "compared": list(self.compared), "calibrated": dict(self.calibrated),
        }  # fmt: skip

    def floor(self, labels: Labels, constant: Floats) -> Metrics:
        """The metrics of a round where ``constant`` (C,) is predicted for every row."""
        metrics = self.exact(labels, np.tile(constant, (len(labels), 1)))
        return {name: metrics[name] for name in self.by_round}


_IN_LARGE = {"calibration_in_the_large": 0.0}
#: The judge of probabilities of classes.
CLASSES = Judge(
    _CLASSES, ("auroc", "accuracy"), ("loss", "auroc", "auprc", "accuracy", "brier"),
    ("auroc", "sensitivity", "specificity", "calibration_in_the_large"), ("auroc", "brier", "calibration_error"),
    weighted_metrics, classification_metrics, _IN_LARGE | {"calibration_slope": 1.0}, True,
)  # fmt: skip


def judge_of(objective: Objective) -> Judge:
    """The judge of an objective's predictions."""
    return _JUDGES[objective.predicts](objective)


def _ranks(objective: Objective) -> Judge:
    def exact(labels: Labels, scores: Floats) -> Metrics:
        metrics = classification_metrics(labels, scores)
        defined = metrics["loss"] is not None
        more = _rank_metrics(labels, scores, np.ones((1, len(labels))))[0] if defined else np.full(2, np.nan)
        return metrics | {name: _finite(value) for name, value in zip(_RANKS, more, strict=True)}

    def with_weights(labels: Labels, scores: Floats, weights: Floats) -> Floats:
        return np.concatenate(
            [weighted_metrics(labels, scores, weights), _rank_metrics(labels, scores, weights)], axis=1
        )

    return Judge(
        _CLASSES | _RANKS, ("kappa", "accuracy"), ("loss", "kappa", "rank_error", *CLASSES.by_round[1:]),
        ("kappa", "rank_error", "auroc", "calibration_in_the_large"), ("kappa", "brier", "calibration_error"), with_weights,
        exact, CLASSES.calibrated, True,
    )  # fmt: skip


def _rank_metrics(labels: Labels, scores: Floats, weights: Floats) -> Floats:
    """(B, 2) quadratic weighted kappa of the likeliest class (Cohen 1968), and the mean distance of its rank from the label's."""
    guessed, classes = scores.argmax(axis=1), scores.shape[1]
    total = weights.sum(axis=1)
    seen, predicted = (weights @ (values[:, None] == np.arange(classes)) for values in (labels, guessed))
    apart = (np.arange(classes)[:, None] - np.arange(classes)) ** 2.0
    by_chance = np.einsum("bi,ij,bj->b", seen, apart, predicted) / total
    kappa = 1 - ratio(weights @ (labels - guessed) ** 2.0, by_chance)
    return np.stack([kappa, weights @ np.abs(labels - guessed) / total], axis=1)


def _numbers(objective: Objective) -> Judge:
    with_weights = partial(_number_metrics, objective)
    shown = ("mae", "rmse", "r2", "calibration_in_the_large")
    return _make_judge(_in_unit(_NUMBERS, objective), ("mae", "r2"), shown, with_weights, CLASSES.calibrated, _curve_of)


def _in_unit(titles: Mapping[str, str], objective: Objective) -> dict[str, str]:
    """The titles, with the label's unit behind those of metrics that are measured in it."""
    return {
        name: f"{title} ({objective.unit})" if objective.unit and name in _IN_UNIT else title
        for name, title in titles.items()
    }


def _quantiles(objective: Objective) -> Judge:
    quantiles = cast("Quantile", objective)
    with_weights, curve = partial(_quantile_metrics, quantiles), partial(_curve, quantiles.middle)
    titles, level = _in_unit(_QUANTILES, objective), quantiles.at
    within = level[-1] - level[0] if len(level) > 1 else level[0]
    shown = ("mae", "pinball", "coverage", "loss")
    return _make_judge(titles, ("mae", "pinball"), shown, with_weights, {"coverage": within}, curve)


def _counts(objective: Objective) -> Judge:
    counts = cast("Poisson", objective)

    def with_weights(labels: Labels, scores: Floats, weights: Floats) -> Floats:
        mae, *rest = _number_metrics(objective, labels, scores, weights).T
        scale = 8 * counts.centre / (1 + counts.extra * counts.centre)
        deviance = scale * rest[list(_NUMBERS).index("loss") - 1]
        return np.stack([mae, deviance, *rest], axis=1)

    shown = ("mae", "deviance", "r2", "calibration_in_the_large")
    return _make_judge(
        _in_unit(_COUNTS, objective), ("mae", "deviance"), shown, with_weights, CLASSES.calibrated, _curve_of
    )


def _number_metrics(objective: Objective, labels: Labels, scores: Floats, weights: Floats) -> Floats:
    """(B, M) of predicted numbers, in the order of ``_NUMBERS``."""
    predicted, total = scores[:, 0], weights.sum(axis=1)
    missed = predicted - labels

    def mean(values: Floats) -> Floats:
        return np.asarray(weights @ values / total)

    squared = mean(missed**2)
    spread, own = mean(labels**2.0) - mean(labels) ** 2, mean(predicted**2) - mean(predicted) ** 2
    together = mean(predicted * labels) - mean(predicted) * mean(labels)
    tiny = 1e-12 * mean(predicted**2)
    metrics = {
        "mae": mean(np.abs(missed)),
        "rmse": np.sqrt(squared),
        "r2": 1 - ratio(squared, np.where(spread > 1e-12 * mean(labels**2.0), spread, 0.0)),
        "loss": mean(objective.losses_of(scores, labels)),
        "calibration_in_the_large": mean(missed),
        "calibration_slope": ratio(together, np.where(own > tiny, own, 0.0)),
    }
    return np.stack([metrics[name] for name in _NUMBERS], axis=1)


def _quantile_metrics(objective: Quantile, labels: Labels, scores: Floats, weights: Floats) -> Floats:
    """(B, M) of predicted quantiles: the error of the one nearest to the median, the mean pinball loss, and the share covered.

    The loss is in the label's unit. The share is that of labels between the lowest and the highest quantile, or up to
    the only one. The last column is the mean loss of the objective.
    """
    total = weights.sum(axis=1)
    missed = labels[:, None] - scores
    level = np.array(objective.at)
    pinball = np.maximum(level * missed, (level - 1) * missed).mean(axis=1)
    inside = labels <= scores[:, -1]
    if len(level) > 1:
        inside &= labels >= scores[:, 0]
    rows = [np.abs(missed[:, objective.middle]), pinball, inside, objective.losses_of(scores, labels)]
    return np.stack([weights @ row / total for row in rows], axis=1)


def _sets(objective: Objective) -> Judge:
    names = {f"{_OF_LABEL}{column}": f"AUROC of {column}" for column in objective.columns}

    def with_weights(labels: Labels, scores: Floats, weights: Floats) -> Floats:
        total, areas, precisions = weights.sum(axis=1), [], []
        for label in range(scores.shape[1]):
            event = labels[:, label] > 0
            both = np.stack([1 - scores[:, label], scores[:, label]], axis=1)
            of_label = weighted_metrics(event.astype(np.int64), both, weights)
            areas.append(of_label[:, METRICS.index("auroc")])
            precisions.append(of_label[:, METRICS.index("auprc")])
        off = (scores - labels).mean(axis=1)
        rows = [objective.losses_of(scores, labels), ((scores - labels) ** 2).mean(axis=1), off]
        means = [_mean_of_defined(np.array(values)) for values in (areas, precisions)]
        return np.stack([*means, *(weights @ row / total for row in rows), *areas], axis=1)

    return _make_judge(
        _SETS | names, ("auroc", "auprc"), ("auroc", "auprc", "brier", "calibration_in_the_large"), with_weights, _IN_LARGE,
        lambda labels, scores: (scores.ravel(), labels.ravel()),
    )  # fmt: skip


def _mean_of_defined(values: Floats) -> Floats:
    """(B,) the mean over the rows of (L, B) that are not NaN; NaN where none is."""
    return ratio(np.nansum(values, axis=0), np.isfinite(values).sum(axis=0))


def _survival(objective: Objective) -> Judge:
    hazards = cast("Hazards", objective)
    first = hazards.labels.index(hazards.time)
    ends = hazards.ends

    def with_weights(labels: Labels, scores: Floats, weights: Floats) -> Floats:
        time, event = labels[:, first], labels[:, 1 - first] > 0
        risk, seen, total = -scores.sum(axis=1), event & (time <= ends[-1]), weights.sum(axis=1)
        brier = survival.over_time(survival.brier_scores(time, event, scores, ends), ends)
        rows = [brier, hazards.losses_of(scores, labels), last_survival(labels) - scores[:, -1]]
        ranked = [
            survival.concordance(time, seen, risk, weights),
            survival.concordance(time, seen, risk, weights, survival.inverse_chances(time, event) ** 2),
            survival.mean_auroc(time, event, 1 - scores, ends, weights),
        ]
        return np.stack([*ranked, *(weights @ row / total for row in rows)], axis=1)

    def last_survival(labels: Labels) -> Floats:
        alive, weight = survival.status_at(labels[:, first], labels[:, 1 - first] > 0, ends[-1:])
        return np.asarray((weight * alive)[:, 0])

    shown = ("concordance", "auroc_over_time", "brier", "calibration_in_the_large")
    return _make_judge(
        _SURVIVAL, ("concordance", "brier"), shown, with_weights, _IN_LARGE,
        lambda labels, scores: (scores[:, -1], last_survival(labels)),
    )  # fmt: skip


def _make_judge(
    titles: Mapping[str, str], headline: tuple[str, str], of_groups: tuple[str, ...], with_weights: Weighted,
    calibrated: Mapping[str, float],
    calibration: Callable[[Labels, Floats], tuple[Floats, Floats]] | None,
) -> Judge:  # fmt: skip
    """A judge whose exact metrics are those of rows that count once each."""
    by_round = ("loss", *headline, *(name for name in of_groups if name not in (*headline, "loss")))

    def exact(labels: Labels, scores: Floats) -> Metrics:
        if scores.shape[0] != labels.shape[0]:
            raise ValueError(f"predictions of {len(scores)} rows do not match {len(labels)} labels")
        if not len(labels) or not np.isfinite(scores).all():
            return dict.fromkeys(by_round) | {"n": len(labels)}
        values = dict(zip(titles, with_weights(labels, scores, np.ones((1, len(labels))))[0], strict=True))
        return {name: _finite(values[name]) for name in by_round} | {"n": len(labels)}

    compared = (*headline, next(iter(calibrated)))
    return Judge(titles, headline, by_round, of_groups, compared, with_weights, exact, calibrated, False, calibration)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _curve(column: int, labels: Labels, scores: Floats) -> tuple[Floats, Floats]:
    return scores[:, column], labels


_curve_of = partial(_curve, 0)

_JUDGES: Mapping[str, Callable[[Objective], Judge]] = {
    "classes": lambda objective: CLASSES, "ranks": _ranks, "sets": _sets, "numbers": _numbers, "quantiles": _quantiles,
    "counts": _counts, "survival": _survival,
}  # fmt: skip


def tenths(predicted: Floats, observed: Floats) -> list[dict[str, float | None]]:
    """For tenths of the rows by their prediction: mean prediction and mean observation, with its 95 % interval, as
    ``calibration_curve`` has them of probabilities; takes rows for independent."""
    order = np.argsort(predicted, kind="stable")
    bins: list[dict[str, float | None]] = []
    for rows in np.array_split(order, BINS):
        if len(rows) < 2:
            continue
        mean, half = float(observed[rows].mean()), 1.959964 * float(observed[rows].std(ddof=1)) / len(rows) ** 0.5
        bins.append({
            "share": len(rows) / len(order), "predicted": float(predicted[rows].mean()), "observed": mean,
            "low": mean - half, "high": mean + half,
        })  # fmt: skip
    return bins


def _of_judge(summary: Mapping[str, Any], key: str) -> Any:
    """What a run's summary says of its judge; of a run of before there were objectives, what is true of classes."""
    return (CLASSES.as_dict() | (summary.get("objective") or {}))[key]


def titles(summary: Mapping[str, Any]) -> dict[str, str]:
    """The titles of a run's metrics by name."""
    return dict(_of_judge(summary, "metrics"))


def headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """The two metrics that tables of a run show."""
    first, second = _of_judge(summary, "headline")
    return str(first), str(second)


def groups_shown(summary: Mapping[str, Any]) -> list[str]:
    """The metrics that tables of groups and of hospitals show."""
    return list(_of_judge(summary, "groups"))


def compared_metrics(summary: Mapping[str, Any]) -> list[str]:
    """The metrics by which the run is compared with others."""
    return [name for name in _of_judge(summary, "compared") if name in _of_judge(summary, "metrics")]


def calibration_targets(summary: Mapping[str, Any]) -> dict[str, float]:
    """By metric of calibration its value where predictions are true."""
    return dict(_of_judge(summary, "calibrated"))


def predicts_numbers(summary: Mapping[str, Any]) -> bool:
    """Whether a run predicts numbers in the label's unit, and no probabilities."""
    return (summary.get("objective") or {}).get("predicts") in ("numbers", "quantiles", "counts")
