"""A trial in the form of SPRINT: the published means, and classifiers that tell the arm as well as on the real data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic_studies.datasets import sprint

SPRINT = dataset_named("sprint")
TABLE = SPRINT.load()
TRAIN = 6000
#: Accuracy on the real trial's 502 participants (the notebook of Beaulieu-Jones et al. 2019).
PUBLISHED = {"logistic": 0.934, "forest": 0.926, "svm": 0.936, "neighbours": 0.875}


def cells(table: pd.DataFrame, *names: str) -> NDArray[np.float64]:
    """(rows, 12 for each name) the visits of the columns."""
    columns = [column for column in sprint.SCHEMA.features if not names or column.name in names]
    return np.asarray(table[[name for column in columns for name in column.record_names]], dtype=np.float64)


def accuracies(table: pd.DataFrame, train: int) -> dict[str, float]:
    """Of scikit-learn's defaults on the 36 numbers as they are; logistic regression by a solver that converges."""
    models = {
        "logistic": LogisticRegression(solver="newton-cholesky"),
        "forest": RandomForestClassifier(random_state=0),
        "svm": SVC(),
        "neighbours": KNeighborsClassifier(),
    }
    x, y = cells(table), table["intensive"].to_numpy()
    return {name: model.fit(x[:train], y[:train]).score(x[train:], y[train:]) for name, model in models.items()}


def test_the_published_means_and_arms() -> None:
    assert len(TABLE) == 6502 and TABLE["intensive"].sum() == 3236
    for name, mean, within in (("sbp", 129.0, 0.3), ("dbp", 72.0, 0.3), ("medicines", 2.27, 0.05)):
        assert cells(TABLE, name).mean() == pytest.approx(mean, abs=within), name


def test_cells_are_whole_and_complete_and_fit_the_schema() -> None:
    assert np.array_equal(cells(TABLE), np.round(cells(TABLE)))
    encoded = encode(TABLE, sprint.SCHEMA)
    assert encoded.x.shape == (6502, 36) and not np.isnan(encoded.x).any() and np.abs(encoded.x).max() <= 1.0
    for column in sprint.SCHEMA.features:
        assert column.centre is not None and column.spread is not None
        assert abs(cells(TABLE, column.name).mean() - column.centre) < 0.2 * column.spread
        assert 0.8 < cells(TABLE, column.name).std() / column.spread < 1.25


def test_fewer_rows_tell_the_arm_nearly_as_well() -> None:
    found = accuracies(TABLE[:3500].reset_index(drop=True), 1500)
    for name, published in PUBLISHED.items():
        assert found[name] == pytest.approx(published, abs=0.035), name
    assert found["neighbours"] < min(found["logistic"], found["forest"], found["svm"]) - 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tested"), [(0, 502), (1, 6000), (2, 6000)])
def test_classifiers_reach_the_published_accuracy(seed: int, tested: int) -> None:
    """The default trial on its own 502; other seeds on 6,000, since an accuracy of 502 has a standard error of .012."""
    found = accuracies(sprint.generate_sprint(5, TRAIN + tested, seed), TRAIN)
    for name, published in PUBLISHED.items():
        assert found[name] == pytest.approx(published, abs=0.02), (name, found)


def test_arms_begin_alike_and_part() -> None:
    by_arm = TABLE.groupby("intensive").mean(numeric_only=True)
    for name, apart in (("sbp", 1.0), ("dbp", 0.7), ("medicines", 0.1)):
        assert abs(by_arm.loc[1, f"{name}_00"] - by_arm.loc[0, f"{name}_00"]) < apart
    fall = by_arm.loc[0] - by_arm.loc[1]
    assert fall["sbp_11"] == pytest.approx(15.0, abs=1.0) and fall["sbp_11"] > fall["sbp_01"] > 3.0
    assert 4.0 < fall["dbp_11"] < 8.0 and fall["medicines_11"] == pytest.approx(-0.8, abs=0.15)


def test_visits_of_a_participant_resemble_each_other() -> None:
    standard = TABLE[TABLE["intensive"] == 0]
    pressure = standard["sbp_06"]
    assert pressure.corr(standard["sbp_07"]) > pressure.corr(standard["sbp_11"]) + 0.05 > 0.15
    assert pressure.corr(standard["dbp_06"]) > 0.4
    assert standard["sbp_00"].skew() > 0.2, "entry is skewed"
    spread = TABLE.groupby("intensive")["sbp_11"].std()
    assert spread[1] < 0.85 * spread[0], "who is treated to a target stays near it"


@pytest.mark.parametrize(("sites", "patients"), [(1, 1), (3, 4), (7, 50), (40, 1000)])
def test_sizes_are_exact_and_the_same_for_the_same_arguments(sites: int, patients: int) -> None:
    table = sprint.generate_sprint(sites, patients, 2)
    assert len(table) == patients == table["patient"].nunique() and table["site"].nunique() == sites
    assert table["intensive"].sum() == round(patients * 3236 / 6502)
    pd.testing.assert_frame_equal(table, sprint.generate_sprint(sites, patients, 2))


def test_any_number_of_hospitals_in_random_order() -> None:
    assert sum(shard.patients for shard in load_shards(SPRINT, 0, "natural", 0, 1.0)) == 6502
    assert len(load_shards(SPRINT, 12, "natural", 0, 1.0)) == 12
    assert TABLE["site"][TRAIN:].nunique() == 5, "the last 502 are of all hospitals"
    table = sprint.generate_sprint(20, 20000, 0)
    assert np.ptp(table.groupby("site")["sbp_06"].mean()) > 4.0
    for sites, patients, seed in ((0, 10, 0), (11, 10, 0), (2, 10, -1)):
        with pytest.raises(ConfigError):
            sprint.generate_sprint(sites, patients, seed)
