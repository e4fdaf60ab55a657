"""Cohorts: steps over plain records and in a mapping file, their counts, and the published databases' own numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.cohorts import Cohort, Flow, Step
from polyclinic.ehr.datasets import builtin
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.sources import Chunk, Place, of_cohort, read_records
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import resolve

DATA = Path(os.environ.get("POLYCLINIC_DATA", ""))
SCHEMA = Schema(
    name="stays",
    columns=(
        Column(name="id", kind="categorical", role="patient_id"),
        Column(name="age", kind="integer", bounds=(0, 120)),
        Column(name="died", kind="binary", role="label"),
    ),
)
STEPS = """
[[steps]]
name = "adults"
keep = "age >= 18"
[[steps]]
name = "first stay"
one-each = "first"
by = "seen"
[[steps]]
name = "new"
keep = "before == 0"
"""


def counted(chunks: list[Chunk]) -> list[tuple[str, int, int]]:
    assert [chunk.flow for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    flow = chunks[-1].flow
    assert flow is not None
    return [(stage.name, stage.rows, stage.patients) for stage in flow.stages]


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": ["a", "a", "b", "b", "c", "d", "e"],
            "age": ["30", "31", "40", "40", "17", "50", "60"],
            "seen": ["2021-01-01", "2020-01-01", "2020-05-01", "2020-05-01", "2020-01-01", None, "2020-02-02"],
            "before": ["0", "0", "0", "1", "0", "0", "2"],
            "died": ["0", "1", "0", "1", "0", "1", "0"],
        }
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_steps_over_chunks_count_as_over_the_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "cohort.toml").write_text(STEPS)
    parts = [table().iloc[start : start + size] for start in range(0, 7, size)]
    chunks = list(of_cohort([Chunk(part, "x", 0) for part in parts], Cohort.read(tmp_path / "cohort.toml"), "id", "x"))
    assert counted(chunks) == [("records", 7, 5), ("adults", 6, 4), ("first stay", 4, 4), ("new", 3, 3)]
    found = pd.concat([chunk.records for chunk in chunks])
    assert found["id"].tolist() == ["a", "b", "d"]
    assert found["age"].tolist() == ["31", "40", "50"]
    assert list(found) == list(table())


def test_the_last_row_is_the_later_in_the_table_where_two_are_alike() -> None:
    cohort = Cohort.build([Step(name="last", one_each="last", by="seen")], "x")
    rows, _ = cohort.select([table()], "id", "x")
    assert pd.concat(rows)["before"].tolist() == ["0", "1", "0", "0", "2"]


def test_each_row_is_a_patient_where_none_is_named() -> None:
    cohort = Cohort.build([Step(name="adults", keep="age >= 18")], "x")
    chunks = list(of_cohort([Chunk(table(), "x", 0), Chunk(table(), "x", 7)], cohort, None, "x"))
    assert counted(chunks) == [("records", 14, 14), ("adults", 12, 12)]
    with pytest.raises(ConfigError, match="'one-each' needs a schema with a patient_id column"):
        Cohort.build([Step(name="x", one_each="last", by="seen")], "x").select([table()], None, "x")


people = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=20
)  # fmt: skip


@settings(max_examples=60)
@given(people, st.sampled_from(["first", "last"]), st.sampled_from("abcde"))
def test_a_patient_moves_no_other_patients_rows(rows: list[tuple[str, int, int]], which: str, gone: str) -> None:
    records = pd.DataFrame(rows, columns=["id", "seen", "x"])
    steps = [
        Step.model_validate({"name": "x", "keep": "x < 3"}),
        Step.model_validate({"name": "one", "one-each": which, "by": "seen"}),
    ]

    def chosen(of: pd.DataFrame) -> pd.DataFrame:
        found, flow = Cohort.build(steps, "x").select([of], "id", "x")
        whole = pd.concat(found)
        assert flow().stages[-1].rows == flow().stages[-1].patients == len(whole)
        return whole

    everyone, others = chosen(records), chosen(records[records["id"] != gone])
    pd.testing.assert_frame_equal(
        everyone[everyone["id"] != gone].reset_index(drop=True), others.reset_index(drop=True)
    )
    ordered = records[records["x"] < 3].sort_values("seen", kind="stable").drop_duplicates("id", keep=which)
    assert everyone.sort_values("id")["seen"].tolist() == ordered.sort_values("id")["seen"].tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('keep = "age >= 18"', 'keep = "age >="'), "step 'adults' cannot be read"),
        (('keep = "age >= 18"', 'keap = "age >= 18"'), "steps.0.keap.*Did you mean 'keep'"),
        (('keep = "age >= 18"', ""), "either 'keep' or 'one-each'"),
        (('by = "seen"', ""), "step 'first stay': 'one-each' needs 'by'"),
        (('one-each = "first"', 'one-each = "any"'), "must be 'first' or 'last'"),
        (('name = "new"', 'name = "adults"'), "step 'adults' is there twice"),
        ((STEPS, "steps = 3"), "steps"),
        ((STEPS, ""), "steps"),
        ((STEPS, "steps = ["), "is not valid TOML"),
    ],
)
def test_a_cohort_file_that_is_wrong_is_told_so(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    (tmp_path / "cohort.toml").write_text(STEPS.replace(*change, 1))
    with pytest.raises(ConfigError, match=says):
        Cohort.read(tmp_path / "cohort.toml")


def test_a_cell_that_no_step_can_read_names_step_and_column_alone() -> None:
    for step, says in (
        (Step(name="s", keep="seen > 3"), "x, step 's': column 'seen': a cell is not a number"),
        (Step(name="s", one_each="last", by="died"), "column 'died': a cell is neither a number nor a date"),
        (
            Step(name="s", keep="nowhere > 3"),
            "column 'nowhere' is missing; the header must hold once each column that is read",
        ),
    ):
        rows, _ = Cohort.build([step], "x").select([table().assign(died="secret")], "id", "x")
        with pytest.raises(DataError, match=says) as refused:
            list(rows)
        assert "secret" not in str(refused.value) and "2020" not in str(refused.value).replace("2020-01-31", "")


CDM = """
[rows]
table = "visit_occurrence"
key = "visit_occurrence_id"
index = {table = "condition_occurrence", codes = ["410*"], take = "first"}
[[columns]]
name = "id"
value = "person_id"
[[columns]]
name = "age"
value = "birth"
take = "years"
[[columns]]
name = "died"
table = "death"
by = "person_id"
take = "any"
from = 0
to = 720
[[helpers]]
name = "infarctions before"
table = "condition_occurrence"
by = "person_id"
codes = ["410*"]
take = "count"
from = -8760
to = 0
[[steps]]
name = "no infarction in the year before"
keep = "column('infarctions before') == 0"
[[steps]]
name = "adults since 2020"
keep = "age >= 18 and index >= '2020-01-01'"
[[steps]]
name = "last stay"
one-each = "last"
"""


def cdm(folder: Path) -> None:
    visits = [(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "d"), (6, "e"), (7, "e")]
    events = [  # visit, person, date, code
        (1, "a", "2020-01-05", "4101"), (1, "a", "2020-01-02", "410"), (2, "a", "2020-06-01", "410"),
        (3, "b", "2020-03-01", "250"), (4, "c", "2019-03-01", "410"), (5, "d", "2020-03-01", "410"),
        (6, "e", "2020-02-01", "410"), (7, "e", "2021-06-01", "410"),
    ]  # fmt: skip
    born = {"a": "1950-01-03", "b": "1950-01-01", "c": "1950-01-01", "d": "2010-01-01", "e": "1960-01-01"}
    visit = pd.DataFrame(visits, columns=["visit_occurrence_id", "person_id"])
    visit.assign(birth=visit["person_id"].map(born)).to_csv(folder / "visit_occurrence.csv", index=False)
    names = ["visit_occurrence_id", "person_id", "condition_start_date", "condition_concept_id"]
    pd.DataFrame(events, columns=names).to_csv(folder / "condition_occurrence.csv", index=False)
    pd.DataFrame({"person_id": ["e", "a"], "death_date": ["2021-06-20", "2021-01-01"]}).to_csv(
        folder / "death.csv", index=False
    )


def test_a_mapping_file_says_the_whole_cohort(tmp_path: Path) -> None:
    cdm(tmp_path)
    (tmp_path / "mapping.toml").write_text(CDM)
    chunks = list(resolve("sources", "omop")(Place(".", tmp_path, {"mapping": "mapping.toml"}), SCHEMA))
    # b has no infarction; a's second stay has one in the year before; c's was in 2019, d is a child.
    assert counted(chunks) == [
        ("rows of visit_occurrence", 7, 5),
        ("with an index", 6, 4),
        ("no infarction in the year before", 5, 4),
        ("adults since 2020", 3, 2),
        ("last stay", 2, 2),
    ]
    found = chunks[-1].records
    assert found[["id", "age", "died"]].to_numpy().tolist() == [["a", 69.0, 0], ["e", 61.0, 1]]
    assert found["index"].astype(str).tolist() == ["2020-01-02", "2021-06-01"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('codes = ["410*"], take', 'coeds = ["410*"], take'), "coeds.*Did you mean 'codes'"),
        (('"condition_occurrence", codes = ["410*"], take', '"person", take'), "'index' needs 'time', the name of a"),
        (("age >= 18", "agee >= 18"), "step 'adults since 2020': there is no column 'agee'. Did you mean 'age'"),
        (("index >= '2020", "indx >= '2020"), "no column 'indx'. Did you mean 'index'"),
        (('name = "infarctions before"', 'name = "age"'), "column 'age' must be mapped exactly once"),
        (('name = "infarctions before"', 'name = "index"'), "a column is named 'index'"),
        (('[[helpers]]\nname = "infarctions before"', '[[columns]]\nname = "x"'), "'x' is not read by the schema"),
    ],
)
def test_a_mapping_with_a_wrong_cohort_is_told_so(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    cdm(tmp_path)
    (tmp_path / "mapping.toml").write_text(CDM.replace(*change, 1))
    with pytest.raises((ConfigError, DataError), match=says):
        list(resolve("sources", "omop")(Place(".", tmp_path, {"mapping": "mapping.toml"}), SCHEMA))


def test_an_index_in_minutes_shifts_the_windows_of_tables_in_minutes(tmp_path: Path) -> None:
    pd.DataFrame({"patientunitstayid": [1, 2], "uniquepid": ["p", "q"], "age": [50, 60]}).to_csv(
        tmp_path / "patient.csv", index=False
    )
    pd.DataFrame(
        {"patientunitstayid": [1, 1, 1], "labresultoffset": [60, 600, 660], "labname": ["x", "lactate", "x"],
         "labresult": [1, 5, 3]}
    ).to_csv(tmp_path / "lab.csv", index=False)  # fmt: skip
    (tmp_path / "m.toml").write_text(
        """
