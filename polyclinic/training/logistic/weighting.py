"""Average effect of a treatment by inverse-probability weights: what rounds ask of a patient, and what follows from the sums.

The first rounds fit a logistic model of who was treated, the propensity. One round then sums each arm's weighted and unweighted
covariates, which show the balance, and how the weighted outcomes depend on the coefficients. The remaining rounds sum each
patient's influence on the two weighted means and its products. In them a multiple of the patient's score of the propensity model
takes away, to first order, what is wrong with the coefficients: that they are estimated, and noisy. So these sums alone give the
effect and its variance, whatever model they are at (a one-step estimator: Lunceford and Davidian 2004, section 3; van der Vaart
1998, section 5.7).
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
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import mean_of_rows
from polyclinic.training.logistic.newton import Newton, Table
from polyclinic.types import Arrays, Floats, Ints

#: The two arms of every pair of numbers, in this order.
TREATED, CONTROL = 0, 1
# Shares of the squared length of a patient's vector in the rounds of the effect: influences, their products, weights.
_SHARES = (0.5, 0.3, 0.2)
# A vector of the balance longer than this many usual rows is shortened; the usual variance of a number that is 0 or 1.
_ROWS, _OF_YES_OR_NO = 3.0, 0.2
# A covariate's variance is at least this share of the usual one.
_LEAST_VARIANCE = 0.02
# The patients of an arm must be this many standard deviations of their noise, and the variance of the effect.
_SEEN, _CLEAR = 4.0, 1.5
# Without privacy the last step of the coefficients is at most this long, in logits.
_SETTLED = 0.01
# The largest logit by which a weight is computed.
_FARTHEST = 50.0


@dataclass(frozen=True, eq=False)
class Weighting:
    """``synthesis.sums.SumsMethod`` of an average treatment effect.

    Neighbouring relation: add or remove one patient, who moves a private sum by at most 1. A hospital computes the weights itself
    and bounds them by ``most``, whatever coefficients it is sent.

    Args:
        layout: Of the rows (n, D), whose last number is the outcome.
        places: (q,) where in a row the covariates are.
        arms: (D + 1, 2), by which a row behind a 1 gives whether the patient is treated, and whether a control.
        rounds: 2 or more where the propensity is known, 4 or more otherwise.
        known: The probability of treatment by design; None estimates it from the covariates.
        most: The largest weight; a larger one counts as this.
        private: Whether sums are noisy; vectors are as they are otherwise, and the propensity is fitted by exact Newton steps.
    """

    layout: Layout
    places: Ints
    arms: Floats
    rounds: int
    known: float | None = None
    most: float = 10.0
    private: bool = True
    name: ClassVar[str] = "effect"

    @property
    def fitting(self) -> int:
        """How many rounds fit the propensity."""
        if self.known is not None:
            return 0
        return self.rounds // 2 if self.private else self.rounds - 2

    @property
    def names(self) -> list[str]:
        """(q,) of the covariates."""
        return [self.layout.names[place] for place in self.places]

    def question(self, round: int, state: Arrays) -> Arrays:
        """The coefficients of the propensity; in the last rounds also what corrects for them, and the arms' means so far."""
        if round <= self.fitting and self.private:
            return self._newton.question(round, state)
        asked = {"estimate": state.get("estimate", self._start)}
        return asked if round <= self.fitting + 1 else asked | {name: state[name] for name in ("corrections", "means")}

    def size(self, round: int, question: Arrays) -> int:
        """How many numbers the sum of ``round`` has."""
        if round > self.fitting:
            return 2 * sum(self._parts.values()) + 1 if round == self.fitting + 1 else 7
        if self.private:
            return self._newton.size(round, {} if round == 1 else {"basis": self._start})
        return self._width + len(self._pairs[0])

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) vectors, of several rows of a patient their mean. Raises ConfigError for arrays of other shapes."""
        self._check(round, question)
        x = np.concatenate([np.ones((len(z), 1)), z[:, self.places]], axis=1)
        arms = np.concatenate([np.ones((len(z), 1)), z], axis=1) @ self.arms
        taking = arms.sum(axis=1)
        if round <= self.fitting and self.private:
            part = taking > 0.5
            rows = np.concatenate([x[part, 1:], 1 - arms[part, :1], arms[part, :1]], axis=1)
            return self._newton.contributions(round, question, rows, patient[part], patients)
        logits = x @ question["estimate"]
        chances = taking * expit(logits)
        information = chances * (1 - expit(logits))
        score = x * (arms[:, :1] - chances[:, None])
        if round <= self.fitting:
            products = information[:, None] * x[:, self._pairs[0]] * x[:, self._pairs[1]]
            return mean_of_rows(np.concatenate([score, products], axis=1), patient, patients)
        signs = np.array([-1.0, 1.0])
        whole = 1 + np.exp(np.minimum(signs * logits[:, None], _FARTHEST))
        weights = arms * np.minimum(whole, self.most)
        low, high = (bound[-1] for bound in self.layout.bounds)
        y = (z[:, -1] - low) / (high - low)
        if round == self.fitting + 1:
            slopes = np.where(whole < self.most, weights - arms, 0.0)
            blocks = []
            for arm, weight, slope, by in zip(arms.T, weights.T, slopes.T, (whole > self.most).T, strict=True):
                columns = [x * arm[:, None], x[:, 1:] ** 2 * arm[:, None], x * weight[:, None], x * slope[:, None]]
                numbers = np.stack([arm * y, weight * y, arm * by], axis=1)
                blocks += [*columns, x * (slope * y)[:, None], numbers]
            vectors = np.concatenate([*blocks, information[:, None]], axis=1)
            return mean_of_rows(vectors / self._radius, patient, patients)
        influences = weights * (y[:, None] - question["means"]) + score @ question["corrections"]
        return self._effect(mean_of_rows(np.concatenate([influences, weights], axis=1), patient, patients))

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state. mean: (size,) noisy sum by the number of patients; noise: standard deviation in each entry."""
        if round <= self.fitting:
            return self._fitted(round, state, mean, noise)
        if round == self.fitting + 1:
            return self._balanced(state, mean * self._radius, noise * self._radius)
        sums, noises = (state.get(name, np.zeros((0, *shape))) for name, shape in (("sums", (7,)), ("noises", ())))
        return {**state, "sums": np.concatenate([sums, mean[None]]), "noises": np.concatenate([noises, [noise]])}

    @cached_property
    def _width(self) -> int:
        return len(self.places) + 1

    @cached_property
    def _start(self) -> Floats:
        start = np.zeros(self._width)
        start[0] = 0.0 if self.known is None else logit(self.known)
        return start

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        return np.triu_indices(self._width)

    @cached_property
    def _numeric(self) -> np.ndarray:
        return self.layout.numeric[self.places]

    @cached_property
    def _usual(self) -> Floats:
        """(q,) the usual variances of the covariates."""
        return np.where(self._numeric, 1.0, _OF_YES_OR_NO)

    @cached_property
    def _radius(self) -> float:
        """By which a vector of the balance is divided."""
        return _ROWS * math.sqrt(1 + float(self._usual.sum())) if self.private else 1.0

    @cached_property
    def _parts(self) -> dict[str, int]:
        """The numbers of one arm in the sum of the balance, by name: how many."""
        q = len(self.places)
        return {"x": q + 1, "squares": q, "weighted": q + 1, "slopes": q + 1, "slopes y": q + 1, "numbers": 3}

    @cached_property
    def _newton(self) -> Newton:
        """Private Newton steps towards who was treated, on rows of the covariates and the two arms."""
        columns = [
            Column(name=str(place), kind="continuous", bounds=(-1.0, 1.0))
            if numeric
            else Column(name=str(place), kind="binary")
            for place, numeric in enumerate(self._numeric)
        ]
        columns.append(Column(name="treated", kind="binary", role="label"))
        q = len(self.places)
        schema = Schema(name="propensity", unit="record", columns=tuple(columns))
        return Newton(Table(schema, np.zeros(q), np.ones(q), np.zeros(q, dtype=bool)), self.fitting, recalibrates=False)

    def _check(self, round: int, question: Arrays) -> None:
        if round <= self.fitting and self.private:
            return  # it checks its own
        shapes: dict[str, tuple[int, ...]] = {"estimate": (self._width,)}
        if round > self.fitting + 1:
            shapes |= {"corrections": (self._width, 2), "means": (2,)}
        for name, shape in shapes.items():
            value = question.get(name)
            if value is None or value.shape != shape or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {shape}.")

    def _effect(self, values: Floats) -> Floats:
        """(n, 7) influences on both means, their products, and weights, of (n, 4) influences and weights."""
        influences, weights = values[:, :2], values[:, 2:]
        if self.private:
            lengths = np.linalg.norm(influences, axis=1, keepdims=True)
            influences = influences * np.minimum(1.0, self._longest / np.maximum(lengths, 1e-300))
        first, second = influences.T
        products = np.stack([first**2, second**2, math.sqrt(2.0) * first * second], axis=1)
        return np.concatenate([influences, products, weights], axis=1) / self._scales

    @cached_property
    def _longest(self) -> float:
        """The longest influences of a private patient: of the largest weight, two spreads of a number from the mean."""
        low, high = (bound[-1] for bound in self.layout.bounds)
        return self.most * min(1.0, 2.0 / float(high - low)) if self.layout.label_scale else self.most

    @cached_property
    def _scales(self) -> Floats:
        """(7,) by which the entries of a vector of the effect are divided, so that its length is at most 1."""
        if not self.private:
            return np.ones(7)
        sizes = (self._longest, self._longest**2, self.most)
        return np.concatenate(
            [np.full(n, size / math.sqrt(share)) for n, size, share in zip((2, 3, 2), sizes, _SHARES, strict=True)]
        )

    def _fitted(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if self.private:
            state = self._newton.absorb(round, state, mean, noise)
            return {**state, "estimate": math.sqrt(2.0) * state["weights"][:, 0]}  # of the logits' contrast
        information = np.zeros((self._width, self._width))
        information[self._pairs] = mean[self._width :]
        information += np.triu(information, 1).T
        step = np.linalg.pinv(information, hermitian=True) @ mean[: self._width]
        estimate = state.get("estimate", self._start) + step
        moved = math.sqrt(max(float(step @ information @ step), 0.0))
        return {**state, "estimate": estimate, "information": information, "moved": np.array([moved])}

    def balance(self, state: Arrays) -> dict[str, Floats]:
        """Sums over both arms by the number of all patients, by the names in ``_parts``: (2, how many)."""
        ends = np.cumsum(list(self._parts.values()))
        return dict(zip(self._parts, np.split(state["balance"][:-1].reshape(2, -1), ends[:-1], axis=1), strict=True))

    def _balanced(self, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The arms' weighted means so far, and by what a score is multiplied so that the coefficients' errors cancel."""
        state = {**state, "balance": mean, "noise": np.array([noise])}
        parts = self.balance(state)
        weighted = parts["numbers"][:, 1] / np.maximum(parts["weighted"][:, 0], 0.05)
        means = np.clip(weighted, 0.0, 1.0) if self.private else weighted
        slopes = (parts["slopes y"] - means[:, None] * parts["slopes"]).T * np.array([-1.0, 1.0])
        if self.known is not None:
            return {**state, "means": means, "corrections": np.zeros((self._width, 2))}
        if not self.private:
            return {
                **state,
                "means": means,
                "corrections": np.linalg.pinv(state["information"], hermitian=True) @ slopes,
            }
        basis, curvature = state["basis"], max(float(mean[-1]), 0.02)
        along = basis.T @ slopes
        # Towards none, as far as their length is the noise's (James and Stein).
        by_noise = noise**2 * (1 + means**2) * float((basis**2).sum())
        along = along * np.maximum(0.0, 1 - by_noise / np.maximum((along**2).sum(axis=0), 1e-300))
        return {**state, "means": means, "corrections": basis @ (along / state["seen"][:, None]) / curvature}

    def result(self, state: Arrays) -> Effect:
        """What the last state says. Raises DataError where the noise hides it, or the coefficients did not settle."""
        if "sums" not in state:
            raise DataError("no hospital answered in the rounds that the effect follows from.")
        if not self.private and not float(state.get("moved", np.zeros(1))[0]) < _SETTLED:
            raise DataError(
                "The coefficients of the propensity did not settle: more rounds may do, or fewer covariates where some of them "
                "tell the treatment nearly for certain."
            )
        patients, sums = float(state["patients"][0]), state["sums"].mean(axis=0) * self._scales
        noise = math.sqrt(float((state["noises"] ** 2).sum())) / len(state["noises"]) * self._scales
        weights, first = sums[5:], sums[:2]
        if (weights < _SEEN * noise[5:]).any() or (weights <= 0).any():
            raise DataError("An arm has no patients, or fewer than the noise lets be seen.")
        shift = first / weights
        by_noise = np.diag((noise[:2] ** 2 + (shift * noise[5:]) ** 2) / weights**2)
        squares = np.array([[sums[2], sums[4] / math.sqrt(2)], [sums[4] / math.sqrt(2), sums[3]]])
        squares -= np.outer(first, first) - np.diag(noise[:2] ** 2)
        sampling = squares / np.outer(weights, weights) / patients
        return Effect(state["means"] + shift, sampling, by_noise, noise[2] / weights.min() ** 2 / patients)

    def standardised(self, state: Arrays) -> tuple[Floats, Floats, Floats]:
        """(q,) standardised differences before and after weighting, and about the noise in each (Austin 2009).

        The difference of the arms' means in standard deviations of the unweighted arms (root of their mean variance).
        """
        parts = self.balance(state)
        counts = np.maximum(parts["x"][:, :1], 1e-3)
        plain = parts["x"][:, 1:] / counts
        weighted = parts["weighted"][:, 1:] / np.maximum(parts["weighted"][:, :1], 1e-3)
        variances = (parts["squares"] / counts - plain**2).mean(axis=0)
        deviations = np.sqrt(np.maximum(variances, _LEAST_VARIANCE * self._usual if self.private else 1e-12))
        noise = float(state["noise"][0]) * math.sqrt(float((1 / counts**2).sum())) / deviations
        return (plain[0] - plain[1]) / deviations, (weighted[0] - weighted[1]) / deviations, noise


@dataclass(frozen=True, eq=False)
class Effect:
    """Mean outcomes were all treated and were none, of an outcome from 0 to 1.

    means: (2,). sampling, noise: (2, 2) covariances of them, for who the patients are and for what privacy added. doubt: about
    the standard deviation of the noise in an entry of ``sampling``.
    """

    means: Floats
    sampling: Floats
    noise: Floats
    doubt: float

    def along(self, gradient: Floats) -> tuple[float, float, float]:
        """Standard error of what has this (2,) gradient in the means, the noise's share of its square, and the factor by which it
        gives an interval of 95 %.

        The factor is Student's where the variance itself is noisy, by Satterthwaite's degrees of freedom. Raises DataError where
        the noise hides the variance.
        """
        sampling, noise = (float(gradient @ part @ gradient) for part in (self.sampling, self.noise))
        if doubt := self.doubt * float(gradient @ gradient):
            away = max(sampling / doubt, -5.0)  # its mean, where it was seen with noise and is not below 0
            sampling = doubt * (away + math.exp(-away * away / 2) / math.sqrt(2 * math.pi) / ndtr(away))
        if sampling <= 0 or sampling + noise < _CLEAR * doubt:
            raise DataError(
                "The noise hides how much the outcome varies: a larger epsilon, more patients or a smaller most-weight may do."
            )
        freedom = 2 * (sampling + noise) ** 2 / doubt**2 if doubt else math.inf
        factor = ndtri(0.975) if math.isinf(freedom) else stdtrit(freedom, 0.975)
        return math.sqrt(sampling + noise), noise / (sampling + noise), float(factor)
