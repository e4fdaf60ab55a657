"""``polyclinic risk``, ``link``, ``anonymize`` and ``coarsen`` as a person uses them: tables, JSON, refusals, whole files."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.ehr.anonymity import Records, Target, anonymise, equivalence_classes, read_table
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import build_shard
from polyclinic.ehr.sources import read_records
from polyclinic.errors import PolyclinicError

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/json.md").read_text()
NAMED = {word for text in re.findall(r"`+([^`]+)`+", PAGE) for word in re.findall(r"[a-z][a-z0-9_]*", text)}
ROWS = 300


def printed(*arguments: object) -> Any:
    """The JSON of the command in this process; raises what it raises."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 rows of 240 patients, a list of names that an outsider has, and a schema."""
    rng = np.random.default_rng(0)
    patient = np.concatenate([np.arange(240), rng.integers(0, 240, ROWS - 240)])
    age, zip_code = rng.integers(20, 90, 240), rng.choice(["02139", "02141", "60637", "60615"], 240)
    records = pd.DataFrame(
        {"id": [f"p{one}" for one in patient], "age": age[patient], "sex": np.where(patient % 2, "m", "f"),
         "zip": zip_code[patient], "disease": rng.choice(["flu", "gout", "hiv"], ROWS),
         "died": (age[patient] + rng.normal(0, 10, ROWS) > 60).astype(int)}
    )  # fmt: skip
    records.to_csv(tmp_path / "records.csv", index=False)
    outside = pd.DataFrame({"name": [f"name {one}" for one in range(240)], "age": age,
                            "sex": np.where(np.arange(240) % 2, "m", "f"), "zip": zip_code})  # fmt: skip
    outside.to_parquet(tmp_path / "voters.parquet")
    columns: list[dict[str, Any]] = [
        {"name": "id", "kind": "categorical", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120]},
        {"name": "sex", "kind": "categorical", "categories": ["f", "m"], "role": "quasi_identifier"},
        {"name": "zip", "kind": "categorical", "categories": ["02139", "02141", "60637", "60615"]},
        {"name": "disease", "kind": "categorical", "categories": ["flu", "gout", "hiv"], "role": "sensitive"},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    Schema.from_dict({"name": "clinic", "columns": columns}).to_toml(tmp_path / "schema.toml")
    return tmp_path


def test_risk_counts_patients_and_measures_sensitive_columns(folder: Path) -> None:
    found = printed("risk", folder / "records.csv", "--quasi", "age,sex", "--quasi", "zip", "--sensitive", "disease",
                    "--unit", "id")  # fmt: skip
    classes = equivalence_classes(read_table(folder / "records.csv"), ["age", "sex", "zip"], "id")
    assert (found["rows"], found["patients"], found["k"]) == (ROWS, 240, classes.k)
    assert found["quasi"] == ["age", "sex", "zip"] and len(found["sets"]) == 7
    assert found["unique"] == max(one["unique"] for one in found["sets"]) > 100
    assert set(found["sensitive"]["disease"]) >= {"l", "t", "delta", "alpha"}
    assert any("not private" in note for note in found["notes"])
    by_row = printed("risk", folder / "records.csv", "--quasi", "age,sex,zip", "--largest-set", "1")
    assert by_row["patients"] == ROWS and len(by_row["sets"]) == 3 and any("--" not in n for n in by_row["notes"])
    assert by_row["unique"] < found["unique"]


def test_a_schema_names_columns_by_their_roles(folder: Path) -> None:
    found = printed("risk", folder / "records.csv", "--schema", folder / "schema.toml")
    assert found["quasi"] == ["sex"] and list(found["sensitive"]) == ["disease"] and found["unit"] == "id"
    assert found["patients"] == 240


def test_a_schema_of_single_rows_still_counts_its_patients_once_and_leaves_their_ids_out(folder: Path) -> None:
    path = folder / "schema.toml"
    Schema.from_toml(path).model_copy(update={"unit": "record"}).to_toml(path)
    found = printed("risk", folder / "records.csv", "--schema", path)
    assert found["unit"] == "id" and found["patients"] == 240
    made = printed("anonymize", folder / "records.csv", "--schema", path, "--out", folder / "o.csv")
    assert made["dropped"] == ["id"] and "id" not in read_table(folder / "o.csv")


