"""``polyclinic review`` as a person uses it; drawing from a run is in docs/synthesis/review.md, which tests/docs runs."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import PolyclinicError
from polyclinic.plugins import dataset_named
from tests.cli.test_json_page import NAMED, keys

SCHEMA = dataset_named("trial").schema


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A hospital's records, synthetic ones with all digits and without a site, and the schema."""
    assert (generate := dataset_named("trial").generate) is not None
    generate(2, 60, 0).to_csv(tmp_path / "records.csv", index=False)
    generate(2, 60, 1).drop(columns="site").to_parquet(tmp_path / "made.parquet")
    SCHEMA.to_toml(tmp_path / "schema.toml")
    return tmp_path


def called(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["review", *map(str, arguments)])


def make(tables: Path, *more: object) -> Result:
    given = ("--records", tables / "records.csv", "--schema", tables / "schema.toml", "--out", tables / "review")
    return called("make", tables / "made.parquet", *given, "--patients", 40, *more)


def answers(tables: Path, name: str, seed: int) -> Path:
    key = json.loads((tables / "review/answer-key.json").read_text())
    rng = np.random.default_rng(seed)
    given = [
        {"patient": number, "score": int(rng.integers(11)), "guess": "real" if rng.random() < 0.5 else "synthetic"}
        for number in range(1, 41)
    ]
    file = tables / f"scores-{name}.json"
    saved = {"format": "polyclinic-review-scores/1", "packet": key["packet"], "reviewer": name, "answers": given}
    file.write_text(json.dumps(saved))
    return file


def test_a_review_from_packet_to_result(tables: Path) -> None:
    done = make(tables, "--seed", 1)  # which patient has which number decides whether these scores tell them apart
    assert done.exit_code == 0, done.output
    for said in ("packet.html: 40 patients", "for no reviewer", "It stays at the hospital", "spends no epsilon"):
        assert said in done.stdout
    files = [answers(tables, "AB", 0), answers(tables, "CD", 1)]
    done = called("score", tables / "review", *files)
    assert done.exit_code == 0, done.output
    assert "pooled" in done.stdout and "no evidence that there is none" in done.stdout
    found = json.loads(called("score", tables / "review", *files, "--json").stdout)
    assert found == json.loads((tables / "review/review.json").read_text()) and not set(keys(found)) - NAMED
    assert "AB" in (tables / "review/review.html").read_text()


def test_the_seed_makes_it_again_and_without_one_nobody_can(tables: Path) -> None:
    packets = [
        json.loads(make(tables, "--seed", 7, "--json", "--out", tables / name).stdout)["packet"] for name in "ab"
    ]
    assert packets[0] == packets[1] and not set(keys(json.loads(make(tables, "--json").stdout))) - NAMED
    make(tables, "--out", tables / "c")
    seeds = {json.loads((tables / name / "answer-key.json").read_text())["seed"] for name in ("review", "c")}
    assert len(seeds) == 2 and str(max(seeds)) not in (tables / "c/packet.html").read_text()


def test_codes_have_their_names_and_wrong_names_are_refused(tables: Path) -> None:
    (tables / "names.csv").write_text("code,name\nI21,Acute myocardial infarction\n")
    assert make(tables, "--names", tables / "names.csv").exit_code == 0
    (tables / "names.csv").write_text("I21,Acute myocardial infarction\n")
    done = make(tables, "--names", tables / "names.csv", "--out", tables / "other")
    assert "columns 'code' and 'name'" in str(done.exception)


def test_a_hospitals_own_file_gives_its_records(tables: Path) -> None:
    records = pd.read_csv(tables / "records.csv").rename(columns={"age": "years"})
    records.to_csv(tables / "own.csv", index=False)
    (tables / "mapping.toml").write_text('[columns.age]\nfrom = "years"\n')
    (tables / "hospital.toml").write_text(
        'site = "North"\ndata = "own.csv"\nschema = "schema.toml"\nmapping = "mapping.toml"\nhome = "home"\n'
        "[policy]\nbudget = 2.0\ndelta = 1e-4\n"
    )
    packets = [
        make(tables, "--records", tables / name, "--seed", 5, "--out", tables / name.split(".")[0], "--json")
        for name in ("records.csv", "hospital.toml")
    ]
    assert packets[0].exit_code == 0 == packets[1].exit_code, packets[1].exception
    assert json.loads(packets[0].stdout)["packet"] == json.loads(packets[1].stdout)["packet"]


def test_a_table_drawn_for_another_schema_is_refused(tables: Path) -> None:
    certificate = {"schema": {"name": "trial"}, "columns": ["patient", "age", "controlled"]}
    (tables / "made.certificate.json").write_text(json.dumps(certificate))
    assert "was drawn for the schema 'trial' with other columns" in str(make(tables).exception)
    (tables / "made.certificate.json").write_text("{}")
    assert "cannot be read as a certificate" in str(make(tables).exception)


def test_wrong_use_is_one_sentence_and_leaves_nothing(tables: Path) -> None:
    made = pd.read_parquet(tables / "made.parquet")
    made.assign(height=1.0).to_csv(tables / "more.csv", index=False)
    made.drop(columns="age").to_csv(tables / "fewer.csv", index=False)
    pd.read_csv(tables / "records.csv").drop(columns="site").to_csv(tables / "copy.csv", index=False)
    wrong: dict[str, tuple[object, ...]] = {
        "no column 'height'; real and synthetic patients must be of one schema": ("make", tables / "more.csv"),
        "column 'age' is missing": ("make", tables / "fewer.csv"),
        "60 of 60 synthetic patients equal a real one": ("make", tables / "copy.csv"),
        "60 real patients; a packet of 200": ("make", tables / "made.parquet", "--patients", 200),
        "no records found": ("make", tables / "none.csv"),
    }
    before = sorted(path.name for path in tables.iterdir())
    given = ("--records", tables / "records.csv", "--schema", tables / "schema.toml", "--patients", 40)
    for said, arguments in wrong.items():
        done = called(*arguments[:2], *given, "--out", tables / "review", *arguments[2:])
        assert isinstance(done.exception, PolyclinicError) and done.exception.exit_code == 2
        assert re.search(re.escape(said), str(done.exception)), done.exception
        assert sorted(path.name for path in tables.iterdir()) == before
    done = called("make", tables / "made.parquet", "--out", tables / "review")
    assert "exactly one of --records" in str(done.exception)
    done = called("make", tables / "made.parquet", "--out", tables / "review", "--records", tables / "records.csv")
    assert "--schema is not given" in str(done.exception)
