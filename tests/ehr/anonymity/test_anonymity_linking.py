"""The lecture's two attacks, and the attack before and after anonymising.

The rows are made up in the lectures' form: salaries joined to a list of names by date of birth, sex and ZIP, and patients
of a hospital, smokers or not, of whom Rebecca, 55, keeps two possible diseases after generalisation.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.anonymity.classes import Records, equivalence_classes
from polyclinic.ehr.anonymity.hierarchies import Codes, Intervals, Prefix, Tree
from polyclinic.ehr.anonymity.labels import bounds_of, midpoint
from polyclinic.ehr.anonymity.linking import link
from polyclinic.ehr.anonymity.methods import Target
from polyclinic.ehr.anonymity.release import anonymise
from polyclinic.errors import ConfigError, DataError

SALARIES = pd.DataFrame(
    [("1964-03-11", "f", "02139", 71_000), ("1964-03-11", "m", "02139", 54_000), ("1971-09-02", "f", "02141", 88_000),
     ("1971-09-02", "f", "02141", 43_000), ("1980-12-24", "m", "02138", 60_000), ("1958-01-30", "m", "02142", 97_000)],
    columns=["born", "sex", "zip", "salary"],
)  # fmt: skip
VOTERS = pd.DataFrame(
    [("Ann", "1964-03-11", "f", "02139"), ("Bob", "1964-03-11", "m", "02139"), ("Cleo", "1971-09-02", "f", "02141"),
     ("Dora", "1971-09-02", "f", "02141"), ("Eve", "1990-05-05", "f", "02138"), ("Finn", "1980-12-24", "m", "02138")],
    columns=["name", "born", "sex", "zip"],
)  # fmt: skip
PATIENTS = pd.DataFrame(
    [("Peter", 64, "m", "19146", "yes", "heart disease"), ("Susan", 61, "f", "19118", "no", "arthritis"),
     ("Mark", 67, "m", "19104", "yes", "lung cancer"), ("Alma", 63, "f", "19146", "no", "asthma"),
     ("Thea", 69, "f", "19115", "no", "gout"), ("Rebecca", 55, "f", "19103", "no", "hiv"),
     ("Tom", 52, "m", "19146", "yes", "lyme disease"), ("Mo", 59, "m", "19130", "yes", "allergy"),
     ("Lisa", 56, "f", "19146", "no", "colitis")],
    columns=["name", "age", "sex", "zip", "smoker", "disease"],
)  # fmt: skip
QUASI = ["age", "sex", "zip", "smoker"]
HIERARCHIES = {"age": Intervals(widths=(10,)), "zip": Prefix(keep=(3,)), "sex": Tree(), "smoker": Tree()}


def test_salaries_without_names_are_re_identified_by_date_of_birth_sex_and_zip() -> None:
    found = link(SALARIES, VOTERS, ["born", "sex", "zip"], ["salary"])
    assert found.candidates.tolist() == [1, 1, 2, 2, 0, 1]
    assert VOTERS["name"][found.re_identified].tolist() == ["Ann", "Bob", "Finn"]
    assert found.summary() == {"people": 6, "matched": 5, "re_identified": 3, "narrowed": 2, "mean_candidates": 1.4,
                               "disclosed": {"salary": 3}}  # fmt: skip
    without = link(SALARIES, VOTERS, ["sex", "zip"])
    assert without.re_identified.sum() == 3 and link(SALARIES, VOTERS, ["sex"]).re_identified.sum() == 0


def test_generalised_salaries_are_not() -> None:
    release = anonymise(Records(SALARIES, ["born", "sex", "zip"]), Target(2, suppression=0.0))
    found = link(release.records, VOTERS, ["born", "sex", "zip"], ["salary"])
    assert release.k >= 2 and found.re_identified.sum() == 0 and (found.candidates[found.candidates > 0] >= 2).all()


def test_rebecca_has_one_of_two_diseases_after_generalisation() -> None:
    names = PATIENTS[["name", *QUASI]]
    before = link(PATIENTS, names, QUASI, ["disease"])
    assert before.re_identified.all()
    release = anonymise(Records(PATIENTS.drop(columns="name"), QUASI), Target(2), hierarchies=HIERARCHIES)
    assert release.k == 2 and release.levels == {"age": (1, 2), "sex": (0, 1), "zip": (1, 2), "smoker": (0, 1)}
    after = link(release.records, names, QUASI, ["disease"])
    assert after.re_identified.sum() == 0
    rebecca = PATIENTS.index[PATIENTS["name"] == "Rebecca"][0]
    assert after.candidates[rebecca] == after.learned["disease"][rebecca] == 2
    told = release.records.loc[rebecca]
    assert (told["age"], told["zip"]) == ("50-59", "191**")
    fits = (release.records[QUASI] == told[QUASI]).all(axis=1)
    assert set(release.records["disease"][fits]) == {"hiv", "colitis"}


def test_whoever_shares_a_class_of_one_disease_is_known_without_being_found() -> None:
    ill = PATIENTS.assign(disease=PATIENTS["disease"].where(PATIENTS["sex"] == "f", "lung cancer"))
    release = anonymise(Records(ill.drop(columns="name"), QUASI), Target(2), hierarchies=HIERARCHIES)
    after = link(release.records, PATIENTS, QUASI, ["disease"])
    assert (
        after.re_identified.sum() == 0 and after.is_disclosed("disease").tolist() == (PATIENTS["sex"] == "m").tolist()
    )
    varied = anonymise(Records(ill.drop(columns="name"), QUASI, ["disease"]), Target(2, l=2), hierarchies=HIERARCHIES)
    assert not link(varied.records, PATIENTS, QUASI, ["disease"]).is_disclosed("disease").any()


def test_two_hospitals_releases_together_tell_what_neither_tells_alone() -> None:
    """Why k-anonymity is no guarantee: Rebecca was in both, and only one disease is in both classes."""
    other = pd.DataFrame({"age": [55, 57, 51], "sex": ["f"] * 3, "zip": ["19103", "19107", "19111"],
                          "smoker": ["no"] * 3, "disease": ["hiv", "flu", "migraine"]})  # fmt: skip
    person = PATIENTS.loc[PATIENTS["name"] == "Rebecca", QUASI]
    possible = []
    for table in (PATIENTS.drop(columns="name"), other):
        release = anonymise(Records(table, QUASI), Target(2), hierarchies=HIERARCHIES)
        assert link(release.records, person, QUASI).candidates[0] >= 2
        fits = [link(release.records.loc[[row]], person, QUASI).candidates[0] == 1 for row in release.records.index]
        possible.append(set(release.records["disease"][fits]))
    assert min(map(len, possible)) >= 2 and possible[0] & possible[1] == {"hiv"}


def test_a_patient_with_several_rows_is_one_candidate() -> None:
    records = pd.DataFrame({"id": [1, 1, 2], "zip": ["a", "a", "b"], "x": ["p", "q", "p"]})
    people = pd.DataFrame({"zip": ["a", "b", None]})
    assert link(records, people, ["zip"], unit="id").candidates.tolist() == [1, 1, 0]
    assert link(records, people, ["zip"]).candidates.tolist() == [2, 1, 0]


def test_labels_of_a_tree_are_known_by_its_hierarchy() -> None:
    records = pd.DataFrame({"country": ["Europe", "Europe", "Asia"], "dx": ["390-459", "240-279", "390-459"]})
    people = pd.DataFrame({"country": ["France", "India"], "dx": ["250.01", "428"]})
    trees = {"country": Tree(groups=({"Europe": ("France", "Italy"), "Asia": ("India",)},)), "dx": Codes(system="icd9")}
    assert link(records, people, ["country", "dx"], hierarchies=trees).candidates.tolist() == [1, 1]
    assert link(records, people, ["country", "dx"]).candidates.tolist() == [0, 0]


TABLE = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("fm"), st.integers(10, 14)), min_size=4, max_size=25)


@settings(max_examples=20)
@given(TABLE, st.sampled_from(["lattice", "mondrian"]))
def test_after_anonymising_everyone_fits_k_patients_and_the_truth_is_among_them(
    rows: list[tuple[int, str, int]], method: str
) -> None:
    table = pd.DataFrame(rows, columns=["age", "sex", "zip"]).astype({"zip": str})
    release = anonymise(Records(table, ["age", "sex", "zip"]), Target(2), method=method)
    found = link(release.records, table, ["age", "sex", "zip"])
    assert (found.candidates >= 2).all() and found.re_identified.sum() == 0
    for row in table.index:
        assert link(release.records.loc[[row]], table.loc[[row]], ["age", "sex", "zip"]).candidates[0] == 1


@settings(max_examples=20)
@given(TABLE, TABLE)
def test_a_raw_link_is_a_join(records: list[tuple[int, str, int]], people: list[tuple[int, str, int]]) -> None:
    inside, outside = (pd.DataFrame(rows, columns=["age", "sex", "zip"]) for rows in (records, people))
    found = link(inside, outside, ["age", "sex", "zip"])
    sizes = inside.groupby(["age", "sex", "zip"]).size().to_dict()
    assert found.candidates.tolist() == [sizes.get(row, 0) for row in people]
    again = outside.groupby(["age", "sex", "zip"]).size().to_dict()
    assert found.re_identified.tolist() == [sizes.get(row, 0) == 1 and again[row] == 1 for row in people]


@pytest.mark.parametrize(
    ("label", "bounds", "middle"),
    [("40-44", (40, 45, False), 42), ("[1.5, 2)", (1.5, 2, False), 1.75), ("[1.5, 2]", (1.5, 2, True), 1.75),
     ("below 20", (-np.inf, 20, False), 20), ("90 or more", (90, np.inf, True), 90), ("1964-03", None, np.nan),
     ("41", None, 41), ("606**", None, np.nan), ("*", None, np.nan)],
)  # fmt: skip
def test_labels_are_read_back(label: str, bounds: tuple[float, float, bool] | None, middle: float) -> None:
    assert bounds_of(label) == bounds
    assert midpoint(label) == pytest.approx(middle, nan_ok=True)


def test_tables_that_cannot_be_linked_are_refused() -> None:
    with pytest.raises(DataError, match="outside: there is no column 'salary'"):
        link(SALARIES, VOTERS, ["salary"])
    with pytest.raises(DataError, match="on: no column"):
        link(SALARIES, VOTERS, [])
    with pytest.raises(DataError, match="without rows"):
        link(SALARIES.head(0), VOTERS, ["sex"])
    assert equivalence_classes(SALARIES, ["sex"]).k == 3


def test_numbers_within_a_tolerance_match() -> None:
    records = pd.DataFrame({"age": [60, 61, 70], "creatinine": ["0.8", "1.20", "2"], "sex": ["f", "f", "m"]})
    outside = pd.DataFrame({"age": [61, 71, 40], "creatinine": [0.7, 2.0, 9.0], "sex": ["f", "m", "m"]})
    on = ["age", "creatinine", "sex"]
    assert link(records, outside, on).candidates.tolist() == [0, 0, 0]
    near = link(
        records, outside, on, tolerances={"age": 1, "creatinine": 0.1}
    )  # 0.8 and 0.7 lie 0.1 apart, rounding apart
    assert near.candidates.tolist() == [1, 1, 0] and near.re_identified.tolist() == [True, True, False]
    wide = link(records, outside, on, tolerances={"age": 1, "creatinine": 0.5})
    assert wide.candidates.tolist() == [2, 1, 0]
    assert link(records, outside, ["creatinine"], tolerances={"creatinine": 0}).candidates.tolist() == [0, 1, 0]
    intervals = pd.DataFrame({"age": ["50-59", "60-69", "[70, 80)"]})
    assert link(intervals, outside, ["age"], tolerances={"age": 2}).candidates.tolist() == [2, 2, 0]
    half = pd.DataFrame({"age": ["below 60", "70 or more"]})
    assert link(half, outside, ["age"], tolerances={"age": 1}).candidates.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("tolerances", "words"), [({"weight": 1.0}, "not among"), ({"age": -1.0}, "at least 0")])
def test_a_tolerance_that_cannot_be_is_refused(tolerances: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        link(PATIENTS, PATIENTS, ["age"], tolerances=tolerances)
