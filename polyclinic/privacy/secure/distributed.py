"""Sums over hospitals on the integers: how updates become integers, the noise that each adds, and what the sum costs.

Every hospital clips its update, rounds it onto a public grid, and adds its share of discrete Gaussian noise. So the sum
of all that arrive is private although none of them is so alone. Where the unit is the hospital, neighbours differ in one
hospital's update, which is replaced by zeros; where it is the patient, in one patient of one hospital. Who takes part is
public. Kairouz, Liu and Steinke 2021 (arXiv 2102.06387).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent

from polyclinic.privacy.events import zcdp_event
from polyclinic.privacy.sampling import noise
from polyclinic.privacy.secure.secure_sum import Words
from polyclinic.privacy.streams import Stream
from polyclinic.types import Floats, Ints, Reals

# A rounding passes with probability above 0.39 (ibid., conditional randomised rounding); the last resort is towards zero.
_TRIALS = 100
# Noise beyond so many standard deviations would wrap; nobody will see it.
_TAIL = 40.0


@dataclass(frozen=True)
class SumTerms:
    """What all parties to one secure sum agree on; all of it is public.

    size: numbers in an update.
    clip_norm: their largest L2 norm.
    bits: the grid's step is ``clip_norm / 2**bits``.
    parties: most hospitals in the sum.
    threshold: fewest hospitals in the sum.
    noise_multiplier: standard deviation of the sum's noise over its sensitivity with ``threshold`` hospitals in it, more with
    more of them; 0 adds none.
    units: 1 where a hospital's whole update is protected. More where each of its patients is. Its vector is then itself a sum
    of patients' vectors, of at most ``clip_norm`` each, and counts up to a length of so many clip norms.
    onlookers: hospitals whose own noise is not counted on, because they know it and see the sum.

    Examples:
        >>> terms = SumTerms(size=10, clip_norm=1.0, bits=16, parties=5, threshold=4, noise_multiplier=1.0)
        >>> terms.step, terms.word, round(terms.event(arrived=4).rho, 3), round(terms.event(arrived=5).rho, 3)
        (1.52587890625e-05, dtype('uint32'), 0.5, 0.4)
    """

    size: int
    clip_norm: float
    bits: int
    parties: int
    threshold: int
    noise_multiplier: float = 0.0
    units: int = 1
    onlookers: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.threshold <= self.parties:
            raise ValueError(f"threshold must lie in [2, {self.parties}], got {self.threshold}.")
        if not 0 <= self.onlookers < self.threshold:
            raise ValueError(f"onlookers must lie in [0, {self.threshold - 1}], got {self.onlookers}.")
        if self.noise_multiplier and self.scale < 0.5:
            raise ValueError(
                f"The grid is too coarse for noise: a hospital's share has a standard deviation of {self.scale:.3g} steps, "
                "allowed is 0.5 and more."
            )
        if self.units > 1 and self.noise_multiplier and self._rho(self.threshold) > patient_rho(self.noise_multiplier):
            raise ValueError("The grid is too coarse for shared noise; more bits make it finer.")

    def purpose(self, run: str, round: int, question: bytes) -> str:
        """The text that pair masks of a round are derived for. They cancel only between hospitals that were asked the same.

        A server that computes the pair masks of drop-outs needs no cancelling. What it takes for that is what hospitals sign for
        each other (``polyclinic.client.agreement``).

        Args:
            run: The name of the run.
            round: The number of the round.
            question: Digest of what hospitals were asked to train on.
        """
        return f"mask {run} {round} {question.hex()} {self}"

    @property
    def step(self) -> float:
        return float(self.clip_norm / 2**self.bits)

    @property
    def sensitivity(self) -> float:
        """Most that one hospital, or one of its patients, moves the sum in L2, in steps: the clip norm and what rounding adds.

        Of a hospital: ibid., conditional randomised rounding with beta = exp(-1/2), repeated until it is within. Of a patient:
        rounding to the nearest moves two entries apart by at most one step more, and float64 before that by at most another
        where the model ``resolves``.
        """
        clip, size = 2.0**self.bits, self.size
        if self.units > 1:
            return clip + 2 * math.sqrt(size)
        return min(clip + math.sqrt(size), math.sqrt(clip**2 + size / 4 + clip + math.sqrt(size) / 2))

    @property
    def scale(self) -> float:
        """Parameter sigma of one hospital's discrete Gaussian, in steps."""
        return self.noise_multiplier * self.sensitivity / math.sqrt(self.threshold - self.onlookers)

    @property
    def word(self) -> np.dtype[Any]:
        """The unsigned integers modulo whose size sums are taken: the smallest that no sum can wrap."""
        largest = self.parties * self.units * self.sensitivity + _TAIL * math.sqrt(self.parties) * self.scale
        return np.dtype(np.uint32 if largest < 2**31 else np.uint64)

    def resolves(self, given: Reals) -> bool:
        """Whether float64 is finer than the grid at the model ``given``, from which a sum of units is told as a difference.

        Where it is not, one patient may move a coordinate by as much as neighbouring floats lie apart, whatever was clipped.
        """
        largest = float(np.abs(given).max(initial=0.0))
        return self.units == 1 or float(np.spacing(largest)) <= self.step / 4

    def round_update(self, update: Reals, weight: float, stream: Stream) -> Ints:
        """``weight`` times the clipped update in steps of the grid, as (size,) integers.

        One unit is rounded at random so that the mean is kept, and the integers' L2 norm is at most ``sensitivity``, checked on
        them. A sum of units is rounded to the nearest instead.

        Args:
            update: (size,) float; one with an entry that is not finite counts as zero.
            weight: In (0, 1], public.
            stream: Draws the rounding of one unit.

        Raises:
            ValueError: for an update of another shape, or a weight out of range.
        """
        if update.shape != (self.size,) or not 0 < weight <= 1:
            raise ValueError(f"An update of {update.shape} with weight {weight}: needed are ({self.size},) and (0, 1].")
        if not np.isfinite(update).all():
            return np.zeros(self.size, dtype=np.int64)
        exact = update.astype(np.float64)
        norm = float(np.linalg.norm(exact))
        exact *= weight * min(1.0, self.units * self.clip_norm / norm if norm else 1.0) / self.step
        if self.units > 1:
            return np.rint(exact).astype(np.int64)
        whole = np.floor(exact)
        for _ in range(_TRIALS):
            candidate = (whole + (stream.uniform(self.size) < exact - whole)).astype(np.int64)
            if int(candidate @ candidate) <= self.sensitivity**2:
                return candidate
        return np.trunc(exact).astype(np.int64)

    def add_noise(self, integers: Ints, stream: Stream) -> Ints:
        """The integers and this hospital's share of the noise."""
        if not self.noise_multiplier:
            return integers
        return integers + np.array(noise("gaussian", self.scale, self.size, stream), dtype=np.int64)

    def words(self, integers: Ints) -> Words:
        """The integers modulo the word's size."""
        return integers.astype(self.word)

    def total(self, words: Words) -> Floats:
        """The (size,) sum of weighted updates that a sum of words stands for."""
        signed = words.view(np.int32 if self.word == np.uint32 else np.int64)
        return signed.astype(np.float64) * self.step

    def event(self, arrived: int) -> DpEvent:
        """What the sum of ``arrived`` hospitals costs each of them, or each of their patients, by concentrated privacy.

        Raises ValueError for fewer than the threshold: such a sum has less noise than was agreed, and is never opened.
        """
        if arrived < self.threshold:
            raise ValueError(f"{arrived} hospitals arrived, the sum needs {self.threshold}.")
        if not self.noise_multiplier:
            return dpa.NonPrivateDpEvent()
        return zcdp_event(self._rho(arrived))

    def _rho(self, arrived: int) -> float:
        return sum_rho(self.sensitivity, self.scale, arrived - self.onlookers, self.size)


