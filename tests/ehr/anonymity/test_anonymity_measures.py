"""The nine measures: against values that pycanon gave, against the papers' own examples, and by patient."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.anonymity.classes import (
    Spread,
    delta_disclosure,
    enhanced_beta,
    entropy_l_diversity,
    equivalence_classes,
    l_diversity,
    measures,
    recursive_c,
    spread,
    t_by_class,
    t_closeness,
    uniqueness,
)
from polyclinic.ehr.anonymity.release import average_class_size, discernibility
from polyclinic.errors import DataError

# Frozen: inputs, outputs and versions, made once in an environment of pycanon's own pins.
GOLDEN = json.loads((Path(__file__).parent / "golden_anonymity.json").read_text())
CASES = [
    pytest.param(case, name, theirs, id=f"{case['name']}, {name}")
    for case in GOLDEN["cases"] for name, theirs in case["sensitive"].items() if name != "k_anonymity"
]  # fmt: skip


def shares(found: Spread) -> list[np.ndarray]:
    """Each class's shares, by a loop."""
    return [found.share[found.of_class == one] for one in range(len(found.patients))]


@pytest.mark.parametrize(("case", "name", "theirs"), CASES)
def test_measures_are_pycanons(case: dict[str, Any], name: str, theirs: dict[str, Any]) -> None:
    table = pd.DataFrame(case["columns"])
    assert equivalence_classes(table, case["quasi"]).k == case["sensitive"]["k_anonymity"]
    ours = measures(spread(table, case["quasi"], name))
    for mine, their in (("alpha", "alpha"), ("l", "l_diversity"), ("basic_beta", "basic_beta"), ("t", "t_closeness")):
        assert ours[mine] == pytest.approx(theirs[their], abs=1e-12), mine


@pytest.mark.parametrize(("case", "name", "theirs"), CASES)
def test_where_pycanon_leaves_the_paper_we_follow_the_paper(
    case: dict[str, Any], name: str, theirs: dict[str, Any]
) -> None:
    found = spread(pd.DataFrame(case["columns"]), case["quasi"], name)
    each, p = shares(found), found.overall
    # Entropy l-diversity is a real number; pycanon cuts it to a whole one, and 2.999... to 2 where it is 3.
    ours = entropy_l_diversity(found)
    assert ours == pytest.approx(min(math.exp(-(q * np.log(q)).sum()) for q in each))
    assert theirs["entropy_l_diversity"] in (math.floor(ours), math.floor(ours + 1e-9) - 1)
    # Recursive diversity counts from the commonest value; pycanon from the rarest, and rounds up.
    l = l_diversity(found)  # noqa: E741
    falling = [np.sort(q)[::-1] for q in each]
    assert recursive_c(found, l) == pytest.approx(max(q[0] / q[l - 1 :].sum() for q in falling))
    if l > 1:
        assert theirs["recursive_c"] == max(int(np.floor(q[::-1][0] / q[::-1][l - 1 :].sum() + 1)) for q in falling)
    # Enhanced likeness cannot be had at any beta where a gain passes -ln p; pycanon always names one.
    gains = [(q - p[found.value[found.of_class == one]]) / p[found.value[found.of_class == one]]
             for one, q in enumerate(each)]  # fmt: skip
    most = max(gain.max() for gain in gains)
    limits = [-np.log(p[found.value[found.of_class == one]]) for one in range(len(each))]
    beyond = any((gain > limit + 1e-12).any() for gain, limit in zip(gains, limits, strict=True))
    assert enhanced_beta(found) == (math.inf if beyond else pytest.approx(most))
    assert theirs["enhanced_beta"] == pytest.approx(max(min(most, -math.log(one)) for one in p))
    # A value that a class lacks has a log ratio of minus infinity; pycanon leaves it out.
    lacks = any(len(q) < len(p) for q in each)
    present = max(np.abs(np.log(gain + 1)).max() for gain in gains)
    assert delta_disclosure(found) == (math.inf if lacks else pytest.approx(present))
    assert theirs["delta_disclosure"] == pytest.approx(present)


def test_the_frozen_values_hold_both_sides_of_each_difference() -> None:
    found = [spread(pd.DataFrame(case["columns"]), case["quasi"], name) for case, name, _ in
             (param.values for param in CASES)]  # fmt: skip
    for measure in (enhanced_beta, delta_disclosure):
        assert {math.isfinite(measure(one)) for one in found} == {True, False}
    assert GOLDEN["pycanon"] == "1.3.6"


