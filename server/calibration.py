"""How much noise a run needs to spend its epsilon, found before any hospital is asked for anything private."""

from __future__ import annotations

from functools import lru_cache

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from polyclinic.config import RunConfig, train_settings
from polyclinic.errors import ConfigError
from polyclinic.plugins import task_of
from polyclinic.privacy.accounting import PrivacyPlan, plan
from polyclinic.privacy.selection import choice_event
from polyclinic.training.task import cost_of


@lru_cache(maxsize=8)
def calibrate(config: RunConfig) -> PrivacyPlan:
    """The noise that spends ``config.epsilon`` over the statistics and all rounds, composed by PLD.

    Raises ConfigError naming the key when no noise does, or when there is no such training.
    """
    _training(config, 1.0)  # what is wrong with the steps themselves is not the fault of epsilon
    try:
        return _plan(config)
    except ConfigError as error:
        raise ConfigError(f"Configuration key 'epsilon' has the value {config.epsilon:g}: {error}") from None


def _plan(config: RunConfig) -> PrivacyPlan:
    return plan(
        epsilon=config.epsilon, delta=config.delta, training=lambda noise: _training(config, noise),
        statistics_share=config.statistics_share if config.asks_statistics else 0.0,
    )  # fmt: skip


def _training(config: RunConfig, noise_multiplier: float) -> DpEvent:
    """What all rounds together spend at a hospital that takes part in each of them."""
    task, settings = task_of(config), train_settings(config, noise_multiplier)
    first, later = (cost_of(task, settings, begun) for begun in (False, True))
    steps = [first, SelfComposedDpEvent(later, config.rounds - 1)]
    if config.selection_cost:
        steps.append(choice_event(config.selection_cost, config.selected))
    return ComposedDpEvent(steps)
