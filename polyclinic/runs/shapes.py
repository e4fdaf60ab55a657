"""What a finished run's additive model is made of, in the columns' own units: its shape functions, how much each column matters,
and what each column adds for a patient. All of it is read from the model alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from polyclinic.config.programs.boosting import MODELS
from polyclinic.ehr.encoding import encode, feature_slices
from polyclinic.ehr.schema import BOUNDED_KINDS, Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.additive import Additive
from polyclinic.objectives.objective import Objective
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.predicting import Predicted
from polyclinic.runs.simulation import read_imputer
from polyclinic.training.preparation import filled, standardised
from polyclinic.types import Floats

# So many points of a number are looked at, beside its bins' edges.
_POINTS = 400


def additive_model(run: Run) -> Additive | None:
    """The run's model; None where it is no additive one."""
    model = run.model() if run.summary_json().get("model") in MODELS else None
    return model if isinstance(model, Additive) else None


def importances(run: Run, model: Additive) -> pd.Series:
    """By column, the largest first: the standard deviation, among patients, of what it adds to the outputs."""
    columns = [column.name for column in run.schema().features]
    scale = 2.0 if _are_two(program_of(run.config()).objective(run.schema())) else 1.0
    values = pd.Series(scale * model.importances.numpy(), index=columns, name="importance")
    return values.sort_values(ascending=False, kind="stable").rename_axis("column")


def shape_functions(run: Run) -> pd.DataFrame:
    """The run's shape functions, a row for each stretch of a number and for each category.

    Returns:
        A table of these columns. A model of two classes has one output, the logit of the second.

        - ``column``: its name;
        - ``low``, ``high``: in its unit, of a number;
        - ``category``: of others; "missing" where the cell is;
        - ``output``: of which of the model's outputs;
        - ``value``: what it adds there, 0 on average over patients;
        - ``noise``: how uncertain it is by the noise of training and the number of patients, as a standard deviation.

    Raises:
        ConfigError: for a run whose model is not additive.
    """
    model, schema = _additive(run), run.schema()
    objective, scale = program_of(run.config()).objective(schema), run.standardiser()
    parts = []
    for column, at in feature_slices(schema):
        part = Schema(name="column", unit="record", columns=(column, *schema.labels))
        cells, shown = _points(column, model, scale and (scale[0][at], scale[1][at]))
        x = np.full((len(cells), model.shapes.shape[0]), np.nan)
        encoded = encode(cells, part).x
        own = slice(at.start, at.start + encoded.shape[1])
        x[:, own] = encoded
        if scale:
            x = (x - scale[0]) / scale[1]
        cells_of_model = torch.from_numpy(x.astype(np.float32))
        with torch.no_grad():
            values = _by_output(model.contributions(cells_of_model)[:, own].sum(1).numpy(), objective)
            places = model.places(cells_of_model)[:, own].numpy()
        noise = model.deviations.numpy()[np.arange(own.start, own.stop), places]
        # One of several features that stand for categories is the cell's own.
        hot = column.kind in ("categorical", "code_set")
        spread = np.where(places == 1, noise, 0.0).max(axis=1) if hot else np.linalg.norm(noise, axis=1)
        for output, name in enumerate(_outputs(objective, model)):
            doubled = 2.0 if _are_two(objective) else 1.0
            parts.append(shown.assign(output=name, value=values[:, output], noise=doubled * spread))
    table = pd.concat(parts, ignore_index=True)
    return _merge(table)[["column", "low", "high", "category", "output", "value", "noise"]]


def contributions(run: Run, predicted: Predicted) -> pd.DataFrame:
    """What each column adds for each row of a table's predictions: ``intercept`` and a column for each of the schema's features.

    Rows without a prediction have NaN. Of a model with several outputs names are ``COLUMN OUTPUT``. Raises ConfigError for a run
    whose model is not additive.
    """
    model, schema, config = _additive(run), run.schema(), run.config()
    objective = program_of(config).objective(schema)
    imputer = read_imputer(config.data.imputer_file) if config.data.imputation == "chained" else None
    x = filled(predicted.encoded.x, schema, config.data.imputation, imputer)
    rows = Rows(x, np.zeros(len(x)), np.arange(len(x)), len(x))
    with torch.no_grad():
        each = model.contributions(
            torch.from_numpy(standardised(rows, run.standardiser()).x.astype(np.float32))
        ).numpy()
    starts = [at.start for _, at in feature_slices(schema)]
    by_column = np.add.reduceat(each, starts, axis=1) if len(each) else np.zeros((0, len(starts), each.shape[2]))
    begin = _by_output(model.intercept.detach().numpy()[None], objective)
    names = _outputs(objective, model)
    table: dict[str, Floats] = {}
    for output, name in enumerate(names):
        end = f" {name}" if len(names) > 1 else ""
        table[f"intercept{end}"] = np.full(len(x), begin[0, output])
        for number, column in enumerate(schema.features):
            table[f"{column.name}{end}"] = _by_output(by_column[:, number], objective)[:, output]
    whole = pd.DataFrame(np.nan, index=predicted.scores.index, columns=list(table))
    whole.iloc[predicted.places] = pd.DataFrame(table).to_numpy()
    return whole