def patient_rho(noise_multiplier: float) -> float:
    """The rho of one sum of patients' clipped vectors with that noise, whatever its size and parties.

    ``SumTerms`` with ``units`` refuses a grid with which the noise, which is discrete, would cost more.

    Examples:
        >>> round(patient_rho(noise_multiplier=2.0), 4)
        0.125
    """
    return (1 + 1e-9) / (2 * noise_multiplier**2)


def sum_rho(sensitivity: float, scale: float, parties: int, size: int) -> float:
    """The rho of zero-concentrated privacy of an integer sum with ``parties`` independent discrete Gaussians in each entry.

    A sum of discrete Gaussians is not one, which ``tau`` makes up for. Kairouz, Liu and Steinke 2021, Proposition 14.

    Args:
        sensitivity: Of the (size,) integer vector, in L2.
        scale: Parameter of each Gaussian, at least 0.5.
        parties: Number of Gaussians in each entry.
        size: Number of entries.

    Raises:
        ValueError: when ``scale`` is below 0.5.

    Examples:
        >>> [round(sum_rho(sensitivity=100.0, scale=50.0, parties=parties, size=10), 2) for parties in (1, 4)]
        [2.0, 0.5]
    """
    if scale < 0.5:
        raise ValueError(f"scale must be at least 0.5, got {scale}.")
    tau, ratio = gaussian_gap(scale, parties), sensitivity / (math.sqrt(parties) * scale)
    return min(ratio**2 + 2 * tau * size, (ratio + tau * math.sqrt(size)) ** 2) / 2


def gaussian_gap(scale: float, parties: int) -> float:
    """``tau``: how far a sum of ``parties`` discrete Gaussians of parameter ``scale`` is from one. Ibid.

    Examples:
        >>> [f"{gaussian_gap(scale, parties=4):.0e}" for scale in (0.5, 1.0, 2.0)]
        ['1e+00', '5e-04', '7e-17']
    """
    return 10 * math.fsum(math.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)) for k in range(1, parties))
