"""``polyclinic describe`` and ``Federation.describe``: tables to publish, what was paid, and mistakes that cost nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from polyclinic import Federation
from polyclinic.asking import ask
from polyclinic.cli import app
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.inspection.described import Described
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.description import Description
from tests.server.test_queries import charges, grid_of

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/json.md"


def describe(*arguments: object, as_json: bool = True) -> Any:
    done = CliRunner().invoke(app, ["describe", *map(str, arguments), *["--json"] * as_json])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout) if as_json else done.stdout


def test_one_budget_pays_for_the_whole_table(tmp_path: Path) -> None:
    out = tmp_path / "described"
    answer = describe(
        "mean_radius", "mean_area", "--dataset", "breast-cancer", "--by", "malignant", "--epsilon", 2, "--out", out
    )
    assert 1.98 < answer["privacy"]["epsilon"] <= 2
    for name in answer["sites"]:
        ledger = Ledger.read(Path(answer["ledger"]), name)
        assert [event["purpose"] for event in ledger.events()] == ["query-description"] and 1.98 < ledger.epsilon() <= 2
    assert sorted(path.name for path in (out / "tables").iterdir()) == [
        f"{name}.{kind}" for name in ("table1-hospitals", "table1") for kind in ("csv", "html", "tex")
    ]  # fmt: skip
    assert json.loads((out / "description.json").read_text()) == answer
    table = pd.read_csv(out / "tables" / "table1.csv", keep_default_na=False)
    assert list(table) == ["Variable", "Level", "Missing", "Overall", "malignant = 0", "malignant = 1", "SMD"]
    assert table["Variable"].tolist() == [
        "n", "mean_radius, mean (SD)", "mean_radius, median [Q1, Q3]", "mean_area, mean (SD)", "mean_area, median [Q1, Q3]",
    ]  # fmt: skip
    assert all("±" in cell for cell in table["Overall"])
    assert {*answer, *answer["columns"]["mean_area"]} <= set(re.findall("[a-z_]+", PAGE.read_text()))
    published = (out / "tables" / "table1.tex").read_text()
    assert r"\begin{tabular}" in published and r"\caption{Patients by malignant. Noise was added" in published
    assert "within ± in 95 % of releases" in (out / "tables" / "table1.html").read_text()


def test_columns_that_do_not_fit_the_terminal_are_named_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("mean_area", "--dataset", "breast-cancer", "--epsilon", 2, "-c", "sites=8", "-c", "partitioner=iid")
    monkeypatch.setenv("COLUMNS", "80")
    shown = describe(*given, "--out", tmp_path / "narrow", as_json=False)
    assert "SMD" not in shown.splitlines()[0] and "hospital-1" in shown.splitlines()[0]
    more = re.search(r"(\d+) more columns are in", shown)
    assert more and int(more[1]) + len(shown.splitlines()[0].split()) == 13 and "table1.csv" in shown
    monkeypatch.setenv("COLUMNS", "250")
    shown = describe(*given, "--out", tmp_path / "wide", as_json=False)
    assert "SMD" in shown.splitlines()[0] and "more columns" not in shown


def test_keys_of_a_run_have_no_part_in_a_description(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-c secure.aggregation is of a run"):
        describe(
            "mean_area",
            "--dataset",
            "breast-cancer",
            "--epsilon",
            1,
            "--out",
            tmp_path,
            "-c",
            "secure.aggregation=true",
        )
    with pytest.raises(ConfigError, match="--set is for a simulation"):
        describe("age", "--hospital", tmp_path / "hospital.toml", "--epsilon", 1, "-c", "sites=2")


def test_what_was_paid_for_is_not_overwritten_nor_paid_for_twice(tmp_path: Path) -> None:
    given = ("mean_area", "--dataset", "breast-cancer", "--epsilon", 1, "--out", tmp_path)
    describe(*given)
    with pytest.raises(ConfigError, match="choose another folder"):
        describe(*given)
    with pytest.raises(BudgetRefused):
        describe(*given[:-1], tmp_path / "again", "--ledger", tmp_path / "ledger.sqlite", "--budget", 1.5)


def test_the_terminal_shows_the_table_and_says_what_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = describe("malignant", "--dataset", "breast-cancer", "--exact", "--out", tmp_path, as_json=False)
    assert "malignant, n (%)" in shown and "212 (37.3 %)" in shown and "NOT private" in " ".join(shown.split())


def test_tables_of_ones_own_are_described_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        ages = rng.integers(30, 90, 200)
        pd.DataFrame({"mrn": np.arange(200), "age": ages, "died": (ages > 60).astype(int)}).to_csv(
            tmp_path / f"{site}.csv", index=False
        )
    given = ("--data", tmp_path, "--label", "died", "--patient", "mrn", "--by", "died", "--exact")
    answer = describe(*given, "--out", tmp_path / "out")
    records = pd.concat(pd.read_csv(tmp_path / f"{site}.csv") for site in ("north", "south"))
    assert answer["columns"]["age"]["overall"]["mean"]["value"] == pytest.approx(records["age"].mean(), rel=1e-9)
    assert set(answer["sites"]) == {"north", "south"} and answer["groups"]["1"]["value"] == records["died"].sum()
    with pytest.raises(ConfigError, match="--label is for your own tables"):
        describe("--dataset", "breast-cancer", "--label", "died", "--exact", "--out", tmp_path / "other")


def test_real_hospitals_answer_each_by_its_own_policy(tmp_path: Path) -> None:
    result = ask(grid_of(tmp_path, "", "", "smallest-noise-multiplier = 90.0"), Description(by="died", epsilon=0.9))
    assert list(result["sites"]) == ["h1", "h2"] and result["dropouts"][0]["site"] == "h3"
    assert [charges(tmp_path, number) for number in (1, 2, 3)] == [1, 1, 0]
    figure = result["columns"]["age"]["overall"]["mean"]
    assert 40 < figure["low"] < figure["high"] < 70
    # Real noise: the interval has 95 %, of which three halves are all but certain.
    assert abs(figure["value"] - 54) < 1.5 * (figure["high"] - figure["low"])
    (tmp_path / "new").mkdir()
    with pytest.raises(BudgetRefused, match="without privacy"):
        ask(grid_of(tmp_path / "new", ""), Description(epsilon=None))


def test_from_python_a_table_is_a_data_frame(tmp_path: Path) -> None:
    federation = Federation.from_dataset("breast-cancer")
    described = federation.describe(["mean_radius"], by="malignant", exact=True, ledger=tmp_path / "ledger.sqlite")
    assert described.table["SMD"].tolist() == ["", "2.051", ""]
    assert "<table" in described._repr_html_() and "NOT private" in described._repr_html_()
    with pytest.raises(ConfigError, match="exactly one of epsilon"):
        federation.describe()


def test_the_page_shows_what_heart_disease_gives(heart_disease: None, tmp_path: Path) -> None:
    page = (PAGE.parents[1] / "describe.md").read_text()
    lines = [line.split()[1:] for line in page.splitlines() if line.startswith("polyclinic ")]
    shown = []
    for command, *arguments in lines:
        out = ["--out", str(tmp_path / command)]
        given = arguments[: arguments.index("--out")] if "--out" in arguments else arguments
        done = CliRunner().invoke(app, [command, *given, *out, "--json"], catch_exceptions=False)
        answer = json.loads(done.stdout)
        tables = Described(answer).tables[:1] if command == "describe" else answer["analysis"]["tables"]
        # The noise of a question follows the digest of the schema, so of its table the rows' names are compared.
        shown += [row[: 2 if command == "describe" else None] for table in tables for row in table["shown"]]
    assert [command for command, *_ in lines] == ["describe", "components", "clusters"] and len(shown) == 25
    for row in shown:
        assert "| " + " | ".join(row) + " |" in page, row
