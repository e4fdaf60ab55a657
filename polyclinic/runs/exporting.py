"""A finished run's model as one file that needs no Polyclinic: raw columns in, predictions out.

Encoding, filling of missing cells and scaling are inside. A file beside it describes the inputs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.encoding import encoded_fill, feature_slices
from polyclinic.ehr.imputation import Imputer, check_fills, least
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, PolyclinicError, why
from polyclinic.files import NewFile, check_new, write_files
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.json_text import json_text
from polyclinic.runs.predicting import check_predicts
from polyclinic.runs.simulation import read_imputer

_DESCRIPTION = "polyclinic.json"  # its name within a file of torch
_EXAMPLES = 3  # rows; torch takes 0 and 1 for special


class Scorer(nn.Module):
    """A trained model from raw columns to predictions.

    It takes a mapping of tensors by input name, all of the same number of rows:

    - of numbers float64 with NaN where missing;
    - of columns with categories int64 places in the column's categories with -1 where missing;
    - of a code_set (rows, codes) 0/1.

    It gives (rows, columns) float64 predictions: probabilities, or what else the run's objective predicts. A row with a cell
    that the schema does not allow has NaN.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> probabilities = lambda outputs: outputs.softmax(1)
        >>> scorer = Scorer(schema, nn.Linear(1, 2), probabilities, scale=None, imputation="mean", imputer=None)
        >>> scorer({"age": torch.tensor([30.0, 130.0])}).isnan().any(1).tolist()  # 130 is beyond the bounds
        [False, True]
    """

    def __init__(
        self, schema: Schema, model: nn.Module, predictions: Callable[[Tensor], Tensor],
        scale: tuple[np.ndarray, np.ndarray] | None, imputation: str, imputer: Imputer | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.schema, self.model, self.predictions = schema, model, predictions
        self.imputation, self.imputer = imputation, imputer
        mean, std = scale or (np.zeros(1), np.ones(1))
        self.mean, self.std = nn.Buffer(torch.from_numpy(mean)), nn.Buffer(torch.from_numpy(std))

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        blocks, allowed = [], torch.tensor(True)
        for column in self.schema.features:
            block, fits = _encode([columns[name] for name in column.record_names], column)
            blocks += [block, block.isnan().double()] if column.indicator else [block]
            allowed = allowed & fits
        x = self._fill(torch.cat(blocks, 1))
        x = (x - self.mean) / self.std
        if not getattr(self.model, "reads_missing", False):
            x = torch.where(x.isnan(), 0.0, x)  # the mean, as in training
        scores = self.predictions(self.model(x.to(next(self.model.parameters()).dtype)))
        return torch.where(allowed[:, None], scores, torch.nan).double()

    def _fill(self, x: Tensor) -> Tensor:
        if self.imputation == "constant":
            fills = torch.zeros(x.shape[1], dtype=torch.float64)
            for column, at in feature_slices(self.schema):
                if column.nullable and column.kind != "code_set":
                    fills[at] = torch.from_numpy(encoded_fill(column))
            return torch.where(self._missing(x), fills, x)
        if self.imputation == "chained" and self.imputer is not None:
            return self._conditional(x, self.imputer)
        return x

    def _missing(self, x: Tensor) -> Tensor:
        """As ``ehr.imputation.missing``."""
        parts = []
        for column, at in feature_slices(self.schema):
            width = (at.stop - at.start) * (2 if column.indicator else 1)
            part = x[:, at.start : at.start + width]
            empty = part.sum(1, keepdim=True) == 0
            parts.append(empty.expand(-1, width) if column.kind == "categorical" and column.nullable else part.isnan())
        return torch.cat(parts, 1)

    def _conditional(self, x: Tensor, imputer: Imputer) -> Tensor:
        """As ``Imputer.fill`` without draws: the covariance's observed block is solved, with ones where entries are missing."""
        gone = self._missing(x)
        mean, covariance = torch.from_numpy(imputer.mean), torch.from_numpy(imputer.covariance)
        seen = (~gone).double()
        system = covariance * seen[:, :, None] * seen[:, None, :] + torch.diag_embed(gone.double())
        solved = torch.linalg.solve(system, torch.where(gone, 0.0, x - mean))
        filled = torch.where(gone, mean + solved @ covariance, x)
        parts, end = [], 0
        for column, at in feature_slices(self.schema):
            part, missing = filled[:, at], gone[:, at]
            if column.kind == "categorical":
                shares = part.clamp(min=1e-6)
                part = torch.where(missing, shares / shares.sum(1, keepdim=True), part)
            else:
                part = torch.where(missing, part.clamp(least(column), 1.0), part)
            parts += [filled[:, end : at.start], part]
            end = at.stop
        return torch.cat([*parts, filled[:, end:]], 1)


