"""A packet of real and synthetic patients: on one grid, in an order that says nothing, and by nothing but values told apart."""

from __future__ import annotations

import json
import re
import resource
import stat
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Checked, check_records
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.review.form import render_form
from polyclinic.evaluation.review.grid import bare, decimals, on_grid, steps
from polyclinic.evaluation.review.packet import choose, read_names, write_packet

SCHEMA = Schema(
    name="ward",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="hospital", kind="categorical", role="site"),
        Column(name="age", kind="continuous", unit="years", bounds=(0.0, 120.0)),
        Column(name="creatinine", kind="continuous", unit="mg/dl", bounds=(0.0, 20.0), nullable=True),
        Column(name="sex", kind="categorical", categories=("female", "male")),
        Column(name="sbp", kind="trajectory", steps=3, unit="mmHg", bounds=(60.0, 240.0), nullable=True),
        Column(name="diagnoses", kind="code_set", categories=("401", "250", "I<10")),
        Column(name="died", kind="binary", role="label"),
    ),
)
SHOWN = bare(SCHEMA)


def ward(rows: int, seed: int, digits: int | None = None, missing: float = 0.2) -> pd.DataFrame:
    """Records as a hospital writes them, or with ``digits=None`` as a generator does, with all digits."""
    rng = np.random.default_rng(seed)

    def written(values: np.ndarray, here: int, holes: float = 0.0) -> np.ndarray:
        values = values if digits is None else np.round(values, here)
        return np.where(rng.random(rows) < holes, np.nan, values)

    return pd.DataFrame(
        {
            "patient": [f"{'mrn' if digits is not None else 'synthetic'}-{seed}-{row}" for row in range(rows)],
            "hospital": "St. Elsewhere",
            "age": written(rng.uniform(20, 90, rows), 0),
            "creatinine": written(rng.uniform(0.4, 6, rows), 1, missing),
            "sex": rng.choice(["female", "male"], rows),
            **{f"sbp_{visit:02d}": written(rng.uniform(90, 180, rows), 0, missing) for visit in range(3)},
            "diagnoses": [
                ";".join(c for c in ("250", "401", "I<10") if rng.random() < 0.5 or not missing) for _ in range(rows)
            ],
            "died": rng.integers(0, 2, rows),
        }
    )


def checked(records: pd.DataFrame) -> Checked:
    return check_records(records, SHOWN, "ward")


REAL, MADE = checked(ward(80, 1, digits=0)), checked(ward(80, 2))


@settings(max_examples=40)
@given(
    st.sampled_from([5.0, 2.5, 2.0, 1.0, 0.5, 0.25, 0.2, 0.1, 0.05]),
    st.lists(st.integers(1, 300), min_size=25, max_size=25, unique=True),
)
def test_the_grid_is_that_of_the_hospitals_readings(step: float, places: list[int]) -> None:
    places = [1, 2, *places]  # without neighbours a wider grid could hold them all
    schema = Schema(
        name="x",
        columns=(
            Column(name="v", kind="continuous", bounds=(0.0, 1600.0 * step)),
            Column(name="y", kind="binary", role="label"),
        ),
        unit="record",
    )
    records = check_records(pd.DataFrame({"v": np.array(places) * step, "y": 0}), schema, "x")
    found = steps(records, schema)["v"]
    assert found == pytest.approx(step) or (
        found > step and np.mean(np.round(np.array(places) * step / found, 6) % 1 == 0) > 0.9
    )
    cells = on_grid(records, schema, {"v": step}).cells[:, 0]
    assert cells.tolist() == places
    assert [f"{n * step:.{decimals(step)}f}" for n in cells] == [
        f"{n * step:.2f}"[: -2 + decimals(step) or None].rstrip(".") for n in cells
    ]


