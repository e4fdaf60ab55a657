"""Output perturbation, objective perturbation and the exponential mechanism of a convex model: what one patient can change,
the noise, and what a release spends.

The model is a linear one under logistic loss. It minimises ``sum of log(1 + exp(-w . v)) + strength / 2 |w|^2`` over w.
Every patient gives one row v (their features times the sign of their label) of L2 norm at most ``norm``. That norm then
bounds a patient's gradient, and ``norm^2 / 4`` the trace of a patient's Hessian, which has rank one. The ``strength`` is public:
it may depend on a public or paid number of patients, never on the true one. Neighbours differ by one patient added or
removed. Proofs: docs/privacy/convex.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent

from polyclinic.privacy.events import approximate_event, gaussian_event, pure_event
from polyclinic.privacy.streams import Stream
from polyclinic.types import Ints, Reals

Kind = Literal["gaussian", "gamma"]

#: Gradients of at most this times the norm count as zero: far above float64's rounding, far below any noise.
TOLERANCE = 1e-8
#: The noise on an approximate minimiser, relative to what the remaining gradient can move it.
_SLACK_NOISE = 5_000.0
#: What the Hessian's determinant may add to objective perturbation's epsilon, as a share of what the noise spends.
_DETERMINANT_SHARE, _LEAST_DETERMINANT = 0.1, 1e-4
_LARGEST_EPSILON = 300.0
_WEAKEST = 1e-6
#: The most proposals per draw that the exponential mechanism may need where the public number of patients is the true one.
_MOST_PROPOSALS = 3e4


@dataclass(frozen=True)
class BoundedRows:
    """``rows``: (patients, p), one row for each patient; ``norm``: the most that a row's L2 norm can be.

    Examples:
        >>> bounded = BoundedRows(rows=np.array([[0.6, 0.8], [0.0, 0.5]]), norm=1.0)
        >>> round(minimiser_sensitivity(bounded, strength=10.0), 4)
        0.1
    """

    rows: Reals
    norm: float


def bounded_rows(x: Reals, sign: Reals, patient: Ints, patients: int, norm: float) -> BoundedRows:
    """One row v for each patient: the mean of the patient's rows of ``x``, each clipped to ``norm`` and given its sign.

    Args:
        x: (rows, p) float64; a row with an entry that is not finite counts as zero.
        sign: (rows,) 1 or -1.
        patient: (rows,) index below ``patients``.
        patients: Number of patients.
        norm: The most that a row's L2 norm can be, positive and finite.

    Raises:
        ValueError: if ``norm`` is not positive and finite.

    Examples:
        >>> x, sign = np.array([[3.0, 4.0], [0.0, 0.5]]), np.array([1.0, -1.0])
        >>> bounded_rows(x, sign, patient=np.array([0, 1]), patients=2, norm=1.0).rows.round(3).tolist()
        [[0.6, 0.8], [0.0, -0.5]]
    """
    if not (math.isfinite(norm) and norm > 0):
        raise ValueError(f"norm must be positive and finite, got {norm}.")
    finite = np.where(np.isfinite(x).all(axis=1, keepdims=True), x, 0.0)
    length = np.linalg.norm(finite, axis=1) * (1 + 1e-12)
    scale = sign * norm / np.maximum(length, norm)
    rows = np.zeros((patients, x.shape[1]))
    np.add.at(rows, patient, finite * (scale / np.bincount(patient, minlength=patients)[patient])[:, None])
    return BoundedRows(rows, float(norm))


def public_strength(bounded: BoundedRows, regularisation: float, patients: float) -> float:
    """The strength for a ``regularisation`` of the mean loss and a public number of patients.

    Never so weak that finding the minimiser to within the tolerance could depend on the records.

    Args:
        bounded: The patients' rows, of which only the norm is read.
        regularisation: Strength of the mean loss over patients.
        patients: A public number, never the true one.

    Examples:
        >>> public_strength(BoundedRows(np.zeros((1, 2)), norm=1.0), regularisation=0.01, patients=500)
        5.0
    """
    return max(regularisation * patients, _WEAKEST * bounded.norm**2)


def minimiser_sensitivity(bounded: BoundedRows, strength: float) -> float:
    """The most that one patient moves, in L2, a minimiser whose gradient is at most ``TOLERANCE`` times the norm.

    The exact minimiser moves by at most norm / strength, and each approximate one lies within TOLERANCE times that of
    its own. Chaudhuri, Monteleoni and Sarwate 2011, for a patient added or removed, and a public divisor.

    Examples:
        >>> bounded = BoundedRows(np.zeros((1, 2)), norm=1.0)
        >>> [round(minimiser_sensitivity(bounded, strength), 4) for strength in (1.0, 5.0)]
        [1.0, 0.2]
    """
    return bounded.norm * (1 + 2 * TOLERANCE) / strength


def slack_noise(bounded: BoundedRows, strength: float) -> float:
    """The scale of noise that hides how far an approximate minimiser is from the exact one.

    Iyengar et al. 2019, approximate minima perturbation.

    Examples:
        >>> round(slack_noise(BoundedRows(np.zeros((1, 2)), norm=1.0), strength=5.0), 7)
        2e-05
    """
    return _SLACK_NOISE * bounded.norm * 2 * TOLERANCE / strength


def unit_noise(size: int, noise: Kind, stream: Stream) -> Reals:
    """(size,) noise of scale 1.

    Args:
        size: Number of values.
        noise: "gaussian" is standard normal. "gamma" has a density proportional to exp(-|b|), a uniform direction of Gamma
            length.
        stream: Draws the noise.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> unit_noise(2, "gaussian", keyed_stream(0, "noise")).shape
        (2,)
        >>> lengths = [np.linalg.norm(unit_noise(2, "gamma", keyed_stream(0, "noise", draw))) for draw in range(1000)]
        >>> round(float(np.mean(lengths)), 1)  # Gamma of shape 2
        2.0
    """
    direction = stream.normal(size).astype(np.float64)
    if noise == "gaussian":
        return direction
    length = -np.log1p(-stream.uniform(size)).sum()
    return np.asarray(direction * (length / np.linalg.norm(direction)))


def output_event(noise_multiplier: float, noise: Kind) -> DpEvent:
    """A minimiser with noise of ``noise_multiplier`` times its sensitivity: a Gaussian, or pure epsilon 1 / noise_multiplier.

    Examples:
        >>> output_event(4.0, "gaussian")
        GaussianDpEvent(noise_multiplier=4.0)
        >>> output_event(4.0, "gamma")
        ApproximateDpEvent(epsilon=0.25, delta=0.0)
    """
    return gaussian_event(noise_multiplier) if noise == "gaussian" else _pure(1 / noise_multiplier)


def inverse_temperature(bounded: BoundedRows, strength: float, noise_multiplier: float) -> float:
    """The number k for which a draw of density proportional to exp(-k J) costs what ``exponential_event`` says.

    J is the regularised sum of losses. k J is k * strength strongly convex, and one patient changes it by a function of
    Lipschitz constant k * norm. So the draw is a Gaussian mechanism of noise multiplier sqrt(k * strength) / (k * norm).
    Gopi, Lee and Liu 2022, Theorem 1.

    Args:
        bounded: The patients' rows, of which only the norm is read.
        strength: Of the regularisation, public.
        noise_multiplier: Of the Gaussian mechanism.

    Examples:
        >>> inverse_temperature(BoundedRows(np.zeros((1, 2)), norm=2.0), strength=100.0, noise_multiplier=5.0)
        1.0
    """
    return strength / (noise_multiplier * bounded.norm) ** 2


def exponential_event(noise_multiplier: float) -> DpEvent:
    """A draw of the exponential mechanism at its ``inverse_temperature``: a Gaussian mechanism's loss at most.

    Examples:
        >>> exponential_event(4.0)
        GaussianDpEvent(noise_multiplier=4.0)
    """
    return gaussian_event(noise_multiplier)


def least_decay(norm: float) -> float:
    """The least ``regularisation`` of ``public_strength`` with which drawing from the exponential mechanism ends soon.

    The number of proposals is at most exp(norm^2 / (8 regularisation)) on average, whatever the records are.

    Examples:
        >>> round(least_decay(norm=1.0), 4)
        0.0121
    """
    return norm**2 / (8 * math.log(_MOST_PROPOSALS))


def objective_event(noise_multiplier: float, noise: Kind, delta: float) -> DpEvent:
    """The event of the minimiser of an objective with a random linear term, and slack noise.

    Valid where the strength is at least ``least_strength``. docs/privacy/convex.md has the proof.

    Args:
        noise_multiplier: Scale of the linear term over the norm.
        noise: "gaussian" or "gamma".
        delta: Of this release's own guarantee; gamma noise needs none.

    Examples:
        >>> objective_event(4.0, "gamma", delta=0.0)
        ApproximateDpEvent(epsilon=0.2752, delta=0.0)
    """
    eps = _linear_epsilon(noise_multiplier, noise, delta) + determinant_epsilon(noise_multiplier, noise, delta)
    if noise == "gamma":
        return _pure(eps + 1 / _SLACK_NOISE)
    if eps > _LARGEST_EPSILON:
        return dpa.NonPrivateDpEvent()
    return dpa.ComposedDpEvent((approximate_event(eps, delta), gaussian_event(_SLACK_NOISE)))


def determinant_epsilon(noise_multiplier: float, noise: Kind, delta: float) -> float:
    """The most that a patient's effect on the Hessian's determinant may cost in objective perturbation.

    Args:
        noise_multiplier: Scale of the linear term over the norm.
        noise: "gaussian" or "gamma".
        delta: Of this release's own guarantee; gamma noise needs none.

    Examples:
        >>> determinant_epsilon(4.0, "gamma", delta=0.0)  # a tenth of the 1/4 that the noise spends
        0.025
    """
    return max(_DETERMINANT_SHARE * _linear_epsilon(noise_multiplier, noise, delta), _LEAST_DETERMINANT)


def least_strength(norm: float, eps: float) -> float:
    """The least strength at which one patient changes the Hessian's determinant by at most a factor of e^eps.

    Examples:
        >>> round(least_strength(norm=1.0, eps=0.025), 2)
        9.88
    """
    return norm**2 / 4 / math.expm1(min(eps, _LARGEST_EPSILON))


def _linear_epsilon(noise_multiplier: float, noise: Kind, delta: float) -> float:
    if noise == "gamma":
        return 1 / noise_multiplier
    # The library's search ends within 1e-12 of the root, on either side.
    return float(dpa.get_epsilon_gaussian(noise_multiplier, delta)) + 1e-9


def _pure(eps: float) -> DpEvent:
    return pure_event(eps) if eps <= _LARGEST_EPSILON else dpa.NonPrivateDpEvent()
