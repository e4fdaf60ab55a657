"""Sums of clipped gradients of stacks of linear layers, hospital by hospital and in the processor's cache.

What ``training/stacked/linear.py`` computes for many hospitals at once, here without padding or passes over memory, for patients
with one row each: a hospital's result does not depend on the others. F features, P parameters; n rows at a time, of whose
values at a layer there are (width, n), so that all rows go side by side.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.loops import casts, compile_loop, inline
from polyclinic.loops.products import padded_size, product

f32, i32 = np.float32, np.int32
Numbers = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
#: What follows a layer, by its number in ``layers``.
NOTHING, RELU, TANH, SIGMOID = range(4)
#: Columns of ``layers``: where a layer's parameters begin, how wide it is, whether it has a bias, and what follows it.
START, INPUTS, OUTPUTS, BIAS, AFTER = range(5)
# Rows at a time.
_ROWS = 128
_TINY, _MARGIN = float(np.finfo(f32).tiny), 1.0 - 64 * float(np.finfo(f32).eps)


@cache
def clipped_sums() -> Any:
    """``_sums``, compiled."""
    exp, pad = {"_exp": inline(_exp, casts())}, {"padded_size": inline(padded_size)}
    bound = {
        "_forward": inline(_forward, exp), "_loss": inline(_loss, exp), "_backward": inline(_backward),
        "_gather": inline(_gather, pad), "_turn": inline(_turn, pad), "_scale": inline(_scale),
        "_add_squares": inline(_add_squares), "_product": product(), **pad,
    }  # fmt: skip
    table = "int64[:, ::1], float32[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[::1]"
    return compile_loop(_sums, f"void({table}, float64, float64, float32[:, ::1], float64[::1], boolean[::1])", bound)


def _product(*_: Any) -> None:
    """``products.product``, bound when this is compiled."""


def _sums(
    layers: Whole, theta: Numbers, x: Numbers, y: Whole, chosen: Whole, ends: Whole,
    max_norm: float, longest: float, out: Numbers, losses: Wide, left: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Fill (S, P) ``out`` and (S,) ``losses``; say in (S,) ``left`` which hospitals are left to others.

    A patient whose gradient is not finite counts as zero; a hospital is left where some layer's input is as long as
    ``longest``.

    Args:
        layers: (L, 5).
        theta: (S, P) models.
        x, y: The (N, F) rows and (N,) labels of all hospitals.
        chosen: The rows that are taken, sorted by hospital.
        ends: (S,) where each hospital's end.
        max_norm: 0 clips nothing.
        longest: The length of an input from which a hospital is left to others.
        out, losses, left: Filled.
    """
    count, widest = len(layers), x.shape[1]
    for layer in range(count):
        widest = max(widest, layers[layer, OUTPUTS])
    # What goes into each layer and comes out of the last, (width, rows); the same by rows, for products over them; slopes of the
    # losses at each layer's output.
    values = np.zeros((count + 1, widest * _ROWS), dtype=np.float32)
    turned = np.zeros((count, padded_size(widest) * _ROWS), dtype=np.float32)
    slopes = np.zeros((count, widest * _ROWS), dtype=np.float32)
    made = np.empty(widest * padded_size(widest), dtype=np.float32)
    labels = np.empty(_ROWS, dtype=np.int64)
    inputs, squares, lengths = np.empty((count, _ROWS)), np.empty(_ROWS), np.empty(_ROWS)
    for site in range(len(theta)):
        model, total, begin = theta[site], out[site], ends[site - 1] if site else 0
        losses[site] = 0.0
        if begin == ends[site]:
            total[:] = 0.0
        for first in range(begin, ends[site], _ROWS):
            n = min(_ROWS, ends[site] - first)
            w = padded_size(n)
            _gather(x, chosen[first : first + n], values[0], turned[0], w)
            for layer in range(count):
                start, wide, high = layers[layer, START], layers[layer, INPUTS], layers[layer, OUTPUTS]
                _product(model, start, wide, 1, values[layer], 0, w, values[layer + 1], 0, w, high, wide, w)
                offset = start + wide * high
                result = values[layer + 1][: high * w].reshape(high, w)
                _forward(model[offset : offset + high * layers[layer, BIAS]], layers[layer, AFTER], result)
                if layer + 1 < count:
                    _turn(result, turned[layer + 1], n)
            for i in range(n):
                labels[i] = y[chosen[first + i]]
            high = layers[count - 1, OUTPUTS]
            last = slopes[count - 1][: high * w].reshape(high, w)
            losses[site] += _loss(values[count][: high * w].reshape(high, w), labels[:n], last)
            for layer in range(count - 1, 0, -1):
                start, wide, high = layers[layer, START], layers[layer, INPUTS], layers[layer, OUTPUTS]
                _product(model, start, 1, wide, slopes[layer], 0, w, slopes[layer - 1], 0, w, wide, high, w)
                shape = wide, w
                before, slope = values[layer][: wide * w].reshape(shape), slopes[layer - 1][: wide * w].reshape(shape)
                _backward(before, layers[layer - 1, AFTER], slope)
            if max_norm > 0:
                squares[:] = 0.0
                for layer in range(count):
                    wide, high = layers[layer, INPUTS], layers[layer, OUTPUTS]
                    inputs[layer], lengths[:] = 0.0, 0.0
                    _add_squares(values[layer][: wide * w].reshape(wide, w), inputs[layer])
                    _add_squares(slopes[layer][: high * w].reshape(high, w), lengths)
                    for i in range(n):
                        squares[i] += lengths[i] * (inputs[layer, i] + layers[layer, BIAS])
                        left[site] |= np.sqrt(inputs[layer, i]) >= longest  # never what is not a number
                for i in range(n):
                    # What is not finite counts as zero, and its factor times it would not be.
                    if not np.isfinite(squares[i]):
                        for layer in range(count):
                            wide, high = padded_size(layers[layer, INPUTS]), layers[layer, OUTPUTS]
                            turned[layer, i * wide : (i + 1) * wide] = 0.0
                            for j in range(high):
                                slopes[layer, j * w + i] = 0.0
                    factor = min(1.0, max_norm / (np.sqrt(squares[i]) + 1e-6)) * _MARGIN
                    lengths[i] = factor if np.isfinite(squares[i]) and factor >= _TINY else 0.0
                for layer in range(count):
                    _scale(slopes[layer], layers[layer, OUTPUTS], w, lengths[:n])
            for layer in range(count):
                start, wide, high = layers[layer, START], layers[layer, INPUTS], layers[layer, OUTPUTS]
                long = padded_size(wide)
                _product(slopes[layer], 0, w, 1, turned[layer], 0, long, made, 0, long, high, n, long)
                offset = start + wide * high
                if first == begin:
                    total[start : offset + high * layers[layer, BIAS]] = 0.0
                for j in range(high):
                    part, row = total[start + j * wide : start + (j + 1) * wide], made[j * long : j * long + wide]
                    for k in range(wide):
                        part[k] += row[k]
                    if layers[layer, BIAS]:
                        together = 0.0
                        for i in range(n):
                            together += np.float64(slopes[layer, j * w + i])
                        total[offset + j] += f32(together)


