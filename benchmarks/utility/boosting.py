"""Shape functions beside other models of tables, by AUROC: ``python -m benchmarks.utility.boosting [--quick]``.

Ours are federated, with noise of each hospital's own and with shared noise; the peers have all patients in one place: interpret's
explainable boosting machine with and without differential privacy (Nori et al. 2021), XGBoost and scikit-learn's histogram
boosting. A cell is a dataset, a model, an epsilon and a split; each is written to benchmarks/results/boosting.json and the tables
of docs/boosting.md as soon as it is known, and not made again. Settings were chosen on other splits, from 100 on.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
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
PAGE = ROOT / "docs" / "boosting.md"
BEGIN, END = "<!-- benchmarks.utility.boosting: begin -->", "<!-- benchmarks.utility.boosting: end -->"
#: Each dataset with its delta, below one over the patients of its largest hospital.
DATASETS = {"heart-disease": 1e-3, "breast-cancer": 1e-3, "eicu-demo": 1e-4, "ist": 1e-4, "diabetes-130": 1e-5}
EPSILONS, SPLITS = (1.0, 3.0, 10.0), (1, 2, 3, 4, 5)
_SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
OURS: dict[str, dict[str, Any]] = {
    "ebm": {"model": "ebm"}, "ebm-shared": {"model": "ebm", **_SHARED}, "trees": {"model": "trees"},
    "trees-shared": {"model": "trees", **_SHARED}, "newton": {}, "newton-shared": dict(_SHARED),
}  # fmt: skip
TITLES = {
    "ebm": "shape functions (`ebm`)", "ebm-shared": "the same, shared noise", "trees": "boosted trees (`trees`)",
    "trees-shared": "the same, shared noise", "newton": "logistic default (Newton)",
    "newton-shared": "the same, shared noise", "interpret": "interpret, pooled", "xgboost": "XGBoost, pooled",
    "histogram": "HistGradientBoosting, pooled",
}  # fmt: skip
PEERS = ("interpret", "xgboost", "histogram")
#: Whose AUROC is compared with whose, at which epsilon; noise of hospitals' own is shown beside what the issue asks.
GOALS: tuple[tuple[str, str, str, float | None], ...] = (
    ("without privacy, to interpret", "ebm", "interpret", None),
    ("at ε = 3 with shared noise, to interpret's private machine", "ebm-shared", "interpret", 3.0),
    ("at ε = 3, to the logistic default", "ebm", "newton", 3.0),
    ("at ε = 3 with shared noise, to the logistic default", "ebm-shared", "newton-shared", 3.0),
)  # fmt: skip
Cell = tuple[str, str, float | None, int]
#: The most that a mean AUROC may be below the peer's.
LOSS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.boosting", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="heart disease and one split; writes nothing")
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS), choices=list(DATASETS), help="only these")
    parser.add_argument("--only", nargs="*", default=list(TITLES), choices=list(TITLES), help="only these models")
    parser.add_argument("--epsilons", nargs="*", default=[None, *EPSILONS], type=_epsilon, help="only these, or none")
    parser.add_argument("--splits", nargs="*", default=list(SPLITS), type=int, help="only these")
    parser.add_argument("--again", action="store_true", help="make known cells again, as after a change of the model")
    parser.add_argument("--also", type=Path, help="a result file whose cells are taken over, as of another branch")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if given.quick:
        few = _cells(["heart-disease"], given.only, [None, 3.0], SPLITS[:1])
        print(tables(_result({cell: _carry_out(*cell) for cell in few})))
        return 0
    if given.also:
        _write(_known(given.also))
    asked = list(_cells(given.datasets, given.only, given.epsilons, given.splits))
    for number, cell in enumerate(asked):
        if given.again or cell not in _known(RESULT):
            value = _carry_out(*cell)
            print(f"{number + 1} of {len(asked)}: {cell} {value:.4f}", flush=True)
            _write({cell: value})
    print(tables(_result(_known(RESULT))))
    return 0


def _epsilon(text: str) -> float | None:
    return None if text == "none" else float(text)


def _cells(
    datasets: Sequence[str], methods: Sequence[str], epsilons: Sequence[float | None], splits: Sequence[int]
) -> Iterator[Cell]:
    """What is measured: noise that hospitals share needs an epsilon, and of the peers only interpret takes one."""
    for dataset, split, epsilon, method in product(datasets, splits, epsilons, methods):
        if not (method.endswith("shared") if epsilon is None else method in PEERS[1:]):
            yield dataset, method, epsilon, split


def _known(path: Path) -> dict[Cell, float]:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return {
        (row["dataset"], row["method"], row["epsilon"], split): value
        for row in rows for split, value in zip(row["splits"], row["aurocs"], strict=True)
    }  # fmt: skip


def _write(cells: Mapping[Cell, float]) -> None:
    """Add to what the result file has, and to the page; a benchmark that is interrupted goes on from there."""
    result = _result(_known(RESULT) | dict(cells))
    text = json.dumps(result | {"rows": []}, indent=1).replace('"rows": []', '"rows": [\n  %s\n ]')
    lines = ",\n  ".join(map(json.dumps, result["rows"]))  # a row is a line, so that branches merge
    RESULT.write_text(text.replace("%s", lines) + "\n", encoding="utf-8")
    write_between(PAGE, BEGIN, END, tables(result))


def _result(cells: Mapping[Cell, float]) -> dict[str, Any]:
    found, own = rows(cells), machine()
    return {
        "machine": {name: own[name] for name in own if name not in ("commit", "load")},  # of many runs, and no timings
        "command": "python -m benchmarks.utility.boosting", "deltas": DATASETS, "rows": found,
        "goals": goals(found),
    }  # fmt: skip


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
    train, test = (Rows.join([getattr(shard, side) for shard in shards]) for side in ("train", "test"))
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


def rows(cells: Mapping[Cell, float]) -> list[dict[str, Any]]:
    """A row for each dataset, epsilon and method, with the AUROC of each split, their mean and its standard error."""
    order = [list(DATASETS), [None, *EPSILONS], list(TITLES)]
    values: dict[tuple[str, float | None, str], dict[int, float]] = {}
    for (dataset, method, epsilon, split), value in sorted(cells.items(), key=lambda item: item[0][3]):
        values.setdefault((dataset, epsilon, method), {})[split] = value
    return [
        {"dataset": key[0], "method": key[2], "epsilon": key[1], "splits": list(own), "aurocs": [*own.values()],
         "auroc": fmean(own.values()), "error": standard_error([*own.values()])}
        for key, own in sorted(values.items(), key=lambda item: [at.index(of) for at, of in zip(order, item[0], strict=True)])
    ]  # fmt: skip


def goals(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The issue's goals, as paired differences on the splits that both have."""
    by = {
        (row["dataset"], row["method"], row["epsilon"]): dict(zip(row["splits"], row["aurocs"], strict=True))
        for row in results
    }
    datasets = list(dict.fromkeys(row["dataset"] for row in results))
    goals = []
    for words, own, other, epsilon in GOALS:
        for dataset in datasets:
            mine, theirs = (by.get((dataset, method, epsilon), {}) for method in (own, other))
            ahead = [mine[split] - theirs[split] for split in mine if split in theirs]
            if ahead:
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
    cells, most = {(row["method"], row["epsilon"]): row for row in own}, max(len(row["aurocs"]) for row in own)
    lines = ["| model | ε = 1 | ε = 3 | ε = 10 | without privacy |", "|---|---|---|---|---|"]
    for method, title in TITLES.items():
        shown = [_cell(cells.get((method, epsilon)), most) for epsilon in (*EPSILONS, None)]
        lines.append(f"| {title} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None, most: int) -> str:
    """With the number of splits where they are not ``most``."""
    if row is None:
        return "–"
    error = f" ± {row['error']:.3f}" if row["error"] is not None else ""
    return f"{row['auroc']:.3f}{error}" + (f" ({len(row['aurocs'])})" if len(row["aurocs"]) < most else "")


if __name__ == "__main__":
    raise SystemExit(main())
