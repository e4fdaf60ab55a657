"""Numbers as words, and the colours of figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from polyclinic.evaluation.intervals import Interval

BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#555555"


def spread(values: Sequence[float | None], digits: int = 3, signed: bool = False) -> str:
    """Mean and, of several, standard deviation over seeds; ``-`` where one is undefined."""
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return "-"
    sign = "+" if signed else ""
    mean = f"{fmean(found):{sign}.{digits}f}"
    return mean if len(found) < 2 else f"{mean} ± {stdev(found):.{digits}f}"


def estimate(values: Sequence[float | None], digits: int = 3, signed: bool = False) -> str:
    """Mean over seeds and, of several, its standard error; ``-`` where one is undefined."""
    average = mean(values)
    clear = [value for value in values if value is not None]
    error = f" ± {stdev(clear) / len(clear) ** 0.5:.{digits}f}" if average is not None and len(clear) > 1 else ""
    return number(average, digits, signed) + error


def margin(values: Sequence[float | None], goal: float, least: bool = True) -> float | None:
    """By how many standard errors the mean is at least ``goal`` (or at most); ``None`` of one value and of equal ones."""
    clear = [value for value in values if value is not None]
    error = stdev(clear) / len(clear) ** 0.5 if len(clear) > 1 else 0.0
    return (1 if least else -1) * (fmean(clear) - goal) / error if error else None


def smallest(margins: Iterable[float | None]) -> float | None:
    """The smallest that there is."""
    return min((one for one in margins if one is not None), default=None)


def between(one: Interval, digits: int = 3, signed: bool = False) -> str:
    """A value with its interval in brackets; ``-`` where it is undefined."""
    if one.value is None:
        return "-"
    sign = "+" if signed else ""
    if one.low is None or one.high is None:
        return f"{one.value:{sign}.{digits}f}"
    return f"{one.value:{sign}.{digits}f} ({one.low:{sign}.{digits}f} to {one.high:{sign}.{digits}f})"


def mean(values: Sequence[float | None]) -> float | None:
    """``None`` where a value is, or where there is none."""
    found = [value for value in values if value is not None]
    return fmean(found) if found and len(found) == len(values) else None


def number(value: float | None, digits: int = 3, signed: bool = False) -> str:
    """``-`` for what is undefined."""
    return "-" if value is None else f"{value:{'+' if signed else ''}.{digits}f}"
