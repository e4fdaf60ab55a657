"""Privacy events: what a mechanism did, as dp-accounting's ``DpEvent``s, their canonical form and their JSON.

A Gaussian's noise multiplier is always relative to the clip norm (one patient's contribution), in both relations. An
epsilon, delta or rho inside an event is for one patient added or removed; a replaced patient counts as two.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal, get_args

import attr
import dp_accounting as dpa
from dp_accounting import DpEvent

from polyclinic.errors import ConfigError, nearest

Composition = tuple[tuple[DpEvent, int], ...]
Relation = Literal["add-remove", "replace-one"]
#: By how many contributions one patient moves a sum.
MOVES: dict[str, int] = {"add-remove": 1, "replace-one": 2}
Shape = Literal["geometric", "poisson", "logarithmic"]
SHAPES: tuple[str, ...] = get_args(Shape)
# Far beyond all that is of use, and well within what floating point can tell apart.
_LEAST_RATE, _LEAST_NOISE, _MOST_NOISE, _MOST_EVENTS = 1e-12, 1e-9, 1e15, 10**9
_LARGEST_EPSILON = 300.0  # twice that, for a replaced patient, is still within the range of exp


@attr.frozen
class ApproximateDpEvent(DpEvent):  # type: ignore[misc]
    """Any mechanism that is (epsilon, delta)-differentially private for one patient added or removed.

    Examples:
        >>> merge_events(dpa.SelfComposedDpEvent(ApproximateDpEvent(epsilon=0.5, delta=1e-6), 3))
        ((ApproximateDpEvent(epsilon=0.5, delta=1e-06), 3),)
    """

    epsilon: float
    delta: float


@attr.frozen
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """A whole number that one patient changes by at most ``sensitivity``, with discrete Gaussian noise of the parameter
    sigma = ``noise_multiplier * sensitivity``.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> round(epsilon(DiscreteGaussianDpEvent(noise_multiplier=4.0, sensitivity=3), delta=1e-5), 2)
        0.93
    """

    noise_multiplier: float
    sensitivity: int


@attr.frozen
class SelectionDpEvent(DpEvent):  # type: ignore[misc]
    """The best of K runs of ``event``, K random of the given ``shape`` and ``mean``; of the others nothing is told.

    Examples:
        >>> best_of_five = SelectionDpEvent(dpa.GaussianDpEvent(8.0), mean=5.0, shape="geometric")
        >>> merge_events(best_of_five)[0][0].mean
        5.0
    """

    event: DpEvent
    mean: float
    shape: str


_KNOWN: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        dpa.NoOpDpEvent, dpa.NonPrivateDpEvent, dpa.GaussianDpEvent, dpa.LaplaceDpEvent, dpa.RandomizedResponseDpEvent,
        dpa.PoissonSampledDpEvent, dpa.SampledWithoutReplacementDpEvent, dpa.ZCDpEvent, dpa.SelfComposedDpEvent,
        dpa.ComposedDpEvent, ApproximateDpEvent, DiscreteGaussianDpEvent, SelectionDpEvent,
    )
}  # fmt: skip


def dpsgd_event(sample_rate: float, noise_multiplier: float, steps: int, poisson: bool = True) -> DpEvent:
    """The event of ``steps`` clipped and noised sums over samples of the patients.

    Args:
        sample_rate: Probability with which a patient is in a step, in [1e-12, 1].
        noise_multiplier: Standard deviation of a step's noise over the clip norm, in [1e-9, 1e15].
        steps: Number of sums, up to 1e9.
        poisson: Every step draws each patient independently with probability ``sample_rate``. Shuffled or fixed batches are
            not that: they get no amplification, each step is a plain Gaussian.

    Raises:
        ConfigError: if a number is out of its range.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> sampled, shuffled = dpsgd_event(0.01, 1.0, steps=100), dpsgd_event(0.01, 1.0, steps=100, poisson=False)
        >>> round(epsilon(sampled, delta=1e-5), 1), round(epsilon(shuffled, delta=1e-5), 1)
        (0.7, 91.8)
    """
    if not _LEAST_RATE <= sample_rate <= 1:
        raise ConfigError(f"sample_rate must lie between {_LEAST_RATE:g} and 1, got {sample_rate}.")
    step = gaussian_event(noise_multiplier)
    if poisson and sample_rate < 1:
        step = dpa.PoissonSampledDpEvent(float(sample_rate), step)
    return dpa.SelfComposedDpEvent(step, _count("steps", steps))


# What a later part of a release costs that was paid for, as a whole, when it began.
PAID_BEFORE = dpa.SelfComposedDpEvent(dpa.NoOpDpEvent(), 0)


def gaussian_event(noise_multiplier: float, count: int = 1) -> DpEvent:
    """``count`` sums over all patients with Gaussian noise of ``noise_multiplier`` times the clip norm.

    Raises ConfigError if the noise is outside [1e-9, 1e15], or ``count`` no number up to 1e9.

    Examples:
        >>> gaussian_event(4.0), gaussian_event(4.0, count=3)
        (GaussianDpEvent(noise_multiplier=4.0), SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=4.0), count=3))
    """
    if not _LEAST_NOISE <= noise_multiplier <= _MOST_NOISE:
        raise ConfigError(
            f"noise_multiplier must lie between {_LEAST_NOISE:g} and {_MOST_NOISE:g}, got {noise_multiplier}."
        )
    gaussian = dpa.GaussianDpEvent(float(noise_multiplier))
    return gaussian if count == 1 else dpa.SelfComposedDpEvent(gaussian, _count("count", count))


def pure_event(epsilon: float) -> DpEvent:
    """A mechanism with pure ``epsilon`` for one patient added or removed, such as the exponential mechanism.

    Raises ConfigError if epsilon is not in [0, 300].

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> round(epsilon(pure_event(0.5), 1e-12), 2), round(epsilon(pure_event(0.5), 1e-12, relation="replace-one"), 2)
        (0.5, 1.0)
    """
    return approximate_event(epsilon, 0.0)


def approximate_event(epsilon: float, delta: float) -> DpEvent:
    """A mechanism that is (``epsilon``, ``delta``)-differentially private for one patient added or removed.

    Under "replace-one" it is (2 epsilon, (1 + e^epsilon) delta): group privacy for two.
    Raises ConfigError if epsilon is not in [0, 300] or delta not in [0, 1].

    Examples:
        >>> approximate_event(0.5, 1e-6)
        ApproximateDpEvent(epsilon=0.5, delta=1e-06)
        >>> approximate_event(0.5, 2.0)
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: delta of a privacy event must lie in [0, 1] and be finite, got 2.0.
    """
    return _check(ApproximateDpEvent(epsilon, delta))


def discrete_gaussian_event(noise_multiplier: float, sensitivity: int = 1) -> DpEvent:
    """One whole number with discrete Gaussian noise (Canonne, Kamath and Steinke 2020).

    sensitivity: the most that one patient added or removed changes the number; whole, and the noise's parameter sigma is
    ``noise_multiplier * sensitivity``. A vector that a patient changes in several entries is not this, but
    ``zcdp_event(1 / (2 noise_multiplier^2))`` with the noise relative to its L2 sensitivity (their multivariate bound).
    Raises ConfigError if the noise is not positive and finite, or the sensitivity not a count.

    Examples:
        >>> discrete_gaussian_event(2.0, sensitivity=3)  # sigma 6
        DiscreteGaussianDpEvent(noise_multiplier=2.0, sensitivity=3)
    """
    if noise_multiplier == 0:
        raise ConfigError(f"noise_multiplier must be positive and finite, got {noise_multiplier}.")
    return _check(DiscreteGaussianDpEvent(noise_multiplier, sensitivity))


def zcdp_event(rho: float) -> DpEvent:
    """A mechanism that is ``rho``-zCDP for one patient added or removed (Bun and Steinke 2016).

    Under "replace-one" it is 4 rho: their group privacy, for two.
    Raises ConfigError if rho is negative or not finite.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> round(epsilon(zcdp_event(0.1), delta=1e-5), 2)
        1.91
    """
    return _check(dpa.ZCDpEvent(rho))


def without_replacement_event(patients: int, sample: int, noise_multiplier: float) -> DpEvent:
    """The event of a Gaussian sum over ``sample`` patients drawn without replacement out of ``patients``.

    Args:
        patients: Their public number; under "add-remove" that of the larger of the two neighbours.
        sample: Number of patients drawn.
        noise_multiplier: Standard deviation of the noise over the clip norm.

    Raises:
        ConfigError: if a number is not a count, the sample larger than the whole, or the noise not positive.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> round(epsilon(without_replacement_event(1000, sample=100, noise_multiplier=2.0), 1e-5, accountant="rdp"), 2)
        2.13
    """
    return _check(dpa.SampledWithoutReplacementDpEvent(patients, sample, gaussian_event(noise_multiplier)))


def selection_event(event: DpEvent, mean: float, shape: Shape) -> DpEvent:
    """The event of the best of a random number of runs that each spend ``event`` (Papernot and Steinke 2022).

    A fixed number of runs is not this: compose them.

    Args:
        event: What each run spends.
        mean: Number of runs on average, at least 1.
        shape: The number's distribution; a Poisson one may be 0, and then nothing is told.

    Raises:
        ConfigError: for an unknown shape, a mean below 1, or an event with a delta of its own.

    Examples:
        >>> from polyclinic.privacy.accounting import epsilon
        >>> run = gaussian_event(8.0)
        >>> round(epsilon(run, 1e-5), 2), round(epsilon(selection_event(run, mean=10, shape="geometric"), 1e-5), 2)
        (0.43, 1.07)
    """
    return _check(SelectionDpEvent(event, mean, shape))


def _check(event: DpEvent) -> DpEvent:
    merge_events(event)
    return event


def merge_events(event: DpEvent) -> Composition:
    """The composition as distinct (event, count) pairs in a fixed order; equal spending has an equal form.

    All Gaussians become one, which is exact: precisions add. Anything without noise becomes ``NonPrivateDpEvent``.
    Raises ConfigError for an event that the accountants here cannot vouch for.

    Examples:
        >>> merge_events(dpa.ComposedDpEvent([gaussian_event(2.0, count=4), pure_event(0.5), pure_event(0.5)]))
        ((GaussianDpEvent(noise_multiplier=1.0), 1), (ApproximateDpEvent(epsilon=0.5, delta=0.0), 2))
    """
    counts: Counter[DpEvent] = Counter()
    _collect(event, 1, counts)
    precisions = [n / e.noise_multiplier**2 for e, n in counts.items() if isinstance(e, dpa.GaussianDpEvent)]
    rest = [(e, n) for e, n in counts.items() if not isinstance(e, dpa.GaussianDpEvent)]
    gaussian = [(dpa.GaussianDpEvent(1 / math.sqrt(math.fsum(precisions))), 1)] if precisions else []
    return (*gaussian, *sorted(rest, key=repr))


def _collect(event: DpEvent, count: int, counts: Counter[DpEvent]) -> None:
    match event:
        case dpa.NoOpDpEvent():
            pass
        case dpa.SelfComposedDpEvent():
            if event.count:
                _collect(event.event, _count("the number of releases", count * _count("count", event.count)), counts)
        case dpa.ComposedDpEvent():
            for part in event.events:
                _collect(part, count, counts)
        case dpa.PoissonSampledDpEvent(event=dpa.GaussianDpEvent()):
            rate = event.sampling_probability and _within(
                "sampling_probability", event.sampling_probability, _LEAST_RATE, 1
            )
            if rate == 1:
                _collect(event.event, count, counts)
            elif rate > 0:
                counts[event if _noisy(event.event.noise_multiplier) else dpa.NonPrivateDpEvent()] += count
        case dpa.GaussianDpEvent() | dpa.LaplaceDpEvent():
            counts[event if _noisy(event.noise_multiplier) else dpa.NonPrivateDpEvent()] += count
        case dpa.RandomizedResponseDpEvent():
            noisy = _within("noise_parameter", event.noise_parameter, 0, 1) > 0
            if _count("num_buckets", event.num_buckets) > 1:
                counts[event if noisy else dpa.NonPrivateDpEvent()] += count
        case ApproximateDpEvent():
            eps = _within("epsilon", event.epsilon, 0, _LARGEST_EPSILON)
            delta = _within("delta", event.delta, 0, 1)
            if eps or delta:
                counts[event if delta < 1 else dpa.NonPrivateDpEvent()] += count
        case DiscreteGaussianDpEvent():
            _count("sensitivity", event.sensitivity)
            counts[event if _noisy(event.noise_multiplier) else dpa.NonPrivateDpEvent()] += count
        case dpa.ZCDpEvent(xi=0):
            if _within("rho", event.rho, 0, math.inf):
                counts[event] += count
        case dpa.SampledWithoutReplacementDpEvent(event=dpa.GaussianDpEvent()):
            patients, sample = _count("patients", event.source_dataset_size), _count("sample", event.sample_size)
            if sample > patients:
                raise ConfigError(f"sample must be at most the {patients} patients, got {sample}.")
            if sample == patients:
                _collect(event.event, count, counts)
            else:
                counts[event if _noisy(event.event.noise_multiplier) else dpa.NonPrivateDpEvent()] += count
        case SelectionDpEvent():
            if event.shape not in SHAPES:
                raise ConfigError(
                    f"shape must be one of {', '.join(SHAPES)}, got {event.shape!r}.{nearest(str(event.shape), SHAPES)}"
                )
            _within("mean", event.mean, 1, math.inf)
            run = merge_events(event.event)
            if any(isinstance(part, dpa.NonPrivateDpEvent) for part, _ in run):
                counts[dpa.NonPrivateDpEvent()] += count
            elif any(isinstance(part, ApproximateDpEvent) and part.delta for part, _ in run):
                raise ConfigError(
                    "Selection among runs needs a Renyi bound of one run, which a delta of its own forbids."
                )
            elif run:
                composed = dpa.ComposedDpEvent(tuple(dpa.SelfComposedDpEvent(part, times) for part, times in run))
                counts[SelectionDpEvent(composed, event.mean, event.shape)] += count
        case dpa.NonPrivateDpEvent():
            counts[event] += count
        case _:
            raise ConfigError(f"The privacy event {event!r} is not one that can be accounted here.")


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """``{"type": "GaussianDpEvent", "noise_multiplier": 1.0}`` and so on, recursively.

    Raises ConfigError for an event kind that the ledger does not know.

    Examples:
        >>> event_to_json(gaussian_event(4.0))
        {'type': 'GaussianDpEvent', 'noise_multiplier': 4.0}
    """
    name = type(event).__name__
    if _KNOWN.get(name) is not type(event):
        raise ConfigError(f"The privacy event kind {name!r} is unknown; known are {', '.join(_KNOWN)}.")
    values = attr.asdict(event, recurse=False)
    return {"type": name, **{key: _field_to_json(value) for key, value in values.items()}}


def event_from_json(value: dict[str, Any]) -> DpEvent:
    """The event that ``event_to_json`` wrote.

    Raises ConfigError for an unknown kind, missing or extra fields, or impossible numbers.

    Examples:
        >>> event_from_json({"type": "GaussianDpEvent", "noise_multiplier": 4.0}) == gaussian_event(4.0)
        True
        >>> event_from_json({"type": "GaussianDpEvent", "sigma": 4.0})
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: The privacy event GaussianDpEvent has the fields sigma, but needs noise_multiplier.
    """
    event = _from_json(value)
    merge_events(event)  # refuses impossible numbers
    return event


def _field_to_json(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_json(value)
    return [event_to_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def _from_json(value: Any) -> DpEvent:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise ConfigError(f"The privacy event kind {kind!r} is unknown; known are {', '.join(_KNOWN)}.")
    fields = {key: field for key, field in value.items() if key != "type"}
    expected = {field.name for field in attr.fields(_KNOWN[kind])}
    if set(fields) != expected:
        raise ConfigError(
            f"The privacy event {kind} has the fields {', '.join(sorted(fields))}, but needs {', '.join(sorted(expected))}."
        )
    if "event" in fields:
        fields["event"] = _from_json(fields["event"])
    if "events" in fields:
        if not isinstance(fields["events"], list):
            raise ConfigError(f"The privacy event {kind} needs a list of events.")
        fields["events"] = [_from_json(part) for part in fields["events"]]
    return _KNOWN[kind](**fields)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_EVENTS:
        raise ConfigError(f"{name} must be a whole number from 1 to {_MOST_EVENTS:,}, got {value!r}.")
    return value


def _noisy(noise_multiplier: Any) -> bool:
    """Whether there is noise at all. Raises ConfigError for noise that is too little or too much to be accounted."""
    return noise_multiplier != 0 and _within("noise_multiplier", noise_multiplier, _LEAST_NOISE, _MOST_NOISE) > 0


def _within(name: str, value: Any, low: float, high: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name} of a privacy event must lie in [{low}, {high}] and be finite, got {value!r}.")
    return float(value)
