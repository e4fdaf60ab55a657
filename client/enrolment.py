"""What a hospital answers when it is asked who it is: its name, schema, versions and policy, or why it refuses the run.

Enrolling checks records, policy and the run's terms, so that nothing is charged for a run that the hospital will refuse. The
answer tells of the records only whether they fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common.logger import log

import polyclinic
from polyclinic.client.calls import Answer, Call, each
from polyclinic.client.checks import check_model_size, check_policy, check_terms, planned_settings
from polyclinic.client.home.hospital import is_real, own_imputer
from polyclinic.client.home.own_files import own_file
from polyclinic.client.home.policy import HospitalFile
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import check_affordable
from polyclinic.privacy.ledger.terms import check_plan
from polyclinic.programs import program_of
from polyclinic.runs.simulation import SimulatedRecords
from polyclinic.wire.messages import RECORD, EnrolRequest
from polyclinic.wire.versions import PRIVACY_FORMAT, version_conflict, versions


def enrol(calls: Sequence[Call[EnrolRequest]]) -> list[Answer]:
    """The hospital's name, public schema and policy, or its name and the reason why its policy refuses the run."""
    schemas = cache(lambda schema: json.dumps(schema.as_dict()))

    def answer(call: Call[EnrolRequest]) -> RecordDict:
        hospital, policy = call.hospital, call.hospital.policy
        asks = hospital.under_control and (call.request.trains or bool(call.request.question))
        obstacle: dict[str, Any] = {}
        if hospital.under_control:
            from polyclinic.client.home.approvals import pausing, standing  # what a simulation does without

            obstacle = pausing(hospital)
        if obstacle and asks:
            return _answer(hospital.site, **obstacle)
        if not obstacle:  # no record is read in a pause
            hospital.shard()
        if call.config.gpus and call.request.trains and not torch.cuda.is_available():
            raise ConfigError(
                f"Configuration key 'gpus' has the value {call.config.gpus:g}, but torch finds no GPU at this node."
            )
        own_imputer(hospital, call.config.data.imputation)
        if call.request.trains and not hospital.simulated:
            try:
                _check_run(call)
            except BudgetRefused as refusal:
                return refusal_answer(hospital.site, refusal)
        if asks and (obstacle := standing(hospital, call.request, call.config)):
            return _answer(hospital.site, **obstacle)
        records = hospital.records
        return _answer(
            hospital.site, index=call.request.site, simulated=hospital.simulated,
            sites=len(records.shards()) if isinstance(records, SimulatedRecords) else 1, schema=schemas(hospital.schema),
            delta=policy.delta, budget=policy.budget or 0.0, relation=policy.relation, accountant=policy.accountant,
            elsewhere=policy.patients_elsewhere, knows_others=bool(policy.known_hospitals),
            asks_people=hospital.waits_for_people,
            metrics_epsilon=hospital.metrics_epsilon(call.config) or 0.0,
        )  # fmt: skip

    return each(answer, calls)


def refuse_other_format(content: RecordDict, context: Context) -> RecordDict | None:
    """A real hospital's refusal of a coordinator of another privacy format, or None. Raises PolyclinicError, as ``own_file``
    does, for a settings file that cannot be used.

    It reads nothing else of the message: another format may have other fields and other configuration keys.
    """
    if not is_real(context):
        return None
    record = content.get(RECORD)
    fields: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
    number = fields.get("privacy_format")
    coordinator = {
        "polyclinic": str(fields.get("version", ""))[:100],
        "privacy_format": str(number) if type(number) is int else "",
    }
    conflict = version_conflict(versions(), coordinator)
    if conflict is None:
        if coordinator["polyclinic"] != polyclinic.__version__:
            log(WARNING, "Polyclinic: the coordinator has version %r, this hospital has %s; both have privacy format %d.",
                coordinator["polyclinic"], polyclinic.__version__, PRIVACY_FORMAT)  # fmt: skip
        return None
    with own_file("settings file"):
        return _answer(HospitalFile.read(Path(str(context.node_config["hospital"]))).site, conflict)


def refusal_answer(site: str, refusal: BudgetRefused) -> RecordDict:
    """A hospital's answer to who asks it to enrol, where its policy refuses the run."""
    return _answer(site, str(refusal).removeprefix(f"{site}: "))


def _answer(site: str, refusal: str = "", **fields: Any) -> RecordDict:
    who = {"site": site, "versions": _versions(), "refusal": refusal}
    return RecordDict({RECORD: ConfigRecord({**who, **fields})})


@cache
def _versions() -> str:
    return json.dumps(versions())


def _check_run(call: Call[EnrolRequest]) -> None:
    """Raises BudgetRefused when the policy refuses the run, or its budget the first round and the statistics before it."""
    hospital, config, noise = call.hospital, call.config, call.request.noise_multiplier
    counting = call.request.statistics_noise_multiplier
    planned = (noise or math.inf) if config.privacy.dp else None
    settings = planned_settings(hospital, config, planned, call.request.local_half)
    check_terms(hospital, config, settings)
    if config.asks_statistics:
        check_policy(hospital, "statistics", (counting or math.inf) if config.privacy.dp else None)
    check_model_size(hospital, config)
    check_plan(call.request.plan, hospital.policy.relation)
    if config.privacy.dp and noise is not None:
        first: list[DpEvent] = [program_of(config).price(settings)]
        if config.asks_statistics and counting is not None:
            first.insert(0, gaussian_event(counting))
        limits = hospital.limits(hospital.approved_epsilon(config), config.participation.submitter)
        for path in (hospital.ledger_path, *([hospital.held_out_path] if hospital.moves_patients else [])):
            check_affordable(path, hospital.terms, call.request.run, first, call.request.plan, limits)
