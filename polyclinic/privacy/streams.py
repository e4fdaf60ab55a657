"""Random streams. Private noise and sampling of a real hospital come from the operating system's entropy; a simulation
uses streams keyed by (seed, site, round, ...), reproducible and therefore no protection. There is no global state.
"""

from __future__ import annotations

import json
import math
import os
from functools import cached_property
from hashlib import blake2b
from typing import Protocol

import numpy as np

from polyclinic.types import Reals

Size = int | tuple[int, ...]
# The least delta that is enforced: what is drawn in floating point lacks the tails that a far smaller one speaks of.
LEAST_DELTA = 1e-12


class Stream(Protocol):
    """A source of independent draws."""

    def uniform(self, size: Size) -> Reals:
        """Uniform float64 draws in [0, 1), of shape ``size``."""
        ...

    def normal(self, size: Size) -> Reals:
        """Standard normal draws of shape ``size``: float64 of the system's entropy, float32 of a simulation.

        A draw of shape (n, k) is n draws of shape (k,).
        """
        ...


class _Keyed:
    """Philox words keyed by (seed, *key); begun at the first draw, since most sites never need most of their streams."""

    def __init__(self, seed: int, key: tuple[str | int, ...]) -> None:
        self._of, self._at = (seed, key), 0

    @cached_property
    def _key(self) -> int:
        return int.from_bytes(_digest(*self._of), "little")

    def take(self, words: int) -> tuple[int, int]:
        self._at += words
        return self._key, self._at - words

    def uniform(self, size: Size) -> Reals:
        from polyclinic.loops import normals  # here, as a real hospital has no keyed streams

        out = np.empty(math.prod(_shape(size)))
        self._at = normals.uniform(self._key, self._at, out)
        return out.reshape(size)

    def normal(self, size: Size) -> Reals:
        from polyclinic.loops import normals

        *leading, last = _shape(size) or (1,)
        # A row takes whole words, so that rows drawn together are those drawn one by one.
        out = np.empty((math.prod(leading), last), dtype=np.float32)
        self._at = normals.normal(self._key, self._at, out)
        return out.reshape(size)


class _System:
    def uniform(self, size: Size) -> Reals:
        shape = _shape(size)
        words = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64)
        return ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, size: Size) -> Reals:
        shape = _shape(size)
        count = math.prod(shape)
        pairs = (count + 1) // 2
        # Box and Muller 1958.
        radius = np.sqrt(-2.0 * np.log(_fine_uniform(pairs)))
        angle = 2.0 * np.pi * self.uniform(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def _fine_uniform(count: int) -> Reals:
    """Uniform draws in (0, 1], of 128 bits near 0, so that normal draws from them reach 13.3 deviations and not 8.6."""
    high, low = (np.frombuffer(os.urandom(8 * count), dtype=np.uint64).astype(np.float64) for _ in range(2))
    return np.ldexp(high, -64) + np.ldexp(low + 1, -128)


def system_stream() -> Stream:
    """A stream of the operating system's entropy (``os.urandom``): what a real hospital uses.

    Examples:
        >>> system_stream().uniform(3).shape, is_system(system_stream())
        ((3,), True)
    """
    return _System()


def is_system(stream: Stream) -> bool:
    """Whether the stream is the system's, so that another source of the system's entropy may stand for it.

    Examples:
        >>> is_system(system_stream()), is_system(keyed_stream(0, "north"))
        (True, False)
    """
    return isinstance(stream, _System)


def keyed_stream(seed: int, *key: str | int) -> Stream:
    """A reproducible stream for simulations, independent for every distinct (seed, *key).

    Examples:
        >>> keyed_stream(0, "north", 1).uniform(2).round(3).tolist()
        [0.258, 0.902]
        >>> keyed_stream(0, "north", 2).uniform(2).round(3).tolist()
        [0.462, 0.309]
    """
    return _Keyed(seed, key)


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """A reproducible NumPy generator (Philox) for draws that need no privacy, such as partitions and cohorts.

    Examples:
        >>> generator(0, "split").permutation(5).tolist() == generator(0, "split").permutation(5).tolist()
        True
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, key), "little")))


def take_words(stream: Stream, words: int) -> tuple[int, int] | None:
    """The key of a keyed stream and which of its words is next, for who draws the next ``words`` without it; None of another.

    Examples:
        >>> stream = keyed_stream(0, "north")
        >>> [word for _, word in (take_words(stream, 10), take_words(stream, 10))], take_words(system_stream(), 10)
        ([0, 10], None)
    """
    if not isinstance(stream, _Keyed):
        return None
    return stream.take(words)


def torch_seed(seed: int, *key: str | int) -> int:
    """A seed in [0, 2^63) for a local ``torch.Generator``, keyed like ``generator``.

    Examples:
        >>> torch_seed(0, "model") == torch_seed(0, "model"), torch_seed(0, "model") == torch_seed(1, "model")
        (True, False)
    """
    return int.from_bytes(_digest(seed, key)[:8], "little") >> 1


def _shape(size: Size) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else size


def _digest(seed: int, key: tuple[str | int, ...]) -> bytes:
    # JSON keeps ("1",) apart from (1,) and ("a", "b") apart from ("ab",).
    canonical = json.dumps([int(seed), *(part if isinstance(part, str) else int(part) for part in key)])
    return blake2b(canonical.encode(), digest_size=16).digest()
