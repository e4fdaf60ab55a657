"""Which method a run of task synthesis takes that names none, and that every runtime chooses it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.config.programs.synthesis import MOST_FEATURES, usual_method, why_usual
from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.moments import Moments

LABEL = Column(name="died", kind="binary", role="label")


def _schema(*columns: Column) -> Schema:
    return Schema(name="stays", columns=(*columns, LABEL), unit="record")


def _codes(number: int) -> Column:
    return Column(name="codes", kind="code_set", categories=tuple(f"c{code}" for code in range(number)))


NUMBERS = _schema(*(Column(name=f"x{number}", kind="continuous", bounds=(0.0, 1.0)) for number in range(20)))
COURSES = _schema(Column(name="pressure", kind="trajectory", steps=12, bounds=(0.0, 250.0)))
FEW, MANY = _schema(_codes(MOST_FEATURES)), _schema(_codes(MOST_FEATURES + 1))
FAR_TOO_MANY = _schema(_codes(2000))


@pytest.mark.parametrize(
    ("schema", "method"),
    [(NUMBERS, "moments"), (COURSES, "moments"), (FEW, "moments"), (MANY, "latent"), (FAR_TOO_MANY, "latent")],
)
def test_the_schema_chooses_the_method(schema: Schema, method: str) -> None:
    config = RunConfig.build({"task": "synthesis", "privacy.epsilon": 3.0})
    chosen = config.for_schema(schema)
    assert usual_method(schema) == chosen.model == method
    assert chosen == RunConfig.build({"task": "synthesis", "privacy.epsilon": 3.0, "model": method})
    # Chosen once: the same by Flower's run-config, by what was given, and by what a run's folder keeps.
    assert chosen.for_schema(NUMBERS) == chosen == RunConfig.build(chosen.flat()).for_schema(NUMBERS)
    flower = RunConfig.from_flower(RunConfig.app_config() | config.for_flower())
    assert flower.for_schema(schema) == RunConfig.build(config.minimal()).for_schema(schema) == chosen


@pytest.mark.parametrize("name", ["breast-cancer", "heart-disease", "ist", "eicu-demo", "diabetes-130", "trial", "icu"])
def test_the_built_in_tables_have_moments(name: str) -> None:
    assert usual_method(dataset_of(RunConfig(dataset=name)).schema) == "moments"


@pytest.mark.parametrize(
    "given",
    [
        {"model": "moments"}, {"model": "independent"}, {"rounds": 2}, {"synthesis.options": "radius=2"},
        {"model": "moments", "rounds": 1},
    ],
)  # fmt: skip
def test_what_names_a_method_stays(given: dict[str, Any]) -> None:
    config = RunConfig.build({"task": "synthesis", **given})
    flower = RunConfig.from_flower(RunConfig.app_config() | config.for_flower())
    again = RunConfig.build(config.minimal())
    assert config.for_schema(MANY) == flower.for_schema(MANY) == again.for_schema(MANY) == config
    assert config.model == given.get("model", "moments")


def test_no_schema_that_moments_refuses_has_it_by_default() -> None:
    with pytest.raises(Exception, match="takes at most 1500"):
        Moments(Layout.of(FAR_TOO_MANY))
    assert usual_method(FAR_TOO_MANY) == "latent"


def test_times_of_visits_point_to_the_method_that_is_made_for_them() -> None:
    times = Column(name=BEFORE_LATEST, kind="trajectory", steps=12, bounds=(0.0, 900.0))
    assert why_usual(_schema(*COURSES.columns[:1], times)).endswith("Its times of visits ask for --model visits.")
    assert "visits" not in why_usual(COURSES)


def test_an_option_of_another_method_names_that_method() -> None:
    config = RunConfig.build({"task": "synthesis", "synthesis.options": "algorithm=mst", "privacy.epsilon": 3.0})
    with pytest.raises(
        ConfigError, match="'moments' has no option 'algorithm'; .* It is an option of marginals, which"
    ):
        program_of(config).method(NUMBERS)  # type: ignore[attr-defined]


def test_an_option_of_the_flow_asks_for_its_method() -> None:
    config = RunConfig.build({"task": "posterior", "posterior.options": "draws=8", "privacy.epsilon": 3.0})
    with pytest.raises(ConfigError, match="has no option 'draws'; it is an option of the flow: give method=flow"):
        program_of(config).method(NUMBERS)  # type: ignore[attr-defined]


def test_a_run_has_the_name_of_its_method_and_says_why(tmp_path: Path) -> None:
    result = Federation.from_dataset(
        "trial", task="synthesis", sites=2, out=str(tmp_path), synthesis={"rows": 50, "quality": False}
    ).run(pictures=False)
    assert result.config.model == Run.open(result.path).config().model == "moments"
    assert not result.config.is_open and result.summary["synthesis"]["method"] == "moments"
    assert any("moments is the usual method" in note for note in result.summary["notes"])
    begun = RunConfig.build({"task": "synthesis", "dataset": "trial", "sites": 2})
    assert result.folder.as_begun(begun).model == "moments"


def test_a_run_of_a_named_method_goes_on_only_under_its_name(tmp_path: Path) -> None:
    """Else the coordinator would go on with it, and each hospital with what its schema chooses."""
    run = Run.create(RunConfig.build({"task": "synthesis", "model": "marginals", "out": str(tmp_path)}))
    assert run.as_begun(RunConfig.build({"task": "synthesis"})).model == "moments"
    with pytest.raises(
        ConfigError, match="'model' is not given, .* choose 'latent' .* was begun with 'marginals': give that"
    ):
        run.check_method("latent")
    run.checkpoint.touch()
    with pytest.raises(ConfigError, match="'model' has the value 'moments', but the run .* was begun with 'marginals'"):
        Run.to_resume(RunConfig.build({"task": "synthesis", "out": str(tmp_path), "resume": run.name}))
