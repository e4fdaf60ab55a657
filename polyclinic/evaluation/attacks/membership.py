"""Who took part? Scores of patients by a model, and how well they tell those who took part from those who did not.

A score is higher for a patient who is more likely to have taken part. What is judged is a guess about one trained model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.evaluation.intervals import Interval, bootstrap, clopper_pearson, percentiles, ratio, weighted_auroc
from polyclinic.privacy.audit import correct_guesses, epsilon_lower
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints

FALSE_ALARMS = (0.001, 0.01)
RESAMPLES, AT_MOST = 1000, 20_000_000
# Confidences of shadow models that are equal to the last digit still get a law.
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Bound:
    """epsilon is at least ``epsilon_lower`` at ``delta`` with 95 % confidence, by ``correct`` of ``guesses`` right guesses of
    ``coins`` patients' coins."""

    epsilon_lower: float
    delta: float
    coins: int
    guesses: int
    correct: int


@dataclass(frozen=True)
class Membership:
    """An attack on membership, judged on ``members`` and ``non_members`` patients.

    Attributes:
        auc: Chance that one who took part scores above one who did not; 0.5 tells nothing.
        advantage: Rate of true alarms less that of false ones, the threshold of each half of the patients chosen on the
            other; 0 tells nothing.
        true_alarms: By share of false alarms, the share of members found at a threshold that allows no more. Undefined where
            there are too few non-members to show such a share.
        bound: None where membership was no toss of a coin.
    """

    attack: str
    members: int
    non_members: int
    auc: Interval
    advantage: Interval
    true_alarms: dict[float, Interval]
    bound: Bound | None


