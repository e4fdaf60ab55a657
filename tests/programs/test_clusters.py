"""k-means: without privacy Lloyd's steps of scikit-learn; with it, bounded patients, empty clusters said to be so."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.encoding import column_values
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic.privacy.sums import clipped_total, exact_total
from polyclinic.programs.analyses.clusters import Clusters, Lloyd, packed_centres
from polyclinic.programs.analyses.components import Components, spectrum
from polyclinic.types import Arrays
from tests.programs.test_components import COLUMNS, SCHEMA, records, run

OPTIONS = {"columns": ", ".join(COLUMNS), "k": 3}
CONFIG = RunConfig(rounds=6)


def blobs(patients: int, seed: int = 0) -> np.ndarray:
    """Encoded features of three well-parted groups of patients."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-0.5, -0.5, 0.4], [0.5, -0.3, -0.4], [0.2, 0.6, 0.3]])
    x = centres[rng.choice(3, patients, p=[0.5, 0.3, 0.2])] + rng.normal(0, 0.08, (patients, 3))
    return np.concatenate([np.clip(x, -1, 1), np.eye(3)[rng.integers(0, 3, patients)]], axis=1)


def fitted(method: Lloyd, z: np.ndarray, noise: float = 0.0, seed: int = 0) -> Arrays:
    """The last state of all rounds over one table; noise is the deviation in each entry of the sums' mean."""
    rng, state = np.random.default_rng(seed), dict[str, np.ndarray]()
    summed = clipped_total if noise else exact_total
    for number in range(1, method.rounds + 1):
        asked = method.question(number, state)
        size = method.size(number, asked)
        total = summed(partial(method.contributions, number, asked), size, z, np.arange(len(z)), len(z))
        state = method.absorb(number, state, total / len(z) + noise * rng.standard_normal(size), noise)
    return state


@pytest.mark.parametrize("scaling", ["public", "measured"])
def test_without_privacy_they_are_the_steps_of_scikit_learn(scaling: str) -> None:
    method = Clusters(CONFIG, 3, "age, sbp, dbp", scaling).method(SCHEMA)
    method = replace(method, start=np.array([[-1.0, -0.5, 0.5], [0.5, -1.0, -0.5], [0.3, 1.0, 0.0]]))
    z = method.layout.rows(blobs(500), np.zeros(500, dtype=np.int64))
    state = fitted(method, z)
    x = z[:, :3]
    steps = method.rounds
    if scaling == "measured":
        x, steps = (x - x.mean(axis=0)) / x.std(axis=0), steps - 1
    theirs = KMeans(3, init=method.start, n_init=1, max_iter=steps, tol=0, algorithm="lloyd").fit(x)
    np.testing.assert_allclose(state["centres"], theirs.cluster_centers_, atol=1e-9)
    assert state["share"] @ state["squared"] == pytest.approx(theirs.inertia_ / 500, rel=1e-6)


def test_a_run_ends_in_centres_in_the_columns_units(tmp_path: Path) -> None:
    result = run(tmp_path, "clusters", task_options=OPTIONS, rounds=8, privacy={"dp": False})
    x = records().to_numpy()
    clusters, centres = result.tables["clusters"], result.tables["centres"]
    assert clusters["Patients"].sum() == pytest.approx(569) and clusters["Share, %"].sum() == pytest.approx(100)
    ours = centres[[f"Cluster {k + 1}" for k in range(len(clusters))]].to_numpy().T
    scaled, spread = (ours - x.mean(axis=0)) / x.std(axis=0), (x - x.mean(axis=0)) / x.std(axis=0)
    nearest = ((spread[:, None] - scaled) ** 2).sum(axis=2).argmin(axis=1)
    means = np.stack([spread[nearest == k].mean(axis=0) for k in range(len(scaled))])
    assert np.abs(means - scaled).max() < 0.5, "about where its patients are"


