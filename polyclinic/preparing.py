"""Prepare a schema from Python: by a survey of simulated hospitals, or of one real hospital in this process."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from polyclinic.ehr.prepared import Rules
from polyclinic.errors import ConfigError
from polyclinic.files import Content, NewFile, reason, write_files
from polyclinic.querying import Target
from polyclinic.server import surveys
from polyclinic.server.surveys import Preparation, Relations
from polyclinic.training.survey import Survey

SCHEMA, STATEMENT = "prepared.toml", "preparation.json"
IMPUTER, IMPUTER_STATEMENT = "imputer.json", "imputer-statement.json"


def prepare(
    out: Path, target: Target, *, epsilon: float | None = None, share: float | None = None, exact: bool = False,
    columns: tuple[str, ...] = (), bins: int = 256, codes: int = 10, rules: Rules | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write ``prepared.toml`` and ``preparation.json`` into the folder ``out``; returns the latter, and both files' paths.

    Args:
        target: Whose draft schema is prepared (``querying.simulated`` or ``querying.real``).
        epsilon: What preparing may cost each hospital.
        share: Instead, the part of its budget that it may.
        exact: Instead, without privacy.
        columns: Those to prepare, all features if empty.
        bins, codes: As in ``Survey``.

    Raises:
        ConfigError: Before anything is charged, also where ``out`` holds what was prepared before or cannot be written.
        BudgetRefused: Every hospital's budget refuses. Nothing is written then, but the folder may be made.
    """
    cost = _epsilon(epsilon, share, exact, target.budget)
    survey = Survey(columns or tuple(column.name for column in target.schema.features), cost, bins, codes)
    survey.check(target.schema)
    _reserve(out, SCHEMA, STATEMENT)
    preparation = Preparation(survey, rules or Rules(), **target.terms)
    schema, statement = surveys.prepare(
        target.grid(), preparation, target.run("survey"), target.home, target.config.timeout
    )
    return _written(out, target, "schema", SCHEMA, schema.to_toml, STATEMENT, statement)


def impute(
    out: Path, target: Target, *, epsilon: float | None = None, share: float | None = None, exact: bool = False
) -> dict[str, Any]:
    """Write ``imputer.json`` and ``imputer-statement.json`` into ``out``; returns the latter. Arguments as in ``prepare``; the
    imputer is of the features under the schema, so prepare that first.
    """
    relations = Relations(_epsilon(epsilon, share, exact, target.budget), **target.terms)
    relations.planned(target.schema, target.delta, target.accountant, target.relation)
    _reserve(out, IMPUTER, IMPUTER_STATEMENT)
    imputer, statement = surveys.relate(
        target.grid(), relations, target.run("relations"), target.home, target.config.timeout
    )
    return _written(out, target, "imputer", IMPUTER, imputer.write, IMPUTER_STATEMENT, statement)


def _epsilon(epsilon: float | None, share: float | None, exact: bool, budget: float | None) -> float | None:
    if (epsilon is not None) + (share is not None) + exact != 1:
        raise ConfigError("Give exactly one of epsilon, share (of the budget) and exact (without privacy).")
    if share is not None:
        if not 0 < share <= 1:
            raise ConfigError(f"share must lie above 0 and at most at 1, got {share}.")
        if budget is None:
            raise ConfigError("share is of a budget, and there is none; give budget, or epsilon instead of share.")
        epsilon = share * budget
    return epsilon


def _reserve(out: Path, *names: str) -> None:
    """Make the folder before anything is paid for. Raises ConfigError where one of the files exists, or none can be made."""
    try:
        for path in (out / name for name in names):
            if path.exists():
                raise ConfigError(f"{path} exists already, and what it holds was paid for; choose another folder.")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except FileExistsError:
        raise ConfigError(f"{out} is a file, not a folder; choose another folder.") from None
    except OSError as error:
        raise ConfigError(f"The folder {out} cannot be written: {reason(error)}.") from None


def _written(
    out: Path, target: Target, what: str, name: str, content: Content, statement_name: str, statement: dict[str, Any]
) -> dict[str, Any]:
    told = statement | {what: str((out / name).resolve()), "ledger": str(target.ledger)}
    try:
        write_files({out / name: NewFile(content), out / statement_name: NewFile(json.dumps(told, indent=1))})
    except OSError as error:
        raise ConfigError(f"{out} cannot be written any more: {reason(error)}.") from None
    return told
