"""Two rounds of a strategy's local half on made-up gradients, so that a mistake in it shows before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polyclinic.ehr.shard import Rows
from polyclinic.errors import failing
from polyclinic.privacy.streams import system_stream
from polyclinic.training.local import Penalty
from polyclinic.training.modules import load
from polyclinic.training.sites import Running, TrainedSites
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Ints, Reals

_GRADIENT, _ROWS, _WIDTH = 0.01, 3, 4


class _MadeUp(TrainedSites):
    """Two hospitals without records, whose gradients have the same number in each place."""

    def _sums(self, running: Running, models: Tensor, penalty: Penalty | None) -> tuple[Tensor, Reals, Ints]:
        if models.shape != self.model.shape:
            raise ValueError(f"gradient took models of the shape {tuple(models.shape)}, not {tuple(self.model.shape)}")
        if penalty is not None:
            rows = torch.zeros(_ROWS, _WIDTH)
            term = penalty.term(rows, [rows for _ in penalty.models])
            if term.shape != (_ROWS,):
                raise ValueError(f"the term of a Penalty has the shape {tuple(term.shape)} for {_ROWS} rows")
        return torch.full_like(models, _GRADIENT), np.ones(len(models)), np.ones(len(models), int)


def check_half(build: Builder, arrays: Arrays, settings: TrainSettings) -> None:
    """Checks that a local half runs, and returns what its class says; looks at no record.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        settings: The settings of the round, ``settings.local`` with them.

    Raises:
        ConfigError: The half fails, or returns what its class does not say.
    """
    half = settings.local
    plain = replace(
        settings, learning_rate=settings.learning_rate or 0.1, batching="poisson", noise=None, denoise="none", device="cpu"
    )  # fmt: skip
    with failing(f"The strategy's half at hospitals, {type(half).__qualname__}, fails on made-up gradients"):
        module = load(build, arrays)
        own = {name: arrays[name] for name in half.stays(module)}
        updates: Sequence[SiteUpdate | None] = (None, None)
        for number in (1, 2):
            sent = dict.fromkeys(half.receives, arrays), dict.fromkeys(half.takes, 1.0)
            work = [
                _without_records(site, number, own, update.state if update else {}, *sent)
                for site, update in enumerate(updates)
            ]
            updates = _MadeUp(module, arrays, work, plain).updates()


def _without_records(
    site: int, number: int, own: Arrays, state: Arrays, beside: Mapping[str, Arrays], config: Mapping[str, float]
) -> SiteWork:
    rows = Rows(np.zeros((1, 1)), np.zeros(1, int), np.zeros(1, int), 1)
    unused = system_stream()
    return SiteWork(
        rows, unused, unused, 1.0, state=state, own=own, beside=beside, config=config, number=site, round=number
    )
