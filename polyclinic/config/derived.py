"""What follows from a configuration: the encoding of uploads, the settings of training, noise over time, a secure sum's terms."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from polyclinic.config.reading import parse_assignments
from polyclinic.errors import ConfigError
from polyclinic.wire.compression import Compression

#: A sum of patients' gradients is not let be longer than so many clip norms, which no hospital's is.
MOST_PATIENTS = 2**24

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig
    from polyclinic.privacy.noise import NoiseProcess
    from polyclinic.privacy.secure.distributed import SumTerms
    from polyclinic.training.task import TrainSettings


def compression(config: RunConfig) -> Compression:
    """How the run's uploads are encoded."""
    return Compression(config.upload.form == "difference", config.upload.precision, config.upload.share)


def train_settings(config: RunConfig, noise_multiplier: float | None) -> TrainSettings:
    """The public settings of a round of training; ``noise_multiplier`` None trains without privacy."""
    from polyclinic.training.task import LOADING_PAYS, TrainSettings  # torch takes a second to load

    steps = max(1, config.sites) * config.rounds * config.training.local_steps
    return TrainSettings(
        sample_rate=config.training.sample_rate, local_steps=config.training.local_steps,
        learning_rate=config.training.learning_rate,
        max_grad_norm=config.privacy.max_grad_norm, noise_multiplier=noise_multiplier, optimizer=config.training.stepping,
        momentum=config.training.usual_momentum, weight_decay=config.training.weight_decay,
        radius=config.training.radius,
        engine=config.training.engine, device="cuda" if config.gpus else "cpu", compiled=steps >= LOADING_PAYS,
        batching=config.training.batching,
        noise=noise_named(config), denoise=config.training.denoise, denoise_gain=config.training.denoise_gain,
        release_delta=0.9 * config.privacy.delta / config.rounds, **config.kind.settings(config),
    )  # fmt: skip


def noise_named(config: RunConfig) -> NoiseProcess | None:
    """The noise process of the whole run's steps; None where every step of Poisson batches is on its own.

    Raises ConfigError for a name or an option that does not exist.
    """
    if config.training.batching == "poisson":
        return None
    return _noise(
        config.training.noise,
        config.training.noise_options,
        config.rounds * config.training.local_steps,
        round(1 / config.training.sample_rate),
    )


@lru_cache(maxsize=8)
def _noise(name: str, options: str, steps: int, epoch: int) -> NoiseProcess:
    from polyclinic.privacy.noise import Participation, noise_process

    try:
        given = {key.replace("-", "_"): value for key, value in parse_assignments(options).items()}
        return noise_process(name, steps, participation=Participation(epoch, math.ceil(steps / epoch)), **given)
    except (ConfigError, TypeError) as error:
        key, value = ("training.noise-options", options) if options else ("training.noise", name)
        raise ConfigError(f"Configuration key {key!r} has the value {value!r}: {error}") from None


def secure_terms(
    config: RunConfig, size: int, parties: int, threshold: int, noise_multiplier: float | None = None
) -> SumTerms:
    """What the hospitals of a secure sum of models agree on.

    Args:
        config: The run's configuration.
        size: The numbers in a model.
        parties: The most hospitals in the sum.
        threshold: The fewest hospitals in the sum.
        noise_multiplier: Of the patients' training, which the sum has where hospitals share it. Any one of them may look at
            the sum, so that its own share is not counted on.

    Raises:
        ConfigError: A sum of such terms is impossible.
    """
    from polyclinic.privacy.secure.distributed import SumTerms

    try:
        if config.secure.shared_noise:
            return SumTerms(
                size, config.privacy.max_grad_norm, config.secure.bits, parties, threshold, noise_multiplier or 0.0,
                units=MOST_PATIENTS, onlookers=1,
            )  # fmt: skip
        return SumTerms(
            size, config.secure.clip_norm, config.secure.bits, parties, threshold, noise_multiplier=config.secure.noise
        )
    except ValueError as error:
        raise ConfigError(f"Secure aggregation: {error}") from None
