"""Which hospitals take part in a round: sampled from the run's seed, with a minimum separation between two of their turns.

Nothing of privacy is claimed from this sampling: the server knows who took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import generator
from polyclinic.server.sites import Site


def check_cohorts(config: RunConfig, sites: int) -> None:
    """Raises ConfigError when so many sites cannot give every round its cohort."""
    size = cohort_size(config, sites)
    if config.sites_per_round > sites:
        raise ConfigError(
            f"Configuration key 'sites-per-round' has the value {config.sites_per_round}, but {sites} hospitals take part."
        )
    if config.site_sampling == "fixed" and size * config.min_separation > sites:
        raise ConfigError(
            f"Configuration key 'min-separation' has the value {config.min_separation}: with {size} of {sites} hospitals in "
            f"each round it can be at most {sites // size}."
        )


def cohort_size(config: RunConfig, sites: int) -> int:
    """How many of ``sites`` a round of fixed size has: ``sites-per-round``, or ``fraction-train`` of them rounded up."""
    wanted = config.sites_per_round or math.ceil(sites * config.fraction_train - 1e-9)
    return min(sites, max(config.min_sites, wanted))


def sample_cohort(sites: Sequence[Site], config: RunConfig, number: int, last: Mapping[str, int]) -> list[Site]:
    """The sites of round ``number``, in their order. ``last``: the round in which each was sampled last.

    fixed: so many of those that have waited long enough, without replacement; fewer where fewer have. poisson: each of
    them with probability size / sites, so that a round may be empty.
    """
    free = [site for site in sites if number - last.get(site.name, -config.min_separation) >= config.min_separation]
    size = cohort_size(config, len(sites))
    draws = generator(config.seed, "cohort", number)
    if config.site_sampling == "poisson":
        return [site for site, draw in zip(free, draws.random(len(free)), strict=True) if draw < size / len(sites)]
    if size >= len(free):
        return free
    return [free[index] for index in sorted(draws.choice(len(free), size, replace=False))]
