"""What a hospital sees of a finished run for its own eyes: nothing is sent, charged or written."""

from __future__ import annotations

from pathlib import Path

from polyclinic.client.checks import check_model_size, check_names, check_numbers, check_size
from polyclinic.client.home.hospital import Hospital, filled_rows, own_hospital
from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.state import read_state
from polyclinic.ehr.shard import Rows
from polyclinic.ehr.sources.columns import ColumnMapping
from polyclinic.errors import ConfigError
from polyclinic.evaluation.assessment import Predictions
from polyclinic.evaluation.groups import group_numbers
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.predicting import check_predicts
from polyclinic.training.preparation import standardise
from polyclinic.training.task import own_arrays


def own_mapping(path: Path, run: Run) -> ColumnMapping:
    """By which a hospital's own columns become those of the run's schema.

    Raises ConfigError for a file of the hospital that is wrong.
    """
    described = HospitalFile.read(path)
    return ColumnMapping.read(path.parent / described.mapping, run.schema()) if described.mapping else ColumnMapping()


def own_training_rows(path: Path, run: Run) -> Rows:
    """The rows of a hospital's own patients that a run could train on, for the hospital's own eyes.

    Raises ConfigError for a run under another schema.
    """
    hospital = own_hospital(path, run.config())
    _check_schema(path, hospital, run)
    return hospital.shard().train


def _check_schema(path: Path, hospital: Hospital, run: Run) -> None:
    if run.schema().digest() != hospital.schema.digest():
        raise ConfigError(
            f"{run.path} is a run under another schema than that of {path}, so its model cannot score these rows."
        )


def own_predictions(path: Path, run: Run, groups: str = "") -> tuple[str, Predictions]:
    """The name of the hospital of a ``hospital.toml``, and a finished run's predictions of its own held-out patients.

    For the hospital's own eyes: nothing is sent, charged or written.

    Args:
        path: The hospital's ``hospital.toml``.
        run: A folder with at least the run's config.toml, schema.toml and model.safetensors.
        groups: A feature column whose group is told of each row; empty for none.

    Raises:
        BudgetRefused: The policy does not allow the model or the task; none of its code was loaded.
        ConfigError: The run has another schema or no classifier, or held out nobody here.
    """
    config = run.config()
    hospital = own_hospital(path, config)
    check_names(hospital, config)
    check_predicts(run)
    _check_schema(path, hospital, run)
    program, arrays = program_of(config), run.arrays()
    check_size(hospital, arrays)
    check_model_size(hospital, config)
    check_numbers(hospital, arrays)
    if config.strategy in hospital.policy.allowed_strategies and program.evaluates_own:
        own = own_arrays(read_state(hospital.home, run.name, config.rounds + 1))
        if not own:
            raise ConfigError(
                f"With the strategy {config.strategy!r} a hospital evaluates arrays of its own, and it has none of a run named "
                f"{run.name!r}; the folder must have the run's name."
            )
        arrays |= own
    rows = standardise(filled_rows(hospital, config.data.imputation, held_out=True), run.standardiser())
    if not len(rows.y):
        raise ConfigError(
            f"{run.path} is a run that held out none of the hospital's patients, so there is nothing to judge."
        )
    (scores,) = program.scores(hospital.schema, arrays, [rows])
    group = group_numbers(hospital.shard().test.x, hospital.schema, groups) if groups else None
    return hospital.site, Predictions(rows.y, scores, rows.patient, group)
