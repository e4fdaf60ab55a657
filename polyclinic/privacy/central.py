"""What central privacy does to hospitals' updates in every round, and what that spends; all of it is public.

The unit is one hospital: its update is in the sum, or counts as zero. A clip norm may follow a quantile of the norms it clips,
for a small share of the privacy. Each contribution adds a bit to a noisy count, whether it was left as it is. The sum beside
the count gets a little more noise than it would alone (Andrew et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dp_accounting import DpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.noise import NoiseProcess, Participation, noise_process
from polyclinic.privacy.noise.sensitivity import check_count
from polyclinic.privacy.streams import Stream

_SMALLEST, _LARGEST = 1e-6, 1e6
# Of the privacy of a release, the most that the count may take: its noise is then 5 % of the sum's.
_SHARE = 0.1


@dataclass(frozen=True)
class CentralPlan:
    """Clip norm, weights, noise and sampling of every round.

    noise_multiplier: of a whole round, relative to its sensitivity.
    clip_norm: L2 norm that no update exceeds, of the first round where ``quantile`` is given.
    expected_sites: hospitals expected in a round.
    expected_weight: sum of their weights, by which every noisy sum is divided.
    largest_weight: no hospital has more.
    sample_rate: probability with which each hospital is in a round, independently of all else; 1 claims no amplification.
    quantile: share of the updates that should lie within the clip norm, which then follows them; None leaves it fixed.
    separation: a hospital takes part every so many rounds at the most; above 1 it is not sampled.
    rounds: that the run will have; its ledger takes later ones as requests that nobody declared (``privacy.accounting.filter``).
    noise: "independent", or a process over ``rounds`` rounds (polyclinic.privacy.noise) whose noise of one round takes away
    some of earlier rounds'. With a process the noise multiplier is that of all rounds together, and neither sampling nor an
    adaptive clip norm is possible.
    Raises ConfigError naming the value that is out of range.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> terms = CentralPlan(1.0, clip_norm=0.5, expected_sites=20, expected_weight=20, sample_rate=0.1)
        >>> round(epsilon(terms.event(rounds=1), delta=1e-3), 2), round(epsilon(terms.event(rounds=10), delta=1e-3), 2)
        (0.65, 1.57)
    """

    noise_multiplier: float
    clip_norm: float
    expected_sites: float
    expected_weight: float
    largest_weight: float = 1.0
    sample_rate: float = 1.0
    quantile: float | None = None
    separation: int = 1
    noise: str = "independent"
    rounds: int = 1

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "clip_norm", "expected_sites", "expected_weight", "largest_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be positive and finite, got {value}.")
        check_count("separation", self.separation)
        check_count("rounds", self.rounds)
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate must lie in (0, 1], got {self.sample_rate}.")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ConfigError(f"quantile must lie in (0, 1), got {self.quantile}.")
        if self.separation > 1 and self.sample_rate < 1:
            raise ConfigError(
                f"separation {self.separation} goes with a sample_rate of 1 only, got {self.sample_rate}."
            )
        if self.process is not None and (self.sample_rate < 1 or self.quantile is not None):
            raise ConfigError(f"noise {self.noise!r} goes with a sample_rate of 1 and a fixed clip norm only.")

    @cached_property
    def process(self) -> NoiseProcess | None:
        """The noise over time; None where every round's is independent."""
        if self.noise == "independent":
            return None
        return noise_process(self.noise, self.rounds, participation=self.participation)

    @property
    def participation(self) -> Participation:
        """How often one hospital can be in the sum."""
        return Participation(self.separation, math.ceil(self.rounds / self.separation))

    @property
    def count_std(self) -> float:
        """Standard deviation of the noise on the count of updates that were not clipped."""
        return count_noise(self.noise_multiplier, self.expected_sites)

    @cached_property
    def noise_scale(self) -> float:
        """Standard deviation of the draws of noise on the sum of updates, relative to the sensitivity of one round."""
        if self.process is not None:
            return self.noise_multiplier * self.process.sensitivity(self.participation)
        if self.quantile is not None:
            return sum_noise_multiplier(self.noise_multiplier, self.count_std)
        return self.noise_multiplier

    @property
    def covers(self) -> int:
        """How many rounds one charge pays for: of so many in a row a hospital is in one, or noise over time spans them."""
        return self.separation if self.process is None else self.rounds

    @property
    def never_skips(self) -> bool:
        """Whether a round without replies must get its noise like any other: its absence would tell, or shift the others."""
        return self.sample_rate < 1 or self.process is not None

    def event(self, rounds: int = 1) -> DpEvent:
        """What ``rounds`` rounds spend of one hospital's protection, from the first; with noise over time, what all do.

        A hospital's own batches amplify nothing here: all its steps of a round are in one update (privacy-faults, 9).
        """
        if self.process is not None:
            return self.process.event(self.noise_multiplier, self.participation)
        return dpsgd_event(self.sample_rate, self.noise_multiplier, math.ceil(rounds / self.covers))


