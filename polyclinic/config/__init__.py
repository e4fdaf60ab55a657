"""The configuration of a run, how it is read, and what follows from it."""

from polyclinic.config.derived import compression, noise_named, secure_terms, train_settings
from polyclinic.config.effects import EFFECTS, NOT_UNDER_FLOWER, UNDER_FLOWER, check_effects, put_aside
from polyclinic.config.reading import parse_assignments, parse_value
from polyclinic.config.run import RunConfig

__all__ = [
    "EFFECTS",
    "NOT_UNDER_FLOWER",
    "UNDER_FLOWER",
    "RunConfig",
    "check_effects",
    "compression",
    "noise_named",
    "parse_assignments",
    "parse_value",
    "put_aside",
    "secure_terms",
    "train_settings",
]