@pytest.mark.parametrize("secure", [{}, {"aggregation": True, "shared_noise": True}])
def test_with_privacy_sizes_have_intervals(tmp_path: Path, secure: dict[str, Any]) -> None:
    result = run(tmp_path, "clusters", task_options=OPTIONS, rounds=4, privacy={"epsilon": 8.0}, secure=secure)
    table = result.tables["clusters"]
    assert {"From", "To"} <= set(table) and (table["From"] <= table["Patients"]).all()
    assert result.summary["privacy"]["epsilon"] <= 8


def test_well_parted_groups_are_found_under_noise() -> None:
    """At a noise of 12 patients' vectors among 2,000, as of epsilon 1 in six rounds."""
    method = Clusters(CONFIG, 3, "age, sbp, dbp").method(SCHEMA)
    z = method.layout.rows(blobs(2000), np.zeros(2000, dtype=np.int64))
    truth = np.array([[-0.5, -0.5, 0.4], [0.5, -0.3, -0.4], [0.2, 0.6, 0.3]]) / 0.5
    near = []
    for seed in range(12):
        program = Clusters(CONFIG.with_values({"seed": seed}), 3, "age, sbp, dbp")
        state = fitted(program.method(SCHEMA), z, 12 / 2000, seed)
        centres = state["middle"] + state["spread"] * state["centres"]
        near.append(np.linalg.norm(truth[:, None] - centres, axis=2).min(axis=1).max())
    assert np.median(near) < 0.25, near


def test_a_cluster_that_noise_hides_is_said_to_be_empty() -> None:
    program = Clusters(CONFIG, 3, "age, sbp, dbp", "public")
    method = replace(program.method(SCHEMA), start=np.array([[-1.0, -1.0, 0.8], [1.0, 0.2, 0.0], [2.0, -2.0, 2.0]]))
    z = method.layout.rows(blobs(500), np.zeros(500, dtype=np.int64))
    for noise in (0.0, 0.004):
        state = fitted(method, z, noise, seed=1)
        result = program.result(method, {"arrays": state, "patients": 500.0})
        assert len(result.tables[0].rows) == 2 and any("1 of 3 clusters are empty" in note for note in result.notes)
        np.testing.assert_array_equal(state["centres"][2], [2.0, -2.0, 2.0])


def test_a_patient_adds_a_vector_of_length_one_at_most_and_a_missing_number_lies_at_the_centre() -> None:
    method = Clusters(CONFIG, 3, "age, sbp, dbp", "public").method(SCHEMA)
    x = np.array([[1.0, np.nan, -1.0, 1, 0, 0]])
    z = method.layout.rows(x, np.zeros(1, dtype=np.int64))
    asked = method.question(1, {})
    size = method.size(1, asked)
    total = clipped_total(lambda *rows: method.contributions(1, asked, *rows), size, 100 * z, np.zeros(1, int), 1)
    assert 0.99 < np.linalg.norm(total) <= 1
    vector = method.contributions(1, asked, z, np.zeros(1, int), 1).reshape(3, 5)
    assert (vector[:, 2] == 0).all() and (vector != 0).any(axis=1).sum() == 1


def test_a_hospital_keeps_exact_sums_that_tell_of_two_patients() -> None:
    method = Clusters(CONFIG, 3, "age, sbp, dbp").method(SCHEMA)
    z, patient = method.layout.rows(blobs(40), np.zeros(40, dtype=np.int64)), np.arange(40)
    far = np.vstack([z[2, :3], np.full((2, 3), 50.0)])
    asked = {"centres": far, "middle": np.zeros(3), "spread": np.ones(3)}
    assert method.refusal(2, asked, z, patient, 40) == ""
    asked["centres"] = np.vstack([z[:, :3].mean(axis=0) + 9, z[:, :3].mean(axis=0), np.full((1, 3), 50.0)])
    z[:2, :3] = asked["centres"][0]
    assert "fewer than 3 patients" in method.refusal(2, asked, z, patient, 40)
    assert method.refusal(1, {}, z, patient, 40) == "" and "fewer than 3" in method.refusal(
        1, {}, z[:2], patient[:2], 2
    )
    products = Components(CONFIG, "age, sbp, dbp", "public").method(SCHEMA)
    assert products.refusal(1, products.question(1, {}), z, np.arange(40) // 20, 2) and not products.refusal(
        1, {}, z, patient, 40
    )