def _encode(cells: list[Tensor], column: Column) -> tuple[Tensor, Tensor]:
    """(rows, width) float64 cells of a column as ``ehr.encoding`` has them, and (rows,) whether the schema allows them."""
    if column.kind == "code_set":
        codes = cells[0].double()
        return codes, ((codes == 0) | (codes == 1)).all(1)
    if column.categories:
        code, count = cells[0], len(column.categories)
        allowed = (code >= -1) & (code < count)
        if column.other or column.nullable:
            code = torch.where(allowed, code, column.categories.index(column.other) if column.other else -1)
            allowed = torch.ones_like(allowed)
        fits = allowed if column.nullable else allowed & (code >= 0)
        if column.kind == "categorical":
            hot = (code[:, None] == torch.arange(count)).double()
            return hot[:, int(column.drop_first) :], fits
        rank = torch.where(code < 0, torch.nan, code.double())[:, None]
        return rank if column.kind == "binary" else 2.0 * rank / (count - 1) - 1.0, fits
    values = torch.stack([cell.double() for cell in cells], 1)
    missing = values.isnan()
    # As tensors: of a plain number ONNX holds 32 bits, between which and the 64 of a cell lies a bound.
    low, high = (torch.tensor(bound, dtype=torch.float64) for bound in column.bounds or (0.0, 1.0))
    fits = ~values.isinf()
    if not column.clip:
        fits = fits & ~((values < low) | (values > high))
    if column.kind in ("integer", "binary"):
        fits = fits & (missing | (values == values.round()))
    if not column.nullable:
        fits = fits & ~missing
    if column.clip:
        values = values.clamp(low, high)
    scaled = values if column.kind == "binary" else 2.0 * (values - low) / (high - low) - 1.0
    return scaled, fits.all(1)


def scorer_of(run: Run) -> Scorer:
    """The run's model with its preprocessing. Raises ConfigError for a run whose predictions no function of one row gives.

    Examples:
        >>> import tempfile
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.plugins import dataset_of
        >>> run = Run.create(RunConfig(model="logistic", out=tempfile.mkdtemp()))
        >>> program, schema = program_of(run.config()), dataset_of(run.config()).schema
        >>> run.write({"statement": {}, "comparison": None}, [], program.first(schema), None, schema)  # untrained
        >>> scorer_of(run)({column.name: torch.zeros(4) for column in schema.features}).shape
        torch.Size([4, 2])
    """
    check_predicts(run)
    config, schema, program = run.config(), run.schema(), program_of(run.config())
    if config.data.imputation == "constant":
        check_fills(schema)
    imputer = read_imputer(config.data.imputer_file) if config.data.imputation == "chained" else None
    scorer = Scorer(
        schema, run.model(), program.predicting(schema), run.standardiser(), config.data.imputation, imputer
    )  # fmt: skip
    return scorer.eval().requires_grad_(False)


