"""The tables by which lectures explain linking, k-anonymity and coarsening, and what the figures of coarsening show.

Salaries without names: Cormode and Srivastava 2009 (SIGMOD tutorial). Six patients made 2-anonymous: the example of the
encyclopaedia's article on k-anonymity, rows of which are left out. Inpatients are made up, in the form of Texas' public-use file.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr import Column, Schema
from polyclinic.ehr.anonymity import Records, Target, anonymise, equivalence_classes, link
from polyclinic.ehr.anonymity.coarsening import Coarsening, Generalise, coarsen
from polyclinic.ehr.anonymity.hierarchies import Intervals, Prefix, Tree
from polyclinic.evaluation.figures.canvas import to_svg
from polyclinic.evaluation.figures.records import plot_pairs

SALARIES = pd.DataFrame(
    [("1976-01-21", "m", "53715", 50_000), ("1986-04-13", "f", "53715", 55_000), ("1976-02-28", "m", "53703", 60_000),
     ("1976-01-21", "m", "53703", 65_000), ("1986-04-13", "f", "53706", 70_000), ("1976-02-28", "f", "53706", 75_000)],
    columns=["born", "sex", "zip", "salary"],
)  # fmt: skip
KNOWN = ["born", "sex", "zip"]


def test_each_salary_is_found_by_date_of_birth_sex_and_zip_and_by_fewer_of_them_some() -> None:
    neighbours = SALARIES[KNOWN].assign(name=["Andre", "Beth", "Carl", "Dan", "Ellen", "Flora"])
    found = link(SALARIES, neighbours, KNOWN, ["salary"])
    assert found.re_identified.all() and found.summary()["disclosed"] == {"salary": 6}
    assert link(SALARIES, neighbours, ["born", "sex"]).candidates.tolist() == [2, 2, 1, 2, 2, 1]
    assert link(SALARIES, neighbours, ["born", "zip"]).re_identified.all()
    assert link(SALARIES, neighbours, ["sex", "zip"]).candidates.tolist() == [1, 1, 2, 2, 2, 2]
    year = {"zip": Prefix(keep=(3,)), "sex": Tree()}
    release = anonymise(Records(SALARIES, KNOWN), Target(2, suppression=0.0), year)
    assert release.k >= 2 and not link(release.records, neighbours, KNOWN).re_identified.any()
    assert sorted(release.records["salary"]) == [50_000, 55_000, 60_000, 65_000, 70_000, 75_000]


SIX = pd.DataFrame(
    [("Ramsha", 30, "female", "Tamil Nadu", "Hindu", "cancer"), ("Yadu", 24, "female", "Kerala", "Hindu", "viral infection"),
     ("Salima", 28, "female", "Tamil Nadu", "Muslim", "tuberculosis"), ("Joan", 24, "female", "Kerala", "Christian", "heart"),
     ("Rambha", 19, "male", "Kerala", "Hindu", "cancer"), ("Johnson", 17, "male", "Kerala", "Christian", "heart")],
    columns=["name", "age", "sex", "state", "religion", "disease"],
)  # fmt: skip
OUTSIDE = ["age", "sex", "state", "religion"]


def test_six_patients_become_two_anonymous_by_intervals_of_age_and_suppressed_columns() -> None:
    assert equivalence_classes(SIX, OUTSIDE).k == 1
    ages = Intervals(edges=(11, 21, 31))  # (10, 20] and (20, 30] of whole years
    release = anonymise(
        Records(SIX, OUTSIDE), Target(2, suppression=0.0),
        {"age": ages, **{name: Tree() for name in ("sex", "state", "religion")}},
    )  # fmt: skip
    table = release.records
    assert release.k == 2 and release.is_least
    assert table["age"].tolist() == ["21-30", "21-30", "21-30", "21-30", "11-20", "11-20"]
    assert set(table["religion"]) == {"*"}
    assert table["sex"].tolist() == SIX["sex"].tolist() and table["state"].tolist() == SIX["state"].tolist()
    assert equivalence_classes(table, OUTSIDE).patients.tolist() == [2, 2, 2]
    # Each patient of a class still has one of two diseases, and no more is hidden: l is 2.
    assert table.groupby(OUTSIDE)["disease"].nunique().tolist() == [2, 2, 2]


def inpatients(rows: int = 400) -> tuple[pd.DataFrame, Schema]:
    draw = np.random.default_rng(0)
    stay = (1 + draw.negative_binomial(2, 0.35, rows)).clip(max=30)
    table = pd.DataFrame(
        {
            "id": [f"p{row}" for row in range(rows)],
            "age": draw.integers(0, 100, rows),
            "stay": stay,
            "charges": (300 + draw.gamma(2.0, 150.0, rows) * stay**0.8).clip(max=9_999).round(2),
            "county": draw.choice(["Bexar", "Dallas", "Harris", "Travis"], rows),
            "payer": draw.choice(["a", "b"], rows),
            "died": draw.integers(0, 2, rows),
        }
    )
    numbers = [
        Column(name=name, kind="integer", bounds=bounds) for name, bounds in (("age", (0, 120)), ("stay", (0, 30)))
    ]
    return table, Schema(
        name="inpatients",
        columns=(
            Column(name="id", kind="categorical", role="patient_id"), *numbers,
            Column(name="charges", kind="continuous", unit="dollars", bounds=(0, 10_000)),
            Column(name="county", kind="categorical", categories=("Bexar", "Dallas", "Harris", "Travis")),
            Column(name="payer", kind="categorical", categories=("a", "b")),
            Column(name="died", kind="binary", role="label"),
        ),
    )  # fmt: skip


def test_fewer_columns_and_twenty_bins_of_charges_leave_hardly_anybody_alone() -> None:
    table, schema = inpatients()
    rules = Coarsening(
        keep=("id", "age", "stay", "charges", "county", "died"),
        rules=(Generalise(column="charges", hierarchy=Intervals(widths=(500,))),
               Generalise(column="age", hierarchy=Intervals(widths=(20,)))),
    )  # fmt: skip
    coarse, fitted = coarsen(table, schema, rules)
    charges = next(column for column in fitted.columns if column.name == "charges")
    assert len(charges.categories) == 20 and charges.categories[0] == "[0, 500)" and "payer" not in coarse
    alone = [int((equivalence_classes(part, ["charges"]).patients == 1).sum()) for part in (table, coarse)]
    assert alone[0] > 390 and alone[1] <= 5
    together = [int((equivalence_classes(part, ["age", "charges"]).patients == 1).sum()) for part in (table, coarse)]
    assert together[0] == 400 and together[1] < 25


def test_the_figure_has_rows_below_its_diagonal_and_bins_above_it() -> None:
    table, _ = inpatients(60)
    names = ["age", "charges", "county"]
    table = table[names]
    bins = table["charges"] // 500 * 500
    coarse = table.assign(
        age=[None, *(f"{age // 20 * 20}-{age // 20 * 20 + 19}" for age in table["age"][1:])],
        charges=[f"[{low:g}, {low + 500:g})" for low in bins],
    )
    figure = plot_pairs(table, coarse)
    panels = np.reshape(figure.axes, (3, 3))
    exact, binned = (panels[at].collections[0].get_offsets().data for at in ((1, 0), (0, 1)))
    np.testing.assert_allclose(exact, table[["age", "charges"]])
    np.testing.assert_allclose(binned[:, 0], bins + 250)
    assert np.isnan(binned[0, 1]) and set(np.unique(binned[1:, 1])) <= {9.5, 29.5, 49.5, 69.5, 89.5}
    assert panels[1, 0].get_xlim() == panels[2, 0].get_xlim() and not panels[1, 1].collections
    said = [panels[at, at].texts[0].get_text() for at in range(3)]
    shares = [(part["charges"].value_counts() == 1).sum() / 60 for part in (table, coarse)]
    assert said[1] == f"charges\nalone: {shares[0]:.0%}, then {shares[1]:.0%}" and shares[0] > 0.9 > 0.3 > shares[1]
    assert "Pairs of columns" in to_svg(figure)


def test_a_column_without_cells_has_a_place_too() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [None, None]})
    assert to_svg(plot_pairs(table, table)).count("alone:") == 2
    with pytest.raises(KeyError):
        plot_pairs(table, table[["a"]])
