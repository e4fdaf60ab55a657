"""Built-in datasets: published sizes, FLamby's exact split, public bounds that hold, and refusals of load_shards."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic.ehr import Shard, feature_names
from polyclinic.ehr.datasets import Dataset, builtin, heart_disease, load_shards
from polyclinic.ehr.datasets.trial import generate_trial
from polyclinic.errors import ConfigError, DataError

CANCER, HEART, HEART_920, TRIAL = (
    builtin()[n] for n in ("breast-cancer", "heart-disease", "heart-disease-920", "trial")
)


def _same(first: list[Shard], second: list[Shard]) -> bool:
    return [s.site for s in first] == [s.site for s in second] and all(
        np.array_equal(a.x, b.x, equal_nan=True) and np.array_equal(a.is_test, b.is_test)
        for a, b in zip(first, second, strict=True)
    )


def _pooled_auroc(shards: list[Shard]) -> float:
    sides = [[s.train for s in shards], [s.test for s in shards]]
    (x, y), (x_test, y_test) = (
        (np.nan_to_num(np.concatenate([r.x for r in rows])), np.concatenate([r.y for r in rows])) for rows in sides
    )
    return float(roc_auc_score(y_test, LogisticRegression(max_iter=2000, C=10).fit(x, y).predict_proba(x_test)[:, 1]))


def test_the_names_and_facts() -> None:
    assert {name: (d.patients, d.rows) for name, d in builtin().items()} == {
        "breast-cancer": (569, 569),
        "heart-disease": (740, 740),
        "heart-disease-920": (920, 920),
        "ist": (19285, 19285),
        "ist-death-14": (19435, 19435),
        "ist-survival": (19433, 19433),
        "eicu-demo": (1820, 2492),
        "diabetes-130": (69990, 99343),
        "diabetes-130-first": (69973, 69973),
        "diabetes-130-all": (71518, 101766),
        "mimic-demo": (100, 100),
        "mimic-demo-vitals": (98, 125),
        "trial": (1600, 1600),
        "icu": (2000, 2000),
    }
    assert [d.name for d in builtin().values() if d.simulated] == ["trial", "icu"]
    for dataset in builtin().values():
        assert dataset.default_partitioner != "natural" or dataset.natural_sites
        assert dataset.licence and dataset.citation and dataset.title and dataset.description


@pytest.mark.parametrize("dataset", [CANCER, TRIAL, builtin()["icu"]], ids=lambda d: d.name)
def test_offline_datasets_load(dataset: Dataset) -> None:
    records = dataset.load()
    assert dataset.available() and dataset.fetch is None
    assert len(records) == dataset.rows
    assert dataset.schema.patient_id is not None
    assert records[dataset.schema.patient_id.name].nunique() == dataset.patients
    records["patient"] = None
    assert dataset.load()["patient"].notna().all(), "callers must not change the cached table"


def test_breast_cancer_demo_split_is_visibly_unequal_and_usable() -> None:
    shards = load_shards(CANCER, CANCER.default_sites, CANCER.default_partitioner, 0, 1.0)
    counts = np.array([np.bincount(shard.y, minlength=2) for shard in shards])
    sizes, prevalence = counts.sum(axis=1), counts[:, 1] / counts.sum(axis=1)
    assert sizes.sum() == 569 and counts[:, 1].sum() == 212
    assert sizes.min() >= 40 and counts.min() >= 8
    assert sizes.max() > 1.5 * sizes.min() and np.ptp(prevalence) > 0.25
    assert len(feature_names(CANCER.schema)) == 30
    assert _pooled_auroc(shards) > 0.95


@pytest.mark.parametrize("seed", range(10))
def test_breast_cancer_demo_split_is_usable_for_any_seed(seed: int) -> None:
    for shard in load_shards(CANCER, 4, "label-quantity", seed, 1.0):
        assert shard.patients >= 40 and np.bincount(shard.y).min() >= 8


def test_breast_cancer_bounds_are_not_absurdly_wide() -> None:
    (shard,) = load_shards(CANCER, 1, "iid", 0, 1.0)
    assert (np.ptp(shard.x, axis=0) > 2 * 0.25).all(), "each feature fills at least a quarter of its public range"


def test_heart_disease_is_flambys_recipe(heart_files: Path) -> None:
    shards = load_shards(HEART, 0, "natural", 0, 1.0)
    sizes = {s.site: (s.train.patients, s.test.patients) for s in shards}
    assert sizes == {"cleveland": (199, 104), "hungary": (172, 89), "long-beach": (85, 45), "switzerland": (30, 16)}
    assert list(sizes) == sorted(sizes)
    assert len(feature_names(HEART.schema)) == 13
    assert all(s.x.shape[1] == 13 and not np.isnan(s.x).any() for s in shards)
    assert sum(len(s.y) for s in shards) == HEART.rows == len(HEART.load())
    assert [int(s.test.y.sum()) for s in shards] == [48, 33, 35, 15]
    # The one Swiss patient without disease falls into test: one class in train is accepted here.
    assert np.unique(shards[3].train.y).tolist() == [1]
    assert _same(shards, load_shards(HEART, 4, "natural", 5, 0.1)), "natural sites depend on no seed"
    assert _pooled_auroc(shards) > 0.86
    assert (HEART.load()["chol"] == 0).sum() > 46


def test_heart_disease_subsets_follow_flambys_order(heart_files: Path) -> None:
    assert [s.site for s in load_shards(HEART, 3, "natural", 0, 1.0)] == ["cleveland", "hungary", "switzerland"]


def test_heart_disease_920_keeps_every_row_with_missing_cells(heart_files: Path) -> None:
    shards = load_shards(HEART_920, 0, "natural", 0, 1.0)
    assert [(s.site, s.patients) for s in shards] == [
        ("cleveland", 303), ("hungary", 294), ("long-beach", 200), ("switzerland", 123),
    ]  # fmt: skip
    records = HEART_920.load()
    assert not (records["chol"] == 0).any() and records["chol"].isna().sum() == 30 + 172
    assert records["thal"].isna().sum() == 486 and records["ca"].isna().sum() == 611
    assert {"slope", "ca", "thal=normal"} <= set(feature_names(HEART_920.schema))
    held_out = sum(s.test.patients for s in shards)
    assert 0.2 < held_out / 920 < 0.3


def test_heart_disease_can_be_dealt_anew(heart_files: Path) -> None:
    shards = load_shards(HEART, 12, "dirichlet", 0, 0.5)
    assert [s.site for s in shards] == [f"hospital-{i:02d}" for i in range(1, 13)]
    assert sum(s.patients for s in shards) == 740
    assert len(load_shards(HEART, 0, "column:sex", 0, 1.0)) == 2


def test_damaged_heart_file_is_refused(heart_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "heart_uci"
    copy.mkdir()
    for file in heart_disease.FILES.published:
        (copy / file).write_bytes((heart_files / file).read_bytes() + (b"\n" if "va" in file else b""))
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"processed.va.data is not the published file"):
        HEART.load()


def test_absent_heart_files_that_cannot_be_downloaded_are_explained(
    served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart_disease, "FILES", replace(heart_disease.FILES, url=served[0]))
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if heart_disease.FILES.place() is not None:
        pytest.skip("the files lie in this machine's download cache, which XDG_CACHE_HOME does not move")
    assert not HEART.available()
    with pytest.raises(DataError, match="POLYCLINIC_DATA") as caught:
        load_shards(HEART, 0, "natural", 0, 1.0)
    assert "fetch" in str(caught.value)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A local web server over a folder: its address and the folder."""
    folder = tmp_path / "www"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()


