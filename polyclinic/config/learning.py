"""The keys of what is learned, where, and in which steps: data, model, rounds, training at a hospital, its upload."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from polyclinic.config.keys import Keys, Positive, Rate, noise_known
from polyclinic.config.reading import parse_assignments
from polyclinic.errors import ConfigError


class Data(Keys):
    """Whose records are learned from."""

    dataset: str = Field(
        "breast-cancer", description="Dataset by name (`polyclinic datasets`) or `package.module:Name`."
    )
    sites: int = Field(0, ge=0, description="Number of hospitals; 0 takes the dataset's own number.")
    schema_file: str = Field(
        "",
        description="Schema in TOML that simulated hospitals read the dataset's records under, such as one of `polyclinic "
        "prepare`; empty takes the dataset's own.",
    )
    imputation: Literal["mean", "constant", "indicator", "chained", "mice"] = Field(
        "mean",
        description="What a missing number becomes: mean, as standardise knows it; constant, the schema's fill; indicator, the "
        "mean and a feature that says so; chained, what imputer-file makes of the row; mice, what each hospital's own chained "
        "equations do, without privacy only.",
    )
    imputer_file: str = Field(
        "",
        description="Imputer of simulated hospitals' imputation chained, as `polyclinic prepare --imputer` writes it.",
    )
    partitioner: str = Field(
        "",
        description="How records are dealt to hospitals: natural, column:NAME, time:NAME, iid, dirichlet, quantity, power-law, "
        "label-quantity, classes:K or feature-shift, with +pool:N, +bias or +units after them; empty takes the dataset's own.",
    )
    alpha: Positive = Field(
        1.0,
        description="Skew of the partitioner: Dirichlet concentration (smaller is more skewed), exponent of power-law, overlap "
        "of feature-shift, strength of +bias.",
    )

    @field_validator("partitioner")
    @classmethod
    def _partitioner(cls, value: str) -> str:
        from polyclinic.ehr.partition import check_partitioner

        if value:
            try:
                check_partitioner(value)
            except ConfigError as error:
                raise ValueError(str(error).removeprefix(f"Partitioner {value!r} ")) from None
        return value


class Model(Keys):
    """What is learned, and how hospitals' models become one."""

    task: str = Field(
        "classification",
        description="What a hospital does with its shard: classification, output-perturbation or objective-perturbation "
        "(one release of a logistic model, with defaults of its own: docs/privacy/convex.md), synthesis "
        "(docs/synthesis/README.md), posterior (docs/flows/inference.md), or `package.module:Name`.",
    )
    model: str = Field(
        "logistic",
        description="logistic, mlp, of task synthesis a method such as moments (the default there), of task posterior logistic "
        "or linear, or `package.module:Name`.",
    )
    hidden: str = Field("32", description="Widths of the MLP's hidden layers, separated by commas.")
    strategy: str = Field(
        "fedavg", description="A Flower strategy by name (`polyclinic plugins`) or `package.module:Name`."
    )
    strategy_options: str = Field("", description="Arguments of the strategy: `eta=0.1, beta-1=0.9`.")

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

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.hidden.split(","))

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's keyword arguments. Raises ConfigError when the text is not ``key=value`` pairs."""
        return {key.replace("-", "_"): value for key, value in parse_assignments(self.strategy_options).items()}


class Rounds(Keys):
    """How often hospitals take part, and which."""

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
    rounds: int = Field(30, ge=1, description="Federated rounds.")
    evaluate_every: int = Field(
        1, ge=1, description="Evaluate on held-out patients after every so many rounds, and after the last."
    )
    groups: str = Field(
        "",
        description="Feature column, as sex, by whose groups of held-out patients the result is judged too; empty: none.",
    )


class Training(Keys):
    """The steps of a hospital in one round."""

    local_steps: int = Field(1, ge=1, description="Optimizer steps of a hospital in one round.")
    sample_rate: float = Field(
        1.0,
        ge=1e-9,
        le=1,
        description="Probability that a patient is in a batch (Poisson sampling), public; at 1 all are (DP-GD).",
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
    learning_rate: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="The hospitals' learning rate; 0 takes the largest that the noise allows (docs/privacy/choosing.md).",
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="Momentum of sgd and rmsprop; rmsprop has 0 where none is given."
    )
    weight_decay: float = Field(0.0, ge=0, le=1e6, description="L2 penalty of the optimizer.")
    proximal_mu: float = Field(0.0, ge=0, le=1e6, description="FedProx's proximal term (Li et al. 2020).")
    control_variate: Literal["update", "gradient"] = Field(
        "update",
        description="Strategy scaffold: a hospital's control variate from its update (option II), or from one more gradient over "
        "all its patients, which is charged (option I).",
    )
    personal_mu: float = Field(
        0.1,
        ge=0,
        le=1e6,
        description="Strategy ditto: how strongly a hospital's personal model is held near the shared one.",
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

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: str) -> str:
        return noise_known(value)

    @property
    def local_patterns(self) -> tuple[str, ...]:
        return tuple(filter(None, (part.strip() for part in self.local_layers.split(","))))


class Upload(Keys):
    """What of a hospital's model is sent back."""

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
