"""Covariance matrices under noise: what is noise in their eigenvalues or entries is taken out, and every one made positive."""

from __future__ import annotations

import numpy as np

from polyclinic.types import Floats, Ints

# How large differences of classes may be, of what noisy ones are.
_SIZES = np.geomspace(1e-4, 10.0, 51)
# Variances of the prior of ``shrunk``, its steps, and how many of its numbers it is fitted to at most.
_SPREADS, _STEPS, _FITTED = 20, 200, 2000


def pairs(width: int) -> tuple[Ints, Ints, Floats]:
    """The upper triangle, and what its products are multiplied by: their length is then that of the square matrix."""
    rows, columns = np.triu_indices(width)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


def denoise(matrix: Floats, noise: float) -> Floats:
    """(d, d) ``matrix`` less what symmetric Gaussian noise did to its eigenvalues.

    noise: standard deviation on the diagonal; that off the diagonal is smaller by the root of 2. The estimator of least square
    error among those that keep the eigenvectors: Bun, Allez, Bouchaud, Potters 2016 (IEEE Trans. Inf. Theory 62), section V.
    It keeps the trace.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    variance = len(values) * noise**2 / 2
    if variance == 0:
        return matrix
    gaps = values[:, None] - values[None, :]
    hilbert = (gaps / (gaps**2 + variance / len(values))).mean(axis=1)
    return np.asarray((vectors * (values - 2 * variance * hilbert)) @ vectors.T)


def positive(matrix: Floats, least: float = 1e-6) -> Floats:
    """(d, d) the nearest matrix with eigenvalues of at least ``least`` and the same trace, where that allows it."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if not len(values) or values[0] >= least:
        return matrix
    total = max(float(values.sum()) - least * len(values), 0.0)
    return np.asarray((vectors * (on_simplex(values - least, total) + least)) @ vectors.T)


def lift(matrix: Floats, noise: float) -> Floats:
    """(d, d) ``positive``, with no direction flatter than noise lets anyone see, its diagonal as it was.

    noise: standard deviation of the eigenvalues that the noise alone would have, sigma of Wigner's semicircle, which reaches to
    2 sigma. Eigenvalues below it, or below half of their mean where that is less, are raised to it before the diagonal is scaled
    back: who divides by a flat direction's variance, as discriminants do, trusts it too much.
    """
    whole = positive(matrix)
    least = min(noise, float(np.trace(whole)) / 2 / max(len(whole), 1))
    raised = positive(whole, max(least, 1e-6))
    ratio = np.sqrt(np.diag(whole) / np.diag(raised))
    return np.asarray(raised * np.outer(ratio, ratio))


def on_simplex(values: Floats, total: float) -> Floats:
    """(..., d) the nearest numbers of at least 0 whose sum is ``total`` (at least 0)."""
    falling = -np.sort(-values, axis=-1)
    above = (np.cumsum(falling, axis=-1) - total) / np.arange(1, values.shape[-1] + 1)
    last = np.maximum((falling > above).sum(axis=-1, keepdims=True) - 1, 0)
    return np.maximum(values - np.take_along_axis(above, last, axis=-1), 0.0)


def class_means(means: Floats, shares: Floats, noise: float, within: Floats | None = None) -> Floats:
    """(K, d) means of classes, drawn towards the mean of all as far as they differ by noise alone.

    Along the eigenvectors of ``within`` differences are normal with a variance of t times a power p of the eigenvalue.
    The t and p are taken that make the noisy differences most likely (empirical Bayes). With p = 0 that is as James and
    Stein 1961, with p = 2 a ridge on a discriminant's coefficients. So noise in directions in which patients vary
    little, which discriminants divide by, is taken out wherever what is there allows it.

    Args:
        means: (K, d) noisy means of classes.
        shares: (K,) the share of each class.
        noise: Standard deviation in each entry of share x mean.
        within: (d, d) covariance within classes, by default the same in all directions.
    """
    if not noise or not means.size:
        return means
    middle, of_noise = shares @ means, (noise / shares[:, None]) ** 2
    values, vectors = (np.ones(1), None) if within is None else np.linalg.eigh(within)
    apart = means - middle if vectors is None else (means - middle) @ vectors
    rising = np.maximum(values, 0.0) / max(float(values.mean()), 1e-300)
    expected = min(
        (
            size * rising**power
            for power in range(4 if within is not None else 1)
            for size in _SIZES * (apart**2).mean()
        ),
        key=lambda prior: float((np.log(prior + of_noise) + apart**2 / (prior + of_noise)).sum()),
    )
    apart = apart * expected / (expected + of_noise)
    return np.asarray(middle + (apart if vectors is None else apart @ vectors.T))


