"""Experiments by name: what is asked and refused, what is left in a folder, and that finished parts are not run again."""

import json
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.intervals import Interval
from polyclinic.experiments import Asked, Findings, Target, experiment_named, experiments, markdown, reproduce, write
from polyclinic_studies.generators import digits, icd, mimic_hf, sprint, stated
from polyclinic_studies.generators.hospitals import errors_apart
from polyclinic_studies.generators.transfer_study import Study, of, read_judged, score_table, study
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import between, mean, spread

TRIAL: dict[str, Any] = {"dataset": "trial", "sites": 2, "task": "synthesis"}
MOMENTS: dict[str, Any] = {"model": "moments", "privacy.epsilon": 5.0, "privacy.delta": 1e-4}


def _quiet(line: str) -> None:
    pass


def test_an_unknown_experiment_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'sprint'"):
        experiment_named("sprnt")


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("sprint", {"hospitals": -1}, "--hospitals is -1"),
        ("icd", {"seeds": -2}, "--seeds is -2"),
        ("cvsim6", {"preset": "paper"}, "has sound"),
        ("cvsim6", {"hospitals": 3}, "has no hospitals"),
        ("cvsim6", {"methods": ("gan",)}, "has no methods"),
    ],
)
def test_what_an_experiment_does_not_take_is_refused(
    name: str, asked: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        reproduce(name, Asked(tmp_path / "out", **asked), _quiet)
    assert not (tmp_path / "out").exists()


def test_a_method_that_an_experiment_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match=r"moments; .*Did you mean 'mixture'"):
        sprint.plan(Asked(Path("out"), methods=("mixtures",)))
    assert list(sprint.plan(Asked(Path("out"), methods=("mixture",))).methods) == ["mixture"]


def test_mnist_without_its_files_says_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'mnist'.*'digits'"):
        reproduce("mnist", Asked(tmp_path / "out"), _quiet)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder can be made"):
        reproduce("sprint", Asked(tmp_path / "file" / "out"), _quiet)


def test_every_installed_experiment_has_a_function() -> None:
    known = experiments()
    assert set(known) >= {
        "sprint",
        "mimic-hf",
        "icd",
        "digits",
        "mnist",
        "regression",
        "ehr-flow",
        "ehr-vi",
        "heart-disease",
    }
    for name, experiment in known.items():
        module, _, function = experiment.run.partition(":")
        assert callable(getattr(import_module(module), function)), name


def test_whatever_this_package_brings_can_be_used(as_json: Callable[..., Any]) -> None:
    ours = [plugin for plugin in as_json("plugins") if plugin["package"] == "polyclinic-studies"]
    assert {plugin["group"] for plugin in ours} == {"experiments", "datasets", "games"} and len(ours) == 31
    assert not [plugin for plugin in ours if plugin["problem"]]


def test_results_tables_and_settings_are_left_in_the_folder(tmp_path: Path) -> None:
    found = Findings(
        {"seeds": [0], "common": {"epsilon": 2.5}},
        (Target("R12", "gap", "-0.05", "-0.02", ">= -0.05", True), Target("R12", "rank", ".9", "0.8", ">= .95", False)),
        {"methods": [{"method": "moments"}]},
        "text\n",
    )
    told = write("fake", Asked(tmp_path, quick=True), found)
    assert [(one["met"], one["why"]) for one in told["targets"]] == [(None, "the short form")] * 2
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["targets"] == told["targets"] and results["quick"] and results["versions"]["polyclinic"]
    table = (tmp_path / "table.md").read_text()
    assert (
        "mean nothing" in table
        and "| R12 | gap | -0.05 | -0.02 | not recorded | >= -0.05 | no verdict: the short form |" in table
    )
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == found.config


def test_a_finished_part_is_not_found_again_unless_its_settings_differ(tmp_path: Path) -> None:
    calls: list[int] = []

    def find() -> dict[str, float]:
        calls.append(1)
        return {"value": len(calls)}

    parts = Parts(tmp_path, _quiet)
    assert parts.answer("a, b", {"x": 1}, find) == parts.answer("a, b", {"x": 1}, find) == {"value": 1}
    assert parts.answer("a, b", {"x": 2}, find) == {"value": 2}
    assert Parts(tmp_path, _quiet).answer("a, b", {"x": 2}, find) == {"value": 2}


