"""The configuration of a run: one model that TOML files, ``-c``, flags and Flower's run-config all fill.

Keys are written with dashes outside Python (``sample-rate``) and with underscores inside. Every value is checked
here, before a hospital is contacted, so a wrong key or an impossible value costs no privacy.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from polyclinic.compression import Compression
from polyclinic.errors import ConfigError, nearest

if TYPE_CHECKING:
    from polyclinic.privacy.distributed import SumTerms
    from polyclinic.privacy.noise import NoiseProcess
    from polyclinic.training.task import TrainSettings

# Keys that say where and how a run goes on and how it is told, and not what hospitals release.
_INDECISIVE = {
    "out", "timeout", "workers", "ray-address", "evaluate-every", "checkpoint-every", "checkpoints-kept",
    "overlap",
}  # fmt: skip
#: What a task takes where nothing is given: a convex task is one release, and needs a regulariser.
_TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "output-perturbation": {"rounds": 1, "max-grad-norm": 2.0, "weight-decay": 0.1},
    "objective-perturbation": {"rounds": 1, "max-grad-norm": 2.0, "weight-decay": 0.03},
}
#: What a strategy takes where nothing is given, because it is defined so.
_STRATEGY_DEFAULTS: dict[str, dict[str, Any]] = {
    "fedsgd": {"local-steps": 1, "sample-rate": 1.0, "momentum": 0.0},
    "scaffold": {"momentum": 0.0},
}
Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1)]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _defaults(task: object, strategy: object) -> dict[str, Any]:
    """What the task and the strategy of these names take where nothing is given."""
    return _TASK_DEFAULTS.get(str(task), {}) | _STRATEGY_DEFAULTS.get(str(strategy), {})


class RunConfig(BaseModel):
    """Everything that decides a run's result. Immutable; every field has a default that works."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=_dashed, populate_by_name=True, allow_inf_nan=False
    )

    dataset: str = Field(
        "breast-cancer", description="Dataset by name (`polyclinic datasets`) or `package.module:Name`."
    )
    sites: int = Field(0, ge=0, description="Number of hospitals; 0 takes the dataset's own number.")
    partitioner: str = Field(
        "",
        description="How records are dealt to hospitals: natural, column:NAME, iid, dirichlet, quantity, "
        "label-quantity or feature-shift; empty takes the dataset's own.",
    )
    alpha: Positive = Field(
        1.0, description="Dirichlet concentration of the skewed partitioners; smaller is more skewed."
    )
    task: str = Field(
        "classification",
        description="What a hospital does with its shard: classification, output-perturbation or objective-perturbation "
        "(one release of a logistic model, with defaults of its own: docs/privacy/convex.md), or `package.module:Name`.",
    )
    model: str = Field("logistic", description="logistic, mlp, or `package.module:Name`.")
    hidden: str = Field("32", description="Widths of the MLP's hidden layers, separated by commas.")
    strategy: str = Field(
        "fedavg", description="A Flower strategy by name (`polyclinic plugins`) or `package.module:Name`."
    )
    strategy_options: str = Field("", description="Arguments of the strategy: `eta=0.1, beta-1=0.9`.")
    fraction_train: Rate = Field(1.0, description="Share of the hospitals sampled for each round.")
    sites_per_round: int = Field(
        0, ge=0, description="Hospitals sampled for each round; 0 takes fraction-train of them instead."
    )
    site_sampling: Literal["fixed", "poisson"] = Field(
        "fixed", description="fixed: so many in every round; poisson: each with the same probability, on its own."
    )
    min_separation: int = Field(
        1,
        ge=1,
        description="Rounds from one participation of a hospital to its next, at the least; 1 allows every round.",
    )
    min_sites: int = Field(1, ge=1, description="A round with fewer valid replies fails the run.")
    rounds: int = Field(15, ge=1, description="Federated rounds.")
    evaluate_every: int = Field(
        1, ge=1, description="Evaluate on held-out patients after every so many rounds, and after the last."
    )
    local_steps: int = Field(2, ge=1, description="Optimizer steps of a hospital in one round.")
    sample_rate: Rate = Field(
        1.0, description="Probability that a patient is in a batch (Poisson sampling), public; at 1 all are (DP-GD)."
    )
    batching: Literal["poisson", "cyclic"] = Field(
        "poisson",
        description="poisson: every step draws each patient with probability sample-rate, which amplifies privacy; cyclic: "
        "1/sample-rate batches take turns, as noise over time needs.",
    )
    noise: str = Field(
        "independent",
        description="Noise of successive steps: independent, or with batching cyclic a process whose running sum stays "
        "accurate (DP-FTRL): tree, sqrt-toeplitz, banded, blt or dense.",
    )
    noise_options: str = Field("", description="Options of the noise process: `bands=4`, `restart=20`.")
    denoise: Literal["none", "kalman", "disk"] = Field(
        "none",
        description="Filter of the noised gradients over steps: a Kalman filter's gain, or DiSK (Zhang et al. 2025).",
    )
    denoise_gain: Rate = Field(
        0.7, description="Weight of the newest noised gradient in the filter; 1 filters nothing."
    )
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = Field(
        "sgd", description="The hospitals' optimizer: DP-SGD (DP-GD at sample-rate 1), DP-Adam, DP-AdamW or DP-RMSprop."
    )
    learning_rate: float = Field(0.5, gt=0, le=1e6, description="The hospitals' learning rate.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd and rmsprop.")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of the optimizer.")
    proximal_mu: float = Field(0.0, ge=0, description="FedProx's proximal term (Li et al. 2020).")
    control_variate: Literal["update", "gradient"] = Field(
        "update",
        description="Strategy scaffold: a hospital's control variate from its update (option II), or from one more gradient over "
        "all its patients, which is charged (option I).",
    )
    personal_mu: float = Field(
        0.1, ge=0, description="Strategy ditto: how strongly a hospital's personal model is held near the shared one."
    )
    local_layers: str = Field(
        "",
        description="Arrays that stay at each hospital, by patterns of their names: `head.*, *.bias`. Strategy fedbn adds "
        "normalisation layers.",
    )
    engine: Literal["auto", "linear", "functional", "opacus"] = Field(
        "auto",
        description="How per-patient gradients are had: linear (closed form), functional (torch.func) or opacus; auto "
        "takes the first that the model allows. Results agree within rounding.",
    )
    upload: Literal["model", "difference"] = Field(
        "model", description="What a hospital sends back: its model, or the difference from the one it was given."
    )
    upload_precision: Literal["full", "half", "int8"] = Field(
        "full", description="Numbers of an upload: as trained, 16 bits, or 8 bits with stochastic rounding."
    )
    upload_share: Rate = Field(
        1.0,
        description="Share of a difference's numbers that is sent, the largest; the rest is kept at the hospital and added "
        "to its next difference.",
    )
    secure_aggregation: bool = Field(
        False,
        description="The server learns the sum of the hospitals' updates, and no single one.",
    )
    secure_clip_norm: float = Field(
        10.0, ge=1e-6, le=1e6, description="Secure aggregation: each hospital's update is clipped to this L2 norm."
    )
    secure_bits: int = Field(
        24,
        ge=8,
        le=28,
        description="Secure aggregation: updates are rounded to steps of secure-clip-norm / 2^secure-bits.",
    )
    secure_dropouts: int = Field(
        0,
        ge=0,
        description="Secure aggregation: hospitals of a round that may drop out; with more the sum is not opened.",
    )
    secure_noise: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Secure aggregation: noise multiplier of the opened sum, relative to what one hospital can change; each "
        "adds a share. 0 adds none.",
    )
    dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="Simulation: probability that a sampled hospital cannot be reached in a round."
    )
    availability: str = Field(
        "", description="Simulation: CSV of hospitals that cannot be reached, with columns round and site."
    )
    seconds_per_step: float = Field(
        0.0, ge=0, description="Simulation: what a training step takes at a hospital, in simulated seconds."
    )
    straggling: float = Field(
        0.0, ge=0, le=10, description="Simulation: spread of hospitals' speeds (standard deviation of the logarithm)."
    )
    bandwidth: float = Field(
        0.0, ge=0, description="Simulation: a hospital's bytes per simulated second, each way; 0 is without limit."
    )
    round_deadline: float = Field(
        0.0, ge=0, description="Simulation: simulated seconds after which a round does not wait; 0 waits for all."
    )
    dp: bool = Field(True, description="Train with differential privacy.")
    epsilon: Positive = Field(3.0, description="Privacy budget of each hospital for the whole run.")
    delta: float = Field(1e-3, gt=0, lt=1, description="Target delta; must be below 1/patients at every hospital.")
    overlap: int = Field(
        1,
        ge=1,
        description="The most hospitals that may hold one patient's records; above 1, the run's epsilon is composed over "
        "so many, while each hospital keeps to its own. Real hospitals declare it in their policies.",
    )
    max_grad_norm: float = Field(
        1.0, ge=1e-6, le=1e6, description="Each patient's gradient is clipped to this L2 norm."
    )
    perturbation: Literal["gaussian", "gamma"] = Field(
        "gaussian",
        description="Noise of output-perturbation and objective-perturbation; gamma has a pure epsilon, without delta.",
    )
    standardise: bool = Field(True, description="Standardise features over all hospitals before training.")
    statistics_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of epsilon paid for the statistics that standardise features and count patients.",
    )
    patients_per_site: int = Field(
        0, ge=0, description="A public count that sets the batch divisor where statistics are not paid for; 0 = none."
    )
    central_epsilon: float = Field(
        0.0,
        ge=0,
        description="Privacy budget of a whole hospital, for noise that a trusted server adds to the sum of updates; 0 is off.",
    )
    central_delta: float = Field(
        1e-3, gt=0, lt=1, description="Target delta of central-epsilon; must be below 1/hospitals."
    )
    central_clip_norm: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        description="Each hospital's whole update is clipped to this L2 norm; with adaptive clipping in the first round.",
    )
    central_clipping: Literal["fixed", "adaptive"] = Field(
        "fixed", description="adaptive: the clip norm follows central-quantile of the updates' norms."
    )
    central_quantile: float = Field(
        0.5, gt=0, lt=1, description="Share of the updates that adaptive clipping leaves as they are."
    )
    central_noise: str = Field(
        "independent",
        description="Central noise of the rounds: independent, or a process over time (tree, sqrt-toeplitz, banded, blt, "
        "dense), which gains where min-separation is large.",
    )
    central_weights: str = Field(
        "uniform", description="Hospitals' weights in the sum: uniform, or public ones as `NAME=2, OTHER=1`."
    )
    seed: int = Field(
        0, ge=0, description="Seed of a simulation. Hospitals with real records draw noise from the system."
    )
    workers: int = Field(
        1, ge=1, description="Processes that train hospitals side by side; results do not depend on it."
    )
    ray_address: str = Field(
        "",
        description="Workers are Ray actors: local begins Ray here, auto or HOST:PORT joins a cluster; empty: processes.",
    )
    gpus: float = Field(
        0.0,
        ge=0,
        description="GPUs that the workers of a simulation share, each at most one; 0 trains on the processor.",
    )
    timeout: Positive = Field(3600.0, description="Seconds to wait for the hospitals' replies in one exchange.")
    checkpoint_every: int = Field(
        1, ge=1, description="Write a checkpoint after every so many rounds, and after the last."
    )
    checkpoints_kept: int = Field(1, ge=1, description="How many of the newest checkpoints are kept.")
    out: str = Field("runs", description="Folder in which the run's folder is made.")

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {_dashed(key) for key in values}
        wanted = _defaults(values.get("task"), values.get("strategy"))
        return values | {key: value for key, value in wanted.items() if key not in given}

    @field_validator("hidden", mode="before")
    @classmethod
    def _one_width(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    @field_validator("hidden")
    @classmethod
    def _widths(cls, value: str) -> str:
        if not all(part.strip().isdigit() and int(part) > 0 for part in value.split(",")):
            raise ValueError("must be positive whole numbers separated by commas, as in '32' or '64,32'")
        return value

    @field_validator("ray_address")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value not in ("", "local", "auto") and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("must be local, auto, or HOST:PORT of a Ray cluster, or empty for processes")
        return value

    @field_validator("partitioner")
    @classmethod
    def _partitioner(cls, value: str) -> str:
        from polyclinic.ehr.partition import PARTITIONERS

        known = [name for name in PARTITIONERS if not name.startswith("column:")]
        if value and value not in known and not (value.startswith("column:") and len(value) > len("column:")):
            raise ValueError(f"must be one of {', '.join(known)} or column:NAME.{nearest(value, known)}")
        return value

    @field_validator("noise", "central_noise")
    @classmethod
    def _noise(cls, value: str) -> str:
        from polyclinic.privacy.noise import NOISE

        if value not in NOISE:
            raise ValueError(f"must be one of {', '.join(NOISE)}.{nearest(value, NOISE)}")
        return value

    @field_validator("central_weights")
    @classmethod
    def _weights(cls, value: str) -> str:
        try:
            weights = [1.0] if value == "uniform" else list(parse_assignments(value).values())
        except ConfigError:
            weights = []
        if not weights or not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in weights):
            raise ValueError("must be uniform, or a positive weight for each hospital as in 'NAME=2, OTHER=1'")
        return value

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        if self.one_release and self.weight_decay == 0:
            raise ValueError(
                f"weight-decay is 0 but task is {self.task!r}: without a regulariser one patient may move the minimiser "
                "anywhere; give weight-decay a value above 0, such as 0.1"
            )
        paid = self.standardise and self.statistics_share > 0
        if self.dp and self.standardise and self.statistics_share == 0:
            raise ValueError(
                "statistics-share is 0 but standardise is true: statistics of private records must be paid for; "
                "give statistics-share a value above 0 and below 1, or set standardise to false"
            )
        if self.upload_share < 1 and self.upload != "difference":
            raise ValueError(
                "upload-share is below 1 but upload is 'model': only a difference can be sent in part; "
                "set upload to 'difference'"
            )
        if self.secure_aggregation and compression(self).active:
            raise ValueError(
                "secure-aggregation is true but upload or upload-precision asks for compressed uploads, which cannot be "
                "summed under masks; leave upload at 'model' and upload-precision at 'full'"
            )
        if self.secure_aggregation and self.site_sampling == "poisson":
            raise ValueError(
                "secure-aggregation is true but site-sampling is 'poisson': how many may drop out of a round is agreed for "
                "rounds of a fixed size; set site-sampling to 'fixed'"
            )
        if self.secure_noise and not self.secure_aggregation:
            raise ValueError(
                "secure-noise is above 0 but secure-aggregation is false: a hospital's share of noise protects only in a "
                "sum; set secure-aggregation to true"
            )
        if self.gpus > self.workers:
            raise ValueError(
                f"gpus is {self.gpus:g} but workers is {self.workers}: a worker uses at most one GPU; "
                "set workers to at least as many"
            )
        if self.batching == "cyclic" and abs(1 / self.sample_rate - round(1 / self.sample_rate)) > 1e-9:
            raise ValueError(
                f"sample-rate is {self.sample_rate:g} but batching is cyclic: as many batches as 1/sample-rate take turns, "
                "which must be a whole number"
            )
        if self.noise != "independent" and self.batching != "cyclic":
            raise ValueError(
                f"noise is {self.noise!r} but batching is 'poisson': only where a patient returns after a known number of "
                "steps is the price of such noise known; set batching to 'cyclic'"
            )
        if self.dp and not paid and self.patients_per_site == 0:
            raise ValueError(
                "patients-per-site is 0: without paid statistics the batch divisor needs a public number of patients; "
                "give patients-per-site a positive whole number"
            )
        if self.central and self.secure_aggregation:
            raise ValueError(
                "central-epsilon is above 0 but secure-aggregation is true: central noise is added by a server that sees every "
                "hospital's update; set central-epsilon to 0 and give secure-noise"
            )
        if self.secure_noise and self.standardise:
            raise ValueError(
                "secure-noise is above 0 but standardise is true: the statistics that standardise features tell of whole "
                "hospitals, which secure-noise does not cover; set standardise to false"
            )
        if self.central and self.standardise:
            raise ValueError(
                "central-epsilon is above 0 but standardise is true: the statistics that standardise features tell of whole "
                "hospitals, which central-epsilon does not cover; set standardise to false"
            )
        if self.central and self.site_sampling == "poisson" and self.min_separation > 1:
            raise ValueError(
                f"min-separation is {self.min_separation} but site-sampling is 'poisson' and central-epsilon above 0: "
                "central-epsilon counts on every round's hospitals being sampled independently; set min-separation to 1 "
                "or site-sampling to 'fixed'"
            )
        if self.central and self.central_noise != "independent":
            for key, value in (("site-sampling", "fixed"), ("central-clipping", "fixed")):
                if getattr(self, key.replace("-", "_")) != value:
                    raise ValueError(
                        f"central-noise is {self.central_noise!r} but {key} is not {value!r}: noise over time knows no "
                        f"amplification and one clip norm; set {key} to {value!r} or central-noise to 'independent'"
                    )
        return self

    @model_validator(mode="after")
    def _possible_for_the_strategy(self) -> RunConfig:
        if self.strategy == "fedsgd" and (self.local_steps, self.sample_rate) != (1, 1.0):
            raise ValueError(
                f"strategy is 'fedsgd' but local-steps is {self.local_steps} and sample-rate {self.sample_rate:g}: FedSGD is one "
                "step over all patients in every round; set local-steps to 1 and sample-rate to 1, or strategy to 'fedavg'"
            )
        if self.strategy == "qfedavg" and self.dp:
            raise ValueError(
                "strategy is 'qfedavg' but dp is true: it weights hospitals by their training loss, which does not leave a "
                "private run; set dp to false or take another strategy"
            )
        if self.strategy == "scaffold" and (self.optimizer != "sgd" or self.momentum):
            raise ValueError(
                f"strategy is 'scaffold' but optimizer is {self.optimizer!r} with momentum {self.momentum:g}: control variates "
                "correct plain gradient steps; set optimizer to 'sgd' and momentum to 0"
            )
        if self.strategy == "scaffold" and self.secure_aggregation:
            raise ValueError(
                "strategy is 'scaffold' but secure-aggregation is true: the change of a hospital's control variate, from which "
                "its update follows, would leave without masks; set secure-aggregation to false or take another strategy"
            )
        if self.control_variate == "gradient" and self.strategy != "scaffold":
            raise ValueError(
                f"control-variate is 'gradient' but strategy is {self.strategy!r}: only scaffold has control variates; leave "
                "control-variate at 'update'"
            )
        looks_again = self.strategy == "ditto" or self.control_variate == "gradient"
        if looks_again and self.batching == "cyclic":
            raise ValueError(
                f"strategy is {self.strategy!r} but batching is 'cyclic': what it computes of the patients beside the shared "
                "model is charged for Poisson batches only; set batching to 'poisson'"
            )
        if self.one_release and (self.strategy in ("scaffold", "ditto", "fedbn") or self.local_layers):
            raise ValueError(
                f"task is {self.task!r} but strategy is {self.strategy!r} with local-layers {self.local_layers!r}: one release "
                "of a whole model has no steps to correct and no part to keep; take another strategy, without local-layers"
            )
        if self.strategy == "ditto" and self.local_layers:
            raise ValueError(
                "strategy is 'ditto' but local-layers are given: a personal model is a hospital's own as a whole; leave "
                "local-layers empty or take strategy 'fedavg'"
            )
        return self

    @property
    def central(self) -> bool:
        """Whether a trusted server adds noise that protects whole hospitals."""
        return self.central_epsilon > 0

    @property
    def rounds_kept(self) -> int:
        """How many rounds back the oldest checkpoint that is kept may lie, so that nothing it needs is forgotten."""
        return self.checkpoint_every * self.checkpoints_kept

    @property
    def loses_replies(self) -> bool:
        """Whether simulated conditions may leave a round without enough replies."""
        return bool(self.dropout_rate or self.availability or self.round_deadline)

    @property
    def keeps_state(self) -> bool:
        """Whether a hospital keeps something of a round (moments, momentum, what was not sent) for its next one."""
        stepwise = self.optimizer != "sgd" or self.momentum > 0 or self.batching == "cyclic" or self.denoise != "none"
        stays = self.evaluates_own or self.strategy == "scaffold"
        return self.upload_share < 1 or stays or (stepwise and not self.one_release)

    @property
    def evaluates_own(self) -> bool:
        """Whether a hospital has arrays of its own, with which it evaluates."""
        return bool(self.local_layers) or self.strategy in ("fedbn", "ditto")

    @property
    def local_patterns(self) -> tuple[str, ...]:
        return tuple(filter(None, (part.strip() for part in self.local_layers.split(","))))

    @property
    def one_release(self) -> bool:
        """Whether a round is one release of a minimiser, without steps and batches."""
        return self.task in _TASK_DEFAULTS

    @property
    def weights(self) -> dict[str, float]:
        """The public weights of hospitals by name; empty when all weigh the same."""
        given = {} if self.central_weights == "uniform" else parse_assignments(self.central_weights)
        return {name: float(weight) for name, weight in given.items()}

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.hidden.split(","))

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's keyword arguments. Raises ConfigError when the text is not ``key=value`` pairs."""
        return {key.replace("-", "_"): value for key, value in parse_assignments(self.strategy_options).items()}

    def flat(self) -> dict[str, bool | int | float | str]:
        """Dashed keys to plain values, as Flower's run-config carries them."""
        return dict(self.model_dump(by_alias=True))

    def given(self) -> dict[str, bool | int | float | str]:
        """``flat`` with only what is not usual for task and strategy: others then take their own defaults for the rest."""
        usual = type(self)().flat() | _defaults(self.task, self.strategy)
        named = ("task", "strategy")
        return {key: value for key, value in self.flat().items() if key in named or value != usual[key]}

    def decisive(self) -> dict[str, bool | int | float | str]:
        """``flat`` with only the keys that decide what comes out."""
        return {key: value for key, value in self.flat().items() if key not in _INDECISIVE}

    @classmethod
    def build(cls, *layers: Mapping[str, Any]) -> RunConfig:
        """The configuration from layers of dashed or underscored keys, later layers first in rank.

        Raises ConfigError with the key, its value, what is allowed and the nearest known name.
        """
        known = {_dashed(name) for name in cls.model_fields}
        merged: dict[str, Any] = {}
        for layer in layers:
            for key, value in layer.items():
                name = _dashed(key)
                if name not in known:
                    raise ConfigError(f"Unknown configuration key {key!r}.{nearest(name, known)}")
                merged[name] = value
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None


