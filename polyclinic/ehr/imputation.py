"""Values in place of missing cells of encoded records.

Constants, indicators and an ``Imputer`` look at a patient's own row and at public or paid numbers alone. They therefore
keep what is promised of one patient. The function ``impute_chained`` is fitted to the rows it is given: one patient's cells
then depend on others', and models trained on them have no epsilon.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.ehr.encoding import encoded_fill, feature_names, feature_slices
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Floats


def with_indicators(schema: Schema) -> Schema:
    """The schema with a 0/1 feature beside each cell that may be NaN, which is 1 where the cell is missing."""
    columns = [
        column.model_copy(update={"indicator": column.nullable and column.role == "feature" and _is_nan(column)})
        for column in schema.columns
    ]
    return schema.model_copy(update={"columns": tuple(columns)})


def _is_nan(column: Column) -> bool:
    """Whether a missing cell of the column is NaN; a one-hot's is all zeros, which says so already."""
    return column.kind not in ("categorical", "code_set")


def missing(x: Floats, schema: Schema) -> Bools:
    """(rows, features) bool: the entries of missing cells, NaN or of a one-hot with no category."""
    mask = np.isnan(x)
    for column, at in feature_slices(schema):
        if column.kind == "categorical" and column.nullable:
            mask[:, at] = ~x[:, at].any(axis=1, keepdims=True)
    return mask


def check_fills(schema: Schema) -> None:
    """Raises ConfigError for a column that may be missing and declares no ``fill``."""
    lacking = [c.name for c in schema.features if c.nullable and c.kind != "code_set" and c.fill is None]
    if lacking:
        raise ConfigError(
            f"Schema {schema.name!r}: column {lacking[0]!r} may be missing and declares no fill, which imputation by constants "
            "puts in its place; declare one, or let `polyclinic prepare` pay for one."
        )


def constants(x: Floats, schema: Schema) -> Floats:
    """The rows with each missing cell replaced by its column's declared ``fill``. Raises ConfigError where one has none."""
    check_fills(schema)
    fills = np.zeros(x.shape[1])
    for column, at in feature_slices(schema):
        if column.nullable and column.kind != "code_set":
            fills[at] = encoded_fill(column)
    return np.where(missing(x, schema), fills, x)


