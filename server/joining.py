"""Hospitals that come, or come back, while a run goes on: enrolled between two rounds, and in every round from then on.

Such a hospital pays for the rounds that it is in alone, so its epsilon stays below the run's. Where the noise or the sum counts
on who takes part (privacy of whole hospitals, secure sums, SCAFFOLD's mean over all, one release), nobody joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from polyclinic.config import RunConfig
from polyclinic.server.sites import Site, enrol_more
from polyclinic.server.state import Run, RunState
from polyclinic.server.statistics import count_patients


def may_join(config: RunConfig) -> bool:
    """Whether a hospital that was not there at the beginning can take part in later rounds."""
    counted_on = config.central or config.secure_aggregation or config.strategy == "scaffold"
    return config.task == "classification" and not counted_on


def with_newcomers(run: Run, state: RunState, number: int, keep: Callable[[RunState], None]) -> Run:
    """The run as it is in round ``number``: with the real hospitals that have come since it last looked.

    Those that do not go with the run are told in ``state.dropouts``; a node is asked until it answers. ``keep`` writes the state
    before a newcomer is asked for anything that it pays for.
    """
    if not may_join(run.config) or any(site.simulated for site in run.sites):
        return run
    answered, found, absent = enrol_more(run.grid, run.name, run.home, run.known, run.config.timeout)
    names = Counter(site.name for site in (*run.sites, *found))
    named = [(site, _stranger(site, run, names) or state.impostor(site)) for site in found]
    absent += [(site.name, why) for site, why in named if why]
    state.dropouts += [{"round": number, "site": name, "reason": why} for name, why in absent]
    fit = [state.welcome(site) for site, why in named if not why]
    if fit:
        keep(state)
    joined = _counted(run, state, number, fit)
    uncounted = {site.node for site in fit} - {site.node for site in joined}
    sites = sorted([*run.sites, *joined], key=lambda site: site.index)
    return replace(run, sites=sites, known=run.known | (answered - uncounted))


def unlike(site: Site, config: RunConfig) -> str | None:
    """Why a hospital's policy does not go with the run's terms: it would refuse halfway, or epsilons would not compare."""
    if not config.dp:
        return None
    terms = {
        "delta": (site.delta, config.delta),
        "relation": (site.relation, "add-remove"),
        "accountant": (site.accountant, "pld"),
    }
    for name, (theirs, ours) in terms.items():
        if theirs != ours:
            return f"its policy has {name} {theirs}, the run has {ours}; agree on one before the run"
    if site.budget is not None and site.budget < config.epsilon:
        return (
            f"its policy's budget is {site.budget:g}, the run's epsilon is {config.epsilon:g}; lower the run's epsilon"
        )
    return None


def _stranger(site: Site, run: Run, names: Mapping[str, int]) -> str | None:
    if site.simulated:
        return "it says that it is simulated, and the run's hospitals are real"
    if names[site.name] > 1:
        return "another hospital has the same name; every hospital needs its own"
    if site.schema != run.sites[0].schema:
        return "its schema is not the run's; all hospitals need the same one"
    return unlike(site, run.config)


def _counted(run: Run, state: RunState, number: int, newcomers: Sequence[Site]) -> list[Site]:
    """Those whose number of patients is known, or is not needed."""
    known = [site for site in newcomers if site.name in state.public_patients]
    new = [site for site in newcomers if site.name not in state.public_patients]
    if new and run.config.asks_statistics:
        new = count_patients(run.grid, new, state, run.config, run.name, run.home, run.privacy, number)
    elif run.privacy:
        state.public_patients |= {site.name: float(run.config.patients_per_site) for site in new}
    return known + new
