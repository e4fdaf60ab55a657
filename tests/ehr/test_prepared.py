"""Counts to a better schema: right on known counts, careful with noisy ones, and readable by everything else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr import running
from polyclinic.ehr.encoding import decode, encode, feature_names
from polyclinic.ehr.prepared import Counted, Rules, cell_count, edges, prepare_schema
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import build_shard
from polyclinic.ehr.sources import read_records
from polyclinic.errors import ConfigError, DataError

AGE = Column(name="age", kind="integer", bounds=(0, 120), nullable=True)
CHOL = Column(name="chol", kind="continuous", bounds=(0, 1000))
PAIN = Column(name="pain", kind="categorical", categories=("none", "mild", "bad"), nullable=True)
WARD = Column(name="ward", kind="categorical", categories=("other",), other="other")
CODES = Column(name="codes", kind="code_set", categories=("I10", "E11", "N18", "J44"))
STAGE = Column(name="stage", kind="ordinal", categories=("I", "II", "III"))
DIED = Column(name="died", kind="binary", role="label")


def schema(*columns: Column) -> Schema:
    return Schema(name="clinic", unit="record", columns=(*columns, DIED))


def exact(column: Column, values: np.ndarray, missing: int = 0, bins: int = 40) -> Counted:
    counts = np.histogram(values, edges(column, bins))[0].astype(float)
    return Counted(np.append(counts, missing) if column.nullable else counts, 0.0)


def test_quantiles_become_bounds_with_centre_spread_and_fill() -> None:
    rng = np.random.default_rng(0)
    chol = np.clip(rng.normal(220, 40, 10_000), 1, 999)
    better, found = prepare_schema(schema(CHOL), {"chol": exact(CHOL, chol)}, Rules())
    column = better.features[0]
    low, high = column.bounds or (0, 0)
    width = 1.1 * 1000 / 40
    assert abs(low - np.quantile(chol, 0.01)) <= width and low <= np.quantile(chol, 0.01)
    assert abs(high - np.quantile(chol, 0.99)) <= width and high >= np.quantile(chol, 0.99)
    assert column.clip and column.centre == pytest.approx(220, abs=3) and column.spread == pytest.approx(40, rel=0.1)
    assert column.fill == column.centre and found["chol"]["bounds"] == column.bounds


LAB = Column(name="lab", kind="continuous", bounds=(0, 500), nullable=True)
SKEWED: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "log-normal": lambda rng, n: rng.lognormal(0.0, 1.0, n),
    "heavy tail": lambda rng, n: 500 * rng.random(n) ** 8,
    "near-constant": lambda rng, n: np.where(rng.random(n) < 0.9, 7.4, rng.uniform(0, 500, n)),
    "two-peaked": lambda rng, n: np.where(rng.random(n) < 0.5, rng.normal(50, 5, n), rng.normal(400, 5, n)),
    "few far away": lambda rng, n: np.where(rng.random(n) < 0.94, rng.normal(250, 2, n), rng.choice([5.0, 495.0], n)),
}


def noisy(column: Column, values: np.ndarray, noise: float, rng: np.random.Generator, bins: int = 256) -> Counted:
    """A survey's counts, by noise of multiplier ``noise``: mixed, noised and unmixed."""
    counts = exact(column, values, len(values) // 10, bins).patients.astype(np.int64)
    error = noise * running.norm(len(counts)) / running.ONE
    mixed = running.mix(counts) / running.ONE + error * rng.standard_normal(len(counts))
    return Counted(running.unmix(mixed), error)


@pytest.mark.parametrize("noise", [0.0, 1.0, 4.0, 15.0])  # 4 is one column at epsilon 1; 15, fourteen columns
@pytest.mark.parametrize("kind", SKEWED)
def test_fault_40_bounds_leave_at_most_five_percent_of_the_patients_outside(kind: str, noise: float) -> None:
    cut = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for patients in (200, 1_000, 5_000):
            values = np.clip(SKEWED[kind](rng, patients), 0, 500)
            column = prepare_schema(schema(LAB), {"lab": noisy(LAB, values, noise, rng)}, Rules())[0].features[0]
            low, high = column.bounds or (0, 0)
            assert np.mean((values < low) | (values > high)) <= 0.05, (seed, patients)
            assert low <= (column.centre or 0) <= high and (column.spread or 0) > 0
            cut += (low, high) != (0, 500)
    assert cut or noise > 4  # a promise that is kept by never cutting would be worth nothing


@pytest.mark.parametrize("seed", range(5))
def test_fault_40_a_skewed_column_gets_bounds_centre_and_spread_that_suit_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.lognormal(0.0, 1.0, 6_000)
    column = prepare_schema(schema(LAB), {"lab": noisy(LAB, values, 4.0, rng)}, Rules())[0].features[0]
    low, high = column.bounds or (0, 0)
    assert low == 0 and 5 < high < 25  # the 0.99 quantile is 10
    assert 0.8 < (column.centre or 0) < 2.5 and 0.5 < (column.spread or 0) < 3
    few = prepare_schema(schema(LAB), {"lab": noisy(LAB, values[:400], 4.0, rng)}, Rules())[0].features[0]
    assert (few.bounds or (0, 0))[1] > 100 and (
        few.centre or 0
    ) < 10  # noise that hides the bounds need not hide the centre


def test_quantiles_that_ask_for_more_outside_get_it() -> None:
    values = np.random.default_rng(0).uniform(0, 500, 10_000)
    low, high = prepare_schema(schema(LAB), {"lab": exact(LAB, values)}, Rules(0.2, 0.9))[0].features[0].bounds or (
        0,
        0,
    )
    assert low == pytest.approx(100, abs=13) and high == pytest.approx(450, abs=13)


def test_sums_over_many_cells_have_the_error_that_is_said() -> None:
    cells, rng = 300, np.random.default_rng(0)
    exactly = rng.integers(0, 50, cells)
    weights = np.vstack([np.ones(cells), np.arange(cells) < 150, np.eye(cells)[7]])
    drawn = rng.standard_normal((4_000, cells))
    unmixed = np.array([running.unmix(running.mix(exactly) / running.ONE + 2.0 * noise) for noise in drawn])
    off = (unmixed - exactly) @ weights.T
    assert np.std(off, axis=0) == pytest.approx(running.errors(weights, 2.0), rel=0.06)
    # Independent noise in each cell would give the sum of all sqrt(300) times one cell's error: 17.3.
    assert running.errors(weights, running.norm(cells) / running.ONE)[0] < 3


@pytest.mark.parametrize("cells", [1, 2, 40, 257])
def test_no_patients_part_moves_the_mixed_cells_by_more_than_the_norm(cells: int) -> None:
    rng = np.random.default_rng(cells)
    parts = [np.eye(cells, dtype=np.int64)[cell] * 1000 for cell in range(cells)]
    parts += [rng.multinomial(1000, rng.dirichlet(np.full(cells, 0.2))) for _ in range(50)]
    lengths = [np.linalg.norm(running.mix(part).astype(np.float64)) / 1000 for part in parts]
    assert max(lengths) == pytest.approx(running.norm(cells), rel=1e-12)
    counts = rng.integers(0, 9, cells)
    assert running.unmix(running.mix(counts) / running.ONE) == pytest.approx(counts)


def test_whole_numbers_have_whole_bounds_and_their_own_mean() -> None:
    ages = np.array([30, 31, 31, 32, 50] * 20)
    better, found = prepare_schema(schema(AGE), {"age": exact(AGE, ages, missing=25, bins=500)}, Rules())
    column = better.features[0]
    assert column.bounds == (30.0, 50.0) and column.centre == pytest.approx(34.8) and column.fill == 35.0
    assert found["age"]["missing"] == pytest.approx(0.2)
    alone, _ = prepare_schema(schema(AGE), {"age": exact(AGE, np.full(9, 40), bins=500)}, Rules())
    assert alone.features[0].bounds == (39.0, 41.0)


def test_counts_that_tell_nothing_leave_the_draft_as_it_is() -> None:
    nothing = Counted(np.zeros(41), 100.0)
    column = prepare_schema(schema(AGE), {"age": nothing}, Rules())[0].features[0]
    assert column.bounds == (0.0, 120.0) and column.centre == 60.0
    noise = Counted(np.random.default_rng(1).normal(0, 1e6, 41), 1e6)
    low, high = prepare_schema(schema(AGE), {"age": noise}, Rules())[0].features[0].bounds or (0, 0)
    assert 0 <= low < high <= 120


def test_rare_categories_go_into_other_and_the_commonest_codes_stay() -> None:
    better, found = prepare_schema(schema(PAIN), {"pain": Counted(np.array([50.0, 3, 40, 7]), 0.0)}, Rules(fewest=5))
    assert better.features[0].categories == ("none", "bad", "other") and better.features[0].other == "other"
    assert better.features[0].fill == "none" and found["pain"]["missing"] == pytest.approx(0.07)
    better, _ = prepare_schema(
        schema(CODES), {"codes": Counted(np.array([5.0, 9, 1, 7]), 2.0)}, Rules(most_categories=2)
    )
    assert better.features[0].categories == ("E11", "J44", "other")
    kept, _ = prepare_schema(schema(PAIN), {"pain": Counted(np.array([50.0, -3, 40, 7]), 9.0)}, Rules())
    assert kept.features[0].categories == PAIN.categories and kept.features[0].other == ""


def test_an_open_column_gets_what_was_found() -> None:
    found = Counted(np.array([70.0, 12.0]), 3.0, ("north", "south"))
    column = prepare_schema(schema(WARD), {"ward": found}, Rules())[0].features[0]
    assert column.categories == ("north", "south", "other") and not column.is_open
    none = prepare_schema(schema(WARD), {"ward": Counted(np.zeros(0), 3.0)}, Rules())[0].features[0]
    assert none.is_open


def test_a_column_with_too_much_missing_is_left_out_by_rule() -> None:
    counts = {"age": Counted(np.append(np.ones(40), 60.0), 0.0), "stage": Counted(np.array([1.0, 5, 2]), 0.0)}
    better, found = prepare_schema(schema(AGE, STAGE), counts, Rules(most_missing=0.5))
    assert [column.name for column in better.features] == ["stage"] and found["age"]["dropped"]
    assert better.features[0].fill == "II" and not found["stage"]["dropped"]
    with pytest.raises(DataError, match="allow more"):
        prepare_schema(schema(AGE), counts | {}, Rules(most_missing=0.1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"low": 0.9, "high": 0.1}, "0 <= low < high <= 1"),
        ({"fewest": -1}, "fewest"),
        ({"most_categories": 0}, "most_categories"),
        ({"most_missing": 2}, "most_missing"),
    ],
)
def test_impossible_rules_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Rules(**values)  # type: ignore[arg-type]


