"""The rule of a verdict, and the table of all targets: what counts, what does not and why, what is run and what is not."""

import json
import math
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import DataError
from polyclinic.experiments import Asked, Experiment, Findings, Say, Target, experiments, target_of, verdict_of
from polyclinic.experiments.commits import commit_of
from polyclinic.experiments.targets import FEWEST, SURE
from polyclinic.experiments.together import gather, run_all
from polyclinic_studies.tables import margin, smallest


def target(met: bool | None = True, **more: Any) -> Target:
    return Target(**{"id": "R3", "what": "error", "paper": "", "measured": ".1", "goal": "<= .2", "met": met, **more})


@pytest.mark.parametrize(
    ("more", "met", "why"),
    [
        ({"seeds": 12, "margin": 2.0}, True, ""),
        ({"seeds": 12}, True, ""),
        ({"seeds": 5, "of": "splits", "margin": 3.0}, True, ""),
        ({"exact": "a count"}, True, ""),
        ({"seeds": 11, "margin": 9.0}, None, "11 seeds; a verdict needs 12"),
        ({"seeds": 1}, None, "1 seed; a verdict needs 12"),
        ({"seeds": 4, "of": "splits"}, None, "4 splits; a verdict needs 5"),
        ({"seeds": 12, "margin": 1.9}, None, "met by 1.90 standard errors, fewer than 2: other seeds may miss it"),
        ({}, None, "the number of seeds was not recorded"),
        ({"exact": "a count", "goal": ""}, None, "no goal: shown beside the others"),
        ({"met": None, "seeds": 12}, None, "not judged"),
        ({"seeds": 12, "met": False, "margin": -0.1}, False, ""),
        ({"seeds": 20, "why": "R17 asks 30"}, None, "R17 asks 30"),
        ({"seeds": 12, "margin": math.nan}, None, "its margin is not a finite number"),
        ({"exact": "a count", "margin": math.inf}, None, "its margin is not a finite number"),
    ],
)
def test_what_counts_as_met(more: dict[str, Any], met: bool | None, why: str) -> None:
    judged = target(**more).judge()
    assert (judged.met, judged.why) == (met, why)
    assert judged.judge() == judged  # the rule may be applied to what it gave
    assert target(**more).judge(quick=True).met is None


@given(
    st.builds(
        target,
        met=st.sampled_from([True, False, None]),
        goal=st.sampled_from(["", "<= .2"]),
        seeds=st.none() | st.integers(0, 30),
        of=st.sampled_from(sorted(FEWEST)),
        exact=st.sampled_from(["", "a count"]),
        margin=st.none() | st.floats(),
    )
)
def test_nothing_is_met_by_few_seeds_or_by_little(one: Target) -> None:
    judged = one.judge()
    assert judged.met in (one.met, None)
    assert (judged.met is None) == bool(judged.why)
    if judged.met:
        assert one.exact or (one.seeds or 0) >= FEWEST[one.of]
        assert one.exact or one.margin is None or one.margin >= SURE
    assert judged.margin is None or math.isfinite(judged.margin)


def test_a_margin_counts_standard_errors_beyond_the_goal() -> None:
    values = [0.8, 0.9, 1.0]  # mean .9, standard error .0577
    assert margin(values, 0.8) == pytest.approx(0.1 / (0.1 / 3**0.5))
    assert margin(values, 0.8, least=False) == pytest.approx(-0.1 / (0.1 / 3**0.5))
    assert margin([1.0, 1.0], 0.5) is None is margin([1.0], 0.5)
    assert smallest([None, 3.0, 1.0]) == 1.0 and smallest([None]) is None


def test_a_method_meets_a_goal_by_all_its_targets_together() -> None:
    def by(name: str, *verdicts: bool | None) -> list[Target]:
        return [target(met, by=name, exact="a count").judge() for met in verdicts]

    every = [*by("a", True, True), *by("b", True, False), *by("c", True, None)]
    assert verdict_of(every) == "met by `a`; missed by `b`; no verdict on `c` (not judged)"
    assert verdict_of(by("", True, True)) == "met (2 of 2)"
    assert verdict_of([]) == "nothing measured"
    assert "1 of 2, error: .1" in verdict_of(by("", True, False))


def test_a_target_without_its_parts_is_refused() -> None:
    with pytest.raises(DataError, match="must have id, what"):
        target_of({"id": "R1"})
    assert target_of({**asdict(target()), "later": 1}) == target()


@pytest.mark.parametrize(
    "part", [{"met": 1}, {"met": "yes"}, {"seeds": True}, {"seeds": "12"}, {"margin": "3"}, {"of": "folds"}, {"goal": None}]
)  # fmt: skip
def test_a_target_with_what_no_target_has_is_refused(part: dict[str, Any]) -> None:
    """Else a goal would count as met by 1, or ``True`` as a number of seeds."""
    with pytest.raises(DataError, match=f"has {next(iter(part))} "):
        target_of(asdict(target()) | part)


def test_a_preset_without_epsilon_meets_no_goal(tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    results = {"name": "games", "preset": "paper", "quick": False, "targets": [asdict(target(seeds=12, margin=5.0))]}
    (tmp_path / "games/results.json").write_text(json.dumps(results))
    assert gather({}, tmp_path)["targets"][0]["why"] == "the preset 'paper', which keeps no epsilon"


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_is_of_the_packages_alone(tmp_path: Path) -> None:
    package, other = tmp_path / "package", tmp_path / "results"
    for folder in (package, other):
        folder.mkdir()
        (folder / "a.py").write_text("1")
    assert commit_of([package]) is None  # no checkout
    git(tmp_path, "init", "-q")
    assert commit_of([package]) is None  # not part of it, as an environment within one
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "--short=8", "HEAD").strip()
    (other / "a.py").write_text("2")
    assert commit_of([package]) == head
    (package / "a.py").write_text("2")
    assert commit_of([package, other]) == f"{head}-dirty"


