"""The sums that hospitals are asked for before they train: of what standardises their columns, and of how many patients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from polyclinic.arrays import from_record
from polyclinic.ehr.schema import Schema
from polyclinic.messages import STATISTICS, StatisticsRequest, is_model
from polyclinic.privacy.accounting import PrivacyPlan, gaussian_event
from polyclinic.programs import Program
from polyclinic.server.calibration import declared_plan
from polyclinic.server.exchange.merging import arrays_of
from polyclinic.server.exchange.replies import accept, problem, too_few
from polyclinic.server.exchange.sites import Exchange, Site, SiteGrid
from polyclinic.server.state import RunState
from polyclinic.training.preparation import contribution_size, measured_standardiser, patient_counts

# A noisy count can fall near zero; a divisor below this would blow the step up.
_FEWEST_PATIENTS = 10.0
# What a training message may say of them.
_MOST_PATIENTS = 1e9
Sums = list[tuple[Site, np.ndarray]]


def ask_statistics(
    grid: Grid, sites: Sequence[Site], state: RunState, program: Program, run: str, home: Path, privacy: PrivacyPlan | None
) -> None:  # fmt: skip
    """Ask every site for its sums, before the first round; a site that refuses takes no part in the run."""
    exchange, found = _sums(grid, sites, state, program, run, str(home), privacy, 0)
    config = program.config
    if len(found) < config.participation.min_sites:
        raise too_few(exchange, "Statistics", len(found), config)
    totals = [total for _, total in found]
    if config.data.standardise == "measured":
        noise = privacy.statistics_noise_multiplier if privacy else None
        state.standardiser = measured_standardiser(totals, sites[0].schema, noise)
    if program.counts_classes:
        state.classes = program.class_counts([site.index for site, _ in found], totals)
    _count(found, state, program)


def count_patients(
    grid: Grid, sites: Sequence[Site], state: RunState, program: Program, run: str, home: str,
    privacy: PrivacyPlan | None, round: int,
) -> list[Site]:  # fmt: skip
    """Of hospitals that come before ``round``, those whose sums came; of these only the number of patients is used."""
    _, found = _sums(grid, sites, state, program, run, home, privacy, round)
    _count(found, state, program)
    return [site for site, _ in found]


def _sums(
    grid: Grid, sites: Sequence[Site], state: RunState, program: Program, run: str, home: str,
    privacy: PrivacyPlan | None, round: int,
) -> tuple[Exchange, Sums]:  # fmt: skip
    noise, plan = privacy.statistics_noise_multiplier if privacy else None, declared_plan(privacy)

    def request(site: Site) -> StatisticsRequest:
        return StatisticsRequest(
            run=run, site=site.index, home=home, noise_multiplier=noise, plan=plan, local_half=program.has_local_half
        )

    view = SiteGrid(grid, sites, request, {})
    exchange = view.exchange([Message(RecordDict(), site.id, STATISTICS) for site in sites], program.config.timeout)
    config, schema = program.config, sites[0].schema
    measured = config.data.standardise == "measured"
    like = {"sums": np.zeros(schema.num_classes if program.counts_classes else contribution_size(schema, measured))}
    found: dict[int, np.ndarray] = {}

    def wrong(reply: Message) -> str | None:
        if why := problem(reply, like):
            return why
        total = next(from_record(record) for name, record in arrays_of(reply) if is_model(name))["sums"]
        found[reply.metadata.src_node_id] = total
        return _impossible(total, schema, program)

    if noise is not None:
        event = gaussian_event(noise)
        state.ask(exchange, STATISTICS, event, event)
    replies = accept(exchange, state, round, wrong, request=STATISTICS)
    return exchange, [(site, found[site.id]) for site, _ in replies]


def _impossible(total: np.ndarray, schema: Schema, program: Program) -> str | None:
    """Why these can be no hospital's sums, or None."""
    count = _counts([total], schema, program)[0]
    if np.abs(total).max() > _MOST_PATIENTS or count > _MOST_PATIENTS:
        return f"its sums are not those of {_MOST_PATIENTS:g} patients or fewer"
    if not program.config.privacy.dp and count < 1:
        return f"it says that it has {count:g} patients"
    return None


def _counts(totals: list[np.ndarray], schema: Schema, program: Program) -> list[float]:
    if program.counts_classes:
        return [float(total.sum()) for total in totals]
    return patient_counts(totals, schema, program.config.data.standardise == "measured")


def _count(found: Sums, state: RunState, program: Program) -> None:
    if not found:
        return
    counts = _counts([total for _, total in found], found[0][0].schema, program)
    for (site, _), count in zip(found, counts, strict=True):
        state.public_patients[site.name] = max(count, _FEWEST_PATIENTS) if program.config.privacy.dp else count