def test_loading_downloads_what_is_absent(
    heart_files: Path, served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = served
    for file in heart_disease.FILES.published:
        (folder / file).write_bytes((heart_files / file).read_bytes())
    monkeypatch.setattr(heart_disease, "FILES", replace(heart_disease.FILES, url=url))
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if heart_disease.FILES.place() is not None:
        pytest.skip("the files lie in this machine's download cache, which XDG_CACHE_HOME does not move")
    assert len(HEART.load()) == 740 and heart_disease.FILES.place() is not None


def test_fetch_downloads_and_checks_the_files(heart_files: Path, served: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = served
    for file in heart_disease.FILES.published:
        (folder / file).write_bytes((heart_files / file).read_bytes())
    target = heart_disease.FILES.fetch(url, tmp_path / "heart_uci")
    assert sorted(file.name for file in target.iterdir()) == sorted(heart_disease.FILES.published)


def test_fetch_refuses_wrong_files_and_explains_failures(served: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = served
    with pytest.raises(DataError, match="could not be downloaded"):
        heart_disease.FILES.fetch(url, tmp_path / "none")
    (folder / "processed.cleveland.data").write_bytes(b"tampered")
    with pytest.raises(DataError, match="could not be downloaded"):
        heart_disease.FILES.fetch(url, tmp_path / "bad")


def test_trial_has_any_number_of_hospitals() -> None:
    shards = load_shards(TRIAL, 0, "natural", 0, 1.0)
    assert [s.site for s in shards] == list(TRIAL.natural_sites)
    assert sum(s.patients for s in shards) == 1600
    many = load_shards(TRIAL, 30, "natural", 0, 1.0)
    assert len(many) == 30 and sum(s.patients for s in many) == 6000
    assert min(s.patients for s in many) >= 100
    assert len(load_shards(TRIAL, 5, "iid", 0, 1.0)) == 5


def test_trial_is_learnable_but_not_trivial() -> None:
    shards = load_shards(TRIAL, 0, "natural", 0, 1.0)
    assert 0.8 < _pooled_auroc(shards) < 0.97
    prevalence = [float(s.y.mean()) for s in shards]
    assert min(prevalence) > 0.15 and max(prevalence) < 0.85 and np.ptp(prevalence) > 0.1
    missing = [float(np.isnan(s.x).mean()) for s in shards]
    assert min(missing) > 0.0 and np.ptp(missing) > 0.02


@pytest.mark.parametrize(("sites", "patients"), [(1, 1), (3, 3), (3, 4), (7, 50), (40, 1000)])
def test_trial_sizes_are_exact_and_no_hospital_is_empty(sites: int, patients: int) -> None:
    table = generate_trial(sites, patients, 2)
    assert len(table) == patients == table["patient"].nunique()
    assert table["site"].nunique() == sites
    assert table["sbp_00"].notna().all()
    pd.testing.assert_frame_equal(table, generate_trial(sites, patients, 2))


def test_trial_depends_on_its_seed_and_refuses_bad_numbers() -> None:
    assert not generate_trial(2, 50, 0).equals(generate_trial(2, 50, 1))
    for sites, patients, seed in ((0, 10, 0), (11, 10, 0), (2, 10, -1)):
        with pytest.raises(ConfigError):
            generate_trial(sites, patients, seed)


def test_intensive_arm_lowers_pressure() -> None:
    table = generate_trial(8, 8000, 0)
    by_arm = table.groupby("intensive")
    assert by_arm["sbp_11"].mean()[1] < by_arm["sbp_11"].mean()[0] - 5
    assert abs(by_arm["sbp_00"].mean()[1] - by_arm["sbp_00"].mean()[0]) < 1.5


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "quantity", "label-quantity", "feature-shift"])
def test_tiny_sites_still_have_both_sides_and_classes(partitioner: str) -> None:
    shards = load_shards(CANCER, 60, partitioner, 1, 0.2)
    assert sum(s.patients for s in shards) == 569
    for shard in shards:
        assert shard.test.patients >= 1 and np.unique(shard.train.y).tolist() == [0, 1]


@pytest.mark.parametrize("partitioner", ["iid", "label-quantity"])
def test_zero_sites_means_the_datasets_own_number(partitioner: str) -> None:
    assert _same(load_shards(CANCER, 0, partitioner, 0, 1.0), load_shards(CANCER, 4, partitioner, 0, 1.0))


def test_shards_are_deterministic() -> None:
    assert _same(load_shards(CANCER, 5, "dirichlet", 7, 0.5), load_shards(CANCER, 5, "dirichlet", 7, 0.5))
    assert not _same(load_shards(CANCER, 5, "dirichlet", 7, 0.5), load_shards(CANCER, 5, "dirichlet", 8, 0.5))


@pytest.mark.parametrize(
    ("dataset", "sites", "partitioner", "alpha", "sentence"),
    [
        (CANCER, 4, "quantty", 1.0, "Did you mean 'quantity'"),
        (CANCER, 4, "label_quantity", 1.0, "Did you mean 'label-quantity'"),
        (CANCER, -2, "label-quantity", 1.0, "sites is -2"),
        (HEART, -1, "natural", 1.0, "sites is -1"),
        (HEART, 5, "natural", 1.0, "has 4 hospitals"),
        (CANCER, 4, "natural", 1.0, "no natural sites"),
        (CANCER, 570, "iid", 1.0, "569 patients"),
        (TRIAL, 1601, "iid", 1.0, "1600 patients"),
        (CANCER, 4, "dirichlet", -1.0, "alpha"),
    ],
    ids=lambda value: value.name if isinstance(value, Dataset) else None,
)
def test_impossible_shards_are_refused(
    dataset: Dataset, sites: int, partitioner: str, alpha: float, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_shards(dataset, sites, partitioner, 0, alpha)
