"""Code sets (a patient has a code or not) of synthetic patients beside those of real ones.

It compares how often each code occurs, which go together and how many a patient has. It also says whether a code can be
told from the others by what synthetic patients taught (dimension-wise prediction).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Floats


@dataclass(frozen=True)
class Probabilities:
    """Dimension-wise probability (Choi et al. 2017): the share of patients with each code, (J,) real and synthetic.

    Attributes:
        rmse, largest: Of the differences.
        r2: 1 - sum (synthetic - real)^2 / sum (real - its mean)^2. It is the fit of the diagonal and not of a line
            drawn through the points; ``None`` where all real shares are equal.
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
    sum |.| of the real table. Independent codes of exact frequencies have about 1 there, and the truth has 0. Sampling
    alone makes all four positive; two halves of the real table say how much. ``None`` where nothing is there.
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


@dataclass(frozen=True)
class Predictions:
    """F1 on real test patients of telling each code from all others, learned from real and from synthetic patients.

    A code that no patient or every patient has, in the table that trains or in the test, is skipped as in the paper.

    Attributes:
        codes: (m,) column numbers, the most frequent first.
        real, synthetic: F1 of each, ``None`` where it is skipped.
        mean_real, mean_synthetic: Over the codes defined in both.
        mean_absent_zero: The synthetic mean over the codes that are defined for real patients. A code that only the
            synthetic table lacks (so that it is never predicted) counts with its F1 of zero: to skip such codes would
            reward forgetting them.
        skipped: How many codes are not defined in both.
    """

    codes: tuple[int, ...]
    real: tuple[float | None, ...]
    synthetic: tuple[float | None, ...]
    mean_real: float | None
    mean_synthetic: float | None
    mean_absent_zero: float | None
    skipped: int


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


def predictions(real: ArrayLike, synthetic: ArrayLike, test: ArrayLike, most: int = 100) -> Predictions:
    """Return the dimension-wise prediction (Choi et al. 2017; Xie et al. 2018) of the most frequent codes of real patients.

    Each code is predicted from all J - 1 others by a logistic regression with a unit L2 penalty, at a probability of
    one half.

    Args:
        real, synthetic, test: (n, J) code tables; an entry above zero is a code that is there.
        most: How many codes are predicted.

    Raises:
        ConfigError: If ``most`` is below 1.
        DataError: If the tables do not match.
    """
    if most < 1:
        raise ConfigError(f"most must be at least 1, not {most}.")
    trains, generated, asked = tables(real, synthetic, test)
    frequent = np.argsort(-trains.mean(axis=0), kind="stable")[:most]
    ours, theirs = (np.array([f1_of_code(table, asked, code) for code in frequent]) for table in (trains, generated))
    both = np.isfinite(ours) & np.isfinite(theirs)
    absent = ~generated[:, frequent].any(axis=0)
    counted = np.isfinite(ours) & (both | absent)
    return Predictions(
        tuple(int(code) for code in frequent), _optional(ours), _optional(theirs), _mean(ours[both]), _mean(theirs[both]),
        _mean(np.where(absent, 0.0, theirs)[counted]), int((~both).sum()),
    )  # fmt: skip


def f1_of_code(train: Bools, test: Bools, code: int) -> float:
    """Return F1 on ``test`` of telling a code from all others by what ``train`` taught.

    Args:
        train: (n, J) whether each patient has each code.
        test: (m, J) of the patients who are asked.
        code: The code's column number.

    Returns:
        NaN where the code does not vary in both tables.
    """
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    taught, truth = train[:, code], test[:, code]
    if any(column.all() or not column.any() for column in (taught, truth)):
        return float("nan")
    learned, asked = (csr_array(np.delete(table, code, axis=1).astype(np.float64)) for table in (train, test))
    model = LogisticRegression(max_iter=1000).fit(learned, taught)
    return float(f1_score(truth, model.predict(asked)))


def tables(*given: ArrayLike) -> list[Bools]:
    """The code tables as (n, J) booleans.  Raises DataError unless each has rows and all have the same codes."""
    code_tables = [np.asarray(table) > 0 for table in given]
    for table in code_tables:
        if table.ndim != 2 or not table.size or table.shape[1] != code_tables[0].shape[1]:
            shapes = " and ".join(str(each.shape) for each in code_tables)
            raise DataError(f"codes need tables (n, J) of the same J, n and J above 0, not {shapes}.")
    return code_tables


def _relative(real: Floats, synthetic: Floats) -> tuple[float | None, float | None]:
    apart, size = abs(synthetic - real), abs(real)
    if not size.sum() > 0:
        return None, None
    return float(apart.sum() / size.sum()), float(np.sqrt((apart**2).sum() / (size**2).sum()))


def _optional(values: Floats) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None
