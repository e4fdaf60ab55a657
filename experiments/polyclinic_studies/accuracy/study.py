"""Gradient steps and Newton steps beside pooled logistic regression: ranking and calibration, by epsilon, on several splits.

Made-up cohorts are drawn anew for each split, from seed 100 on; constants of Newton steps were chosen on seeds below 20 and from
200 to 211. Built-in data sets are split anew by ``split.seed``. The pooled model sees all hospitals' training patients without
privacy, each feature scaled by its mean and deviation and missing cells at the mean, and is scikit-learn's with its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic.config import RunConfig
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.evaluation.assessment import pool
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.runs.simulation import SimulatedRecords
from polyclinic.training.converged import scale_of
from polyclinic.training.preparation import standardised
from polyclinic.types import Floats, Ints
from polyclinic_studies.parts import Parts, outcome_of
from polyclinic_studies.tables import margin, smallest

_COHORTS = "polyclinic_studies.accuracy.cohorts"
#: Data set by name: its configuration keys for the split of a number.
SETS: dict[str, Any] = {
    "rare": lambda split: {"dataset": f"{_COHORTS}:rare_{100 + split}"},
    "common": lambda split: {"dataset": f"{_COHORTS}:common_{100 + split}"},
    **{
        name: (lambda split, name=name: {"dataset": name, "split.seed": str(100 + split)})
        for name in ("breast-cancer", "heart-disease", "trial", "icu", "eicu-demo", "ist", "diabetes-130", "mimic-hf")
    },
}
EPSILONS = (None, 10.0, 3.0, 1.0)
OPTIMIZERS = ("sgd", "newton")
SPLITS = 5
#: Sets of 20,000 patients or more, for which there are goals with privacy; the most AUROC lost by epsilon, and the most that the
#: mean risk may be off, by the rate of events.
LARGE = ("rare", "diabetes-130")
_MOST_LOST, _MOST_OFF = {None: 0.005, 10.0: 0.01, 3.0: 0.015, 1.0: 0.025}, 0.1


def run(asked: Asked, say: Say) -> Findings:
    """Every optimizer at every epsilon on every data set, ``asked.seeds`` splits each."""
    parts, splits = Parts(asked.out, say), 1 if asked.quick else asked.seeds or SPLITS
    names = [name for name in SETS if name in (asked.methods or SETS)]
    if unknown := set(asked.methods) - set(SETS):
        raise ConfigError(f"--method is {min(unknown)!r}; this experiment has {'; '.join(SETS)}.")
    names = ["breast-cancer"] if asked.quick else names
    rows: dict[str, Any] = {}
    for name in names:
        # A simulated set is another with each seed.
        of_splits = [SETS[name](split) | {"seed": 1000 + split} for split in range(splits)]
        rows[name] = {
            "pooled": [
                parts.answer(f"{name} pooled {split}", options, partial(pooled, options))
                for split, options in enumerate(of_splits)
            ]
        }
        for epsilon in EPSILONS:
            for optimizer in OPTIMIZERS:
                keys = {"training.optimizer": optimizer} | (
                    {"privacy.epsilon": epsilon} if epsilon else {"privacy.dp": False}
                )
                results = []
                for split, shared in enumerate(of_splits):
                    options = {**shared, **keys, "evaluation.every": 1000}
                    results.append(
                        parts.answer(f"{name} {optimizer} {epsilon} {split}", options, partial(measure, options))
                    )
                rows[name][_column(optimizer, epsilon)] = results
                say(f"{name}, {optimizer}, epsilon {epsilon}: AUROC {fmean(row['auroc'] for row in results):.4f}")
    return Findings({"splits": splits}, targets(rows), {"rows": rows}, tables(rows))


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """AUROC, mean risk less rate of events, calibration slope, and that rate, of a run's held-out patients pooled."""
    together = pool(outcome_of(options).state.predictions or {})
    return judge(together.labels, together.scores)


def pooled(options: Mapping[str, Any]) -> dict[str, float]:
    """The same of scikit-learn's logistic regression of all hospitals' training patients."""
    shards = SimulatedRecords.of(RunConfig.build(options)).shards().values()
    train, test = (Rows.join([getattr(shard, part) for shard in shards]) for part in ("train", "test"))
    scale = scale_of(train)
    x, held_out = (np.nan_to_num(standardised(rows, scale).x) for rows in (train, test))
    model = LogisticRegression(max_iter=5000).fit(x, train.y)
    return judge(test.y, model.predict_proba(held_out))


