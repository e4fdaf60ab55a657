"""Prepare a schema from Python: by a survey of a simulated federation, or of one real hospital in this process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.prepared import Rules
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of
from polyclinic.querying import Simulated, fresh_run, own_ledger, own_policy, real_grid, schema_of
from polyclinic.server.surveys import Preparation, Relations, prepare, relate
from polyclinic.training.relations import plan
from polyclinic.training.survey import Survey

SCHEMA, STATEMENT = "prepared.toml", "preparation.json"
IMPUTER, IMPUTER_STATEMENT = "imputer.json", "imputer-statement.json"


def prepare_dataset(
    out: Path, dataset: str, *, epsilon: float | None = None, share: float | None = None, exact: bool = False,
    columns: tuple[str, ...] = (), bins: int = 256, codes: int = 10, rules: Rules | None = None, ledger: Path | None = None,
    sites: int = 0, seed: int = 0, delta: float | None = None, relation: str | None = None, budget: float | None = None,
    schema_file: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Write ``prepared.toml`` and ``preparation.json`` into the folder ``out``; returns the latter, and both files' paths.

    epsilon: what preparing may cost each hospital; or share: the part of its budget that it may; or exact: without privacy.
    columns: those to prepare, all features if empty. bins, codes: as in ``Survey``. ledger, delta, relation, budget: as in
    ``querying.query_dataset``; a new ledger is begun in ``out``. schema_file: the draft, the dataset's own schema if empty.
    Raises ConfigError before anything is charged, also where ``out`` holds what was prepared before or cannot be written;
    BudgetRefused when every hospital's budget refuses. Nothing is written then, but the folder may be made.
    """
    file = ledger or out / "ledger.sqlite"
    simulated = Simulated.of(dataset, file, "survey", sites, seed, delta, relation, budget, schema_file)
    draft = dataset_of(simulated.config).schema
    survey = _survey(draft, epsilon, share, exact, simulated.budget, columns, bins, codes)
    preparation = Preparation(survey, rules or Rules(), str(simulated.ledger), simulated.budget, simulated.relation)
    _reserve(out, SCHEMA, STATEMENT)
    found = prepare(simulated.grid(), preparation, simulated.run, simulated.ledger.parent, simulated.config.timeout)
    return _written(out, *found, simulated.ledger)


def prepare_hospital(
    out: Path, path: Path, *, epsilon: float | None = None, share: float | None = None, exact: bool = False,
    columns: tuple[str, ...] = (), bins: int = 256, codes: int = 10, rules: Rules | None = None,
) -> dict[str, Any]:  # fmt: skip
    """As ``prepare_dataset``, of the one real hospital of a ``hospital.toml``: its own draft schema, policy and ledger."""
    draft = schema_of(path)
    survey = _survey(draft, epsilon, share, exact, own_policy(path).budget, columns, bins, codes)
    _reserve(out, SCHEMA, STATEMENT)
    found = prepare(
        real_grid(path), Preparation(survey, rules or Rules()), fresh_run("survey"), "", RunConfig().timeout
    )
    return _written(out, *found, own_ledger(path))


def impute_dataset(
    out: Path, dataset: str, *, epsilon: float | None = None, share: float | None = None, exact: bool = False,
    ledger: Path | None = None, sites: int = 0, seed: int = 0, delta: float | None = None, relation: str | None = None,
    budget: float | None = None, schema_file: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Write ``imputer.json`` and ``imputer-statement.json`` into ``out``; returns the latter. Arguments as in
    ``prepare_dataset``; the imputer is of the features under the schema, so prepare that first.
    """
    file = ledger or out / "ledger.sqlite"
    simulated = Simulated.of(dataset, file, "relations", sites, seed, delta, relation, budget, schema_file)
    asked = _epsilon(epsilon, share, exact, simulated.budget)
    plan(dataset_of(simulated.config).schema, asked, simulated.config.delta, relation=simulated.relation)
    relations = Relations(asked, str(simulated.ledger), simulated.budget, simulated.relation)
    _reserve(out, IMPUTER, IMPUTER_STATEMENT)
    found = relate(simulated.grid(), relations, simulated.run, simulated.ledger.parent, simulated.config.timeout)
    return _imputer_written(out, *found, simulated.ledger)


def impute_hospital(
    out: Path, path: Path, *, epsilon: float | None = None, share: float | None = None, exact: bool = False
) -> dict[str, Any]:
    """As ``impute_dataset``, of the one real hospital of a ``hospital.toml``."""
    own = own_policy(path)
    relations = Relations(_epsilon(epsilon, share, exact, own.budget))
    plan(schema_of(path), relations.epsilon, own.delta, own.accountant, own.relation)
    _reserve(out, IMPUTER, IMPUTER_STATEMENT)
    found = relate(real_grid(path), relations, fresh_run("relations"), "", RunConfig().timeout)
    return _imputer_written(out, *found, own_ledger(path))


def _survey(
    draft: Schema, epsilon: float | None, share: float | None, exact: bool, budget: float | None, columns: tuple[str, ...],
    bins: int, codes: int,
) -> Survey:  # fmt: skip
    epsilon = _epsilon(epsilon, share, exact, budget)
    survey = Survey(columns or tuple(column.name for column in draft.features), epsilon, bins, codes)
    survey.check(draft)
    return survey


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


def _written(out: Path, schema: Schema, statement: dict[str, Any], ledger: Path) -> dict[str, Any]:
    told = statement | {"schema": str((out / SCHEMA).resolve()), "ledger": str(ledger)}
    _write(out, {SCHEMA: schema.to_toml, STATEMENT: _json(told)})
    return told


def _imputer_written(out: Path, imputer: Imputer, statement: dict[str, Any], ledger: Path) -> dict[str, Any]:
    told = statement | {"imputer": str((out / IMPUTER).resolve()), "ledger": str(ledger)}
    _write(out, {IMPUTER: imputer.write, IMPUTER_STATEMENT: _json(told)})
    return told


def _json(told: dict[str, Any]) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(told, indent=1), encoding="utf-8")


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
        raise ConfigError(f"The folder {out} cannot be written: {error.strerror or 'no reason given'}.") from None


def _write(out: Path, files: Mapping[str, Callable[[Path], object]]) -> None:
    try:
        for name, write in files.items():
            partial = out / f"{name}.partial"
            write(partial)
            partial.replace(out / name)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written any more: {error.strerror or 'no reason given'}.") from None
