"""A finished run's predictions: of new rows, for who holds them, which sends, charges and releases nothing; and of held-out
patients, as far as policies let them leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr.checks import require_columns, texts
from polyclinic.ehr.datasets.tables import lacking_notes, may_lack, read_as, read_visits
from polyclinic.ehr.encoding import Encoded, encode, encode_labels
from polyclinic.ehr.faults import CellsRefused
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.ehr.sources.cells import MISSING, usual_name
from polyclinic.ehr.sources.chunks import Chunk
from polyclinic.ehr.sources.columns import ColumnMapping, Origin, map_columns, own_schema
from polyclinic.ehr.split import Split
from polyclinic.errors import ConfigError, several
from polyclinic.objectives.objective import Objective, made_up_labels
from polyclinic.plugins import TABLES
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.simulation import read_imputer
from polyclinic.training.preparation import fill_cells, standardise
from polyclinic.types import Floats, Ints, Labels


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predictions of a table's rows, or of its patients where their visits are sequences.

    scores: a row for each, and a column for each number that the run's objective predicts. It is the probability of each class,
    or a number in the label's unit. Rows that have a cell which the schema does not allow have NaN.
    places: (predicted,) the other rows.
    encoded: these rows before missing cells are filled, with labels as in a shard, None where none was read or the table lacks
    one.
    patient: (predicted,) whose each is.
    notes: what of the table was left out or read otherwise.

    Examples:
        >>> rows = Encoded(np.array([[0.1]]), y=None)
        >>> scores = pd.DataFrame({"0": [0.8, np.nan], "1": [0.2, np.nan]})
        >>> predicted = Predicted(scores, places=np.array([0]), encoded=rows, patient=np.array([0]))
        >>> predicted.scores["1"].tolist(), predicted.places.tolist()  # the second row was not allowed
        ([0.2, nan], [0])
    """

    scores: pd.DataFrame
    places: Ints
    encoded: Encoded
    patient: Ints
    notes: tuple[str, ...] = ()


def predict(
    run: Run, table: pd.DataFrame, source: str = "table", labelled: bool = False, mapping: ColumnMapping | None = None
) -> Predicted:
    """The model's predictions for a table as it stands.

    Args:
        run: A finished run of a task that trains a model of a label.
        table: Raw rows with the columns of the run's schema, or of the run's own tables; identifiers may be left out. Where the
            run made sequences of visits, a row is a visit, or a patient with a column for each step.
        source: What errors call the table.
        labelled: Whether to read the labels, too; then no row may lack one.
        mapping: How the table's columns become the schema's; by default as the run's options have it.

    Returns:
        Predictions with the table's index or, of sequences of visits, the patients'.

    Raises:
        ConfigError: for a run without such a model, and for imputation "mice", which needs the hospital's own patients.
        DataError: for a column that is not there and may not be missing, and a label that is missing or not allowed.

    Examples:
        >>> import tempfile
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.plugins import dataset_of
        >>> run = Run.create(RunConfig(model="logistic", out=tempfile.mkdtemp()))
        >>> program, schema = program_of(run.config()), dataset_of(run.config()).schema
        >>> run.write({"statement": {}, "comparison": None}, [], program.first(schema), None, schema)  # untrained
        >>> predict(run, pd.DataFrame({c.name: [c.bounds[0], 1e9] for c in schema.features})).places.tolist()
        [0]
    """
    check_predicts(run)
    config, schema, program = run.config(), run.schema(), program_of(run.config())
    options = keyword_arguments(config.dataset_options)
    if mapping is None and {"schema", "mapping"} <= options.keys():  # tables under a public schema
        mapping = ColumnMapping.read(str(options["mapping"]), schema)
    of_visits = config.dataset == TABLES and bool(options.get("time")) and not _has_steps(table, schema)
    if not labelled:
        table = _without_labels(table, schema, mapping)
    index, notes = table.index, list[str]()
    if of_visits:
        records, index, notes = read_visits(table, schema, str(options["time"]))
    elif config.dataset == TABLES:
        records, notes = read_as(table, schema)
    else:
        records, notes = _as_schema(table, schema, mapping or ColumnMapping(), source)
    strange = _without_strangers(records, schema)
    encoded, places, refused = _encode_allowed(records, schema, source, "patients" if of_visits else "rows")
    imputer = read_imputer(config.data.imputer_file) if config.data.imputation == "chained" else None
    x = fill_cells(encoded.x, schema, config.data.imputation, imputer)
    objective = program.objective(schema)
    rows = Rows(x, made_up_labels(objective.labels, len(x)), np.arange(len(x)), len(x))
    scores = np.full((len(records), len(objective.columns)), np.nan)
    if len(places):
        (scores[places],) = program.scores(schema, run.arrays(), [standardise(rows, run.standardiser())])
    named = usual_name(list(map(str, table.columns)), [schema.patient_id.name] if schema.patient_id else [])
    patient = np.arange(len(records)) if of_visits or named not in table else pd.factorize(table[named])[0]
    return Predicted(
        pd.DataFrame(scores, index=index, columns=list(objective.columns)), places, encoded, patient[places],
        (*notes, *strange, *refused),
    )  # fmt: skip