def compression(config: RunConfig) -> Compression:
    """How the run's uploads are encoded."""
    return Compression(config.upload == "difference", config.upload_precision, config.upload_share)


def train_settings(config: RunConfig, noise_multiplier: float | None) -> TrainSettings:
    """The public settings of a round of training; ``noise_multiplier`` None trains without privacy."""
    from polyclinic.training.task import TrainSettings  # torch takes a second to load

    return TrainSettings(
        sample_rate=config.sample_rate, local_steps=config.local_steps, learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm, noise_multiplier=noise_multiplier, optimizer=config.optimizer,
        momentum=config.momentum, weight_decay=config.weight_decay, proximal_mu=config.proximal_mu,
        engine=config.engine, device="cuda" if config.gpus else "cpu", batching=config.batching,
        noise=noise_named(config), denoise=config.denoise, denoise_gain=config.denoise_gain,
        perturbation=config.perturbation, release_delta=0.9 * config.delta / config.rounds,
    )  # fmt: skip


def noise_named(config: RunConfig) -> NoiseProcess | None:
    """The noise process of the whole run's steps; None where every step of Poisson batches is on its own.

    Raises ConfigError for a name or an option that does not exist.
    """
    if config.batching == "poisson":
        return None
    return _noise(config.noise, config.noise_options, config.rounds * config.local_steps, round(1 / config.sample_rate))


