"""A record as one row of numbers for a synthesizer, and back: a pure function of the public schema.

z = [encoded features, numeric ones scaled by public numbers, missing cells 0 | a 0/1 indicator for each feature that may be
missing and is not one-hot | one-hot class]. F features, K classes, D numbers in all. The class is the label; where rows are
conditioned on their hospital too, it is label times H + hospital, of H hospitals. A label that is a number stands last in place
of the class, scaled as a feature; a posterior's outcome may be one, synthesizers have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import (
    decode,
    feature_names,
    feature_slices,
    nullable_mask,
    public_scale,
    public_standardiser,
    standardised_mask,
)
from polyclinic.ehr.schema import CLASS_KINDS, Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Floats, Ints, Labels

#: Kinds of a label that is a number.
_NUMBERS = ("continuous", "integer")


@dataclass(frozen=True, eq=False)
class Layout:
    """Where what lies in z. ``mean``, ``std``: (F,) public scale; ``nullable``: (F,) features with an indicator; ``hospitals``:
    H, 1 where rows do not say of which hospital they are.
    """

    schema: Schema
    mean: Floats
    std: Floats
    nullable: Bools
    hospitals: int = 1

    @classmethod
    def of(cls, schema: Schema, hospitals: int = 1, label_may_be_number: bool = False) -> Layout:
        """The layout of a schema's rows.

        Args:
            schema: The public schema.
            hospitals: Rows say of which of so many hospitals they are; 0 or 1: they are of all alike.
            label_may_be_number: Whether a label without classes is allowed.

        Raises:
            ConfigError: The schema's cells cannot be generated: an open vocabulary, features of missingness, or a label
                without classes, where it may not be a number.
        """
        label = schema.label
        if not (schema.has_classes or (label_may_be_number and label.kind in _NUMBERS)):
            raise ConfigError(
                f"The label {label.name!r} is of kind {label.kind!r}; what was asked for takes a label with classes "
                f"({', '.join(CLASS_KINDS)}){', or a number' if label_may_be_number else ''}."
            )
        for column in schema.features:
            if column.is_open:
                raise ConfigError(
                    f"Schema column {column.name!r} has an open vocabulary, of which nothing can be generated; name its "
                    "categories, as `polyclinic prepare` does."
                )
            if column.indicator:
                raise ConfigError(
                    f"Schema column {column.name!r} has a feature that says where it is missing; task synthesis keeps track of "
                    "that itself: leave data.imputation at 'mean' and indicator out of the schema."
                )
        return cls(schema, *public_standardiser(schema), nullable_mask(schema), max(hospitals, 1))

    @property
    def features(self) -> int:
        """F, the encoded features."""
        return len(self.mean)

    @cached_property
    def label_scale(self) -> tuple[float, float] | None:
        """Centre and scale of a label that is a number, in its unit; None of one with classes."""
        return public_scale(self.schema.label) if self.schema.label.kind in _NUMBERS else None

    @property
    def classes(self) -> int:
        """K, the classes; 1 of a label that is a number."""
        return 1 if self.label_scale else self.schema.num_classes * self.hospitals

    @property
    def width(self) -> int:
        """D, the numbers of a row."""
        return int(self.label.stop)

    @cached_property
    def missing(self) -> slice:
        """The indicators, in the order of the features that have one."""
        return slice(self.features, self.features + int(self.nullable.sum()))

    @property
    def label(self) -> slice:
        """The one-hot class, or the label's number, last."""
        return slice(self.missing.stop, self.missing.stop + self.classes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(D,) a name for each number."""
        features = feature_names(self.schema)
        absent = [f"{name} missing" for name, is_nullable in zip(features, self.nullable, strict=True) if is_nullable]
        label = self.schema.label.name
        return (*features, *absent, *([label] if self.label_scale else (f"{label}={k}" for k in range(self.classes))))

    @cached_property
    def columns(self) -> tuple[tuple[Column, slice], ...]:
        """The feature columns, and where each one's features are."""
        return tuple(feature_slices(self.schema))

    @cached_property
    def numeric(self) -> Bools:
        """(D,) True for scaled numbers; the others are 0 or 1."""
        mask = np.zeros(self.width, dtype=bool)
        mask[: self.features] = standardised_mask(self.schema)
        mask[self.label] = self.label_scale is not None
        return mask

    @cached_property
    def groups(self) -> tuple[slice, ...]:
        """The one-hot groups, of which at most one number is 1: categorical columns, and the label last."""
        return (*(at for column, at in self.columns if column.kind == "categorical"), self.label)

    @cached_property
    def trajectories(self) -> tuple[slice, ...]:
        """The features of each column that is measured over visits, in their order."""
        return tuple(at for column, at in self.columns if column.kind == "trajectory")

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """(D,) least and largest number of each place: public bounds in the scale of z, or 0 and 1."""
        low, high = np.zeros(self.width), np.ones(self.width)
        features = self.numeric[: self.features]
        low[: self.features][features] = ((-1.0 - self.mean) / self.std)[features]
        high[: self.features][features] = ((1.0 - self.mean) / self.std)[features]
        if self.label_scale and self.schema.label.bounds:
            low[-1], high[-1] = (np.array(self.schema.label.bounds) - self.label_scale[0]) / self.label_scale[1]
        return low, high

    def rows(self, x: Floats, y: Labels, hospital: int = 0) -> Floats:
        """(n, D) rows of encoded features and labels.

        Args:
            x: (n, F) encoded features, NaN where missing.
            y: (n,) labels, classes or numbers in the label's unit.
            hospital: The number of the hospital of all rows, from 0.

        Raises:
            ConfigError: The hospital is not one of ``hospitals``.
        """
        if self.hospitals > 1 and not 0 <= hospital < self.hospitals:
            raise ConfigError(f"hospital is {hospital}; this layout has {self.hospitals} of them, from 0.")
        absent = np.isnan(x)
        low, high = (bound[: self.features] for bound in self.bounds)
        scaled = np.where(absent, 0.0, np.clip((x - self.mean) / self.std, low, high))
        if self.label_scale:
            centre, scale = self.label_scale
            label = np.clip((y - centre) / scale, self.bounds[0][-1], self.bounds[1][-1])[:, None]
        else:
            label = np.eye(self.classes)[y * self.hospitals + (hospital if self.hospitals > 1 else 0)]
        return np.concatenate([scaled, absent[:, self.nullable], label], axis=1)

    def some_labels(self, count: int) -> Labels:
        """(count,) labels that take turns, made up: classes, or numbers around the public centre."""
        turns = np.arange(count)
        if self.label_scale:
            centre, scale = self.label_scale
            return np.asarray(centre + scale * (turns % 3 - 1.0))
        return np.asarray(turns % self.schema.num_classes)

    def labels(self, z: Floats) -> Ints:
        """(n,) class of each row: its largest."""
        return np.asarray(np.argmax(z[:, self.label], axis=1).astype(np.int64))

    def by_class(self, z: Floats, vectors: Floats) -> Floats:
        """(n, K k) of (n, k) ``vectors`` of rows ``z``, each in the block of its class, and 0 in the others."""
        blocks = np.zeros((len(z), self.classes, vectors.shape[1]))
        blocks[np.arange(len(z)), self.labels(z)] = vectors
        return blocks.reshape(len(z), self.classes * vectors.shape[1])

    def features_and_labels(self, z: Floats) -> tuple[Floats, Ints]:
        """(n, F) encoded features as a hospital would have them of the decoded records, and (n,) labels."""
        x = np.asarray(z[:, : self.features], dtype=np.float64) * self.std + self.mean
        absent = np.zeros_like(x, dtype=bool)
        absent[:, self.nullable] = z[:, self.missing] > 0.5
        x[absent] = np.nan
        return x, self.labels(z) // self.hospitals

    def decode(self, z: Floats) -> pd.DataFrame:
        """(n, D) as records with the schema's feature columns and its label: each the nearest that the schema allows.

        Raises DataError for a row of another width or with numbers that are not finite.
        """
        if z.ndim != 2 or z.shape[1] != self.width:
            raise DataError(
                f"Generated rows have shape {z.shape}; schema {self.schema.name!r} needs (rows, {self.width})."
            )
        if not np.isfinite(z).all():
            raise DataError("Generated rows hold numbers that are not finite: the generator has diverged.")
        x, y = self.features_and_labels(np.asarray(z, dtype=np.float64))
        records = decode(x, self.schema)
        label = self.schema.label
        records[label.name] = np.array(label.categories, dtype=object)[y] if label.categories else y
        return records
