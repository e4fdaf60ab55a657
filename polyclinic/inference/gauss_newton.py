"""A private posterior that keeps its correlations: Gauss-Newton steps on noisy sums of scores and information.

In each round every record gives its score and its information at the current estimate. The coordinates are such that the
information of all is near the identity. So noise hurts every direction alike (as the recursive preconditioning of Kamath,
Li, Singhal and Ullman 2019). The vector is shortened to length 1 as one, which lowers the record's weight in the step as Huber's
estimator does; the same vector says how much weight was left. Sums add up over hospitals. The covariance counts the
noise, so that intervals cover; what the sums say is Gaussian around the maximum likelihood, as Laplace's approximation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent, SelfComposedDpEvent

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Gaussian, Likelihood
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.accounting import epsilon as spent
from polyclinic.privacy.sums import clipped_total
from polyclinic.types import Arrays, Floats, Ints

#: Of a vector's squared length, what the record's weight has.
WEIGHT = 0.05
#: Rounding does not bring a vector above length 1.
MARGIN = 1 - 1e-12
# A round's score is shortened where it is this many times what is expected, and its information.
_SCORE, _INFORMATION = 3.0, 3.5
# Steps of the whole prior at the most, and how far above its noise the information must be.
_LONGEST, _ABOVE_NOISE = 3.0, 1.5
# The same before the first round, when the coordinates are still to be found by sums as noisy: beyond it more than one run in
# five came to nothing (logistic models of 2 to 14 parameters), and soon all.
_HOPEFUL = 3.2
# Rounds further apart (squared, by dimension) than this are no result.
_FAR = 9.0
_COVERED = 1.959964


@dataclass(frozen=True, eq=False)
class Released:
    """What the noisy sums say.

    posterior: with prior and noise.
    likelihood: the same without noise's part, so what the covariance would be without privacy.
    mean_weight: mean weight of records in the last round; 1 where none was shortened.
    """

    posterior: Gaussian
    likelihood: Gaussian
    mean_weight: float

    @property
    def inflation(self) -> Floats:
        """(k,) how many times the standard deviations are larger for privacy."""
        return self.posterior.deviations / self.likelihood.deviations

    def as_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """By parameter: mean, standard deviation, 95 % interval and how much privacy widened it; all correlations."""
        mean, deviation = self.posterior.mean, self.posterior.deviations
        rows = {
            name: {
                "mean": float(m), "sd": float(d), "low": float(m - _COVERED * d), "high": float(m + _COVERED * d),
                "inflation": float(i),
            }
            for name, m, d, i in zip(names, mean, deviation, self.inflation, strict=True)
        }  # fmt: skip
        whole = self.posterior.covariance / np.outer(deviation, deviation)
        return {"parameters": rows, "correlations": whole.tolist(), "kept": self.mean_weight}


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """The method: what a round asks, what a record answers, what the server makes of it.

    start, scale: (k,) mean and standard deviation of the parameters' normal prior, which is public.
    rounds: sums of the same noise; the last half are averaged.
    Raises ConfigError naming the value that is out of range.
    """

    likelihood: Likelihood
    start: Floats
    scale: Floats
    rounds: int = 8
    name: str = field(default="gauss-newton", init=False)
    #: Less weight than this left to records is no result.
    least_kept: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        k = len(self.likelihood.names)
        for name, value in (("start", self.start), ("scale", self.scale)):
            if np.shape(value) != (k,) or not np.isfinite(value).all():
                raise ConfigError(
                    f"{name} must be {k} finite numbers, one for each of {', '.join(self.likelihood.names)}."
                )
        if not (self.scale > 0).all():
            raise ConfigError(f"scale must be positive, got {list(self.scale)}.")
        if self.rounds < 2:
            raise ConfigError(f"rounds must be 2 or more, got {self.rounds}.")

    @property
    def width(self) -> int:
        """Numbers of a vector: score, information's upper triangle, weight."""
        k = len(self.start)
        return k + k * (k + 1) // 2 + 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a question's arrays."""
        k = len(self.start)
        return {"estimate": (k,), "basis": (k, k)}

    def begin(self, patients: float) -> Arrays:
        """The state before round 1 of a table of so many records, by a public count."""
        if not patients >= 1:
            raise ConfigError(f"patients must be 1 or more, got {patients}.")
        return {
            "estimate": np.asarray(self.start, dtype=np.float64), "basis": np.diag(self.scale).astype(np.float64),
            "patients": np.array([float(patients)]),
        }  # fmt: skip

    def check_noise(self, noise: float) -> None:
        """Raises ConfigError for so much noise in each entry of a mean that information could hardly be told from it."""
        above = _HOPEFUL * self._noise_of_information(noise)
        if above >= 1:
            raise ConfigError(
                f"The budget is too small for {len(self.start)} parameters: noise would hide the information; {above:.3g} times "
                "the patients, a larger epsilon or fewer parameters may do."
            )

    def question(self, state: Arrays) -> Arrays:
        """What hospitals must be told: the estimate and the coordinates."""
        return {name: state[name] for name in ("estimate", "basis")}

    def contributions(self, question: Arrays, records: Floats) -> Floats:
        """(n, width) of records (n, d), each of length at most 1; a record that is not finite gives zeros."""
        # Copies, as torch aligns its own arrays alike.
        basis, estimate = question["basis"], torch.tensor(question["estimate"], dtype=torch.float64)
        k, given = len(estimate), torch.tensor(records, dtype=torch.float64)
        score = self.likelihood.score(estimate, given).numpy() @ basis
        information = basis.T @ self.likelihood.information(estimate, given).numpy() @ basis
        upper = np.triu_indices(k)
        twice = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
        block = np.concatenate([score / self._score, twice * information[:, *upper] / self._information], axis=1)
        finite = np.isfinite(block).all(axis=1)
        block[~finite] = 0.0
        with np.errstate(over="ignore"):
            factors = 1 / np.maximum(1.0, np.linalg.norm(block, axis=1))
        vectors = np.concatenate(
            [np.sqrt(1 - WEIGHT) * factors[:, None] * block, np.sqrt(WEIGHT) * factors[:, None]], axis=1
        )
        vectors[~finite] = 0.0
        return vectors * MARGIN

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: The number of the round, from 1 on.
            state: As ``begin`` or the last call returned it.
            mean: (width,) noisy sum by the number of patients.
            noise: Standard deviation of the noise in each entry of ``mean``.
        """
        basis, estimate, patients = state["basis"], state["estimate"], float(state["patients"][0])
        bound = self._score_bound(state)
        score, information, share = self._read(mean, bound)
        spread = self._noise_of_information(noise)
        prior = basis.T @ np.diag(1 / (patients * self.scale**2)) @ basis
        pull = -basis.T @ ((estimate - self.start) / (patients * self.scale**2))
        values, vectors = np.linalg.eigh(information + prior)
        floored = np.maximum(values, max(spread, 1e-9))
        inverse = (vectors / floored) @ vectors.T
        step = basis @ inverse @ (score + pull)
        step *= min(1.0, _LONGEST / max(float(np.linalg.norm(step / self.scale)), 1e-300))
        updated = {
            **state, "estimate": estimate + step, "kept": np.array([share]),
            "basis": basis @ (vectors / np.sqrt(floored / max(share, 1e-3))) @ vectors.T,
        }  # fmt: skip
        if round <= self.rounds // 2:
            return updated
        back = np.linalg.inv(basis)
        error = max(noise * bound / np.sqrt(1 - WEIGHT), 1e-9)
        new = {
            "reached": estimate + basis @ inverse @ score,
            "weight": back.T @ information @ information @ back / error**2,
            "information": patients * back.T @ information @ back,
            "told": np.linalg.eigvalsh(information + prior)[:1] - _ABOVE_NOISE * spread,
        }
        return updated | {
            name: np.concatenate([state.get(name, value[None][:0]), value[None]]) for name, value in new.items()
        }

    def posterior(self, state: Arrays) -> Released:
        """What the last state says. Raises DataError where the noise hides the information, or the rounds did not agree."""
        if "information" not in state:
            raise DataError("too few hospitals answered in every round of the last half.")
        information, weights = state["information"].mean(axis=0), state["weight"]
        if not (state["told"] > 0).all():
            raise DataError(
                "The noise hides the information about some direction of the parameters: a larger epsilon, more patients or "
                "fewer parameters may do."
            )
        by_noise = np.linalg.inv(weights.sum(axis=0))
        estimate = by_noise @ np.einsum("rij,rj->i", weights, state["reached"])
        share, away = float(state["kept"][0]), state["reached"] - estimate
        allowed = np.linalg.inv(information) + len(weights) * by_noise
        if share < self.least_kept or np.einsum("ri,ij,rj->r", away, np.linalg.inv(allowed), away).max() > _FAR * len(
            away[0]
        ):
            raise DataError(
                f"The steps did not settle in {self.rounds} rounds (records kept {share:.0%} of their weight): more rounds, or a "
                "start and scale nearer to the parameters may do."
            )
        prior = np.diag(1 / self.scale**2)
        precision = np.linalg.inv(np.linalg.inv(information) + by_noise)
        covariance = np.linalg.inv(precision + prior).astype(np.float64)
        mean = (covariance @ (precision @ estimate + prior @ self.start)).astype(np.float64)
        plain = np.linalg.inv(information + prior).astype(np.float64)
        return Released(Gaussian(mean, covariance), Gaussian(mean, plain), share)

    def _score_bound(self, state: Arrays) -> float:
        """Scores are shortened to it."""
        return self._score

    @property
    def _score(self) -> float:
        return _SCORE * float(np.sqrt(len(self.start)))

    @property
    def _information(self) -> float:
        return _INFORMATION * len(self.start)

    def _noise_of_information(self, noise: float) -> float:
        """About the largest eigenvalue of the noise in a round's information."""
        return float(np.sqrt(2 * len(self.start)) * noise * self._information / np.sqrt(1 - WEIGHT))

    def _read(self, mean: Floats, bound: float) -> tuple[Floats, Floats, float]:
        k = len(self.start)
        block, share = mean[:-1] / np.sqrt(1 - WEIGHT), float(mean[-1] / np.sqrt(WEIGHT))
        upper = np.triu_indices(k)
        information = np.zeros((k, k))
        information[upper] = block[k:] * self._information / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
        return block[:k] * bound, information + np.triu(information, 1).T, min(max(share, 0.0), 1.0)


