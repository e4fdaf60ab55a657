"""``polyclinic schema``: a draft that nothing accepts before a person confirms it, and checks that never show a cell."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.records import own_records
from polyclinic.ehr.datasets.tables import tables
from polyclinic.ehr.encoding import encode, feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.hospital_draft import draft_schema
from polyclinic.errors import DataError
from tests.client.test_hospital import ledger, make_hospital, train

Command = Callable[..., Any]
CANARY = "canary-4711"


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), 200
    found = pd.DataFrame(
        {
            "patient_id": [f"p{row}" for row in range(rows)],
            "age": rng.integers(18, 97, rows),
            "crp": rng.random(rows).round(3) * 40 + 0.5,
            "sex": rng.choice(["m", "f"], rows),
            "smoker": rng.choice([0, 1], rows),
            "note": [f"text {row}" for row in range(rows)],
            "died": rng.choice([0, 1], rows),
        }
    )
    found.loc[::7, "crp"] = None
    found.loc[0, "sex"] = CANARY
    found.to_csv(tmp_path / "records.csv", index=False)
    return found


def test_a_draft_is_written_and_refused_until_it_is_confirmed(
    table: pd.DataFrame, tmp_path: Path, command: Command, as_json: Command
) -> None:
    out = tmp_path / "schema.toml"
    draft = as_json("schema", "draft", str(tmp_path / "records.csv"), "--look", "--out", str(out))
    kinds = {column["name"]: (column["kind"], column["role"], column["draft"]) for column in draft["columns"]}
    assert kinds == {
        "patient_id": ("categorical", "patient_id", None), "age": ("integer", None, "bounds"),
        "crp": ("continuous", None, "bounds"), "sex": ("categorical", None, "categories"), "smoker": ("binary", None, None),
        "note": ("categorical", "ignore", None), "died": ("binary", "label", None),
    }  # fmt: skip
    assert draft["private"] is False and draft["rows"] == 200 and draft["mapping"] is None
    text = out.read_text()
    assert "public" in text and CANARY not in text, "a category of one patient is left out"
    refused = command("schema", "check", str(out))
    assert (
        refused.returncode == 2 and "3 columns are drafts; give public bounds of 'age', 'crp', and " in refused.stderr
    )
    assert "categories of 'sex', and delete each line 'draft'." in refused.stderr
    with pytest.raises(DataError, match="are drafts"):
        Schema.from_toml(out)
    out.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("draft", "other"))))
    confirmed = as_json("schema", "check", str(out))
    assert confirmed["columns"] == 7 and confirmed["records"] is None
    assert confirmed["digest"] == Schema.from_toml(out).digest()
    bad = command("schema", "check", str(out), str(tmp_path / "records.csv"))
    assert bad.returncode == 2 and "column 'sex', data row 1: the category is unknown" in bad.stderr
    assert CANARY not in bad.stderr and bad.stdout == ""


def test_without_look_a_draft_has_nothing_of_the_values(table: pd.DataFrame, tmp_path: Path) -> None:
    columns = {column["name"]: column for column in draft_schema(tmp_path / "records.csv").values["columns"]}
    assert columns["age"] == {"name": "age", "kind": "integer", "draft": "bounds", "bounds": [0, 120], "clip": True}
    assert columns["crp"]["bounds"] == [] and "centre" not in columns["crp"] and columns["crp"]["nullable"]
    assert columns["sex"]["categories"] == [] and columns["sex"]["draft"] == "categories"


def test_a_draft_and_its_mapping_read_what_a_simulation_reads(tmp_path: Path, as_json: Command) -> None:
    rng, rows = np.random.default_rng(1), 120
    crp = rng.lognormal(1, 1, rows).round(1)
    pd.DataFrame({
        "MRN": [f"p{row}" for row in range(rows)],
        "crp": [f"<{1.0}" if value < 1 else f"{value} mg/L".replace(".", ",") for value in crp],
        "weight": [f"{value} lb" if value % 3 else f"{value} kg" for value in rng.integers(50, 90, rows)],
        "sbp": np.where(rng.random(rows) < 0.1, -9, rng.integers(90, 180, rows)),
        "icd": ["I10|E11" if row % 3 else "J44" for row in range(rows)], "sex": rng.choice(["m", "M", "f"], rows),
        "died": rng.choice([0, 1], rows),
    }).to_csv(tmp_path / "records.csv", index=False)  # fmt: skip
    simulated = tables(files=str(tmp_path / "records.csv"))
    draft = draft_schema(tmp_path / "records.csv", look=True)
    paths = draft.write(tmp_path / "schema.toml", tmp_path / "mapping.toml")
    assert paths == [tmp_path / "schema.toml", tmp_path / "mapping.toml"]
    text = paths[0].read_text()
    paths[0].write_text("\n".join(line for line in text.splitlines() if not line.startswith("draft")))
    (tmp_path / "hospital.toml").write_text(
        'site = "a"\ndata = "records.csv"\nschema = "schema.toml"\nmapping = "mapping.toml"\nhome = "home"\n'
        "[policy]\nbudget = 1.0\ndelta = 1e-3\n"
    )
    schema = Schema.from_toml(paths[0])
    read = encode(next(own_records(HospitalFile.read(tmp_path / "hospital.toml"), tmp_path, schema)).records, schema)
    expected = encode(simulated.load(), simulated.schema)
    assert feature_names(schema) == feature_names(simulated.schema) and "crp beyond limit" in feature_names(schema)
    np.testing.assert_allclose(read.x, expected.x, atol=1e-6)
    with pytest.raises(DataError, match="the file exists"):
        draft.write(tmp_path / "other.toml", paths[1])
    assert not (tmp_path / "other.toml").exists()


def test_without_label_or_patient_it_says_what_is_missing(tmp_path: Path, command: Command) -> None:
    texts = [f"seen by {row}" for row in range(50)]
    numbers, weights = [row * 7 % 50 for row in range(50)], [f"{row},5" for row in range(50)]
    pd.DataFrame({"a": numbers, "b": ["x", "y"] * 25, "c": texts, "w": weights}).to_csv(tmp_path / "a.csv", index=False)
    said = command("schema", "draft", str(tmp_path / "a.csv"), "--out", str(tmp_path / "s.toml")).stdout
    assert "decimal" in (tmp_path / "mapping.toml").read_text(), "the mapping is beside the draft"
    assert "not private" in said and "No column has role 'label'" in said and "--patient" in said
    again = command("schema", "draft", str(tmp_path / "a.csv"), "--out", str(tmp_path / "s.toml"), "--json")
    assert again.returncode == 2 and again.stdout == "" and "exists" in again.stderr
    for wrong in (["--label", "bb"], ["--label", "c"]):
        done = command("schema", "draft", str(tmp_path / "a.csv"), "--out", str(tmp_path / "t.toml"), *wrong)
        assert done.returncode == 2 and ("names 'bb'" in done.stderr or "cannot be the label" in done.stderr)
    assert not (tmp_path / "t.toml").exists()


def test_checking_records_counts_them_for_the_hospital(tmp_path: Path, command: Command, as_json: Command) -> None:
    hospital = make_hospital(tmp_path)
    records = pd.read_csv(tmp_path / "records.csv")
    records.loc[:9, "sbp"] = None
    records = pd.concat([records, records.iloc[:50]])
    records.to_csv(tmp_path / "records.csv", index=False)
    for named in (str(tmp_path / "records.csv"), str(hospital)):
        counts = as_json("schema", "check", str(tmp_path / "schema.toml"), named)["records"]
        assert counts == {"rows": 250, "patients": 200, "missing": {"id": 0, "age": 0, "sbp": 20, "died": 0}}
    said = command("schema", "check", str(tmp_path / "schema.toml"), str(hospital)).stdout
    assert "250 rows of 200 patients" in said and "not private" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "none.toml"], "There is no schema file"),
        (["check", "broken.toml"], "is not valid TOML"),
        (["check", "schema.toml", "none.csv"], "no records found"),
        (["draft", "none.csv"], "no records found"),
        (["draft", "empty.csv"], "the file is empty"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, command: Command, arguments: list[str], sentence: str) -> None:
    make_hospital(tmp_path)
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "empty.csv").write_text("")
    done = command("schema", arguments[0], *(str(tmp_path / name) for name in arguments[1:]))
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1


def test_a_hospital_file_names_any_source(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        pd.read_csv(tmp_path / "records.csv").to_sql("visits", connection, index=False)
    connection.close()
    (tmp_path / "records.csv").unlink()
    text = hospital.read_text().replace('"records.csv"', '"sqlite:///clinic.db"')
    hospital.write_text(text.replace("[policy]", '[source]\nquery = "select * from visits"\n[policy]'))
    reply = train(hospital)
    assert reply.has_content(), reply.error
    assert ledger(hospital).epsilon() > 0


def test_the_log_alone_says_why_and_never_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hospital = make_hospital(tmp_path)
    (tmp_path / "secret").write_text("hunter2-canary\n")
    url = f"postgresql://reader@/ehr?host={tmp_path}"
    text = hospital.read_text().replace('"records.csv"', f'"{url}"')
    options = '[source]\nquery = "select 1"\npassword-file = "secret"\n[policy]'
    hospital.write_text(text.replace("[policy]", options))
    reason = str(train(hospital).error.reason)
    assert "own log" in reason and "reader" not in reason and "postgresql" not in reason
    assert "postgresql database 'ehr'" in caplog.text and "hunter2" not in reason + caplog.text
    hospital.write_text(text.replace("[policy]", options).replace("reader@", "reader:hunter2-canary@"))
    reason = str(train(hospital).error.reason)
    assert "own log" in reason and "holds a password" in caplog.text and "hunter2" not in reason + caplog.text
    assert not any(b"hunter2" in file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file())