def test_a_part_that_fails_leaves_nothing_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    parts = Parts(tmp_path, _quiet)
    with pytest.raises(ZeroDivisionError):
        parts.answer("a", {}, lambda: 1 // 0)
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(ValueError, match="JSON"):
        parts.answer("a", {}, lambda: float("nan"))
    assert parts.answer("a", {}, lambda: 3) == 3
    (tmp_path / "parts" / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json is not a finished part"):
        parts.answer("a", {}, lambda: 4)


@pytest.mark.slow
def test_a_run_is_kept_by_its_settings_and_replaced_by_others(tmp_path: Path) -> None:
    said: list[str] = []
    parts, free = Parts(tmp_path, said.append), {**TRIAL, "model": "moments", "privacy.dp": False}
    first = parts.run("moments-0", free)
    assert parts.run("moments-0", free).path == first.path
    assert said == ["moments-0: begins"]
    other = parts.run("moments-0", {**free, "seed": 1})
    assert other.path != first.path and not first.path.exists()
    (other.path / "report.html").unlink()  # stopped before its end
    again = parts.run("moments-0", {**free, "seed": 1})
    assert (again.path / "report.html").is_file() and len(list((tmp_path / "runs" / "moments-0").iterdir())) == 1


def test_a_run_that_fails_names_its_part(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        Parts(tmp_path, _quiet).run("bad-0", {**TRIAL, **MOMENTS, "model": "momnets"})
    assert any("bad-0" in note for note in failed.value.__notes__)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Parts]:
    methods = {"moments": MOMENTS, "free": {"model": "moments", "privacy.dp": False}}
    plan = Study(TRIAL, methods, (0, 1), ("age", "sbp"), 300, ("lr", "knn"))
    return plan, Parts(tmp_path_factory.mktemp("study"), _quiet)


@pytest.mark.slow
def test_a_study_judges_each_method_at_each_seed_and_is_the_same_again(small: tuple[Study, Parts]) -> None:
    plan, parts = small
    found = study(parts, plan)
    assert [(one.method, one.seed) for one in found] == [
        (method, seed) for seed in (0, 1) for method in ("moments", "free")
    ]
    assert found[1].epsilon is None and found[0].epsilon is not None and found[0].epsilon <= 5.0
    for one in found:
        for kind in ("lr", "knn"):
            value = one.judged[kind].scores["accuracy"].value
            real = one.real[kind].scores["accuracy"].value
            assert value is not None and real is not None
            assert one.gap(kind, "accuracy") == pytest.approx(value - real)
        assert 40 < one.means["age"] < 90 and 100 < one.real_means["sbp"] < 160
    again = study(parts, plan)
    assert again == found
    table = score_table(found, "accuracy", [["published", "1", ".9", ".8", ".7"]])
    assert table.count("\n") == 6 and "∞" in table and "± " in table
    assert len(of(found, "moments")) == 2


def test_a_judgement_survives_its_file() -> None:
    one = {"scores": {"f1": {"value": 0.5, "low": 0.4, "high": None}}, "minus_real": {}, "importance": None}
    assert read_judged(one).scores["f1"] == Interval(0.5, 0.4, None)


@pytest.mark.parametrize("plan", [sprint.plan, mimic_hf.plan, icd.plan, lambda asked: digits.plan("digits", asked)])
@pytest.mark.parametrize("preset", ["sound", "paper"])
def test_every_run_of_a_plan_is_a_possible_configuration(plan: Callable[[Asked], Any], preset: Any) -> None:
    from polyclinic.config import RunConfig

    for quick in (False, True):
        made = plan(Asked(Path("out"), preset=preset, quick=quick, hospitals=3, seeds=2))
        assert len(made.seeds) == 2 and made.common["sites"] == 3
        for method in made.methods:
            config = RunConfig.build(made.options(method, 0))
            private = preset == "sound" and "not private" not in method
            assert config.privacy.dp is private, method
            if private and plan is not digits.plan:
                assert config.privacy.delta <= 1e-5


def test_the_stated_and_the_true_epsilon_stand_side_by_side() -> None:
    table = stated.table(("DPGAN", "PPGAN"))
    rows = [line.split(" | ") for line in table.splitlines() if "PGAN |" in line]
    claimed, true = [float(row[2]) for row in rows], [float(row[3]) for row in rows]
    assert len(rows) == 8 and all(real > 1e4 * said for said, real in zip(claimed, true, strict=True))


def test_standard_errors_of_pairs() -> None:
    assert errors_apart([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 0.0
    apart = np.array([0.1, 0.3, 0.2, 0.4])
    expected = apart.mean() / (apart.std(ddof=1) / 2)
    assert errors_apart(list(apart + 1), [1.0] * 4) == pytest.approx(expected)


def test_numbers_as_words() -> None:
    assert spread([1.0, 2.0, 3.0], 1) == "2.0 ± 1.0" and spread([0.5], 2, signed=True) == "+0.50"
    assert spread([1.0, None]) == "-" == spread([]) and mean([1.0, None]) is None and mean([1.0, 2.0]) == 1.5
    assert between(Interval(0.5, 0.25, 0.75), 2) == "0.50 (0.25 to 0.75)" and between(Interval(None)) == "-"
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |\n"


def test_the_command_lists_runs_and_speaks_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    listed = json.loads(run(app, ["reproduce", "--json"]).stdout)
    assert [one["name"] for one in listed] == list(experiments())
    assert run(app, ["reproduce", "sprint", "--preset", "best"]).exception is not None

    def small_run(asked: Asked, say: Callable[[str], None]) -> Findings:
        say("works")
        print("noise on stdout")
        return Findings({"quick": asked.quick}, (Target("R0", "w", "-", "1", "1", True),), {}, "words\n")

    monkeypatch.setattr(icd, "run", small_run)
    done = run(app, ["reproduce", "icd", "--quick", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["name"] == "icd" and told["preset"] == "sound" and told["targets"][0]["id"] == "R0"
    shown = run(app, ["reproduce", "icd", "--quick", "--out", str(tmp_path)])
    assert "words" in shown.stdout and str(tmp_path) in shown.stdout


# Those with tests of their own, or without files.
ELSEWHERE = ("accuracy", "mnist", "regression", "ehr-flow", "ehr-vi", "stated", "cvsim6", "dissimilarity", "gdp")
# Those that compare nothing with a publication's goal.
WITHOUT_TARGETS = ("audit", "communication", "personalised", "private-metrics")
# Those with fewer than three figures beside these.
FEW_FIGURES = ("heart-disease", "hospitals", "synthesizers", "visits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        (name, preset)
        for name, experiment in experiments().items() if name not in ELSEWHERE
        for preset in experiment.presets
    ],
)  # fmt: skip
def test_the_short_form_of_every_experiment_runs(name: str, preset: Any, tmp_path: Path) -> None:
    asked = Asked(tmp_path, preset=preset, quick=True)
    told = reproduce(name, asked, _quiet)
    assert bool(told["targets"]) == (preset == "sound" and name not in WITHOUT_TARGETS)
    assert {"results.json", "table.md", "config.toml"} <= {path.name for path in tmp_path.iterdir()}
    assert name in (*WITHOUT_TARGETS, *FEW_FIGURES) or len(list(tmp_path.glob("*.svg"))) >= 3


def test_what_was_stated_is_a_table_of_its_own(tmp_path: Path) -> None:
    reproduce("stated", Asked(tmp_path, quick=True), _quiet)
    page = (tmp_path / "table.md").read_text()
    assert all(name in page for name in ("DPGAN", "PPGAN", "AC-GAN"))
    claims = {
        (one["system"], one["claimed"]): one["true"]
        for one in json.loads((tmp_path / "results.json").read_text())["published"]
    }
    assert claims["DPGAN", 5.0] > 1e6