def test_how_a_table_writes_a_value_cannot_be_seen(tmp_path: Path) -> None:
    records = ward(30, 3, digits=0)
    spelled = records.astype({"age": "int64"}).astype(str).replace({"nan": None})
    spelled["sex"] = " " + spelled["sex"]
    spelled["diagnoses"] = [" ; ".join(reversed(cell.split(";"))) for cell in records["diagnoses"]]
    grid = steps(REAL, SHOWN)
    pages = [render_form([on_grid(checked(one), SHOWN, grid).cells], SHOWN, grid, {})[0] for one in (records, spelled)]
    assert (
        pages[0] == pages[1]
        and ">63.0<" not in pages[0]
        and "nan" not in pages[0].split("<main>")[1].split("<script>")[0]
    )


def test_all_digits_of_a_generator_are_rounded_to_the_hospitals() -> None:
    grid = steps(REAL, SHOWN)
    assert grid["age"] == 1 and grid["creatinine"] == pytest.approx(0.1) and grid["sbp"] == 1
    few = steps(checked(ward(4, 1, digits=0).assign(age=[20, 40, 60, 80])), SHOWN)
    assert few["age"] == 1  # four readings do not make a grid of twenty years


@settings(max_examples=25)
@given(st.integers(2, 30), st.integers(0, 2**40))
def test_half_are_real_none_is_there_twice_and_the_seed_decides(half: int, seed: int) -> None:
    packet, again = (choose(REAL, MADE, SHOWN, 2 * half, seed) for _ in range(2))
    assert len(packet.patients) == 2 * half and sum(packet.real) == half
    keys = [cells.tobytes() for cells in packet.patients]
    assert (
        len(set(keys)) == 2 * half
        and packet.real == again.real
        and keys == [cells.tobytes() for cells in again.patients]
    )
    for table, real in ((REAL, True), (MADE, False)):
        known = {row.tobytes() for row in on_grid(table, SHOWN, packet.grid).cells}
        assert all((key in known) == (is_real == real) for key, is_real in zip(keys, packet.real, strict=True))


def test_where_the_real_ones_stand_says_nothing() -> None:
    places = np.array([choose(REAL, MADE, SHOWN, 20, seed).real for seed in range(100)])
    assert (np.abs(places.mean(axis=0) - 0.5) < 0.2).all()  # 4 standard errors
    beside = (places[:, 1:] == places[:, :-1]).mean()
    assert abs(beside - 9 / 19) < 0.04


class Articles(HTMLParser):
    """What a page says of each patient: tags, attributes and texts in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.articles: list[list[str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside |= tag == "article"
        if tag == "article":
            self.articles.append([])
        if self.inside:
            self.articles[-1].append(f"{tag} {attrs}")

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.articles[-1].append(f"text {data}")


def without_values(article: list[str]) -> tuple[str, ...]:
    """The article with every number a #, but for its decimals, and words that are values by their column."""
    texts = (re.sub(r"\bfemale|male\b", "SEX", re.sub(r"\btext (yes|no)$", "YES/NO", text)) for text in article)
    return tuple(re.sub(r"[ML]?\d+(\.\d+)?( \d+\.\d)?", r"#\1" if text[:4] == "text" else "#", text) for text in texts)


def test_nothing_but_values_tells_real_from_synthetic(tmp_path: Path) -> None:
    real, made = checked(ward(30, 4, digits=0, missing=0)), checked(ward(30, 5, missing=0))
    packet = choose(real, made, SHOWN, 40, 6)
    page, _ = render_form(packet.patients, SHOWN, packet.grid, {"401": "Essential hypertension"})
    kinds = {
        without_values([re.sub(r"^(text \d+\.)\d $", r"\g<1>0", text) for text in one])
        for one in Articles(page).articles
    }
    assert len(Articles(page).articles) == 40 and len(kinds) == 1
    assert "text #.0" in next(iter(kinds))  # creatinine, with one decimal for all
    assert "Essential hypertension" in page and "I&lt;10" in page and "I<10" not in page


