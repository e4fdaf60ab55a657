"""The sections of what is learned from, by whom, and in which steps: data, split, participation, training, upload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator, model_validator

from polyclinic.config.keys import Keys, Rate, Written, noise_known
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.ehr import split


class Data(Keys):
    """How records are read and encoded."""

    schema_file: str = Field(
        "",
        description="Schema in TOML that simulated hospitals read the dataset's records under, such as one of `polyclinic "
        "prepare`; empty takes the dataset's own.",
    )
    label: Written = Field(
        "",
        description="Columns of the schema that simulated hospitals take for the label in place of its own, which is then left "
        "out: one, several binary ones, or a time and an event, separated by commas.",
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
    standardise: Literal["public", "measured", "none"] = Field(
        "public",
        description="Scale of numeric features: public, from the schema alone (its centres and spreads, or its bounds), at no "
        "cost; measured, of columns without them by noisy counts of all hospitals' patients, which are paid for; none, as "
        "encoded.",
    )

    @model_validator(mode="after")
    def _imputer(self) -> Self:
        if self.imputation == "chained" and not self.imputer_file:
            raise ValueError(
                "data.imputation is 'chained' but data.imputer-file is empty; name what `polyclinic prepare --imputer` wrote"
            )
        return self


class Split(Keys):
    """Which patients are held out, to judge the result on."""

    fraction: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="Held-out share of each hospital's patients; at 0 all train, and nothing is judged.",
    )
    seed: Written = Field(
        "", description="Number that draws another split; empty takes the one that all runs share, whatever their seed."
    )
    folds: int = Field(
        0,
        ge=0,
        description="With 2 folds or more each patient is held out in exactly one of them; 0 holds out a share.",
    )
    fold: int = Field(0, ge=0, description="The fold that is held out, from 0.")
    time: str = Field(
        "",
        description="COLUMN:DATE or COLUMN:NUMBER: patients with a record at or after it are held out, so that no record that is "
        "trained on is later; empty: no split by time.",
    )

    @field_validator("seed")
    @classmethod
    def _seed(cls, value: str) -> str:
        if not (value == "" or value.isdecimal()):
            raise ValueError("must be a whole number of at least 0, or empty")
        return value

    @model_validator(mode="after")
    def _rule(self) -> Self:
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ValueError(
                f"split.fold is {self.fold} and split.folds {self.folds}: folds are 2 or more (0: none), and count from 0"
            )
        if self.folds and self.time:
            raise ValueError("split.folds and split.time are both given: patients are held out by one of them")
        if self.time:
            try:
                self.rule.check()
            except ConfigError as error:
                raise ValueError(str(error).removesuffix(".")) from None
        return self

    @property
    def rule(self) -> split.Split:
        """The rule by which patients are held out."""
        from polyclinic.ehr.split import Split as Rule  # takes pandas, which --help does without

        return Rule(**self.model_dump())


#: What a submitter's name may be.
SUBMITTER_NAME = r"^[\w.@ -]*$"


class Participation(Keys):
    """Which hospitals take part in a round."""

    fraction: Rate = Field(1.0, description="Share of the hospitals sampled for each round.")
    sites: int = Field(0, ge=0, description="Hospitals sampled for each round; 0 takes the fraction of them instead.")
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed", description="fixed: so many in every round; poisson: each with the same probability, on its own."
    )
    min_separation: int = Field(
        1,
        ge=1,
        description="Rounds from one participation of a hospital to its next, at the least; 1 allows every round.",
    )
    min_sites: int = Field(1, ge=1, description="A round with fewer valid replies fails the run.")
    approval_wait: float = Field(
        86400.0,
        ge=0,
        le=31_536_000,
        description="Seconds that a run waits for hospitals where a person must approve it.",
    )
    submitter: str = Field(
        "",
        max_length=100,
        pattern=SUBMITTER_NAME,
        description="Who submitted the run: the name of the key of `coordinator submit --key`, or else the user of its machine.",
    )
    signature: str = Field(
        "",
        max_length=200,
        pattern=r"^([0-9a-f]{128}@[0-9TZ.]{10,30})?$",
        description="The submitter's signature of all settings, and its time; `coordinator submit --key` makes it.",
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
    noise_options: Written = Field("", description="Options of the noise process: `bands=4`, `restart=20`.")
    denoise: Literal["none", "kalman", "disk"] = Field(
        "none",
        description="Filter of the noised gradients over steps, at no cost: none; kalman, a Kalman filter's gain; disk, DiSK "
        "(Zhang et al. 2024).",
    )
    denoise_gain: Rate = Field(
        0.7, description="Weight of the newest noised gradient in the filter; 1 filters nothing."
    )
    optimizer: Literal["auto", "sgd", "adam", "adamw", "rmsprop", "newton"] = Field(
        "auto",
        description="The hospitals' optimizer. sgd (DP-SGD; DP-GD at sample-rate 1), adam, adamw, rmsprop: steps along clipped, "
        "noised gradients. newton: noisy Newton steps of a logistic model on sums over all patients (docs/privacy/newton.md). "
        "auto: newton for classes by model logistic and strategy fedavg where no key of training describes steps, else sgd.",
    )
    recalibrate: bool = Field(
        True,
        description="Newton's last round of three or more shifts and stretches all logits, so that risks are calibrated.",
    )
    learning_rate: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="The hospitals' learning rate; 0 takes the largest that the noise allows (docs/privacy/choosing.md).",
    )
    momentum: float | Literal["auto"] = Field(
        "auto", description="Momentum of sgd and rmsprop; auto: what the objective states, else 0.9, and 0 of rmsprop."
    )
    weight_decay: float = Field(0.0, ge=0, le=1e6, description="L2 penalty of the optimizer.")
    radius: float = Field(
        0.0,
        ge=0,
        description="Each step ends by shortening the trained parameters to this L2 norm where they are longer (projected "
        "DP-GD, DP-SGD); 0 leaves them.",
    )
    engine: Literal["auto", "linear", "layered", "functional", "opacus"] = Field(
        "auto",
        description="How per-patient gradients are computed: linear (closed form), layered (closed forms of the layers of any "
        "module), functional (torch.func) or opacus; auto takes the first that the model allows. Results agree within rounding.",
    )

    @field_validator("momentum", mode="before")
    @classmethod
    def _momentum(cls, value: object) -> object:
        if value == "auto" or isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
            return value
        raise ValueError("must be auto or a number of at least 0 and less than 1")

    @property
    def stepping(self) -> str:
        """The optimizer of steps; auto takes sgd where it takes any."""
        return "sgd" if self.optimizer == "auto" else self.optimizer

    @property
    def usual_momentum(self) -> float:
        """The momentum where the objective states none."""
        return 0.9 if self.momentum == "auto" else self.momentum

    @field_validator("noise")
    @classmethod
    def _noise(cls, value: str) -> str:
        return noise_known(value)

    @model_validator(mode="after")
    def _over_time(self) -> Self:
        if self.batching == "cyclic" and abs(1 / self.sample_rate - round(1 / self.sample_rate)) > 1e-9:
            raise ValueError(
                f"training.sample-rate is {self.sample_rate:g} but training.batching is cyclic: as many batches as "
                "1/training.sample-rate take turns, which must be a whole number"
            )
        if self.noise != "independent" and self.batching != "cyclic":
            raise ValueError(
                f"training.noise is {self.noise!r} but training.batching is 'poisson': only where a patient returns after a "
                "known number of steps is the price of such noise known; set training.batching to 'cyclic'"
            )
        return self


class Upload(Keys):
    """What of a hospital's model is sent back."""

    form: Literal["model", "difference"] = Field(
        "model", description="What a hospital sends back: its model, or the difference from the one it was given."
    )
    precision: Literal["full", "half", "int8"] = Field(
        "full", description="Numbers of an upload: as trained, 16 bits, or 8 bits with stochastic rounding."
    )
    share: Rate = Field(
        1.0,
        description="Share of a difference's numbers that is sent, the largest; the rest is kept at the hospital and added "
        "to its next difference.",
    )

    @model_validator(mode="after")
    def _in_part(self) -> Self:
        if self.share < 1 and self.form != "difference":
            raise ValueError(
                "upload.share is below 1 but upload.form is 'model': only a difference can be sent in part; set upload.form "
                "to 'difference'"
            )
        return self
