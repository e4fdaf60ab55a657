"""Sources: the three file types, folders and patterns, typing, and errors that name file and row but no cell."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from polyclinic.ehr import Schema, build_shard, encode, read_records
from polyclinic.ehr.faults import CellsRefused
from polyclinic.ehr.shard import check_chunks
from polyclinic.ehr.sources import file_chunks
from polyclinic.ehr.sources.files import column_names, read_table, whole_table
from polyclinic.errors import DataError


@pytest.fixture
def csv(records: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "north.csv"
    records.assign(unrelated="x").to_csv(path, index=False)
    return path


def test_the_file_types_give_equal_records(schema: Schema, records: pd.DataFrame, csv: Path) -> None:
    with gzip.open(csv.with_suffix(".csv.gz"), "wb") as packed:
        packed.write(csv.read_bytes())
    records.to_parquet(csv.with_suffix(".parquet"))
    tables = [read_records(csv.with_suffix(suffix), schema) for suffix in (".csv", ".csv.gz", ".parquet")]
    assert_frame_equal(tables[0], tables[1])
    assert_frame_equal(tables[0], tables[2])
    assert "unrelated" not in tables[0] and "note" not in tables[0]
    expected, found = encode(records, schema), encode(tables[0], schema)
    pd.testing.assert_frame_equal(pd.DataFrame(found.x), pd.DataFrame(expected.x))
    assert tables[0]["age"].dtype == "int64" and tables[0]["chol"].dtype == "float64"
    build_shard(tables[0], schema, "north")


def test_a_folder_and_a_pattern_read_files_in_order(schema: Schema, records: pd.DataFrame, tmp_path: Path) -> None:
    for name, rows in (("b.csv", records.iloc[6:]), ("a.csv", records.iloc[:6])):
        rows.to_csv(tmp_path / name, index=False)
    (tmp_path / "README.txt").write_text("not records")
    for path in (tmp_path, tmp_path / "*.csv", f"{tmp_path}/[ab].csv"):
        assert read_records(path, schema)["id"].tolist() == records["id"].tolist()


@pytest.mark.parametrize("mark", ["", "NA", "?", "NaN", "null"])
def test_marks_of_missing_cells(schema: Schema, records: pd.DataFrame, tmp_path: Path, mark: str) -> None:
    records.to_csv(tmp_path / "a.csv", index=False, na_rep=mark)
    read = read_records(tmp_path / "a.csv", schema)
    assert read["chol"].isna().tolist() == records["chol"].isna().tolist()
    assert read["stage"].isna().tolist() == records["stage"].isna().tolist()


def test_how_a_cell_is_read_does_not_depend_on_another_patients_letters(tmp_path: Path) -> None:
    """A name in Windows-1252 in a file of UTF-8 made every Köln another ward."""
    columns = [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "ward", "kind": "categorical", "categories": ["Köln", "José", "other"], "other": "other"},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    schema = Schema.from_dict({"name": "wards", "columns": columns})
    path = tmp_path / "north.csv"

    def wards(*rows: bytes) -> list[list[float]]:
        path.write_bytes(b"\n".join([b"id,ward,died", *rows]) + b"\n")
        return check_chunks(file_chunks(path, schema), schema, "north").x.tolist()

    own, windows = ["1,Köln,0".encode(), "2,Köln,1".encode()], "3,José,1".encode("cp1252")
    assert wards(*own, windows) == [*wards(*own), [0.0, 1.0, 0.0]]
    assert wards("1,Köln,0".encode("cp1252"), windows) == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    with pytest.raises(DataError, match="the file cannot be read"):
        wards(*own, b"3,\x81,1")


def test_a_category_called_none_is_not_missing(schema: Schema, csv: Path) -> None:
    assert read_records(csv, schema)["pain"].tolist()[:3] == ["none", "typical", "atypical"]


def test_spaces_in_header_blank_lines_and_bom_are_harmless(schema: Schema, csv: Path) -> None:
    text = "\n".join(["", csv.read_text().replace("id,ward", " id , ward", 1).replace("\n", "\n\n", 1)])
    plain = read_records(csv, schema)
    csv.write_text(text, encoding="utf-8")
    assert_frame_equal(read_records(csv, schema), plain)
    csv.write_text(text.lstrip(), encoding="utf-8-sig")
    assert_frame_equal(read_records(csv, schema), plain)


@pytest.mark.parametrize(
    ("column", "cell", "sentence"),
    [
        ("age", "seventy-seven", "not a number"),
        ("age", "4711", "outside the public bounds"),
        ("chol", "inf", "infinite"),
        ("pain", "throbbing", "category is unknown"),
        ("male", "", "not nullable"),
        ("died", "", "label is missing"),
        ("id", "", "identifier is missing"),
        ("codes", "Z99", "vocabulary"),
    ],
)
def test_bad_cell_names_file_and_row(
    schema: Schema, records: pd.DataFrame, tmp_path: Path, column: str, cell: str, sentence: str
) -> None:
    changed = records.astype(object)
    changed.loc[7, column] = cell
    changed.to_csv(tmp_path / "bad.csv", index=False)
    records.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=sentence) as caught:
        read_records(tmp_path, schema)
    message = str(caught.value)
    assert f"bad.csv: column {column!r}, data row 8:" in message
    assert not cell or re.search(rf"(?<!\w){re.escape(cell)}(?!\w)", message) is None


def test_missing_columns_are_named_for_each_type(schema: Schema, records: pd.DataFrame, tmp_path: Path) -> None:
    records.drop(columns="sbp_02").to_csv(tmp_path / "a.csv", index=False)
    records.drop(columns="sbp_02").to_parquet(tmp_path / "b.parquet")
    for name in ("a.csv", "b.parquet"):
        with pytest.raises(DataError, match=f"{name}: column 'sbp_02' is missing"):
            read_records(tmp_path / name, schema)


def test_repeated_header_is_refused(schema: Schema, csv: Path) -> None:
    csv.write_text(csv.read_text().replace("unrelated", "age", 1))
    with pytest.raises(DataError, match="'age' appears more than once"):
        read_records(csv, schema)


def test_all_faults_are_named_at_once_with_their_first_rows_and_counts(
    schema: Schema, records: pd.DataFrame, tmp_path: Path
) -> None:
    many = pd.concat([records.astype(object)] * 3, ignore_index=True)
    rows = len(many)
    many.loc[[1, rows - 1], "age"] = "secret"
    many.loc[2, "age"] = 4711
    many.loc[[3, 4, 5], "pain"] = "secret"
    many.loc[rows - 2, "id"] = None
    many.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(CellsRefused) as caught:
        check_chunks(file_chunks(tmp_path / "a.csv", schema, rows=4), schema, "north")
    lines = [line.split("; ")[0].removeprefix(f"{tmp_path / 'a.csv'}: ") for line in str(caught.value).splitlines()]
    assert [line.split(" allows")[0] for line in lines] == [
        "column 'age', data row 2 and 1 more: the cell is not a number",
        "column 'age', data row 3: the cell is outside the public bounds 0 to 120 years",
        "column 'pain', data row 4 and 2 more: the category is unknown",
        f"column 'id', data row {rows - 1}: the identifier is missing",
    ]
    assert "secret" not in str(caught.value)


def test_file_without_header_does_not_leak_its_first_row(schema: Schema, records: pd.DataFrame, tmp_path: Path) -> None:
    records.assign(id="secret").to_csv(tmp_path / "a.csv", index=False, header=False)
    with pytest.raises(DataError, match="columns 'id', .* are missing") as caught:
        read_records(tmp_path / "a.csv", schema)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("every_line", [True, False])
def test_line_with_too_many_cells_is_refused(schema: Schema, csv: Path, every_line: bool) -> None:
    header, *lines = csv.read_text().splitlines()
    longer = [f"{line},secret" if every_line or row == 5 else line for row, line in enumerate(lines)]
    csv.write_text("\n".join([header, *longer]))
    with pytest.raises(DataError, match="more cells than the header") as caught:
        read_records(csv, schema)
    assert "secret" not in str(caught.value)


ROWS = ["id,note,age,sex", *(f"p{row},well,{40 + row},m" for row in range(9))]


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({3: 'p2,"secret,42,m'}, (1, 6)),  # up to the end of the file
        ({3: 'p2,"secret,42,m', 7: 'p6,"a, b",46,m'}, (1, 4)),  # up to a cell that is quoted as it should be
        ({3: 'p2,",42,m', 6: 'p5,",45,m'}, (1, 3)),  # up to a mark like it
        ({3: 'p2,"secret,42,m', 6: "p5,6'2\",45,m"}, (1, 3)),
        ({3: 'p2,"secret,42,m', 4: 'p3,"",43,m', 6: 'p5,"well",45,m'}, (1, 3)),
        ({2: '"p1","a\nb","41","m"', 5: 'p4,"secret,44,m'}, (1, 4)),
    ],
)
def test_stray_quotes_that_swallow_rows_are_refused_with_their_number(
    tmp_path: Path, changes: dict[int, str], counts: tuple[int, int]
) -> None:
    lines = [changes.get(number, line) for number, line in enumerate(ROWS)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    for read in (whole_table, lambda file: list(read_table(file, ["id"])), column_names):
        with pytest.raises(
            DataError, match=rf"quotation marks \({counts[0]}\).*lines of the file \({counts[1]}\)"
        ) as caught:
            read(tmp_path / "a.csv")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {3: 'p2,"a, ""b""\nc, d, e",42,m', 7: '"p6","","46","m"'},
        {3: "p2,5'10\",42,m", 4: 'p3,"5\'10""",43,m', 5: 'p4,"a" b,44,m'},
        {3: 'p2,"a, b\nc, d",42,m', 5: 'p4,"\n\n",44,m'},
        {number: f'"p{number}","said ""no"", well","{39 + number}","m"' for number in range(1, 10)},
    ],
)
def test_quoted_line_breaks_and_marks_within_cells_are_read(tmp_path: Path, changes: dict[int, str]) -> None:
    (tmp_path / "a.csv").write_text("\r\n".join(changes.get(number, line) for number, line in enumerate(ROWS)))
    assert whole_table(tmp_path / "a.csv")["age"].tolist() == [str(40 + row) for row in range(9)]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"", "the file is empty"),
        ("a.csv", b"\xff\xfe\x00secret", "cannot be read"),
        ("a.csv.gz", b"not gzip", "cannot be read"),
        ("a.parquet", b"not parquet", "cannot be read"),
        ("a.xlsx", b"", "make a CSV of it, in Excel by Save as"),
        ("a.xyz", b"", "type is not known"),
    ],
)
def test_damaged_files_are_refused(schema: Schema, tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_records(tmp_path / name, schema)


def test_nothing_to_read_is_refused(schema: Schema, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.csv", tmp_path / "*.csv"):
        with pytest.raises(DataError, match="no records found"):
            read_records(path, schema)
