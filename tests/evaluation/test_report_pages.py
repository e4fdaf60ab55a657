"""The section on utility, and the page of several runs: what they say of made-up runs."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import ConfigError
from polyclinic.evaluation.assessment import assess
from polyclinic.evaluation.figures.utility import plot_hospitals
from polyclinic.evaluation.formats import size
from polyclinic.evaluation.report import render_comparison, render_report

WriteRun = Callable[..., Path]  # the fixtures of conftest.py
Evaluation = Callable[..., dict[str, Any]]
SITES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")


def text_of(html: str) -> str:
    shown = re.sub(r"<(script|style)>.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", shown)))


def figures_of(html: str) -> list[str]:
    return [b64decode(code).decode() for code in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]


def test_utility_stands_with_its_intervals_and_who_is_worst(write_run: WriteRun, evaluation: Evaluation) -> None:
    run = write_run(change=lambda s: s.update(evaluation=evaluation(column="sex", groups=["f", "m", "missing"])))
    found = json.loads((run / "summary.json").read_text())["evaluation"]
    html = render_report(run).read_text(encoding="utf-8")
    text = text_of(html)
    pooled, worst = found["pooled"]["auroc"], found["worst"]["auroc"]
    assert f"AUROC {pooled['value']:.3f} {pooled['low']:.3f} to {pooled['high']:.3f}" in text
    assert f"{worst['value']:.3f} {worst['low']:.3f} to {worst['high']:.3f} {worst['name']}" in text
    assert "by chance to" in text and "Groups by sex" in text and "f 110" in text
    assert "missing 20" in text  # of 4 hospitals 4 each, to the nearest ten
    assert len(figures_of(html)) == 8


def test_undefined_utility_says_why_and_shows_no_number(write_run: WriteRun) -> None:
    html = render_report(write_run(change=lambda summary: summary.update(evaluation=assess({}, 0)))).read_text()
    assert (
        "There are no intervals, curves or groups: no hospital's policy lets predictions of held-out patients leave"
        in text_of(html)
    )
    assert len(figures_of(html)) == 3


def test_groups_of_few_patients_and_of_silent_hospitals_are_not_shown(
    write_run: WriteRun, evaluation: Evaluation
) -> None:
    few = write_run(
        change=lambda s: s.update(evaluation=evaluation(SITES[:2], column="sex", groups=["f", "m", "missing"]))
    )
    assert "missing below 10 undefined undefined" in text_of(render_report(few).read_text())

    def hide(summary: dict[str, Any]) -> None:
        summary["evaluation"] = evaluation(column="sex", groups=["f", "m"])
        summary["evaluation"]["groups"] = {
            "column": "sex",
            "undefined": "the policy of 1 of 4",
            "groups": {},
            "gap": {},
        }

    assert "Undefined: the policy of 1 of 4." in text_of(render_report(write_run(change=hide)).read_text())


def test_names_in_the_evaluation_are_escaped(write_run: WriteRun, evaluation: Evaluation) -> None:
    evil = '"><script>alert(1)</script>&$x$'
    run = write_run(change=lambda s: s.update(evaluation=evaluation((evil, "b"), column=evil, groups=[evil, "m", "x"])))
    html = render_report(run).read_text(encoding="utf-8")
    assert html.count("<script") == 1 and evil in text_of(html)
    assert not any("<script" in figure for figure in figures_of(html))


def test_very_many_hospitals_are_drawn_without_names() -> None:
    sites = {f"s{i}": {"value": 0.5 + i / 1000, "low": 0.4, "high": 0.95} for i in range(200)}
    figure = plot_hospitals(sites, 0.7, "AUROC")
    assert figure is not None and figure.get_figheight() < 5
    assert plot_hospitals({"a": {"value": None, "low": None, "high": None}}, None, "AUROC") is None


def runs(write_run: WriteRun, evaluation: Evaluation, tmp_path: Path) -> list[Path]:
    found = []
    for number, (strategy, epsilon) in enumerate(
        [("fedavg", 1.0), ("fedavg", 4.0), ("fedadam", 4.0), ("fedavg", None)]
    ):

        def change(summary: dict[str, Any], strategy: str = strategy, epsilon: float | None = epsilon) -> None:
            summary |= {"strategy": strategy, "evaluation": evaluation(shift=1.0)}
            summary["privacy"] = summary["privacy"] | {"epsilon": epsilon}

        made = write_run(change=change, private=epsilon is not None)
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        for name in ("summary.json", "rounds.parquet"):
            (folder / name).write_bytes((made / name).read_bytes())
        (folder / "config.toml").write_text(
            f'strategy = "{strategy}"\nrounds = 12\n[privacy]\nepsilon = {epsilon or 1.0}\n'
        )
        found.append(folder)
    return found


def test_several_runs_stand_side_by_side(write_run: WriteRun, evaluation: Evaluation, tmp_path: Path) -> None:
    folders = runs(write_run, evaluation, tmp_path)
    done = CliRunner().invoke(app, ["report", *map(str, folders), "--out", str(tmp_path / "all.html"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == str(tmp_path / "all.html")
    html = (tmp_path / "all.html").read_text(encoding="utf-8")
    for words in ("run-0 fedavg 1.00", "run-2 fedadam 4.00", "run-3 fedavg no guarantee", "rounds = 12"):
        assert words in text_of(html), words
    assert "epsilon = " not in text_of(html).split("What the runs share")[1]
    assert len(figures_of(html)) == 2


def test_a_comparison_needs_runs_and_says_when_datasets_differ(
    write_run: WriteRun, evaluation: Evaluation, tmp_path: Path
) -> None:
    folders = runs(write_run, evaluation, tmp_path)
    with pytest.raises(ConfigError, match="at least two runs, not 1"):
        render_comparison(folders[:1], tmp_path / "x.html")
    summary = json.loads((folders[1] / "summary.json").read_text())
    (folders[1] / "summary.json").write_text(json.dumps(summary | {"dataset": "other", "evaluation": None}))
    html = render_comparison(folders[:2], tmp_path / "x.html").read_text()
    assert "different datasets" in html
    missing = CliRunner().invoke(app, ["report", str(folders[0]), "--out", str(tmp_path / "no" / "x.html")])
    assert "whose folder does not exist" in str(missing.exception)


def test_bytes_are_told_in_a_unit_that_suits_them() -> None:
    assert [size(n) for n in (12, 3500, 2.5e6, 4e12)] == ["12 B", "3.5 kB", "2.5 MB", "4,000.0 GB"]