def export(run: Run, path: Path, force: bool = False) -> dict[str, Any]:
    """Write a run's model with its preprocessing to ``path`` and its description to ``path`` with ``.json`` added.

    Args:
        run: A finished run of a classifier.
        path: Its suffix is the format: ``.onnx``; ``.pt`` for TorchScript; ``.pt2`` for ``torch.export``.
        force: Whether to replace files that exist.

    Returns:
        The description, whose keys docs/reference/json.md has.

    Raises:
        ConfigError: for another suffix, a folder that does not exist, a file that does, a package that is missing, and a run
            whose predictions no function of one row gives.
        PolyclinicError: for a model that torch cannot export.

    Examples:
        >>> import tempfile
        >>> from polyclinic import Federation
        >>> federation = Federation.from_dataset("breast-cancer", out=tempfile.mkdtemp(), privacy={"dp": False})
        >>> result = federation.run(rounds=1, pictures=False)
        >>> described = export(result.folder, result.path / "model.pt")
        >>> len(described["inputs"]), described["inputs"][0]["name"], described["output"]["classes"]
        (30, 'mean_radius', ['0', '1'])
    """
    write = _FORMATS.get(path.suffix)
    if write is None:
        raise ConfigError(
            f"{path} ends in {path.suffix!r}, which is not a format of a model; end it in .onnx, in .pt for TorchScript or in "
            ".pt2 for torch.export."
        )
    beside = path.with_name(path.name + ".json")
    check_new([path, beside], force)
    scorer = scorer_of(run)
    described = description(run, path.suffix)
    try:
        with _quiet():
            content = write(scorer, described)
    except PolyclinicError:
        raise
    except Exception as error:
        raise PolyclinicError(
            f"The model {run.config().model!r} cannot be written as {path.suffix}: {why(error)[:500]}."
        ) from error
    write_files({path: NewFile(content), beside: NewFile(json_text(described, indent=2))})
    return described


def description(run: Run, suffix: str) -> dict[str, Any]:
    """What stands beside an exported model: its run, what that spent, its inputs and its output (docs/reference/json.md).

    Args:
        run: A finished run of a classifier.
        suffix: The format of the model's file, on which the types of its inputs depend.

    Examples:
        >>> import tempfile
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.plugins import dataset_of
        >>> run = Run.create(RunConfig(model="logistic", out=tempfile.mkdtemp()))
        >>> program, schema = program_of(run.config()), dataset_of(run.config()).schema
        >>> run.write({"statement": {}, "comparison": None}, [], program.first(schema), None, schema)  # untrained
        >>> list(description(run, ".onnx"))
        ['run', 'model', 'model_sha256', 'epsilon', 'delta', 'inputs', 'output', 'not_allowed']
    """
    schema, summary, texts = run.schema(), run.summary(), suffix == ".onnx"
    objective = program_of(run.config()).objective(schema)
    output = {
        "name": "predictions",
        "label": objective.label,
        "columns": list(objective.columns),
        "unit": objective.unit,
    }
    if objective.has_classes:
        output = {"name": "probabilities", "label": objective.label, "classes": list(objective.columns)}
    return {
        "run": run.name, "model": run.config().model, "model_sha256": summary.model_sha256,
        "epsilon": summary.privacy.epsilon, "delta": summary.privacy.delta,
        "inputs": [inp for column in schema.features for inp in _inputs(column, texts)],
        "output": output,
        "not_allowed": f"A row with a cell that its input does not allow has NaN in place of {output['name']}.",
    }  # fmt: skip


def _inputs(column: Column, texts: bool) -> Iterator[dict[str, Any]]:
    """The description of each input of a column. ``texts``: categories are given as texts, not as numbers."""
    coded = bool(column.categories) and column.kind != "code_set"
    absent = None if column.kind == "code_set" or not column.nullable else ("" if texts else -1) if coded else "NaN"
    for name in column.record_names:
        yield {
            "name": name, "kind": column.kind, "type": ("string" if texts else "int64") if coded else "float64",
            "shape": ["rows", len(column.categories)] if column.kind == "code_set" else ["rows"],
            "unit": column.unit, "bounds": list(column.bounds) if column.bounds else None, "clip": column.clip,
            "categories": list(column.categories), "other": column.other, "missing": absent,
        }  # fmt: skip


