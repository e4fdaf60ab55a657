"""Average effect of a treatment by inverse-probability weights: what rounds ask of a patient, and what follows from the sums.

The first rounds fit a logistic model of who was treated, the propensity. The next one sums each arm's covariates,
weighted and not, and how the weighted outcomes depend on the coefficients. The others sum each patient's influence on
the two weighted means. In them a multiple of the score of the propensity takes away, to first order, the error of its
coefficients, which are estimated and noisy. So these sums alone give the effect and its variance (Lunceford and
Davidian 2004, section 3, at any coefficients).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri, stdtrit

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.logistic.moments import shorten_rows
from polyclinic.training.logistic.newton import Newton, Table
from polyclinic.training.synthesis import LEAST
from polyclinic.types import Arrays, Floats, Ints

# By a logit's rise the treated's weights fall and the controls' grow.
_SIGNS = np.array([-1.0, 1.0])
# Shares of a patient's squared length in the rounds of the effect: influences, their products, weights.
_SHARES = np.repeat([0.5, 0.3, 0.2], [2, 3, 2])
# The same in the round of the balance, of who is in which arm, and whose weight is clipped.
_COUNTED = 0.05
# A vector of the balance longer than this many usual rows is shortened; the usual variance of a number that is 0 or 1; a
# covariate has at least this share of it.
_ROWS, _OF_YES_OR_NO, _LEAST_VARIANCE = 3.0, 0.2, 0.02
# An arm's patients, and the variance of the effect, are at least this many standard deviations of their noise.
_SEEN, _CLEAR = 4.0, 1.5
# Without privacy the last step of the coefficients moves logits by less than this.
_SETTLED = 0.01


@dataclass(frozen=True, eq=False)
class Weighting:
    """``synthesis.sums.SumsMethod`` of an average treatment effect.

    Neighbouring relation: add or remove one patient, who moves a private sum by at most 1. Hospitals compute the weights
    themselves and bound them by ``most``, whatever coefficients they are sent.

    Args:
        layout: Of the rows (n, D), whose last number is the outcome.
        places: (q,) where in a row the covariates are.
        arms: (D + 1, 2), by which a row behind a 1 gives whether the patient is treated, and whether a control.
        rounds: 2 or more where the propensity is known, 4 or more otherwise.
        by_design: The probability of treatment by design; None estimates it from the covariates.
        most: The largest weight; a larger one counts as this.
        private: Whether sums are noisy; otherwise exact Newton steps fit the propensity.
    """

    layout: Layout
    places: Ints
    arms: Floats
    rounds: int
    by_design: float | None = None
    most: float = 10.0
    private: bool = True
    name: ClassVar[str] = "effect"

    @property
    def fitting(self) -> int:
        """How many rounds fit the propensity."""
        return 0 if self.by_design is not None else self.rounds // 2 if self.private else self.rounds - 2

    def question(self, round: int, state: Arrays) -> Arrays:
        """The coefficients of the propensity; in the last rounds also what corrects for them, and the means so far."""
        if round <= self.fitting and self.private:
            return self._newton.question(round, state)
        more = ("corrections", "means") if round > self.fitting + 1 else ()
        begun = {"corrections": np.zeros((len(self._start), 2)), "means": np.zeros(2)}  # where nobody answered before
        return {"estimate": state.get("estimate", self._start), **{name: state.get(name, begun[name]) for name in more}}

    def size(self, round: int, question: Arrays) -> int:
        """How many numbers the sum of ``round`` has."""
        k = len(self._start)
        if round > self.fitting:
            return 2 * (5 * k + 1) + 5 if round == self.fitting + 1 else 7
        return (
            self._newton.size(round, {"basis": self._start} if round > 1 else {})
            if self.private
            else k + k * (k + 1) // 2
        )

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) vectors, of several rows of a patient their mean.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question's arrays are of other shapes.
        """
        ones = np.ones((len(z), 1))
        x, arms = np.hstack([ones, z[:, self.places]]), np.hstack([ones, z]) @ self.arms
        if round <= self.fitting and self.private:
            part = arms.sum(axis=1) > 0.5
            rows = np.hstack([x[part, 1:], 1 - arms[part, :1], arms[part, :1]])
            return self._newton.contributions(round, question, rows, patient[part], patients)
        self._check(round, question)
        logits = (x @ question["estimate"])[:, None]
        chances = arms.sum(axis=1, keepdims=True) * expit(logits)
        score, information = x * (arms[:, :1] - chances), chances * expit(-logits)
        if round <= self.fitting:
            first, second = np.triu_indices(x.shape[1])
            return mean_of_rows(np.hstack([score, information * x[:, first] * x[:, second]]), patient, patients)
        inverse = 1 + np.exp(np.minimum(_SIGNS * logits, 50.0))
        weights = arms * np.minimum(inverse, self.most)
        low, high = (bound[-1] for bound in self.layout.bounds)
        y = ((z[:, -1] - low) / (high - low))[:, None]
        if round == self.fitting + 1:
            slopes = np.where(inverse < self.most, weights - arms, 0.0)
            factors = np.stack([arms, weights, slopes, slopes * y], axis=2)
            products = (factors[:, :, :, None] * x[:, None, None, :]).reshape(len(z), 2, -1)
            numbers = np.stack([arms * y, weights * y], axis=2)
            each = np.concatenate([products, arms[:, :, None] * x[:, None, 1:] ** 2, numbers], axis=2)
            counted = np.hstack([arms, arms * (inverse > self.most)])
            parts = np.hstack([each.reshape(len(z), -1), information, counted]) / self._sizes(round)
            means = mean_of_rows(parts, patient, patients)
            if self.private:
                means[:, :-4] = shorten_rows(means[:, :-4], math.sqrt(1 - _COUNTED))
            return means
        influences = weights * (y - question["means"]) + score @ question["corrections"]
        means = mean_of_rows(np.hstack([influences, weights]), patient, patients)
        influences, weights = means[:, :2], means[:, 2:]
        if self.private:
            influences = shorten_rows(influences, self._longest)
        crossed = math.sqrt(2.0) * influences[:, :1] * influences[:, 1:]
        return np.asarray(np.hstack([influences, influences**2, crossed, weights]) / self._scales)

    def refusal(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> str:
        """Why a hospital does not answer without privacy; empty where it does.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        arms = self.arms[0] + z @ self.arms[1:] > 0.5
        if any(0 < len(np.unique(patient[arm])) < LEAST for arm in arms.T):
            return f"One of the arms has fewer than {LEAST} patients here, of whom exact sums would tell."
        return ""

    def check_noise(self, noise: float) -> None:
        """Raises ConfigError for so much noise in each entry of a private mean that an arm could not be seen in the end."""
        # Weighted, an arm is all patients.
        above = (
            _SEEN * noise * float(self._scales[-1]) / math.sqrt(self.rounds - self.fitting - 1) if self.private else 0.0
        )
        if above >= 1:
            raise ConfigError(
                f"The budget is too small: noise would hide the arms; {above:.3g} times the patients, a larger epsilon or a "
                "smaller most-weight may do."
            )

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        if round > self.fitting + 1:
            sums, noises = state.get("sums", np.zeros((0, 7))), state.get("noises", np.zeros(0))
            return {**state, "sums": np.vstack([sums, mean]), "noises": np.append(noises, noise)}
        if round > self.fitting:
            sizes = self._sizes(round)
            return self._correct({**state, "balance": mean * sizes, "noise": noise * sizes[[0, -1]]})
        if self.private:
            state = self._newton.absorb(round, state, mean, noise)
            return {**state, "estimate": math.sqrt(2.0) * state["weights"][:, 0]}  # of the logits' contrast
        k = len(self._start)
        upper = np.zeros((k, k))
        upper[np.triu_indices(k)] = mean[k:]
        information = upper + np.triu(upper, 1).T
        step = np.linalg.pinv(information, hermitian=True) @ mean[:k]
        moved = np.sqrt(np.maximum(step @ information @ step, 0.0))[None]
        return {
            **state,
            "estimate": state.get("estimate", self._start) + step,
            "information": information,
            "moved": moved,
        }

    def _correct(self, state: Arrays) -> Arrays:
        """With the weighted means so far, and by what a score is multiplied so that the coefficients' errors cancel."""
        (_, weighted, slopes, of_y), _, numbers = self._balance(state)
        means = numbers[:, 1] / (np.maximum(weighted[:, 0], 0.05) if self.private else weighted[:, 0])
        means = np.clip(means, 0.0, 1.0)
        changes = ((of_y - means[:, None] * slopes) * _SIGNS[:, None]).T
        if self.by_design is not None:
            corrections = np.zeros_like(changes)
        elif self.private:
            basis = state["basis"]
            along = basis.T @ changes
            # Towards none, as far as their length is the noise's (James and Stein).
            by_noise = float(state["noise"][0]) ** 2 * (1 + means**2) * (basis**2).sum()
            along = along * np.maximum(0.0, 1 - by_noise / np.maximum((along**2).sum(axis=0), 1e-300))
            corrections = basis @ (along / state["seen"][:, None]) / max(float(state["balance"][-5]), 0.02)
        else:
            corrections = np.linalg.pinv(state["information"], hermitian=True) @ changes
        return {**state, "means": means, "corrections": corrections}

    def result(self, state: Arrays) -> Effect:
        """What the last state says. Raises DataError where the noise hides it, or the coefficients did not settle."""
        if not {"balance", "sums"} <= state.keys():
            raise DataError("no hospital answered in the rounds that the effect follows from.")
        if not state.get("moved", np.zeros(1))[0] < _SETTLED:
            raise DataError(
                "The coefficients of the propensity did not settle: more rounds may do, or fewer covariates where some of them "
                "tell the treatment nearly for certain."
            )
        patients, sums = float(state["patients"][0]), state["sums"].mean(axis=0) * self._scales
        noise = math.sqrt(float((state["noises"] ** 2).sum())) / len(state["noises"]) * self._scales
        influences, weights = sums[:2], sums[5:]
        if (weights <= _SEEN * noise[5:]).any():
            raise DataError("An arm has no patients, or fewer than the noise lets be seen.")
        shift, crossed = influences / weights, sums[4] / math.sqrt(2.0)
        squares = np.array([[sums[2], crossed], [crossed, sums[3]]]) + np.diag(noise[:2] ** 2)
        sampling = (squares - np.outer(influences, influences)) / np.outer(weights, weights) / patients
        by_noise = np.diag((noise[:2] ** 2 + (shift * noise[5:]) ** 2) / weights**2)
        return Effect(state["means"] + shift, sampling, by_noise, float(noise[2] / weights.min() ** 2 / patients))

    def standardised_differences(self, state: Arrays) -> tuple[Floats, Floats, Floats]:
        """(q,) differences of the arms before and after weighting, and about the noise in each (Austin 2009).

        In standard deviations: the root of the unweighted arms' mean variance.
        """
        (plain, weighted, *_), squares, _ = self._balance(state)
        counts = np.maximum(plain[:, :1], 1e-3)
        before, after = plain[:, 1:] / counts, weighted[:, 1:] / np.maximum(weighted[:, :1], 1e-3)
        least = _LEAST_VARIANCE * self._usual if self.private else 1e-12
        deviations = np.sqrt(np.maximum((squares / counts - before**2).mean(axis=0), least))
        noise = float(state["noise"][0]) * math.sqrt(float((1 / counts**2).sum())) / deviations
        return (before[0] - before[1]) / deviations, (after[0] - after[1]) / deviations, noise

    def overlap(self, state: Arrays) -> tuple[Floats, Floats, Floats]:
        """(2,) patients of the arms, shares of them whose weight was clipped, and the noise in these shares."""
        counts, clipped = state["balance"][-4:].reshape(2, 2)
        counts = np.maximum(counts, 1e-3)
        return counts * state["patients"], clipped / counts, state["noise"][1] / counts

    def _balance(self, state: Arrays) -> tuple[Floats, Floats, Floats]:
        """(4, 2, q + 1) sums of rows, weighted ones, slopes and those of the outcome, (2, q) of squares, (2, 2) of outcomes."""
        k, each = len(self._start), state["balance"][:-5].reshape(2, -1)
        return each[:, : 4 * k].reshape(2, 4, k).swapaxes(0, 1), each[:, 4 * k : -2], each[:, -2:]

    def _check(self, round: int, question: Arrays) -> None:
        k = len(self._start)
        shapes: dict[str, tuple[int, ...]] = {"estimate": (k,)}
        shapes |= {"corrections": (k, 2), "means": (2,)} if round > self.fitting + 1 else {}
        for name, shape in shapes.items():
            value = question.get(name)
            if value is None or value.shape != shape or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {shape}.")

    @cached_property
    def _start(self) -> Floats:
        start = np.zeros(len(self.places) + 1)
        start[0] = 0.0 if self.by_design is None else logit(self.by_design)
        return start

    @cached_property
    def _usual(self) -> Floats:
        """(q,) the usual variances of the covariates."""
        return np.where(self.layout.numeric[self.places], 1.0, _OF_YES_OR_NO)

    def _sizes(self, round: int) -> Floats:
        """By which the entries of a vector of the balance are divided."""
        sizes = np.ones(self.size(round, {}))
        if self.private:
            sizes *= _ROWS * math.sqrt(1 + float(self._usual.sum())) / math.sqrt(1 - _COUNTED)
            sizes[-4:] = math.sqrt(2 / _COUNTED)
        return sizes

    @cached_property
    def _longest(self) -> float:
        """The longest influences of a private patient: of the largest weight, two spreads of a number from the mean."""
        low, high = (bound[-1] for bound in self.layout.bounds)
        return self.most * min(1.0, 2.0 / float(high - low)) if self.layout.label_scale else self.most

    @cached_property
    def _scales(self) -> Floats:
        """(7,) by which a vector of the effect is divided, so that a private one has length 1 at the most."""
        sizes = np.repeat([self._longest, self._longest**2, self.most], [2, 3, 2])
        return sizes / np.sqrt(_SHARES) if self.private else np.ones(7)

    @cached_property
    def _newton(self) -> Newton:
        """Private Newton steps towards who was treated, on rows of the covariates and both arms."""
        numeric = self.layout.numeric[self.places]
        columns = [
            Column(name=f"{place}", kind="continuous", bounds=(-1.0, 1.0))
            if each
            else Column(name=f"{place}", kind="binary")
            for place, each in enumerate(numeric)
        ]
        label, q = Column(name="treated", kind="binary", role="label"), len(numeric)
        schema = Schema(name="propensity", unit="record", columns=(*columns, label))
        return Newton(Table(schema, np.zeros(q), np.ones(q), np.zeros(q, dtype=bool)), self.fitting, recalibrates=False)


@dataclass(frozen=True, eq=False)
class Effect:
    """Mean outcomes, of an outcome from 0 to 1, were all treated and were none.

    means: (2,).
    sampling, noise: (2, 2) covariances of them, for who the patients are and for what privacy added.
    doubt: about the standard deviation of the noise in an entry of ``sampling``.
    """

    means: Floats
    sampling: Floats
    noise: Floats
    doubt: float

    def along(self, gradient: Floats) -> tuple[float, float, float]:
        """Standard error of what has this (2,) gradient in the means, the noise's share of its square, and a factor.

        By the factor it gives a 95 % interval: Student's where the variance is noisy, by Satterthwaite's degrees of
        freedom.

        Raises:
            DataError: The noise hides the variance.
        """
        sampling, noise = (float(gradient @ part @ gradient) for part in (self.sampling, self.noise))
        if doubt := self.doubt * float(gradient @ gradient):
            away = max(sampling / doubt, -5.0)  # its mean, where it was seen with noise and is not below 0
            sampling = doubt * (away + math.exp(-away * away / 2) / math.sqrt(2 * math.pi) / ndtr(away))
        total = sampling + noise
        if sampling <= 0 or total < _CLEAR * doubt:
            raise DataError(
                "The noise hides how much the outcome varies: a larger epsilon, more patients or a smaller most-weight may do."
            )
        factor = stdtrit(2 * total**2 / doubt**2, 0.975) if doubt else ndtri(0.975)
        return math.sqrt(total), noise / total, float(factor)