def test_information_loss_is_pycanons() -> None:
    theirs = GOLDEN["metrics"]
    sizes = equivalence_classes(pd.DataFrame({"age": theirs["age"]}), ["age"]).rows
    suppressed = theirs["rows"] - int(sizes.sum())
    assert discernibility(sizes, suppressed) == theirs["discernability"] == 4**2 + 3**2 + 8
    assert average_class_size(sizes, theirs["k"]) == pytest.approx(theirs["average_ecsize"])


def test_the_salaries_of_the_paper_on_t_closeness() -> None:
    # Li et al. 2007: {3k, 4k, 5k} of 3k..11k is .375 away, {6k, 8k, 11k} .167.
    table = pd.DataFrame({"zip": list("aaabbbccc"), "salary": [3, 4, 5, 6, 11, 8, 7, 9, 10]})
    assert t_closeness(spread(table, ["zip"], "salary")) == pytest.approx(0.375)
    first = table.assign(zip=["rest"] * 3 + ["b"] * 3 + ["rest"] * 3)
    of_b = spread(first, ["zip"], "salary")
    assert t_by_class(of_b)[1 if of_b.patients[1] == 3 else 0] == pytest.approx(1 / 6)


def test_ordered_categories_are_ranks() -> None:
    stages = pd.Categorical(["I", "III", "II", "II"], ["I", "II", "III"], ordered=True)
    table = pd.DataFrame({"q": list("aabb"), "stage": stages})
    assert t_closeness(spread(table, ["q"], "stage")) == 0.25
    assert t_closeness(spread(table.assign(stage=stages.astype(str)), ["q"], "stage")) == 0.5


def test_a_patient_counts_once_in_a_class_however_many_rows_it_has() -> None:
    table = pd.DataFrame(
        {"id": [1, 1, 1, 2, 3], "zip": ["a", "a", "a", "a", "b"], "disease": ["flu", "flu", "hiv", "flu", "flu"]}
    )
    assert equivalence_classes(table, ["zip"]).k == 1
    assert equivalence_classes(table, ["zip"]).patients.tolist() == [4, 1]
    by_patient = equivalence_classes(table, ["zip"], "id")
    assert by_patient.patients.tolist() == [2, 1] and by_patient.rows.tolist() == [4, 1]
    # Both patients of the first class have flu, so whoever is in it has flu, though two diseases occur.
    found = spread(table[table.zip == "a"], ["zip"], "disease", "id")
    assert found.share.tolist() == [0.75, 0.25] and found.holders.tolist() == [2, 1]
    assert measures(found)["alpha"] == 1 and l_diversity(found) == 1
    assert l_diversity(spread(table[table.zip == "a"], ["zip"], "disease")) == 2
    alone = uniqueness(table, ["zip"], "id")[0]
    assert alone == {"columns": ["zip"], "k": 1, "classes": 2, "unique": 1, "share": 1 / 3}


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=40))
def test_rows_told_as_patients_of_one_row_measure_the_same(rows: list[tuple[int, int, int]]) -> None:
    table = pd.DataFrame(rows, columns=["a", "b", "s"]).assign(id=range(len(rows)))
    assert measures(spread(table, ["a", "b"], "s")) == measures(spread(table, ["a", "b"], "s", "id"))
    doubled = pd.concat([table, table])
    assert measures(spread(doubled, ["a", "b"], "s", "id")) == pytest.approx(measures(spread(table, ["a", "b"], "s")))


def test_every_set_of_quasi_identifiers_is_looked_at_and_more_columns_never_hide_anyone() -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.integers(0, 4, (50, 4)), columns=list("abcd"))
    found = {tuple(one["columns"]): one for one in uniqueness(table, list("abcd"))}
    assert len(found) == 15
    for names, one in found.items():
        by_hand = table.groupby(list(names)).size()
        assert (one["k"], one["classes"], one["unique"]) == (by_hand.min(), len(by_hand), (by_hand == 1).sum())
        assert all(found[names]["unique"] >= found[tuple(n for n in names if n != drop)]["unique"]
                   for drop in names if len(names) > 1)  # fmt: skip


def test_missing_cells_are_a_value_of_their_own_and_missing_columns_are_refused() -> None:
    table = pd.DataFrame({"zip": ["a", None, None, "a"], "id": ["1", None, "3", "4"]})
    assert equivalence_classes(table, ["zip"]).patients.tolist() == [2, 2]
    with pytest.raises(DataError, match="^quasi: there is no column 'zipp'; give a name of the table's header"):
        equivalence_classes(table, ["zipp"])
    with pytest.raises(DataError, match="data row 2: the identifier is missing"):
        equivalence_classes(table, ["zip"], "id")
    with pytest.raises(DataError, match="no column is named"):
        equivalence_classes(table, [])