def _without_strangers(records: pd.DataFrame, schema: Schema) -> list[str]:
    """Make unknown categories, and words in place of yes and no, missing in columns that may be missing and have no category for
    others; a note counts them."""
    counts = Counter[str]()
    for column in schema.features:
        in_words = column.kind in ("binary", "ordinal", "categorical") and not is_numeric_dtype(records[column.name])
        if in_words and column.nullable and not column.other:
            cells = pd.Series(texts(records[column.name]), index=records.index, dtype=object)
            recognised = (cells == "") | cells.isin(column.categories)
            if not column.categories:  # a number other than 0 and 1 is a fault
                recognised |= pd.to_numeric(cells, errors="coerce").notna() | cells.str.lower().isin(["true", "false"])
            records[column.name] = cells.where(recognised & (cells != ""), None)
            counts[column.name] = int((~recognised).sum())
    read = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    return [f"Categories that the model does not know are read as missing, in {several(read, most=8)}."] if read else []


def _encode_allowed(records: pd.DataFrame, schema: Schema, source: str, what: str) -> tuple[Encoded, Ints, list[str]]:
    """The encoded rows whose features the schema allows, their places, and a note that counts the others.

    Raises CellsRefused for a label that is missing or not allowed.
    """
    if all(label.name in records for label in schema.labels):
        encode_labels(records, schema, source)  # before rows are left out, so that it names their places
    places = np.arange(len(records))
    try:
        return encode(records, schema, source), places, []
    except CellsRefused as error:
        refused = [
            f"{fault.column!r} ({len(fault.rows):,}: {fault.problem.partition(';')[0]})" for fault in error.faults
        ]
        places = np.setdiff1d(places, np.concatenate([fault.rows for fault in error.faults]))
    lost = f"{len(records) - len(places):,} of {len(records):,} {what} have no prediction, for cells that the model cannot read: "
    return encode(records.iloc[places], schema, source), places, [f"{lost}{several(refused, most=8)}."]


def trained_on(rows: Encoded, trained: Iterable[Rows]) -> int:
    """How many rows equal, in all features and in the label, a row among those that were ``trained`` on.

    Features are compared to five digits of their public scale, which conversions of units may change.

    Examples:
        >>> trained = Rows(np.array([[0.1], [0.2]]), np.array([0, 1]), np.arange(2), 2)
        >>> trained_on(Encoded(np.array([[0.2], [0.2], [0.3]]), np.array([1, 0, 1])), [trained])
        1
    """
    keys = {key for part in trained for key in _keys(part.x, part.y)}
    return sum(key in keys for key in _keys(rows.x, rows.y)) if rows.y is not None else 0


