"""Dropout for sites in a stack: each site's masks come from its own seed, whatever is stacked with it.

S sites, B rows. A site's draws for a layer go on from one row to the next, so that neither padding nor cutting a batch
in parts changes them. Srivastava et al. 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyclinic.privacy.streams import generator, system_stream


@dataclass(frozen=True)
class Dropped:
    """Dropout at ``rate`` in (0, 1], as a layer of a plan."""

    rate: float


class Masks:
    """The masks that sites of these ``seeds`` draw in one call of training; None takes seeds of the system's entropy."""

    def __init__(self, seeds: Sequence[int] | None) -> None:
        self._seeds = seeds
        self._draws: dict[tuple[int, int], np.random.Generator] = {}

    def mask(self, layer: int, rate: float, like: Tensor, real: Tensor) -> Tensor:
        """What to multiply ``like`` (S, B, ...) with: 0, or 1 / (1 - rate). Zero where a row is not ``real`` (S, B)."""
        if self._seeds is None:
            self._seeds = [int(seed) for seed in system_stream().uniform(len(like)) * 2**53]
        scale = 0.0 if rate == 1 else 1.0 / (1.0 - rate)
        rows = real.cpu().numpy()
        mask = np.zeros(like.shape, dtype=np.float32)
        for site, here in enumerate(rows):
            drawn = self._generator(site, layer).random((int(here.sum()), *like.shape[2:]), dtype=np.float32)
            mask[site, here] = drawn >= rate
        return torch.from_numpy(mask).to(like).mul_(scale)

    def _generator(self, site: int, layer: int) -> np.random.Generator:
        if (site, layer) not in self._draws:
            assert self._seeds is not None
            self._draws[site, layer] = generator(self._seeds[site], "dropout", layer)
        return self._draws[site, layer]
