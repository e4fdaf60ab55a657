"""Coarsening by declared rules: the lecture's bins of charges, codes, ZIP codes, dates; records and schema stay one."""

from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.ehr.anonymity.coarsening import (
    Coarsening,
    Generalise,
    Limit,
    Round,
    Rule,
    ShiftDates,
    coarsen,
    new_key,
    read_coarsening,
    shift_days,
)
from polyclinic.ehr.anonymity.hierarchies import Codes, Intervals, Prefix, Tree, Zip
from polyclinic.ehr.anonymity.labels import SMALL_ZIP3, chapter, short_zip, three_digits
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import build_shard
from polyclinic.errors import ConfigError, DataError

SCHEMA = Schema(
    name="inpatients",
    columns=(
        Column(name="id", kind="categorical", role="patient_id"),
        Column(name="admitted", kind="categorical", role="time"),
        Column(name="age", kind="integer", unit="years", bounds=(0, 120)),
        Column(name="charges", kind="continuous", unit="dollars", bounds=(0, 10_000), nullable=True),
        Column(name="zip", kind="categorical", categories=("60637", "60615", "03601", "89310")),
        Column(name="dx", kind="categorical", categories=("250.01", "250.3", "428.0", "V30.0")),
        Column(name="history", kind="code_set", categories=("E11.9", "E10", "I50.1")),
        Column(name="died", kind="binary", role="label"),
    ),
)
RECORDS = pd.DataFrame(
    {
        "id": ["a", "a", "b", "c"],
        "admitted": ["2024-02-27", "2024-03-05T10:30:00", "2020-01-01", None],
        "age": [101, 44, 67, 12],
        "charges": [0.0, 499.99, 500.0, 10_000.0],
        "zip": ["60637", "60615", "03601", "89310"],
        "dx": ["250.01", "250.3", "428.0", "V30.0"],
        "history": ["E11.9;E10", "", "I50.1", "E10"],
        "died": [0, 1, 1, 0],
    }
)


CHARGES = Generalise(column="charges", hierarchy=Intervals(widths=(500,)))
ZIP = Generalise(column="zip", hierarchy=Zip())


def ages(**intervals: Any) -> Generalise:
    return Generalise(column="age", hierarchy=Intervals(**intervals))


def by(*rules: Rule, keep: tuple[str, ...] = (), key: bytes | None = None) -> tuple[pd.DataFrame, Schema]:
    return coarsen(RECORDS, SCHEMA, Coarsening(rules, keep), key)


def test_charges_in_twenty_bins_of_500() -> None:
    records, schema = by(CHARGES)
    column = next(column for column in schema.columns if column.name == "charges")
    assert column.kind == "ordinal" and len(column.categories) == 20 and column.nullable
    assert column.categories[:2] == ("[0, 500)", "[500, 1000)") and column.categories[-1] == "[9500, 10000]"
    assert records["charges"].tolist() == ["[0, 500)", "[0, 500)", "[500, 1000)", "[9500, 10000]"]
    assert encode(records, schema).x.shape == (4, 1 + 1 + 4 + 4 + 3)


def test_what_the_bounds_allow_beyond_the_bins_is_a_bin_at_either_end() -> None:
    records, schema = by(ages(widths=(10,), low=20, high=90))
    column = next(column for column in schema.columns if column.name == "age")
    assert column.categories == ("below 20", *(f"{low}-{low + 9}" for low in range(20, 90, 10)), "90 or more")
    assert records["age"].tolist() == ["90 or more", "40-49", "60-69", "below 20"]


def test_bins_between_edges_and_a_last_bin_that_ends_with_the_bounds() -> None:
    assert by(ages(edges=(18, 40, 65)))[0]["age"].tolist() == ["65 or more", "40-64", "65 or more", "below 18"]
    for whole in (ages(widths=(60,)), ages(edges=(0, 60, 120))):
        column = next(column for column in by(whole)[1].columns if column.name == "age")
        assert column.categories == ("0-59", "60-120")
    assert by(ages(edges=(0, 60, 120)))[0]["age"].tolist() == ["60-120", "0-59", "60-120", "0-59"]


@given(st.integers(0, 120), st.sampled_from([1, 2, 5, 10, 20, 40]))
def test_every_whole_number_lies_in_its_bin(age: int, width: int) -> None:
    found, column = ages(widths=(width,)).apply(
        pd.Series([age], name="age"), Column(name="age", kind="integer", bounds=(0, 120))
    )
    low, _, high = found[0].partition("-")
    assert int(low) <= age <= int(high or low) and found[0] in column.categories


