"""Made-up run folders: numbers that look like a run's, written as the run folder's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.evaluation.assessment import Predictions, assess

WriteRun = Callable[..., Path]
RISK = ("advantage", "tpr_at_1_percent_fpr")
SITES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")


def made_up_rounds(sites: tuple[str, ...], count: int, private: bool, seed: int = 7) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for site in (*sites, "pooled", "macro"):
        level = 0.86 if site in ("pooled", "macro") else 0.8 + 0.12 * rng.random()
        for number in range(1, count + 1):
            learned = 1 - np.exp(-number / 4)
            spent = None if site in ("pooled", "macro") or not private else 3.4 * np.sqrt(number / count)
            rows.append(
                {
                    "round": number,
                    "site": site,
                    "loss": 0.69 - 0.3 * learned * level + 0.015 * rng.normal(),
                    "auroc": min(0.5 + (level - 0.5) * learned + 0.012 * rng.normal(), 1.0),
                    "auprc": 0.5 + (level - 0.52) * learned,
                    "accuracy": 0.55 + (level - 0.6) * learned,
                    "epsilon": spent,
                    "train_loss": 0.69 - 0.33 * learned * level,
                    "seconds": 0.1,
                }
            )
    return pd.DataFrame(rows)


def made_up_evaluation(names: tuple[str, ...] = SITES, shift: float = 1.0, **groups: Any) -> dict[str, Any]:
    sites = {}
    for number, name in enumerate(names):
        rng = np.random.default_rng(number)
        labels = np.arange(60) % 2
        chance = 1 / (1 + np.exp(-(rng.normal(size=60) + shift * (2 * labels - 1))))
        sites[name] = Predictions(labels, np.stack([1 - chance, chance], 1), np.arange(60), np.arange(60) // 28)
    return assess(sites, 0, **groups)


def made_up_summary(sites: tuple[str, ...], count: int, private: bool) -> dict[str, Any]:
    epsilon, delta, budget = (3.4, 1e-5, 4.0) if private else (None, None, None)
    risk = {"advantage": 0.3812, "tpr_at_1_percent_fpr": 0.09121} if private else dict.fromkeys(RISK, 1.0)
    statement = {
        "private": private,
        "epsilon": epsilon,
        "delta": delta,
        "risk": risk,
        "unit": "patient",
        "relation": "add-remove",
        "accountant": "pld",
    }
    ledger = {
        "epsilon": epsilon,
        "delta": delta,
        "risk": risk,
        "budget": budget,
        "events": [{"seq": i} for i in range(count)],
    }
    detail = {
        name: {
            "patients": 120 + 35 * i,
            "auroc": 0.81 + 0.02 * i if i < 8 else 0.9,
            "accuracy": 0.74 + 0.015 * i if i < 8 else 0.8,
            "epsilon": epsilon,
            "delta": delta,
            "risk": risk,
            "budget": budget,
            "rounds_joined": count,
        }
        for i, name in enumerate(sites)
    }
    return {
        "run": "runs/2026-01-05-heart-disease",
        "rounds": count,
        "seed": 1,
        "strategy": "fedavg",
        "dataset": "heart-disease",
        "metrics": {
            "pooled": {"auroc": 0.861, "auprc": 0.84, "accuracy": 0.792},
            "macro": {"auroc": 0.84, "auprc": 0.82, "accuracy": 0.77},
            "sites": detail,
        },
        "privacy": statement,
        "model_sha256": "ab" * 32,
        "seconds": 21.4,
        "rounds_per_second": count / 21.4,
        "floor": {"auroc": 0.5, "accuracy": 0.553},
        "comparison": None,
        "dropouts": [],
        "simulation": True,
        "statement": statement
        | {"sites": {name: {"site": name, **ledger, "intact": True} for name in sites} if private else {}},
        "notes": [],
    }


@pytest.fixture(scope="session")
def evaluation() -> Callable[..., dict[str, Any]]:
    """A function that gives the evaluation of made-up predictions of each hospital."""
    return made_up_evaluation


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """A function that writes a run folder; keyword ``change`` alters the summary before it is written."""

    def write(
        sites: tuple[str, ...] = SITES,
        count: int = 12,
        private: bool = True,
        change: Callable[[dict[str, Any]], None] = lambda summary: None,
        rounds: pd.DataFrame | None = None,
    ) -> Path:
        summary = made_up_summary(sites, count, private)
        change(summary)
        table = made_up_rounds(sites, count, private) if rounds is None else rounds
        table.to_parquet(tmp_path / "rounds.parquet")
        (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        (tmp_path / "config.toml").write_text('dataset = "heart-disease"\nrounds = 12\n', encoding="utf-8")
        (tmp_path / "versions.json").write_text('{"polyclinic": "0.1.0"}', encoding="utf-8")
        return tmp_path

    return write
