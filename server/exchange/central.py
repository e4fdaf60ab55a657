"""Privacy of whole hospitals: its plan and ledger from the configuration, and what is told of it.

Of central noise the server is trusted with each hospital's update; epsilon is about whoever sees the models that it gives out. In
a secure sum the hospitals make the noise together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent
from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig, secure_terms
from polyclinic.errors import ConfigError, several
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.central import CentralPlan
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.statements import statements
from polyclinic.privacy.noise import warning
from polyclinic.server.exchange.cohort import cohort_size, secure_threshold
from polyclinic.server.exchange.sites import Site
from polyclinic.strategies.central import CentralDP
from polyclinic.types import Arrays
from polyclinic.wire.compression import flatten

FEDERATION = "federation"


def central_plan(config: RunConfig, sites: Sequence[str]) -> CentralPlan:
    """The plan that spends ``central.epsilon`` over all rounds with the hospitals of these names.

    Hospitals sampled independently (Poisson) amplify; cohorts of a fixed size claim nothing.
    Raises ConfigError naming the key that is impossible.
    """
    if config.central.delta >= 1 / len(sites):
        raise ConfigError(
            f"Configuration key 'central.delta' has the value {config.central.delta:g}, which must be below 1/hospitals; "
            f"{len(sites)} take part."
        )
    weights = _weights(config, sites)
    size = cohort_size(config, len(sites))
    rate = size / len(sites) if config.participation.sampling == "poisson" else 1.0
    plan = CentralPlan(
        noise_multiplier=1.0, clip_norm=config.central.clip_norm, expected_sites=size,
        expected_weight=size * math.fsum(weights.values()) / len(sites), largest_weight=max(weights.values()),
        sample_rate=rate, quantile=config.central.quantile if config.central.clipping == "adaptive" else None,
        noise=config.central.noise, rounds=config.rounds, separation=config.participation.min_separation,
    )  # fmt: skip
    return _calibrate(plan, config.central.epsilon, config.central.delta)


def central_strategy(base: Strategy, config: RunConfig, sites: Sequence[Site], ledger: Path, run: str) -> CentralDP:
    """``base`` with central privacy before it, charged to the file ``ledger``; in a simulation its noise follows the seed.

    Args:
        base: The strategy that averages.
        config: The run's configuration, with the keys ``central``.
        sites: The hospitals that take part.
        ledger: The file of the server's ledger, whose unit is a hospital.
        run: The run's name.
    """
    names = {site.id: site.name for site in sites}
    plan, weights = central_plan(config, list(names.values())), _weights(config, list(names.values()))

    def name(reply: Message) -> str:
        return names[reply.metadata.src_node_id]

    terms = Terms(FEDERATION, config.central.delta, unit="hospital", budget=config.central.epsilon)
    seed = config.seed if all(site.simulated for site in sites) else None
    return CentralDP(base, plan, weights=weights, name=name, ledger=Ledger.open(ledger, terms), run=run, seed=seed)


def noise_to_signal(plan: CentralPlan, arrays: Arrays) -> float:
    """The noise on the mean update over the longest mean update that clipping allows, both in L2.

    The noise grows with the square root of the number of parameters and falls with the number of hospitals in a round.
    """
    parameters = sum(value.size for value in arrays.values() if value.dtype.kind == "f")
    return plan.noise_scale * plan.largest_weight * math.sqrt(parameters) / plan.expected_weight


def central_statement(strategy: CentralDP, arrays: Arrays) -> dict[str, Any]:
    """What the summary says of central noise; ``warning`` where other noise would be better."""
    plan, ledger = strategy.plan, strategy.ledger
    assert ledger is not None
    return _statement(
        ledger, noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate, clip_norm=list(strategy.clip_norms),
        expected_sites=plan.expected_sites, noise=plan.noise, noise_to_signal=noise_to_signal(plan, arrays),
        warning=plan.process and warning(plan.process, plan.participation),
    )  # fmt: skip


def secure_ledger(config: RunConfig, path: Path) -> Ledger:
    """The ledger of whole hospitals where they make the noise of a secure sum together, in the server's file.

    It has no budget: the noise is given, not an epsilon.
    """
    return Ledger.open(path, Terms(FEDERATION, config.central.delta, unit="hospital"))


def secure_statement(config: RunConfig, ledger: Ledger, cohort: int, origin: Arrays) -> dict[str, Any]:
    """What the summary says of the noise of a secure sum.

    Args:
        config: The run's configuration, with the keys ``secure``.
        ledger: The ledger that was charged for whole hospitals.
        cohort: The number of hospitals in a round.
        origin: Arrays like each hospital's answer (``Program.origin``).
    """
    size = flatten(origin).size
    agreed = secure_terms(config, size, cohort, secure_threshold(config, cohort))
    return _statement(
        ledger, noise_multiplier=config.secure.noise, sample_rate=1.0, clip_norm=[config.secure.clip_norm],
        expected_sites=cohort,
        noise_to_signal=agreed.scale * agreed.step * math.sqrt(cohort * size) / (cohort * config.secure.clip_norm),
        noise="distributed", warning=None, secure=True,
    )  # fmt: skip


def _statement(ledger: Ledger, **details: Any) -> dict[str, Any]:
    """The guarantee to whole hospitals, and how it was come by."""
    terms = ledger.terms
    return {
        "epsilon": ledger.epsilon(), "delta": terms.delta, "unit": terms.unit, "relation": terms.relation,
        "accountant": terms.accountant, "budget": terms.budget, **details, "ledger": statements([ledger])[0],
    }  # fmt: skip


@lru_cache(maxsize=8)
def _calibrate(plan: CentralPlan, epsilon: float, delta: float) -> CentralPlan:
    """``plan`` with the least noise that spends at most ``epsilon`` over all rounds."""

    def event(noise: float) -> DpEvent:
        return replace(plan, noise_multiplier=noise).event(plan.rounds)

    try:
        return replace(plan, noise_multiplier=calibrate_noise_multiplier(epsilon, delta, event))
    except ConfigError as error:
        raise ConfigError(f"Configuration key 'central.epsilon' has the value {epsilon:g}: {error}") from None


def _weights(config: RunConfig, sites: Sequence[str]) -> dict[str, float]:
    given = config.central.by_name
    if not given:
        return dict.fromkeys(sites, 1.0)
    missing = [name for name in sites if name not in given]
    if missing:
        raise ConfigError(f"Configuration key 'central.weights' has no weight for {several(missing)}.")
    return {name: given[name] for name in sites}
