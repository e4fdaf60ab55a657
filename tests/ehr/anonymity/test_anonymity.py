"""Reaching k, l and t: the search against brute force, local recoding, suppression, hierarchies, information loss."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.anonymity import identifying, read_table, write_table
from polyclinic.ehr.anonymity.classes import (
    Records,
    classes_of,
    combine,
    equivalence_classes,
    l_diversity,
    spread,
    t_closeness,
    value_numbers,
)
from polyclinic.ehr.anonymity.exposure import downstream_auroc
from polyclinic.ehr.anonymity.hierarchies import (
    Dates,
    Hierarchy,
    Intervals,
    Prefix,
    Tree,
    coarser_column,
    default_hierarchy,
    doubling,
    ladder,
    parse_hierarchy,
    read_hierarchies,
)
from polyclinic.ehr.anonymity.methods import Demand, Sensitive, Target, best_levels
from polyclinic.ehr.anonymity.release import anonymise
from polyclinic.ehr.schema import Column
from polyclinic.errors import ConfigError, DataError, PolyclinicError

QUASI = ["age", "zip", "sex"]


def table(rows: int = 120, seed: int = 0, patients: int | None = None) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": np.arange(rows) if patients is None else rng.integers(0, patients, rows),
            "age": rng.integers(20, 90, rows),
            "zip": rng.choice(["60637", "60638", "60615", "60601", "02139", "02141"], rows),
            "sex": rng.choice(["f", "m"], rows),
            "disease": rng.choice(["flu", "hiv", "gout", "asthma"], rows, p=[0.5, 0.3, 0.15, 0.05]),
            "died": rng.integers(0, 2, rows),
        }
    )


def demand_of(records: pd.DataFrame, target: Target, sensitive: bool, by_patient: bool) -> Demand:
    column = (Sensitive(*value_numbers(records["disease"])),) if sensitive else ()
    patient = pd.factorize(records["id"])[0].astype(np.int64) if by_patient else None
    return Demand(target, len(records), patient, column)


@pytest.mark.parametrize("by_patient", [False, True])
@pytest.mark.parametrize(
    ("target", "sensitive"),
    [(Target(2), False), (Target(3, suppression=0.1), False), (Target(8, suppression=0.03), False),
     (Target(3, l=2, suppression=0.05), True), (Target(4, l=3), True), (Target(3, t=0.3), True)],
)  # fmt: skip
def test_no_combination_of_levels_loses_less_than_the_one_that_is_chosen(
    target: Target, sensitive: bool, by_patient: bool
) -> None:
    for seed in range(3):
        records = table(seed=seed, patients=90 if by_patient else None)
        ladders = [ladder(records[name], default_hierarchy(records[name])) for name in QUASI]
        demand = demand_of(records, target, sensitive, by_patient)
        chosen = best_levels(ladders, demand)
        assert chosen.levels is not None
        losses = {}
        for levels in product(*(range(one.top + 1) for one in ladders)):
            numbers = [one.numbers[level] for one, level in zip(ladders, levels, strict=True)]
            kept = demand.staying(combine(numbers))
            if not demand.too_many(kept):
                lost = [np.where(kept, one.losses[level][one.numbers[level]], 1.0).mean()
                        for one, level in zip(ladders, levels, strict=True)]  # fmt: skip
                losses[levels] = float(np.mean(lost))
        assert chosen.loss >= min(losses.values()) - 1e-12
        if chosen.is_least:
            assert chosen.loss == pytest.approx(min(losses.values()))
        assert chosen.looked_at < chosen.of == len(list(product(*(range(one.top + 1) for one in ladders))))
        assert losses[chosen.levels] == pytest.approx(chosen.loss)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([1, 2]), st.sampled_from([None, 0.4]),
    st.sampled_from([0.0, 0.1]), st.booleans(), st.sampled_from(["lattice", "mondrian"]),
)  # fmt: skip
def test_a_release_is_what_was_asked_for(
    seed: int, k: int, l: int, t: float | None, suppression: float, by_patient: bool, method: Any  # noqa: E741
) -> None:  # fmt: skip
    records = table(rows=60, seed=seed, patients=40 if by_patient else None)
    unit = "id" if by_patient else None
    found = anonymise(Records(records, QUASI, ["disease"], unit), Target(k, l, t, suppression), method=method)
    assert equivalence_classes(found.records, QUASI, unit).k == found.k >= k
    after = spread(found.records, QUASI, "disease", unit)
    assert l_diversity(after) >= l
    assert t is None or t_closeness(after) <= t + 1e-9
    gone = records["id"][~found.staying].nunique()
    assert gone <= suppression * records["id"].nunique()
    pd.testing.assert_frame_equal(found.records.drop(columns=QUASI), records[found.staying].drop(columns=QUASI))


def test_a_patient_with_several_rows_does_not_hide_itself() -> None:
    records = pd.DataFrame({"id": [1, 1, 1, 2, 3, 4], "age": [30, 30, 30, 31, 60, 61], "sex": ["f"] * 6})
    ages = {"age": Intervals(widths=(2, 40))}
    by_row = anonymise(Records(records, ["age"]), Target(3, suppression=0.5), hierarchies=ages)
    assert by_row.levels == {"age": (0, 3)} and equivalence_classes(by_row.records, ["age"], "id").k == 1
    by_patient = anonymise(Records(records, ["age"], unit="id"), Target(2), hierarchies=ages)
    assert by_patient.levels == {"age": (1, 3)} and by_patient.k == 2 and by_patient.sizes.tolist() == [2, 2]


def test_suppression_counts_patients_who_lose_a_row() -> None:
    records = pd.DataFrame({"id": [1, 2, 3, 4, 4, 4], "zip": ["a", "a", "a", "a", "b", "c"]})
    kept = anonymise(Records(records, ["zip"], unit="id"), Target(3, suppression=0.25))
    assert kept.staying.tolist() == [True] * 4 + [False] * 2 and kept.k == 4
    with_less = anonymise(Records(records, ["zip"], unit="id"), Target(3, suppression=0.2))
    assert with_less.records["zip"].tolist() == ["*"] * 6


def test_local_recoding_loses_less_and_its_labels_hold_its_cells() -> None:
    records = table(rows=400)
    full, local = (anonymise(Records(records, QUASI), Target(5), method=method) for method in ("lattice", "mondrian"))
    assert local.loss["loss"] < full.loss["loss"] and local.loss["discernibility"] < full.loss["discernibility"]
    assert local.staying.all() and local.levels is None and local.k >= 5
    for released, age in zip(local.records["age"], records["age"], strict=True):
        low, _, high = released.partition("-")
        assert int(low) <= age <= int(high or low)


def test_missing_cells_stay_missing_until_nothing_is_told() -> None:
    records = pd.DataFrame({"age": [30.0, 31.0, None, None, 70.0, 71.0], "sex": ["f", "f", "f", None, "m", "m"]})
    found = anonymise(Records(records, ["age"]), Target(2), hierarchies={"age": Intervals(widths=(5,))})
    assert found.records["age"].tolist() == ["30-34", "30-34", None, None, "70-74", "70-74"]
    local = anonymise(Records(records, ["age", "sex"]), Target(2), method="mondrian")
    assert local.k >= 2 and set(local.records["sex"]) <= {"f", "m", None, "*"}


def test_the_loss_of_a_small_table_by_hand() -> None:
    records = pd.DataFrame({"zip": ["60637", "60638", "60611", "02139"], "sex": ["f", "f", "f", "m"]})
    found = anonymise(
        Records(records, ["zip", "sex"]), Target(2, suppression=0.25), hierarchies={"zip": Prefix(keep=(4, 3))}
    )
    assert found.levels == {"zip": (2, 3), "sex": (0, 1)} and found.records["zip"].tolist() == ["606**"] * 3
    assert found.loss["discernibility"] == 3**2 + 4 and found.loss["average_class_size"] == 1.5
    assert found.loss["height"] == 2 / 4 and found.loss["precision"] == pytest.approx(1 - (0.75 * (2 / 3) / 2 + 0.25))
    assert found.loss["loss"] == pytest.approx(((3 * 2 / 3 + 1) / 4 + 1 / 4) / 2)


def test_a_model_learns_from_the_release_what_its_columns_still_tell() -> None:
    rng = np.random.default_rng(1)
    records = table(rows=1500).assign(code=rng.normal(size=1500))
    records["died"] = (records["age"] + rng.normal(0, 8, 1500) > 55).astype(int)
    patients = records["id"].astype(str).tolist()
    found = anonymise(Records(records, QUASI), Target(10))
    auroc = downstream_auroc(records, found.records, "died", patients, ["id"])
    assert auroc["held_out"] == pytest.approx(375, abs=60) and auroc["rows"] == 1500
    assert auroc["before"] > 0.9 and auroc["before"] - 0.08 < auroc["after"] < auroc["before"]
    blind = downstream_auroc(records, records.assign(age="*"), "died", patients, ["id"])
    assert abs(blind["after"] - 0.5) < 0.1
    with pytest.raises(DataError, match="must hold two values"):
        downstream_auroc(records, found.records, "disease", patients)


# Hierarchies.


@pytest.mark.parametrize(
    ("hierarchy", "cell", "labels"),
    [
        (Intervals(widths=(5, 10, 40)), 63, ["60-64", "60-69", "40-79"]),
        (Intervals(widths=(5, 10), low=20, high=90), 93, ["90 or more"] * 2),
        (Intervals(widths=(5, 10), low=20, high=90), 19, ["below 20"] * 2),
        (Intervals(widths=(0.5, 1)), 1.2, ["[1, 1.5)", "[1, 2)"]),
        (Intervals(widths=(0.1, 0.2)), 0.3, ["[0.3, 0.4)", "[0.2, 0.4)"]),
        (Intervals(widths=(10,)), -3, ["[-10, 0)"]),
        (Prefix(keep=(4, 2)), "60637", ["6063*", "60***"]),
        (Prefix(keep=(4, 2)), 60637.0, ["6063*", "60***"]),
        (Dates(), "1964-03-11", ["1964-03", "1964", "1960s"]),
        (Tree(groups=({"Europe": ("France",)}, {"Old world": ("Europe",)})), "France", ["Europe", "Old world"]),
        (Tree(groups=({"Europe": ("France",)},)), "Chile", ["other"]),
        (parse_hierarchy("dx", {"kind": "codes", "system": "icd10"}), "E11.9", ["E11", "E00-E90"]),
    ],
)  # fmt: skip
def test_labels(hierarchy: Any, cell: Any, labels: list[str]) -> None:
    assert list(hierarchy.labels(cell)) == labels and hierarchy.levels == len(labels)


def test_a_schemas_public_bounds_decide_where_there_is_one() -> None:
    ages = pd.Series([40, 41, 90], name="age")
    column = Column(name="age", kind="integer", bounds=(0, 120))
    assert default_hierarchy(ages, column) == Intervals(widths=(5, 10, 20, 40))
    assert default_hierarchy(ages) == Intervals(widths=(2, 4, 8, 16))
    assert default_hierarchy(pd.Series(["60637", "60615"], name="zip_code")) == Prefix(keep=(4, 3, 2, 1))
    assert default_hierarchy(pd.Series(["1964-03-11", None], name="born")) == Dates()
    assert default_hierarchy(pd.Series(["f", "m"], name="sex")) == Tree()
    assert doubling(0, 1, whole=False) == (0.05, 0.1, 0.2, 0.4)


def test_a_binary_column_without_names_keeps_two_labels_where_its_hierarchy_has_two() -> None:
    tree = Tree(groups=({"never": ("0",), "ever": ("1",)}, {"any": ("never", "ever")}))
    column = Column(name="smoked", kind="binary")
    first = coarser_column(column, tree, 1)
    assert first == Column(name="smoked", kind="categorical", categories=("never", "ever"))
    assert coarser_column(column, tree, 2) is None
    when = Column(name="when", kind="integer", role="time")
    assert coarser_column(when, tree, 1) is when


def test_hierarchies_are_declared_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "hierarchies.toml"
    path.write_text(
        '[age]\nkind = "intervals"\nwidths = [5, 10]\nhigh = 90\n[zip]\nkind = "prefix"\nkeep = [3]\n'
        '[country]\nkind = "tree"\ngroups = [{ Europe = ["France", "Italy"], Asia = ["India"] }]\n'
    )
    found = read_hierarchies(path)
    assert found["age"] == Intervals(widths=(5, 10), high=90) and found["zip"] == Prefix(keep=(3,))
    assert found["country"].labels("Italy")[0] == "Europe"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[age]\nkind = "interval"', "kind is 'interval'.*Did you mean 'intervals'"),
        ('[age]\nkind = "intervals"\nwidths = [5, 12]', "age.*multiple of the one before"),
        ('[age]\nkind = "intervals"\nwidths = [5]\nlow = 3', "multiples of the largest width"),
        ('[age]\nkind = "intervals"\nwidths = [5]\nstep = 3', "age.step"),
        ('[zip]\nkind = "prefix"\nkeep = [2, 3]', "falling"),
        ('[sex]\nkind = "tree"\ngroups = [{ a = ["x"], b = ["x"] }]', "in two groups"),
        ("sex = 1", "kind is None"),
        ("[sex", "is not valid TOML"),
    ],
)
def test_wrong_hierarchies_are_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "h.toml").write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        read_hierarchies(tmp_path / "h.toml")
    assert "\n" not in str(refused.value)


def test_labels_that_lie_in_two_labels_of_the_next_level_are_refused() -> None:
    class Crossed(Hierarchy):
        def labels(self, cell: Any) -> tuple[str, ...]:
            return str(int(cell) // 2), str(int(cell) // 3)

    with pytest.raises(ConfigError, match="in two labels of level 2"):
        ladder(pd.Series(range(12), name="n"), Crossed())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": Target(500)}, "k = 500 cannot be reached: 120 patients"),
        ({"target": Target(2, l=9), "sensitive": ["disease"]}, "k = 2, l = 9 cannot be reached"),
        ({"target": Target(2, l=9), "sensitive": ["disease"], "method": "mondrian"}, "cannot be reached"),
        ({"target": Target(2, l=2)}, "name at least one"),
        ({"target": Target(2), "quasi": ["agee"]}, "there is no column 'agee'; give a name of the table's header"),
        ({"target": Target(2), "quasi": []}, "quasi: no column"),
        ({"target": Target(2), "unit": "age"}, "cannot be a quasi-identifier and"),
        ({"target": Target(2), "method": "magic"}, "one of lattice, mondrian"),
        ({"target": Target(2), "hierarchies": {"sex": Intervals(widths=(5,))}}, "of intervals, but"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words) as refused:
        roles = {key: options[key] for key in ("quasi", "sensitive", "unit") if key in options}
        asked = {key: value for key, value in options.items() if key not in roles}
        anonymise(Records(table(), **{"quasi": QUASI} | roles), **asked)
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 2, "l": 0}, {"k": 2, "t": 2.0}, {"k": 2, "suppression": 1.0}])
def test_a_target_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{list(wrong)[-1]} is"):
        Target(**wrong)


def test_numbers_of_many_columns_do_not_overflow() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2**20, 50) for _ in range(8)]
    doubled = [np.concatenate([column, column]) for column in columns]
    assert classes_of(doubled, None).patients.tolist() == [2] * 50


def test_names_and_record_numbers_are_found_by_patient() -> None:
    records = pd.DataFrame(
        {"id": [1, 1, 2, 3], "name": ["a", "a", "b", "c"], "stay": [10, 11, 12, 13], "lab": [1.5, 2.5, 3.25, 4.0],
         "sex": ["f", "f", "m", "f"], "note": [None, None, None, "x"]}
    )  # fmt: skip
    assert identifying(records, ["id"], "id") == ["name", "stay"]
    assert identifying(records, ["id", "stay"]) == []


@pytest.mark.parametrize("method", ["lattice", "mondrian"])
def test_truths_and_whole_numbers_with_missing_cells_are_released_as_parquet(tmp_path: Path, method: Any) -> None:
    rng = np.random.default_rng(0)
    records = pd.DataFrame(
        {"age": rng.integers(20, 90, 400), "smokes": rng.random(400) < 0.5, "weight": rng.normal(70, 9, 400)}
    )
    records = records.astype({"age": "Int64", "smokes": "boolean"})
    records.loc[::17, "age"] = pd.NA
    records.loc[::19, "smokes"] = pd.NA
    records.to_parquet(tmp_path / "records.parquet")
    read = read_table(tmp_path / "records.parquet")
    assert read["age"].dropna().tolist() == records["age"].dropna().tolist()
    release = anonymise(Records(read, ["age", "smokes", "weight"]), Target(5, suppression=0.05), method=method)
    write_table(release.records, tmp_path / "released.parquet")
    again = read_table(tmp_path / "released.parquet")
    assert (
        len(again) == len(release.records)
        and equivalence_classes(again, ["age", "smokes", "weight"]).k == release.k >= 5
    )
