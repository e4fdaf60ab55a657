"""How features are scaled, and what is paid for it: by the schema alone, or by sums over patients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from polyclinic import RunResult
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.datasets.breast_cancer import DATASET
from polyclinic.ehr.encoding import public_standardiser, standardised_mask
from polyclinic.ehr.schema import Column, Schema
from polyclinic.privacy.statistics import BINS, binned_patients, standardiser
from polyclinic.training.learning_rate import usual_rate
from polyclinic.training.preparation import PatientSums

Quick = Callable[..., RunResult]


def test_a_public_scale_is_of_the_schema_alone() -> None:
    columns = (
        Column(name="age", kind="integer", bounds=(0, 100)), Column(name="smokes", kind="binary"),
        Column(name="ward", kind="categorical", categories=("a", "b")), Column(name="dead", kind="binary", role="label"),
    )  # fmt: skip
    schema = Schema(name="s", unit="record", columns=columns)
    mean, std = public_standardiser(schema)
    assert mean.tolist() == [0.0] * 4 and std.tolist() == [0.5, 1.0, 1.0, 1.0]


def test_a_count_alone_is_moved_by_one_patient_by_one() -> None:
    shard = load_shards(DATASET, 4, "iid", 0, 1.0)[0]
    sums = [PatientSums(shard.schema, measured) for measured in (False, True)]
    alone, all_ = (one.exact(shard) for one in sums)
    assert alone.total.tolist() == [shard.train.patients] and alone.sensitivity == 1.0
    assert all_.sensitivity > 5 and len(all_.total) == 1 + BINS * int(standardised_mask(shard.schema).sum())
    for one, found in zip(sums, (alone, all_), strict=True):
        assert one.patients(found.total) == pytest.approx(shard.train.patients) and one.size == len(found.total)


def test_a_usual_run_pays_for_the_number_of_patients_and_nothing_where_it_is_public(quick: Quick) -> None:
    paid, public = quick(rounds=1), quick(rounds=1, privacy={"patients_per_site": 80})
    for result, purposes in ((paid, ["statistics", "train"]), (public, ["train"])):
        assert np.all(result.arrays["standardiser.std"].numpy() == 0.5)
        for site in result.summary["statement"]["sites"].values():
            assert [event["purpose"] for event in site["events"]] == purposes
    assert public.summary["privacy"]["noise_multiplier"] < paid.summary["privacy"]["noise_multiplier"]


def test_measured_scales_follow_the_patients(quick: Quick) -> None:
    exact = quick(rounds=1, data={"standardise": "measured"}, privacy={"dp": False}).arrays
    rows = np.concatenate([shard.train.x for shard in load_shards(DATASET, 4, "label-quantity", 0, 1.0)])
    none = np.zeros(30, dtype=bool)
    scale = standardiser(binned_patients(rows, np.arange(len(rows)), len(rows), none).total, none)
    np.testing.assert_allclose(exact["standardiser.mean"].numpy(), scale[0], atol=1e-6)
    np.testing.assert_allclose(exact["standardiser.std"].numpy(), scale[1], atol=1e-6)
    np.testing.assert_allclose(exact["standardiser.mean"].numpy(), rows.mean(0), atol=0.02)


def test_columns_with_a_public_centre_and_spread_are_not_measured() -> None:
    columns = (
        Column(name="age", kind="integer", bounds=(0, 100), centre=60.0, spread=10.0),
        Column(name="pulse", kind="integer", bounds=(0, 200)),
        Column(name="dead", kind="binary", role="label"),
    )
    sums = PatientSums(Schema(name="s", unit="record", columns=columns), measured=True)
    assert sums.columns.tolist() == [False, True]
    total = np.concatenate([[1000.0], np.zeros(BINS)])
    total[1 + BINS // 2 : 1 + BINS // 2 + 4] = 250.0
    mean, std = sums.standardiser([total], None)
    assert mean[0] == pytest.approx(0.2) and std[0] == pytest.approx(0.2)
    assert abs(mean[1]) < 0.1 and std[1] < 0.1


def test_the_noise_sets_the_learning_rate_of_a_run_that_names_none(quick: Quick) -> None:
    from polyclinic.config import RunConfig, train_settings

    result = quick(rounds=3, privacy={"patients_per_site": 80})
    settings = train_settings(RunConfig(training={"local_steps": 2}), result.summary["privacy"]["noise_multiplier"])
    assert result.summary["learning_rate"] == pytest.approx(usual_rate(settings, 6, 4 * 80, 4))
    assert (
        quick(rounds=3, privacy={"patients_per_site": 80, "epsilon": 1}).summary["learning_rate"]
        < result.summary["learning_rate"]
    )
    assert quick(rounds=1, training={"learning_rate": 0.25}).summary["learning_rate"] == 0.25
    assert quick(rounds=1, privacy={"dp": False}).summary["learning_rate"] == 0.2


def test_a_given_rate_that_the_noise_would_choose_gives_the_same_model(quick: Quick) -> None:
    chosen = quick(rounds=2, privacy={"patients_per_site": 80})
    given = quick(
        rounds=2, privacy={"patients_per_site": 80}, training={"learning_rate": chosen.summary["learning_rate"]}
    )
    assert given.summary["model_sha256"] == chosen.summary["model_sha256"]