@lru_cache(maxsize=8)
def _noise(name: str, options: str, steps: int, epoch: int) -> NoiseProcess:
    from polyclinic.privacy.noise import Participation, noise_process

    given = {key.replace("-", "_"): value for key, value in parse_assignments(options).items()}
    try:
        return noise_process(name, steps, participation=Participation(epoch, math.ceil(steps / epoch)), **given)
    except TypeError as error:
        raise ConfigError(f"noise-options do not make a noise process {name!r}: {error}.") from None


def secure_terms(config: RunConfig, size: int, parties: int, threshold: int) -> SumTerms:
    """What the hospitals of a secure sum of models of ``size`` numbers agree on. Raises ConfigError when it is impossible."""
    from polyclinic.privacy.distributed import SumTerms

    try:
        return SumTerms(
            size, config.secure_clip_norm, config.secure_bits, parties, threshold, noise_multiplier=config.secure_noise
        )
    except ValueError as error:
        raise ConfigError(f"Secure aggregation: {error}") from None


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message += "" if message.endswith((".", "?")) else "."
    if not first["loc"]:
        return f"Impossible configuration: {message}"
    return f"Configuration key {_dashed(str(first['loc'][0]))!r} has the value {first['input']!r}, which {message}"


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML configuration file. Raises ConfigError if it is missing, cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"The configuration file {path} does not exist.") from None
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not valid TOML: {error}.") from None


def parse_assignments(text: str) -> dict[str, Any]:
    """``"a=1, b='x'"`` as ``{"a": 1, "b": "x"}``; bare words are text. Raises ConfigError on anything else."""
    found: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{part!r} is not of the form key=value.")
        found[key.strip()] = parse_value(value.strip())
    return found


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