@dataclass(frozen=True, eq=False)
class Imputer:
    """Chained equations whose regressions follow from one mean and covariance of the encoded features.

    Where every feature is regressed on all others with these moments, chained equations end at the conditional mean. It
    is that of the missing entries given the observed ones, and is computed directly. With noise they end at draws from
    their conditional normal distribution (van Buuren 2018, Section 4.5).

    Args:
        features: Their names.
        mean: (F,).
        covariance: (F, F), positive definite.
    """

    features: tuple[str, ...]
    mean: Floats
    covariance: Floats

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the features' names and the moments."""
        hashed = sha256(json.dumps(self.features).encode())
        for part in (self.mean, self.covariance):
            hashed.update(np.ascontiguousarray(part).tobytes())
        return hashed.hexdigest()

    def check(self, schema: Schema) -> None:
        """Raises ConfigError unless the imputer is of the schema's features."""
        if self.features != feature_names(schema):
            raise ConfigError(
                f"The imputer is of {len(self.features)} features and not of those of schema {schema.name!r}; make one under "
                "the schema that the run reads."
            )

    def fill(self, x: Floats, schema: Schema, rng: np.random.Generator | None = None) -> Floats:
        """Return the rows with missing entries at their conditional mean, or at a draw, within the encoding's range.

        A row's result is a function of that row and this imputer alone. A one-hot's entries become shares that add up
        to one where they are means, and one category where they are drawn.

        Args:
            x: (rows, F) encoded records.
            schema: The schema by which they were encoded.
            rng: Draws the entries; None takes their means.
        """
        gone, out = missing(x, schema), np.array(x, dtype=np.float64)
        patterns, which = np.unique(gone, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            if pattern.any():
                rows = np.flatnonzero(which.reshape(-1) == number)
                out[np.ix_(rows, pattern)] = self._conditional(out[np.ix_(rows, ~pattern)], pattern, rng)
        return _in_range(out, gone, schema, rng)

    def _conditional(self, seen: Floats, pattern: Bools, rng: np.random.Generator | None) -> Floats:
        between = self.covariance[np.ix_(pattern, ~pattern)]
        weights = np.linalg.solve(self.covariance[np.ix_(~pattern, ~pattern)], between.T).T
        imputed = np.tile(self.mean[pattern], (len(seen), 1))
        # Feature by feature: a matrix product's rounding would depend on how many other rows there are.
        for number, centred in enumerate((seen - self.mean[~pattern]).T):
            imputed += centred[:, None] * weights[:, number]
        if rng is not None:
            left = self.covariance[np.ix_(pattern, pattern)] - weights @ between.T
            values, vectors = np.linalg.eigh((left + left.T) / 2)
            imputed = imputed + rng.standard_normal(imputed.shape) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return np.asarray(imputed, dtype=np.float64)

    def write(self, path: str | Path) -> None:
        """The imputer as JSON, which ``read`` reads back."""
        Path(path).write_text(json.dumps(self.as_dict()), encoding="utf-8")

    def as_dict(self) -> dict[str, Any]:
        """``features``, ``mean`` and ``covariance`` as lists."""
        return {"features": list(self.features), "mean": self.mean.tolist(), "covariance": self.covariance.tolist()}

    @classmethod
    def read(cls, path: str | Path) -> Imputer:
        """Raises DataError for a file that is missing or is none."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_moments(
                tuple(document["features"]), np.array(document["mean"]), np.array(document["covariance"])
            )
        except FileNotFoundError:
            raise DataError(f"There is no imputer file {path}; `polyclinic prepare --imputer` writes one.") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{path} is not an imputer that `polyclinic prepare --imputer` wrote.") from None

    @classmethod
    def from_moments(cls, features: tuple[str, ...], mean: Floats, covariance: Floats) -> Imputer:
        """Return an imputer of these moments after checking them.

        Args:
            features: The features' names.
            mean: (F,) of the encoded features.
            covariance: (F, F) of the encoded features.

        Raises:
            ValueError: Unless the moments are finite, of the features' number, and positive definite.
        """
        size = len(features)
        if mean.shape != (size,) or covariance.shape != (size, size):
            raise ValueError(f"mean and covariance must be of {size} features.")
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all() and np.linalg.eigvalsh(covariance).min() > 0):
            raise ValueError("mean and covariance must be finite, the covariance positive definite.")
        return cls(features, mean.astype(np.float64), covariance.astype(np.float64))


def _in_range(x: Floats, gone: Bools, schema: Schema, rng: np.random.Generator | None) -> Floats:
    """Filled entries within what the encoding can give."""
    for column, at in feature_slices(schema):
        rows = gone[:, at].any(axis=1)
        part = x[rows, at]
        if column.kind == "categorical":
            part = np.maximum(part, 1e-6)
            part = part / part.sum(axis=1, keepdims=True)
            if rng is not None and len(part):
                chosen = (part.cumsum(axis=1) > rng.random((len(part), 1))).argmax(axis=1)
                part = np.eye(part.shape[1])[chosen]
        else:
            filled = np.clip(part, least(column), 1.0)
            if rng is not None and column.kind == "binary":
                filled = (filled > rng.random(filled.shape)).astype(np.float64)
            part = np.where(gone[rows, at], filled, part)
        x[rows, at] = part
    return x


def impute_chained(
    fitted_to: Floats,
    schema: Schema,
    seed: int,
    applied_to: Sequence[Floats] = (),
    draws: int = 0,
    iterations: int = 10,
) -> list[Floats]:
    """Fill missing cells by chained regressions inside one hospital (MICE).

    Not for training under privacy: one patient's filled cells depend on the others'.

    Args:
        fitted_to: (rows, features) encoded records to which the regressions are fitted.
        schema: The schema by which they were encoded.
        seed: Of the imputer; each further draw adds 1.
        applied_to: Other encoded records to fill, empty with draws.
        draws: 0 fills means. m gives m sets of ``fitted_to`` with draws from the posterior instead, whose analyses
            ``synthesis.combining`` joins.
        iterations: The most rounds over all features.

    Returns:
        The filled ``fitted_to`` and each of ``applied_to``; with draws the m sets of ``fitted_to``.

    Raises:
        ValueError: For draws together with ``applied_to``.

    The regressions are Bayesian ridge regressions in scikit-learn's IterativeImputer (van Buuren and
    Groothuis-Oudshoorn 2011).
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401 - it makes the next line possible
    from sklearn.impute import IterativeImputer
    from sklearn.linear_model import BayesianRidge

    bare, low = _bare(fitted_to, schema), _lowest(schema)
    if draws and applied_to:
        raise ValueError("draws are of the rows that the imputer is fitted to.")

    def imputer(number: int) -> Any:
        return IterativeImputer(
            BayesianRidge(), sample_posterior=bool(draws), max_iter=iterations, random_state=(seed + number) % 2**32,
            min_value=low, max_value=1.0, keep_empty_features=True, tol=1e-3,
        )  # fmt: skip

    if draws:
        return [np.asarray(imputer(number).fit_transform(bare), dtype=np.float64) for number in range(draws)]
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last iteration's values are values, too
        fitted = imputer(0).fit(bare)
    return [np.asarray(fitted.transform(_bare(rows, schema)), dtype=np.float64) for rows in (fitted_to, *applied_to)]


def _bare(x: Floats, schema: Schema) -> Floats:
    return np.where(missing(x, schema), np.nan, x)


def _lowest(schema: Schema) -> Floats:
    lowest = np.zeros(len(feature_names(schema)))
    for column, at in feature_slices(schema):
        lowest[at] = least(column)
    return lowest


def least(column: Column) -> float:
    """The smallest number that encodes a cell of the column."""
    return 0.0 if column.kind in ("categorical", "binary", "code_set") else -1.0
