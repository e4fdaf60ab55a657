"""Faults planted in a copy of what is audited, to show which of them an audit sees.

A fault stands between the audit and a task's ``train``: it wraps the streams, the settings or the model that are handed
over, or what a strategy's half does twice. The code that hospitals run knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import Tensor, nn

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.streams import Size, Stream
from polyclinic.training.auditing.views import Around, HalfAround
from polyclinic.training.local import Penalty, Sites, Trained
from polyclinic.training.sites.one_by_one import train_one
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Ints, Reals

Train = Callable[[Builder, Arrays, Sequence[SiteWork], TrainSettings], list[SiteUpdate]]

# How many times the claimed clip norm a patient may have when clipping is off.
_UNCLIPPED = 1e3
_NEXT_TO_NOTHING = 1e-15


@dataclass(frozen=True)
class Fault:
    """What is wrapped; by default nothing is. ``train`` replaces the task's own, which would refuse the model."""

    name: str = ""
    settings: Callable[[TrainSettings], TrainSettings] = lambda settings: settings
    noise: Callable[[Stream], Stream] = lambda stream: stream
    sampling: Callable[[Stream, float], Stream] = lambda stream, sample_rate: stream
    build: Callable[[Builder, int], Builder] = lambda build, features: build
    train: Train | None = None


class _Wrapped:
    """A stream that is as it was."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def uniform(self, size: Size) -> Reals:
        return self._stream.uniform(size)

    def normal(self, size: Size) -> Reals:
        return self._stream.normal(size)


class Silent(_Wrapped):
    """Draws that make noise of nothing: a gamma's length comes of uniform ones, and its direction must not be zero."""

    def uniform(self, size: Size) -> Reals:
        return np.zeros(size)

    def normal(self, size: Size) -> Reals:
        return self._stream.normal(size) * _NEXT_TO_NOTHING


class _Halved(_Wrapped):
    """Draws that make noise half as large as it should be; a gamma's length is the sum of -log(1 - u)."""

    def uniform(self, size: Size) -> Reals:
        return np.asarray(1.0 - np.sqrt(1.0 - self._stream.uniform(size)))

    def normal(self, size: Size) -> Reals:
        return self._stream.normal(size) * 0.5


class _Shuffled(_Wrapped):
    """Patients are taken in batches of one size, each patient once in an epoch, where coins should decide."""

    def __init__(self, stream: Stream, sample_rate: float) -> None:
        super().__init__(stream)
        self._rate = sample_rate
        self._left = np.zeros(0, dtype=np.int64)

    def uniform(self, size: Size) -> Reals:
        steps, patients = size if isinstance(size, tuple) else (1, size)
        draws = np.full((steps, patients), np.nextafter(1.0, 0.0))
        for row in draws:
            row[self._batch(patients)] = 0.0
        return draws.reshape(size)

    def _batch(self, patients: int) -> Ints:
        size = round(self._rate * patients)
        if len(self._left) < size:
            self._left = np.argsort(self._stream.uniform(patients))
        batch, self._left = self._left[:size], self._left[size:]
        return batch


def _remove_clipping(settings: TrainSettings) -> TrainSettings:
    """No norm is clipped, and the noise stays what the claimed norm asks for."""
    noise = settings.noise_multiplier
    return replace(
        settings, max_grad_norm=settings.max_grad_norm * _UNCLIPPED,
        noise_multiplier=None if noise is None else noise / _UNCLIPPED,
    )  # fmt: skip


def _batch_normalised(build: Builder, features: int) -> Builder:
    return lambda: nn.Sequential(nn.BatchNorm1d(features, affine=False, track_running_stats=False), build())


def train_unchecked(
    build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
) -> list[SiteUpdate]:
    """Training without the check of the module that every task makes first.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        work: Each site's part.
        settings: The settings of the round.
    """
    made = (lambda: build().double()) if settings.double else build
    return [train_one(made, arrays, site, settings) for site in work]


class _Switched(_Wrapped):
    """Draws that can be switched off, and then make noise of nothing."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.off = False

    def normal(self, size: Size) -> Reals:
        return self._stream.normal(size) * (_NEXT_TO_NOTHING if self.off else 1.0)


class _OneNoised(Around):
    """Hospitals that add noise in the first pass of a round alone."""

    def gradient(self, models: Tensor, name: str = "", penalty: Penalty | None = None) -> Tensor:
        for site in self.work:
            cast(_Switched, site.noise).off = bool(name)
        return super().gradient(models, name, penalty)


@dataclass(frozen=True)
class _SecondSilent(HalfAround):
    """A half whose second pass has no noise."""

    def round(self, sites: Sites) -> Trained:
        return self.half.round(cast(Sites, _OneNoised(sites)))


def _second_silent(settings: TrainSettings) -> TrainSettings:
    if len(settings.local.passes(settings)) < 2:
        raise ConfigError(
            "The fault 'second-noise-off' is of a strategy whose hospitals look at the records twice in a round, as 'ditto'."
        )
    return replace(settings, local=_SecondSilent(settings.local))


NO_FAULT = Fault()
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("noise-off", noise=Silent),
        Fault("half-noise", noise=_Halved),
        Fault("no-clipping", settings=_remove_clipping),
        Fault("batch-norm", build=_batch_normalised, train=train_unchecked),
        Fault("shuffled", sampling=_Shuffled),
        Fault("second-noise-off", settings=_second_silent, noise=_Switched),
    )
}


def fault_named(name: str | None) -> Fault:
    """Raises ConfigError for a fault that does not exist."""
    if name is None:
        return NO_FAULT
    if name not in FAULTS:
        raise ConfigError(f"The fault {name!r} is unknown; choose {', '.join(FAULTS)}.{nearest(name, FAULTS)}")
    return FAULTS[name]