def _examples(schema: Schema) -> dict[str, Tensor]:
    """Made-up rows of all inputs."""
    examples = {}
    for column in schema.features:
        for name in column.record_names:
            if column.kind == "code_set":
                examples[name] = torch.zeros(_EXAMPLES, len(column.categories), dtype=torch.float64)
            elif column.categories:
                examples[name] = torch.zeros(_EXAMPLES, dtype=torch.int64)
            else:
                examples[name] = torch.full((_EXAMPLES,), (column.bounds or (0.0, 1.0))[0], dtype=torch.float64)
    return examples


def _torchscript(scorer: Scorer, described: dict[str, Any]) -> Callable[[Path], None]:
    rows = _examples(scorer.schema)
    more = {name: torch.cat([value, value]) for name, value in rows.items()}
    trace: Callable[..., Any] = torch.jit.trace
    traced = trace(scorer, (rows,), strict=False, check_inputs=[(more,)])
    return lambda path: torch.jit.save(traced, str(path), _extra_files={_DESCRIPTION: json_text(described)})


def _export(scorer: Scorer) -> torch.export.ExportedProgram:
    rows = _examples(scorer.schema)
    shapes = {name: {0: torch.export.Dim("rows")} for name in rows}
    return torch.export.export(scorer, (rows,), dynamic_shapes=(shapes,))


def _torch_export(scorer: Scorer, described: dict[str, Any]) -> Callable[[Path], None]:
    program = _export(scorer)

    def write(path: Path) -> None:
        with path.open("wb") as file:
            torch.export.save(program, file, extra_files={_DESCRIPTION: json_text(described)})

    return write


def _onnx(scorer: Scorer, described: dict[str, Any]) -> bytes:
    """The model's graph, before which texts of categories become their places."""
    if not all(map(find_spec, ("onnx", "onnxscript"))):  # torch's exporter takes the second
        raise ConfigError("Writing .onnx needs the packages onnx and onnxscript: pip install 'polyclinic[onnx]'.")
    import onnx

    if scorer.imputation == "chained":
        raise ConfigError(
            "data.imputation is 'chained', which solves equations that ONNX has no operator for; export to .pt or .pt2."
        )
    coded = {c.name: c for c in scorer.schema.features if c.categories and c.kind != "code_set"}
    names = [f"{name} code" if name in coded else name for name in _examples(scorer.schema)]
    made = torch.onnx.export(
        _export(scorer),
        input_names=names,
        output_names=[described["output"]["name"]],
        dynamo=True,
        verbose=False,
    )
    assert made is not None
    model = made.model_proto
    graph, rows = model.graph, model.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    inputs, nodes = [], []
    for value in graph.input:
        name = value.name.removesuffix(" code")
        if name == value.name or name not in coded:
            inputs.append(value)
            continue
        categories = coded[name].categories
        inputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [rows]))
        nodes.append(
            onnx.helper.make_node(
                "LabelEncoder",
                [name],
                [value.name],
                domain="ai.onnx.ml",
                keys_strings=[*categories, ""],
                values_int64s=[*range(len(categories)), -1],
                default_int64=len(categories),
            )  # fmt: skip
        )
    nodes += list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend(nodes)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    onnx.helper.set_model_props(model, {_DESCRIPTION: json_text(described)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


_FORMATS: dict[str, Callable[[Scorer, dict[str, Any]], Any]] = {
    ".onnx": _onnx, ".pt": _torchscript, ".pt2": _torch_export,
}  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporters say of packages that are missing and of functions of their own that will go."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


__all__ = ["Scorer", "description", "export", "scorer_of"]