def private_posterior(
    method: GaussNewton, tables: list[Floats], epsilon: float, delta: float, rng: np.random.Generator
) -> dict[str, Any]:
    """``Released.as_json`` at this epsilon and delta (PLD, add or remove one patient), with what it cost.

    The noise is one Gaussian in the sum over hospitals.

    Args:
        method: What is fitted.
        tables: Of each hospital (n_h, d), one record a patient.
        epsilon: The most that all rounds together may cost.
        delta: Of the guarantee.
        rng: Draws the noise.

    Raises:
        ConfigError: where the noise would hide everything, or no noise reaches the epsilon.
        DataError: where the noise did hide a direction.
    """

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(gaussian_event(noise), method.rounds)

    noise = calibrate_noise_multiplier(epsilon, delta, event)
    released = fit(method, tables, noise, rng).as_json(method.likelihood.names)
    cost = {
        "epsilon": spent(event(noise), delta), "delta": delta, "unit": "patient", "relation": "add-remove", "accountant": "pld",
        "noise_multiplier": noise, "rounds": method.rounds,
    }  # fmt: skip
    return {**released, "privacy": cost}


def fit(
    method: GaussNewton, tables: list[Floats], noise_multiplier: float, rng: np.random.Generator, shared: bool = True
) -> Released:
    """The result of all rounds over hospitals' tables. Not private at noise 0.

    Neighbouring relation: add or remove one patient, whose hospital is fixed.

    Args:
        method: What is fitted.
        tables: Of each hospital (n_h, d), one record a patient.
        noise_multiplier: Of the noise in a round's sum of vectors of length 1 at most.
        rng: Draws the noise.
        shared: One Gaussian in the sum over hospitals, as with secure aggregation; otherwise one at each of them.

    Raises:
        ConfigError: where the noise would hide everything.
        DataError: where it did hide a direction.
    """
    patients = sum(len(table) for table in tables)
    copies = 1 if shared else len(tables)
    noise = noise_multiplier * np.sqrt(copies) / patients
    method.check_noise(noise)
    state = method.begin(patients)
    for round in range(1, method.rounds + 1):
        question = method.question(state)

        def contributions(rows: Floats, patient: Ints, patients: int, question: Arrays = question) -> Floats:
            return method.contributions(question, rows)

        total = sum(
            (clipped_total(contributions, method.width, table, np.arange(len(table)), len(table)) for table in tables),
            np.zeros(method.width),
        )
        drawn = sum((rng.standard_normal(method.width) for _ in range(copies)), np.zeros(method.width))
        state = method.absorb(round, state, (total + noise_multiplier * drawn) / patients, noise)
    return method.posterior(state)