def test_the_attack_finds_people_before_and_none_after(folder: Path) -> None:
    out = folder / "released.csv"
    made = printed(
        "anonymize", folder / "records.csv", "--quasi", "age,sex,zip", "--unit", "id", "--k", 5, "--out", out
    )
    assert (
        made["k"] >= 5 > made["k_before"]
        and made["released"] == ROWS - made["suppressed"]
        and made["dropped"] == ["id"]
    )
    found = printed("link", folder / "records.csv", folder / "voters.parquet", "--on", "age,sex,zip", "--unit", "id",
                    "--sensitive", "disease", "--after", out)  # fmt: skip
    assert found["before"]["people"] == 240 and found["before"]["matched"] == 240
    assert found["before"]["re_identified"] > 100 and found["after"]["re_identified"] == 0
    assert found["after"]["mean_candidates"] > 5 and any("without the column 'id'" in note for note in found["notes"])


def test_an_anonymised_table_trains_under_the_schema_beside_it(folder: Path) -> None:
    for method in ("lattice", "mondrian"):
        out = folder / f"{method}.parquet"
        made = printed("anonymize", folder / "records.csv", "--schema", folder / "schema.toml", "--quasi", "age,sex,zip",
                       "--k", 4, "--l", 2, "--method", method, "--out", out, "--label", "died")  # fmt: skip
        schema = Schema.from_toml(made["schema"])
        assert schema.unit == "record" and schema.patient_id is None
        records = read_records(out, schema)
        shard = build_shard(records, schema, "north")
        assert len(shard.y) == made["released"] and equivalence_classes(records, ["age", "sex"]).k >= 4
        assert 0.5 < made["auroc"]["after"] <= made["auroc"]["before"] + 0.05
        assert any("protects rows" in note for note in made["notes"])
        assert any("Left as they were: disease, died;" in note for note in made["notes"])
    kinds = {column.name: column.kind for column in Schema.from_toml(folder / "lattice.schema.toml").columns}
    assert kinds["age"] == "ordinal" and kinds["disease"] == "categorical"


def test_rows_are_written_in_another_order(folder: Path) -> None:
    printed("anonymize", folder / "records.csv", "--quasi", "zip", "--k", 2, "--drop", "id", "--out", folder / "o.csv")
    before, after = (read_table(folder / name) for name in ("records.csv", "o.csv"))
    columns = ["age", "sex", "zip", "disease", "died"]
    assert before["age"].tolist() != after["age"].tolist()
    pd.testing.assert_frame_equal(
        *(table[columns].sort_values(columns, ignore_index=True) for table in (before, after))
    )


def test_hierarchies_and_a_plot(folder: Path) -> None:
    (folder / "h.toml").write_text('[age]\nkind = "intervals"\nwidths = [30]\n[zip]\nkind = "prefix"\nkeep = [1]\n')
    made = printed("anonymize", folder / "records.csv", "--quasi", "age,zip", "--unit", "id", "--hierarchies",
                   folder / "h.toml", "--out", folder / "r.csv.gz", "--plot", folder / "sizes.svg", "--suppression",
                   0)  # fmt: skip
    assert made["levels"] == {"age": {"level": 1, "of": 2}, "zip": {"level": 1, "of": 2}}
    assert set(read_table(folder / "r.csv.gz")["zip"]) == {"0****", "6****"}
    assert "Patients who look alike" in (folder / "sizes.svg").read_text()


