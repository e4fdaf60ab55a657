"""Partitioners: every row once, patients whole, the same for a seed, least numbers, and the shift each one promises."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr import PARTITIONERS, Column, Schema, partition
from polyclinic.ehr.partition.dealt import MIN_PATIENTS, MIN_PER_CLASS, by_column, feature_shift, iid
from polyclinic.errors import ConfigError, DataError

DEALT = [name for name in PARTITIONERS if ":" not in name and name != "natural"]
SCHEMA = Schema(
    name="s",
    columns=(
        Column(name="id", kind="categorical", role="patient_id"),
        Column(name="hospital", kind="categorical", role="site"),
        Column(name="a", kind="continuous", bounds=(-5, 5)),
        Column(name="b", kind="continuous", bounds=(-5, 5), nullable=True),
        Column(name="y", kind="binary", role="label"),
    ),
)


def _table(patients: int, rows: int, seed: int = 0, prevalence: float = 0.4) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(patients), rng.integers(0, patients, rows - patients)])
    sick = np.zeros(patients, dtype=int)
    sick[: round(prevalence * patients)] = 1
    values = np.clip(rng.normal(sick[owner], 1.0), -5, 5)
    table = pd.DataFrame(
        {
            "id": [f"p{p}" for p in owner],
            "hospital": [("west", "east", "north")[p % 3] for p in owner],
            "a": values,
            "b": np.where(rng.random(rows) < 0.1, np.nan, -values),
            "y": sick[owner],
            "row": np.arange(rows),
        }
    )
    return table.sample(frac=1.0, random_state=seed).reset_index(drop=True)


def _check_cover(parts: dict[str, pd.DataFrame], table: pd.DataFrame) -> None:
    rows = np.concatenate([part["row"].to_numpy() for part in parts.values()])
    assert sorted(rows.tolist()) == list(range(len(table)))
    owners = [set(part["id"]) for part in parts.values()]
    assert sum(map(len, owners)) == table["id"].nunique()
    assert list(parts) == sorted(parts)


@settings(max_examples=80)
@given(
    st.sampled_from([*DEALT, "natural", "column:y"]),
    st.integers(6, 120),
    st.integers(0, 60),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([0.05, 1.0, 50.0]),
)
def test_rows_are_covered_once_and_patients_stay_whole(
    name: str, patients: int, extra: int, sites: int, seed: int, alpha: float
) -> None:
    table = _table(patients, patients + extra, seed)
    parts = partition(table, SCHEMA, name, sites if name in DEALT else 0, seed, alpha)
    _check_cover(parts, table)
    if name in DEALT:
        assert len(parts) == sites
        sick = round(0.4 * patients)
        for part in parts.values():
            people = part.drop_duplicates("id")
            assert len(people) >= min(MIN_PATIENTS, patients // sites)
            assert people["y"].sum() >= min(MIN_PER_CLASS, sick // sites)
            assert (1 - people["y"]).sum() >= min(MIN_PER_CLASS, (patients - sick) // sites)


@pytest.mark.parametrize("name", DEALT)
def test_the_same_seed_deals_alike_and_another_differs(name: str) -> None:
    table = _table(200, 300)
    first, again, other = (partition(table, SCHEMA, name, 4, seed, 0.5) for seed in (3, 3, 4))
    assert all(first[site].equals(again[site]) for site in first)
    assert any(not first[site].equals(other[site]) for site in first)


def test_iid_sites_are_of_equal_size() -> None:
    parts = partition(_table(203, 203), SCHEMA, "iid", 4, 0)
    assert sorted(len(part) for part in parts.values()) == [50, 51, 51, 51]


def _prevalences(name: str, alpha: float) -> np.ndarray:
    parts = partition(_table(3000, 3000), SCHEMA, name, 6, 1, alpha)
    return np.array([part["y"].mean() for part in parts.values()])


def _sizes(name: str, alpha: float) -> np.ndarray:
    return np.array([len(part) for part in partition(_table(3000, 3000), SCHEMA, name, 6, 1, alpha).values()])


def test_each_partitioner_shifts_what_it_promises() -> None:
    assert np.ptp(_prevalences("iid", 1.0)) < 0.1
    assert np.ptp(_prevalences("quantity", 1.0)) < 0.2 and np.ptp(_sizes("quantity", 1.0)) > 500
    assert np.ptp(_prevalences("dirichlet", 0.3)) > 0.4
    assert np.ptp(_prevalences("dirichlet", 1000.0)) < 0.1
    assert np.ptp(_prevalences("label-quantity", 1.0)) > 0.2 and np.ptp(_sizes("label-quantity", 1.0)) > 200


def test_feature_shift_orders_sites_and_alpha_mixes_them() -> None:
    table = _table(2000, 2000)
    spreads = []
    for alpha in (0.01, 1.0, 20.0):
        deal = feature_shift(table, SCHEMA, 5, np.random.default_rng(0), alpha)
        spreads.append(float(np.ptp([table["a"].to_numpy()[rows].mean() for rows in deal])))
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[0] > 2.0 and spreads[2] < 0.6


def test_public_partitioners_return_row_indices() -> None:
    table = _table(50, 80)
    deal = iid(table, SCHEMA, 3, np.random.default_rng(0))
    assert sorted(np.concatenate(deal).tolist()) == list(range(80))


def test_by_column_keeps_a_wandering_patient_at_the_first_site() -> None:
    table = pd.DataFrame({"id": ["a", "b", "a"], "hospital": ["west", "east", "east"], "y": [0, 1, 0]})
    groups = by_column(table, SCHEMA, "hospital")
    assert {name: rows.tolist() for name, rows in groups.items()} == {"west": [0, 2], "east": [1]}


def test_natural_takes_the_first_sites_in_order_of_appearance() -> None:
    table = pd.DataFrame({"id": list("abc"), "hospital": ["west", "north", "east"], "y": [0, 1, 0]})
    assert list(partition(table, SCHEMA, "natural", 2, 0)) == ["north", "west"]
    assert list(partition(table, SCHEMA, "column:y", 0, 0)) == ["0", "1"]


def test_site_names_sort_as_numbers() -> None:
    names = list(partition(_table(120, 120), SCHEMA, "iid", 12, 0))
    assert names[0] == "hospital-01" and names[-1] == "hospital-12"
    assert list(partition(_table(120, 120), SCHEMA, "iid", 3, 0)) == ["hospital-1", "hospital-2", "hospital-3"]


@pytest.mark.parametrize(
    ("name", "sites", "seed", "alpha", "sentence"),
    [
        ("dirichelt", 2, 0, 1.0, "Did you mean 'dirichlet'"),
        ("column:", 2, 0, 1.0, "is unknown"),
        ("iid", 0, 0, 1.0, "sites is 0; it must be 1 or more"),
        ("natural", -1, 0, 1.0, "0 for all"),
        ("natural", 4, 0, 1.0, "finds 3"),
        ("column:hospital", 4, 0, 1.0, "finds 3"),
        ("iid", 51, 0, 1.0, "there are 50 patients"),
        ("iid", 2, -1, 1.0, "seed is -1"),
        ("quantity", 2, 0, 0.0, "alpha is 0.0"),
        ("quantity", 2, 0, float("nan"), "alpha is nan"),
    ],
)
def test_impossible_requests_are_refused(name: str, sites: int, seed: int, alpha: float, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        partition(_table(50, 70), SCHEMA, name, sites, seed, alpha)


def test_small_sites_are_pooled_into_other() -> None:
    table = _table(300, 400)
    table["hospital"] = ["tiny" if int(p[1:]) < 20 else "small" if int(p[1:]) < 60 else "large" for p in table["id"]]
    sizes = {site: part["id"].nunique() for site, part in partition(table, SCHEMA, "natural+pool:30", 0, 0).items()}
    assert sizes == {"large": 240, "other": 20, "small": 40}
    pooled = partition(table, SCHEMA, "column:hospital+pool:41", 0, 0)
    assert {site: part["id"].nunique() for site, part in pooled.items()} == {"large": 240, "other": 60}
    _check_cover(pooled, table)
    assert list(partition(table, SCHEMA, "natural+pool:5", 0, 0)) == ["large", "small", "tiny"], (
        "none is pooled in vain"
    )


def test_power_law_sizes_fall_as_a_power_of_their_rank() -> None:
    for exponent in (0.5, 1.0, 1.5):
        sizes = np.sort(_sizes("power-law", exponent))[::-1]
        expected = np.arange(1.0, 7.0) ** -exponent
        assert np.allclose(sizes, 3000 * expected / expected.sum(), atol=MIN_PATIENTS)


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 12), st.integers(0, 3))
def test_a_site_has_at_most_k_classes(kinds: int, each: int, sites: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, kinds, 200)
    labels[:kinds] = np.arange(kinds)
    names = tuple(f"c{kind}" for kind in range(kinds))
    columns = (*SCHEMA.columns[:-1], Column(name="y", kind="categorical", role="label", categories=names))
    schema = Schema(name="k", columns=columns)
    table = _table(200, 200).assign(y=[names[label] for label in labels])
    if sites * each < kinds:
        with pytest.raises(ConfigError, match="pieces"):
            partition(table, schema, f"classes:{each}", sites, seed)
        return
    parts = partition(table, schema, f"classes:{each}", sites, seed)
    _check_cover(parts, table)
    assert len(parts) == sites and all(1 <= part["y"].nunique() <= each for part in parts.values())


def test_time_orders_sites_and_keeps_patients_whole() -> None:
    table = _table(90, 150).assign(day=lambda t: pd.to_datetime("2001-01-01") + pd.to_timedelta(t["row"], unit="D"))
    for column in ("row", "day"):
        parts = partition(table.astype({"day": str}), SCHEMA, f"time:{column}", 3, 0)
        _check_cover(parts, table.astype({"day": str}))
        first = [part.groupby("id")["row"].min() for part in parts.values()]
        assert [len(f) for f in first] == [30, 30, 30]
        assert first[0].max() < first[1].min() and first[1].max() < first[2].min()
    with pytest.raises(DataError, match="data row 1: the cell is neither a number nor a date"):
        partition(table, SCHEMA, "time:id", 3, 0)


def test_bias_moves_each_sites_readings_within_the_bounds() -> None:
    table = _table(600, 900)
    plain, biased = (partition(table, SCHEMA, name, 4, 5, 2.0) for name in ("iid", "iid+bias"))
    gains = []
    for site, part in biased.items():
        before = plain[site]
        assert part[["id", "hospital", "y", "row"]].equals(before[["id", "hospital", "y", "row"]])
        assert part["b"].isna().equals(before["b"].isna()) and part[["a", "b"]].abs().max().max() <= 5.0
        inside = part["a"].abs() < 5.0
        slope, offset = np.polyfit(before["a"][inside], part["a"][inside], 1)
        assert np.allclose(part["a"][inside], slope * before["a"][inside] + offset)
        gains.append(slope)
    assert np.ptp(gains) > 0.02
    assert all(biased[site].equals(again) for site, again in partition(table, SCHEMA, "iid+bias", 4, 5, 2.0).items())
    assert all(part["a"].equals(_rows_of(table, part)["a"]) for part in plain.values()), "the table itself stays"


def _rows_of(table: pd.DataFrame, part: pd.DataFrame) -> pd.DataFrame:
    return table.set_index("row").loc[part["row"]].reset_index()


def test_units_change_at_about_half_of_the_sites_and_stay_valid() -> None:
    pressure = Column(name="a", kind="trajectory", steps=2, unit="mmHg", bounds=(0, 300))
    count = Column(name="b", kind="integer", unit="mg/dl", bounds=(0, 10))
    schema = Schema(name="u", columns=(*SCHEMA.columns[:2], pressure, count, SCHEMA.columns[-1]))
    table = _table(400, 400).drop(columns="a").assign(a_00=100.0, a_01=50.0, b=3)
    parts = partition(table, schema, "iid+units", 20, 0)
    read = {(round(part["a_00"].iloc[0], 2), round(part["a_01"].iloc[0], 2)) for part in parts.values()}
    assert read == {(100.0, 50.0), (13.33, 6.67)}, "all steps of a trajectory are in one unit"
    assert 4 <= sum(part["a_00"].iloc[0] < 20 for part in parts.values()) <= 16
    assert all((part["b"] == 3).all() for part in parts.values()), "whole numbers are not converted"
    with pytest.raises(ConfigError, match=r"'\+units' needs a feature that is in mg/dl"):
        partition(_table(50, 50), SCHEMA, "iid+units", 2, 0)


def test_a_cell_that_is_not_a_number_is_left_to_the_check() -> None:
    table = _table(40, 40).astype({"a": object})
    table.loc[7, "a"] = "high"
    parts = partition(table, SCHEMA, "iid+bias", 2, 0)
    assert sum((part["a"] == "high").sum() for part in parts.values()) == 1


@pytest.mark.parametrize(
    "name",
    ["iid+pool:5", "natural+pool:0", "natural+pool:x", "iid+bias+bias", "classes:0", "classes:", "time:", "iid+"],
)
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Partitioner"):
        partition(_table(50, 50), SCHEMA, name, 2, 0)


def test_natural_needs_a_site_column() -> None:
    schema = Schema(name="s", columns=tuple(c for c in SCHEMA.columns if c.role != "site"))
    with pytest.raises(ConfigError, match="no site column"):
        partition(_table(50, 50), schema, "natural", 0, 0)


def test_column_problems_are_named() -> None:
    table = _table(50, 50)
    with pytest.raises(DataError, match="no column 'wing'"):
        partition(table, SCHEMA, "column:wing", 0, 0)
    table.loc[3, "hospital"] = None
    with pytest.raises(DataError, match="column 'hospital', data row 4: the identifier is missing"):
        partition(table, SCHEMA, "natural", 0, 0)


def test_a_patient_with_any_positive_row_counts_as_positive() -> None:
    rows = [("p0", 0), ("p0", 1), ("p1", 0), ("p2", 1), ("p3", 0), ("p4", 0), ("p5", 1), ("p6", 1)]
    table = pd.DataFrame(rows, columns=["id", "y"]).assign(hospital="x", a=0.0, b=0.0)
    parts = partition(table, SCHEMA, "dirichlet", 2, 0, 0.1)
    assert all(part.groupby("id")["y"].max().sum() >= 2 for part in parts.values())
