"""Tables of one's own: what is read out of messy files, what is left out, and that no message quotes a cell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation
from polyclinic.ehr.datasets.tables import hold, tables
from polyclinic.errors import ConfigError, DataError, PolyclinicError

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
    return {one.name: one for one in dataset.schema.columns}, dataset.load(), " ".join(dataset.notes)


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
    ],
)
def test_codes_for_missing_lie_far_from_every_number(cells: list[float], codes: set[float]) -> None:
    columns, records, notes = drafted([*cells, *(sorted(set(cells) - {-9, 999, -99}) * 20)[:45]])
    read = set(records["x"].dropna().astype(float))
    assert not codes & read and set(map(float, cells)) - codes <= read
    assert columns["x"].nullable == bool(codes) and ("read as a code for missing" in notes) == bool(codes)


def test_cells_beyond_a_limit_get_a_flag() -> None:
    columns, records, notes = drafted(["<0.4"] * 6 + ["0.9", "1.1"] * 12)
    assert columns["x beyond limit"].kind == "binary" and records["x beyond limit"].sum() == 6
    assert "6 cells of column 'x' are beyond a limit" in notes


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([f"text {row}" for row in range(60)], "free text"),
        ([1] * 60, "constant"),
        ([row + 4711 for row in range(60)], "an identifier"),
        ([f"{row % 28 + 1:02d}.03.2024" for row in range(60)], "a date"),
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
    (tmp_path / "bytes.csv").write_bytes(b'PAR1\x00\x01,\x02\n"' * 3)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Federation.from_tables(frames, "dead"), "Did you mean 'died'?"),
        (lambda: Federation.from_tables({}, "died"), "a table for each hospital"),
        (lambda: Federation.from_tables(frames | {"b": tmp_path / "a.csv"}, "died"), "not both"),
        (lambda: Federation.from_tables({"a": tmp_path / "none.csv"}, "died"), "no records found"),
        (lambda: Federation.from_tables({"a": tmp_path / "bytes.csv"}, "died"), "cannot be read"),
        (lambda: Federation.from_tables({"a": tmp_path / "a.csv"}, "died"), "cannot be the label"),
        (lambda: Federation.from_tables({"a": tmp_path / "ragged.csv"}, "died"), "cannot be read"),
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
