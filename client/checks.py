"""What a hospital checks of a request before its ledger is charged: policy, names, arrays, and their shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from polyclinic.arrays import from_record
from polyclinic.client.hospital import Hospital
from polyclinic.config import RunConfig
from polyclinic.config import train_settings as config_settings
from polyclinic.ehr.scaling import Standardiser
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.messages import BESIDE, CONTROL, LOCAL, STANDARDISER, TrainRequest
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays

# The largest number of a message. Weights of models in use stay below a thousand, and what a sum asks (frequencies, log-odds,
# places of columns, deviations of scaled columns) below a hundred thousand.
LARGEST = 1e6


def check_names(hospital: Hospital, config: RunConfig) -> None:
    """Raises BudgetRefused before a name in the run's configuration can load code that the policy does not allow."""
    for key, name, allowed in (
        ("task", config.task, hospital.policy.allowed_tasks),
        ("model", config.model, hospital.policy.allowed_models),
    ):
        if name not in allowed:
            raise BudgetRefused(f"{hospital.site}: the policy allows the {key}s {', '.join(allowed)}, not {name!r}.")


def check_task(hospital: Hospital, task: str, private: bool) -> None:
    """Raises BudgetRefused when the policy does not allow the task, or work without privacy."""
    policy = hospital.policy
    if task not in policy.allowed_tasks:
        raise BudgetRefused(f"{hospital.site}: the policy allows {', '.join(policy.allowed_tasks)}, not {task!r}.")
    if not private and not policy.allow_without_privacy:
        raise BudgetRefused(f"{hospital.site}: the policy does not allow training or statistics without privacy.")


def check_policy(hospital: Hospital, task: str, noise_multiplier: float | None, local_steps: int = 0) -> None:
    """Raises BudgetRefused when the policy does not allow the task, its noise or length, or work without privacy.

    noise_multiplier: the standard deviation of Gaussian noise over the most that one patient added or removed changes, in
    each release or step; of a mechanism with a pure epsilon, ``1 / epsilon``, which is also the scale of Laplace noise over
    that change. None asks for exact numbers.
    """
    policy = hospital.policy
    check_task(hospital, task, noise_multiplier is not None)
    if noise_multiplier is not None and noise_multiplier < policy.smallest_noise_multiplier:
        raise BudgetRefused(
            f"{hospital.site}: noise_multiplier {noise_multiplier:.4g} is below the policy's "
            f"smallest-noise-multiplier {policy.smallest_noise_multiplier:g}."
        )
    if policy.most_local_steps is not None and local_steps > policy.most_local_steps:
        raise BudgetRefused(
            f"{hospital.site}: local-steps {local_steps} is above the policy's most-local-steps {policy.most_local_steps}."
        )


def check_terms(hospital: Hospital, config: RunConfig, noise_multiplier: float | None) -> None:
    """Raises BudgetRefused when the policy refuses a run of this configuration, whatever its messages will hold.

    A hospital checks it when it enrols, so that nothing is charged for a run that it will refuse, and again before each
    charge. ``noise_multiplier``: of the steps; infinite where it is not known yet, None without privacy.
    """
    check_names(hospital, config)
    models = 2 if config.strategy == "ditto" else 1
    check_policy(hospital, config.task, noise_multiplier, models * config.local_steps)
    if hospital.policy.only_secure_aggregation and not config.secure_aggregation:
        raise BudgetRefused(f"{hospital.site}: the policy allows secure aggregation only.")
    if config.shared_noise:
        check_shared_noise(hospital)


def check_shared_noise(hospital: Hospital) -> None:
    """Raises BudgetRefused when the policy does not let it count on others' noise, or a patient may be at theirs too."""
    if not hospital.policy.allow_shared_noise:
        raise BudgetRefused(
            f"{hospital.site}: the policy does not allow shared noise; allow-shared-noise at true would."
        )
    if hospital.policy.patients_elsewhere:
        raise BudgetRefused(
            f"{hospital.site}: a patient may also be at another hospital (patients-elsewhere "
            f"{hospital.policy.patients_elsewhere}) and so twice in one sum, which shared noise does not cover."
        )


