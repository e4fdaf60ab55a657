"""The root and the least value of a function of one number, as SciPy's ``brentq`` and ``minimize_scalar`` to the last bit.

They are here because every run needs one of each, and ``scipy.optimize`` takes a tenth of a second to load.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS, _RTOL = 100, 4 * 2.0**-52
_GOLDEN, _SQRT_EPS, _MOST_CALLS = 0.5 * (3.0 - math.sqrt(5.0)), math.sqrt(2.2e-16), 500


def root(f: Callable[[float], float], low: float, high: float, xtol: float = 2e-12, rtol: float = _RTOL) -> float:
    """Where ``f`` is zero between two numbers at which it has unlike signs; Brent 1973, chapter 4.

    Raises ValueError for numbers at which the signs are alike, RuntimeError for a search that does not end.
    """
    before, now, beyond = low, high, 0.0
    at_before, at_now, at_beyond = f(before), f(now), 0.0
    if at_before == 0:
        return before
    if at_now == 0:
        return now
    if (at_before < 0) == (at_now < 0):
        raise ValueError(f"The function has one sign at {low:g} and {high:g}.")
    earlier = step = 0.0
    for _ in range(_STEPS):
        if at_before != 0 and at_now != 0 and (at_before < 0) != (at_now < 0):
            beyond, at_beyond = before, at_before
            earlier = step = now - before
        if abs(at_beyond) < abs(at_now):
            before, now, beyond = now, beyond, now
            at_before, at_now, at_beyond = at_now, at_beyond, at_now
        delta, half = (xtol + rtol * abs(now)) / 2, (beyond - now) / 2
        if at_now == 0 or abs(half) < delta:
            return now
        tried = math.inf
        if abs(earlier) > delta and abs(at_now) < abs(at_before):
            if before == beyond:
                tried = -at_now * (now - before) / (at_now - at_before)
            else:
                near, far = (at_before - at_now) / (before - now), (at_beyond - at_now) / (beyond - now)
                tried = -at_now * (at_beyond * far - at_before * near) / (far * near * (at_beyond - at_before))
        trusted = 2 * abs(tried) < min(abs(earlier), 3 * abs(half) - delta)
        earlier, step = (step, tried) if trusted else (half, half)
        before, at_before = now, at_now
        now += step if abs(step) > delta else math.copysign(delta, half)
        at_now = f(now)
    raise RuntimeError(f"The search between {low:g} and {high:g} did not end.")


def least(f: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """The least value of ``f`` that a search between two numbers finds, by parabolas and golden sections; Brent 1973."""
    best = second = third = low + _GOLDEN * (high - low)
    at_best = at_second = at_third = f(best)
    earlier = step = 0.0
    for _ in range(_MOST_CALLS - 1):
        middle, tol = 0.5 * (low + high), _SQRT_EPS * abs(best) + xtol / 3.0
        if abs(best - middle) <= 2.0 * tol - 0.5 * (high - low):
            break
        golden = True
        if abs(earlier) > tol:
            r, q = (best - second) * (at_best - at_third), (best - third) * (at_best - at_second)
            p, q = (best - third) * q - (best - second) * r, 2.0 * (q - r)
            p, q = (-p if q > 0.0 else p), abs(q)
            r, earlier = earlier, step
            if abs(p) < abs(0.5 * q * r) and q * (low - best) < p < q * (high - best):
                golden, step = False, p / q
                x = best + step
                if x - low < 2.0 * tol or high - x < 2.0 * tol:
                    step = tol if middle >= best else -tol
        if golden:
            earlier = (low if best >= middle else high) - best
            step = _GOLDEN * earlier
        x = best + (1.0 if step >= 0 else -1.0) * max(abs(step), tol)
        at_x = f(x)
        if at_x <= at_best:
            low, high = (best, high) if x >= best else (low, best)
            third, at_third, second, at_second, best, at_best = second, at_second, best, at_best, x, at_x
        else:
            low, high = (x, high) if x < best else (low, x)
            if at_x <= at_second or second == best:
                third, at_third, second, at_second = second, at_second, x, at_x
            elif at_x <= at_third or third in (best, second):
                third, at_third = x, at_x
    return at_best
