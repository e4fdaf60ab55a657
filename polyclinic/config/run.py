"""The configuration of a run: one model that TOML files, ``-c``, flags, Flower's run-config and Python all fill.

What every run has stands at the top, the rest in sections. Outside Python a key is written with dashes, one of a section after
the section's name and a dot (``training.sample-rate``); inside with underscores. Every value is checked here, before a hospital
is contacted, so a wrong key or an impossible value costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import Field, ModelWrapValidatorHandler, field_validator, model_validator

from polyclinic.config.checks import check_together
from polyclinic.config.execution import Checkpoints, Simulation, Tracking
from polyclinic.config.keys import Keys, Positive, Written, flat_keys, nested_keys, with_dashes
from polyclinic.config.learning import Data, Participation, Split, Training, Upload
from polyclinic.config.programs import analyses, boosting, convex, newton, posterior, synthesis
from polyclinic.config.programs.convex import Convex
from polyclinic.config.programs.kinds import CLASSIFICATION, Kind
from polyclinic.config.programs.posterior import Posterior
from polyclinic.config.programs.synthesis import Synthesis
from polyclinic.config.protection import Central, Evaluation, Privacy, Secure
from polyclinic.config.reading import as_text, keyword_arguments
from polyclinic.digests import digest
from polyclinic.errors import ConfigError, nearest
from polyclinic.strategies import BUILT_IN

if TYPE_CHECKING:
    from polyclinic.ehr.schema import Schema

Value = bool | int | float | str

# Keys that say where and how a run goes on and how it is told, and not what hospitals release.
_INDECISIVE = (
    "out",
    "timeout",
    "workers",
    "ray-address",
    "resume",
    "participation.submitter",
    "participation.signature",
    "privacy.overlap",
    "synthesis.quality",
)
_INDECISIVE_SECTIONS = ("checkpoints", "tracking", "evaluation")
_OPTIMIZER = "training.optimizer"
#: The kind of run of each built-in task.
_KINDS: dict[str, Callable[[Mapping[str, Any]], Kind]] = {
    "classification": lambda given: _of_classification(given),
    **dict.fromkeys(convex.DEFAULTS, convex.convex_kind),
    "synthesis": synthesis.synthesis_kind,
    "posterior": posterior.posterior_kind,
    **dict.fromkeys(analyses.ROUNDS, analyses.analysis_kind),
}
#: What a model takes where nothing is given: one of sequences tells steps at which nothing was seen. Attention learns little
#: from noisy gradients of one length for all layers, and momentum of 0.9 makes a recurrent unit's loss swing (docs/models.md).
_MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "gru": {
        "data.imputation": "indicator",
        "training.optimizer": "adam",
        "training.learning-rate": 0.07,
        "privacy.max-grad-norm": 4.0,
    },
    "transformer": {"data.imputation": "indicator", "training.optimizer": "adam", "training.learning-rate": 0.02},
}
#: What an optimizer takes where nothing is given: momentum makes the first steps of RMSprop, which are long, diverge.
_OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {"rmsprop": {"training.momentum": 0.0}}
#: What an objective takes where nothing is given: who has the event has a long gradient, and to shorten it lowers hazards.
_OBJECTIVE_DEFAULTS: dict[str, dict[str, Any]] = dict.fromkeys(
    ("hazards", "piecewise-exponential"), {"privacy.max-grad-norm": 4.0}
)
#: What a sum with shared noise takes where nothing is given: the server gives its steps their momentum.
_SHARED_DEFAULTS: dict[str, Any] = {"strategy": "fedavgm", "training.momentum": 0.0}
_SHARED_OPTIONS = {"strategy-options": "server-momentum=0.9"}


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the task, the strategy, the optimizer and shared noise take where nothing is given, by key."""
    open_to_newton, given = newton.may_suit(given), _without_auto(given)
    strategy, kind = str(given.get("strategy", "")), _kind(given)
    defaults = _OPTIMIZER_DEFAULTS.get(str(given.get("training.optimizer")), {})
    by_strategy = BUILT_IN[strategy].usual if strategy in BUILT_IN else {}
    by_model, by_objective = (
        table.get(str(given.get(key)), {}) if kind.steps else {}
        for key, table in (("model", _MODEL_DEFAULTS), ("objective", _OBJECTIVE_DEFAULTS))
    )
    shared = kind.server_steps and str(given.get("secure.shared-noise")).lower() == "true"
    # Another optimizer has another rate; strategies that set momentum and a shared sum take plain gradient steps.
    if shared or "training.momentum" in by_strategy or given.get(_OPTIMIZER) not in (None, by_model.get(_OPTIMIZER)):
        by_model = {key: value for key, value in by_model.items() if key not in (_OPTIMIZER, "training.learning-rate")}
    optimizer = "auto" if kind is CLASSIFICATION and open_to_newton else "sgd"
    defaults = {_OPTIMIZER: optimizer, **defaults, **by_objective, **by_strategy, **by_model, **kind.defaults}
    if shared:
        defaults |= _SHARED_DEFAULTS | (_SHARED_OPTIONS if strategy in ("", "fedavgm") else {})
    return defaults