def test_numbers_are_limited_and_rounded_with_their_bounds() -> None:
    records, schema = by(Limit(column="age", high=89), Round(column="age", to=5), Round(column="charges", to=1000))
    bounds = {column.name: column.bounds for column in schema.columns}
    assert records["age"].tolist() == [90, 45, 65, 10] and bounds["age"] == (0, 90)
    assert records["charges"].tolist() == [0, 0, 0, 10_000] and bounds["charges"] == (0, 10_000)
    assert records["age"].dtype == "int64" and encode(records, schema).x.max() == 1


def test_codes_become_three_digits_or_chapters_and_sets_stay_sets() -> None:
    records, schema = by(
        Generalise(column="dx", hierarchy=Codes(system="icd9")),
        Generalise(column="history", hierarchy=Codes(system="icd10"), level=1),
    )
    categories = {column.name: column.categories for column in schema.columns}
    assert records["dx"].tolist() == ["240-279", "240-279", "390-459", "V"]
    assert categories["dx"] == ("240-279", "390-459", "V") and categories["history"] == ("E11", "E10", "I50")
    assert records["history"].tolist() == ["E11;E10", "", "I50", "E10"]
    merged, schema = by(Generalise(column="history", hierarchy=Codes(system="icd10"), level=2))
    assert merged["history"][0] == "E00-E90" and encode(merged, schema).x[0, -2:].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("code", "system", "short", "whole"),
    [
        ("25001", "icd9", "250", "240-279"), ("001.0", "icd9", "001", "001-139"), ("999.9", "icd9", "999", "800-999"),
        ("E885.9", "icd9", "E885", "E"), ("V30", "icd9", "V30", "V"), ("abc", "icd9", "ABC", "unknown"),
        ("I50.9", "icd10", "I50", "I00-I99"), ("C44", "icd10", "C44", "C00-D49"), ("D50", "icd10", "D50", "D50-D89"),
        ("H59.8", "icd10", "H59", "H00-H59"), ("H60", "icd10", "H60", "H60-H95"), ("T88", "icd10", "T88", "S00-T98"),
        ("U07.1", "icd10", "U07", "U00-U99"), ("O9A", "icd10", "O9A", "O00-O9A"), ("", "icd10", "", "unknown"),
    ],
)  # fmt: skip
def test_chapters(code: str, system: Any, short: str, whole: str) -> None:
    assert (three_digits(code, system), chapter(code, system)) == (short, whole)


def test_short_zip_codes_hide_small_areas_as_hipaa_asks() -> None:
    records, schema = by(ZIP)
    assert records["zip"].tolist() == ["606", "606", "000", "000"]
    assert next(column.categories for column in schema.columns if column.name == "zip") == ("606", "000")
    assert len(SMALL_ZIP3) == 17 and short_zip("2139") == "021" and short_zip("60637-1234", 4) == "6063"
    assert short_zip("03601", 4) == "0360"


def test_dates_move_by_patient_and_keep_their_intervals() -> None:
    key = new_key()
    records, _ = by(ShiftDates(column="admitted", most=400), key=key)
    first, second = (date.fromisoformat(cell[:10]) for cell in records["admitted"][:2])
    assert (
        (second - first).days == 7 and records["admitted"][1].endswith("T10:30:00") and records["admitted"][3] is None
    )
    assert (first - date(2024, 2, 27)).days == shift_days("a", key, 400)
    days = [shift_days(f"p{i}", key, 400) for i in range(2000)]
    assert min(days) >= -400 and max(days) <= 400 and len(set(days)) > 600 and abs(sum(days)) < 2000 * 30
    assert days != [shift_days(f"p{i}", new_key(), 400) for i in range(2000)]
    assert RECORDS["admitted"][0] == "2024-02-27"


def test_coarsened_records_train_as_any_others() -> None:
    rules = (Limit(column="age", high=90), CHARGES, ZIP)
    records, schema = by(*rules, keep=("id", "age", "charges", "zip", "died"))
    assert list(records) == ["id", "age", "charges", "zip", "died"]
    split = pd.Series([False, False, False, True]).to_numpy()
    shard = build_shard(records, schema, "north", split=split)
    assert shard.patients == 3 and shard.x.shape == (4, 1 + 1 + 2)
    assert Schema.from_dict(schema.as_dict()) == schema


