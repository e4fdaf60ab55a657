"""Random streams. Private noise and sampling of a real hospital come from the operating system's entropy; a simulation
uses streams keyed by (seed, site, round, ...), reproducible and therefore no protection. There is no global state.
"""

from __future__ import annotations

import json
import math
import os
from hashlib import blake2b
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Size = int | tuple[int, ...]


class Stream(Protocol):
    """A source of independent draws."""

    def uniform(self, size: Size) -> FloatArray:
        """Uniform draws in [0, 1), of shape ``size``."""
        ...

    def normal(self, size: Size) -> FloatArray:
        """Standard normal draws, of shape ``size``."""
        ...


class _Keyed:
    def __init__(self, source: np.random.Generator) -> None:
        self._source = source

    def uniform(self, size: Size) -> FloatArray:
        return self._source.random(size)

    def normal(self, size: Size) -> FloatArray:
        return self._source.standard_normal(size)


class _System:
    def uniform(self, size: Size) -> FloatArray:
        shape = (size,) if isinstance(size, int) else size
        words = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64)
        return ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, size: Size) -> FloatArray:
        shape = (size,) if isinstance(size, int) else size
        count = math.prod(shape)
        pairs = (count + 1) // 2
        # Box and Muller 1958; 1 - u lies in (0, 1], so that the logarithm is finite.
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(pairs)))
        angle = 2.0 * np.pi * self.uniform(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def system_stream() -> Stream:
    """A stream of the operating system's entropy (``os.urandom``, 53-bit uniforms): what a real hospital uses."""
    return _System()


def keyed_stream(seed: int, *key: str | int) -> Stream:
    """A reproducible stream for simulations, independent for every distinct (seed, *key)."""
    return _Keyed(generator(seed, *key))


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """A reproducible NumPy generator (Philox) for draws that need no privacy, such as partitions and cohorts."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, key), "little")))


def torch_seed(seed: int, *key: str | int) -> int:
    """A seed in [0, 2^63) for a local ``torch.Generator``, keyed like ``generator``."""
    return int.from_bytes(_digest(seed, key)[:8], "little") >> 1


def _digest(seed: int, key: tuple[str | int, ...]) -> bytes:
    # JSON keeps ("1",) apart from (1,) and ("a", "b") apart from ("ab",).
    canonical = json.dumps([int(seed), *(part if isinstance(part, str) else int(part) for part in key)])
    return blake2b(canonical.encode(), digest_size=16).digest()
