"""Diabetes 130: published totals, Strack's exclusions and groups, the archive, and what the disposition would tell."""

from __future__ import annotations

import functools
import gzip
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from polyclinic.ehr.datasets import builtin, diabetes, load_shards
from polyclinic.errors import DataError

DIABETES, FIRST, ALL = (builtin()[name] for name in ("diabetes-130", "diabetes-130-first", "diabetes-130-all"))


@pytest.fixture(scope="module", autouse=True)
def _the_table_is_let_go() -> Iterator[None]:
    """The parsed table takes 200 MB, which later tests of the same process need not carry."""
    yield
    diabetes._parse.cache_clear()


def test_the_tables_have_the_published_totals(diabetes_files: Path) -> None:
    every, alive, first = ALL.load(), DIABETES.load(), FIRST.load()
    assert len(every) == 101766 and every["patient"].nunique() == 71518 and every["readmitted"].sum() == 11357
    assert len(alive) == 99343 and alive["patient"].nunique() == 69990
    assert len(first) == first["patient"].nunique() == 69973
    for dataset, table in ((ALL, every), (DIABETES, alive), (FIRST, first)):
        assert (dataset.rows, dataset.patients) == (len(table), table["patient"].nunique())
    first["patient"] = None
    assert FIRST.load()["patient"].notna().all(), "callers must not change the cached table"


def test_deaths_and_hospices_are_left_out_where_the_discharge_is_a_feature(diabetes_files: Path) -> None:
    raw = pd.read_csv(diabetes_files / "diabetic_data.csv.gz", dtype=str, keep_default_na=False)
    gone = raw["discharge_disposition_id"].isin(diabetes.DEAD_OR_HOSPICE)
    expired = raw["discharge_disposition_id"].isin(["11", "19", "20", "21"])
    assert (raw.loc[expired, "readmitted"] == "NO").all(), "the disposition tells the outcome of the dead"
    assert len(raw) - gone.sum() == DIABETES.rows
    assert {c.name for c in ALL.schema.features} == {c.name for c in DIABETES.schema.features} - {"discharge"}
    assert {c.name for c in FIRST.schema.features} == {c.name for c in DIABETES.schema.features}


@pytest.mark.parametrize(
    ("code", "group"),
    [("390", "circulatory"), ("459", "circulatory"), ("785", "circulatory"), ("460", "respiratory"), ("786", "respiratory"),
     ("574", "digestive"), ("250.83", "diabetes"), ("250", "diabetes"), ("251", "other"), ("820", "injury"),
     ("V57", "other"), ("E909", "other"), ("715", "musculoskeletal"), ("788", "genitourinary"), ("239", "neoplasms"),
     ("780", "other"), ("?", "missing")],
)  # fmt: skip
def test_diagnoses_are_grouped_as_strack_did(code: str, group: str) -> None:
    assert diabetes.diagnosis_group(pd.Series([code])).tolist() == [group]


def test_a_test_that_was_not_taken_is_a_category_and_nothing_is_missing(diabetes_files: Path) -> None:
    records = DIABETES.load()
    assert not records.isna().any().any()
    assert records["max_glu_serum"].eq("None").mean() > 0.9
    assert records["payer"].eq("missing").mean() > 0.3 and records["specialty"].eq("missing").mean() > 0.4


def test_columns_stand_in_for_hospitals(diabetes_files: Path) -> None:
    assert len(load_shards(FIRST, 0, "column:payer", 0, 1.0)) == 18
    pooled = load_shards(FIRST, 0, "column:payer+pool:500", 0, 1.0)
    assert "other" in {s.site for s in pooled} and len(pooled) < 18 and all(s.patients >= 500 for s in pooled)


def test_the_archive_is_unpacked_and_checked(diabetes_files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "www"
    folder.mkdir()
    content = gzip.decompress((diabetes_files / "diabetic_data.csv.gz").read_bytes())
    for name, table in (("good.zip", content), ("bad.zip", content + b"\n")):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("dataset_diabetes/diabetic_data.csv", table)
    (folder / "page.zip").write_text("<html>moved</html>", encoding="utf-8")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        place = diabetes.FILES.fetch(url + "good.zip", tmp_path / "good")
        assert (place / "diabetic_data.csv").read_bytes() == content
        assert diabetes.FILES.fetch("http://127.0.0.1:9/", place) == place, "what is there is not fetched again"
        for name in ("bad", "page", "none"):
            with pytest.raises(DataError, match="diabetes-130: its files could not be downloaded"):
                diabetes.FILES.fetch(f"{url}{name}.zip", tmp_path / name)
            assert not (tmp_path / name / "diabetic_data.csv").exists()
        server.shutdown()
