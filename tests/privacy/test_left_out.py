"""What docs/privacy/choosing.md says of private prediction and of local privacy: measured, behind private training, left out.

Both are written here in their simplest form, on the records of one hospital, with the same (epsilon, delta) for each patient.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic import Federation
from polyclinic.ehr.shard import Rows
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.events import gaussian_event
from polyclinic.runs.folder import Run

EPSILON, DELTA, SEEDS = 3.0, 5e-5, 12


def voted(train: Rows, test: Rows, questions: int, teachers: int, draw: np.random.Generator) -> float:
    """AUROC of answers to ``questions`` held-out patients: the mean probability of models of disjoint parts, with noise.

    A patient changes one model, and so each mean by at most 1 / teachers, all of them by sqrt(questions) / teachers. Subsample
    and aggregate, Nissim, Raskhodnikova and Smith 2007; private prediction, Dwork and Feldman 2018.
    """
    part = draw.integers(0, teachers, train.patients)[train.patient]
    asked = np.resize(draw.permutation(len(test.y)), questions)
    probabilities = np.zeros(questions)
    for teacher in range(teachers):
        own = part == teacher
        if len(set(train.y[own])) < 2:
            probabilities += train.y[own].mean() if own.any() else 0.5
            continue
        model = LogisticRegression(C=0.1, max_iter=500).fit(np.nan_to_num(train.x[own]), train.y[own])
        probabilities += model.predict_proba(np.nan_to_num(test.x[asked]))[:, 1]
    noise = calibrate_noise_multiplier(EPSILON, DELTA, gaussian_event) * np.sqrt(questions) / teachers
    answers = probabilities / teachers + noise * draw.normal(size=questions)
    return float(roc_auc_score(test.y[asked], answers)) if len(set(test.y[asked])) == 2 else float("nan")


def answered_at_random(train: Rows, test: Rows, draw: np.random.Generator) -> float:
    """AUROC of a regression on records of which every cell, and the label, was kept or turned by a coin at the patient.

    Each cell says whether it lies above its public centre. Warner 1965; all cells of a patient share epsilon.
    """
    bits = [np.concatenate([np.nan_to_num(part.x) > 0, part.y[:, None] == 1], axis=1) for part in (train, test)]
    turned = draw.uniform(size=bits[0].shape) < 1 / (1 + np.exp(EPSILON / bits[0].shape[1]))
    seen = bits[0] ^ turned
    model = LogisticRegression(C=0.1, max_iter=500).fit(seen[:, :-1], seen[:, -1])
    return float(roc_auc_score(test.y, model.predict_proba(bits[1][:, :-1])[:, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["breast-cancer", "heart-disease", "ist"])
def test_private_training_is_ahead_of_private_answers_and_of_local_coins(dataset: str, tmp_path: Path) -> None:
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        result = Federation.from_dataset(dataset, sites=1, partitioner="iid", out=str(tmp_path), seed=seed).run(
            privacy={"epsilon": EPSILON, "delta": DELTA}, pictures=False
        )
        simulation = Run.open(result.path).simulation("attack a simulation")
        [(train, test)] = [simulation.rows(site) for site in simulation.shards]
        draw = np.random.default_rng(seed)
        found.setdefault("training", []).append(result.pooled["auroc"])
        for questions in (20, 100, 500):
            found.setdefault(f"{questions} answers", []).append(
                max(voted(train, test, questions, teachers, draw) for teachers in (10, 30))
            )
        found.setdefault("coins", []).append(answered_at_random(train, test, draw))
    mean = {name: float(np.nanmean(values)) for name, values in found.items()}
    error = {name: float(np.nanstd(values, ddof=1)) / np.sqrt(SEEDS) for name, values in found.items()}
    assert mean["20 answers"] - mean["training"] < 2 * error["20 answers"]
    for name in ("100 answers", "500 answers", "coins"):
        assert mean["training"] - mean[name] > 0.1 and mean["training"] - mean[name] > 3 * error[name]
    assert mean["20 answers"] > mean["100 answers"] > mean["500 answers"]
    assert abs(mean["coins"] - 0.5) < 3 * error["coins"], "a coin for each cell tells of nothing"
