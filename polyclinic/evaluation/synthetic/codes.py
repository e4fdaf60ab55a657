"""Code sets (a patient has a code or not): how often each occurs, which go together, and how many a patient has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import DataError
from polyclinic.types import Bools, Floats


@dataclass(frozen=True)
class Probabilities:
    """Dimension-wise probability (Choi et al. 2017): the share of patients with each code, (J,) real and synthetic.

    rmse, largest: of the differences.  r2: 1 - sum (synthetic - real)^2 / sum (real - its mean)^2, which is the fit of
    the diagonal and not of a line drawn through the points; ``None`` where all real shares are equal.
    """

    real: Floats
    synthetic: Floats
    rmse: float
    largest: float
    r2: float | None


@dataclass(frozen=True)
class CoOccurrence:
    """How far the pairwise joint frequencies of codes are from the real ones, relative to the real ones.

    With J_ij the share of patients with codes i < j: l1 = sum |J_syn - J_real| / sum J_real, and frobenius the same
    with root sums of squares. The ``excess`` pair is of J_ij - p_i p_j, what goes together beyond chance, relative to
    sum |.| of the real table: independent codes of exact frequencies have about 1 there, and the truth has 0.
    Sampling alone makes all four positive; two halves of the real table say how much.  ``None`` where nothing is there.
    """

    l1: float | None
    frobenius: float | None
    excess_l1: float | None
    excess_frobenius: float | None


@dataclass(frozen=True)
class PerPatient:
    """Codes a patient has: mean real and synthetic, and the Wasserstein-1 distance of the two distributions (codes)."""

    mean_real: float
    mean_synthetic: float
    wasserstein: float


def probabilities(real: ArrayLike, synthetic: ArrayLike) -> Probabilities:
    """Dimension-wise probability of two tables (n, J) and (m, J); an entry above zero is a code that is there.

    Raises DataError if the tables have no rows, no codes or another number of codes.
    """
    a, b = (table.mean(axis=0) for table in tables(real, synthetic))
    apart = b - a
    spread = ((a - a.mean()) ** 2).sum()
    return Probabilities(
        a,
        b,
        float(np.sqrt((apart**2).mean())),
        float(abs(apart).max()),
        float(1 - (apart**2).sum() / spread) if spread > 0 else None,
    )


def co_occurrence(real: ArrayLike, synthetic: ArrayLike) -> CoOccurrence:
    """The co-occurrence errors of two tables (n, J) and (m, J).  Raises DataError as ``probabilities`` does."""
    from scipy.sparse import csr_array

    joints, excesses = [], []
    for table in tables(real, synthetic):
        sparse = csr_array(table).astype(np.float64)
        joint = (sparse.T @ sparse).toarray() / len(table)
        share = np.diag(joint)
        above = np.triu_indices(len(share), 1)
        joints.append(joint[above])
        excesses.append((joint - np.outer(share, share))[above])
    return CoOccurrence(*_relative(*joints), *_relative(*excesses))


def per_patient(real: ArrayLike, synthetic: ArrayLike) -> PerPatient:
    """How many codes a patient has in each of two tables.  Raises DataError as ``probabilities`` does."""
    from scipy.stats import wasserstein_distance

    a, b = (table.sum(axis=1) for table in tables(real, synthetic))
    return PerPatient(float(a.mean()), float(b.mean()), float(wasserstein_distance(a, b)))


def tables(*given: ArrayLike) -> list[Bools]:
    """The code tables as (n, J) booleans.  Raises DataError unless each has rows and all have the same codes."""
    found = [np.asarray(table) > 0 for table in given]
    for table in found:
        if table.ndim != 2 or not table.size or table.shape[1] != found[0].shape[1]:
            shapes = " and ".join(str(each.shape) for each in found)
            raise DataError(f"codes need tables (n, J) of the same J, n and J above 0, not {shapes}.")
    return found


def _relative(real: Floats, synthetic: Floats) -> tuple[float | None, float | None]:
    apart, size = abs(synthetic - real), abs(real)
    if not size.sum() > 0:
        return None, None
    return float(apart.sum() / size.sum()), float(np.sqrt((apart**2).sum() / (size**2).sum()))