def test_the_prepared_schema_reads_what_the_draft_read_and_more(tmp_path: Path) -> None:
    draft = schema(AGE, PAIN, WARD, CODES)
    counts = {
        "age": exact(AGE, np.repeat([30, 50], 50)), "pain": Counted(np.array([50.0, 1, 40, 0]), 0.0),
        "ward": Counted(np.array([70.0]), 3.0, ("north",)), "codes": Counted(np.array([5.0, 9, 1, 7]), 0.0),
    }  # fmt: skip
    better, _ = prepare_schema(draft, counts, Rules(fewest=5))
    better.to_toml(tmp_path / "prepared.toml")
    assert Schema.from_toml(tmp_path / "prepared.toml") == better
    (tmp_path / "records.csv").write_text(
        "age,pain,ward,codes,died\n"
        "20,mild,south,I10;N18,0\n99,none,north,E11,1\n,bad,ICU,,0\n35,,north,Z99,1\n"
    )  # fmt: skip
    records = read_records(tmp_path / "records.csv", better)
    read = decode(encode(records, better).x, better)
    assert read["age"].tolist()[:2] == [30, 50] and pd.isna(read["age"][2])
    assert read["pain"].tolist()[:3] == ["other", "none", "bad"] and read["ward"].tolist()[:2] == ["other", "north"]
    assert read["codes"].tolist() == ["I10;other", "E11", "", "other"]


