"""The sums that hospitals are asked for before they train: of what standardises their columns, and of how many patients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from polyclinic.privacy.accounting import gaussian_event
from polyclinic.programs import Program
from polyclinic.server.calibration import declared_plan
from polyclinic.server.exchange.merging import arrays_of
from polyclinic.server.exchange.replies import accept, problem, too_few
from polyclinic.server.exchange.sites import Exchange, Site, put
from polyclinic.server.state import Run, RunState
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import STATISTICS, StatisticsRequest, is_model

# A noisy count can fall near zero; a divisor below this would blow the step up.
_FEWEST_PATIENTS = 10.0
# What a training message may say of them.
_MOST_PATIENTS = 1e9


def ask_statistics(run: Run, state: RunState) -> None:
    """Ask every site for its sums, before the first round; a site that refuses takes no part in the run."""
    exchange, sums = _sums(run, run.sites, state, 0)
    config, program, privacy = run.config, run.program, run.privacy
    if len(sums) < config.participation.min_sites:
        raise too_few(exchange, "Statistics", len(sums), config)
    totals = [total for _, total in sums]
    if config.data.standardise == "measured":
        noise = privacy.statistics_noise_multiplier if privacy else None
        state.standardiser = program.patient_sums(run.sites[0].schema).standardiser(totals, noise)
    if program.counts_classes:
        state.classes = program.class_counts([site.index for site, _ in sums], totals)


def count_patients(run: Run, sites: Sequence[Site], state: RunState, round: int) -> list[Site]:
    """Of hospitals that come before ``round``, those whose sums came; of these only the number of patients is used.

    Args:
        run: The run.
        sites: The hospitals that come.
        state: The run's state, which is changed.
        round: The round before which they come.
    """
    return [site for site, _ in _sums(run, sites, state, round)[1]]


def _sums(
    run: Run, sites: Sequence[Site], state: RunState, round: int
) -> tuple[Exchange, list[tuple[Site, np.ndarray]]]:
    """The sums of the sites that gave some; how many patients these have is noted in ``state``."""
    program, privacy = run.program, run.privacy
    noise, sums = privacy.statistics_noise_multiplier if privacy else None, program.patient_sums(sites[0].schema)
    request = StatisticsRequest(
        run=run.name,
        site=0,
        home=run.home,
        noise_multiplier=noise,
        plan=declared_plan(privacy),
        local_half=program.has_local_half,
    )
    exchange = put(run.grid, sites, STATISTICS, request, program.config.timeout)
    by_node: dict[int, np.ndarray] = {}

    def wrong(reply: Message) -> str | None:
        if why := problem(reply, {"sums": np.zeros(sums.size)}):
            return why
        total = next(from_record(record) for name, record in arrays_of(reply) if is_model(name))["sums"]
        by_node[reply.metadata.src_node_id] = total
        return _impossible(total, sums.patients(total), program)

    if noise is not None:
        event = gaussian_event(noise)
        state.ask(exchange, STATISTICS, event, event)
    replies = accept(exchange, state, round, wrong, request=STATISTICS)
    for site, _ in replies:
        count = sums.patients(by_node[site.id])
        state.public_patients[site.name] = max(count, _FEWEST_PATIENTS) if program.config.privacy.dp else count
    return exchange, [(site, by_node[site.id]) for site, _ in replies]


def _impossible(total: np.ndarray, patients: float, program: Program) -> str | None:
    """Why these can be no hospital's sums, or None."""
    if np.abs(total).max() > _MOST_PATIENTS or patients > _MOST_PATIENTS:
        return f"its sums are not those of {_MOST_PATIENTS:g} patients or fewer"
    if not program.config.privacy.dp and patients < 1:
        return f"it says that it has {patients:g} patients"
    return None