def judge(y: Ints, scores: Floats) -> dict[str, float]:
    """Of two classes the metrics of the second, of more the mean AUROC of each against the others."""
    if scores.shape[1] > 2:
        return {"auroc": float(roc_auc_score(y, scores, multi_class="ovr"))}
    risk = np.clip(scores[:, 1], 1e-9, 1 - 1e-9)
    slope = LogisticRegression(C=np.inf).fit(np.log(risk / (1 - risk))[:, None], y).coef_[0, 0]
    return {
        "auroc": float(roc_auc_score(y, risk)), "off": float(risk.mean() - y.mean()), "slope": float(slope),
        "rate": float(y.mean()),
    }  # fmt: skip


def targets(rows: Mapping[str, Any]) -> tuple[Target, ...]:
    """The goals of Newton steps: ranking without privacy on all sets and with it on large ones, and risks at epsilon 3."""
    goals = []
    for name, columns in rows.items():
        for epsilon, most in _MOST_LOST.items():
            if epsilon and name not in LARGE:
                continue
            gaps = _gaps(columns[_column("newton", epsilon)], columns["pooled"])
            goal = f"at most {most:g} below"
            goals.append(
                Target(
                    f"{name} {epsilon or 'no DP'}",
                    "AUROC less the pooled model's",
                    "",
                    _with_error(gaps),
                    goal,
                    fmean(gaps) >= -most,
                    seeds=len(gaps),
                    of="splits",
                    margin=margin(gaps, -most),
                )
            )
        if "off" in columns["pooled"][0]:
            off = [row["off"] / row["rate"] for row in columns[_column("newton", 3.0)]]
            met = abs(fmean(off)) <= _MOST_OFF
            goals.append(
                Target(
                    f"{name} risks",
                    "mean risk less the rate, by the rate, ε = 3",
                    "",
                    _with_error(off, 2),
                    f"within {_MOST_OFF:g}",
                    met,
                    seeds=len(off),
                    of="splits",
                    margin=smallest(margin(off, end, end < 0) for end in (-_MOST_OFF, _MOST_OFF)),
                )
            )
    return tuple(goals)


def _gaps(results: list[dict[str, float]], reference: list[dict[str, float]]) -> list[float]:
    return [row["auroc"] - other["auroc"] for row, other in zip(results, reference, strict=True)]


def tables(rows: Mapping[str, Any]) -> str:
    """AUROC less the pooled model's, and mean risk less the rate of events over that rate, with standard errors."""
    columns = [_column(optimizer, epsilon) for epsilon in EPSILONS for optimizer in OPTIMIZERS]

    def line(name: str, what: Any) -> list[str]:
        return [name, *(what(rows[name][column], rows[name]["pooled"]) for column in columns)]

    def gap(results: list[dict[str, float]], reference: list[dict[str, float]]) -> str:
        return _with_error(_gaps(results, reference))

    def off(results: list[dict[str, float]], reference: list[dict[str, float]]) -> str:
        return _with_error([row["off"] / row["rate"] for row in results], 2) if "off" in results[0] else ""

    def slope(results: list[dict[str, float]], reference: list[dict[str, float]]) -> str:
        return _with_error([row["slope"] for row in results], 2) if "slope" in results[0] else ""

    names = list(rows)
    first = markdown(
        ["pooled", *names],
        [["AUROC", *(_with_error([row["auroc"] for row in rows[name]["pooled"]]) for name in names)]],
    )
    return "\n".join(
        [
            first, "AUROC less that of the pooled model on the same split:\n",
            markdown(["", *columns], [line(name, gap) for name in names]),
            "Mean risk less the rate of events, by that rate:\n",
            markdown(["", *columns], [line(name, off) for name in names]),
            "Calibration slope (1: true; below: risks too extreme):\n",
            markdown(["", *columns], [line(name, slope) for name in names]),
        ]
    )  # fmt: skip


def _column(optimizer: str, epsilon: float | None) -> str:
    return f"{optimizer}, {f'ε = {epsilon:g}' if epsilon else 'no DP'}"


def _with_error(values: list[float], digits: int = 3) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"
