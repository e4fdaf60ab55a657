"""Quality as a whole: against scipy and scikit-learn, on tables that define little, and as the report shows it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import precision_score, recall_score

from polyclinic.ehr.datasets.icu import SCHEMA as ICU
from polyclinic.ehr.datasets.icu import generate_icu
from polyclinic.ehr.datasets.trial import SCHEMA, generate_trial
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.evaluation.figures.synthetic import quality_figures, transfer_figures
from polyclinic.evaluation.report.quality import quality, quality_rows
from polyclinic.evaluation.synthetic.classifiers import (
    cutoff_on,
    fowlkes_mallows_cutoff,
    fowlkes_mallows_index,
    two_sample,
)
from polyclinic.evaluation.synthetic.quality import Sample, judge, one_row_each

GENERATE = {"trial": (SCHEMA, generate_trial), "icu": (ICU, generate_icu)}


def parts(name: str, *patients: int) -> list[Sample]:
    """Tables of so many patients each, of one simulation, whose patients come in no order."""
    schema, generate = GENERATE[name]
    table = generate(2, sum(patients), 1).sample(frac=1, random_state=0, ignore_index=True)
    ends = np.cumsum(patients)
    found = []
    for begin, end in zip(ends - patients, ends, strict=True):
        encoded = encode(table.iloc[begin:end], schema)
        assert encoded.y is not None
        found.append(Sample.of(encoded.x, encoded.y, schema))
    return found


def shuffled(table: Sample) -> Sample:
    """Every column in an order of its own: the marginals of a table, and nothing else."""
    rng = np.random.default_rng(0)
    return Sample.of(np.stack([rng.permutation(column) for column in table.x.T], axis=1), table.y, table.schema)


@pytest.fixture(scope="module")
def trial() -> list[Sample]:
    return parts("trial", 160, 240)


@pytest.fixture(scope="module")
def found(trial: list[Sample]) -> dict[str, Any]:
    return judge(*trial, shuffled(trial[1]))


def test_columns_are_scipys_and_a_shuffled_table_keeps_them_and_loses_the_pairs(
    trial: list[Sample], found: dict[str, Any]
) -> None:
    held_out, training = trial
    synthetic, real = found["tables"]["synthetic"], found["tables"]["training"]
    cells = [table.records["sbp_03"].dropna().to_numpy() for table in (held_out, training)]
    told = real["columns"]["sbp_03"]
    assert told["ks"] == pytest.approx(1 - stats.ks_2samp(*cells).statistic)
    assert told["wasserstein"] == pytest.approx(stats.wasserstein_distance(*cells))
    assert told["wasserstein_sd"] == pytest.approx(told["wasserstein"] / cells[0].std())
    assert synthetic["means"]["ks"] == pytest.approx(real["means"]["ks"])
    assert real["pairs"] - synthetic["pairs"] > 0.02
    assert real["correlations"]["spearman"] > 0.8 and abs(synthetic["correlations"]["spearman"]) < 0.2


def test_spearman_between_matrices_is_scipys_of_their_lower_triangles() -> None:
    a, b = parts("icu", 200, 200)
    told = judge(a, b, b)["tables"]["synthetic"]["correlations"]
    frames = [pd.DataFrame(table.numbers(np.arange(table.x.shape[1]))) for table in (a, b)]
    kept = [i for i in frames[0] if all(frame[i].nunique() > 1 for frame in frames)]
    lower = np.tril_indices(len(kept), -1)
    first, second = (frame[kept].corr().to_numpy()[lower] for frame in frames)
    assert told["columns"] == len(kept)
    assert told["spearman"] == pytest.approx(stats.spearmanr(first, second).statistic)
    assert told["largest"] == pytest.approx(abs(first - second).max())


def test_courses_are_quartiles_by_arm(trial: list[Sample], found: dict[str, Any]) -> None:
    courses, held_out = found["pictures"]["trajectories"], trial[0].records
    assert courses["by"] == "intensive" and [one["name"] for one in courses["measures"]] == ["sbp", "dbp", "medicines"]
    told = courses["measures"][0]["tables"]["held-out"]["1"]
    values = held_out.loc[held_out["intensive"] == 1, "sbp_07"].dropna()
    assert [row[7] for row in told] == pytest.approx(list(np.quantile(values, (0.25, 0.5, 0.75))))


def test_visits_are_judged_where_there_are_trajectories(found: dict[str, Any]) -> None:
    synthetic, training = (found["visits"]["tables"][name] for name in ("synthetic", "training"))
    assert training["mean"] < 0.2 and training["autocorrelation"] < 0.1 and training["interval"] is None
    # Columns that are shuffled one by one teach nothing of the next visit.
    assert training["next_visit"] > 0.3 > synthetic["next_visit"]
    assert synthetic["autocorrelation"] > 3 * training["autocorrelation"]
    rows = {row["name"]: row for row in quality_rows(found)}
    assert rows["The next visit, predicted by what they teach (R²)"]["training"][0] == f"{training['next_visit']:.3f}"
    assert not [name for name in rows if name.startswith("Times between visits")]


def test_rules_are_counted_in_each_table(found: dict[str, Any]) -> None:
    (rule,) = found["rules"]
    assert rule["rule"] == "dbp < sbp" and rule["held_out"]["broken"] == rule["training"]["broken"] == 0
    assert rule["synthetic"]["asked"] > 2000 and rule["synthetic"]["broken"] >= 0


def test_classifiers_find_a_shuffled_table_out_and_learn_little_from_it() -> None:
    held_out, training = parts("icu", 120, 120)
    found = judge(held_out, training, shuffled(training), full=True)
    told = found["two_sample"]
    assert told["synthetic"]["gradient boosting"]["value"] > 0.9
    assert told["training"]["gradient boosting"]["low"] < 0.5
    taught = found["transfer"]
    assert taught["real"]["logistic regression"]["scores"]["auroc"]["value"] > 0.6
    assert taught["synthetic"]["5 nearest neighbours"]["importance"] is None
    assert set(found["prediction"]) == {"comorbidities"} == set(found["tables"]["synthetic"]["codes"])
    json.dumps(found, allow_nan=False)
    found |= {"undefined": None, "hospital": None}
    assert {*quality_figures(found), *transfer_figures(found)} >= {
        "codes-1",
        "trajectory-4",
        "correlations",
        "transfer",
    }
    rows = quality_rows(found)
    assert len(rows) == 26 and quality(found) is not None
    taught_first = taught["synthetic"]["logistic regression"]["scores"]["auroc"]["value"]
    assert rows[0]["name"] == "What they teach logistic regression, on held-out patients (AUROC)"
    assert rows[0]["synthetic"][0] == f"{taught_first:.3f}"
    assert float(rows[0]["training"][0]) > 0.6 and rows[4]["name"].startswith("Numbers alike")


def test_what_so_few_define_is_a_number_and_the_rest_is_none() -> None:
    few = [Sample.of(table.x, np.zeros(len(table.y), dtype=np.int64), SCHEMA) for table in parts("trial", 1, 6, 4)]
    found = judge(*few, full=True) | {"undefined": None, "hospital": None}
    json.dumps(found, allow_nan=False)
    assert found["two_sample"]["synthetic"]["logistic regression"]["value"] is None
    assert found["transfer"]["synthetic"]["random forest"]["scores"]["auroc"]["value"] is None, "one class"
    assert found["cutoff"]["synthetic"] == dict.fromkeys(("cutoff", "index", "sensitivity", "specificity"))
    assert found["tables"]["synthetic"]["correlations"]["spearman"] is None
    assert found["tables"]["synthetic"]["means"]["wasserstein_sd"] is None, "one patient does not vary"
    assert ("undefined", "") in [row["synthetic"] for row in quality_rows(found)]
    assert isinstance(quality_figures(found), dict)


def test_a_patient_counts_once_however_many_rows_are_theirs() -> None:
    patient = np.repeat(np.arange(50), np.arange(1, 51))
    rows = one_row_each(patient, 50, seed=0)
    assert np.array_equal(np.sort(patient[rows]), np.arange(50))
    assert len(one_row_each(patient, 50, seed=0, most=20)) == 20 == len(set(patient[one_row_each(patient, 50, 0, 20)]))
    firsts = [one_row_each(np.zeros(4, dtype=np.int64), 1, seed)[0] for seed in range(40)]
    assert set(firsts) == {0, 1, 2, 3}, "any row of a patient may stand for them"


def test_of_many_features_those_are_compared_that_vary_most() -> None:
    rng = np.random.default_rng(0)
    codes = tuple(f"c{i}" for i in range(300))
    schema = Schema.from_dict({
        "name": "s", "unit": "record",
        "columns": [{"name": "dx", "kind": "code_set", "categories": codes}, {"name": "y", "kind": "binary", "role": "label"}],
    })  # fmt: skip
    share = np.linspace(0, 0.5, 300)
    table = Sample.of((rng.random((2000, 300)) < share).astype(float), rng.integers(0, 2, 2000), schema)
    assert len(table.telling) == 200 and set(range(150, 300)) <= {*table.telling}


def test_the_index_is_the_root_of_precision_times_recall() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 3))
    y = (x[:, 0] + rng.normal(size=400) > 0.8).astype(np.int64)
    told = cutoff_on((x[:200], y[:200]), (x[200:], y[200:]))
    assert told["cutoff"] is not None and 0 < told["cutoff"] < 0.5, "the index prefers recall of the rarer class"
    called = rng.random(200) < 0.5
    index = fowlkes_mallows_index(y[200:], called)
    assert index == pytest.approx(np.sqrt(precision_score(y[200:], called) * recall_score(y[200:], called)))
    assert fowlkes_mallows_index([0, 0], [1, 0]) is None and fowlkes_mallows_index([1, 0], [0, 0]) is None
    assert fowlkes_mallows_cutoff([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9]) == pytest.approx(0.5)


def test_a_column_that_nobody_has_does_not_stop_the_two_sample_test() -> None:
    rng = np.random.default_rng(0)
    tables = [np.column_stack([rng.normal(shift, 1, 40), np.full(40, np.nan)]) for shift in (0, 3)]
    assert all((one.value or 0) > 0.9 for one in two_sample(*tables, resamples=20).values())
