"""What a finished run's model says of new rows, for who holds them: nothing is sent, charged or released."""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.tables import read_as
from polyclinic.ehr.encoding import Encoded, encode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.ehr.sources.chunks import Chunk, typed
from polyclinic.errors import ConfigError
from polyclinic.objectives.objective import made_up_labels
from polyclinic.plugins import TABLES
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.simulation import read_imputer
from polyclinic.training.preparation import filled, standardised


def predict(run: Run, table: pd.DataFrame, source: str = "table") -> tuple[pd.DataFrame, np.ndarray | None]:
    """The model's predictions for the rows of a table, and the rows' own labels.

    Args:
        run: A finished run of a task that trains a model of a label.
        table: Raw rows with the columns of the run's schema; the label and identifiers may be left out.
        source: What errors call the table.

    Returns:
        A frame with the table's index and a column for each number that the run's objective predicts: the probability of each
        class, or a number in the label's unit; and the labels as in a shard, None where the table lacks one.

    Raises:
        ConfigError: for a run without such a model, and for imputation "mice", which needs the hospital's own patients.
        DataError: for a column that is not there and a cell that the schema does not allow.
    """
    config, schema, program = run.config(), run.schema(), program_of(run.config())
    if program.draws or not program.judged:
        raise ConfigError(f"{run.path} is a run of task {config.task!r}, which trains no classifier of patients.")
    if config.data.imputation == "mice":
        raise ConfigError(
            "data.imputation is 'mice', whose equations are fitted to a hospital's own patients at its run."
        )
    encoded = _encoded(table, schema, config.dataset == TABLES, source)
    imputer = read_imputer(config.data.imputer_file) if config.data.imputation == "chained" else None
    x = filled(encoded.x, schema, config.data.imputation, imputer)
    objective = program.objective(schema)
    rows = Rows(x, made_up_labels(objective.labels, len(x)), np.arange(len(x)), len(x))
    (scores,) = program.scores(schema, run.arrays(), [standardised(rows, run.standardiser())])
    return pd.DataFrame(scores, index=table.index, columns=list(objective.columns)), encoded.y


def _encoded(table: pd.DataFrame, schema: Schema, drafted: bool, source: str) -> Encoded:
    if drafted:
        return encode(read_as(table, schema), schema, source)
    wanted = [column for column in schema.columns if column.role == "feature" or column.name in table.columns]
    # A schema has one label and, with unit "patient", its column: what the table lacks of them is not read.
    part = schema.model_copy(update={"columns": tuple(wanted)})
    return encode(typed(Chunk(table.reset_index(drop=True), source, 0), part), schema, source)