RUNS: list[str] = []


def sound(asked: Asked, say: Say) -> Findings:
    """Two targets, of which one has no verdict."""
    RUNS.append(asked.out.name)
    ours = (
        target(seeds=12, margin=4.0, by="a"),
        target(seeds=3, by="b"),
        Target("R12", "x", "", "1", "1", True, exact="a count"),
    )
    return Findings({"seeds": 12}, ours, {}, "words\n")


def failing(asked: Asked, say: Say) -> Findings:
    """As one whose files are not there."""
    raise DataError("there are no files.")


KNOWN = {
    "bad": Experiment("fails", f"{__name__}:failing", goals={"R2": "never run"}),
    "good": Experiment("finds", f"{__name__}:sound", goals={"R12": "a count", "R3": "small errors"}, hours=3.0),
}


def test_all_experiments_are_run_once_and_a_failing_one_stops_no_other(tmp_path: Path) -> None:
    said: list[str] = []
    RUNS.clear()
    assert run_all(KNOWN, tmp_path, False, said.append) == {"bad": "there are no files."}
    assert "2 of 2 experiments are to be run, about 3 hours of one core" in said[0]
    assert any("failed: there are no files." in line for line in said)
    assert run_all(KNOWN, tmp_path, False, said.append).keys() == {"bad"} and RUNS == ["good"]
    assert run_all(KNOWN, tmp_path, True, said.append).keys() == {"bad"} and RUNS == ["good", "good"]  # another form
    (tmp_path / "good/results.json").write_text("{")  # stopped while it was written by other means
    run_all(KNOWN, tmp_path, False, said.append)
    assert len(RUNS) == 3


def test_one_table_has_all_targets_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run_all(KNOWN, tmp_path, False, lambda line: None)
    whole = gather(KNOWN, tmp_path)
    assert [line["id"] for line in whole["goals"]] == ["R2", "R3", "R12"] and whole["not run"] == ["bad"]
    assert whole["goals"][0]["verdict"] == "nothing measured"
    assert whole["goals"][1] == {"id": "R3", "what": "small errors", "met": 1,
                                 "verdict": "met by `a`; no verdict on `b` (3 seeds; a verdict needs 12)",
                                 "missed": 0, "open": 1, "experiments": ["good"]}  # fmt: skip
    assert json.loads((tmp_path / "targets.json").read_text()) == whole
    page = (tmp_path / "targets.md").read_text()
    assert "| R3 | good | error |  | .1 | 3 seeds | <= .2 | no verdict: 3 seeds; a verdict needs 12 |" in page
    assert "Not run: bad." in page and str(tmp_path) not in page and "No single run" not in page
    assert gather(KNOWN, tmp_path) == whole


def test_results_of_before_are_judged_by_the_rule_of_today(tmp_path: Path) -> None:
    old = {"name": "old", "committed": "0123abcd", "targets": [
        {"id": "own", "what": "x", "paper": "", "measured": "1", "goal": "1", "met": True}]}  # fmt: skip
    (tmp_path / "old").mkdir()
    (tmp_path / "old/results.json").write_text(json.dumps(old))
    whole = gather({}, tmp_path)
    assert whole["targets"][0]["met"] is None and whole["targets"][0]["commit"] == "file of 0123abcd"
    (tmp_path / "new").mkdir()
    (tmp_path / "new/results.json").write_text(json.dumps(old | {"name": "new", "commit": "4567cdef"}))
    gather({}, tmp_path)
    assert "at these commits: `new` 4567cdef, `old` file of 0123abcd." in (tmp_path / "targets.md").read_text()
    assert whole["own"] == [{"experiment": "old", "verdict": whole["own"][0]["verdict"], "met": 0, "missed": 0, "open": 1,
                             "experiments": ["old"]}]  # fmt: skip
    (tmp_path / "old/results.json").write_text("{")
    with pytest.raises(DataError, match="is not the results of an experiment"):
        gather({}, tmp_path)


@pytest.mark.parametrize(
    "words",
    [["all", "--seeds", "3"], ["all", "--full", "--quick"], ["all", "--preset", "paper"], ["gdp", "--full"]],
)
def test_what_all_does_not_take_is_refused(words: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
    assert getattr(found.exception, "exit_code", found.exit_code) == 2


def test_the_command_gathers_what_is_there(tmp_path: Path) -> None:
    run_all({"good": KNOWN["good"]}, tmp_path, False, lambda line: None)
    done = CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout)
    assert whole["failed"] == {} and set(whole["not run"]) == set(experiments()) - {"good"}
    shown = CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path)])
    assert "targets.md" in shown.stdout and "met by" in shown.stdout
    empty = CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path / "empty")])
    assert isinstance(empty.exception, DataError)
    assert "empty has no results; polyclinic reproduce all --full" in str(empty.exception)
    assert not (tmp_path / "empty").exists()


def test_goals_are_stated_once() -> None:
    stated = [id for experiment in experiments().values() for id in experiment.goals]
    assert sorted(stated, key=lambda id: int(id[1:])) == [f"R{number}" for number in range(1, 18)]
