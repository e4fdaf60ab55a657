"""What the apps share: made-up records of a node, a linear model, and where an app writes what it found."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

FEATURES = 6


def records(partition: int, rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(rows + 10 * partition, FEATURES)).astype(np.float32)
    return x, (x[:, 0] + 0.3 * partition * x[:, 1] + 0.5 * rng.normal(size=len(x)) > 0).astype(int)


def chance(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(x @ w[:-1] + w[-1])))


def trained(w: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float = 0.5, steps: int = 5) -> np.ndarray:
    """Steps of gradient descent of logistic regression."""
    for _ in range(steps):
        error = chance(w, x) - y
        w = w - rate * np.append(x.T @ error, error.sum()) / len(x)
    return w


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    p = np.clip(chance(w, x), 1e-6, 1 - 1e-6)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def start() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(FEATURES + 1))})


def weights(content: RecordDict) -> np.ndarray:
    return content["arrays"]["w"].numpy()


def answer(w: np.ndarray | None, **metrics: float) -> RecordDict:
    records = {"metrics": MetricRecord(metrics)}
    return RecordDict(records if w is None else {"arrays": ArrayRecord({"w": Array(w)}), **records})


def everyone(context) -> dict[str, int]:
    """Arguments of a strategy that asks all nodes; without them Flower begins with those that have joined by then."""
    return dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), context.run_config["nodes"])


def tell(context, arrays=None, **numbers) -> None:
    """Write what came out: every number of the arrays, and what else is worth comparing."""
    values = [] if arrays is None else [float(v) for name in sorted(arrays) for v in arrays[name].numpy().ravel()]
    Path(context.run_config["out"]).write_text(json.dumps({"arrays": values, **numbers}))


def by_round(metrics) -> dict[str, dict[str, float]]:
    return {str(number): dict(record) for number, record in metrics.items()}
