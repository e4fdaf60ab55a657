"""Normal and uniform draws from words of Philox4x64-10, NumPy's: whichever form computes them, bit for bit the same.

Where a draw stands in its stream is a number of words, so that any part can be had without what comes before it. Salmon et
al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Box and Muller 1958; the polynomials are those of Moshier's Cephes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyclinic.loops import casts, compile_loop, inline

f32, i32, u32, u64 = np.float32, np.int32, np.uint32, np.uint64
Words = npt.NDArray[np.uint64]
# The compiled form takes as many words at once as stay in the processor's first cache, NumPy's as stay in its second.
_PIECE, _NUMPY_PIECE = 1024, 1 << 12
# Draws without numba, at 10 ns more each, that take as long as to load it.
_PAYS = 1 << 25
_drawn = 0


def normal(key: int, at: int, out: npt.NDArray[np.float32]) -> int:
    """Fill ``out`` with normal draws and return the place of the word after them.

    A word has two draws; each of the n rows takes whole words.

    Args:
        key: Of the stream, 128 bits.
        at: The word of the stream at which the draws begin.
        out: (n, k), contiguous.
    """
    width = (int(out.shape[1]) + 1) // 2
    if loops := _loops(out.size):
        loops.normal(*_halves(key), u64(at), out)
    elif out.size:
        words = _words(key, at, len(out) * width)
        pairs = np.empty((len(words), 2), dtype=f32) if out.shape[1] % 2 else out.reshape(-1, 2)
        for begin in range(0, len(words), _NUMPY_PIECE):
            part = words[begin : begin + _NUMPY_PIECE]
            low, high = (part & u64(0xFFFFFFFF)).astype(u32), (part >> u64(32)).astype(u32)
            pairs[begin : begin + len(part), 0], pairs[begin : begin + len(part), 1] = _pair(low, high)
        if out.shape[1] % 2:
            out[:] = pairs.reshape(len(out), 2 * width)[:, :-1]
    return at + len(out) * width


def add_normal(keys: Words, at: Words, scale: float, out: npt.NDArray[np.float32]) -> None:
    """Add ``scale`` times normal draws to ``out``: to row i as ``normal`` draws it from ``at[i]`` on.

    Args:
        keys: (n, 2), the lower and the upper half of each row's key.
        at: (n,) the word of each row's stream at which its draws begin.
        scale: The standard deviation of what is added.
        out: (n, k), contiguous.
    """
    load().add_normal(keys, at, f32(scale), out)


def uniform(key: int, at: int, out: npt.NDArray[np.float64]) -> int:
    """Fill ``out`` with multiples of 2^-53 in [0, 1), one a word, and return the place of the word after them.

    Args:
        key: Of the stream, 128 bits.
        at: The word of the stream at which the draws begin.
        out: (n,), contiguous.
    """
    if loops := _loops(out.size):
        loops.uniform(*_halves(key), u64(at), out)
    elif out.size:
        np.multiply(_words(key, at, len(out)) >> u64(11), 2.0**-53, out=out)
    return at + len(out)


def _words(key: int, at: int, count: int) -> Words:
    words: Words = np.random.Philox(key=key, counter=at // 4).random_raw(at % 4 + count)
    return words[at % 4 :]


def _halves(key: int) -> tuple[np.uint64, np.uint64]:
    return u64(key & (2**64 - 1)), u64(key >> 64)


def _loops(draws: int) -> _Loops | None:
    """The compiled form, where numba is there already or has become worth its loading."""
    global _drawn
    if "numba" not in sys.modules:
        _drawn += draws
        if _drawn < _PAYS:
            return None
    return load()


class _Loops(NamedTuple):
    normal: Callable[..., None]
    uniform: Callable[..., None]
    add_normal: Callable[..., None]


@cache
def load() -> _Loops:
    """The compiled form, which all later draws of the process take."""
    names = {"_int": i32, "_uint": u32, **casts()}
    words = {"_round": inline(_round, {"_product": inline(_product)})}
    inner = {
        "_fill_words": inline(_fill_words, words),
        "_fill_pairs": inline(_fill_pairs, {"_pair": inline(_pair, names)}),
    }
    begin = "void(uint64, uint64, uint64, "
    return _Loops(
        compile_loop(_normal, begin + "float32[:, ::1])", inner),
        compile_loop(_uniform, begin + "float64[::1])", inner),
        compile_loop(_add_normal, "void(uint64[:, ::1], uint64[::1], float32, float32[:, ::1])", inner),
    )


def _normal(key: np.uint64, other: np.uint64, at: np.uint64, out: npt.NDArray[np.float32]) -> None:
    words, last = np.empty(_PIECE, dtype=np.uint64), np.empty(2, dtype=np.float32)
    rows, size = out.shape
    if size % 2 == 0:  # all rows are one
        rows, size = 1, rows * size
    flat, width = out.reshape(out.size), (size + 1) // 2
    for row in range(rows):
        done = 0
        while done < width:
            skip = int(at % u64(4))
            some = min(width - done, _PIECE - skip)
            _fill_words(key, other, at // u64(4), words[: (skip + some + 3) // 4 * 4])
            whole = min(some, size // 2 - done)
            begin = row * size + 2 * done
            _fill_pairs(words[skip : skip + whole], flat[begin : begin + 2 * whole])
            if whole < some:
                _fill_pairs(words[skip + whole : skip + some], last)
                flat[row * size + size - 1] = last[0]
            done += some
            at += u64(some)


def _add_normal(keys: Words, at: Words, scale: np.float32, out: npt.NDArray[np.float32]) -> None:
    words, pairs = np.empty(_PIECE, dtype=np.uint64), np.empty(2 * _PIECE, dtype=np.float32)
    size = out.shape[1]
    for row in range(len(out)):
        line, place, done = out[row], at[row], 0
        while done < size:
            skip = int(place % u64(4))
            some = min((size - done + 1) // 2, _PIECE - skip)
            _fill_words(keys[row, 0], keys[row, 1], place // u64(4), words[: (skip + some + 3) // 4 * 4])
            _fill_pairs(words[skip : skip + some], pairs[: 2 * some])
            part = line[done : done + 2 * some]
            for i in range(len(part)):
                part[i] += scale * pairs[i]
            done += 2 * some
            place += u64(some)


def _uniform(key: np.uint64, other: np.uint64, at: np.uint64, out: npt.NDArray[np.float64]) -> None:
    words = np.empty(_PIECE, dtype=np.uint64)
    done = 0
    while done < len(out):
        skip = int(at % u64(4))
        some = min(len(out) - done, _PIECE - skip)
        _fill_words(key, other, at // u64(4), words[: (skip + some + 3) // 4 * 4])
        for i in range(some):
            out[done + i] = np.float64(words[skip + i] >> u64(11)) * 2.0**-53
        done += some
        at += u64(some)


def _fill_words(key: np.uint64, other: np.uint64, block: np.uint64, out: Words) -> None:
    """The words of whole blocks of four, from this one on. The rounds are written out so that blocks go side by side."""
    for i in range(len(out) // 4):
        a, b, c, d, k, o = block + u64(i + 1), u64(0), u64(0), u64(0), key, other
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        a, b, c, d, k, o = _round(a, b, c, d, k, o)
        out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3], k, o = _round(a, b, c, d, k, o)


def _round(a: Any, b: Any, c: Any, d: Any, key: Any, other: Any) -> Any:
    high, low = _product(u64(0xD2E7470EE14C6C93), a)
    at_c, low_c = _product(u64(0xCA5A826395121157), c)
    key_after, other_after = key + u64(0x9E3779B97F4A7C15), other + u64(0xBB67AE8584CAA73B)
    return at_c ^ b ^ key, low_c, high ^ d ^ other, low, key_after, other_after


def _product(a: Any, b: Any) -> Any:
    """The upper and the lower word of a product, by products of halves, which processors have for several words at once."""
    low, half = u64(0xFFFFFFFF), u64(32)
    first = (a & low) * (b & low)
    middle = (a >> half) * (b & low) + (first >> half)
    other = (a & low) * (b >> half) + (middle & low)
    return (a >> half) * (b >> half) + (middle >> half) + (other >> half), other << half | first & low


def _fill_pairs(words: Words, out: npt.NDArray[np.float32]) -> None:
    for i in range(len(words)):
        out[2 * i], out[2 * i + 1] = _pair(u32(words[i] & u64(0xFFFFFFFF)), u32(words[i] >> u64(32)))


def _int(values: Any) -> Any:
    """Of the same bits, as all numbers here of 32; of a single number what is left of it in 32 bits."""
    return values.view(i32)


def _uint(values: Any) -> Any:
    """As ``_int``, without a sign."""
    return values.view(u32)


def _bits(value: Any) -> Any:
    """The bits of a float32."""
    return value.view(i32)


def _value(bits: Any) -> Any:
    """The float32 of these bits."""
    return bits.view(f32)


def _pair(low: Any, high: Any) -> Any:
    """Two normal draws of two uniform uint32, numbers or arrays: sqrt(-2 log u) times the cosine and the sine of an angle.

    u = (low + 1) / 2^32 reaches 6.66 deviations. Every step is rounded to float32, so that NumPy and numba agree.
    """
    u = (f32(low) + f32(1)) * f32(2.0**-32)
    # u = mantissa * 2^exponent, with the mantissa between the roots of 1/2 and 2.
    exponent = _int((_bits(u) - i32(0x3F3504F3)) >> i32(23))
    x = _value(_int(_bits(u) - (exponent << i32(23)))) - f32(1)
    xx, power = x * x, f32(exponent)
    p = f32(7.0376836292e-2) * x - f32(1.1514610310e-1)
    p = p * x + f32(1.1676998740e-1)
    p = p * x - f32(1.2420140846e-1)
    p = p * x + f32(1.4249322787e-1)
    p = p * x - f32(1.6668057665e-1)
    p = p * x + f32(2.0000714765e-1)
    p = p * x - f32(2.4999993993e-1)
    p = p * x + f32(3.3333331174e-1)
    log = x * (xx * p) - power * f32(2.12194440e-4) - f32(0.5) * xx + x + power * f32(0.693359375)
    radius = np.sqrt(f32(-2) * log)
    # The angle as quarter turns, and the rest of at most an eighth.
    quarter = _uint(_uint(high + u32(1 << 29)) >> u32(30))
    y = f32(_int(high - (quarter << u32(30)))) * f32(2 * math.pi * 2.0**-32)
    yy = y * y
    s = (f32(8.3321608736e-3) - f32(1.9515295891e-4) * yy) * yy - f32(1.6666654611e-1)
    sine = s * yy * y + y
    c = (f32(2.443315711809948e-5) * yy - f32(1.388731625493765e-3)) * yy + f32(4.166664568298827e-2)
    cosine = c * yy * yy - f32(0.5) * yy + f32(1)
    # They change places in every other quarter; the cosine is negative in the second and third, the sine in the last two.
    apart = _int((_bits(sine) ^ _bits(cosine)) & -_int(quarter & u32(1)))
    first = _int(_bits(cosine) ^ apart ^ _int((quarter + u32(1) & u32(2)) << u32(30)))
    second = _int(_bits(sine) ^ apart ^ _int((quarter & u32(2)) << u32(30)))
    return radius * _value(first), radius * _value(second)
