"""Hospitals that come, or come back, while a run goes on: enrolled between two rounds, and in every round from then on.

Such a hospital pays for the rounds that it is in alone, so its epsilon stays below the run's. Where the noise or the sum counts
on who takes part (privacy of whole hospitals, secure sums, a strategy's mean over all, one release), nobody joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from polyclinic.config import RunConfig
from polyclinic.plugins import strategy_named
from polyclinic.programs import Program
from polyclinic.server.exchange.sites import Site, silence
from polyclinic.server.phases.enrolment import ask_to_enrol, enrol_request, newcomers, same_name
from polyclinic.server.phases.statistics import count_patients
from polyclinic.server.state import Run, RunState
from polyclinic.strategies.registry import counts_hospitals


def may_join(program: Program) -> bool:
    """Whether a hospital that was not there at the beginning can take part in later rounds."""
    config = program.config
    counted_on = config.central.on or config.secure.aggregation or counts_hospitals(strategy_named(config.strategy))
    return program.lets_join and not counted_on


def with_newcomers(run: Run, state: RunState, number: int, keep: Callable[[RunState], None]) -> Run:
    """The run as it is in round ``number``: with the real hospitals that have come since it last looked.

    Those that do not go with the run are in ``state.dropouts``. A node that answered with an error, that refused, or
    whose name another one uses too is asked again. One that was silent is not: its answer is looked for each time.

    Args:
        run: The run before the round.
        state: The run's state, which is changed.
        number: The round.
        keep: Writes the state before a newcomer is asked for anything that it pays for.
    """
    if not _grows(run):
        return run
    request = enrol_request(run.name, run.home, run.privacy, local_half=run.program.has_local_half)
    new = sorted(set(run.grid.get_node_ids()) - run.answered - set(run.pending))
    late = newcomers(run.grid, ask_to_enrol(run.grid, request, new), run.config.timeout)
    back = newcomers(run.grid, run.pending, 0.0)
    newcomers_of_round = late.sites + back.sites
    # An impostor's claim, which its key tells, must not keep out the hospital whose name it uses.
    genuine = [site for site in newcomers_of_round if not state.impostor(site)]
    present = {site.name for site in run.sites}
    shared = {name for name, count in Counter(site.name for site in genuine).items() if count > 1}
    named = [
        (
            site,
            same_name(site, [*run.sites, *genuine])
            if site.name in present | shared
            else _stranger(site, run) or state.impostor(site),
        )
        for site in newcomers_of_round
    ]
    absent = late.absent + back.absent + [(site.name, why) for site, why in named if why]
    names = late.names | back.names
    absent += [(state.name_of(node, names), why) for node, why in (late.erred | back.erred).items()]
    absent += [(state.name_of(node, names), silence(run.config.timeout)) for node in late.pending]
    state.tell(number, absent)
    fit = [state.welcome(site) for site, why in named if not why]
    if fit:
        keep(state)
    joined = _count_newcomers(run, state, number, fit)
    clashing = [site for site in newcomers_of_round if site.name in shared]
    again = {site.node for site in (*fit, *clashing)} - {site.node for site in joined}
    sites = sorted([*run.sites, *joined], key=lambda site: site.index)
    nodes = run.answered | ((late.answered | back.answered) - again)
    return replace(run, sites=sites, answered=nodes, pending=late.pending | back.pending)


def without_silent(run: Run, state: RunState, number: int) -> Run:
    """The run without the real hospitals that did not reply in round ``number``: they are waited for no longer.

    Each is asked to enrol, and is back in the round before which its answer has come. It stays in the run's privacy
    statement. A run that would be left with fewer than ``participation.min-sites`` waits for all, and so does one that
    nobody joins.

    Args:
        run: The run after the round's replies.
        state: The run's state, with who dropped out and why.
        number: The round.
    """
    gone = {drop["site"] for drop in state.dropouts
            if drop["round"] == number and drop["reason"] == silence(run.config.timeout)}  # fmt: skip
    if not gone:
        return run
    silent = [site.node for site in run.sites if site.name in gone]
    rest = [site for site in run.sites if site.name not in gone]
    if not silent or not _grows(run) or len(rest) < run.config.participation.min_sites:
        return run
    asked = ask_to_enrol(
        run.grid, enrol_request(run.name, run.home, run.privacy, local_half=run.program.has_local_half), silent
    )
    return replace(run, sites=rest, answered=run.answered - set(silent), pending={**run.pending, **asked})


def _grows(run: Run) -> bool:
    return not any(site.simulated for site in run.sites) and may_join(run.program)


def unlike(site: Site, config: RunConfig) -> str | None:
    """Why a hospital's policy does not go with the run's terms: it would refuse halfway, or epsilons would not compare."""
    if not config.privacy.dp:
        return None
    terms = {
        "delta": (site.delta, config.privacy.delta),
        "relation": (site.relation, "add-remove"),
        "accountant": (site.accountant, "pld"),
    }
    for name, (theirs, ours) in terms.items():
        if theirs != ours:
            return f"its policy has {name} {theirs}, the run has {ours}; agree on one before the run"
    if site.budget is not None and site.budget < config.privacy.epsilon:
        return f"its policy's budget is {site.budget:g}, the run's epsilon is {config.privacy.epsilon:g}; lower the run's epsilon"
    return None


def _stranger(site: Site, run: Run) -> str | None:
    if site.schema != run.sites[0].schema:
        return "its schema is not the run's; all hospitals need the same one"
    return unlike(site, run.config)


def _count_newcomers(run: Run, state: RunState, number: int, newcomers: Sequence[Site]) -> list[Site]:
    """Those whose number of patients is known, or is not needed."""
    counted = [site for site in newcomers if site.name in state.public_patients]
    new = [site for site in newcomers if site.name not in state.public_patients]
    if new and run.config.asks_statistics:
        new = count_patients(run, new, state, number)
    elif run.privacy:
        state.public_patients |= {site.name: float(run.config.privacy.patients_per_site) for site in new}
    return counted + new