def shrunk(values: Floats, noise: float) -> Floats:
    """(n,) what is expected of numbers that noise of this standard deviation was added to.

    Their prior is a mixture of normals around 0, the most likely one (adaptive shrinkage: Stephens 2017, Biostatistics 18). So a
    few large ones among many that are 0 stay as they are, and all are drawn to 0 where noise explains them.
    """
    if not noise or not values.size:
        return values
    heights = np.sort(np.abs(values))
    heights = heights[np.linspace(0, len(heights) - 1, min(len(heights), _FITTED)).astype(np.int64)]
    spreads = np.append(0.0, np.geomspace(0.1 * noise, max(2.0 * heights[-1], noise), _SPREADS)) ** 2
    logs = -0.5 * (heights[:, None] ** 2 / (spreads + noise**2) + np.log(spreads + noise**2))
    likely = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(len(spreads), 1.0 / len(spreads))
    for _ in range(_STEPS):
        weights = (likely * weights / (likely @ weights)[:, None]).mean(axis=0)
    factors = (likely * weights) @ (spreads / (spreads + noise**2)) / (likely @ weights)
    return np.asarray(values * np.interp(np.abs(values), heights, factors))


def quieten(matrix: Floats, noise: float) -> Floats:
    """(d, d) ``matrix`` less what symmetric Gaussian noise did to it, by ``denoise`` or, entry by entry, by ``shrunk``.

    noise: as of ``denoise``. The first suits what hangs together in a few directions, the second what does in a few places. Of
    two expectations the longer one errs less, by Pythagoras; the second is taken unless the first is longer by more than
    noise may make it. Both keep the trace.
    """
    size = len(matrix)
    middle = np.trace(matrix) / max(size, 1) * np.eye(size)
    rows, columns = np.triu_indices(size, 1)
    spread = shrunk(np.diag(matrix - middle), noise)
    entries = np.diag(spread - spread.sum() / max(size, 1))
    entries[rows, columns] = entries[columns, rows] = shrunk(matrix[rows, columns], noise / np.sqrt(2.0))
    turned = denoise(matrix, noise) - middle
    longer = float((turned**2).sum() - (entries**2).sum()) > size * noise**2
    return np.asarray(middle + (turned if longer else entries))


def class_covariances(covariances: Floats, shares: Floats, noise: Floats) -> Floats:
    """(K, d, d) covariances of classes: that within all, and of each one's difference what noise does not explain.

    All are changed by ``lift`` with the noise of that within all.

    Args:
        covariances: (K, d, d) noisy covariances of classes.
        shares: (K,) the share of each class.
        noise: (K,) standard deviation in each diagonal entry of share x covariance, which a rare class' own estimate
            multiplies.
    """
    within = np.einsum("k,kij->ij", shares, covariances)
    of_all = float(np.sqrt((noise**2).sum()))
    common = positive(quieten(within, of_all))
    hidden = of_all * float(np.sqrt(len(within) / 2))
    if len(shares) == 1:
        return lift(common, hidden)[None]
    spread = np.sqrt(noise**2 * ((1.0 / shares - 1.0) ** 2 - 1.0) + of_all**2)
    each = (common + _difference(own - within, level) for own, level in zip(covariances, spread, strict=True))
    return np.stack([lift(matrix, hidden) for matrix in each])


def _difference(matrix: Floats, noise: float) -> Floats:
    """``quieten``, its trace as far as noise does not explain it (James and Stein 1961)."""
    size, trace = max(len(matrix), 1), float(np.trace(matrix))
    explained = min(size * noise**2 / trace**2, 1.0) if trace else 0.0
    return np.asarray(quieten(matrix, noise) - explained * trace / size * np.eye(len(matrix)))
