"""What a hospital answers in a run beside training, for one call or for a simulation's many.

That is its patients' sums before the first round, and after the last which generators are best. Both are charged before
a record is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from flwr.app import RecordDict

from polyclinic.client.calls import Answer, Call, reply
from polyclinic.client.charging import Release, charge_calls
from polyclinic.client.checks import check_names, check_numbers, check_policy, check_size, check_terms, planned_settings
from polyclinic.client.home.hospital import filled_rows
from polyclinic.digests import digest
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.selection import best_few, choice_event
from polyclinic.privacy.statistics import noisy_total
from polyclinic.programs import program_of
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import QUESTION, R, SelectRequest, StatisticsRequest


def statistics(calls: Sequence[Call[StatisticsRequest]]) -> list[Answer]:
    """The number of training patients, and sums that standardise features where the run measures them.

    Under privacy noised by the Gaussian mechanism.
    """
    noise = calls[0].request.noise_multiplier
    event = NonPrivateDpEvent() if noise is None else gaussian_event(noise)

    def allow(call: Call[StatisticsRequest]) -> None:
        check_policy(call.hospital, "statistics", call.request.noise_multiplier)
        noise = math.inf if call.config.privacy.dp else None
        settings = planned_settings(call.hospital, call.config, noise, call.request.local_half)
        check_terms(call.hospital, call.config, settings)

    def sums(call: Call[StatisticsRequest]) -> Arrays:
        exact = program_of(call.config).patient_sums(call.hospital.schema).exact(call.hospital.shard())
        return {"sums": noisy_total(exact, noise, call.hospital.stream("statistics-noise", 0))}

    return _answer(calls, "statistics", 0, event, allow, lambda call: (noise,), sums)


def select(calls: Sequence[Call[SelectRequest]]) -> list[Answer]:
    """Each hospital's choice among candidate generators, best first: by how many of its training patients a classifier that was
    fitted to each one's rows gets right. Only the choice leaves.
    """
    request = calls[0].request
    event = NonPrivateDpEvent() if request.epsilon is None else choice_event(request.epsilon, request.selected)

    def allow(call: Call[SelectRequest]) -> None:
        # Of another task, a policy would be asked about what is not done, and imputation could make patients' rows depend on
        # each other.
        if program_of(call.config).choice is None:
            raise ConfigError(
                f"{call.hospital.site}: only a game of task 'synthesis' with synthesis.candidates above 0 has a choice among "
                "generators."
            )
        check_names(call.hospital, call.config)
        check_policy(call.hospital, call.config.task, request.noise_multiplier)
        check_size(call.hospital, _judges(call))
        check_numbers(call.hospital, _judges(call))

    def decisive(call: Call[SelectRequest]) -> tuple[object, ...]:
        return call.request.model_dump(exclude={"site", "home", "plan"}), _judges(call)

    def choose(call: Call[SelectRequest]) -> Arrays:
        counts = right_patients(_judges(call), filled_rows(call.hospital, call.config.data.imputation))
        stream = call.hospital.stream("selection", call.request.round)
        chosen = best_few(counts, call.request.selected, call.request.epsilon, stream)
        return {"chosen": np.array(chosen, dtype=np.int64)}

    return _answer(calls, "selection", request.round, event, allow, decisive, choose)


def _answer(
    calls: Sequence[Call[R]], purpose: str, round: int, event: DpEvent, allow: Callable[[Call[R]], None],
    decisive: Callable[[Call[R]], tuple[object, ...]], arrays: Callable[[Call[R]], Arrays],
) -> list[Answer]:  # fmt: skip
    """Each hospital's ``arrays``, charged first. decisive: what decides them beside the configuration and the records."""

    def identify(call: Call[R]) -> str:
        return digest(call.config.decisive(), *decisive(call), call.hospital.began(True))

    def compute(calls: Sequence[Call[R]], spent: Sequence[float]) -> list[RecordDict]:
        return [reply(call.hospital, arrays(call), {}, epsilon) for call, epsilon in zip(calls, spent, strict=True)]

    return charge_calls(calls, Release(purpose, round, allow, lambda call: event, identify, compute))


def right_patients(judges: Arrays, rows: Rows) -> list[int]:
    """For each of C linear classifiers, (C, K, F) and (C, K), how many patients have more than half of their rows right.

    One patient added or removed changes each count by at most 1.
    """
    x = np.ascontiguousarray(np.nan_to_num(rows.x, nan=0.0))
    size = np.bincount(rows.patient, minlength=rows.patients)
    right_by_candidate = []
    for weight, bias in zip(judges["weight"], judges["bias"], strict=True):
        # Row by row: a matrix product's rounding would depend on how many rows there are, and could turn all of them at once.
        scores = [(x * of_class).sum(axis=1) + offset for of_class, offset in zip(weight, bias, strict=True)]
        right = np.argmax(np.stack(scores, axis=1), axis=1) == rows.y
        right_by_candidate.append(int((2 * np.bincount(rows.patient, right, rows.patients) > size).sum()))
    return right_by_candidate


def _judges(call: Call[SelectRequest]) -> Arrays:
    """Raises ConfigError unless the message carries one classifier for each of more candidates than are to be chosen."""
    record = call.content.array_records.get(QUESTION)
    arrays = {} if record is None else from_record(record)
    schema = call.hospital.schema
    wanted = (schema.num_classes, len(feature_names(schema)))
    weight, bias = arrays.get("weight"), arrays.get("bias")
    if (
        weight is None or bias is None or len(arrays) != 2 or weight.ndim != 3 or weight.shape[1:] != wanted
        or bias.shape != weight.shape[:2] or len(weight) <= call.request.selected
        or not np.isfinite(weight).all() or not np.isfinite(bias).all()
    ):  # fmt: skip
        raise ConfigError(
            f"The message's classifiers must be finite, of shapes (candidates, {wanted[0]}, {wanted[1]}) and (candidates, "
            f"{wanted[0]}), and more than {call.request.selected}."
        )
    return {"weight": weight, "bias": bias}
