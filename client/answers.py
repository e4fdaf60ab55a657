"""What a hospital answers before training: statistics, for one call or for a simulation's many."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_accounting import NonPrivateDpEvent
from flwr.app import RecordDict

from polyclinic.client.calls import Answer, Call, reply
from polyclinic.client.charging import Release, charged
from polyclinic.client.checks import check_policy, check_terms, planned_settings
from polyclinic.digests import digest
from polyclinic.messages import StatisticsRequest
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.statistics import noisy_moments
from polyclinic.programs import program_of
from polyclinic.training.preparation import class_contributions, contributions


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

    def compute(calls: Sequence[Call[StatisticsRequest]], spent: Sequence[float]) -> list[RecordDict]:
        answers = []
        for call, epsilon in zip(calls, spent, strict=True):
            shard = call.hospital.shard()
            if program_of(call.config).counts_classes:
                sums = class_contributions(shard)
            else:
                sums = contributions(shard, call.config.data.standardise == "measured")
            total = noisy_moments(sums, noise, call.hospital.stream("statistics-noise", 0))
            answers.append(reply(call.hospital, {"sums": total}, {}, epsilon))
        return answers

    def identify(call: Call[StatisticsRequest]) -> str:
        return digest(call.config.decisive(), noise, call.hospital.shard().digest)

    return charged(calls, Release("statistics", 0, allow, lambda call: event, identify, compute))