[rows]
table = "patient"
key = "patientunitstayid"
index = {table = "lab", codes = ["lactate"]}
[[columns]]
name = "id"
value = "uniquepid"
[[columns]]
name = "age"
value = "age"
[[columns]]
name = "died"
table = "lab"
codes = ["x"]
take = "count"
from = 0
to = 2
"""
    )
    (chunk,) = resolve("sources", "eicu")(Place(".", tmp_path, {"mapping": "m.toml"}), SCHEMA)
    assert counted([chunk]) == [("rows of patient", 2, 2), ("with an index", 1, 1)]
    assert chunk.records[["id", "died"]].to_numpy().tolist() == [["p", 1]]


def test_a_schema_is_widened_by_what_only_steps_read(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "r.csv", index=False)
    (tmp_path / "cohort.toml").write_text(STEPS)
    wide = Cohort.read(tmp_path / "cohort.toml").widen(SCHEMA)
    assert [column.name for column in wide.columns] == ["id", "age", "died", "before", "seen"]
    assert read_records(tmp_path / "r.csv", wide)["seen"].isna().tolist() == [False] * 5 + [True, False]


@pytest.mark.parametrize("name", [name for name, dataset in builtin().items() if dataset.flow])
def test_the_flow_of_a_dataset_ends_with_its_published_totals(name: str) -> None:
    dataset = builtin()[name]
    assert dataset.flow is not None
    assert (dataset.flow.stages[-1].rows, dataset.flow.stages[-1].patients) == (dataset.rows, dataset.patients)
    assert Flow.from_list(dataset.flow.as_list()) == dataset.flow


needs_mimic = pytest.mark.skipif(
    not (DATA / "mimic3_demo_1.4").is_dir(), reason="POLYCLINIC_DATA has no MIMIC-III demo"
)
needs_eicu = pytest.mark.skipif(not (DATA / "eicu_demo_2.0.1").is_dir(), reason="POLYCLINIC_DATA has no eICU demo")


@needs_mimic
def test_the_mimic_demo_by_steps_counts_as_pandas_does(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("""
[rows]
table = "admissions"
key = "hadm_id"
index = "admittime"
[[columns]]
name = "id"
value = "subject_id"
[[columns]]
name = "age"
table = "patients"
by = "subject_id"
value = "dob"
take = "years"
[[columns]]
name = "died"
value = "hospital_expire_flag"
[[helpers]]
name = "kind"
value = "admission_type"
[[helpers]]
name = "diagnoses"
table = "diagnoses_icd"
take = "codes"
characters = 3
[[steps]]
name = "not elective"
keep = "kind in ['EMERGENCY', 'URGENT']"
[[steps]]
name = "age known"
keep = "18 <= age < 90"
[[steps]]
name = "heart failure"
keep = "has(diagnoses, '428')"
[[steps]]
name = "first admission"
one-each = "first"
""")
    folder = DATA / "mimic3_demo_1.4"
    chunks = list(resolve("sources", "mimic3")(Place(str(folder), tmp_path, {"mapping": "m.toml"}), SCHEMA))
    stays = pd.read_csv(folder / "ADMISSIONS.csv.gz", parse_dates=["admittime"])
    born = pd.read_csv(folder / "PATIENTS.csv.gz", parse_dates=["dob"]).set_index("subject_id")["dob"]
    coded = pd.read_csv(folder / "DIAGNOSES_ICD.csv.gz", dtype={"icd9_code": str})
    failing = coded.loc[coded["icd9_code"].str.startswith("428", na=False), "hadm_id"]
    wanted = [("rows of admissions", 129, 100), ("with an index", 129, 100)]
    stays = stays[stays["admission_type"] != "ELECTIVE"]
    wanted.append(("not elective", len(stays), stays["subject_id"].nunique()))
    birth = stays["subject_id"].map(born)
    birthday = (birth.dt.month * 100 + birth.dt.day) > (stays["admittime"].dt.month * 100 + stays["admittime"].dt.day)
    stays = stays[(stays["admittime"].dt.year - birth.dt.year - birthday).between(18, 89)]
    wanted.append(("age known", len(stays), stays["subject_id"].nunique()))
    stays = stays[stays["hadm_id"].isin(failing)]
    wanted.append(("heart failure", len(stays), stays["subject_id"].nunique()))
    stays = stays.sort_values("admittime").drop_duplicates("subject_id")
    wanted.append(("first admission", len(stays), len(stays)))
    assert counted(chunks) == wanted
    assert sorted(chunks[-1].records["id"]) == sorted(stays["subject_id"].astype(str))
    assert chunks[-1].records["died"].astype(int).sum() == stays["hospital_expire_flag"].sum()


@needs_eicu
def test_the_eicu_demo_by_steps_is_the_datasets_own_flow(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("""
[rows]
table = "patient"
key = "patientunitstayid"
[[columns]]
name = "id"
value = "uniquepid"
[[columns]]
name = "age"
value = "age"
values = { "> 89" = "90" }
[[columns]]
name = "died"
value = "hospitaldischargestatus"
values = { Expired = "1", Alive = "0" }
[[steps]]
name = "state at hospital discharge known"
keep = "not missing(died)"
""")
    chunks = list(
        resolve("sources", "eicu")(Place(str(DATA / "eicu_demo_2.0.1"), tmp_path, {"mapping": "m.toml"}), SCHEMA)
    )
    flow = builtin()["eicu-demo"].flow
    assert flow is not None
    assert counted(chunks)[0][1:] == (2520, 1841) == (flow.stages[0].rows, flow.stages[0].patients)
    assert counted(chunks)[1:] == [("state at hospital discharge known", 2492, 1820)]
