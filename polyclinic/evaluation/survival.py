"""How good predicted survival is where some patients are censored, in plain numpy.

Each row has a ``time`` (n,), the last at which the patient was seen, and an ``event`` (n,) bool, whether the event came then. The
``weights`` (B, n) say how often each row counts in each of B resamples. Chances of not being censored are those of the rows as
they are, also in a resample. Values agree with those of scikit-survival, but for patients who are censored exactly when a Brier
score is taken: they had no event until then, and it leaves them out. Nothing here is private.
"""

from __future__ import annotations

import numpy as np

from polyclinic.evaluation.intervals import ratio, weighted_auroc
from polyclinic.types import Bools, Floats


def kaplan_meier(time: Floats, event: Bools, at: Floats, before: Bools | None = None) -> Floats:
    """Return the share without the event until each of the times ``at``, themselves included (Kaplan and Meier 1958).

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        at: (T,) times.
        before: (n,) who leaves at its time before anybody can have the event then; without it nobody does.

    Examples:
        >>> kaplan_meier(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]), np.array([1.5, 2.0]))
        array([1. , 0.5])
    """
    ends, place = np.unique(time, return_inverse=True)
    here, left_before = (
        np.bincount(place, some, len(ends)) for some in (event, np.zeros(len(time)) if before is None else before)
    )
    at_risk = np.cumsum(np.bincount(place, minlength=len(ends))[::-1])[::-1] - left_before
    steps = np.cumprod(1 - np.divide(here, at_risk, out=np.zeros(len(ends)), where=at_risk > 0))
    return np.asarray(np.append(1.0, steps)[np.searchsorted(ends, at, "right")])


def uncensored_chance(time: Floats, event: Bools, at: Floats) -> Floats:
    """Return the chance of not being censored until each of the times ``at``.

    Of a patient who has the event at a time this is known already.

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        at: (T,) times.
    """
    return kaplan_meier(time, ~event, at, event)


def inverse_chances(time: Floats, event: Bools) -> Floats:
    """(n,) how many patients each event stands for, with those censored before it (Robins and Rotnitzky 1992); else 0."""
    chance = uncensored_chance(time, event, time)
    return np.divide(event.astype(np.float64), chance, out=np.zeros(len(time)), where=chance > 0)


def concordance(time: Floats, event: Bools, risk: Floats, weights: Floats, counts: Floats | None = None) -> Floats:
    """Return (B,) the share of pairs in which the patient with the earlier event has the higher ``risk``; ties count half.

    A pair is a patient with the event and one who was seen longer, or who was censored at the same time (Harrell 1996).
    NaN without a pair.

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        risk: (n,) higher for patients predicted to have the event earlier.
        weights: (B, n) how often each patient counts.
        counts: (n,) how much the pairs of each event count. By the squares of ``inverse_chances`` the share is that of
            Uno et al. 2011.

    Examples:
        >>> time, event = np.array([1.0, 2.0, 3.0]), np.array([True, True, False])
        >>> concordance(time, event, np.array([0.9, 0.2, 0.5]), np.ones((1, 3)))
        array([0.66666667])
    """
    # At one time events come before those who are censored. Of two different numbers one is larger at the highest bit that
    # differs, so that each pair is met once, and all of one bit by one cumulative sum.
    order = np.unique(np.stack([time, (~event).astype(np.float64)]), axis=1, return_inverse=True)[1].ravel()
    cases = weights * (event if counts is None else event * counts)
    right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for bit in range(int(order.max(initial=0)).bit_length()):
        block, later = order >> (bit + 1), (order >> bit & 1).astype(bool)
        by = np.lexsort((risk, block))
        begins = np.flatnonzero(np.diff(block[by], prepend=-1))
        ties = np.flatnonzero((np.diff(block[by], prepend=-1) != 0) | (np.diff(risk[by], prepend=np.nan) != 0))
        others = np.add.reduceat((weights * later)[:, by], ties, axis=1)
        events = np.add.reduceat((cases * ~later)[:, by], ties, axis=1)
        # Of the lower risks only those of the same block.
        of = np.searchsorted(ties, begins)
        seen = np.cumsum(others, axis=1)
        before = seen - others
        first = np.repeat(before[:, of], np.diff(np.append(of, len(ties))), axis=1)
        right += (events * (before - first + others / 2)).sum(axis=1)
        pairs += (np.add.reduceat(events, of, axis=1) * np.add.reduceat(others, of, axis=1)).sum(axis=1)
    return ratio(right, pairs)