def test_the_form_names_no_one_and_the_key_says_who_is_real(tmp_path: Path) -> None:
    packet = choose(REAL, MADE, SHOWN, 20, 987654321)
    key = write_packet(packet, SHOWN, 987654321, tmp_path / "review", sources={"real": "secret.csv"})
    page = (tmp_path / "review/packet.html").read_text()
    for word in ("mrn-", "synthetic-2", "Elsewhere", "987654321", "secret.csv", "hospital</dt>", "http:", "https:"):
        assert word not in page
    assert page.count("It stays at the hospital.") >= 4  # seen, printed twice, and for machines
    assert key == json.loads((tmp_path / "review/answer-key.json").read_text())
    assert key["packet_sha256"] == sha256(page.encode()).hexdigest() and key["packet"] in page
    assert key["real"] == [number for number, real in enumerate(packet.real, start=1) if real]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "review").iterdir()}
    assert modes == {"packet.html": 0o600, "answer-key.json": 0o600, "README.txt": 0o600}
    assert stat.S_IMODE((tmp_path / "review").stat().st_mode) == 0o700


def test_how_many_records_a_patient_has_does_not_tell(tmp_path: Path) -> None:
    records = ward(80, 1, digits=0)
    several = checked(records.assign(patient=[f"mrn-{row // 4}" for row in range(80)]))
    packet = choose(several, MADE, SHOWN, 40, 0)
    assert packet.one_record and {len(cells) for cells in packet.patients} == {1} and sum(packet.real) == 20
    many = checked(ward(80, 2).assign(patient=[f"s-{row // 2}" for row in range(80)]))
    whole = choose(several, many, SHOWN, 40, 0)
    assert {len(cells) for cells, real in zip(whole.patients, whole.real, strict=True) if real} == {4}
    assert "Record 4 of 4" in render_form(whole.patients, SHOWN, whole.grid, {})[0]


def test_copies_of_real_patients_are_refused_or_left_out() -> None:
    made, real = ward(30, 2), ward(30, 1, digits=0)
    made.iloc[:5, 2:] = real.iloc[10:15, 2:].to_numpy()
    made.loc[0, "age"] += 0.3  # still a copy, as reviewers would see it
    tables = checked(real), checked(made)
    with pytest.raises(DataError, match="5 of 30 synthetic patients equal a real one"):
        choose(*tables, SHOWN, 40, 0)
    packet = choose(*tables, SHOWN, 40, 0, leave_out_copies=True)
    assert packet.copies == 5 and len({cells.tobytes() for cells in packet.patients}) == 40
    with pytest.raises(DataError, match="25 synthetic patients that equal no real one .5 do.; a packet of 60 needs 30"):
        choose(*tables, SHOWN, 60, 0, leave_out_copies=True)


@pytest.mark.parametrize(("patients", "seed", "said"), [(99, 0, "is 99"), (2, 0, "is 2"), (20, -1, "--seed is -1")])
def test_impossible_packets_are_refused(patients: int, seed: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose(REAL, MADE, SHOWN, patients, seed)
    with pytest.raises(DataError, match="80 real patients; a packet of 200 needs 100"):
        choose(REAL, MADE, SHOWN, 200, 0)


def test_a_packet_is_never_replaced_and_never_half_there(tmp_path: Path) -> None:
    packet = choose(REAL, MADE, SHOWN, 20, 0)
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_packet(packet, SHOWN, 0, tmp_path / "there")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_packet(packet, SHOWN, 0, tmp_path / "no" / "folder")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, unlimited[1]))  # as if the disk were full
    try:
        with pytest.raises(ConfigError, match="new cannot be written: File too large"):
            write_packet(packet, SHOWN, 0, tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_order_of_a_tables_rows_does_not_tell() -> None:
    """A hospital's rows are sorted by something, a generator's are not."""
    two = [one.assign(patient=[f"p{number // 2}" for number in range(80)]) for one in (ward(80, 1, 0), ward(80, 2))]
    real, made = checked(two[0].sort_values("creatinine", ascending=False)), checked(two[1])
    shown = choose(real, made, SHOWN, 80, 3).patients
    assert all(len(one) == 2 and one[0, 0] <= one[1, 0] for one in shown)


def test_names_of_codes_from_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code,name\n250,diabetes\n", encoding="utf-8-sig")
    assert read_names(tmp_path / "codes.csv") == {"250": "diabetes"}
