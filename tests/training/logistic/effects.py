"""Simulated patients with a known average effect, and all rounds of ``Weighting`` over hospitals' tables of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dp_accounting import SelfComposedDpEvent
from scipy.special import expit

from polyclinic.ehr.schema import Column, Schema
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.sums import clipped_total
from polyclinic.synthesis.layout import Layout
from polyclinic.training.logistic.weighting import Effect, Weighting
from polyclinic.types import Arrays, Floats, Ints


def layout(number: bool = False) -> Layout:
    """A treatment, four covariates (one of them yes or no), and an outcome: yes or no, or a number from 0 to 10."""
    numbers = [Column(name=f"x{j}", kind="continuous", bounds=(-4, 4), centre=0.0, spread=1.0) for j in range(3)]
    outcome = Column(name="y", kind="continuous", bounds=(0, 10), role="label") if number else None
    columns = (
        Column(name="treated", kind="binary"), *numbers, Column(name="x3", kind="binary"),
        outcome or Column(name="y", kind="binary", role="label"),
    )  # fmt: skip
    return Layout.of(Schema(name="simulated", unit="record", columns=columns), label_may_be_number=True)


def weighting(
    private: bool, rounds: int = 8, by_design: float | None = None, most: float = 10.0, number: bool = False
) -> Weighting:
    """The method for these patients."""
    at = layout(number)
    arms = np.zeros((at.width + 1, 2))
    arms[[1, 0, 1], [0, 1, 1]] = 1, 1, -1
    most = 2 * (1 + 1e-9) if by_design else most
    return Weighting(at, np.arange(1, 5), arms, rounds, by_design, most, private)


def patients(
    rng: np.random.Generator, count: int, by_design: bool = False, number: bool = False
) -> tuple[Floats, float]:
    """(count, D) rows, and the mean effect of treatment on them: who is older (x0) is treated more often, and does worse."""
    x = np.clip(rng.standard_normal((count, 3)), -4, 4)
    sex = rng.integers(0, 2, count)
    chance = expit(0.8 * x[:, 0] - 0.5 * x[:, 1] + 0.4 * sex - 0.5)
    treated = rng.uniform(size=count) < (0.5 if by_design else chance)
    prognosis = 0.7 * x[:, 0] + 0.5 * x[:, 1] - 0.4 * x[:, 2] + 0.3 * sex
    if number:
        low, high = np.clip(4 + 0.8 * prognosis, 0, 10), np.clip(4.5 + 0.8 * prognosis, 0, 10)
        y = np.clip(np.where(treated, high, low) + 0.7 * rng.standard_normal(count), 0, 10)
        effect = 0.5
    else:
        without, given = expit(prognosis - 1.5), expit(prognosis - 2.0)
        y = (rng.uniform(size=count) < np.where(treated, given, without)).astype(np.int64)
        effect = float((given - without).mean())
    return layout(number).rows(np.column_stack([treated, x / 4, sex]), y), effect


def fit(
    method: Weighting, tables: Sequence[Floats], noise_multiplier: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[Effect, Arrays]:
    """All rounds over hospitals' tables, one row a patient, with one Gaussian in each sum; and the last state."""
    total = sum(map(len, tables))
    state: Arrays = {}
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        size = method.size(round, question)

        def vectors(rows: Floats, patient: Ints, count: int, round: int = round, question: Arrays = question) -> Floats:
            return method.contributions(round, question, rows, patient, count)

        summed = np.zeros(size)
        for table in tables:
            who = np.arange(len(table))
            summed += (
                clipped_total(vectors, size, table, who, len(table))
                if method.private
                else vectors(table, who, len(table)).sum(axis=0)
            )
        if rng is not None:
            summed += noise_multiplier * rng.standard_normal(size)
        state = {**state, "patients": np.array([float(total)])}
        state = method.absorb(round, state, summed / total, noise_multiplier / total)
    return method.result(state), state


def noise_of(epsilon: float, rounds: int = 8, delta: float = 1e-5) -> float:
    """The noise multiplier of each round that spends epsilon over all of them."""
    return calibrate_noise_multiplier(epsilon, delta, lambda noise: SelfComposedDpEvent(gaussian_event(noise), rounds))