def brier_scores(time: Floats, event: Bools, survival: Floats, ends: Floats) -> Floats:
    """Return (n, T) squared errors of each row's predicted survival, by inverse chances.

    A row that is censored before such a time counts 0 there, and others count for it, so that the means are those of
    all (Graf et al. 1999).

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        survival: (n, T) predicted at the times ``ends``.
        ends: (T,) times.
    """
    alive, weight = status_at(time, event, ends)
    return np.asarray(weight * (survival - alive) ** 2)


def status_at(time: Floats, event: Bools, ends: Floats) -> tuple[Bools, Floats]:
    """Return (n, T) whether each row had no event until each of the times, and the inverse chance of knowing it, else 0.

    A row that is censored at such a time had no event until then.

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        ends: (T,) times.
    """
    alive = np.where(event[:, None], time[:, None] > ends, time[:, None] >= ends)
    before = uncensored_chance(time, event, np.nextafter(ends, -np.inf))
    chance = np.where(alive, before, uncensored_chance(time, event, time)[:, None])
    seen = (alive | event[:, None]) & (chance > 0)
    return alive, np.divide(1.0, chance, out=np.zeros(chance.shape), where=seen)


def over_time(values: Floats, ends: Floats) -> Floats:
    """(..., T) values at the times ``ends`` as their mean over time (...), by trapezoids; of one time the value itself."""
    if len(ends) < 2:
        return np.asarray(values[..., 0])
    areas = (values[..., 1:] + values[..., :-1]) / 2 * np.diff(ends)
    return np.asarray(areas.sum(axis=-1) / (ends[-1] - ends[0]))


def auroc_at(time: Floats, event: Bools, risk: Floats, at: float, weights: Floats) -> Floats:
    """Return (B,) the chance that a row with the event until ``at`` has a higher ``risk`` than one without it; ties count half.

    Cumulative cases, weighted by ``inverse_chances``, and dynamic controls (Uno et al. 2007, Hung and Chiang 2010). NaN
    without both.

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        risk: (n,) higher for patients likelier to have the event.
        at: The time.
        weights: (B, n) how often each row counts.
    """
    case = event & (time <= at)
    control = np.where(event, time > at, time >= at)
    chosen = case | control
    some = np.where(case, inverse_chances(time, event), 1.0)[chosen] * weights[:, chosen]
    return weighted_auroc(case[chosen], risk[chosen], some) if chosen.any() else np.full(len(weights), np.nan)


def mean_auroc(time: Floats, event: Bools, risk: Floats, ends: Floats, weights: Floats) -> Floats:
    """Return (B,) the mean of ``auroc_at`` over the times ``ends``, by the share of events since the time before.

    Lambert and Chevret 2016. NaN where it is at all times.

    Args:
        time: (n,) until the event or until the patient was last seen.
        event: (n,) whether it was the event.
        risk: (n,), or (n, T) with a column for each time.
        ends: (T,) times.
        weights: (B, n) how often each row counts.
    """
    drops = -np.diff(np.append(1.0, kaplan_meier(time, event, ends)))
    by_time = np.broadcast_to(risk.T, (len(ends), len(time))).T if risk.ndim == 1 else risk
    areas = np.array([auroc_at(time, event, by_time[:, k], float(end), weights) for k, end in enumerate(ends)])
    return ratio(drops @ np.nan_to_num(areas), drops @ np.isfinite(areas))