def _gather(x: Numbers, chosen: Whole, values: Numbers, turned: Numbers, w: int) -> None:
    """Chosen rows of ``x`` one beside the other, (F, w) and zero where there is none, and one below the other."""
    n, wide = len(chosen), x.shape[1]
    long = padded_size(wide)
    for i in range(n):
        row, below = x[chosen[i]], turned[i * long : i * long + wide]
        for j in range(wide):
            below[j] = row[j]
    for j in range(wide):
        beside = values[j * w : (j + 1) * w]
        for i in range(n):
            beside[i] = turned[i * long + j]
        beside[n:] = 0.0


def _turn(values: Numbers, turned: Numbers, n: int) -> None:
    long = padded_size(len(values))
    for i in range(n):
        below = turned[i * long : i * long + len(values)]
        for j in range(len(below)):
            below[j] = values[j, i]


def _scale(slopes: Numbers, high: int, w: int, factors: Wide) -> None:
    for j in range(high):
        part = slopes[j * w : j * w + len(factors)]
        for i in range(len(factors)):
            part[i] *= f32(factors[i])


def _exp(value: Any) -> Any:
    """e^value of a float32 between -87 and 88; Moshier's Cephes."""
    x = min(max(value, f32(-87.0)), f32(88.0))
    power = np.floor(x * f32(1.44269504088896341) + f32(0.5))
    x = x - power * f32(0.693359375) + power * f32(2.12194440e-4)
    p = f32(1.9875691500e-4) * x + f32(1.3981999507e-3)
    p = p * x + f32(8.3334519073e-3)
    p = p * x + f32(4.1665795894e-2)
    p = p * x + f32(1.6666665459e-1)
    p = p * x + f32(5.0000001201e-1)
    return (p * (x * x) + x + f32(1)) * _value(i32(i32(i32(power) + i32(127)) << i32(23)))  # type: ignore[name-defined]  # noqa: F821


