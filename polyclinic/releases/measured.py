"""Private metrics: a question to held-out patients that bounds what each of them adds, and figures from its noised answer.

A question counts or sums something of each patient, in whole points of ``FINE``, and adds noise once. What follows is
post-processing, which costs nothing: answers of several hospitals are added, and figures follow from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting import DpEvent

from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.mechanisms import FINE, gaussian
from polyclinic.privacy.streams import Stream, generator
from polyclinic.releases.question import Pricing
from polyclinic.types import Floats, Ints, Labels

DRAWS = 1000
_MIDDLE = (0.1587, 0.8413)  # as much as lies within a standard deviation of a normal distribution


class Measured(ABC):
    """A question of private metrics. A subclass is made of what it asks about and of the noise.

    noise_multiplier: relative to what one patient can change in all noised numbers, in L2.
    """

    noise_multiplier: float

    def __init__(self, of: Any, noise_multiplier: float) -> None: ...  # noqa: B027 - subclasses are dataclasses of these two

    @classmethod
    def within(cls, of: Any, epsilon: float, releases: int, pricing: Pricing) -> Self:
        """The question with the least noise at which ``releases`` releases together cost at most ``epsilon``.

        Args:
            of: What it asks about.
            epsilon: Of all releases together.
            releases: Number of releases.
            pricing: By which they are accounted.

        Raises:
            ConfigError: where no noise reaches it.
        """
        return cls(of, _least_noise(epsilon, releases, pricing))

    @classmethod
    def of_deviation(cls, of: Any, deviation: float) -> Self:
        """With noised numbers of the standard deviation ``deviation``, in patients."""
        return cls(of, deviation * FINE / cls(of, 1.0).sensitivity)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the answer."""

    @property
    @abstractmethod
    def weight(self) -> int:
        """The square of the most, in L2 and in patients, by which one patient changes all noised numbers."""

    @property
    def sensitivity(self) -> int:
        """The most, in L2 and in points of ``FINE``, by which one patient changes all noised numbers, rounded up."""
        return math.isqrt(self.weight * FINE**2 - 1) + 1

    @property
    def event(self) -> DpEvent:
        """What one release costs."""
        return gaussian_event(self.noise_multiplier)

    @abstractmethod
    def count(self, labels: Labels, scores: Floats, patient: Ints) -> Ints:
        """The exact answer in points, of the question's shape.

        Args:
            labels: (n, ...) of the rows.
            scores: (n, C) predictions.
            patient: (n,) numbers of the patients.
        """

    def parts(self, counts: Ints) -> Ints:
        """The numbers that get noise."""
        return counts

    def whole(self, parts: Floats) -> Floats:
        """The answer of noised parts."""
        return parts

    @abstractmethod
    def noisy_answer(self, counts: Floats, deviation: float) -> Noised:
        """A noised answer, in patients, whose parts have noise of the standard deviation."""

    def answer(self, counts: Ints, stream: Stream) -> Noised:
        """``count`` of one hospital with noise, to be called only after ``event`` was charged."""
        parts = self.parts(counts)
        noisy = gaussian(self.noise_multiplier, self.sensitivity).release(parts.reshape(-1), stream).value / FINE
        return self.noisy_answer(
            self.whole(noisy.reshape(parts.shape)), self.noise_multiplier * self.sensitivity / FINE
        )


@lru_cache(maxsize=64)
def _least_noise(epsilon: float, releases: int, pricing: Pricing) -> float:
    return calibrate_noise_multiplier(
        epsilon, pricing.delta, lambda noise: gaussian_event(noise, releases), pricing.accountant, pricing.relation
    )


@dataclass(frozen=True, eq=False)
class Noised(ABC):
    """A noised answer in patients, and the standard deviation of the noise on each number that it was made of."""

    counts: Floats
    deviation: float

    #: The figures, in the order of ``metrics``.
    names: ClassVar[tuple[str, ...]]
    #: What values are cut to.
    ranges: ClassVar[dict[str, tuple[float, float]]]

    @abstractmethod
    def noise(self, rng: np.random.Generator, draws: int) -> Floats:
        """(draws, ...) noise of deviation 1 on each noised number, as the answer has it."""

    @abstractmethod
    def metrics(self, counts: Floats, deviation: float) -> Floats:
        """(B, M) figures of answers (B, ...); NaN where the noise of a deviation drowns what one is a ratio of."""

    def estimates(self) -> dict[str, dict[str, float | None]]:
        """``{"value", "error"}`` of each figure: the error is the standard error of the noise alone.

        It is half the width of the middle 68.3 % over redrawn noise of the known size (a parametric bootstrap). The width is
        taken before figures are cut to their range: near its ends the noise would seem to be small. It says nothing of how few
        patients were held out. None where the noise drowns the counts that a figure is a ratio of.
        """
        rng = generator(0, "private metrics", len(self.counts))
        redrawn = self.counts + self.deviation * self.noise(rng, DRAWS)
        low, high = zip(*(self.ranges.get(name, (0.0, np.inf)) for name in self.names), strict=True)
        values = self.metrics(self.counts[None], self.deviation).clip(low, high)[0]
        draws, figures = self.metrics(redrawn, 0.0), dict[str, dict[str, float | None]]()
        for index, name in enumerate(self.names):
            defined = draws[np.isfinite(draws[:, index]), index]
            is_known = bool(np.isfinite(values[index])) and len(defined) > DRAWS // 2
            figures[name] = {"value": float(values[index]) if is_known else None,
                             "error": float(np.diff(np.quantile(defined, _MIDDLE))[0] / 2) if is_known else None}  # fmt: skip
        return figures

    def values(self) -> dict[str, float | None]:
        """The value of each figure, without its error."""
        return {name: estimate["value"] for name, estimate in self.estimates().items()}

    def summary(self) -> dict[str, Any]:
        """The estimates and the calibration, as a run's summary has them."""
        return {"metrics": self.estimates(), "calibration": self.calibration(), "deviation": self.deviation}

    def calibration(self) -> list[dict[str, float]]:
        """What is known by bin of the prediction."""
        return []

    @staticmethod
    def pool(parts: Iterable[Noised]) -> Noised:
        """The answers of several hospitals, whose patients are different ones, added; their noises are independent."""
        first, *rest = parts
        total = np.sum([first.counts, *(part.counts for part in rest)], axis=0)
        return replace(first, counts=total, deviation=math.hypot(first.deviation, *(part.deviation for part in rest)))
