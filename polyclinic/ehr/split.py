"""Which patients are held out: a share of them or a fold, by a hash of the patient's id, or those who were seen from a date on.

A patient's side follows from this patient's records and public settings alone. Nobody's side moves when others come or go, and
adding or removing one patient changes one side by that patient and leaves the other as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.dates import read_moments
from polyclinic.errors import ConfigError
from polyclinic.types import Bools, Floats

Texts = Sequence[str] | NDArray[np.object_]


def split_position(patient_id: str, salt: str = "polyclinic") -> float:
    """A number in [0, 1) fixed by the patient's id and the salt; blake2b keyed by the salt."""
    key = blake2b(salt.encode(), digest_size=32).digest()
    return int.from_bytes(blake2b(patient_id.encode(), digest_size=8, key=key).digest(), "big") / 2.0**64


def is_test_patient(patient_id: str, fraction: float, salt: str = "polyclinic") -> bool:
    """Return whether a patient belongs to the test side, which holds about ``fraction`` of all patients.

    Args:
        patient_id: The patient's id as text.
        fraction: The held-out share of patients, from 0 to 1.
        salt: Another one gives another split.
    """
    return split_position(patient_id, salt) < fraction


@dataclass(frozen=True)
class Split:
    """A rule by which patients are held out.

    Args:
        fraction: Held-out share of patients, at least 0 and below 1.
        seed: Draws another split; empty is the split that all runs share unless they say otherwise.
        folds, fold: With at least 2 folds each patient is held out in exactly one of the folds 0 to ``folds - 1``.
        time: ``COLUMN:MOMENT``, an ISO 8601 date or a number. Patients with a record at or after the moment are held
            out, and so are those with a record whose moment cannot be read. No record that is trained on is then from
            the future. A patient is on one side as a whole, so that earlier records of a held-out patient are not
            trained on.

    Examples:
        >>> [[patient for patient in "0123456789" if Split(folds=3, fold=fold).test_rows([patient])[0]] for fold in range(3)]
        [['5', '7', '8'], ['0', '2', '4'], ['1', '3', '6', '9']]
        >>> Split(time="admitted:2024-07-01").test_rows(["a", "a", "b"], ["2024-01-05", "2024-07-01", "2024-06-30"]).tolist()
        [True, True, False]
    """

    fraction: float = 0.25
    seed: str = ""
    folds: int = 0
    fold: int = 0
    time: str = ""

    def check(self) -> None:
        """Raises ConfigError where ``time`` is not a column and a moment."""
        if self.time and (not self.column or np.isnan(self._bound)):
            raise ConfigError(
                f"split.time is {self.time!r}: it must be a column and a moment, as in 'admitted:2024-07-01'"
            )

    @property
    def column(self) -> str:
        """The column of moments; empty where the split needs none."""
        return self.time.partition(":")[0]

    @property
    def by_share(self) -> bool:
        """Whether a share of the patients is held out, and neither a fold nor those from a date on."""
        return not self.time and not self.folds and self.fraction > 0

    @property
    def words(self) -> str:
        """Whom the split holds out, for a note."""
        column, _, moment = self.time.partition(":")
        if self.time:
            return f"patients with a record at or after {moment}, by column {column!r}"
        if not self.folds and not self.fraction:
            return "nobody"
        what = (
            f"fold {self.fold} of {self.folds}"
            if self.folds
            else f"about {self.fraction:.3g} of each hospital's patients"
        )
        return f"{what}, drawn by seed {self.seed}" if self.seed else what

    @property
    def share(self) -> float:
        """The held-out share of patients, on average; of a split by time it is not known."""
        return 1 / self.folds if self.folds else self.fraction

    @property
    def _bound(self) -> float:
        """The moment from which on patients are held out; NaN where it cannot be read."""
        return float(read_moments([self.time.partition(":")[2]], self._is_number)[0])

    @property
    def _is_number(self) -> bool:
        return bool(pd.notna(pd.to_numeric(self.time.partition(":")[2], errors="coerce")))

    def positions(self, ids: Texts) -> Floats:
        """(rows,) each row's patient's place in [0, 1)."""
        salt = f"polyclinic split {self.seed}" if self.seed else "polyclinic"
        return np.array([split_position(patient, salt) for patient in ids], dtype=np.float64)

    def test_rows(self, ids: Texts, moments: Sequence[object] | NDArray[np.object_] | None = None) -> Bools:
        """(rows,) True for the rows of held-out patients.

        Args:
            ids: (rows,) each row's patient as text.
            moments: (rows,) the cells of ``column``, for a split by time.
        """
        if self.time:
            assert moments is not None, "a split by time needs the cells of its column"
            # What cannot be read compares as false, and may be of the future.
            late = ~(read_moments(moments, self._is_number) < self._bound)
            person, _ = pd.factorize(np.asarray(ids, dtype=object))
            return np.asarray(np.bincount(person, late)[person] > 0)
        if self.folds:
            return np.asarray((self.positions(ids) * self.folds).astype(np.int64) == self.fold)
        return np.asarray(self.positions(ids) < self.fraction)


#: The split of all runs that ask for no other.
OWN_SPLIT = Split()


def held_out_per_training(splits: Sequence[Split]) -> float:
    """Held-out patients for each training patient, on average, of runs that hold out other patients; 0 of runs with one split."""
    share = splits[0].share
    return share / (1 - share) if len(set(splits)) > 1 else 0.0
