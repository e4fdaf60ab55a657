"""A survey of all hospitals, and the better schema that follows from their counts added up. What each answers is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from polyclinic.arrays import from_record
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.prepared import Counted, Rules, prepared, standard_error
from polyclinic.ehr.schema import Schema
from polyclinic.messages import RELATIONS, SURVEY, RelationsRequest, SurveyRequest
from polyclinic.privacy.accounting import Accountant, Relation, epsilon
from polyclinic.privacy.ledger_file import finite
from polyclinic.server.queries import Asked, Bill, bill_of, replies_to, together
from polyclinic.server.sites import Dropped
from polyclinic.training import relations as related
from polyclinic.training.survey import Plan, Survey, plan


@dataclass(frozen=True)
class Relations(Asked):
    """How features go together, for an imputer; ``epsilon`` None is exact."""

    message = RELATIONS
    kind = RelationsRequest

    epsilon: float | None

    def content(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    def planned(self, schema: Schema, delta: float, accountant: Accountant, relation: Relation) -> related.Plan:
        return related.plan(schema, self.epsilon, delta, accountant, relation)


@dataclass(frozen=True)
class Preparation(Asked):
    """A survey, and the public rules by which it makes a schema."""

    message = SURVEY
    kind = SurveyRequest

    survey: Survey
    rules: Rules = Rules()

    def content(self) -> dict[str, Any]:
        asked = self.survey
        columns = "\n".join(asked.columns)
        return {"columns": columns, "bins": asked.bins, "codes": asked.codes, "epsilon": asked.epsilon}

    def planned(self, schema: Schema, delta: float, accountant: Accountant, relation: Relation) -> Plan:
        return plan(self.survey, schema, delta, accountant, relation)


def prepare(
    grid: Grid, preparation: Preparation, run: str, home: str | Path, timeout: float
) -> tuple[Schema, dict[str, Any]]:
    """The schema prepared with the counts of all hospitals behind ``grid``, and the statement of what was asked and found,
    as plain values: the keys are a contract (docs/reference/json.md).

    A hospital that refuses is left out and said to be. Raises as ``server.queries.ask`` does.
    """
    replies, absent = replies_to(grid, preparation, run, home, timeout)
    bills = [bill_of(site, reply) for site, reply in replies]
    draft = replies[0][0].schema
    columns = preparation.survey.parts(draft)
    answers = [_counted(reply, [column.is_open for column in columns]) for _, reply in replies]
    added = {column.name: _added([one[index] for one in answers]) for index, column in enumerate(columns)}
    schema, found = prepared(draft, added, preparation.rules)
    return schema, _statement(preparation, bills, added, found, absent)


def relate(
    grid: Grid, relations: Relations, run: str, home: str | Path, timeout: float
) -> tuple[Imputer, dict[str, Any]]:
    """The imputer that the products of all hospitals behind ``grid`` make, and the statement of what was asked.

    Raises as ``server.queries.ask`` does.
    """
    replies, absent = replies_to(grid, relations, run, home, timeout)
    bills = [bill_of(site, reply) for site, reply in replies]
    products = [from_record(reply.content.array_records["arrays"])["products"] for _, reply in replies]
    noise = [relations.plan(site).noise_multiplier for site, _ in replies]
    imputer = related.imputer_of(products, noise, replies[0][0].schema)
    return imputer, _bills(bills, noise, absent) | {
        "exact": relations.epsilon is None, "mechanism": "exact" if relations.epsilon is None else "gaussian",
        "features": list(imputer.features),
    }  # fmt: skip


def _bills(bills: Sequence[Bill], noise: Sequence[float | None], absent: Dropped) -> dict[str, Any]:
    return {
        "sites": {bill.site.name: bill.summary() | {"noise_multiplier": one} for bill, one in zip(bills, noise, strict=True)},
        "privacy": together(bills, bills[0].site.schema.unit),
        "dropouts": [{"site": site, "reason": reason} for site, reason in absent],
    }  # fmt: skip


def _counted(reply: Message, is_open: Sequence[bool]) -> list[Counted]:
    """One hospital's counts, column by column."""
    arrays = from_record(reply.content.array_records["arrays"])
    names: Any = iter(cast(Sequence[str], reply.content.config_records["query"]["names"]))
    parts = np.split(arrays["patients"], np.cumsum(arrays["cells"])[:-1])
    return [
        Counted(part, float(error), tuple(next(names) for _ in part) if opened else ())
        for part, error, opened in zip(parts, arrays["errors"], is_open, strict=True)
    ]


def _added(counts: Sequence[Counted]) -> Counted:
    """Several hospitals' counts of one column; a value that a hospital tells nothing of counts as none there."""
    error = float(np.sqrt(sum(one.error**2 for one in counts)))
    if not any(one.names for one in counts):
        return Counted(np.sum([one.patients for one in counts], axis=0), error)
    names = sorted({name for one in counts for name in one.names})
    found = np.zeros(len(names))
    for one in counts:
        if one.names:
            found[np.searchsorted(names, one.names)] += one.patients
    return Counted(found, error, tuple(names))


def _statement(
    preparation: Preparation, bills: Sequence[Bill], added: dict[str, Counted], found: dict[str, dict[str, Any]],
    absent: Dropped,
) -> dict[str, Any]:  # fmt: skip
    survey, schema = preparation.survey, bills[0].site.schema
    plans = [preparation.plan(bill.site) for bill in bills]
    columns: dict[str, Any] = {}
    for column in survey.parts(schema):
        cost = max(
            epsilon(plan.part(column), bill.delta, bill.accountant, bill.relation)
            for plan, bill in zip(plans, bills, strict=True)
        )
        mechanism = "exact" if survey.epsilon is None else "gaussian, thresholded" if column.is_open else "gaussian"
        columns[column.name] = {
            "mechanism": mechanism, "cells": len(added[column.name].patients),
            "standard_error": standard_error(column, added[column.name]), "most": survey.most(column), "epsilon": finite(cost),
            "threshold_delta": max(plan.threshold_delta for plan in plans) if column.is_open else 0.0,
            "threshold": plans[0].threshold(column) if column.is_open else None, **found[column.name],
        }  # fmt: skip
    return {
        "exact": survey.epsilon is None, "bins": survey.bins, "codes": survey.codes, "columns": columns,
        **_bills(bills, [plan.noise_multiplier for plan in plans], absent),
    }  # fmt: skip
