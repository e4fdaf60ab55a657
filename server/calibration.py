"""How much noise a run needs to spend its epsilon, found before any hospital is asked for anything private."""

from __future__ import annotations

from functools import lru_cache

from dp_accounting import DpEvent

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import Charges, PrivacyPlan, plan
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.privacy.selection import choice_event
from polyclinic.programs import program_of


@lru_cache(maxsize=8)
def calibrate(config: RunConfig) -> PrivacyPlan:
    """The noise that spends ``config.privacy.epsilon`` over the statistics and all rounds, composed by PLD.

    Raises ConfigError naming the key when no noise does, or when there is no such training.
    """
    _training(config, 1.0)  # what is wrong with the steps themselves is not the fault of epsilon
    try:
        return _plan(config)
    except ConfigError as error:
        raise ConfigError(
            f"Configuration key 'privacy.epsilon' has the value {config.privacy.epsilon:g}: {error}"
        ) from None


def declared_plan(privacy: PrivacyPlan | None) -> str:
    """The plan of charges that every request of a run declares; empty without privacy."""
    return plan_text(privacy.charges) if privacy else ""


def _plan(config: RunConfig) -> PrivacyPlan:
    return plan(
        epsilon=config.privacy.epsilon, delta=config.privacy.delta, training=lambda noise: _training(config, noise),
        statistics_share=config.privacy.statistics_share if config.asks_statistics else 0.0,
    )  # fmt: skip


@lru_cache(maxsize=8)
def round_costs(config: RunConfig, noise_multiplier: float | None) -> tuple[DpEvent, DpEvent]:
    """What one round of training costs a hospital: its first, and each later one."""
    program = program_of(config)
    settings = program.settings(noise_multiplier)
    return program.price(settings), program.price(settings, begun=True)


def _training(config: RunConfig, noise_multiplier: float) -> Charges:
    """What a hospital that takes part in each round is charged for all of them."""
    first, later = round_costs(config, noise_multiplier)
    charges: Charges = ((first, 1), (later, config.rounds - 1))
    choice = program_of(config).choice
    if choice and choice.epsilon:
        charges = (*charges, (choice_event(choice.epsilon, choice.selected), 1))
    return charges