def judge(
    attack: str, members: Floats, non_members: Floats, delta: float, share: float | None, seed: int = 0
) -> Membership:
    """Return how well an attack's scores tell members from non-members.

    Intervals are the bootstrap's over patients of both kinds (auc, advantage) and Clopper and Pearson's (true_alarms). They
    say how the attack would do on other patients of the same model, not on another model.

    Args:
        attack: The attack's name.
        members: (m,) scores of patients who took part.
        non_members: (n,) scores of patients who did not.
        delta: Of the lower bound.
        share: The chance with which each patient took part, by a coin of its own. None where there was none, which
            leaves the bound out.
        seed: Of the resamples and the halves.

    Raises:
        ValueError: For scores that are not finite, and for a share as ``lower_bound`` refuses.
    """
    scores = np.concatenate([members, non_members])
    if not np.isfinite(scores).all():
        raise ValueError("scores of membership must be finite.")
    inside = np.arange(len(scores)) < len(members)
    resamples = max(100, min(RESAMPLES, AT_MOST // max(len(scores), 1)))
    rng = generator(seed, "attacks", attack)
    auc = bootstrap(lambda weights: weighted_auroc(inside, scores, weights), len(scores), rng, resamples)
    guessed = halves(scores, inside, rng)
    gap = bootstrap(lambda weights: _gap(weights, inside, guessed), len(scores), rng, resamples)
    return Membership(
        attack, len(members), len(non_members), percentiles(float(auc[0]), auc[1]), percentiles(float(gap[0]), gap[1]),
        {rate: true_alarms(members, non_members, rate) for rate in FALSE_ALARMS},
        None if share is None else lower_bound(members, non_members, delta, share, rng),
    )  # fmt: skip


def true_alarms(members: Floats, non_members: Floats, false_alarms: float) -> Interval:
    """Return the share of members above the lowest threshold that no more than ``false_alarms`` of the non-members pass.

    Carlini et al. 2022: what finds few, but surely.

    Args:
        members: (m,) scores of patients who took part.
        non_members: (n,) scores of patients who did not.
        false_alarms: The allowed share of non-members. The result is undefined for fewer than 1 / false_alarms of them.
    """
    allowed = int(false_alarms * len(non_members) + 1e-9)
    if allowed < 1:
        return Interval(None)
    threshold = np.sort(non_members)[::-1][allowed] if allowed < len(non_members) else -np.inf
    return clopper_pearson(int(np.sum(members > threshold)), len(members))


def halves(scores: Floats, inside: Bools, rng: np.random.Generator) -> Bools:
    """Return (n,) alarms: each half of the patients, drawn at random, by the threshold that is best for the other half.

    Args:
        scores: (n,) scores.
        inside: (n,) whether each patient took part.
        rng: Draws the halves.
    """
    first = rng.permutation(len(scores)) % 2 == 0
    alarms = np.zeros(len(scores), dtype=bool)
    for part in (first, ~first):
        alarms[part] = scores[part] >= best_threshold(scores[~part], inside[~part])
    return alarms


def best_threshold(scores: Floats, inside: Bools) -> float:
    """The score from which on alarms gain most, true ones' rate less false ones', midway to the next; infinite if none do."""
    order = np.argsort(-scores, kind="stable")
    ranked, who = scores[order], inside[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1) if len(ranked) else np.zeros(0, dtype=np.int64)
    gain = np.cumsum(who)[last] / max(who.sum(), 1) - np.cumsum(~who)[last] / max((~who).sum(), 1)
    if not gain.size or gain.max() <= 0:
        return float("inf")
    best = last[np.argmax(gain)]
    return float(ranked[best : best + 2].mean())


def lower_bound(members: Floats, non_members: Floats, delta: float, share: float, rng: np.random.Generator) -> Bound:
    """Return what the scores refute of epsilon at ``delta``, where each patient took part by a coin of its own.

    Of the likelier side as many are kept as make the coin of those who are kept a fair one. A third of the coins is
    guessed, the surest. Steinke, Nasr and Jagielski 2023, as ``privacy.audit``: right for one training, whose patients
    are no independent trials.

    Args:
        members: (m,) scores of patients who took part.
        non_members: (n,) scores of patients who did not.
        delta: The delta of the bound.
        share: The chance with which each patient took part.
        rng: Draws who is kept, and the order of ties.

    Raises:
        ValueError: Unless share lies between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, both excluded, got {share}.")
    chances = min(1.0, (1 - share) / share), min(1.0, share / (1 - share))
    drawn = [
        side[rng.uniform(size=len(side)) < chance] for side, chance in zip((members, non_members), chances, strict=True)
    ]
    scores = np.concatenate(drawn)
    order = rng.permutation(len(scores))  # ties keep their order, which must know nothing of the coins
    inside = (np.arange(len(scores)) < len(drawn[0]))[order]
    guesses = len(scores) // 3
    correct = correct_guesses(scores[order], inside, guesses)
    return Bound(epsilon_lower(len(scores), guesses, correct, delta), delta, len(scores), guesses, correct)


def _gap(weights: Floats, inside: Bools, alarms: Bools) -> Floats:
    def rate(side: Bools) -> Floats:
        return ratio(weights[:, side & alarms].sum(axis=1), weights[:, side].sum(axis=1))

    return np.asarray(rate(inside) - rate(~inside))


def of_patients(values: Floats, patient: Ints, patients: int) -> Floats:
    """Return (patients,) means of the values over each patient's rows.

    Args:
        values: (rows,) numbers.
        patient: (rows,) numbers of patients, from 0.
        patients: The number of patients, each with at least one row.
    """
    return np.bincount(patient, values, patients) / np.bincount(patient, minlength=patients)


def assignment(patients: int, shadows: int, share: float, rng: np.random.Generator) -> Bools:
    """Return (shadows, patients): in which shadow models each patient takes part, the same number of them for all.

    Args:
        patients: The number of patients.
        shadows: The number of shadow models, at least 4.
        share: Of the models, as near as leaves two with and two without each patient.
        rng: Draws the models of each patient.

    Raises:
        ValueError: For fewer than four shadow models.
    """
    if shadows < 4:
        raise ValueError(f"shadow models must be at least 4, got {shadows}.")
    count = min(max(round(share * shadows), 2), shadows - 2)
    return np.asarray(rng.uniform(size=(shadows, patients)).argsort(axis=0) < count)


def likelihood_ratios(target: Floats, shadows: Floats, inside: Bools) -> Floats:
    """Return (n,) log likelihood ratios of having taken part, by the confidences of the attacked model and of shadow models.

    Each patient's confidence is normal about a mean of its own, with and without it; the two spreads are all patients',
    as is best for few models. Carlini et al. 2022, Algorithm 1.

    Args:
        target: (n,) confidences of the attacked model.
        shadows: (S, n) confidences of the shadow models.
        inside: (S, n), who took part in which.

    Raises:
        ValueError: Where a patient took part in all models or in none, or in fewer than two of all.
    """
    from scipy.stats import norm

    with_, without = _law(shadows, inside), _law(shadows, ~inside)
    return np.asarray(norm.logpdf(target, *with_) - norm.logpdf(target, *without))


def _law(shadows: Floats, chosen: Bools) -> tuple[Floats, float]:
    count = chosen.sum(axis=0)
    if (count < 1).any() or count.sum() <= len(count):
        raise ValueError("every patient must be in some shadow models and out of others.")
    mean = np.where(chosen, shadows, 0.0).sum(axis=0) / count
    square = np.where(chosen, (shadows - mean) ** 2, 0.0).sum() / (count.sum() - len(count))
    return mean, max(float(np.sqrt(square)), _LEAST_SPREAD)
