"""What of a configuration or a simulated run is audited: its training at one hospital, and the epsilon that it claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from dp_accounting import ComposedDpEvent, SelfComposedDpEvent

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import CLASS_KINDS, Column
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.objectives.objective import made_up_labels
from polyclinic.plugins import dataset_of, strategy_named
from polyclinic.privacy.accounting import epsilon, usual_delta
from polyclinic.privacy.streams import generator
from polyclinic.programs import Program, program_of
from polyclinic.runs.folder import Run
from polyclinic.server.calibration import calibrate
from polyclinic.training.auditing.faults import NO_FAULT, Fault
from polyclinic.training.auditing.subject import Claim, Subject
from polyclinic.training.learning_rate import usual_rate
from polyclinic.training.task import TrainSettings

# Made-up patients stand in where no run is given.
_PATIENTS, _FEATURES = 200, 8
_CLASSES = (Column(name="class", kind="binary", role="label"),)
# The learning rate of an audit where the run's is left to what its rounds find.
_USUAL_RATE = 0.1


def subject_of_config(config: RunConfig, seed: int | None = None, fault: Fault = NO_FAULT) -> Subject:
    """Return training as configured, among made-up patients, as the subject of an audit.

    Where statistics are paid for, the training claims less than epsilon.

    Args:
        config: The configuration.
        seed: Of the training; None draws from the operating system, as a hospital does.
        fault: What is planted between the audit and the task.

    Raises:
        ConfigError: For names that do not exist, a configuration without privacy, and an epsilon out of reach.
    """
    if not config.privacy.delta:
        config = config.with_values({"privacy.delta": usual_delta(_PATIENTS)})
    program = program_of(config)
    if not config.privacy.dp and not program.is_published():
        raise ConfigError("The configuration has dp = false: it claims no epsilon, so there is nothing to audit.")
    strategy_named(config.strategy)  # no server is built here, which would refuse an unknown one
    draw, noise = generator(0, "audit", "patients"), calibrate(config).noise_multiplier if config.privacy.dp else None
    # Records and their dataset are not asked for where neither the model nor the objective depends on them.
    needs_schema = bool(config.objective or config.data.label or not program.any_width)
    columns = dataset_of(config).schema.labels if needs_schema else _CLASSES
    kinds = _kinds(columns)
    if program.any_width:
        steps = config.rounds * config.training.local_steps
        x = draw.normal(size=(_PATIENTS, _FEATURES))
        rate = config.training.learning_rate or usual_rate(train_settings(config, noise), steps, _PATIENTS)
    else:
        x = draw.uniform(-1.0, 1.0, (_PATIENTS, len(feature_names(dataset_of(config).schema))))
        rate = config.training.learning_rate or _USUAL_RATE
    y = made_up_labels(columns, kinds)[draw.integers(0, kinds, _PATIENTS)]
    rows = Rows(x, y, np.arange(_PATIENTS), _PATIENTS)
    settings, privacy = _settings(program, noise, rate), config.privacy
    return program.subject(
        Claim(settings, config.rounds, rows, kinds, privacy.epsilon, privacy.delta, seed, fault, columns)
    )


def subject_of_run(path: Path, seed: int | None = None, fault: Fault = NO_FAULT, delta: float | None = None) -> Subject:
    """Return a finished simulated run's training at the hospital that spent most, with its noise and its rounds there.

    The claimed epsilon is that hospital's, statistics included, which makes it more than the training's own. At another
    ``delta`` than the run's it is what the accountant says of the training alone.

    Args:
        path: The run's folder, or one that holds it alone.
        seed: Of the training; None draws from the operating system, as a hospital does.
        fault: What is planted between the audit and the task.
        delta: Of the claim; None takes the run's.

    Raises:
        ConfigError: When there is no such run, and for one of real hospitals or without privacy.
    """
    run = Run.open(path)
    simulation, summary = run.simulation("audit its configuration in a simulation"), run.summary()
    noise, program = summary.privacy.noise_multiplier, program_of(simulation.config)
    if not program.is_published() and (noise is None or summary.privacy.epsilon is None):
        raise ConfigError(
            f"{path} was trained without noise at the hospitals: it claims no epsilon for patients, so there is nothing to audit."
        )
    name, site = max(summary.metrics.sites.items(), key=lambda item: item[1].epsilon or 0.0)
    if not site.rounds_joined:
        raise ConfigError(f"{path} has no hospital that trained, so there is nothing to audit.")
    settings = _settings(program, noise, summary.learning_rate or _USUAL_RATE)
    rows, columns = simulation.rows(name)[0], simulation.shards[name].schema.labels
    spent, at = site.epsilon or 0.0, program.config.privacy.delta
    subject = program.subject(
        Claim(settings, site.rounds_joined, rows, _kinds(columns), spent, at, seed, fault, columns)
    )
    return subject if delta is None else replace(subject, epsilon=_claimed_epsilon(subject, delta), delta=delta)


def _kinds(columns: tuple[Column, ...]) -> int:
    """How many labels made-up patients have: the classes, or of other labels two that differ."""
    of_classes = len(columns) == 1 and columns[0].kind in CLASS_KINDS
    return max(2, len(columns[0].categories)) if of_classes else 2


def _claimed_epsilon(subject: Subject, delta: float) -> float:
    """What the rounds of training spend at ``delta``."""
    first, later = (subject.task.event(subject.settings, begun) for begun in (False, True))
    return epsilon(ComposedDpEvent([first, SelfComposedDpEvent(later, subject.rounds - 1)]), delta)


def _settings(program: Program, noise_multiplier: float | None, learning_rate: float) -> TrainSettings:
    """The settings of the training that is attacked. Raises ConfigError where its noise is not in one hospital's training."""
    if program.config.secure.shared_noise:
        raise ConfigError(
            "Configuration key 'secure.shared-noise' has the value True: the noise is in the sum of all hospitals and "
            "not in one's training, which is what an audit attacks; audit a run without it."
        )
    return replace(program.settings(noise_multiplier), learning_rate=learning_rate, device="cpu")