def _without_auto(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` without an optimizer that is left open."""
    return {key: value for key, value in given.items() if (key, value) != (_OPTIMIZER, "auto")}


def _of_classification(given: Mapping[str, Any]) -> Kind:
    if given.get("model") in boosting.MODELS:
        return boosting.BOOSTING
    return newton.newton_kind(given) if given.get(_OPTIMIZER) == "newton" else CLASSIFICATION


def _kind(given: Mapping[str, Any]) -> Kind:
    task = str(given.get("task", "classification"))
    return _KINDS[task](given) if task in _KINDS else convex.OTHERS


class RunConfig(Keys):
    """Everything that decides a run's result. Immutable; every key has a default that works.

    A section is given as its own class or as a mapping of its keys. Raises ConfigError as ``build`` does.

    Examples:
        >>> config = RunConfig(rounds=5, privacy=Privacy(epsilon=1), training={"local_steps": 2})
        >>> config.privacy.epsilon, config.training.local_steps, config.flat()["privacy.epsilon"]
        (1.0, 2, 1.0)
    """

    dataset: str = Field(
        "breast-cancer", description="Dataset by name (`polyclinic datasets`) or `package.module:Name`."
    )
    dataset_options: Written = Field(
        "",
        description="Options of a dataset that is a function, as tables, which reads files of one's own: "
        "`files='hospitals/', label='died', patient='mrn'`.",
    )
    sites: int = Field(0, ge=0, description="Number of hospitals; 0 takes the dataset's own number.")
    partitioner: str = Field(
        "",
        description="How records are dealt to hospitals: natural, column:NAME, time:NAME, iid, dirichlet, quantity, power-law, "
        "label-quantity, classes:K or feature-shift, with +pool:N, +bias or +units after them, or `package.module:Name`; empty "
        "takes the dataset's own.",
    )
    partitioner_options: Written = Field(
        "", description="Options of a partitioner that another package brings: `min-partition-size=20`."
    )
    alpha: Positive = Field(
        1.0,
        description="Skew of the partitioner: Dirichlet concentration (smaller is more skewed), exponent of power-law, overlap "
        "of feature-shift, strength of +bias.",
    )
    task: str = Field(
        "classification",
        description="What a hospital does with its shard: classification, output-perturbation, objective-perturbation or "
        "exponential-mechanism (one release of a logistic model, with defaults of its own: docs/privacy/convex.md), synthesis "
        "(docs/synthesis/README.md), posterior (docs/flows/inference.md), or `package.module:Name`.",
    )
    task_options: Written = Field(
        "",
        description="Options of an analysis, or of a task that another package brings as a program: `temperature=2.0`.",
    )
    objective: str = Field(
        "",
        description="What the task classification trains the model towards: classification, binary (one logit), ordinal, "
        "multi-label, squared, huber, quantile, poisson, negative-binomial, hazards, piecewise-exponential (docs/objectives.md), "
        "or `package.module:Name`; empty takes what the kind of the label suggests.",
    )
    objective_options: Written = Field(
        "",
        description="Options of the objective: `levels=[0.1, 0.5, 0.9]` of quantile, `weights=[1, 5]` of classification.",
    )
    model: str = Field(
        "logistic",
        description="logistic, mlp, tabular-resnet, gru, transformer (docs/models.md), ebm or trees (docs/boosting.md), of task "
        "synthesis a method such as moments (by default the schema chooses, docs/synthesis/choosing.md), of task posterior "
        "logistic or linear, or `package.module:Name`.",
    )
    model_options: Written = Field(
        "", description="Options of the model, by name: `depth=3, dropout=0.1` (docs/models.md)."
    )
    hidden: Written = Field("32", description="Widths of the MLP's hidden layers, separated by commas.")
    strategy: str = Field(
        "fedavg", description="A Flower strategy by name (`polyclinic plugins`) or `package.module:Name`."
    )
    mods: Written = Field(
        "",
        description="Flower mods around the hospitals' ClientApp, the outermost first, separated by commas: logging, "
        "size or `package.module:Name`; after `train=` or `evaluate=` around answers of that kind alone.",
    )
    strategy_options: Written = Field("", description="Arguments of the strategy: `eta=0.1, beta-1=0.9`.")
    rounds: int = Field(30, ge=1, description="Federated rounds.")
    seed: int = Field(
        0, ge=0, description="Seed of a simulation. Hospitals with real records draw noise from the system."
    )
    workers: int = Field(
        1,
        ge=1,
        description="Processes that train hospitals side by side, with the same result; a network of your own may differ by "
        "rounding.",
    )
    ray_address: str = Field(
        "",
        description="Workers are Ray actors: local begins Ray here, auto or HOST:PORT joins a cluster; empty: processes.",
    )
    gpus: float = Field(
        0.0,
        ge=0,
        description="GPUs of this machine, or of the cluster of ray-address, that the workers of a simulation share, each at "
        "most one; 0 trains on the processor. Above 0 a real hospital trains on its node's GPU; without one it refuses to enrol.",
    )
    timeout: Positive = Field(3600.0, description="Seconds to wait for the hospitals' replies in one exchange.")
    out: str = Field("runs", description="Folder in which the run's folder is made.")
    question: str = Field(
        "",
        description="Question that hospitals answer in place of training, as `prepare` and `query --coordinator` write it.",
    )
    resume: str = Field(
        "",
        description="Under `flwr run`: name of the run's folder in `out` that goes on from its checkpoint; what decides its "
        "result must be as it was.",
    )
    data: Data = Data()
    split: Split = Split()
    participation: Participation = Participation()
    training: Training = Training()
    privacy: Privacy = Privacy()
    upload: Upload = Upload()
    secure: Secure = Secure()
    central: Central = Central()
    evaluation: Evaluation = Evaluation()
    convex: Convex = Convex()
    synthesis: Synthesis = Synthesis()
    posterior: Posterior = Posterior()
    simulation: Simulation = Simulation()
    checkpoints: Checkpoints = Checkpoints()
    tracking: Tracking = Tracking()

    @field_validator("partitioner")
    @classmethod
    def _partitioner(cls, value: str) -> str:
        from polyclinic.ehr.partition import check_partitioner  # takes pandas, which --help does without

        if value:
            try:
                check_partitioner(value)
            except ConfigError as error:
                raise ValueError(str(error).removeprefix(f"Partitioner {value!r} ")) from None
        return value

    @field_validator("mods")
    @classmethod
    def _kinds_of_mods(cls, value: str) -> str:
        for part in filter(None, value.split(",")):
            kind, equals, name = part.strip().rpartition("=")
            if not name.strip() or (equals and kind.strip() not in ("train", "evaluate")):
                raise ValueError("must be names separated by commas, each alone or after train= or evaluate=")
        return value

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

    @model_validator(mode="wrap")
    @classmethod
    def _usual(cls, values: Any, made: ModelWrapValidatorHandler[RunConfig]) -> RunConfig:
        if not isinstance(values, dict):
            return made(values)
        # An empty text is a key that is not given, of those that have other defaults than the table's.
        given = {key: value for key, value in flat_keys(values, SECTIONS).items() if value != "" or key not in _VARYING}
        given, defaults = _without_auto(given), _defaults(given)
        config = made(nested_keys(defaults | given))
        for key in defaults.keys() - given.keys():  # ``for_schema`` may choose others
            model, name = config._place(key)
            model.model_fields_set.discard(name)
        return config

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        check_together(self)
        return self

    @classmethod
    def _key(cls, path: tuple[int | str, ...]) -> str:
        return ".".join(with_dashes(str(part)) for part in path)

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self.__dict__[name] for name in type(self).model_fields))

    def __hash__(self) -> int:
        """Of its values, computed once: what is kept by configuration is looked up for every hospital of every round."""
        return self._hash

    @cached_property
    def decided(self) -> str:
        """The digest of ``decisive``, which tells apart what comes out."""
        return digest(self.decisive())

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the hidden layers."""
        return tuple(int(part) for part in self.hidden.split(","))

    @property
    def mod_names(self) -> tuple[str, ...]:
        """The mods around the hospitals' ClientApp, the outermost first."""
        return tuple(name for _, name in self._mods())

    def mods_around(self, kind: str) -> tuple[str, ...]:
        """Those of the mods that are around answers of a kind, as ``"train"``."""
        return tuple(name for asked, name in self._mods() if asked in ("", kind))

    def _mods(self) -> list[tuple[str, str]]:
        """The kind of answers, empty for all, and the name of each mod."""
        pieces = [part.strip().rpartition("=") for part in self.mods.split(",") if part.strip()]
        return [(kind.strip(), name.strip()) for kind, _, name in pieces]

    @property
    def options(self) -> dict[str, Any]:
        """The strategy's keyword arguments. Raises ConfigError when the text is not ``key=value`` pairs."""
        return keyword_arguments(self.strategy_options)

    @property
    def program_options(self) -> dict[str, Any]:
        """The keyword arguments of another package's program. Raises ConfigError as ``options`` does."""
        return keyword_arguments(self.task_options)

    @property
    def objective_arguments(self) -> dict[str, Any]:
        """The options of the objective. Raises ConfigError as ``options`` does."""
        return keyword_arguments(self.objective_options)

    @property
    def builder_options(self) -> dict[str, Any]:
        """The options of the model's builder. Raises ConfigError as ``options`` does."""
        return keyword_arguments(self.model_options)

    @property
    def kind(self) -> Kind:
        """What the kind of the run is to its configuration."""
        keys = ("task", "model", "synthesis.kind", "posterior.options", _OPTIMIZER, *newton.READS)
        return _kind({key: self.value(key) for key in keys})

    @property
    def keeps_state(self) -> bool:
        """Whether steps and uploads have a hospital keep something of a round for its next one: moments, momentum, what was
        not sent."""
        steps = self.training
        stepwise = (
            steps.optimizer != "sgd" or steps.momentum != 0 or steps.batching == "cyclic" or steps.denoise != "none"
        )
        return self.upload.share < 1 or (stepwise and self.kind.steps)

    @property
    def asks_statistics(self) -> bool:
        """Whether hospitals are asked for sums over their patients before training; under privacy they are paid for.

        Without privacy a plain update tells its weight, but under masks only what the server knows can weigh.
        """
        weighed = self.secure.aggregation and not self.secure.noise
        wanted = self.privacy.dp or weighed or self.kind.counts_patients
        # A posterior's information is of so many patients; the public number is of noise alone.
        counted = self.kind.counts_exactly and not self.privacy.dp
        unknown = self.privacy.patients_per_site == 0
        return self.data.standardise == "measured" or counted or (unknown and wanted)

    def flat(self) -> dict[str, Value]:
        """Every key's value by its name (``rounds``, ``privacy.epsilon``), as Flower's run-config carries them."""
        return flat_keys(self.model_dump(by_alias=True), SECTIONS)

    def toml(self) -> str:
        """The configuration as a file, a table for each section."""
        return tomli_w.dumps(nested_keys(self.flat()))

    def value(self, key: str) -> Any:
        """The value of a key by its name, as ``"privacy.epsilon"``."""
        return getattr(*self._place(key))

    def _place(self, key: str) -> tuple[Keys, str]:
        """The model that holds a key, and the name of its field there."""
        section, dot, inner = key.rpartition(".")
        return getattr(self, section) if dot else self, inner.replace("-", "_")

    def with_values(self, values: Mapping[str, Any]) -> RunConfig:
        """The same with other values of keys, of which nothing is checked and from which nothing else follows."""
        top: dict[str, Any] = {}
        for key, value in flat_keys(values, SECTIONS).items():
            section, dot, inner = key.rpartition(".")
            name, own = inner.replace("-", "_"), section if dot else ""
            self.value(key)  # an unknown key
            top |= (
                {own: (top.get(own) or getattr(self, own)).model_copy(update={name: value})} if dot else {name: value}
            )
        return self.model_copy(update=top)

    @staticmethod
    def holds_commas(key: str) -> bool:
        """Whether commas may be part of the value of a key, which a list writes: ``hidden``, ``mods``, ``strategy-options``."""
        section, dot, name = key.rpartition(".")
        field = SECTIONS.get(section, RunConfig).model_fields.get(name.replace("-", "_"))
        return field is not None and any(getattr(part, "func", None) is as_text for part in field.metadata)

    @classmethod
    def app_config(cls) -> dict[str, Value]:
        """What Flower's configuration of the app holds: ``flat``, with an empty text for some keys.

        They are those for which tasks, models and strategies have defaults of their own. The empty text says that nobody gave a
        value.
        """
        return {key: "" if key in _VARYING else value for key, value in cls().flat().items()}

    def for_flower(self, app: Mapping[str, Value] | None = None) -> dict[str, Value]:
        """What `--run-config` must say over an app's configuration, for ``from_flower`` to read this one.

        app: every key of the app; None is ``app_config``.
        """
        wanted = self.app_config() | self.minimal()
        return {key: value for key, value in wanted.items() if value != (app or self.app_config())[key]}

    @classmethod
    def from_flower(cls, values: Mapping[str, Any]) -> RunConfig:
        """The configuration from Flower's run-config, of which an empty text is a key that was not given.

        Raises ConfigError as ``build`` does.
        """
        return cls.build(values)

    def minimal(self) -> dict[str, Value]:
        """``flat`` with only what is not usual for what else is given: others then take their own defaults for the rest."""
        # Where the optimizer is open, other defaults may come to hold.
        values = self._given_values() if self.optimizer_is_open else self.flat()
        stays = newton.DEFAULTS.keys() if self.optimizer_is_open else ("task", "strategy")
        if self.task == "synthesis" and not self.method_is_open:
            stays = (*stays, "model")  # left out, it would be open
        usual = type(self)().flat() | _defaults(values)
        given = {key: value for key, value in values.items() if key in stays or value != usual[key]}
        chosen = self.training.optimizer
        return given if _defaults(given)[_OPTIMIZER] == chosen else given | {_OPTIMIZER: chosen}

    def for_schema(self, schema: Schema) -> RunConfig:
        """The same, with everything that is left open chosen for records of a schema.

        This is the optimizer of ``training.optimizer`` auto, the objective by name where it has defaults of its own, and the
        method of task synthesis. The coordinator and each hospital choose by this one rule.
        """
        if self.method_is_open:
            return self.using(synthesis.usual_method(schema))
        objective = objective_of_label(schema)
        by_label = {"objective": objective} if objective and not self.objective else {}
        return self.taking("newton" if self.optimizer_is_open and newton.suits(schema) else "sgd", **by_label)

    def taking(self, optimizer: str, **by_label: str) -> RunConfig:
        """The same where ``training.optimizer`` auto stands for ``optimizer``, with its defaults for what was not given."""
        if not self.optimizer_is_open:
            return self
        stays = {key: value for key, value in self._given_values().items() if key not in newton.STEPS}
        return self.build(stays, {_OPTIMIZER: optimizer}, by_label)

    def using(self, method: str) -> RunConfig:
        """The same with ``method`` as the model of task synthesis and its defaults, if no model was given.

        It stays as it is for a method that no schema chooses, since no hospital would choose that.
        """
        open_to_it = self.method_is_open and method in synthesis.USUAL
        return self.build(self._given_values(), {"model": method}) if open_to_it else self

    @property
    def is_open(self) -> bool:
        """Whether the records' schema still has to choose: the optimizer, or the method of task synthesis."""
        return self.optimizer_is_open or self.method_is_open

    @property
    def optimizer_is_open(self) -> bool:
        """Whether the records' schema still has to choose the optimizer."""
        return self.training.optimizer == "auto"

    @property
    def method_is_open(self) -> bool:
        """Whether the records' schema still has to choose the method of task synthesis: nothing given is of one method."""
        of_one = {"model", "rounds"} & self.model_fields_set or self.synthesis.options or self.synthesis.kind != "auto"
        return self.task == "synthesis" and not of_one

    def _given_values(self) -> dict[str, Value]:
        """``flat`` with only what was given."""
        places = {key: self._place(key) for key in _KEYS}
        return {key: getattr(model, name) for key, (model, name) in places.items() if name in model.model_fields_set}

    def decisive(self) -> dict[str, Value]:
        """``flat`` with only the keys that decide what comes out."""
        return {
            key: value for key, value in self.flat().items()
            if key not in _INDECISIVE and key.split(".")[0] not in _INDECISIVE_SECTIONS
        }  # fmt: skip

    @classmethod
    def build(cls, *layers: Mapping[str, Any]) -> RunConfig:
        """The configuration from layers of keys, as in a file, by their full names or as keyword arguments; later layers rank
        first.

        Raises ConfigError with the key, its value, what is allowed and the nearest known name.
        """
        merged: dict[str, Any] = {}
        for layer in layers:
            for key, value in flat_keys(layer, SECTIONS).items():
                if key in SECTIONS:
                    raise ConfigError(
                        f"{key!r} is a section of the configuration and no key; give its keys, as in {_first(key)}."
                    )
                if key not in _KEYS:
                    raise ConfigError(f"Unknown configuration key {key!r}.{_meant(key)}")
                merged[key] = value
        return cls(**merged)


#: The sections by name.
SECTIONS: dict[str, type[Keys]] = {
    name: field.annotation for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Keys)
}  # fmt: skip
_KEYS = tuple(RunConfig().flat())


# Keys that tasks, models, optimizers, shared noise or strategies have defaults of their own for.
_VARYING = frozenset().union(
    *convex.DEFAULTS.values(), (_OPTIMIZER, *newton.DEFAULTS, *newton.STEPS), boosting.DEFAULTS, *synthesis.DEFAULTS,
    posterior.DEFAULTS, analyses.DEFAULTS,
    *_OPTIMIZER_DEFAULTS.values(), *_MODEL_DEFAULTS.values(), _SHARED_DEFAULTS, _SHARED_OPTIONS,
    *(program.usual for program in BUILT_IN.values()),
)  # fmt: skip


def objective_of_label(schema: Schema) -> str:
    """The objective that a run takes by name where it names none; empty for one that has no defaults of its own."""
    of_time = len(schema.labels) > 1 and any(column.kind != "binary" for column in schema.labels)
    return "hazards" if of_time else ""


def _first(section: str) -> str:
    return next(key for key in _KEYS if key.startswith(f"{section}."))


# What the same thing is called elsewhere.
_ELSEWHERE = {
    "batch-size": "training.sample-rate", "clip": "privacy.max-grad-norm", "clipping-norm": "privacy.max-grad-norm",
    "epochs": "training.local-steps", "local-epochs": "training.local-steps", "lr": "training.learning-rate",
    "noise-multiplier": "privacy.epsilon", "num-rounds": "rounds", "num-server-rounds": "rounds", "num-supernodes": "sites",
    "l2-norm-clip": "privacy.max-grad-norm", "target-delta": "privacy.delta", "target-epsilon": "privacy.epsilon",
}  # fmt: skip


def _meant(key: str) -> str:
    """The sentence of the key that was probably meant: of the same name in a section, or elsewhere, or the nearest."""
    name = key.rpartition(".")[2]
    same = [repr(candidate) for candidate in _KEYS if candidate.rpartition(".")[2] == name]
    if not same and name in _ELSEWHERE:
        same = [repr(_ELSEWHERE[name])]
    return f" Did you mean {' or '.join(same)}?" if same else nearest(key, (*_KEYS, *SECTIONS))