def check_numbers(hospital: Hospital, arrays: Arrays) -> None:
    """Raises ConfigError for an array of a message that holds a number that is not finite, or beyond ``LARGEST``.

    Simulated hospitals take any: what diverges there is to be seen.
    """
    for name, value in {} if hospital.simulated else arrays.items():
        if value.dtype.kind not in "biuf" or not (np.abs(value.astype(np.float64)) <= LARGEST).all():
            raise ConfigError(
                f"{hospital.site}: the message's array {name!r} holds values that are not finite numbers from {-LARGEST:g} to "
                f"{LARGEST:g}."
            )


def check_size(hospital: Hospital, arrays: Arrays) -> None:
    """Raises BudgetRefused for a model of more parameters than the policy lets the hospital's machine take on."""
    size, most = sum(value.size for value in arrays.values()), hospital.policy.most_parameters
    if most is not None and size > most:
        raise BudgetRefused(
            f"{hospital.site}: the model has {size} parameters, above the policy's most-parameters {most}."
        )


def train_settings(config: RunConfig, request: TrainRequest, content: RecordDict, real: bool) -> TrainSettings:
    """The run's settings; a strategy may set ``proximal-mu`` in its own ConfigRecord, as Flower's FedProx does, and ``lr``.

    The request has the learning rate where the run leaves it to the noise. Neither is of any weight to epsilon.
    real: compute in float64 and every patient apart, as a real hospital does, so that a patient's contribution is the same bit
    for bit whoever else is there.
    """
    told = content.get("config")
    said = told if isinstance(told, ConfigRecord) else {}
    mu = said.get("proximal-mu", config.proximal_mu)
    rate = said.get("lr", config.learning_rate or request.learning_rate or 0.0)
    if not isinstance(rate, int | float) or not (0 < rate <= LARGEST or "lr" not in said):
        raise ConfigError(f"Message field 'lr' is {rate!r}; allowed are numbers above 0 and at most {LARGEST:g}.")
    if not isinstance(mu, int | float) or not 0 <= mu <= LARGEST:
        raise ConfigError(f"Message field 'proximal-mu' is {mu!r}; allowed are numbers from 0 to {LARGEST:g}.")
    settings = config_settings(config, request.noise_multiplier)
    return replace(
        settings, learning_rate=float(rate), proximal_mu=float(mu), double=real, apart=real,
        device="cpu" if real else settings.device,
    )  # fmt: skip


def model_arrays(content: RecordDict) -> tuple[str, Arrays]:
    """The strategy's ArrayRecord, under whatever key it uses, and with it what of the model stays at hospitals."""
    records = content.array_records
    for key, record in records.items():
        if key not in BESIDE:
            return key, from_record(record) | (from_record(records[LOCAL]) if LOCAL in records else {})
    raise ConfigError("The message carries no ArrayRecord with the model.")


def control_variate(content: RecordDict, config: RunConfig, arrays: Arrays) -> Arrays:
    """The server's control variate; empty without SCAFFOLD. Raises ConfigError where it is missing or unlike the model."""
    if config.strategy != "scaffold":
        return {}
    record = content.array_records.get(CONTROL)
    if record is None:
        raise ConfigError(f"The message carries no ArrayRecord named {CONTROL!r}, which strategy scaffold needs.")
    control = from_record(record)
    for name, value in control.items():
        if name not in arrays or value.shape != arrays[name].shape or not np.isfinite(value).all():
            raise ConfigError(f"The message's control variate {name!r} is not finite, or not of the model's shape.")
    return control


def standardiser(content: RecordDict, features: int) -> Standardiser | None:
    """Mean and std, (features,) each. Raises ConfigError for any other shape: one fitted to rows would ask how many there are."""
    record = content.array_records.get(STANDARDISER)
    if record is None:
        return None
    if set(record) != {"mean", "std"}:
        raise ConfigError("The message's standardiser must hold exactly 'mean' and 'std'.")
    mean, std = record["mean"].numpy(), record["std"].numpy()
    if (
        mean.shape != (features,)
        or std.shape != (features,)
        or not (np.abs(mean) <= LARGEST).all()
        or not ((std >= 1e-6) & (std <= LARGEST)).all()
    ):
        raise ConfigError(
            f"The message's standardiser must hold {features} finite means and {features} stds of at least 1e-6, none beyond "
            f"{LARGEST:g}."
        )
    return mean, std
