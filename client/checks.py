"""What a hospital checks of a request before its ledger is charged: policy, names, arrays, and their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from polyclinic.client.home.hospital import Hospital
from polyclinic.client.home.policy import Policy
from polyclinic.config import RunConfig, objective_of_label
from polyclinic.config import train_settings as config_settings
from polyclinic.ehr.encoding import Standardiser
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.programs import program_of
from polyclinic.strategies.fedprox import Proximal
from polyclinic.training.local import BESIDE, PLAIN, LocalHalf
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import LOCAL, STANDARDISER, TrainRequest, is_model

# The largest number of a message. Weights of models in use stay below a thousand, and what a sum asks (frequencies, log-odds,
# places of columns, deviations of scaled columns) below a hundred thousand.
LARGEST = 1e6
# Arrays of a model, each of which takes a machine thousands of bytes however few numbers it holds.
_MOST_ARRAYS = 5_000


def check_names(hospital: Hospital, config: RunConfig) -> None:
    """Raises BudgetRefused before a name in the run's configuration can load code that the policy does not allow."""
    for key, name, allowed in (
        ("task", config.task, hospital.policy.allowed_tasks),
        ("model", config.model, hospital.policy.allowed_models),
    ):
        _check_allowed(hospital.site, f"the {key}s ", name, allowed)
    if config.objective:
        # What follows from the label needs no permission.
        allowed = (objective_of_label(hospital.schema), *hospital.policy.allowed_objectives)
        _check_allowed(hospital.site, "the objectives ", config.objective, allowed)
    if not hospital.simulated:
        check_mods(hospital.site, hospital.policy, config)


def check_mods(site: str, policy: Policy, config: RunConfig) -> None:
    """Checks, before any code of it is loaded, that the policy allows each mod of the run.

    Args:
        site: The hospital's name, for the message.
        policy: The hospital's policy, with its ``allowed_mods``.
        config: The run's configuration, which names the mods.

    Raises:
        BudgetRefused: The policy does not allow a mod.
    """
    for name in config.mod_names:
        _check_allowed(site, "the mods ", name, policy.allowed_mods)


def _check_allowed(site: str, what: str, name: str, allowed: Sequence[str], of: str = "") -> None:
    if name not in allowed:
        raise BudgetRefused(
            f"{site}: the policy allows {what}{', '.join(filter(None, dict.fromkeys(allowed))) or 'none'}, not {of}{name!r}."
        )


def check_task(hospital: Hospital, task: str, private: bool) -> None:
    """Checks that the policy allows the task, and work without privacy where the task has none.

    Args:
        hospital: The hospital whose policy is asked.
        task: The task's name.
        private: Whether noise is added; False asks for exact numbers.

    Raises:
        BudgetRefused: The policy does not allow the task, or work without privacy.
    """
    policy = hospital.policy
    _check_allowed(hospital.site, "", task, policy.allowed_tasks)
    if not private and not policy.allow_without_privacy:
        raise BudgetRefused(f"{hospital.site}: the policy does not allow training or statistics without privacy.")


