"""Which hospitals take part in a round: sampled from the run's seed, with a minimum separation between two of their turns.

A patient's epsilon claims nothing from this sampling: the server knows who took part. A hospital's epsilon by central noise
does where it is Poisson: then real hospitals are sampled from the system's entropy, for all know the seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, count_text
from polyclinic.privacy.secure.secure_sum import is_safe_threshold
from polyclinic.privacy.streams import generator, system_stream
from polyclinic.server.exchange.sites import Site


def check_cohorts(config: RunConfig, sites: int) -> None:
    """Raises ConfigError when so many sites cannot give every round its cohort."""
    size = cohort_size(config, sites)
    if config.participation.sites > sites:
        raise ConfigError(
            f"Configuration key 'participation.sites' has the value {config.participation.sites}, but "
            f"{count_text(sites, 'hospital')} {'takes' if sites == 1 else 'take'} part."
        )
    if config.participation.sampling == "fixed" and size * config.participation.min_separation > sites:
        raise ConfigError(
            f"Configuration key 'participation.min-separation' has the value {config.participation.min_separation}: "
            f"with {size} of {sites} hospitals in each round it can be at most {sites // size}."
        )
    if config.secure.aggregation:
        secure_threshold(config, size)


def secure_threshold(config: RunConfig, cohort: int) -> int:
    """How many of a round's hospitals open a secure sum: over two thirds, so that a server opens no other sum of the round.

    Raises ConfigError when ``secure.dropouts`` leaves fewer, or fewer than two.
    """
    threshold = cohort - config.secure.dropouts
    if not is_safe_threshold(threshold, cohort):
        most = f"; allowed are at most {(cohort - 1) // 3}" if cohort > 1 else ""
        raise ConfigError(
            f"Configuration key 'secure.dropouts' has the value {config.secure.dropouts}, but of "
            f"{count_text(cohort, 'hospital')} in a round "
            f"secure aggregation needs at least two, and over two thirds, to stay{most}."
        )
    return threshold


def cohort_size(config: RunConfig, sites: int) -> int:
    """How many of ``sites`` a round of fixed size has: ``participation.sites``, or ``participation.fraction`` of them rounded
    up."""
    wanted = config.participation.sites or math.ceil(sites * config.participation.fraction - 1e-9)
    return min(sites, max(config.participation.min_sites, wanted))


def sample_cohort(sites: Sequence[Site], config: RunConfig, number: int, last: Mapping[str, int]) -> list[Site]:
    """The sites of round ``number``, in their order.

    Sampling "fixed" takes so many of those that have waited long enough, without replacement. It takes fewer where
    fewer have waited. "poisson" takes each of them with probability size / sites, so that a round may be empty.

    Args:
        sites: All sites that take part in the run.
        config: The run's configuration, with the keys ``participation``.
        number: The round, from 1 on.
        last: The round in which each site was sampled last, by name.
    """
    wait = config.participation.min_separation
    free = [site for site in sites if wait == 1 or number - last.get(site.name, -wait) >= wait]
    size = cohort_size(config, len(sites))
    if config.participation.sampling == "fixed" and size >= len(free):
        return free
    draws = generator(config.seed, "cohort", number)
    if config.participation.sampling == "poisson":
        secret = config.central.on and not all(site.simulated for site in sites)
        chances = system_stream().uniform(len(free)) if secret else draws.random(len(free))
        return [site for site, chance in zip(free, chances, strict=True) if chance < size / len(sites)]
    return [free[index] for index in sorted(draws.choice(len(free), size, replace=False))]