def test_an_open_columns_cells_are_kept_only_while_it_is_open(tmp_path: Path) -> None:
    lines = "\n".join(f"{30 + row % 9},{'north' if row % 3 else 'ICU'},{row % 2}" for row in range(40))
    (tmp_path / "records.csv").write_text(f"age,ward,died\n{lines}\n")
    draft = schema(AGE, WARD)
    shard = build_shard(read_records(tmp_path / "records.csv", draft), draft, "here")
    assert set(shard.cells["ward"]) == {"north", "ICU"} and len(feature_names(draft)) == 2
    assert (shard.x[:, 1] == 1).all()
    (tmp_path / "records.csv").write_text(f"age,ward,died\n{lines.replace('ICU', 'ER')}\n")
    assert build_shard(read_records(tmp_path / "records.csv", draft), draft, "here").digest != shard.digest
    closed = prepare_schema(draft, {"ward": Counted(np.array([9.0]), 1.0, ("north",))}, Rules())[0]
    assert not build_shard(read_records(tmp_path / "records.csv", closed), closed, "here").cells


def test_cells_are_counted_as_a_survey_counts_them() -> None:
    assert [cell_count(column, 40) for column in (AGE, CHOL, PAIN, CODES, STAGE, DIED)] == [41, 40, 4, 4, 3, 2]
    assert len(edges(Column(name="n", kind="integer", bounds=(0, 8)), 40)) == 10
