"""Exact random whole numbers for released values: discrete Laplace, discrete Gaussian, choices by weight. No draw ever
passes through a logarithm or any other rounded function, so no low bit tells of the value that it hides.

Additive noise of a real hospital is OpenDP's, from the system's entropy. A simulation's, and all other draws, follow
Canonne, Kamath and Steinke 2020 ("CKS") on Python's whole numbers, from the words of the stream.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from polyclinic.privacy.streams import Stream, is_system
from polyclinic.types import Ints

Shape = Literal["laplace", "gaussian"]
_WORD = 53  # bits in a uniform draw of a stream
_AT_ONCE = 64


def noise(shape: Shape, scale: float, count: int, stream: Stream) -> list[int]:
    """``count`` independent whole numbers with probability proportional to exp(-|x| / scale), or exp(-x^2 / (2 scale^2)).

    Args:
        shape: "laplace" is the first of these, "gaussian" the second.
        scale: Positive and finite, taken as the exact fraction that the float is.
        count: How many numbers.
        stream: A hospital's draws from the system's entropy, a simulation's from its seed.

    Raises:
        ValueError: if the scale is not positive and finite.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale}.")
    if is_system(stream):
        return list(_measurement(shape, scale)([0] * count))
    coins, exact = Coins(stream), Fraction(scale)
    draw = coins.laplace if shape == "laplace" else coins.gaussian
    return [draw(exact) for _ in range(count)]


@lru_cache(maxsize=64)
def _measurement(shape: Shape, scale: float) -> Any:
    """OpenDP's mechanism on 64-bit whole numbers: ``scale`` is taken exactly, and only a sum beyond 2^63 is cut."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if shape == "laplace":
        return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)
    return dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=scale)


def whole_below(n: int, size: int, stream: Stream) -> Ints:
    """(size,) independent uniform draws of 0..n-1, exactly uniform: words that would favour a number are drawn again.

    Args:
        n: Number of values.
        size: Number of draws.
        stream: Gives the words.
    """
    limit = 2**_WORD - 2**_WORD % n
    draws: list[Ints] = []
    lacking = size
    while lacking:
        words = np.ldexp(stream.uniform(lacking), _WORD).astype(np.int64)
        draws.append(words[words < limit] % n)
        lacking -= len(draws[-1])
    return np.concatenate([np.empty(0, dtype=np.int64), *draws])


class Coins:
    """Exact draws on whole numbers from the words of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._words: list[int] = []

    def below(self, n: int) -> int:
        """Uniform on 0..n-1."""
        bits = (n - 1).bit_length()
        while (number := self._bits(bits)) >= n:
            pass
        return number

    def flip_exp(self, exponent: Fraction) -> bool:
        """True with probability exp(-exponent), for any exponent that is not negative. CKS, Section 5."""
        whole, rest = divmod(exponent.numerator, exponent.denominator)
        return all(self._flip_exp_below_one(1, 1) for _ in range(whole)) and self._flip_exp_below_one(
            rest, exponent.denominator
        )

    def _flip_exp_below_one(self, numerator: int, denominator: int) -> bool:
        turn = 1
        while self.below(denominator * turn) < numerator:
            turn += 1
        return turn % 2 == 1

    def laplace(self, scale: Fraction) -> int:
        """Probability proportional to exp(-|x| / scale). CKS, Section 5.2."""
        t, s = scale.numerator, scale.denominator
        while True:
            low = self.below(t)
            shared = math.gcd(low, t)
            if not self._flip_exp_below_one(low // shared, t // shared):
                continue
            high = 0
            while self._flip_exp_below_one(1, 1):
                high += 1
            size = (low + t * high) // s
            if self._bits(1):
                return size
            if size:
                return -size

    def gaussian(self, scale: Fraction) -> int:
        """Probability proportional to exp(-x^2 / (2 scale^2)). CKS, Section 5."""
        p, q = scale.numerator, scale.denominator
        wide = p // q + 1
        step, under = wide * q * q, 2 * (wide * p * q) ** 2
        while True:
            candidate = self.laplace(Fraction(wide))
            # (|x| - scale^2 / wide)^2 / (2 scale^2) over one denominator: sums of fractions took most of the time.
            if self.flip_exp(Fraction((abs(candidate) * step - p * p) ** 2, under)):
                return candidate

    def _bits(self, count: int) -> int:
        value, have = 0, 0
        while have < count:
            if not self._words:
                self._words = [int(word) for word in np.ldexp(self._stream.uniform(_AT_ONCE), _WORD)]
            value, have = value << _WORD | self._words.pop(), have + _WORD
        return value >> (have - count)
