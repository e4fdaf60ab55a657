"""How good a run's model is, with intervals: pooled, at each hospital, between hospitals and between groups of patients.

It is computed in one place from held-out predictions that hospitals let leave; of a hospital that does not, nothing here
is told. Calibration and decision curves say whether a probability means what it says, and what acting on it is worth.
What the data do not define is ``None``, with the reason where there is one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyclinic.evaluation.intervals import Interval, bootstrap, percentiles, wilson
from polyclinic.evaluation.judges import CLASSES, LARGER_IS_BETTER, Judge, tenths
from polyclinic.evaluation.metrics import bin_chances, calibration_events
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints, Labels

MOST, FEWEST = 1000, 200
CELLS = 8_000_000  # resamples times rows of a run: a second or two
MOST_SITES = 300  # with intervals of their own
OF_CLASSES = ("auroc", "auprc", "f1", "sensitivity", "specificity", "sensitivity_at_90")
FEWEST_OF_CLASS = 5  # patients of each class, for an interval of a metric that is of classes
MOST_POINTS = 200  # of an ROC curve
SMALLEST_GROUP = 10  # patients; counts of groups are told to the nearest ten
NO_PREDICTIONS = "no hospital's policy lets predictions of held-out patients leave"
DIVERGED = "the model gave no usable probabilities"
THRESHOLDS = np.arange(1, 100) / 100

Draws = dict[str, Floats]
Estimates = dict[str, dict[str, float | None]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of one hospital's held-out rows: labels (n, ...) as in a shard, the objective's predictions ``scores`` (n, C), patient (n,)
    and group (n,), None if not told.
    """

    labels: Labels
    scores: Floats
    patient: Ints
    group: Ints | None = None

    @property
    def usable(self) -> bool:
        return len(self.labels) > 0 and bool(np.isfinite(self.scores).all())

    def where(self, rows: Bools) -> Predictions:
        group = None if self.group is None else self.group[rows]
        return Predictions(self.labels[rows], self.scores[rows], self.patient[rows], group)


@dataclass(frozen=True, eq=False)
class Judged:
    """Metrics of some rows with intervals, and resamples of those that have one: ``draws[metric]`` is (count,)."""

    metrics: Estimates
    draws: Draws


def assess(
    sites: Mapping[str, Predictions], seed: int, column: str = "", groups: Sequence[str] = (), by: Judge = CLASSES
) -> dict[str, Any]:
    """Return the key ``evaluation`` of a run's summary (docs/reference/json.md), from the predictions of each hospital.

    Args:
        sites: The held-out rows' predictions, by hospital.
        seed: Of the resamples.
        column: The column that ``groups`` are by; empty leaves groups out.
        groups: The names of the numbers in ``Predictions.group``.
        by: The judge whose metrics are computed.
    """
    usable = {name: rows for name, rows in sites.items() if len(rows.labels)}
    if not usable or not all(rows.usable for rows in usable.values()):
        return {"undefined": DIVERGED if usable else NO_PREDICTIONS}
    together = pool(usable)
    count = _count(together)
    pooled, drawn_curves = _pooled_estimates(together, count, seed, by)
    drawn = count if len(usable) <= MOST_SITES else 0
    each = {name: judge(rows, drawn, generator(seed, "bootstrap", "site", name), by) for name, rows in usable.items()}
    return {
        "undefined": None,
        "confidence": 0.95,
        "resamples": count,
        "pooled": pooled,
        "macro": _macro(each, by),
        "sites": {name: judged.metrics for name, judged in each.items()},
        "worst": {metric: _worst(each, metric) for metric in by.titles},
        "gap": {metric: _gap(each, metric) for metric in by.titles},
        "groups": _groups(usable, column, groups, count, seed, by) if column else None,
        **drawn_curves,
    }


