"""Latent classes: what noisy sums say of them, how likely a patient is in each, and rows drawn from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from polyclinic.synthesis.checks import Numbers
from polyclinic.synthesis.methods.basis import Basis
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.draws import RowsByClass, pick
from polyclinic.synthesis.methods.hot import Hot
from polyclinic.types import Arrays, Floats, Ints

# A class has at least this share; a frequency in it at least, and a variance at least, so much of that of all patients.
_LEAST_SHARE, _LEAST_FREQUENCY, _LEAST_VARIANCE = 2e-3, 0.02, 0.02
_ALMOST_ONE = 0.97
# Of patients of all classes, this share counts to each class' numbers of codes.
_COUNTS = 0.02
_ROWS = 2048
_CALIBRATIONS = 30


@dataclass(frozen=True, eq=False)
class Sums:
    """Means over patients of what each class has: ``shares`` (C,), ``hot`` (C, H), ``counts`` (C, sets, most + 1), ``first`` and
    ``second`` (C, Q) moments of numeric components.
    """

    shares: Floats
    hot: Floats
    counts: Floats
    first: Floats
    second: Floats


def apart(sums: Floats, shares: Floats, pooled: Floats, noise: float) -> Floats:
    """(C, m) means of classes: those of all, and of what classes differ from them what noise does not explain.

    First each column's differences are drawn towards 0 together (James and Stein 1961), then each one alone.

    Args:
        sums: (C, m) noisy sums of each class, share x mean.
        shares: (C,) the share of each class.
        pooled: (m,) means of all patients.
        noise: The standard deviation in each entry of ``sums``.
    """
    differences = sums - shares[:, None] * pooled
    together = (len(shares) - 1) * noise**2 / np.maximum((differences**2).sum(axis=0), 1e-300)
    differences = differences * np.maximum(1.0 - together, 0.0)
    alone = noise**2 / np.maximum(differences**2, 1e-300)
    return np.asarray(pooled + differences * np.maximum(1.0 - alone, 0.0) / shares[:, None])


def distributions(sums: Sums, pooled: Sums, noise: Sums, hot: Hot, label: Floats) -> Arrays:
    """The classes that ``sums`` tell of.

    Args:
        sums: The sums of each class.
        pooled: The sums of all patients, one class.
        noise: Standard deviations, one number each (in ``shares``, ``hot``, ...).
        hot: Where the 0/1 numbers are.
        label: (K,) paid frequencies of the label's classes.
    """
    shares = np.maximum(sums.shares, _LEAST_SHARE)
    shares /= shares.sum()
    of_all = pooled.hot[0].copy()
    for at in hot.sets:
        of_all[at] = np.maximum(hot.frequencies(pooled.hot)[0, at], 1e-7)
    own = apart(sums.hot, shares, of_all, float(noise.hot.max(initial=0.0)))
    frequencies = hot.frequencies(np.maximum(own, _LEAST_FREQUENCY * of_all))
    for at in hot.sets:
        frequencies[:, at] = np.clip(own[:, at], _LEAST_FREQUENCY * of_all[at], _ALMOST_ONE)
    all_counts = np.maximum(pooled.counts[0], 0.0) + 1e-6
    counts = np.maximum(sums.counts, 0.0) + _COUNTS * shares[:, None, None] * all_counts
    mean = apart(sums.first, shares, pooled.first[0], float(noise.first.max(initial=0.0)))
    square = apart(sums.second, shares, pooled.second[0], float(noise.second.max(initial=0.0)))
    spread = np.maximum(pooled.second[0] - pooled.first[0] ** 2, 1e-4)
    return {
        "classes": label, "shares": shares, "frequencies": frequencies,
        "counts": counts / counts.sum(axis=2, keepdims=True), "mean": mean,
        "variance": np.maximum(square - mean**2, _LEAST_VARIANCE * spread),
    }  # fmt: skip


def evidence(estimates: Arrays, hot: Hot) -> tuple[Floats, Floats]:
    """(C,) and (C, features): the logarithm of each class' chance of a patient is their sum with the features' products.

    Features as in ``Sums``, without shares. A set of codes counts as so many draws, one after another, from the class' codes.
    """
    frequencies, mean, variance = estimates["frequencies"], estimates["mean"], estimates["variance"]
    bias = np.log(estimates["shares"]) - 0.5 * (mean**2 / variance + np.log(variance)).sum(axis=1)
    weights = np.zeros_like(frequencies)
    chance = frequencies[:, hot.singles]
    weights[:, hot.singles] = np.log(chance / (1.0 - chance))
    bias += np.log1p(-chance).sum(axis=1)
    for group, at in enumerate(hot.groups):
        chances = np.log(np.maximum(hot.chances(frequencies, group), 1e-6))
        none = chances[:, -1:] if hot.none[group] else np.zeros((len(chances), 1))
        weights[:, at] = chances[:, :-1] - none
        bias += none[:, 0]
    for at in hot.sets:
        weights[:, at] = np.log(frequencies[:, at] / frequencies[:, at].sum(axis=1, keepdims=True))
    counts = np.log(estimates["counts"]).reshape(len(bias), len(hot.sets) * (hot.most + 1))
    return bias, np.concatenate([weights, counts, mean / variance, -0.5 / variance], axis=1)


@dataclass(frozen=True, eq=False)
class LatentClasses(RowsByClass):
    """Draws a latent class by the row's label, and in it every column for itself, a set's codes given how many they are.

    numbers: of ``distributions``, and these:

    - ``weights``: (K, C) of the latent classes in each class of the label
    - ``frequencies``: (K C, H) in both
    - ``shift``: (K, Q) of scores by label
    - ``histograms``: (Q, bins) that scores are of
    """

    most: int
    bins: int

    def allowed_numbers(self) -> dict[str, Numbers]:
        bins, hot = Bins.of(self.layout, self.bins), Hot.of(self.layout, self.most)
        labels, classes = self.layout.classes, len(self.numbers["shares"])
        moments = classes, int(Basis.of(self.layout).numeric.sum())
        return {
            "shares": Numbers((classes,), shares=True),
            "weights": Numbers((labels, classes), shares=True),
            "frequencies": Numbers((labels * classes, len(hot.places)), 0.0, 1.0),
            "counts": Numbers((classes, len(hot.sets), self.most + 1), shares=bool(hot.sets)),
            "mean": Numbers(moments),
            "variance": Numbers(moments, 0.0),
            "shift": Numbers((labels, len(bins.places))),
            "histograms": Numbers(bins.used.shape, shares=bool(len(bins.places))),
        }

    def _fill(self, z: Floats, y: Ints, rng: np.random.Generator) -> None:
        rows, numbers, hot = len(y), self.numbers, Hot.of(self.layout, self.most)
        basis, bins = Basis.of(self.layout).of_scores(), Bins.of(self.layout, self.bins)
        latent = pick(numbers["weights"][y], rng)
        both = y * numbers["weights"].shape[1] + latent
        z[:, hot.places] = hot.draw(numbers["frequencies"], both, rng, sets=False)
        u = np.zeros((rows, len(basis.numeric)))
        u[:, basis.numeric] = numbers["mean"][latent] + np.sqrt(numbers["variance"][latent]) * rng.standard_normal(
            (rows, int(basis.numeric.sum()))
        )
        scores = basis.turn_back(u)[:, bins.places] + numbers["shift"][y]
        z[:, bins.places] = bins.quantiles(ndtr(scores), numbers["histograms"])
        for number, at in enumerate(hot.sets):
            count = pick(numbers["counts"][latent, number], rng)
            for first in range(0, rows, _ROWS):
                part = slice(first, first + _ROWS)
                z[part, hot.places[at]] = chosen_codes(numbers["frequencies"][:, at], both[part], count[part], rng)


def chosen_codes(frequencies: Floats, latent: Ints, count: Ints, rng: np.random.Generator) -> Floats:
    """(n, m) 0/1: ``count[i]`` codes of class ``latent[i]``, each about as likely as its frequency says, given the count.

    The codes of the largest logit plus logistic noise: Pareto sampling (Rosen 1997, J. Statist. Plann. Inference 62).

    Args:
        frequencies: (C, m) frequency of each code in each class.
        latent: (n,) class of each row.
        count: (n,) how many codes each row has.
        rng: The source of random numbers.
    """
    chance = rng.random((len(latent), frequencies.shape[1]))
    height = np.log(frequencies / (1.0 - frequencies))[latent] + np.log(chance / (1.0 - chance))
    order = np.argsort(-height, axis=1)
    chosen = np.zeros_like(height)
    np.put_along_axis(chosen, order, (np.arange(height.shape[1]) < count[:, None]).astype(np.float64), axis=1)
    return chosen


def calibrate(frequencies: Floats, shares: Floats, counts: Floats, wanted: Floats) -> Floats:
    """(C, m) frequencies whose draws by ``chosen_codes`` have each code as often over all classes as is wanted.

    Given a number of codes, those of a class have odds that are its own times one factor, by which they add up to that
    number.

    Args:
        frequencies: (C, m) frequency of each code in each class.
        shares: (C,) the share of each class.
        counts: (C, most + 1) chances of how many codes.
        wanted: (m,) the frequency of each code over all classes.
    """
    size = np.arange(counts.shape[1])
    logits = np.log(frequencies / (1.0 - frequencies))
    factor = np.zeros(counts.shape)
    many = np.minimum(size, frequencies.shape[1] - 1e-3)[None, :]
    for _ in range(_CALIBRATIONS):
        drawn = np.zeros_like(wanted)
        for number, share in enumerate(shares):
            chance = expit(logits[number] + factor[number][:, None])
            # Newton's step towards the number of codes, kept short.
            step = (many[0] - chance.sum(axis=1)) / np.maximum((chance * (1.0 - chance)).sum(axis=1), 1e-3)
            factor[number] += np.clip(step, -1.0, 1.0)
            drawn += share * (counts[number, 1:] @ chance[1:])
        logits += np.clip(np.log(wanted / np.maximum(drawn, 1e-12)), -0.5, 0.5)
    return np.asarray(np.clip(expit(logits), 1e-7, 0.999))


def tilt(frequencies: Floats, weights: Floats, wanted: Floats) -> Floats:
    """(C, m) frequencies with odds changed by one factor a column, by which their weighted mean is as wanted.

    Args:
        frequencies: (C, m) frequencies.
        weights: (C,) weights of the mean.
        wanted: (m,) the weighted mean of each column.
    """
    within = np.clip(frequencies, 1e-7, 1.0 - 1e-7)
    logits = np.log(within / (1.0 - within))
    for _ in range(_CALIBRATIONS):
        logits += np.clip(np.log(wanted / np.maximum(weights @ expit(logits), 1e-12)), -0.5, 0.5)
    return np.asarray(np.clip(expit(logits), 1e-7, 1.0 - 1e-7))