def check_policy(hospital: Hospital, task: str, noise_multiplier: float | None, local_steps: int = 0) -> None:
    """Checks that the policy allows the task, its noise and length, and work without privacy where there is no noise.

    Args:
        hospital: The hospital whose policy is asked.
        task: The task's name.
        noise_multiplier: The standard deviation of Gaussian noise over the most that one patient added or removed
            changes, in each release or step. Of a mechanism with a pure epsilon it is ``1 / epsilon``, which is also
            the scale of Laplace noise over that change. None asks for exact numbers.
        local_steps: The steps that a round takes; 0 for a task without steps.

    Raises:
        BudgetRefused: The policy does not allow one of them.
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
            f"{hospital.site}: training.local-steps {local_steps} is above the policy's most-local-steps "
            f"{policy.most_local_steps}."
        )


def local_half(hospital: Hospital, config: RunConfig, wanted: bool) -> LocalHalf:
    """What the strategy has the hospital do in a round; plain steps unless the coordinator says that there is more.

    Args:
        hospital: The hospital whose policy is asked.
        config: The run's configuration, which names the strategy.
        wanted: Whether the coordinator says that the strategy has a half at hospitals.

    Raises:
        BudgetRefused: The policy does not allow the strategy; none of its code was loaded.
    """
    if not wanted:
        return PLAIN
    allowed = hospital.policy.allowed_strategies
    _check_allowed(hospital.site, "the local halves of the strategies ", config.strategy, allowed, "of ")
    return program_of(config).local_half


def planned_settings(
    hospital: Hospital, config: RunConfig, noise_multiplier: float | None, with_half: bool
) -> TrainSettings:
    """The settings of the run's rounds as they are known before the first.

    Args:
        hospital: The hospital whose policy is asked.
        config: The run's configuration.
        noise_multiplier: Noise over the clip norm; None without privacy.
        with_half: Whether the strategy has a half at hospitals.

    Raises:
        BudgetRefused: As ``local_half``.
    """
    return replace(config_settings(config, noise_multiplier), local=local_half(hospital, config, with_half))


def check_terms(hospital: Hospital, config: RunConfig, settings: TrainSettings) -> None:
    """Checks that the policy allows a run of this configuration, whatever its messages will hold.

    A hospital checks it when it enrols, so that nothing is charged for a run that it will refuse, and again before each
    charge.

    Args:
        hospital: The hospital whose policy is asked.
        config: The run's configuration.
        settings: The settings of a round; their noise multiplier is infinite where it is not known yet.

    Raises:
        BudgetRefused: The policy refuses the run.
        ConfigError: The strategy's local half does not go with the rest of the configuration.
    """
    check_names(hospital, config)
    half, noise_multiplier = settings.local, settings.noise_multiplier
    check_policy(
        hospital, config.task, noise_multiplier, sum(local_pass.gradients for local_pass in half.passes(settings))
    )
    if hospital.policy.only_secure_aggregation and not config.secure.aggregation:
        raise BudgetRefused(f"{hospital.site}: the policy allows secure aggregation only.")
    if config.secure.shared_noise:
        check_shared_noise(hospital)
    program_of(config).check_local_half(settings)


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


def check_model_size(hospital: Hospital, config: RunConfig) -> None:
    """``check_size`` of the model that a configuration describes, before it takes any memory: a message may hold few arrays and
    describe a huge model.

    Building ends where there are too many parameters. A model that cannot be built without numbers is let through.
    """
    import torch
    from torch import nn

    most, size, arrays = hospital.policy.most_parameters, 0, 0
    if most is None:
        return

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal size, arrays
        size, arrays = size + (0 if parameter is None else parameter.numel()), arrays + 1
        if arrays > _MOST_ARRAYS:
            raise BudgetRefused(f"{hospital.site}: the model has more than {_MOST_ARRAYS} arrays of parameters.")
        if size > most:
            raise BudgetRefused(
                f"{hospital.site}: the model has at least {size} parameters, above the policy's most-parameters {most}."
            )

    build = program_of(config).builder(hospital.schema)
    counting = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            build()
    except ConfigError as error:
        if not isinstance(error.__cause__, RuntimeError | TypeError):
            raise
    finally:
        counting.remove()


def train_settings(
    config: RunConfig, request: TrainRequest, content: RecordDict, real: bool, half: LocalHalf = PLAIN
) -> TrainSettings:
    """The run's settings, with what the strategy has hospitals do.

    A strategy may set ``proximal-mu`` in its own ConfigRecord, as Flower's FedProx does, and ``lr``. Neither is of any
    weight to epsilon.

    Args:
        config: The run's configuration.
        request: The request, which has the learning rate where the run leaves it to the noise.
        content: The message's records; ``config`` is the strategy's own.
        real: Compute in float64 and every patient apart, as a real hospital does, so that a patient's contribution is
            the same bit for bit whoever else is there.
        half: The strategy's half at hospitals; plain steps by default.

    Raises:
        ConfigError: ``lr`` or ``proximal-mu`` is out of bounds, or ``proximal-mu`` comes with a half of the strategy's
            own.
    """
    record = content.get("config")
    fields = record if isinstance(record, ConfigRecord) else {}
    mu = fields.get("proximal-mu", 0.0)
    rate = fields.get("lr", config.training.learning_rate or request.learning_rate or 0.0)
    if not isinstance(rate, int | float) or not (0 < rate <= LARGEST or "lr" not in fields):
        raise ConfigError(f"Message field 'lr' is {rate!r}; allowed are numbers above 0 and at most {LARGEST:g}.")
    if not isinstance(mu, int | float) or not 0 <= mu <= LARGEST:
        raise ConfigError(f"Message field 'proximal-mu' is {mu!r}; allowed are numbers from 0 to {LARGEST:g}.")
    if mu and half != PLAIN:
        raise ConfigError(
            f"Message field 'proximal-mu' is {mu!r}, but the strategy has a local half of its own; leave it out."
        )
    settings = config_settings(config, request.noise_multiplier)
    return replace(
        settings, learning_rate=float(rate), double=real, apart=real, device="cpu" if real else settings.device,
        local=Proximal(float(mu)) if mu else half,
    )  # fmt: skip


def model_arrays(content: RecordDict) -> tuple[str, Arrays]:
    """The strategy's ArrayRecord, under whatever key it uses, and with it what of the model stays at hospitals."""
    records = content.array_records
    for key, record in records.items():
        if is_model(key):
            return key, from_record(record) | (from_record(records[LOCAL]) if LOCAL in records else {})
    raise ConfigError("The message carries no ArrayRecord with the model.")


def beside(content: RecordDict, half: LocalHalf, arrays: Arrays) -> dict[str, Arrays]:
    """What the strategy sent beside the model for its half at hospitals, by name.

    Args:
        content: The message's records.
        half: The strategy's half, which names what it receives.
        arrays: The model's arrays, whose names and shapes bound what may come.

    Raises:
        ConfigError: Something that the half receives is missing, not finite, or unlike the model.
    """
    received = {}
    for name in half.receives:
        record = content.array_records.get(BESIDE + name)
        if record is None:
            raise ConfigError(f"The message carries no ArrayRecord named {BESIDE + name!r}, which the strategy needs.")
        received[name] = from_record(record)
        for label, value in received[name].items():
            if label not in arrays or value.shape != arrays[label].shape or not np.isfinite(value).all():
                raise ConfigError(
                    f"The array {label!r} of the message's {BESIDE + name!r} is not finite, or not of the model's shape."
                )
    return received


def told_numbers(content: RecordDict, half: LocalHalf) -> dict[str, float]:
    """What the strategy told in its configuration for its half at hospitals, by name.

    Raises ConfigError where something that the half takes is missing, or no finite number.
    """
    record = content.get("config")
    numbers = {}
    for name in half.takes:
        value = record.get(name) if isinstance(record, ConfigRecord) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            raise ConfigError(
                f"Message field {name!r} of the strategy's configuration is {value!r}; its half at hospitals takes a number of "
                f"at most {LARGEST:g}."
            )
        numbers[name] = float(value)
    return numbers


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