def pool(sites: Mapping[str, Predictions]) -> Predictions:
    """All rows together; patients of different hospitals are different patients. Groups only if every hospital told them."""
    parts, offset, patient = list(sites.values()), 0, []
    for part in parts:
        patient.append(part.patient + offset)
        offset += int(part.patient.max(initial=-1)) + 1
    groups = [part.group for part in parts if part.group is not None]
    return Predictions(
        np.concatenate([part.labels for part in parts]), np.concatenate([part.scores for part in parts]),
        np.concatenate(patient), np.concatenate(groups) if len(groups) == len(parts) else None,
    )  # fmt: skip


def _count(rows: Predictions) -> int:
    ranked = 1 if rows.scores.shape[1] == 2 else rows.scores.shape[1]
    return int(np.clip(CELLS // (len(rows.labels) * ranked), FEWEST, MOST))


def _pooled_estimates(rows: Predictions, count: int, seed: int, by: Judge) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = generator(seed, "bootstrap", "pooled")
    if not by.has_classes:
        estimates = judge(rows, count, rng, by).metrics
        curve = None if by.calibration is None else tenths(*by.calibration(rows.labels, rows.scores))
        return estimates, {"curves": [], "calibration": curve, "decision": None}
    chance, event = calibration_events(rows.labels, rows.scores)
    binary = rows.scores.shape[1] == 2
    worth = net_benefit(chance, event)

    def statistic(weights: Floats) -> Floats:
        metrics = by.with_weights(rows.labels, rows.scores, weights)
        return np.concatenate([metrics, worth(weights)], axis=1) if binary else metrics

    values, draws = bootstrap(statistic, len(rows.labels), rng, count, rows.patient, rows.labels)
    estimates = _estimates(rows, values, draws, rng, by)
    band = np.quantile(draws[:, len(by.titles) :], (0.025, 0.975), axis=0) if binary else None
    return estimates, {
        "curves": curves(rows),
        "calibration": calibration_curve(chance, event),
        "decision": None if band is None else decision_curve(chance, event, (band[0], band[1])),
    }


def curves(rows: Predictions) -> list[dict[str, Any]]:
    """``operating_points`` of class 1 of two classes, else of each class of ``rows`` against the rest, with its ``class``."""
    present = np.unique(rows.labels)
    classes = (present[present == 1] if rows.scores.shape[1] == 2 else present) if len(present) > 1 else ()
    return [{"class": int(k), **operating_points(rows.labels == k, rows.scores[:, k])} for k in classes]


def operating_points(positive: Bools, score: Floats) -> dict[str, list[float]]:
    """``false_positives`` (1 - specificity), ``sensitivity`` and ``precision`` from the highest threshold down.

    positive, score: (n,), of both classes. At most 200 thresholds, evenly spaced by rank; the first list begins at 0.

    Examples:
        >>> operating_points(np.array([True, False, True]), np.array([0.9, 0.4, 0.2]))["sensitivity"]
        [0.0, 0.5, 0.5, 1.0]
    """
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    shown = np.unique(np.linspace(0, len(last_of_tie) - 1, MOST_POINTS).round().astype(np.int64))
    chosen = last_of_tie[shown]
    hits = np.cumsum(positive[order])[chosen]
    false = chosen + 1 - hits
    lines = {
        "false_positives": np.append(0.0, false / (~positive).sum()),
        "sensitivity": np.append(0.0, hits / positive.sum()),
        "precision": np.append(hits[0] / (chosen[0] + 1), hits / (chosen + 1)),
    }
    return {name: [round(float(value), 6) for value in line] for name, line in lines.items()}


def judge(rows: Predictions, count: int, rng: np.random.Generator, by: Judge = CLASSES) -> Judged:
    """Return the metrics of some rows with 95 % intervals.

    Args:
        rows: The predictions of n > 0 rows.
        count: The number of resamples of the rows' patients; 0 gives no intervals.
        rng: Draws the resamples.
        by: The judge whose metrics are computed.
    """

    def statistic(weights: Floats) -> Floats:
        return by.with_weights(rows.labels, rows.scores, weights)

    if count:
        classes = rows.labels if by.has_classes else None
        values, draws = bootstrap(statistic, len(rows.labels), rng, count, rows.patient, classes)
    else:
        values, draws = statistic(np.ones((1, len(rows.labels))))[0], np.empty((0, len(by.titles)))
    metrics = _estimates(rows, values, draws, rng, by)
    return Judged(metrics, {name: draws[:, i] for i, name in enumerate(by.titles) if metrics[name]["low"] is not None})


def _estimates(rows: Predictions, values: Floats, draws: Floats, rng: np.random.Generator, by: Judge) -> Estimates:
    estimates = {name: estimate(float(values[i]), draws[:, i]) for i, name in enumerate(by.titles)}
    if not by.has_classes:
        return estimates
    # Resampling adds to this error what it is there to measure, so that its interval would miss the truth.
    unsure = ["calibration_error", *(OF_CLASSES if _few_of_a_class(rows) else ())]
    for name in unsure:
        estimates[name] |= {"low": None, "high": None}
    chance = calibration_events(rows.labels, rows.scores)[0]
    estimates["calibration_error"]["by_chance"] = error_by_chance(chance, len(draws), rng) if len(draws) else None
    return estimates


def _few_of_a_class(rows: Predictions) -> bool:
    """Whether so few patients have a class that drawing them again says nothing of others like them."""
    pairs = np.unique(np.stack([rows.labels, rows.patient]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].min()) < FEWEST_OF_CLASS


def estimate(value: float, draws: Floats) -> dict[str, float | None]:
    """``{"value", "low", "high"}``: a 95 % percentile interval of resampled values (count,).

    The interval is ``None`` where all resamples agree (an AUROC of 1): that comes of few patients, and not of a sure value.
    """
    interval = Interval(value if np.isfinite(value) else None)
    if np.isfinite(value) and len(draws) and np.isfinite(draws).all() and np.ptp(draws) > 1e-12:
        interval = percentiles(value, draws)
    return asdict(interval)


def _macro(sites: Mapping[str, Judged], by: Judge) -> Estimates:
    """The mean over the hospitals that define a metric; its interval only where each of them has one."""
    macro = {}
    for metric in by.titles:
        defined = _defined_values(sites, metric)
        drawn = [sites[name].draws[metric] for name in defined if metric in sites[name].draws]
        draws = np.mean(drawn, axis=0) if drawn and len(drawn) == len(defined) else np.empty(0)
        macro[metric] = estimate(float(np.mean([*defined.values()])) if defined else np.nan, draws)
    return macro


def _defined_values(parts: Mapping[str, Judged], metric: str) -> dict[str, float]:
    values = {name: judged.metrics[metric]["value"] for name, judged in parts.items()}
    return {name: value for name, value in values.items() if value is not None}


def _worst(parts: Mapping[str, Judged], metric: str) -> dict[str, Any] | None:
    """The hospital that does worst, by name, with its own estimate; None where none defines the metric."""
    defined = _defined_values(parts, metric)
    if not defined:
        return None
    worst = (
        min(defined, key=defined.__getitem__)
        if metric in LARGER_IS_BETTER or metric.startswith("auroc")
        else max(defined, key=lambda name: abs(defined[name]))
    )
    return {"name": worst, **parts[worst].metrics[metric]}


def _gap(parts: Mapping[str, Judged], metric: str) -> dict[str, Any] | None:
    """The largest value less the smallest, and of whom; None of fewer than two. The interval is of just these two."""
    defined = _defined_values(parts, metric)
    if len(defined) < 2:
        return None
    high, low = max(defined, key=defined.__getitem__), min(defined, key=defined.__getitem__)
    top, bottom = parts[high].draws.get(metric), parts[low].draws.get(metric)
    draws = np.empty(0) if top is None or bottom is None else top - bottom
    return {"highest": high, "lowest": low, **estimate(defined[high] - defined[low], draws)}


def _groups(
    sites: Mapping[str, Predictions], column: str, names: Sequence[str], count: int, seed: int, by: Judge
) -> dict[str, Any]:
    """Metrics of each group over all hospitals together, never of a group at one hospital; of small groups nothing."""
    silent = [name for name, rows in sites.items() if rows.group is None]
    if silent:
        why = f"the policy of {len(silent)} of {len(sites)} hospitals does not let the column {column!r} leave"
        return {"column": column, "undefined": why, "groups": {}, "gap": {}}
    together = pool(sites)
    assert together.group is not None
    groups: dict[str, dict[str, Any]] = {}
    shown: dict[str, Judged] = {}
    for number, name in enumerate(names):
        rows = together.where(together.group == number)
        patients = len(np.unique(rows.patient))
        if patients >= SMALLEST_GROUP:
            shown[name] = judge(rows, count, generator(seed, "bootstrap", "group", name), by)
            groups[name] = {"about": int(round(patients, -1)), "metrics": shown[name].metrics}
        elif patients:
            groups[name] = {"about": None, "metrics": None}
    gap = {metric: _gap(shown, metric) for metric in by.titles}
    return {"column": column, "undefined": None, "groups": groups, "gap": gap}


def calibration_curve(chance: Floats, event: Bools) -> list[dict[str, float | None]]:
    """For each of ten bins of equal width that holds a row: what was predicted and what came about.

    chance, event: (n,).  Each bin: ``share`` of all rows, mean ``predicted`` probability, ``observed`` share, and ``low``,
    ``high``, its 95 % interval (Wilson 1927), which takes rows for independent.
    """
    inside = bin_chances(chance).astype(np.float64)
    counts = inside.sum(axis=0)
    bins: list[dict[str, float | None]] = []
    for k in np.flatnonzero(counts):
        observed, low, high = wilson(int(inside[:, k] @ event), int(counts[k])).ends
        predicted = float(inside[:, k] @ chance / counts[k])
        share = float(counts[k] / len(chance))
        bins.append({"share": share, "predicted": predicted, "observed": observed, "low": low, "high": high})
    return bins


def net_benefit(chance: Floats, event: Bools) -> Callable[[Floats], Floats]:
    """A function of weights (B, n) that gives (B, T) the net benefit of treating above each of ``THRESHOLDS``.

    True less false positives per patient, a false one weighed by the odds of the threshold (Vickers and Elkin 2006).
    """
    odds = THRESHOLDS / (1 - THRESHOLDS)
    treated = chance[:, None] >= THRESHOLDS
    worth = np.where(event[:, None], 1.0, -odds) * treated
    return lambda weights: weights @ worth / weights.sum(axis=1)[:, None]


def treat_all(event: Bools) -> Floats:
    """(T,) the net benefit of treating everybody; that of treating nobody is 0."""
    share = float(event.mean())
    return np.asarray(share - (1 - share) * THRESHOLDS / (1 - THRESHOLDS))


def error_by_chance(chance: Floats, count: int, rng: np.random.Generator) -> float:
    """Return the calibration error that a perfectly calibrated model stays below in 95 of 100 such samples.

    Outcomes are drawn from the probabilities themselves (consistency resampling, Broecker and Smith 2007). Rows are
    taken for independent.

    Args:
        chance: (n,) probabilities.
        count: How often outcomes are drawn.
        rng: Draws them.
    """
    inside = bin_chances(chance).astype(np.float64)
    expected, errors = chance @ inside, []
    step = max(1, 2_000_000 // len(chance))
    for begin in range(0, count, step):
        came = (rng.random((min(step, count - begin), len(chance))) < chance).astype(np.float64)
        errors.append(np.abs(came @ inside - expected).sum(axis=1) / len(chance))
    return float(np.quantile(np.concatenate(errors), 0.95))


def decision_curve(chance: Floats, event: Bools, band: tuple[Floats, Floats]) -> dict[str, Any]:
    """Return the decision curve: ``thresholds``, ``model``, ``low``, ``high`` and ``all``, each a list (T,).

    Args:
        chance: (n,) probabilities of the event.
        event: (n,) whether it came about.
        band: Lower and upper ends (T,) of the model's 95 % interval.
    """
    model = net_benefit(chance, event)(np.ones((1, len(chance))))[0]
    curves = {"thresholds": THRESHOLDS, "model": model, "low": band[0], "high": band[1], "all": treat_all(event)}
    return {name: [round(float(value), 6) for value in curve] for name, curve in curves.items()}
