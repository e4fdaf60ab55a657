"""Shape functions beside other models of tables, by AUROC: ``python -m benchmarks.utility.boosting [--quick]``.

Ours are federated, with noise of each hospital's own and with shared noise; the peers have all patients in one place: interpret's
explainable boosting machine with and without differential privacy (Nori et al. 2021), XGBoost and scikit-learn's histogram
boosting. The full benchmark writes benchmarks/results/boosting.json and the tables of docs/boosting.md; runs that are known are
not made again.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from benchmarks.utility.report import standard_error
from benchmarks.utility.runs import run_ours
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import column_cells
from polyclinic.ehr.schema import BOUNDED_KINDS, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.metrics import auroc
from polyclinic.runs.simulation import SimulatedRecords

RESULT = ROOT / "benchmarks" / "results" / "boosting.json"
PARTS = RESULT.with_suffix(".partial.json")
PAGE = ROOT / "docs" / "boosting.md"
BEGIN, END = "<!-- benchmarks.utility.boosting: begin -->", "<!-- benchmarks.utility.boosting: end -->"
#: Each dataset with its delta, below one over the patients of its largest hospital.
DATASETS = {"heart-disease": 1e-3, "breast-cancer": 1e-3, "eicu-demo": 1e-4, "ist": 1e-4, "diabetes-130": 1e-5}
EPSILONS, SPLITS = (1.0, 3.0, 10.0), (1, 2, 3, 4, 5)
_SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
OURS: dict[str, dict[str, Any]] = {
    "ebm": {"model": "ebm"}, "ebm-shared": {"model": "ebm", **_SHARED}, "newton": {}, "newton-shared": dict(_SHARED),
}  # fmt: skip
TITLES = {
    "ebm": "shape functions (`ebm`)", "ebm-shared": "the same, shared noise", "newton": "logistic default (Newton)",
    "newton-shared": "the same, shared noise", "interpret": "interpret, pooled", "xgboost": "XGBoost, pooled",
    "histogram": "HistGradientBoosting, pooled",
}  # fmt: skip
PEERS = ("interpret", "xgboost", "histogram")
#: The most that a mean AUROC may be below the peer's.
LOSS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.boosting", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="heart disease and one split; writes nothing")
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS), choices=list(DATASETS), help="only these")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    jobs = list(_jobs(["heart-disease"] if given.quick else given.datasets, SPLITS[:1] if given.quick else SPLITS))
    done = {} if given.quick else _known(PARTS)
    for number, job in enumerate(jobs):
        if (key := json.dumps(job)) not in done:
            done[key] = _carry_out(*job)
            print(f"{number + 1} of {len(jobs)}: {key} {done[key]:.4f}", flush=True)
            if not given.quick:
                with PARTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([job, done[key]]) + "\n")
    result = {"machine": machine(), "command": "python -m benchmarks.utility.boosting", "deltas": DATASETS,
              "rows": rows([(*json.loads(key), value) for key, value in done.items()])}  # fmt: skip
    result["goals"] = goals(result["rows"])
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, tables(result))
    print(tables(result))
    return 0


def _jobs(datasets: Sequence[str], splits: Sequence[int]) -> Iterator[tuple[str, str, float | None, int]]:
    for dataset in datasets:
        for split in splits:
            for epsilon in (None, *EPSILONS):
                ours = [name for name in OURS if epsilon or not name.endswith("shared")]
                for method in (*ours, "interpret", *(PEERS[1:] if epsilon is None else ())):
                    yield dataset, method, epsilon, split


def _known(path: Path) -> dict[str, float]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {json.dumps(job): value for job, value in map(json.loads, lines)}


def _config(dataset: str, epsilon: float | None, split: int, options: Mapping[str, Any]) -> RunConfig:
    privacy = (
        {"privacy.dp": False} if epsilon is None else {"privacy.epsilon": epsilon, "privacy.delta": DATASETS[dataset]}
    )
    # Shared noise is not for a task whose kind of steps is still open.
    open_to = {} if "model" in options else {"training.optimizer": "newton"}
    return RunConfig.build(
        {"dataset": dataset, "seed": split, "split.seed": str(split), "evaluation.every": 10_000},
        privacy,
        open_to,
        options,
    )


def _carry_out(dataset: str, method: str, epsilon: float | None, split: int) -> float:
    """AUROC on all hospitals' held-out patients together."""
    if method in OURS:
        return float(run_ours(_config(dataset, epsilon, split, OURS[method]))["auroc"])
    shards = [*SimulatedRecords.of(_config(dataset, epsilon, split, {})).shards().values()]
    train, test = (Rows.joined([getattr(shard, side) for shard in shards]) for side in ("train", "test"))
    fit = {"interpret": _interpret, "xgboost": _xgboost, "histogram": _histogram}[method]
    scores = fit(shards[0].schema, train, test, epsilon, DATASETS[dataset], split)
    return float(auroc(test.y == 1, scores) or 0.0)