def count_noise(noise_multiplier: float, expected: float) -> float:
    """A standard deviation for the noise on the count of a release with ``noise_multiplier`` in all.

    A twentieth of the ``expected`` contributions (Andrew et al. 2021, section 3.1), or more where that would take over a
    tenth of the privacy: then the sum's noise grows by 5 %.

    Examples:
        >>> count_noise(noise_multiplier=1.0, expected=100)
        5.0
    """
    return max(expected / 20, noise_multiplier / (2 * math.sqrt(_SHARE)))


def sum_noise_multiplier(noise_multiplier: float, count_std: float) -> float:
    """The noise multiplier of the sum, with which sum and count together spend what ``noise_multiplier`` does.

    z_sum = (z^-2 - (2 s)^-2)^(-1/2) for a count of bits shifted by 1/2, whose sensitivity is 1/2 (Andrew et al. 2021;
    precisions add). Raises ConfigError when the count alone would spend as much.

    Examples:
        >>> round(sum_noise_multiplier(noise_multiplier=1.0, count_std=5.0), 3)
        1.005
    """
    if not 2 * count_std > noise_multiplier:
        raise ConfigError(
            f"count_std must be above half the noise multiplier {noise_multiplier:g}, got {count_std:g}: the count alone "
            "would spend it all."
        )
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_std) ** -2)


def noisy_fraction(unclipped: Sequence[bool], expected: float, count_std: float, stream: Stream) -> float:
    """The share of contributions that were not clipped, as noisy as the count: in [0, 1].

    Args:
        unclipped: Of each contribution, whether it was left as it is.
        expected: A public number of contributions, whatever their number is.
        count_std: Standard deviation of the noise on the count. One contribution moves the shifted count by 1/2, so it is a
            multiplier of 2 ``count_std``.
        stream: Draws the noise.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> stream = keyed_stream(0, "count")  # of a simulation; a real hospital takes system_stream()
        >>> round(noisy_fraction([True, True, False, True], expected=4, count_std=0.1, stream=stream), 2)
        0.76
    """
    shifted = math.fsum((1.0 if bit else 0.0) - 0.5 for bit in unclipped)
    noisy = shifted + count_std * float(stream.normal(1)[0])
    return min(max(noisy / expected + 0.5, 0.0), 1.0)


def next_clip_norm(clip_norm: float, unclipped: float, quantile: float, rate: float = 0.2) -> float:
    """The next clip norm: smaller when more than ``quantile`` of the contributions were left as they are.

    C exp(-rate (unclipped - quantile)), kept between 1e-6 and 1e6 (Andrew et al. 2021, section 3, geometric update).

    Args:
        clip_norm: Of the last round.
        unclipped: Noisy share of the contributions that were left as they are, in [0, 1].
        quantile: Share of the contributions that should lie within the clip norm.
        rate: Learning rate of the clip norm's logarithm.

    Examples:
        >>> round(next_clip_norm(clip_norm=1.0, unclipped=0.9, quantile=0.5), 3)
        0.923
        >>> round(next_clip_norm(clip_norm=1.0, unclipped=0.1, quantile=0.5), 3)
        1.083
    """
    return min(max(clip_norm * math.exp(-rate * (unclipped - quantile)), _SMALLEST), _LARGEST)