def test_rules_are_declared_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "coarsen.toml"
    path.write_text(
        'keep = ["id", "charges", "zip", "died"]\n'
        '[[rules]]\nkind = "intervals"\ncolumn = "charges"\nwidths = [500]\n'
        '[[rules]]\nkind = "zip"\ncolumn = "zip"\n[[rules]]\nkind = "round"\ncolumn = "age"\nto = 5\n'
    )
    found = read_coarsening(path)
    assert found.rules == (CHARGES, ZIP, Round(column="age", to=5))
    assert found.keep == ("id", "charges", "zip", "died") and not found.needs_key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[rules]]\nkind = "interval"', "kind is 'interval'.*Did you mean 'intervals'"),
        ('[[rules]]\nkind = "zip"', "rule 1: key 'column'"),
        ('[[rules]]\nkind = "zip"\ncolumn = "zip"\nkeeps = 3', "key 'keeps'.*Did you mean 'keep'"),
        ('[[rules]]\nkind = "zip"\ncolumn = "zip"\nkeep = [6]', "key 'keep"),
        ('[[rules]]\nkind = "intervals"\ncolumn = "age"\nedges = [5, 5]', "numbers that rise"),
        ('[[rules]]\nkind = "intervals"\ncolumn = "age"\nedges = [5, 9]\nlow = 0', "not both"),
        ('[[rules]]\nkind = "intervals"\ncolumn = "age"\nwidths = [5]\nlow = 2', "multiples of the largest width"),
        ('[[rules]]\nkind = "round"\ncolumn = "age"\nto = nan', "key 'to'"),
        ('[[rule]]\nkind = "zip"', "key 'rule'.*Did you mean 'rules'"),
        ("keep = [", "is not valid TOML"),
        ("rules = 3", "key 'rules': it must be a list, got 3"),
        ('keep = "id"', "key 'keep': it must be a list, got 'id'"),
    ],
)
def test_wrong_rules_are_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        read_coarsening(tmp_path / "c.toml")
    assert "\n" not in str(refused.value)


def test_rules_that_are_not_there_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no file of rules .*none.toml\.$"):
        read_coarsening(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Generalise(column="zipp", hierarchy=Zip()), "no column 'zipp'.*Did you mean 'zip'"),
        (Generalise(column="zip", hierarchy=Intervals(widths=(1,))), "has no numbers"),
        (Generalise(column="charges", hierarchy=Intervals(widths=(0.5,))), "more than 10,000 intervals"),
        (ages(widths=(120,)), "all cells become one"),
        (
            Generalise(column="zip", hierarchy=Tree(groups=({"here": ("60637", "60615")}, {"all": ("here", "other")}))),
            "become one",
        ),
        (Generalise(column="zip", hierarchy=Prefix(keep=(3,)), level=2), "level must be 1 at most"),
        (Round(column="age", to=2.5), "whole number"),
        (Round(column="age", to=1000), "leaves one number"),
        (Limit(column="age", low=130), "must leave a part"),
        (Generalise(column="age", hierarchy=Codes(system="icd9")), "has no codes"),
        (ShiftDates(column="admitted"), "secret key"),
        (Generalise(column="id", hierarchy=Zip()), "role 'patient_id' stays as it is"),
    ],
)
def test_rules_that_do_not_suit_their_column_are_refused(rule: Rule, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        by(rule)
    with pytest.raises(ConfigError, match="which `keep` leaves out"):
        by(Round(column="age", to=5), keep=("id", "zip", "died"))


def test_a_cell_that_is_no_date_is_named_by_its_row_and_not_shown() -> None:
    with pytest.raises(DataError, match="data row 1: the cell is not a date") as refused:
        coarsen(RECORDS.assign(admitted="soon"), SCHEMA, Coarsening((ShiftDates(column="admitted"),)), new_key())
    assert "soon" not in str(refused.value)


def test_a_cell_outside_its_categories_is_refused_and_not_shown() -> None:
    with pytest.raises(DataError, match="data row 1 and 3 more: the category is unknown") as refused:
        coarsen(RECORDS.assign(zip="99999"), SCHEMA, Coarsening((ZIP,)))
    assert "99999" not in str(refused.value)
