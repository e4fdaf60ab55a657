"""The configuration of a run, how it is read, and what follows from it."""

from polyclinic.config.derived import compression, noise_named, secure_terms, train_settings
from polyclinic.config.effects import AT_COORDINATORS, EFFECTS, NOT_UNDER_FLOWER, UNDER_FLOWER, check_effects, put_aside
from polyclinic.config.execution import Checkpoints, Simulation, Tracking
from polyclinic.config.learning import SUBMITTER_NAME, Data, Participation, Split, Training, Upload
from polyclinic.config.programs.convex import Convex
from polyclinic.config.programs.posterior import Posterior
from polyclinic.config.programs.synthesis import Synthesis
from polyclinic.config.protection import Central, Evaluation, Privacy, Secure
from polyclinic.config.reading import parse_assignments, parse_value
from polyclinic.config.run import SECTIONS, RunConfig, objective_of_label

__all__ = [
    "AT_COORDINATORS",
    "EFFECTS",
    "NOT_UNDER_FLOWER",
    "SECTIONS",
    "SUBMITTER_NAME",
    "UNDER_FLOWER",
    "Central",
    "Checkpoints",
    "Convex",
    "Data",
    "Evaluation",
    "Participation",
    "Posterior",
    "Privacy",
    "RunConfig",
    "Secure",
    "Simulation",
    "Split",
    "Synthesis",
    "Tracking",
    "Training",
    "Upload",
    "check_effects",
    "compression",
    "noise_named",
    "objective_of_label",
    "parse_assignments",
    "parse_value",
    "put_aside",
    "secure_terms",
    "train_settings",
]