def _interpret(schema: Schema, train: Rows, test: Rows, epsilon: float | None, delta: float, seed: int) -> np.ndarray:
    """interpret's machine on columns as they are, with the schema's bounds; without pairs, as with privacy."""
    from interpret.glassbox import ExplainableBoostingClassifier
    from interpret.privacy import DPExplainableBoostingClassifier

    kinds = ["continuous" if column.kind in (*BOUNDED_KINDS, "ordinal") else "nominal" for column in schema.features]
    columns = [_columns(schema, rows) for rows in (train, test)]
    types = [kind for kind, part in zip(kinds, columns[0], strict=True) for _ in range(part.shape[1])]
    x, asked = (np.concatenate(parts, axis=1) for parts in columns)
    if epsilon is None:
        model = ExplainableBoostingClassifier(feature_types=types, interactions=0, random_state=seed, n_jobs=1)
    else:
        # A bound on each side of every column, as interpret asks for them; of categories it takes none.
        bounds = [
            (column.bounds or (0.0, max(1.0, len(column.categories) - 1.0)))
            for column, part in zip(schema.features, columns[0], strict=True) for _ in range(part.shape[1])
        ]  # fmt: skip
        model = DPExplainableBoostingClassifier(
            feature_types=types, epsilon=epsilon, delta=delta, privacy_bounds=np.array(bounds), random_state=seed,
        )  # fmt: skip
    model.fit(x, train.y)
    return np.asarray(model.predict_proba(asked)[:, 1])


def _columns(schema: Schema, rows: Rows) -> list[np.ndarray]:
    """Each column's cells as an array of objects: numbers, or texts of categories. A missing number is the column's centre, since
    interpret's private machine takes none that is missing; a missing category is a category."""
    parts = []
    for column in schema.features:
        cells = column_cells(rows.x, schema, column.name)
        if column.kind in (*BOUNDED_KINDS, "ordinal"):
            low, high = column.bounds or (0.0, len(column.categories) - 1.0)
            parts.append(np.where(np.isnan(cells), (low + high) / 2, cells).astype(object))
        else:
            parts.append(
                np.where(np.isnan(cells), "missing", np.nan_to_num(cells).astype(int).astype(str)).astype(object)
            )
    return parts


def _xgboost(schema: Schema, train: Rows, test: Rows, epsilon: float | None, delta: float, seed: int) -> np.ndarray:
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=300, learning_rate=0.05, max_depth=4, subsample=0.8, random_state=seed, n_jobs=1)
    return np.asarray(model.fit(train.x, train.y).predict_proba(test.x)[:, 1])


def _histogram(schema: Schema, train: Rows, test: Rows, epsilon: float | None, delta: float, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(learning_rate=0.05, max_depth=4, early_stopping=True, random_state=seed)
    return np.asarray(model.fit(train.x, train.y).predict_proba(test.x)[:, 1])


def rows(results: Sequence[tuple[str, str, float | None, int, float]]) -> list[dict[str, Any]]:
    """A row for each dataset, method and epsilon, with the AUROC of each split, their mean and its standard error."""
    values: dict[tuple[str, str, float | None], list[float]] = {}
    for dataset, method, epsilon, _, value in results:
        values.setdefault((dataset, method, epsilon), []).append(value)
    return [
        {"dataset": dataset, "method": method, "epsilon": epsilon, "aurocs": aurocs, "auroc": fmean(aurocs),
         "error": standard_error(aurocs)}
        for (dataset, method, epsilon), aurocs in values.items()
    ]  # fmt: skip


def goals(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The issue's goals, as paired differences on the same splits."""
    by = {(row["dataset"], row["method"], row["epsilon"]): row["aurocs"] for row in results}
    datasets = list(dict.fromkeys(row["dataset"] for row in results))
    asked: list[tuple[str, str, str, float | None]] = [("without privacy, to interpret", "ebm", "interpret", None),
             ("at ε = 3 with shared noise, to interpret's private machine", "ebm-shared", "interpret", 3.0),
             ("at ε = 3, to the logistic default", "ebm", "newton", 3.0),
             ("at ε = 3 with shared noise, to the logistic default", "ebm-shared", "newton-shared", 3.0)]  # fmt: skip
    goals = []
    for words, own, other, epsilon in asked:
        for dataset in datasets:
            mine, theirs = (by.get((dataset, method, epsilon), []) for method in (own, other))
            if not mine or len(mine) != len(theirs):
                continue  # a dataset that was not measured so far
            ahead = [ours - peers for ours, peers in zip(mine, theirs, strict=True)]
            goals.append({"goal": words, "dataset": dataset, "ahead": fmean(ahead), "error": standard_error(ahead),
                          "met": fmean(ahead) > (0.0 if other.startswith("newton") else -LOSS)})  # fmt: skip
    return goals


def tables(result: Mapping[str, Any]) -> str:
    """GitHub markdown: a table for each dataset and one of the goals."""
    parts = []
    for dataset in dict.fromkeys(row["dataset"] for row in result["rows"]):
        own = [row for row in result["rows"] if row["dataset"] == dataset]
        splits = max(len(row["aurocs"]) for row in own)
        parts.append(f"**{dataset}** (δ = {result['deltas'][dataset]:g}, splits: {splits})\n\n" + _table(own))
    lines = ["| goal | dataset | ahead by | met |", "|---|---|---|---|"]
    for row in result["goals"]:
        error = f" ± {row['error']:.3f}" if row["error"] is not None else ""
        lines.append(
            f"| {row['goal']} | {row['dataset']} | {row['ahead']:+.3f}{error} | {'yes' if row['met'] else 'no'} |"
        )
    return "\n\n".join([*parts, "\n".join(lines)])


def _table(own: Sequence[Mapping[str, Any]]) -> str:
    cells = {(row["method"], row["epsilon"]): row for row in own}
    lines = ["| model | ε = 1 | ε = 3 | ε = 10 | without privacy |", "|---|---|---|---|---|"]
    for method, title in TITLES.items():
        shown = [_cell(cells.get((method, epsilon))) for epsilon in (*EPSILONS, None)]
        lines.append(f"| {title} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['auroc']:.3f}" + (f" ± {row['error']:.3f}" if row["error"] is not None else "")


if __name__ == "__main__":
    raise SystemExit(main())
