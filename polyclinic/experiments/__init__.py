"""Experiments that packages bring: what one is asked, what it finds, what it leaves in its folder, and the table of all targets.

A package names its experiments as entry points of the group ``polyclinic.experiments``; ``polyclinic reproduce`` lists them.
"""

from polyclinic.experiments.experiment import (
    Asked,
    Experiment,
    Findings,
    Say,
    experiment_named,
    experiments,
    markdown,
)
from polyclinic.experiments.running import TABLE, reproduce, write
from polyclinic.experiments.targets import Target, target_of, verdict_of

__all__ = [
    "TABLE",
    "Asked",
    "Experiment",
    "Findings",
    "Say",
    "Target",
    "experiment_named",
    "experiments",
    "markdown",
    "reproduce",
    "target_of",
    "verdict_of",
    "write",
]