def _additive(run: Run) -> Additive:
    model = additive_model(run)
    if model is None:
        raise ConfigError(
            f"{run.path} is a run of model {run.config().model!r}, which is not a sum of shape functions; those of model "
            "'ebm' are."
        )
    return model


def _are_two(objective: Objective) -> bool:
    """Whether the outputs are the logits of two classes."""
    return objective.predicts == "classes" and objective.logits == 2


def _outputs(objective: Objective, model: Additive) -> list[str]:
    """The names of the outputs as they are shown."""
    if _are_two(objective) or objective.logits == 1:
        return [f"logit of {objective.columns[-1]}" if objective.has_classes else objective.label]
    return list(objective.columns) if len(objective.columns) == objective.logits else [
        str(number) for number in range(model.shapes.shape[2])
    ]  # fmt: skip


def _by_output(values: Floats, objective: Objective) -> Floats:
    """(n, outputs as shown) of (n, outputs)."""
    return values[:, 1:] - values[:, :1] if _are_two(objective) else values


def _points(column: Column, model: Additive, scale: tuple[Floats, Floats] | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells of a column, and of which stretch or category each is."""
    gone = [None] if column.nullable and column.kind != "code_set" else []
    if column.kind in BOUNDED_KINDS and column.bounds:
        low, high = column.bounds
        edges = _edges(column, model, scale)
        middles: list[float | None] = [*((edges[1:] + edges[:-1]) / 2), *gone]
        if column.kind == "integer" or column.whole:
            middles = [*range(int(np.ceil(low)), int(high) + 1), *gone] if high - low <= _POINTS else [
                None if middle is None else float(round(middle)) for middle in middles
            ]  # fmt: skip
            edges = np.array([*(middle for middle in middles if middle is not None), high])
        cells = pd.DataFrame({name: pd.Series(middles, dtype="float64") for name in column.record_names})
        shown = pd.DataFrame({
            "column": column.name, "low": [*edges[:-1], *[np.nan] * len(gone)], "high": [*edges[1:], *[np.nan] * len(gone)],
            "category": ["" if middle is not None else "missing" for middle in middles],
        })  # fmt: skip
        return cells, shown
    names = list(column.categories) or ["0", "1"]
    values = names if column.categories else [0.0, 1.0]
    cells = pd.DataFrame({column.name: pd.Series([*values, *gone], dtype=object)})
    shown = pd.DataFrame(
        {"column": column.name, "low": np.nan, "high": np.nan, "category": [*names, *["missing"] * len(gone)]}
    )
    return cells, shown


def _edges(column: Column, model: Additive, scale: tuple[Floats, Floats] | None) -> Floats:
    """Rising edges of a number's bins within its bounds, in its unit."""
    low, high = column.bounds or (0.0, 1.0)
    numbers = model.edges.numpy()[np.isfinite(model.edges.numpy()).all(axis=1)]
    inner = numbers[0].astype(np.float64) if len(numbers) else np.zeros(0)
    if scale:
        inner = inner * scale[1][0] + scale[0][0]
    inner = low + (inner + 1) / 2 * (high - low)
    return np.array([low, *inner[(inner > low) & (inner < high)], high])


def _merge(table: pd.DataFrame) -> pd.DataFrame:
    """Stretches of a number next to each other that have one value as one."""
    values = table[["column", "output", "value", "noise"]]
    same = table["low"].notna() & (values == values.shift()).all(axis=1)
    ends = {name: "first" for name in table.columns} | {"high": "last"}
    return table.groupby((~same).cumsum(), sort=False).agg(ends).reset_index(drop=True)
