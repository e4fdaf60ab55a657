"""What is reached without privacy: one model of all hospitals' patients, and each hospital by itself.

Logistic regression as scikit-learn fits it by default (Newton's method's minimiser, L2 penalty of strength 1 on the sum).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.utility.splits import drawn
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.shard import Shard
from polyclinic.evaluation.metrics import auroc
from polyclinic.types import Floats


def shards_of(dataset: str, seed: int) -> list[Shard]:
    """The hospitals' encoded records with the split of that seed, as our runs have them."""
    return load_shards(drawn(dataset, seed), 0, "natural", seed, 1.0)


def scored(shards: list[Shard], scores: list[Floats]) -> dict[str, float | None]:
    """Pooled and macro AUROC of each hospital's scores of its test rows."""
    own = [auroc(shard.test.y == 1, score) for shard, score in zip(shards, scores, strict=True)]
    defined = [value for value in own if value is not None]
    labels = np.concatenate([shard.test.y for shard in shards]) == 1
    return {"auroc": auroc(labels, np.concatenate(scores)), "macro": float(np.mean(defined)), "true_epsilon": None}


def pooled(dataset: str, seed: int) -> dict[str, float | None]:
    """One model of all hospitals' training patients."""
    shards = shards_of(dataset, seed)
    x, y = (np.concatenate([getattr(shard.train, part) for shard in shards]) for part in "xy")
    return scored(shards, _fitted(x, y, [shard.test.x for shard in shards]))


def alone(dataset: str, seed: int) -> dict[str, float | None]:
    """Each hospital's own model, without privacy, on its own test patients; a hospital of one class scores all alike."""
    shards = shards_of(dataset, seed)
    return scored(shards, [_fitted(shard.train.x, shard.train.y, [shard.test.x])[0] for shard in shards])


def _fitted(x: Floats, y: NDArray[np.int64], asked: list[Floats]) -> list[Floats]:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) == 1:
        return [np.zeros(len(rows)) for rows in asked]
    mean, std = np.nanmean(x, axis=0), np.nanstd(x, axis=0)

    def scaled(rows: Floats) -> Floats:
        return np.nan_to_num((rows - mean) / np.where(std > 0, std, 1.0))

    model = LogisticRegression(solver="newton-cholesky").fit(scaled(x), y)
    return [np.asarray(model.decision_function(scaled(rows))) for rows in asked]


REFERENCES = {"pooled": pooled, "alone": alone}