def _keys(x: Floats, y: Labels) -> list[bytes]:
    whole = np.column_stack([np.round(x, 5) + 0.0, np.asarray(y, dtype=np.float64).reshape(len(x), -1)])
    return [row.tobytes() for row in whole]


def check_predicts(run: Run) -> None:
    """Raises ConfigError for a run without a classifier, and for imputation "mice".

    Examples:
        >>> import tempfile
        >>> from polyclinic.config import RunConfig
        >>> check_predicts(Run.create(RunConfig(out=tempfile.mkdtemp())))
        >>> try:
        ...     check_predicts(Run.create(RunConfig(task="components", out=tempfile.mkdtemp())))
        ... except ConfigError as error:
        ...     print(str(error).partition(" is ")[2])
        a run of task 'components', which trains no classifier of patients.
    """
    config, program = run.config(), program_of(run.config())
    if program.draws or not program.judged:
        raise ConfigError(f"{run.path} is a run of task {config.task!r}, which trains no classifier of patients.")
    if config.data.imputation == "mice":
        raise ConfigError(
            "data.imputation is 'mice', whose equations are fitted to a hospital's own patients at its run."
        )


def held_out_table(
    objective: Objective, split: Split, sites: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> pd.DataFrame:
    """Held-out predictions by hospital as one table: ``site``, ``patient``, ``label``, ``score_CLASS`` of each class, ``split``.

    Of other labels ``score_COLUMN`` of each predicted number, and of several labels ``label_NAME`` of each.

    Args:
        objective: What the model predicts.
        split: Makes the column ``split``, which is "held-out", or which fold it is.
        sites: Of each hospital patient numbers (rows,), labels as in a shard and predictions (rows, columns).

    Examples:
        >>> from polyclinic.objectives.classes import Classification
        >>> objective = Classification((Column(name="died", kind="binary", role="label"),))
        >>> scores = np.array([[0.9, 0.1], [0.3, 0.7]])
        >>> sites = {"north": (np.array([4, 7]), np.array([0, 1]), scores)}
        >>> held_out_table(objective, Split(), sites).to_dict("records")[1]
        {'site': 'north', 'patient': 7, 'label': '1', 'score_0': 0.3, 'score_1': 0.7, 'split': 'held-out'}
    """
    scored = [f"score_{name}" for name in objective.columns]
    parts = [
        pd.DataFrame({"site": site, "patient": patient, **_labels(objective, labels)}).join(
            pd.DataFrame(scores, columns=scored)
        )
        for site, (patient, labels, scores) in sites.items()
    ]
    return pd.concat(parts, ignore_index=True).assign(
        split=f"fold {split.fold} of {split.folds}" if split.folds else "held-out"
    )


def _labels(objective: Objective, labels: np.ndarray) -> dict[str, np.ndarray]:
    if objective.has_classes:
        return {"label": np.array(objective.columns)[labels]}
    if labels.ndim == 1:
        return {"label": labels}
    names = [label.name for label in objective.labels] if len(objective.labels) > 1 else objective.columns
    return {f"label_{name}": labels[:, number] for number, name in enumerate(names)}


def held_out_predictions(run: Run) -> tuple[pd.DataFrame, list[str]]:
    """What ``held_out_table`` gives of a finished run, and the hospitals whose policies withhold their predictions.

    Those of a simulation are computed anew from its records, unless its hospitals evaluated models of their own.
    Raises ConfigError, with the reason, where there are none.

    Examples:
        >>> import tempfile
        >>> from polyclinic.config import RunConfig
        >>> run = Run.create(RunConfig(out=tempfile.mkdtemp()))
        >>> run.write_summary({"metrics": {"sites": {"north": {}, "south": {}}}, "comparison": None})
        >>> pd.DataFrame({"site": ["north"], "label": ["1"], "score_1": [0.8]}).to_parquet(run.predictions_file)
        >>> held_out_predictions(run)[1]  # whose policy lets none leave
        ['south']
    """
    config, summary, program = run.config(), run.summary(), program_of(run.config())
    sites = list(summary.metrics.sites)
    if not program.judged:
        raise ConfigError(f"{run.path} is a run of task {config.task!r}, which is not judged on held-out patients.")
    if run.predictions_file.is_file():
        table = pd.read_parquet(run.predictions_file)
        return table, [site for site in sites if site not in set(table["site"])]
    if not summary.simulation:
        raise ConfigError(f"No policy of the {len(sites)} hospitals lets predictions of held-out patients leave.")
    if config.evaluation.metrics != "exact":
        raise ConfigError(
            f"Configuration key 'evaluation.metrics' has the value {config.evaluation.metrics!r}, so no predictions of held-out "
            "patients leave the hospitals."
        )
    simulation = run.simulation("their predictions are in its folder")
    synthesizer = run.synthesizer() if program.draws else None
    arrays, rows = program.arrays_to_score(run.arrays(), synthesizer), [simulation.rows(site)[1] for site in sites]
    if arrays is None:
        raise ConfigError(f"{run.path} stopped before there was a model to judge.")
    scores = program.scores(run.schema(), arrays, rows)
    parts = [(part.patient, part.y, score) for part, score in zip(rows, scores, strict=True)]
    objective = program.objective(run.schema())
    return held_out_table(objective, config.split.rule, dict(zip(sites, parts, strict=True))), []


def withheld_sentence(withheld: list[str], sites: int) -> str:
    """Whose predictions are missing, in one sentence.

    Examples:
        >>> withheld_sentence(["north", "south"], sites=5)
        'The policies of 2 of 5 hospitals (north, south) withhold predictions of held-out patients.'
    """
    few = f"{len(withheld)} of {sites} hospitals ({several(withheld)})"
    return f"The policies of {few} withhold predictions of held-out patients."


def _has_steps(table: pd.DataFrame, schema: Schema) -> bool:
    """Whether the table has a column for each step of a trajectory already."""
    names = [str(name).strip() for name in table.columns]
    return any(column.record_names[0] in names for column in schema.columns if column.kind == "trajectory")


def _without_labels(table: pd.DataFrame, schema: Schema, mapping: ColumnMapping | None) -> pd.DataFrame:
    own = [(mapping.origin(label).name if mapping else "") or label.name for label in schema.labels]
    return table.drop(columns=own, errors="ignore")


def _as_schema(
    table: pd.DataFrame, schema: Schema, mapping: ColumnMapping, source: str
) -> tuple[pd.DataFrame, list[str]]:
    """The table's records under the schema, its features and what else of it is there, and notes."""

    def is_there(column: Column) -> bool:
        own = mapping.origin(column)
        return own.is_lacking or (own.name or column.name) in table.columns

    # A schema has one label and, with unit "patient", its column: what the table lacks of them is not read.
    part = schema.model_copy(update={"columns": tuple(c for c in schema.columns if c.role == "feature" or is_there(c))})
    lacking = [c for c in schema.features if not is_there(c) and may_lack(c, table.columns)]
    notes = lacking_notes(dict.fromkeys([c.name for c in lacking], True), schema, map(str, table.columns))
    unread = {c.name: Origin(missing=True) for c in lacking}
    mapping = mapping.model_copy(update={"columns": {**mapping.columns, **unread}})
    own, cells = own_schema(mapping, part), table.reset_index(drop=True)
    for column in own.columns:
        marks = [mark for mark in MISSING if mark not in column.categories]
        for name in set(column.record_names) & {*cells.columns}:
            cells[name] = cells[name].mask(cells[name].isin(marks), None)
    require_columns(cells, tuple(column for column in own.columns if column.is_read), source)
    (chunk,) = map_columns([Chunk(cells, source, 0)], mapping, part)
    return chunk.records, notes
