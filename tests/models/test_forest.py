"""Forests of random trees: the leaf of a row by hand, and the directions in which leaves move together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.schema import Column, Schema
from polyclinic.models.forest import Forest, forest
from polyclinic.training.boosting.trees import Directions, made_up_rows
from polyclinic.types import Floats

LABEL = Column(name="died", kind="binary", role="label")
SCHEMA = Schema(
    name="ward", unit="record",
    columns=(
        Column(name="age", kind="continuous", bounds=(0, 100), nullable=True), Column(name="male", kind="binary", nullable=True),
        Column(name="ward", kind="categorical", categories=("a", "b", "c", "d")),
        Column(name="stage", kind="categorical", categories=("i", "ii"), drop_first=True), LABEL,
    ),
)  # fmt: skip
DIRECTIONS = Directions.of(SCHEMA, trees=64, depth=3, directions=20)


def _grown(outputs: int = 2, **options: int) -> Forest:
    model = forest(7, outputs, SCHEMA, **options)
    assert isinstance(model, Forest)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.leaves)
    torch.nn.init.normal_(model.intercept)
    return model


def test_a_row_adds_up_the_leaves_that_its_answers_name() -> None:
    model, rows = _grown(trees=30, depth=4), made_up_rows(SCHEMA, 50, 3)
    outputs = model(torch.from_numpy(rows.astype(np.float32))).detach().numpy()
    questions, thresholds = model.questions.numpy().reshape(7, 30, 4), model.thresholds.numpy().reshape(30, 4)
    sides, leaves = model.sides.numpy().reshape(30, 4), model.leaves.detach().numpy()
    for row, output in zip(rows.astype(np.float32), outputs, strict=True):
        total = model.intercept.detach().numpy().astype(np.float64)
        for tree in range(30):
            number = 0
            for level in range(4):
                cells = row[questions[:, tree, level] == 1]
                yes = sides[tree, level] > 0 if np.isnan(cells).any() else cells.sum() > thresholds[tree, level]
                number += int(yes) << level
            total = total + leaves[tree, number]
        np.testing.assert_allclose(output, total, atol=1e-4)


def test_every_question_is_about_one_column_and_parts_patients() -> None:
    """So that no level is lost; the levels that a tree does not use are answered with yes."""
    model = _grown(trees=200, depth=3, seed=5)
    questions, columns = model.questions.numpy(), np.array([0, 1, 2, 2, 2, 2, 3])
    asked = [np.unique(columns[question == 1]) for question in questions.T]
    assert {len(columns) for columns in asked} == {0, 1}
    used = np.array([len(columns) == 1 for columns in asked]).reshape(200, 3)
    assert used[:, 0].all() and 0.3 < used.mean(axis=0)[2] < 0.37 and (used[:, 1] >= used[:, 2]).all()
    rows = torch.from_numpy(made_up_rows(SCHEMA, 2000, 1).astype(np.float32))
    first = model.places(rows) % 2
    assert ((first.float().mean(0) > 0.01) & (first.float().mean(0) < 0.99)).all()
    assert 0.4 < (model.sides > 0).float().mean() < 0.6


def test_the_same_seed_has_the_same_trees() -> None:
    again, other = _grown(trees=20, seed=1), _grown(trees=20, seed=2)
    assert torch.equal(_grown(trees=20, seed=1).questions, again.questions)
    assert not torch.equal(other.questions, again.questions)


def test_directions_are_uncorrelated_among_made_up_patients() -> None:
    """As a principal component analysis of the leaves has them; and no two variances are so close that machines differ."""
    rows = DIRECTIONS.rows(made_up_rows(SCHEMA, 1000, 0))
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(rows.T @ rows / 1000, np.diag(DIRECTIONS.usual), atol=1e-9)
    lengths = np.linalg.norm(DIRECTIONS.tables, axis=0)
    np.testing.assert_allclose(lengths, lengths[0])
    assert all(first > (1 + 1e-6) * second for first, second in pairwise(DIRECTIONS.usual))


def test_directions_are_the_functions_that_random_leaves_make_most() -> None:
    """Leaves of one variance vary along the first direction as much as it says."""
    x, rng = made_up_rows(SCHEMA, 300, 9), np.random.default_rng(0)
    inside = np.zeros((300, 64 * 8))
    np.put_along_axis(inside, DIRECTIONS._places(x), 1.0, axis=1)
    made = inside @ rng.standard_normal((64 * 8, 4000))
    made -= made.mean(axis=0)
    rows = DIRECTIONS.rows(x)
    kept = rows @ np.linalg.lstsq(rows, made, rcond=None)[0]
    assert (kept**2).sum() > 0.85 * (made**2).sum()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(width=32), min_size=7, max_size=7), min_size=1, max_size=20))
def test_no_row_is_longer_than_the_farthest(cells: list[list[float]]) -> None:
    x: Floats = np.array(cells)
    lengths = np.linalg.norm(DIRECTIONS.rows(x), axis=1)
    assert np.isfinite(lengths).all() and lengths.max() <= DIRECTIONS.farthest


def test_a_table_of_few_different_rows_has_few_directions() -> None:
    schema = Schema(name="two", unit="record", columns=(Column(name="male", kind="binary"), LABEL))
    assert Directions.of(schema, trees=8, depth=2).rows(np.array([[0.0], [1.0]])).shape == (2, 1)


@pytest.mark.parametrize("options", [{"trees": 0}, {"trees": 513}, {"depth": 8}, {"directions": 301}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        forest(7, 1, SCHEMA, **options)
