"""Privacy events: what a mechanism did, as dp-accounting's ``DpEvent``s, their canonical form and their JSON.

A Gaussian's noise multiplier is always relative to the clip norm (one patient's contribution), in both relations.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import attr
import dp_accounting as dpa
from dp_accounting import DpEvent

from polyclinic.errors import ConfigError

Composition = tuple[tuple[DpEvent, int], ...]

_KNOWN: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        dpa.NoOpDpEvent, dpa.NonPrivateDpEvent, dpa.GaussianDpEvent, dpa.LaplaceDpEvent, dpa.RandomizedResponseDpEvent,
        dpa.PoissonSampledDpEvent, dpa.SelfComposedDpEvent, dpa.ComposedDpEvent,
    )
}  # fmt: skip


def dpsgd_event(sample_rate: float, noise_multiplier: float, steps: int, poisson: bool = True) -> DpEvent:
    """``steps`` clipped and noised sums over samples of the patients.

    ``poisson`` says that every step draws each patient independently with probability ``sample_rate``. Shuffled or
    fixed batches are not that: they get no amplification, each step is a plain Gaussian.
    Raises ConfigError if the rate is outside (0, 1], the noise not positive and finite, or the steps not a count.
    """
    if not 0 < sample_rate <= 1:
        raise ConfigError(f"sample_rate must lie in (0, 1], got {sample_rate}.")
    one = gaussian_event(noise_multiplier)
    if poisson and sample_rate < 1:
        one = dpa.PoissonSampledDpEvent(float(sample_rate), one)
    return dpa.SelfComposedDpEvent(one, _count("steps", steps))


def gaussian_event(noise_multiplier: float, count: int = 1) -> DpEvent:
    """``count`` sums over all patients with Gaussian noise of ``noise_multiplier`` times the clip norm.

    Raises ConfigError if the noise is not positive and finite, or ``count`` is not a count.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ConfigError(f"noise_multiplier must be positive and finite, got {noise_multiplier}.")
    one = dpa.GaussianDpEvent(float(noise_multiplier))
    return one if count == 1 else dpa.SelfComposedDpEvent(one, _count("count", count))


def merged(event: DpEvent) -> Composition:
    """The composition as distinct (event, count) pairs in a fixed order; equal spending has an equal form.

    All Gaussians become one, which is exact: precisions add. Anything without noise becomes ``NonPrivateDpEvent``.
    Raises ConfigError for an event that the accountants here cannot vouch for.
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
                _collect(event.event, count * _count("count", event.count), counts)
        case dpa.ComposedDpEvent():
            for part in event.events:
                _collect(part, count, counts)
        case dpa.PoissonSampledDpEvent(event=dpa.GaussianDpEvent()):
            rate = _within("sampling_probability", event.sampling_probability, 0, 1)
            if rate == 1:
                _collect(event.event, count, counts)
            elif rate > 0:
                noisy = _within("noise_multiplier", event.event.noise_multiplier, 0, math.inf) > 0
                counts[event if noisy else dpa.NonPrivateDpEvent()] += count
        case dpa.GaussianDpEvent() | dpa.LaplaceDpEvent():
            noisy = _within("noise_multiplier", event.noise_multiplier, 0, math.inf) > 0
            counts[event if noisy else dpa.NonPrivateDpEvent()] += count
        case dpa.RandomizedResponseDpEvent():
            noisy = _within("noise_parameter", event.noise_parameter, 0, 1) > 0
            if _count("num_buckets", event.num_buckets) > 1:
                counts[event if noisy else dpa.NonPrivateDpEvent()] += count
        case dpa.NonPrivateDpEvent():
            counts[event] += count
        case _:
            raise ConfigError(f"The privacy event {event!r} is not one that can be accounted here.")


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """``{"type": "GaussianDpEvent", "noise_multiplier": 1.0}`` and so on, recursively.

    Raises ConfigError for an event kind that the ledger does not know.
    """
    name = type(event).__name__
    if _KNOWN.get(name) is not type(event):
        raise ConfigError(f"The privacy event kind {name!r} is unknown; known are {', '.join(_KNOWN)}.")
    values = attr.asdict(event, recurse=False)
    return {"type": name, **{key: _field_to_json(value) for key, value in values.items()}}


def event_from_json(value: dict[str, Any]) -> DpEvent:
    """The event that ``event_to_json`` wrote.

    Raises ConfigError for an unknown kind, missing or extra fields, or impossible numbers.
    """
    event = _from_json(value)
    merged(event)  # refuses impossible numbers
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
        raise ConfigError(f"The privacy event {kind} has fields {sorted(fields)}, but needs {sorted(expected)}.")
    if "event" in fields:
        fields["event"] = _from_json(fields["event"])
    if "events" in fields:
        if not isinstance(fields["events"], list):
            raise ConfigError(f"The privacy event {kind} needs a list of events.")
        fields["events"] = [_from_json(part) for part in fields["events"]]
    return _KNOWN[kind](**fields)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value


def _within(name: str, value: Any, low: float, high: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name} of a privacy event must lie in [{low}, {high}] and be finite, got {value!r}.")
    return float(value)