def _forward(offset: Numbers, after: int, values: Numbers) -> None:
    """Add the layer's offset, if it has one, and take the function that follows; a NaN stays one."""
    for j in range(len(values)):
        row, add = values[j], f32(0)
        if len(offset):
            add = offset[j]
        if after == RELU:
            for i in range(len(row)):
                value = row[i] + add
                row[i] = f32(0) if value <= f32(0) else value
        elif after == TANH:
            for i in range(len(row)):
                value = row[i] + add
                made = f32(2) / (f32(1) + _exp(f32(-2) * value)) - f32(1)
                row[i] = made if value == value else value
        elif after == SIGMOID:
            for i in range(len(row)):
                value = row[i] + add
                made = f32(1) / (f32(1) + _exp(-value))
                row[i] = made if value == value else value
        else:
            for i in range(len(row)):
                row[i] += add


def _backward(values: Numbers, after: int, slopes: Numbers) -> None:
    """The slopes before the function that gave ``values``, in place of those after it."""
    for j in range(len(values)):
        row, slope = values[j], slopes[j]
        if after == RELU:
            for i in range(len(row)):
                slope[i] = f32(0) if row[i] <= f32(0) else slope[i]
        elif after == TANH:
            for i in range(len(row)):
                slope[i] *= f32(1) - row[i] * row[i]
        elif after == SIGMOID:
            for i in range(len(row)):
                slope[i] *= (f32(1) - row[i]) * row[i]


def _loss(outputs: Numbers, labels: Whole, slopes: Numbers) -> float:
    """The summed entropies of labels under the logits, and the slopes of each; one logit is that of class 1, beside 0."""
    total, classes, n = 0.0, len(outputs), len(labels)
    slopes[:, n:] = 0.0
    if classes == 1:
        for i in range(n):
            logit, label = outputs[0, i], f32(labels[i])
            size = abs(logit)
            small = _exp(-size)
            chance = (f32(1) if logit >= f32(0) else small) / (f32(1) + small)
            slopes[0, i] = (chance if logit == logit else logit) - label
            loss = (
                max(np.float64(logit), 0.0)
                - np.float64(logit) * np.float64(label)
                + np.log1p(np.exp(-np.float64(size)))
            )
            total += loss if logit == logit else np.nan
        return total
    for i in range(n):
        most = outputs[0, i]
        for j in range(1, classes):
            most = max(most, outputs[j, i])
        total_of = f32(0)
        for j in range(classes):
            apart = outputs[j, i] - most
            chance = _exp(apart) if apart == apart else apart
            slopes[j, i] = chance
            total_of += chance
        for j in range(classes):
            slopes[j, i] /= total_of
        total += np.log(np.float64(total_of)) - (np.float64(outputs[labels[i], i]) - np.float64(most))
        slopes[labels[i], i] -= f32(1)
    return total


def _add_squares(values: Numbers, squares: Wide) -> None:
    for j in range(len(values)):
        row = values[j]
        for i in range(len(row)):
            squares[i] += np.float64(row[i]) * np.float64(row[i])
