"""Rows become cells and come back, sums of cells stay within norm 1, and which pairs are chosen is known where it is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals import make
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.counts import groups, merged_sizes, parts, split
from polyclinic.synthesis.marginals.selection import all_pairs, dependence, distance, spanning_tree, worth
from polyclinic.types import Ints

SCHEMA = Schema(
    name="ward",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(0.0, 100.0), centre=60.0, spread=15.0),
        Column(name="visits", kind="integer", bounds=(1.0, 4.0)),
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="male", kind="binary", nullable=True),
        Column(name="ward", kind="categorical", categories=("icu", "med", "surg"), nullable=True),
        Column(name="region", kind="categorical", categories=("north", "south"), drop_first=True),
        Column(name="codes", kind="code_set", categories=("250", "401", "428")),
        Column(name="sbp", kind="trajectory", steps=2, bounds=(60.0, 240.0)),
        Column(name="stage", kind="ordinal", categories=("I", "II", "III")),
        Column(name="died", kind="categorical", role="label", categories=("no", "yes", "unknown")),
    ),
)
LAYOUT = Layout.of(SCHEMA)
TABLE = Table.of(LAYOUT, 16, 60)
NAMES = [
    "age",
    "visits",
    "lactate",
    "male",
    "ward",
    "region",
    "codes=250",
    "codes=401",
    "codes=428",
    "sbp_00",
    "sbp_01",
]


def random_cells(rows: int, seed: int) -> Ints:
    return np.random.default_rng(seed).integers(0, TABLE.sizes, (rows, len(TABLE.sizes)))


def test_each_column_has_the_cells_that_the_schema_gives_it() -> None:
    assert [attribute.name for attribute in TABLE.attributes] == [*NAMES, "stage", "label"]
    assert TABLE.sizes.tolist() == [16, 4, 17, 3, 4, 2, 2, 2, 2, 16, 16, 3, 3]


@pytest.mark.parametrize("bins", [2, 7, 16, 64])
def test_cells_come_back_from_rows_and_from_records(bins: int) -> None:
    table = Table.of(LAYOUT, bins, 60)
    rng = np.random.default_rng(bins)
    cells = rng.integers(0, table.sizes, (500, len(table.sizes)))
    z = table.rows(cells, rng)
    np.testing.assert_array_equal(table.cells(z), cells)
    records = LAYOUT.decode(z)
    encoded = encode(records, SCHEMA)
    assert encoded.y is not None
    # An age of 0 to 100 is whole: its cell is that of the whole number.
    np.testing.assert_array_equal(table.cells(LAYOUT.rows(encoded.x, encoded.y)), cells)


def test_whole_numbers_of_a_wide_column_are_equally_likely_within_a_bin() -> None:
    schema = Schema(name="w", unit="record", columns=(
        Column(name="n", kind="integer", bounds=(0.0, 7.0)), Column(name="y", kind="binary", role="label")))  # fmt: skip
    table = Table.of(Layout.of(schema), 4, 60)
    records = table.layout.decode(table.rows(np.tile([[1, 0]], (4000, 1)), np.random.default_rng(0)))
    counts = records["n"].value_counts()
    assert set(counts.index) == {2, 3}
    assert abs(counts[2] - 2000) < 200


def test_bounds_and_beyond_fall_in_the_outer_bins() -> None:
    z = np.zeros((2, LAYOUT.width))
    low, high = LAYOUT.bounds
    z[0], z[1] = low - 1, high + 1
    cells = TABLE.cells(z)[:, [0, 1, 9]]
    np.testing.assert_array_equal(cells, [[0, 0, 0], [15, 3, 15]])


def test_too_many_columns_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'ward' makes 13 columns.* at most 12.*'latent' or 'moments'"):
        make(LAYOUT, columns=12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "gum"}, "'algorithm' is 'gum'; allowed are mst and aim"),
        ({"bins": 1}, "'bins' is 1; allowed are whole numbers from 2 to 64"),
        ({"bins": "ten"}, "'bins' is 'ten'"),
        ({"rounds": 2}, "'rounds' is 2; allowed are 0 .* and 3 to 100"),
        ({"focus": "age+weight"}, "'focus' names 'weight'; allowed are age, visits"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(LAYOUT, **options)


def test_options_may_be_text() -> None:
    method = make(LAYOUT, algorithm="mst", bins="8", rounds="5")
    assert (method.rounds, method.table.sizes[0]) == (5, 8)
    assert make(LAYOUT, focus="sbp + codes").focus == (6, 7, 8, 9, 10)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(0, 10**6))
def test_a_patient_adds_at_most_norm_one_and_its_rows_mean(round: int, seed: int) -> None:
    method = make(LAYOUT, bins=5)
    table = method.table
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, table.sizes, (12, len(table.sizes)))
    z, patient = table.rows(cells, rng), rng.integers(0, 5, 12)
    merged = parts(table, rng.random(table.sizes.sum()) * 0.2, 0.02)
    pairs = np.array([[0, 3], [2, 2], [1, 12]])
    question = {"groups": groups(table, rng.random(table.sizes.sum()), merged), "merged": merged, "pairs": pairs}
    found = method.contributions(round, question, z, patient, 5)
    norms = np.linalg.norm(found, axis=1)
    assert (norms <= 1 + 1e-12).all()
    alone = np.bincount(patient, minlength=5) == 1
    np.testing.assert_allclose(norms[alone], 1.0)
    for one in range(5):
        rows = np.flatnonzero(patient == one)
        each = method.contributions(round, question, z[rows], np.arange(len(rows)), len(rows))
        np.testing.assert_allclose(found[one], each.mean(axis=0) if len(rows) else 0.0)


def test_contributions_are_the_counts_that_numpy_finds() -> None:
    method = make(LAYOUT, algorithm="mst")
    cells = random_cells(300, 1)
    z = TABLE.rows(cells, np.random.default_rng(0))
    state = {"merged": np.concatenate([np.arange(size) for size in TABLE.sizes]), "pairs 3": np.array([[0, 4], [2, 9]])}
    question = method.question(3, state)
    total = method.contributions(3, question, z, np.arange(300), 300).sum(axis=0) * np.sqrt(2)
    expected = [
        np.histogram2d(cells[:, a], cells[:, b], bins=[np.arange(TABLE.sizes[i] + 1) for i in (a, b)])[0].ravel()
        for a, b in [(0, 4), (2, 9)]
    ]
    np.testing.assert_allclose(total, np.concatenate(expected))
    assert method.size(3, question) == len(total)


def test_cells_lost_in_noise_are_merged_with_neighbours_and_nothing_else() -> None:
    frequencies = [np.full(size, 1.0) for size in TABLE.sizes]
    frequencies[0] = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 1.0, 0, 0, 0, 0, 0, 0.05])
    frequencies[4] = np.array([0.1, 0.6, 0.2, 0.0])
    merged = split(parts(TABLE, np.concatenate(frequencies), 0.1), TABLE.sizes)
    np.testing.assert_array_equal(merged[0], [0, 1, 1, 1, *[2] * 12])
    np.testing.assert_array_equal(merged[4], [1, 0, 1, 2])
    np.testing.assert_array_equal(merged[3], [0, 1, 2])
    none = parts(TABLE, np.concatenate(frequencies), 0.0)
    np.testing.assert_array_equal(none, np.concatenate([np.arange(size) for size in TABLE.sizes]))


def test_groups_hold_about_equally_many_and_never_split_what_is_merged() -> None:
    rng = np.random.default_rng(3)
    frequencies = np.concatenate([rng.dirichlet(np.ones(size)) for size in TABLE.sizes])
    merged = parts(TABLE, frequencies, 0.01)
    grouped = groups(TABLE, frequencies, merged)
    for numbers, own, share in zip(*(split(one, TABLE.sizes) for one in (grouped, merged, frequencies)), strict=True):
        assert all(len(set(numbers[own == part])) == 1 for part in np.unique(own))
        np.testing.assert_array_equal(np.unique(numbers), np.arange(numbers.max() + 1))
        assert numbers.max() <= 4
        if len(numbers) == 16:
            assert np.bincount(numbers, share).max() < 0.6
    # The missing have a group of their own.
    lactate = split(grouped, TABLE.sizes)[2]
    assert (lactate == lactate[-1]).sum() == 1
    assert merged_sizes(grouped, TABLE).shape == TABLE.sizes.shape


def test_the_tree_is_the_heaviest_of_all() -> None:
    pairs = all_pairs(4)
    weights = np.array([0.9, 0.1, 0.2, 0.8, 0.3, 0.7])  # 01 02 03 12 13 23
    np.testing.assert_array_equal(spanning_tree(pairs, weights, 4), [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_array_equal(spanning_tree(pairs, np.array([0, 0.4, 0, 0, 0, 0]), 4), [[0, 2]])
    assert spanning_tree(pairs, np.zeros(6), 4).shape == (0, 2)


def test_dependence_within_classes_is_corrected_for_noise() -> None:
    rng, noise = np.random.default_rng(0), 0.05
    pair, one_class = np.array([[0, 1]]), [np.array([[0.5], [0.5]])] * 2 + [np.eye(1)]
    exact, still = np.array([0.4, 0.1, 0.1, 0.4]), np.zeros(3)
    assert dependence(pair, [exact], 0.0, one_class, still)[0] == pytest.approx(0.6)
    squares = [
        dependence(pair, [exact + noise * rng.standard_normal(4)], noise, one_class, still)[0] ** 2 for _ in range(4000)
    ]
    assert np.mean(squares) == pytest.approx(0.36, abs=0.01)
    assert distance(np.array([0.1, -0.1]), 0.02) == pytest.approx(0.0, abs=1e-8)


def test_what_the_label_explains_is_no_dependence_however_loud_a_rare_class() -> None:
    by_class = [
        np.array([[0.81, 0.02], [0.09, 0.08]])
    ] * 2  # each column is 1 for a tenth, and for four fifths of a rare class
    shares = np.array([0.9, 0.1])
    table = sum(share * np.outer(own, own) for share, own in zip(shares, (by_class[0] / shares).T, strict=True)).ravel()
    assert dependence(np.array([[0, 1]]), [table], 0.0, [*by_class, np.diag(shares)], np.zeros(3))[0] < 1e-9
    assert np.abs(table - np.outer(by_class[0].sum(axis=1), by_class[0].sum(axis=1)).ravel()).sum() > 0.15
    loud = dependence(
        np.array([[0, 1]]), [np.array([0.5, 0, 0, 0.5])], 0.0, [*by_class, np.diag(shares)], np.full(3, 1e-4)
    )
    assert loud[0] > 0.5


def test_pairs_are_chosen_as_long_as_they_gain_more_than_they_cost_and_fit() -> None:
    pairs = all_pairs(3)
    errors, costs = np.array([0.5, 0.1, 0.9]), np.full(3, 0.1)

    def chosen(most: tuple[int, int] = (3, 1), scale: float = 1.0) -> list[list[int]]:
        return worth(pairs, errors, scale * costs, most, lambda _: True).tolist()

    # Of two tables beside one each has sqrt(3) of 0.1, of three 0.2 is more than the second pair's 0.1.
    assert chosen() == [[0, 1], [1, 2]]
    assert chosen((1, 1)) == [[1, 2]]
    assert chosen(scale=0.0) == [[0, 1], [0, 2], [1, 2]]
    assert chosen(scale=3.0) == [[1, 2]]
    assert chosen(scale=9.0) == []
    assert worth(pairs, errors, costs, (3, 1), lambda found: (1, 2) not in found).tolist() == [[0, 1]]