def test_a_person_reads_tables(folder: Path) -> None:
    shown = CliRunner(env={"COLUMNS": "100"})
    risk = shown.invoke(
        app, ["risk", str(folder / "records.csv"), "--quasi", "age,zip", "--sensitive", "disease"]
    ).stdout
    assert "k = 1" in risk and "t-closeness" in risk and "nor differential privacy" in risk and "not private" in risk
    out = str(folder / "out.csv")
    made = shown.invoke(
        app, ["anonymize", str(folder / "records.csv"), "--quasi", "age,zip", "--out", out, "--drop", "id"]
    )
    assert made.exit_code == 0 and "information loss" in made.stdout and "age" in made.stdout, made.output
    link = shown.invoke(
        app, ["link", str(folder / "records.csv"), str(folder / "voters.parquet"), "--on", "age,zip"]
    ).stdout
    assert "found: one patient fits" in link and "name 1" not in link


def test_coarsened_records_and_their_schema_are_written(folder: Path) -> None:
    (folder / "rules.toml").write_text(
        'keep = ["id", "age", "zip", "died"]\n[[rules]]\nkind = "limit"\ncolumn = "age"\nhigh = 89\n'
        '[[rules]]\nkind = "intervals"\ncolumn = "age"\nwidths = [10]\n[[rules]]\nkind = "zip"\ncolumn = "zip"\n'
    )
    made = printed("coarsen", folder / "records.csv", folder / "rules.toml", "--schema", folder / "schema.toml", "--out",
                   folder / "coarse.csv", "--plot", folder / "pairs.svg")  # fmt: skip
    assert "alone" in (folder / "pairs.svg").read_text() and (folder / "pairs.svg").stat().st_mode & 0o777 == 0o600
    schema = Schema.from_toml(made["schema"])
    shard = build_shard(read_records(made["out"], schema), schema, "north")
    assert made["rows"] == ROWS and shard.patients == 240 and made["columns"] == ["id", "age", "zip", "died"]