def test_spheres_lie_apart_and_follow_the_seed() -> None:
    centres = packed_centres(5, 3, 1)
    distances = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(5, 1)]
    assert distances.min() > 1 and np.abs(centres).max() <= 1.5
    np.testing.assert_array_equal(centres, packed_centres(5, 3, 1))
    assert not np.array_equal(centres, packed_centres(5, 3, 2))
    many = packed_centres(100, 2, 0)
    assert np.linalg.norm(many[:, None] - many, axis=2)[np.triu_indices(100, 1)].min() > 0.2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"k": 1}, "k is 1; it must lie between 2 and 100"),
        ({"scaling": "none"}, "scaling is 'none'"),
        ({"columns": "height"}, "names no feature as 'height'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Clusters(CONFIG, **options).method(SCHEMA)


def test_centres_of_another_shape_are_refused() -> None:
    method = Clusters(CONFIG, 3, "age, sbp, dbp", "public").method(SCHEMA)
    asked = method.question(1, {}) | {"centres": np.zeros((4, 3))}
    z = method.layout.rows(blobs(5), np.zeros(5, dtype=np.int64))
    with pytest.raises(ConfigError, match="'centres' must be 3 times 3 numbers"):
        method.contributions(1, asked, z, np.arange(5), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "distance", "share"), [(1.0, 1.079, 0.951), (3.0, 1.038, 0.989), (10.0, 1.032, 0.998)]
)
def test_the_page_says_what_privacy_costs_on_heart_disease(
    heart_disease: None, tmp_path: Path, epsilon: float, distance: float, share: float
) -> None:
    """Over twelve seeds, beside k-means and components of the pooled complete records without privacy (docs/describe.md)."""
    names = ["age", "trestbps", "chol", "thalach", "oldpeak"]
    shards = load_shards(dataset_named("heart-disease-920"), 0, "natural", 0, 1.0)
    rows = np.concatenate([np.stack([column_values(s.x, s.schema, name) for name in names], axis=1) for s in shards])
    rows = rows[~np.isnan(rows).any(axis=1)]
    z, exact = (rows - rows.mean(axis=0)) / rows.std(axis=0), spectrum(np.corrcoef(rows.T))[0]
    best = KMeans(3, n_init=20, random_state=0).fit(z).inertia_ / len(z)
    given = {"columns": ", ".join(names)}
    distances, shares = [], []
    for seed in range(12):
        federation = Federation.from_dataset(
            "heart-disease-920", out=str(tmp_path), seed=seed, privacy={"epsilon": epsilon}
        )
        ended = federation.run(task="clusters", rounds=5, task_options=given | {"k": 3}, pictures=False)
        centres = (ended.tables["centres"].iloc[:, 1:].to_numpy().T - rows.mean(axis=0)) / rows.std(axis=0)
        distances.append(((z[:, None] - centres) ** 2).sum(axis=2).min(axis=1).mean() / best)
        ended = federation.run(task="components", task_options=given, pictures=False)
        if not ended.summary["analysis"]["refused"]:
            first = ended.tables["loadings"][["PC1", "PC2"]].to_numpy()
            shares.append(np.trace(first.T @ np.corrcoef(rows.T) @ first) / exact[:2].sum())
    print(
        epsilon, np.mean(distances), np.std(distances) / 12**0.5, np.mean(shares), np.std(shares) / 12**0.5, len(shares)
    )
    assert np.mean(distances) == pytest.approx(distance, abs=0.02) and np.mean(shares) == pytest.approx(share, abs=0.02)
