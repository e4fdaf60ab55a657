"""What does the model say of a column that its holder keeps secret?

The attacker knows a patient's other columns and label, and has a law of the secret column given the others from
patients of its own. It asks the model how likely the label is with each choice (Fredrikson et al. 2014). The same guess
about patients who did not take part is the baseline: what is right there too, the population tells and no record (Yeom
et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from polyclinic.ehr.encoding import feature_slices
from polyclinic.ehr.schema import NUMERIC_KINDS, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.evaluation.intervals import Interval, difference, wilson
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats, Ints, Labels

Table = tuple[Floats, Labels]
#: (n, F) features and (n, ...) labels to the (n,) log probabilities of the labels.
LogLikelihood = Callable[[Floats, Labels], Floats]
#: (n, ...) labels to (n, L) columns.
LabelColumns = Callable[[Labels], Floats]
MOST_COLUMNS, MOST_CHOICES, MOST_PATIENTS = 12, 20, 2000
_LEAST = 1e-6


@dataclass(frozen=True)
class Guessed:
    """How often an attacker guesses one secret column rightly.

    Attributes:
        members, non_members: Shares of right guesses with the model.
        without_model: Of members, by the other columns alone.
        excess: Members less non-members; 0 where the model says of those it learned from what it says of anybody.
        choices: How many values; of a number two: above its median or not.
    """

    column: str
    choices: int
    members: Interval
    non_members: Interval
    without_model: Interval
    excess: Interval


@dataclass(frozen=True, eq=False)
class Secret:
    """A column's choices: ``block`` (V, width) as features ``at`` their place; ``cut``: a number's median, else None."""

    column: str
    at: slice
    block: Floats
    cut: float | None = None

    def truth(self, x: Floats) -> Ints:
        """(n,) each row's choice, -1 where it is missing."""
        own = x[:, self.at]
        if self.cut is not None:
            return np.where(np.isnan(own[:, 0]), -1, own[:, 0] > self.cut).astype(np.int64)
        same = (own[:, None] == self.block[None]).all(axis=2)
        return np.where(same.any(axis=1), same.argmax(axis=1), -1).astype(np.int64)


def secrets(schema: Schema, background: Floats, wanted: Collection[str] = ()) -> list[Secret]:
    """Return the columns to guess: ``wanted``, or the first twelve that have one cell and at most 20 choices.

    Args:
        schema: The schema of the rows.
        background: (n, F) encoded rows of patients whom the attacker has.
        wanted: Names of columns; empty chooses them.

    Raises:
        ConfigError: For a wanted column that cannot be guessed.
    """
    by_column = {}
    for column, at in feature_slices(schema):
        width = at.stop - at.start
        if column.kind in NUMERIC_KINDS and width == 1:
            cells = background[:, at.start]
            quartiles = np.nanquantile(cells, [0.25, 0.5, 0.75]) if not np.isnan(cells).all() else np.zeros(3)
            if quartiles[0] < quartiles[2]:
                by_column[column.name] = Secret(column.name, at, quartiles[[0, 2], None], float(quartiles[1]))
        elif column.kind == "binary":
            by_column[column.name] = Secret(column.name, at, np.array([[0.0], [1.0]]))
        elif column.kind == "categorical" and width + int(column.drop_first) <= MOST_CHOICES:
            hot = np.eye(width)
            by_column[column.name] = Secret(
                column.name, at, np.concatenate([np.zeros((int(column.drop_first), width)), hot])
            )
    for name in wanted:
        if name not in by_column:
            raise ConfigError(
                f"--sensitive names {name!r}, which is not a column to guess; allowed are "
                f"{', '.join(by_column)}.{nearest(name, by_column)}"
            )
    return [by_column[name] for name in wanted] if wanted else list(by_column.values())[:MOST_COLUMNS]


def guess_column(
    secret: Secret,
    members: Table,
    non_members: Table,
    background: Table,
    label_columns: LabelColumns,
    log_likelihood: LogLikelihood,
) -> Guessed | None:
    """Guess a secret column of patients with and without the model, and return the shares of right guesses.

    Args:
        secret: The column and its choices.
        members: x (n, F) and y (n, ...) of attacked patients who took part.
        non_members: x and y of attacked patients who did not.
        background: x and y of the attacker's own patients.
        label_columns: From (n, ...) labels to (n, L) columns, with which the attacker predicts the secret.
        log_likelihood: From x and y to (n,) log probabilities of the labels by the model.

    Returns:
        None where the attacker's own patients have one choice alone.
    """
    law = _law(secret, background, label_columns)
    if law is None:
        return None
    shares, alone = [], None
    for x, y in (members, non_members):
        truth = secret.truth(x)
        x, y, truth = x[truth >= 0], y[truth >= 0], truth[truth >= 0]
        prior = law(x, y)
        guess = (prior + with_model(secret, x, y, log_likelihood)).argmax(axis=1)
        shares.append(wilson(int(np.sum(guess == truth)), len(truth)))
        alone = alone or wilson(int(np.sum(prior.argmax(axis=1) == truth)), len(truth))
    assert alone is not None
    own, others = shares
    return Guessed(secret.column, len(secret.block), own, others, alone, difference(own, others))


def with_model(secret: Secret, x: Floats, y: Labels, log_likelihood: LogLikelihood) -> Floats:
    """Return the (n, V) log probability of each row's label with each choice in place of its own.

    Args:
        secret: The column and its V choices.
        x: (n, F) encoded rows.
        y: (n, ...) labels.
        log_likelihood: From x and y to (n,) log probabilities of the labels by the model.
    """
    likelihoods = np.empty((len(x), len(secret.block)))
    for number, cells in enumerate(secret.block):
        tried = x.copy()
        tried[:, secret.at] = cells
        likelihoods[:, number] = log_likelihood(tried, y)
    return likelihoods


def split_known(patients: int, seed: int) -> tuple[Ints, Ints]:
    """Patients who did not take part, in halves: those whom the attacker has, and those who are attacked."""
    order = generator(seed, "attacks", "known").permutation(patients)
    return order[: patients // 2][:MOST_PATIENTS], order[patients // 2 :][:MOST_PATIENTS]


def _law(secret: Secret, background: Table, label_columns: LabelColumns) -> LogLikelihood | None:
    """(n, V) log probabilities of the choices by the other columns and the label: a logistic regression on the attacker's own."""
    from sklearn.linear_model import LogisticRegression  # takes a second to load

    x, y = background
    truth = secret.truth(x)
    if len(np.unique(truth[truth >= 0])) < 2:
        return None
    others = np.ones(x.shape[1], dtype=bool)
    others[secret.at] = False

    def features(x: Floats, y: Labels) -> Floats:
        return np.concatenate([np.nan_to_num(x[:, others]), label_columns(y)], axis=1)

    fitted = LogisticRegression(max_iter=1000).fit(features(x, y)[truth >= 0], truth[truth >= 0])

    def law(x: Floats, y: Labels) -> Floats:
        probabilities = np.full((len(x), len(secret.block)), _LEAST)
        if len(x):
            probabilities[:, fitted.classes_] = np.maximum(fitted.predict_proba(features(x, y)), _LEAST)
        return np.asarray(np.log(probabilities))

    return law
