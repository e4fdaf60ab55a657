"""Hospitals by their own files in a simulation: cohort, mapping and source of each, one schema, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation
from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.records import own_records
from polyclinic.client.home.simulated import hospitals
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.datasets.tables import SITE
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import read_shard
from polyclinic.errors import ConfigError, DataError
from tests.client.test_hospital import make_hospital

Command = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for name, rows in {"north": 200, "south": 160}.items():
        (tmp_path / name).mkdir()
        path = make_hospital(tmp_path / name, rows=rows)
        site = path.read_text().splitlines()[0].split("=")[1].strip()
        path.write_text(path.read_text().replace(site, f'"{name}"', 1))
        paths[name] = path
    records = pd.read_csv(tmp_path / "south/records.csv", dtype=str).rename(columns={"sbp": "RR"})
    records["RR"] = [f"{float(cell) / 10:.2f}".replace(".", ",") for cell in records["RR"]]
    records.to_csv(tmp_path / "south/records.csv", index=False, sep=";")
    (tmp_path / "south/mapping.toml").write_text('[columns.sbp]\nfrom = "RR"\ndecimal = ","\nfactor = 10\n')
    paths["south"].write_text('mapping = "mapping.toml"\n' + paths["south"].read_text())
    return paths


def test_each_hospital_is_read_by_its_own_mapping(files: dict[str, Path], as_json: Command, tmp_path: Path) -> None:
    dataset = hospitals([str(path) for path in files.values()])
    records = dataset.load()
    assert dataset.natural_sites == ("north", "south") and dataset.patients == len(records) == 360
    own = pd.read_csv(tmp_path / "north/records.csv")
    north, south = (records[records[SITE] == name].reset_index(drop=True) for name in files)
    assert north["sbp"].tolist() == own["sbp"].tolist() and north["id"][0] == "north/0"
    np.testing.assert_allclose(south["sbp"].astype(float).mean(), north["sbp"].astype(float).mean(), rtol=0.05)
    assert "160 values of 'id' occur at several hospitals" in " ".join(dataset.notes)
    places = [word for path in files.values() for word in ("--data", str(path))]
    summary = as_json("run", *places, "--rounds", "2", "--delta", "0.005", "--out", str(tmp_path / "runs"))
    assert set(summary["metrics"]["sites"]) == {"north", "south"}


def test_a_simulation_holds_out_whom_the_hospitals_hold_out(files: dict[str, Path]) -> None:
    simulated = load_shards(hospitals([str(path) for path in files.values()]), 0, "natural", 0, 1.0)
    for shard, path in zip(simulated, files.values(), strict=True):
        described, folder = HospitalFile.read(path), path.parent
        schema = Schema.from_toml(folder / described.schema_)
        own = read_shard(own_records(described, folder, schema), schema, described.site)
        assert shard.site == own.site and 0 < own.test.patients < own.train.patients
        np.testing.assert_array_equal(shard.test.x, own.test.x)


def test_all_faults_of_all_hospitals_are_one_refusal(files: dict[str, Path], tmp_path: Path) -> None:
    for name, separator in (("north", ","), ("south", ";")):
        records = pd.read_csv(tmp_path / name / "records.csv", dtype=str, sep=separator)
        records.loc[[3, 9], "age"] = "canary"
        records.to_csv(tmp_path / name / "records.csv", index=False, sep=separator)
    with pytest.raises(DataError) as refused:
        hospitals([str(path) for path in files.values()])
    lines = str(refused.value).splitlines()
    assert len(lines) == 2 and all(
        "column 'age', data row 4 and 1 more: the cell is not a number" in line for line in lines
    )
    assert "canary" not in str(refused.value)


def test_what_does_not_go_together_is_refused(files: dict[str, Path], tmp_path: Path, command: Command) -> None:
    north, south = map(str, files.values())
    done = command("run", "--data", north, "--label", "died")
    assert done.returncode == 2 and "whose schema says what the columns are" in done.stderr
    with pytest.raises(ConfigError, match="Two files are of one hospital"):
        hospitals([north, north.replace("north/", "north/../north/")])
    text = (tmp_path / "south/schema.toml").read_text()
    (tmp_path / "south/schema.toml").write_text(text.replace('"clinic"', '"other"'))
    with pytest.raises(ConfigError, match="The schema of south is not that of north"):
        hospitals([north, south])
    with pytest.raises(ConfigError, match="There is no hospital file"):
        hospitals([north, str(tmp_path / "east.toml")])


def test_a_folder_of_tables_is_read_by_one_schema_mapping_and_cohort(
    files: dict[str, Path], as_json: Command, command: Command, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    for name in ("east", "west"):
        (tables / f"{name}.csv").write_bytes((tmp_path / "south/records.csv").read_bytes())
    (tmp_path / "cohort.toml").write_text('[[steps]]\nname = "old enough"\nkeep = "age >= 40"\n')
    given = {"schema": "south/schema.toml", "mapping": "south/mapping.toml", "cohort": "cohort.toml"}
    flags = [word for key, name in given.items() for word in (f"--{key}", str(tmp_path / name))]
    summary = as_json("run", "--data", str(tables), *flags, "--rounds", "2", "--out", str(tmp_path / "runs"))
    own = pd.read_csv(tmp_path / "south/records.csv", sep=";")
    counts = {site: row["patients"] for site, row in summary["metrics"]["sites"].items()}
    assert counts == dict.fromkeys(("east", "west"), int((own["age"] >= 40).sum()))
    dataset = hospitals(str(tables), **{key: str(tmp_path / name) for key, name in given.items()})
    assert dataset.load()["sbp"].astype(float).mean() == pytest.approx(130, abs=4) and dataset.load()["age"].min() >= 40
    for wrong, words in (
        (flags[2:], "name it by --schema"),
        (
            [*flags, "--site", "ward"],
            'the schema says what columns are: leave the option out, and write role = "site" at',
        ),
    ):
        done = command("run", "--data", str(tables), *wrong)
        assert done.returncode == 2 and words in done.stderr


def test_a_table_is_split_by_the_schemas_column_of_the_hospital(files: dict[str, Path], tmp_path: Path) -> None:
    records = pd.read_csv(tmp_path / "north/records.csv").assign(Hospital=np.repeat(["a", "b", "c", "d"], 50))
    records.to_csv(tmp_path / "all.csv", index=False)
    schema = Schema.from_toml(tmp_path / "north/schema.toml")
    column = Column(name="Hospital", kind="categorical", role="site")
    schema.model_copy(update={"columns": (*schema.columns, column)}).to_toml(tmp_path / "schema.toml")
    dataset = hospitals(str(tmp_path / "all.csv"), schema=str(tmp_path / "schema.toml"))
    assert dataset.natural_sites == ("a", "b", "c", "d") and dataset.default_sites == 4
    assert dataset.load()["id"].str[:2].value_counts().to_dict() == dict.fromkeys(("a/", "b/", "c/", "d/"), 50)
    assert "The hospital is the value of 'Hospital'" in " ".join(dataset.notes)
    assert [shard.site for shard in load_shards(dataset, 0, "natural", 0, 1.0)] == ["a", "b", "c", "d"]


def test_from_python_hospitals_are_named_by_their_files_or_by_a_schema(files: dict[str, Path], tmp_path: Path) -> None:
    own = Federation.from_hospitals(list(files.values()), out=str(tmp_path / "runs"), privacy={"delta": 0.005})
    result = own.run(rounds=1, pictures=False)
    assert list(result.sites.index) == ["north", "south"]
    assert "<h1>hospitals, trained by fedavg" in Path(result.report()).read_text()
    folder = tmp_path / "south"
    under = Federation.from_hospitals(
        [f"one={folder / 'records.csv'}"], schema=folder / "schema.toml", mapping=folder / "mapping.toml"
    )
    assert "mapping=" in str(under.config.dataset_options)
    with pytest.raises(ConfigError, match="together with the schema of the tables"):
        Federation.from_hospitals([folder / "records.csv"], mapping=folder / "mapping.toml")
    with pytest.raises(ConfigError, match="There is no hospital file"):
        Federation.from_hospitals([tmp_path / "east.toml"])
