"""Tables of one's own: what is read out of messy files, what is left out, and that no message quotes a cell."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.ehr.datasets.tables import hold, read_as, tables
from polyclinic.ehr.sources.hospital_draft import draft_schema
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.plugins import dataset_of

CANARY = "canary-4711"


def hospital(rows: int, seed: int, name: str = "a") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, rows)
    return pd.DataFrame({
        "mrn": [f"{name}{patient}" for patient in rng.integers(0, rows, rows)], "age": age,
        "creatinine": rng.lognormal(0, 0.5, rows).round(2), "sex": rng.choice(["m", "f"], rows),
        "died": (age + rng.normal(0, 15, rows) > 60).astype(int),
    })  # fmt: skip


def drafted(column: list[Any], **options: Any) -> tuple[dict[str, Any], pd.DataFrame, str]:
    """The drafted columns by name, the records and the notes of a table with one column ``x`` beside a label."""
    federation = Federation.from_tables(
        {"a": pd.DataFrame({"x": column, "y": [0, 1] * (len(column) // 2), "z": np.arange(len(column)) % 7 + 0.5})}, "y"
    )
    dataset = tables(frames=federation.config.dataset_options.split("'")[1], label="y", **options)
    return (
        {one.name: one for one in dataset.schema.columns},
        dataset.load(),
        " ".join((*dataset.notes, *dataset.readings)),
    )


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["70 kg", "81 kg", "65kg", "90 KG"], [70, 81, 65, 90]),
        (["1,5", "2,25", "0,5", "3"], [1.5, 2.25, 0.5, 3]),
        (["1,500", "2,250", "12,000", "900"], [1500, 2250, 12000, 900]),
        (["1,500.5", "2.25", "12", "900"], [1500.5, 2.25, 12, 900]),
        (["<0.4", "0.9", ">100", "3"], [0.4, 0.9, 100, 3]),
        (["1e3", "2E-1", "-4", "+5"], [1000, 0.2, -4, 5]),
        (["n.a.", ".", "7", "NULL"], [None, None, 7, None]),
        (["70 kg", "154.3236 lb", "70000 g", "7"], [70, 70, 70, 7]),
        (["1.234.567", "1,234,567", "2", "3"], [1234567, 1234567, 2, 3]),
        (["not done", "7", "8", "9"], [None, 7, 8, 9]),
    ],
)
def test_numbers_are_read_however_they_are_written(cells: list[str], numbers: list[float | None]) -> None:
    columns, records, _ = drafted([*cells, *(["5", "6", "7", "8"] * 10)])
    assert columns["x"].kind in ("integer", "continuous")
    read = records["x"].iloc[: len(cells)].astype(float)
    assert np.array_equal(read, np.array(numbers, dtype=float), equal_nan=True)


@pytest.mark.parametrize(
    ("cells", "codes"),
    [
        ([-9, -9, 120, 140, 130], {-9}),
        ([999, 999, 4.1, 3.9, 5.0], {999}),
        ([99, 99, 88, 91, 97], set()),  # ages
        ([-9, -9, -4, 3, -20], set()),  # a difference
        ([-99, 7, 8, 9, 10], set()),  # once
        ([-9, -9, -999, -999, 9999, 9999, 40, 50], {-9, -999, 9999}),
        ([9, 9, 9, 1, 2, 3, 1], {9}),
        ([9, 9, 8, 7, 5, 1, 0], set()),  # an Apgar score
    ],
)
def test_codes_for_missing_lie_far_from_every_number(cells: list[float], codes: set[float]) -> None:
    columns, records, notes = drafted([*cells, *(sorted(set(cells) - {-9, 999, -99, -999, 9999, 9}) * 20)[:45]])
    read = set(records["x"].dropna().astype(float))
    assert not codes & read and set(map(float, cells)) - codes <= read
    assert columns["x"].nullable == bool(codes) and ("Read as a code for missing" in notes) == bool(codes)


def test_words_for_what_was_not_measured_are_missing() -> None:
    columns, records, notes = drafted(
        ["not done", "unknown", *[row + 0.25 for row in range(46, 0, -1)]] + ["not done"] * 12
    )
    assert columns["x"].kind == "continuous" and records["x"].isna().sum() == 14
    assert "No numbers, and so missing: 14 cells of 'x'." in notes and "not done" not in notes


def test_a_unit_in_the_columns_name_is_its_unit() -> None:
    frame = hospital(80, 0).rename(columns={"creatinine": "Creatinine [mg/dL]"})
    frame = frame.assign(
        **{"age": frame["age"] * 1.5, "los (days)": np.arange(80), "score (total)": np.arange(80) % 31}
    )
    dataset = tables(frames=hold({"a": frame}), label="los (days)")
    units = {column.name: column.unit for column in dataset.schema.columns}
    assert (units["Creatinine [mg/dL]"], units["los (days)"], units["score (total)"], units["age"]) == (
        "mg/dL",
        "days",
        "",
        "",
    )
    new = frame.head(3).astype({"Creatinine [mg/dL]": str})
    new["Creatinine [mg/dL]"] = ["88.4 µmol/l", "1", "2 mg/dL"]
    assert np.allclose(read_as(new, dataset.schema)[0]["Creatinine [mg/dL]"], [1, 1, 2], atol=1e-3)


def test_columns_that_differ_by_a_unit_are_one_where_the_units_convert() -> None:
    a, b = hospital(90, 1).rename(columns={"creatinine": "Creatinine [mg/dL]"}), hospital(80, 2, "b")
    b["Creatinine [umol/L]"], b["Hb (mmol/L)"] = (b.pop("creatinine") * 88.4).round(1), 8 + b["age"] % 7 / 10
    a["Hb [g/dL]"] = 13 + a["age"] % 9 / 10
    dataset = tables(frames=hold({"a": a, "b": b}), label="died")
    records, columns = dataset.load(), {column.name: column for column in dataset.schema.columns}
    made = records.loc[records["hospital"] == "b", "Creatinine [mg/dL]"]
    assert np.allclose(made, b["Creatinine [umol/L]"] / 88.4, rtol=1e-3) and "Creatinine [umol/L]" not in columns
    assert columns["Creatinine [mg/dL]"].unit == "mg/dL" and not records["Creatinine [mg/dL]"].isna().any()
    assert (
        "Read as one column, for their units convert: 'Creatinine [mg/dL]' and 'Creatinine [umol/L]'."
        in dataset.readings
    )
    doubt = next(note for note in dataset.notes if note.startswith("'Hb [g/dL]' and 'Hb (mmol/L)' may be one quantity"))
    assert "each missing at the hospitals that have another" in doubt and records["Hb [g/dL]"].isna().sum() == 80
    read, notes = read_as(b, dataset.schema)
    assert np.allclose(read["Creatinine [mg/dL]"], made, rtol=1e-3) and "'Hb [g/dL]'" in notes[0]
    coded = b.assign(**{"Creatinine [umol/L]": b["Creatinine [umol/L]"].where(np.arange(80) > 4, 9999)})
    assert tables(frames=hold({"a": a, "b": coded}), label="died").load()["Creatinine [mg/dL]"].isna().sum() == 5
    two = a.assign(**{"Creatinine [umol/L]": a["Creatinine [mg/dL]"] + 1})  # a file that has both means both
    names = [column.name for column in tables(frames=hold({"a": two}), label="died").schema.features]
    assert {"Creatinine [mg/dL]", "Creatinine [umol/L]"} < set(names)


def test_cells_beyond_a_limit_get_a_flag() -> None:
    columns, records, notes = drafted(["<0.4"] * 6 + ["0.9", "1.1"] * 12)
    assert columns["x beyond limit"].kind == "binary" and records["x beyond limit"].sum() == 6
    assert re.search("Beyond a limit of measurement, .*: 6 cells of 'x'.", notes)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([f"text {row}" for row in range(60)], "free text"),
        ([*["m"] * 58, "f", "x"], "nearly constant"),
        ([1] * 60, "constant"),
        ([row + 4711 for row in range(60)], "an identifier"),
        (
            [["2024-03-01", "1.3.2024", "3/1/2024", "01-Mar-2024 10:15"][row % 4] for row in range(60)],
            "a date or a time",
        ),
        ([19_300_101 + row % 28 for row in range(60)], "a date or a time"),
        ([f"{60 + row % 25} {'kg' if row % 3 else 'stone'}" for row in range(60)], "in units that do not convert"),
        ([f"{row % 12 + 1}/{row % 12 + 1}/2024" for row in range(60)], "a date or a time"),  # is the day first?
        ([f"{row % 24}:30" for row in range(60)], "a date or a time"),
        ([row % 7 + 0.5 for row in range(60)], "the same as another column"),
    ],
)
def test_what_cannot_be_a_feature_is_left_out_with_its_reason(cells: list[Any], why: str) -> None:
    columns, _, notes = drafted(cells)
    left = next(name for name in ("x", "z") if name not in columns)
    assert f"Left out as {why}" in notes and left in notes and CANARY not in notes


def test_code_lists_and_rare_categories_have_an_other() -> None:
    columns, records, _ = drafted(["I10;E11", "E11", "", "J44; I10"] * 15)
    assert columns["x"].kind == "code_set" and columns["x"].categories == ("E11", "I10", "J44", "other")
    assert records["x"].iloc[3] == "I10;J44"
    columns, _, notes = drafted([CANARY, *(["m", "f"] * 30)][:60])
    assert columns["x"].categories == ("f", "m", "other") and columns["x"].other == "other" and CANARY not in notes


@pytest.mark.slow
def test_a_folder_of_messy_files_is_a_federation(tmp_path: Path, as_json: Callable[..., Any]) -> None:
    (tmp_path / "hospitals").mkdir()
    for number, name in enumerate(("north", "Östliche Klinik")):
        table = hospital(160, number, name[0])
        table.insert(0, "", range(1, 161))  # names of rows, as R writes them
        table.to_csv(tmp_path / "hospitals" / f"{name}.csv", index=False, sep=",;"[number])
    summary = as_json(
        "run", "--data", str(tmp_path / "hospitals"), "--label", "died", "--rounds", "2", "--out", str(tmp_path / "runs"),
        "--delta", "0.005",
    )  # fmt: skip
    assert set(summary["metrics"]["sites"]) == {"north", "Östliche Klinik"}
    assert "no epsilon covers" in " ".join(summary["notes"]) and "patient 'mrn'" in " ".join(summary["notes"])
    schema = (next((tmp_path / "runs").iterdir()) / "schema.toml").read_text()
    assert "column 1" not in schema and 'name = "creatinine"' in schema


def test_files_and_frames_give_one_result_and_hospitals_may_stand_in_a_column(tmp_path: Path) -> None:
    frames = {"north": hospital(150, 1, "n"), "south": hospital(120, 2, "s")}
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    whole = pd.concat([frame.assign(clinic=name) for name, frame in frames.items()])
    options: dict[str, Any] = {"rounds": 2, "out": str(tmp_path / "runs"), "privacy": {"delta": 0.005}}
    results = [
        Federation.from_tables(frames, "died", "mrn").run(**options),
        Federation.from_tables({name: tmp_path / f"{name}.parquet" for name in frames}, "died", "mrn").run(**options),
        Federation.from_frame(whole, site="clinic", label="died", patient="mrn").run(**options),
    ]
    first, *others = [result.arrays for result in results]
    assert all(np.array_equal(first[name], other[name]) for other in others for name in first)
    assert list(results[2].sites.index) == ["north", "south"]


def test_what_may_make_the_result_wrong_stands_before_how_cells_were_read(tmp_path: Path) -> None:
    frames = {name: hospital(120, seed, name) for seed, name in enumerate("ab")}
    for number, frame in enumerate(frames.values()):
        frame["PLZ"] = [f"{10115 + row}" for row in range(len(frame))]
        frame["comment"] = [f"text {number} {row}" for row in range(len(frame))]
        frame["discharge"] = frame["died"].map({1: "morgue", 0: "home"})
        frame["creatinine"] = frame["creatinine"].map(lambda value: "<0.5" if value < 0.5 else str(value))
        frame["weight"] = [f"{70 + row % 9} kg" if row % 5 else f"{150 + row % 9} lb" for row in range(len(frame))]
        frame["age"] = frame["age"].astype(object).where(np.arange(len(frame)) % 20 != 3, -9)
        frame["died"] = frame["died"].map({1: "yes", 0: "no"})
    run = Federation.from_tables(frames, "died", out=str(tmp_path)).run(
        rounds=1, pictures=False, privacy={"delta": 0.002}
    )
    notes, cautions = run.summary["notes"], run.summary["cautions"]
    first, rest = notes[:cautions], notes[cautions:]
    assert first[0].startswith("Alone, 'discharge' tells the label") and len(first) <= 6
    assert "the label is 'died'" in first[1].lower() and "as 1 for yes" in first[1] and "patient 'mrn'" in first[1]
    assert "Left out as a place of residence: PLZ; as free text or too many categories: comment." in first
    for words in ("beyond limit", "Converted", "code for missing", "simulation", "Epsilon covers"):
        assert any(words in note for note in rest) and not any(words in note for note in first)
    shown = CliRunner().invoke(app, ["show", str(run.path)]).stdout
    assert 0 < shown.index("Alone, 'discharge'") < shown.index("Epsilon covers") < shown.index("Converted")


def test_a_place_of_residence_is_no_outcome() -> None:
    frame = hospital(80, 0, "a").drop(columns="died").assign(PLZ=["10115", "20095"] * 40)
    assert "'PLZ' is a place of residence" in " ".join(tables(frames=hold({"a": frame}), label="PLZ").notes)


def test_a_column_that_may_name_the_hospital_is_suggested(tmp_path: Path) -> None:
    table = hospital(90, 0).assign(**{"Klinik Ort": ["A", "B", "C"] * 30, "website hits": np.arange(90)})
    table.to_csv(tmp_path / "all.csv", index=False)
    alone = " ".join(tables(files=str(tmp_path), label="died").notes)
    assert "give it by `--site 'Klinik Ort'`, if that is it." in alone and "--site 'website" not in alone
    plain = table.rename(columns={"Klinik Ort": "Hospital name"})
    assert tables(frames=hold({"all": plain}), label="died").natural_sites == ("A", "B", "C")
    several = {"2023": table, "2024": table.assign(mrn=table["mrn"] + "x")}
    notes = " ".join(tables(frames=hold(several), label="died").notes)
    assert "If a column names the hospitals, give it by `--site 'Klinik Ort'`." in notes
    named = tables(frames=hold(several), label="died", site="Klinik Ort")
    assert named.natural_sites == ("A", "B", "C") and "--site" not in " ".join(named.notes)


def test_a_column_that_names_the_hospital_is_no_feature(tmp_path: Path) -> None:
    frames = {name: hospital(80, seed, name).assign(hospital=f"St. {name}") for seed, name in enumerate("ab")}
    dataset = tables(frames=hold(frames), label="died", patient="mrn")
    assert [column.name for column in dataset.schema.features] == ["age", "creatinine", "sex"]
    assert dataset.natural_sites == ("a", "b") and "the same for all of a hospital: hospital" in " ".join(dataset.notes)


def test_a_number_at_two_hospitals_is_two_patients(tmp_path: Path) -> None:
    frames = {name: hospital(80, seed, name).assign(mrn=range(80)) for seed, name in enumerate("ab")}
    result = Federation.from_tables(frames, "died", "mrn", out=str(tmp_path)).run(
        rounds=1, privacy={"delta": 0.005}, pictures=False
    )
    assert list(result.sites.index) == ["a", "b"]
    notes = " ".join(result.summary["notes"])
    assert "80 values of 'mrn' occur at several hospitals" in notes and "set privacy.overlap to 2" in notes


def test_wrong_tables_are_one_sentence_that_says_what_to_give(tmp_path: Path) -> None:
    frames = {"a": hospital(60, 1)}
    frames["a"].assign(died=CANARY).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "ragged.csv").write_text(f"a,died\n1,0,{CANARY}\n2,1,{CANARY}\n")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    (tmp_path / "headless.csv").write_text(f"{CANARY},m,I10,yes\n{CANARY}2,m,I10,yes\nx,f,J44,no\n")
    (tmp_path / "bytes.csv").write_bytes(b'PAR1\x00\x01,\x02\n"' * 3)
    (tmp_path / "title.csv").write_text(f"{CANARY}\n\na,died\n1,0\n2,1\n")
    dates = frames["a"]["died"].map({0: "", 1: f"2024-05-05 {CANARY}"[:10]})
    unknown, twice = frames["a"]["died"].astype(object), frames["a"].rename(columns={"age": "died"})
    unknown.iloc[3] = CANARY
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Federation.from_tables({"a": tmp_path / "title.csv"}, "died"), "without a title above"),
        (lambda: Federation.from_tables({"a": frames["a"].assign(died=dates)}, "died"), "It holds dates: write 1"),
        (lambda: Federation.from_tables({"a": frames["a"].assign(died=unknown)}, "died"), "their texts by missing"),
        (lambda: Federation.from_tables({"a": twice}, "died"), "two columns are named 'died'"),
        (lambda: Federation.from_tables(frames, "dead"), "Did you mean 'died'?"),
        (lambda: Federation.from_tables({}, "died"), "a table for each hospital"),
        (lambda: Federation.from_tables(frames | {"b": tmp_path / "a.csv"}, "died"), "not both"),
        (lambda: Federation.from_tables({"a": tmp_path / "none.csv"}, "died"), "no records found"),
        (lambda: Federation.from_tables({"a": tmp_path / "bytes.csv"}, "died"), "cannot be read"),
        (lambda: Federation.from_tables({"a": tmp_path / "a.csv"}, "died"), "cannot be the label"),
        (lambda: Federation.from_tables({"a": tmp_path / "ragged.csv"}, "died"), "more cells than the header"),
        (
            lambda: Federation.from_tables(frames, "dead", "mrm"),
            "label names 'dead', which is not a column of the tables. Did you mean 'died'? patient names",
        ),
        (lambda: Federation.from_tables(frames, "dead", "mrm"), "patient names 'mrm'"),
        (
            lambda: Federation.from_tables({x: tmp_path / f"{x}.csv" for x in ("ragged", "bytes")}, "died"),
            "bytes.csv: the file",
        ),
        (
            lambda: Federation.from_tables(
                frames | {"b": frames["a"].rename(columns=str.upper).add_prefix("x")}, "died"
            ),
            "No column of a, b is among",
        ),
        (lambda: Federation.from_tables({"a": tmp_path / "headless.csv"}, "died"), "the first line holds cells"),
        (lambda: Federation.from_tables({"a": tmp_path / "a.xlsx"}, "died"), "make a CSV of it, in Excel"),
        (lambda: Federation.from_tables({"a": frames["a"][["died"]]}, "died"), "no column can be learned from"),
        (lambda: Federation.from_tables(frames, "died", workers=2).run(), "worker processes cannot see"),
        (lambda: Federation.from_dataset(str(tmp_path / "a.csv")).run(), "give it as `--data"),
        (lambda: Federation.from_dataset("tables").run(), "needs files"),
        (lambda: Federation.from_dataset("tables", dataset_options={"file": "x"}).run(), "makes no polyclinic Dataset"),
        (lambda: Federation.from_dataset("icu", dataset_options={"label": "x"}).run(), "takes no options"),
    ]
    for call, words in wrong:
        with pytest.raises((ConfigError, DataError)) as refused:
            call()
        assert words in str(refused.value) and CANARY not in str(refused.value), words


def test_a_run_over_files_goes_on_in_another_process(tmp_path: Path, command: Callable[..., Any]) -> None:
    from tests.server.test_history import StopsAfter

    for name in ("north", "south"):
        hospital(120, len(name), name[0]).to_csv(tmp_path / f"{name}.csv", index=False)
    places = {name: tmp_path / f"{name}.csv" for name in ("north", "south")}
    with pytest.raises(PolyclinicError, match="lights"):
        Federation.from_tables(places, "died", out=str(tmp_path / "runs"), rounds=3, privacy={"delta": 0.005}).run(
            progress=StopsAfter(1)
        )
    (folder,) = (tmp_path / "runs").iterdir()
    done = command("run", "--resume", str(folder))
    assert done.returncode == 0, done.stderr


def test_each_hospital_has_its_own_decimal_mark() -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("ab")}
    text = frames["b"].astype(str)
    text["creatinine"] = text["creatinine"].str.replace(".", ",")
    text["platelets"] = [f"{150 + row * 37 % 80}.000" for row in range(80)]
    frames["a"]["platelets"] = [(150 + row * 37 % 80) * 1000 for row in range(80)]
    mixed = tables(frames=hold(frames | {"b": text}), label="died")
    plain = tables(frames=hold(frames | {"b": frames["b"].assign(platelets=frames["a"]["platelets"])}), label="died")
    pd.testing.assert_frame_equal(mixed.load(), plain.load())
    assert (
        "Read with decimal commas at b: creatinine, platelets." in mixed.readings
        and mixed.schema.columns == plain.schema.columns
    )


@pytest.mark.parametrize(
    "words",
    [
        ("no", "yes"),
        ("alive", "dead"),
        ("FALSE", "TRUE"),
        ("N", "Y"),
        ("0.0", "1.0"),
        ("nein", "ja"),
        ("N", "J"),
        (False, True),
        ("no", "Sí"),
        ("vivo", "exitus"),
        ("überlebt", "verstorben"),
        ("vivant", "décédé"),
    ],
)
def test_a_label_in_words_is_the_same_label(words: tuple[object, object]) -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("ab")}
    expected = tables(frames=hold(frames), label="died")
    frames["b"]["died"] = [words[cell] for cell in frames["b"]["died"]]
    read = tables(frames=hold(frames), label="died")
    assert read.schema.columns == expected.schema.columns and read.load()["died"].equals(expected.load()["died"])


def test_a_label_that_hospitals_may_write_in_other_words_is_noted() -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("abc")}
    for name, words in {"a": ("home", "ward"), "b": ("home", "ward"), "c": ("Hause", "Station")}.items():
        frames[name]["died"] = [words[cell] for cell in frames[name]["died"]]
    notes = " ".join(tables(frames=hold(frames), label="died").notes)
    assert "has 4 categories" in notes and "Words of the label 'died' at c occur at no other hospital." in notes
    for names in ("ab", "a"):
        alike = " ".join(tables(frames=hold({name: frames[name] for name in names}), label="died").notes)
        assert "occur at no other hospital" not in alike


def test_yes_and_no_of_a_feature_are_alike_at_all_hospitals_and_other_words_are_noted() -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("abc")}
    for name, no, yes, home in (("a", "nein", "ja", "home"), ("b", "no", "sí", "home"), ("c", "FALSE", "TRUE", "casa")):
        sick = frames[name]["age"] > 60
        frames[name] = frames[name].assign(ill=np.where(sick, yes, no), lives=np.where(sick, home, home + " 2"))
    dataset = tables(frames=hold(frames), label="died")
    records, columns = dataset.load(), {column.name: column for column in dataset.schema.columns}
    assert columns["ill"].kind == "binary" and records["ill"].eq(records["age"] > 60).all()
    new, _ = read_as(frames["b"], dataset.schema)
    assert new["ill"].tolist() == (frames["b"]["age"] > 60).astype(int).tolist()
    notes = " ".join((*dataset.notes, *dataset.readings))
    assert (
        "Read as 1 for yes, true or the like, and 0 for no: ill." in notes
        and "Words of column 'lives' at c occur" in notes
    )


def test_a_hospital_without_rows_with_one_label_or_with_the_rows_of_another_is_noted() -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("ab")}
    frames |= {"c": frames["a"].sample(frac=1, random_state=1), "d": frames["a"].head(0)}
    frames["e"] = hospital(30, 5, "e").assign(died=0)
    notes = " ".join(tables(frames=hold(frames), label="died").notes)
    assert "take no part, for their table has no rows: d." in notes
    assert "All labels are the same at e: " in notes and "The rows of c are those of another hospital" in notes


def test_a_file_without_rows_and_a_repeated_header_are_said_plainly(tmp_path: Path) -> None:
    whole = hospital(80, 1)
    (tmp_path / "a.csv").write_text(",".join(whole) + "\n")
    with pytest.raises(DataError, match=r"^There are no rows in the table of a\.$"):
        Federation.from_tables({"a": tmp_path / "a.csv"}, "died")
    with pytest.raises(DataError, match=r"^There are no columns in the table of a\.$"):
        Federation.from_tables({"a": pd.DataFrame()}, "died")
    whole.to_csv(tmp_path / "b.csv", index=False)
    notes = " ".join(tables(files=[str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], label="died").notes)
    assert "Hospitals that take no part, for their table has no rows: a." in notes and "is whole" not in notes
    twice = whole.assign(other=np.arange(80) % 37).rename(columns={"other": "age"})
    dataset = tables(frames=hold({"a": twice}), label="died")
    assert f"age ({len(twice.columns)})" in dataset.load()
    assert "Of columns with the same name, each after the first has its place in the table added to its name: age." in (
        dataset.readings
    )


def test_hospitals_may_spell_and_order_their_columns_otherwise_and_lack_some() -> None:
    frames = {name: hospital(80, seed, name) for seed, name in enumerate("abc")}
    expected = tables(frames=hold(frames), label="died").load()
    frames["b"] = frames["b"][frames["b"].columns[::-1]].rename(columns={"age": " AGE", "creatinine": "Creatinine"})
    frames["b"]["sex"] = frames["b"]["sex"].str.upper()
    frames["d"] = hospital(30, 9, "d").drop(columns="died")
    frames["a"]["lactate"] = np.linspace(1, 4, 80).round(2)
    dataset = tables(frames=hold(frames), label="died")
    records = dataset.load()
    pd.testing.assert_frame_equal(records[expected.columns], expected)
    notes = " ".join((*dataset.notes, *dataset.readings))
    for words in (
        "30 the label",
        "take no part, for none of their rows is whole: d",
        "AGE, Creatinine",
        "lactate (at 1 of 4)",
    ):
        assert words in notes
    assert records["lactate"].notna().sum() == 80 and dataset.natural_sites == ("a", "b", "c")


def test_columns_written_after_the_outcome_are_named_and_can_be_left_out() -> None:
    frame = hospital(120, 1)
    frame["discharge"] = np.where(frame["died"] == 1, "home", "morgue")
    frame["hour of death"] = np.where(frame["died"] == 1, 5.5 + np.arange(120) % 9, np.nan)
    notes = " ".join(tables(frames=hold({"a": frame}), label="died").notes)
    assert "Alone, each of 'discharge', 'hour of death' tells the label" in notes and "creatinine' tells" not in notes
    Federation.from_tables({"a": frame}, "died", leave_out=["discharge", "hour of death"], missing=["m"])
    without = tables(frames=hold({"a": frame}), label="died", leave_out=["discharge", "hour of death"])
    assert "tells the label" not in " ".join(without.notes)
    assert [column.name for column in without.schema.features] == ["age", "creatinine", "sex"]
    costly = frame.assign(days=np.arange(120) ** 1.5, cost=np.arange(120) * 600 + 500 * (-1) ** np.arange(120))
    notes = " ".join(tables(frames=hold({"a": costly}), label="days").notes)
    assert "Alone, 'cost' tells the label" in notes
    end = VISITS.groupby("mrn").cumcount(ascending=False) == 0
    left = VISITS.assign(
        status=np.where(end, np.where(VISITS["died"] == "1", "morgue", "home"), "ward"), seen=range(280)
    )
    notes = " ".join(tables(frames=hold({"a": left}), label="died", patient="mrn", time="seen", steps=2).notes)
    assert re.search(r"Alone, [^.]*'status'[^.]* tells the label", notes)


def test_a_hint_begins_with_the_word_and_several_labels_are_given_by_their_key() -> None:
    frame = hospital(90, 1).rename(columns={"age": "LOS (days)"}).assign(closed=[0, 1] * 45)
    with pytest.raises(ConfigError, match=re.escape("Did you mean 'LOS (days)'?")):
        tables(frames=hold({"a": frame}), label="LOS")
    with pytest.raises(ConfigError) as refused:
        tables(frames=hold({"a": frame}), label="died, Closed")
    assert "For several labels, give the first by --label, and all by the key data.label: 'died,closed'." in str(
        refused.value
    )
    assert (
        dataset_of(Federation.from_tables({"a": frame}, "died", data={"label": "died,closed"}).config)
        .schema.labels[1]
        .name
        == "closed"
    )


def test_a_far_repeated_number_is_a_doubt_and_a_mark_for_it_ends_it() -> None:
    pulse = [888 if row % 15 == 0 else 60 + row % 40 for row in range(90)]
    frame = hospital(90, 1).assign(pulse=pulse, price=[2.0**row for row in range(30)] * 3)
    notes = tables(frames=hold({"a": frame}), label="died").notes
    assert [note.split("'")[1] for note in notes if "far from all others" in note and "--missing 888" in note] == [
        "pulse"
    ]
    marked = tables(frames=hold({"a": frame}), label="died", missing="888")
    assert "far from" not in " ".join(marked.notes) and marked.load()["pulse"].isna().sum() == 6


def test_a_note_names_every_hospital_that_writes_a_word_otherwise() -> None:
    words = {"a": ("f", "m"), "b": ("F", "M"), "c": ("w", "m"), "d": ("female", "male")}
    frames = {name: hospital(80, seed, name) for seed, name in enumerate(words)}
    for name, (woman, man) in words.items():
        frames[name]["sex"] = frames[name]["sex"].map({"f": woman, "m": man})
    frames["a"].loc[:9, "sex"] = "x"  # a word that stands for no other
    notes = " ".join(tables(frames=hold(frames), label="died").notes)
    assert "Words of column 'sex' at c, d occur at no other hospital." in notes


@pytest.mark.parametrize(
    ("cells", "ordered"),
    [
        (["0", "2", "10"], ["0", "2", "10"]),
        (["Grade III", "grade I", "Grade II"], ["grade I", "Grade II", "Grade III"]),
        (["severe", "Moderate", "mild"], ["mild", "Moderate", "severe"]),
        (["G2a", "G1", "G3"], None),
        (["home", "ward", "icu"], None),
        (["mild", "low", "severe"], None),
    ],
)
def test_an_ordinal_objective_takes_categories_whose_order_can_be_seen(
    cells: list[str], ordered: list[str] | None
) -> None:
    frame = hospital(90, 1).assign(grade=cells * 30)
    config = Federation.from_tables({"a": frame}, "grade", "mrn").config.model_copy(update={"objective": "ordinal"})
    if ordered is None:
        with pytest.raises(DataError, match="'grade', the label, has no order that can be seen: write it as 1, 2, 3"):
            dataset_of(config)
        return
    dataset = dataset_of(config)
    assert dataset.schema.label.kind == "ordinal" and list(dataset.schema.label.categories) == ordered
    assert "categories in the order that they name" in dataset.notes[0]
    assert "with -c objective=ordinal alone" in tables(frames=hold({"a": frame}), label="grade").notes[0]


def test_an_objective_of_numbers_takes_a_label_of_few_numbers_and_no_words(tmp_path: Path) -> None:
    frame = hospital(90, 1).assign(falls=[0, 1, 2] * 30, ward=["a", "b", "c"] * 30)
    federation = Federation.from_tables({"a": frame, "b": frame.assign(mrn=range(90))}, "falls", out=str(tmp_path))
    result = federation.run(objective="poisson", rounds=1, privacy={"delta": 0.004}, pictures=False)
    assert result.folder.schema().label.kind == "integer" and list(result.predictions.columns)[-2] == "score_falls"
    with pytest.raises(DataError, match="'ward', the label, has 90 cells without a number.*objective=classification"):
        dataset_of(Federation.from_tables({"a": frame}, "ward", objective="squared").config)
    for objective in ("squared", "ordinal"):  # data.label takes a column as it was drafted
        with pytest.raises(ConfigError, match="name the column of your own tables by --label"):
            label = "ward" if objective == "squared" else "falls"
            federation.run(objective=objective, data={"label": label}, rounds=1)


def test_a_mark_for_missing_may_be_given_for_columns_of_any_kind(tmp_path: Path) -> None:
    frame = hospital(90, 1).astype(object)
    frame.loc[:9, ["sex", "creatinine"]] = ["U", "7.77"]
    frame.to_csv(tmp_path / "a.csv", index=False)
    records = tables(files=str(tmp_path / "a.csv"), label="died", missing=["U", "7.77"]).load()
    assert records["sex"].isna().sum() == 10 and records["creatinine"].isna().sum() == 10


def test_parquet_with_an_index_lists_times_and_durations(tmp_path: Path) -> None:
    frame = hospital(60, 1).assign(
        admitted=pd.date_range("2024-01-01", periods=60, freq="h", tz="Europe/Berlin"), sex=lambda t: t["sex"].astype("category"),
        stay=pd.to_timedelta(np.arange(60) * 1.5 + 1, "h"), codes=[["I10", "E11"][: row % 3] for row in range(60)],
    )  # fmt: skip
    frame.set_index("mrn").to_parquet(tmp_path / "a.parquet")
    dataset = tables(files=str(tmp_path / "a.parquet"), label="died")
    kinds = {column.name: column.kind for column in dataset.schema.features}
    assert kinds["sex"] == "categorical" and kinds["stay"] == "continuous" and kinds["codes"] == "code_set"
    assert "the patient 'mrn'" in " ".join(dataset.notes) and dataset.load()["stay"].tolist()[:2] == [1.0, 2.5]
    assert {column.name: column.role for column in dataset.schema.columns}["admitted"] == "time"
    assert dataset.load()["admitted"][1] == "2024-01-01T00:00:00"  # in UTC


@pytest.mark.parametrize(
    ("encoding", "separator"), [("utf-16", "\t"), ("cp1252", ";"), ("utf-8-sig", "|"), ("utf-8", ",")]
)
def test_csv_files_of_any_program_are_the_same_table(tmp_path: Path, encoding: str, separator: str) -> None:
    frame = hospital(60, 1).rename(columns={"age": "Größe, cm"})
    frame.to_csv(tmp_path / "a.csv", index=False, encoding=encoding, sep=separator)
    dataset = tables(files=str(tmp_path / "a.csv"), label="died")
    assert dataset.load().equals(tables(frames=hold({"a": frame}), label="died").load())
    (tmp_path / "b.xlsx").write_bytes(b"PK")
    assert "Not read, for they are neither CSV nor Parquet: b.xlsx." in tables(files=str(tmp_path), label="died").notes


def test_new_rows_are_read_as_the_tables_were() -> None:
    frame = hospital(90, 1).assign(weight=[f"{60 + row % 40} kg" for row in range(90)])
    schema = tables(frames=hold({"a": frame}), label="died").schema
    new = pd.DataFrame({
        "AGE": ["40", "-9"], "Creatinine": ["1,5", "n.a."], "sex": ["M", "f"], "weight": ["154.324 lb", "70"],
        "died": ["no", "yes"],
    })  # fmt: skip
    read, notes = read_as(new, schema)
    assert not notes and read["weight"].tolist() == pytest.approx([70, 70]) and read["creatinine"].tolist()[0] == 1.5
    assert (
        read["sex"].tolist() == ["m", "f"]
        and read["died"].tolist() == [0, 1]
        and read["age"].isna().tolist() == [False, True]
    )
    with pytest.raises(DataError, match="the model needs: 'creatinine', 'sex'.* an empty column does not help"):
        read_as(new.drop(columns=["Creatinine", "sex"]), schema)


def test_a_column_that_a_hospital_lacked_in_training_may_be_lacking_in_a_new_table() -> None:
    a = hospital(90, 1).assign(
        weight=[f"<{50}" if row < 9 else row for row in range(90)], icd=["I10;E11", "E11", ""] * 30
    )
    schema = tables(frames=hold({"a": a, "b": hospital(90, 2)}), label="died").schema
    assert "weight beyond limit" in [column.name for column in schema.features]
    read, notes = read_as(hospital(9, 3), schema)
    assert read["weight"].isna().all() and (read["weight beyond limit"] == 0).all() and (read["icd"] == "").all()
    assert notes == ["The table lacks columns, which are read as missing in every row: 'weight', 'icd'."]
    _, notes = read_as(hospital(9, 3).assign(wieght=70, icd="I10"), schema)
    assert notes == [
        "The table lacks columns, which are read as missing in every row: 'weight'. Did you mean 'wieght'?"
    ]
    only = tables(frames=hold({"a": a[["mrn", "weight", "died"]], "b": hospital(90, 2)[["mrn", "died"]]}), label="died")
    with pytest.raises(DataError, match="no column that the model reads: 'weight'"):
        read_as(hospital(9, 3), only.schema)


def test_new_rows_in_the_unit_of_an_amount_convert_by_the_columns_name() -> None:
    frame = hospital(90, 1)
    frame["creatinine"] = frame["creatinine"].astype(str) + " mg/dL"
    schema = tables(frames=hold({"a": frame}), label="died").schema
    row = pd.DataFrame({"age": [40], "creatinine": ["88.4 umol/L"], "sex": ["m"]})
    assert read_as(row, schema)[0]["creatinine"].tolist() == pytest.approx([1.0], abs=1e-3)


VISITS = pd.DataFrame(
    {
        "mrn": ["a", "b", "a", "a", "b", "c", "a"] * 40,
        "seen": ["2024-03-01", "2024-01-02", "2024-02-01", "", "2024-01-01", "2024-05-05", "2024-02-29"] * 40,
        "pulse": ["80", "61", "70", "99", "60", "55.5", ""] * 40,
        "fever": ["1", "0", "0", "0", "1", "0", "1"] * 40,
        "ward": ["x", "y", "y", "y", "", "y", "x"] * 40,
        "age": ["50", "40", "50", "50", "40", "30", "50"] * 40,
        "died": ["1", "0", "1", "1", "0", "1", "1"] * 40,
    }
)
VISITS["mrn"] += np.repeat(np.arange(40), 7).astype(str)


def test_visits_become_sequences_of_the_latest_in_the_order_of_time() -> None:
    dataset = tables(frames=hold({"all": VISITS}), label="died", patient="mrn", time="seen", steps=2)
    columns = {column.name: column for column in dataset.schema.columns}
    assert {name for name, column in columns.items() if column.kind == "trajectory"} == {
        "pulse",
        "fever",
        "before latest",
    }
    assert columns["pulse"].steps == 2 and columns["fever"].whole and columns["before latest"].bounds == (0.0, 1.0)
    records = dataset.load().set_index("mrn")
    a, b, c = (records.loc[name] for name in ("a0", "b0", "c0"))
    # The latest two of a's three visits that have a time; the earlier of them has no pulse, the patient's ward is the latest.
    assert np.isnan(a["pulse_00"]) and a["pulse_01"] == 80 and (a["fever_00"], a["fever_01"]) == (1, 1)
    assert a["before latest_00"] == 1 and a["before latest_01"] == 0 and a["ward"] == "x"
    assert (b["pulse_00"], b["pulse_01"], b["fever_00"], b["fever_01"]) == (60, 61, 1, 0) and b["ward"] == "y"
    assert np.isnan(c["pulse_00"]) and c["pulse_01"] == 55.5 and c["age"] == 30 and len(records) == 120
    notes = " ".join(dataset.notes)
    assert "240 visits of 120 patients are sequences of 2 steps" in notes and "patients have up to 3 visits" in notes
    assert "40 rows have no time that can be read" in notes and "the latest cell holds: ward." in dataset.readings[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"time": "sene", "steps": 2},
            "--time names 'sene', which is not a column of the tables. Did you mean 'seen'?",
        ),
        ({"time": "seen"}, "give --steps too"),
        ({"time": "seen", "steps": 101}, "--steps is 101, which must be from 2 to 100"),
        ({"steps": 3}, "give --time, the column of their time too"),
        ({"time": "ward", "steps": 3}, "Column 'ward' cannot be the time of visits"),
    ],
)
def test_visits_without_time_steps_or_patient_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError) as refused:
        tables(frames=hold({"all": VISITS}), label="died", patient="mrn", **options)
    assert words in str(refused.value)
    assert ("Did you mean" in str(refused.value)) == (options.get("time") == "sene")


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y", "%d-%b-%Y %H:%M"])
def test_the_dates_of_visits_may_be_written_otherwise(form: str) -> None:
    days = pd.to_datetime(VISITS["seen"], errors="coerce")
    given = VISITS.assign(seen=days.dt.strftime(form).fillna(""))
    read, expected = (
        tables(frames=hold({"all": frame}), label="died", patient="mrn", time="seen", steps=2).load()
        for frame in (given, VISITS)
    )
    pd.testing.assert_frame_equal(read.drop(columns="seen"), expected.drop(columns="seen"))
    unclear = VISITS.assign(seen="3/4/2024")
    with pytest.raises(DataError, match="dates whose day and month cannot be told apart"):
        tables(frames=hold({"all": unclear}), label="died", patient="mrn", time="seen", steps=2)
    american = VISITS.assign(seen=days.dt.strftime("%m/%d/%Y").fillna(""))
    frames = {"a": given, "b": american}
    both = tables(frames=hold(frames), label="died", patient="mrn", time="seen", steps=2).load()
    before = both.loc[both["hospital"] == "b", "before latest_00"].to_numpy()
    np.testing.assert_array_equal(before, expected["before latest_00"])
    with pytest.raises(DataError, match="Column 'seen' at b cannot be the time of visits"):
        tables(
            frames=hold(frames | {"b": VISITS.assign(seen="soon")}), label="died", patient="mrn", time="seen", steps=2
        )


def test_the_row_of_a_patient_is_read_as_its_sequence_was() -> None:
    schema = tables(frames=hold({"all": VISITS}), label="died", patient="mrn", time="seen", steps=2).schema
    row = {f"{name}_{step:02d}": "1" for name in ("fever", "before latest") for step in range(2)}
    row |= {"pulse_00": "", "pulse_01": "72", "ward": "x", "age": "44"}
    read, _ = read_as(pd.DataFrame([row]), schema)
    assert np.isnan(read["pulse_00"][0]) and read["pulse_01"][0] == 72 and "died" not in read
    with pytest.raises(DataError, match="lacks columns that the model needs: 'pulse_01'"):
        read_as(pd.DataFrame([row]).drop(columns="pulse_01"), schema)


def test_dates_split_patients_by_time(tmp_path: Path) -> None:
    frame = hospital(200, 1)
    days = pd.date_range("2023-01-01", periods=200, freq="D")
    forms = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d-%b-%Y %H:%M"]
    frame["admitted"] = [day.strftime(forms[row % 4]) for row, day in enumerate(days)]
    frame["mrn"] = range(200)
    result = Federation.from_frame(frame.assign(h=["a", "b"] * 100), "h", "died", out=str(tmp_path)).run(
        rounds=1, split={"time": "admitted:2023-06-01"}, pictures=False
    )
    assert "(split.time): admitted." in " ".join(result.summary["notes"])
    assert len(result.predictions) == (days >= "2023-06-01").sum()
    late = Federation.from_frame(frame.assign(h=["a", "b"] * 100), "h", "died", out=str(tmp_path))
    with pytest.raises(
        DataError, match="split.time is 'admitted:2030-01-01', by which no hospital holds a patient out"
    ):
        late.run(rounds=1, split={"time": "admitted:2030-01-01"}, pictures=False)


def test_a_patient_in_two_spellings_is_one_unit() -> None:
    frame = hospital(90, 1)
    frame["mrn"] = [["P1", "p1 ", "P 2", "7.0", "7"][row % 5] if row < 10 else f"q{row}" for row in range(90)]
    dataset = tables(frames=hold({"a": frame}), label="died")
    assert dataset.patients == 83 and "2 values of 'mrn' are another's in other spelling" in " ".join(dataset.notes)
    without = tables(frames=hold({"a": pd.concat([frame.drop(columns="mrn")] * 2)}), label="died")
    assert "90 rows are copies of others" in " ".join(without.notes)


@pytest.mark.parametrize("cells", [1, 4])
@pytest.mark.parametrize("name", ["mrn", "age", "creatinine", "sex", "weight", "icd", "died"])
def test_no_note_schema_draft_or_error_quotes_a_rare_cell(tmp_path: Path, name: str, cells: int) -> None:
    frame = (
        hospital(120, 1)
        .astype(object)
        .assign(weight=lambda t: [f"{50 + row % 40} kg" for row in range(120)], icd="I10;E11")
    )
    frame.loc[: cells - 1, name] = [f"{CANARY}-{row} kg" for row in range(cells)]
    frame.to_csv(tmp_path / "a.csv", index=False)
    for read in (
        lambda: tables(frames=hold({"a": frame}), label="died"),
        lambda: draft_schema(tmp_path / "a.csv", label="died"),
        lambda: draft_schema(tmp_path / "a.csv", label="died", look=True),
    ):
        try:
            text = str(read())
        except DataError as error:
            text = str(error)
            assert name == "died"
        assert CANARY not in text
