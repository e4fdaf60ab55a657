"""A site's batches and noise, step after step, and what it must keep of them to go on in its next round.

Poisson batches need nothing kept. Cyclic batches deal each patient, independently and once for the whole run, to one of
as many batches as there are steps in an epoch. The batches then take turns, so that a patient takes part every so many
steps and never in between. The noise process that goes with them, and the deal, are kept with the optimizer's tensors.
Removing a patient changes no other patient's batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.errors import ConfigError
from polyclinic.privacy.clipping import poisson_samples
from polyclinic.privacy.streams import take_words
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Bools, Reals, under

_KEPT = "draws."
_NOTHING: Mapping[str, npt.NDArray[Any]] = {}


class Draws:
    """What one site draws in one call of ``train``; ``state_after`` is what its next call begins from.

    Raises ConfigError when what the site kept belongs to other patients or parameters.
    """

    def __init__(self, site: SiteWork, settings: TrainSettings, parameters: int) -> None:
        self._site, self._settings, self._parameters = site, settings, parameters
        self._turn, self._noise = 0, _NOTHING
        self._batch_of: npt.NDArray[Any] | None = None
        if settings.batching == "cyclic":
            self._restore()

    def _restore(self) -> None:
        site = self._site
        if not has_begun(site.state, self._settings):
            self._batch_of = np.floor(site.sampling.uniform(site.rows.patients) * self._settings.epoch)
            return
        state = under(site.state, _KEPT)
        del state["terms"]
        self._turn, dealt, self._noise = int(state.pop("turn")), state.pop("batch-of"), state
        self._batch_of = dealt
        if dealt.shape != (site.rows.patients,):
            raise ConfigError(
                f"Cyclic batches were dealt to {len(dealt)} patients when the run began, and there are "
                f"{site.rows.patients} now; a shard must not change while such a run goes on."
            )

    def batches(self, steps: int) -> Bools:
        """(steps, patients): who is in each of the next batches."""
        if self._batch_of is None:
            site = self._site
            return poisson_samples(site.rows.patients, self._settings.sample_rate, steps, site.sampling)
        turns = (self._turn + np.arange(steps)) % self._settings.epoch
        self._turn += steps
        return np.asarray(self._batch_of == turns[:, None])

    def noise(self, steps: int) -> Reals:
        """(steps, parameters): the next steps' noise in units of noise_multiplier * max_grad_norm."""
        process = self._settings.noise
        if process is None:
            return self._site.noise.normal((steps, self._parameters))
        drawn, self._noise = process.draw(self._site.noise, self._noise, steps, self._parameters)
        return drawn * drawn.dtype.type(process.sensitivity(self._settings.participation))

    def place(self, steps: int) -> tuple[int, int] | None:
        """Where the next steps' noise is in the site's keyed stream, as ``take_words``; None where it is drawn otherwise."""
        if self._settings.noise is not None:
            return None
        return take_words(self._site.noise, steps * ((self._parameters + 1) // 2))

    def state_after(self) -> Arrays:
        if self._batch_of is None:
            return {}
        arrays = {
            "turn": np.asarray(self._turn),
            "batch-of": self._batch_of,
            "terms": _terms(self._settings),
            **self._noise,
        }
        return {_KEPT + name: value for name, value in arrays.items()}


def has_begun(state: Mapping[str, npt.NDArray[Any]], settings: TrainSettings) -> bool:
    """Whether what a site kept holds the noise process of just these settings, paid for as a whole when it began."""
    terms = state.get(f"{_KEPT}terms")
    return terms is not None and np.array_equal(terms, _terms(settings))


def without_draws(state: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """What a site kept, but for the noise process and its batches."""
    return {name: value for name, value in state.items() if not name.startswith(_KEPT)}


def _terms(settings: TrainSettings) -> npt.NDArray[np.uint8]:
    """A digest of all that the price of a noise process depends on."""
    terms = repr((settings.noise, settings.noise_multiplier, settings.max_grad_norm, settings.sample_rate))
    return np.frombuffer(sha256(terms.encode()).digest(), dtype=np.uint8)
