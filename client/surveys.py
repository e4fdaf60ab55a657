"""What a hospital answers to a survey: counts of its columns' cells, or products of its features, noised together, and
charged before they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.client.calls import Answer, Call
from polyclinic.client.queries import Way, asked
from polyclinic.messages import RelationsRequest, SurveyRequest
from polyclinic.privacy.streams import Stream
from polyclinic.training import relations as related
from polyclinic.training.survey import Plan, Survey, answer, plan
from polyclinic.types import Arrays


def survey(calls: Sequence[Call[SurveyRequest]]) -> list[Answer]:
    """Each hospital's counts, column after column, their numbers of cells, and the names of values it tells of."""
    return asked(calls, _SURVEY)


def _plan(call: Call[SurveyRequest]) -> Plan:
    request, policy = call.request, call.hospital.policy
    survey = Survey(tuple(request.columns.splitlines()), request.epsilon, request.bins, request.codes)
    return plan(survey, call.hospital.schema, policy.delta, policy.accountant, policy.relation)


def _answer(planned: Plan, call: Call[SurveyRequest], stream: Stream) -> tuple[Arrays, dict[str, Any]]:
    found = answer(planned, call.hospital.shard(), stream)
    arrays = {
        "patients": np.concatenate(found.patients),
        "cells": np.array([len(part) for part in found.patients], dtype=np.int64),
        "errors": np.array([planned.error(column) for column in planned.columns]),
    }
    return arrays, {"names": [name for names in found.names for name in names]}


_SURVEY: Way[SurveyRequest] = Way(
    _plan, lambda planned: planned.event, lambda planned: planned.together, lambda request: request.asks, _answer
)


def relations(calls: Sequence[Call[RelationsRequest]]) -> list[Answer]:
    """Each hospital's products of what its rows show."""
    return asked(calls, _RELATIONS)


def _relations_plan(call: Call[RelationsRequest]) -> related.Plan:
    policy = call.hospital.policy
    return related.plan(call.hospital.schema, call.request.epsilon, policy.delta, policy.accountant, policy.relation)


def _products(planned: related.Plan, call: Call[RelationsRequest], stream: Stream) -> tuple[Arrays, dict[str, Any]]:
    return {"products": related.answer(planned, call.hospital.shard(), stream)}, {}


_RELATIONS: Way[RelationsRequest] = Way(
    _relations_plan,
    lambda planned: planned.event,
    lambda planned: planned.noise_multiplier,
    lambda request: "relations",
    _products,
)