def test_shifted_dates_need_a_key_that_is_made_once_for_its_owner(folder: Path) -> None:
    (folder / "d.csv").write_text("id,born,x,died\n1,1964-03-11,1,0\n2,1970-01-01,0,1\n")
    columns = [{"name": "id", "kind": "categorical", "role": "patient_id"},
               {"name": "born", "kind": "categorical", "role": "time"},
               {"name": "x", "kind": "binary"}, {"name": "died", "kind": "binary", "role": "label"}]  # fmt: skip
    Schema.from_dict({"name": "dates", "columns": columns}).to_toml(folder / "d.toml")
    (folder / "rules.toml").write_text('[[rules]]\nkind = "shift-dates"\ncolumn = "born"\n')
    asked = (
        "coarsen",
        folder / "d.csv",
        folder / "rules.toml",
        "--schema",
        folder / "d.toml",
        "--out",
        folder / "s.csv",
    )
    with pytest.raises(PolyclinicError, match="give --key FILE"):
        printed(*asked)
    printed(*asked, "--key", folder / "key")
    first = (folder / "s.csv").read_text()
    assert (folder / "key").stat().st_mode & 0o777 == 0o600 and "1964-03-11" not in first
    printed(*asked, "--key", folder / "key", "--force")
    assert (folder / "s.csv").read_text() == first
    (folder / "key").write_text("abc")
    with pytest.raises(PolyclinicError, match="32 bytes in hexadecimal"):
        printed(*asked, "--key", folder / "key", "--force")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["risk", "records.csv"], "as in --quasi age,sex,zip"),
        (["risk", "records.csv", "--quasi", "agee"], "quasi: there is no column 'agee'"),
        (["risk", "records.csv", "--quasi", "age", "--sensitive", "x"], "sensitive: there is no column 'x'"),
        (["risk", "records.txt", "--quasi", "age"], "type is not known"),
        (["risk", "nowhere.csv", "--quasi", "age"], "no such file"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.txt"], "type is not known"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "records.csv", "--drop", "id"], "exists already"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "no/out.csv", "--drop", "id"], "cannot be written"),
        (["anonymize", "named.csv", "--quasi", "age", "--out", "out.csv"], "Column 'name' has another value for every patient"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.csv", "--drop", "age"], "is to be left out"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.csv", "--unit", "id", "--k", "241"], "240 patients in one"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.csv", "--plot", "x.pdf"], "an .svg or a .png"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.csv", "--label", "disease"], "hold two values"),
        (["anonymize", "records.csv", "--quasi", "age", "--out", "out.csv", "--method", "x"], "one of lattice, mondrian"),
        (["link", "records.csv", "voters.parquet", "--on", "disease"], "outside: there is no column 'disease'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence_and_nothing_is_written(
    folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pd.read_parquet("voters.parquet").to_csv("named.csv", index=False)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PolyclinicError, match=words) as refused:
        printed(*arguments)
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("risk", "t.csv", "--quasi", "canary-471"),
        ("anonymize", "t.csv", "--quasi", "canary-471", "--out", "out.csv"),
        ("link", "t.csv", "t.csv", "--on", "canary-471"),
        ("schema", "draft", "t.csv", "--label", "canary-471"),
        ("schema", "draft", "t.csv", "--patient", "canary-471"),
    ],
)
def test_a_first_row_in_a_headers_place_is_not_printed(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("canary-4711,67,m,0\ncanary-4712,45,f,1\n")
    with pytest.raises(PolyclinicError, match="no column 'canary-471'|first line holds cells") as refused:
        printed(*arguments)
    assert "canary-4711" not in str(refused.value) and "67" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"a\n", b"\xff\xfe\x00", b"a,a\n1,2\n", b"a,b\n1,2,secret\n", b"a,\n1,2\n", b'a,b\n"1,2\n'],
)
def test_damaged_tables_are_refused_without_a_cell(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(PolyclinicError, match="t.csv") as refused:
        read_table(tmp_path / "t.csv")
    assert refused.value.exit_code == 2 and "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_an_empty_table_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"")
    with pytest.raises(PolyclinicError, match="t.csv: the file is empty; its first line must be a header"):
        read_table(tmp_path / "t.csv")


@settings(max_examples=150)
@given(st.data(), st.sampled_from(["t.csv", "t.csv.gz", "t.parquet"]))
def test_a_mutated_table_is_read_or_refused_in_one_sentence(
    tables: dict[str, bytes], data: st.DataObject, name: str
) -> None:
    content = bytearray(tables[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(bytes(content))
        try:
            found = read_table(path)
            anonymise(Records(found, [found.columns[0]]), Target(1))
        except PolyclinicError as error:
            assert error.exit_code == 2 and "secret" not in str(error) and "\n" not in str(error)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("tables")
    table = pd.DataFrame(
        {"age": [41, 52, 63, 74], "lab": [1.5, None, 2.5, -3e9], "born": ["1964-03-11", "secret", "a,b", '"']}
    )
    for name in ("t.csv", "t.csv.gz"):
        table.to_csv(folder / name, index=False)
    table.to_parquet(folder / "t.parquet")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tables_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("zip,code,age,cost,born,flag\n60637,007,41,1.5,1964-03-11,yes\n2139,12,,NA,,no\n")
    found = read_table(tmp_path / "t.csv")
    assert found["zip"].tolist() == ["60637", "2139"] and found["code"].tolist() == ["007", "12"]
    assert found["age"].tolist()[0] == 41 and pd.isna(found["age"][1]) and found["cost"].dtype == float
    dates = pd.DataFrame({"born": pd.to_datetime(["1964-03-11", None])})
    dates.to_parquet(tmp_path / "d.parquet")
    assert read_table(tmp_path / "d.parquet")["born"].tolist() == ["1964-03-11", None]


def test_the_keys_are_on_the_page(folder: Path) -> None:
    shared = ("--quasi", "age,sex", "--sensitive", "disease")
    for found in (
        printed("risk", folder / "records.csv", *shared),
        printed(
            "anonymize", folder / "records.csv", *shared, "--drop", "id", "--out", folder / "o.csv", "--label", "died"
        ),
        printed("link", folder / "records.csv", folder / "voters.parquet", "--on", "age"),
    ):
        keys = {key for part in (found, *(p for p in found.values() if isinstance(p, dict))) for key in part}
        assert not keys - NAMED - {"disease", "age", "sex"}, keys - NAMED
