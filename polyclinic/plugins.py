"""The registry: what a name in the configuration stands for.

Built-in names resolve without installed metadata, since a Flower bundle has none. Other packages add names by Python
entry points (``installed``); any object can be named as ``package.module:Name``. Nothing is imported before it is asked for
by its name, and at a hospital the policy is asked before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.config.programs.analyses import ROUNDS as ANALYSES
from polyclinic.config.programs.synthesis import FLOWS, GAMES
from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr import datasets, sources
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.imputation import with_indicators
from polyclinic.ehr.partition import OURS, Dealer, check_partitioner
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.sources import Chunk, Place, named_place
from polyclinic.errors import ConfigError, DataError, PolyclinicError, failing, nearest, why
from polyclinic.installed import Plugin, claim_of, claims, strays
from polyclinic.strategies import BUILT_IN as STRATEGIES

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy
    from torch import nn

    from polyclinic.objectives.objective import Objective

#: Each group of names, and where one of it stands.
GROUPS = {
    "datasets": "Configuration key 'dataset'", "partitioners": "Configuration key 'partitioner'",
    "models": "Configuration key 'model'", "methods": "Configuration key 'model'",
    "games": "Configuration key 'model'", "densities": "Configuration key 'model'",
    "likelihoods": "Configuration key 'model'", "strategies": "Configuration key 'strategy'",
    "mods": "Configuration key 'mods'", "evaluators": "Configuration key 'evaluation.function'",
    "objectives": "Configuration key 'objective'", "tasks": "Configuration key 'task'", "programs": "Configuration key 'task'",
    "sources": "hospital.toml's key 'data'", "accountants": "--accountant",
    "experiments": "The experiment",
}  # fmt: skip
#: Mods that come with Polyclinic, by name.
MODS = {"logging": "polyclinic.wire.mods:log_messages", "size": "polyclinic.wire.mods:log_sizes"}
#: The dataset that is made of files, by its options.
TABLES = "tables"
#: Of each group what comes with Polyclinic, by name: the module and the object in it; without an object, the module itself.
BUILT_IN: dict[str, Mapping[str, str]] = {
    "datasets": {**datasets.BUILT_IN, TABLES: "polyclinic.ehr.datasets.tables:tables"},
    "partitioners": dict.fromkeys(OURS, "polyclinic.ehr.partition:partition_rows"),
    "models": {
        "logistic": "polyclinic.models.tabular:logistic",
        "mlp": "polyclinic.models.tabular:mlp",
        "tabular-resnet": "polyclinic.models.resnet:tabular_resnet",
        "ebm": "polyclinic.models.additive:additive",
        "trees": "polyclinic.models.forest:forest",
        "gru": "polyclinic.models.sequences:gru",
        "transformer": "polyclinic.models.sequences:transformer",
    },
    "methods": {
        "moments": "polyclinic.synthesis.methods.moments:Moments",
        "visits": "polyclinic.synthesis.visits.method:VisitByVisit",
        "independent": "polyclinic.synthesis.methods.independent:Independent",
        "latent": "polyclinic.synthesis.methods.latent:Latent",
        "mixture": "polyclinic.synthesis.methods.mixture:HospitalMoments",
        "marginals": "polyclinic.synthesis.marginals:make",
    },
    "games": dict.fromkeys(GAMES, "polyclinic.synthesis.games.builders:make"),
    "densities": dict.fromkeys(FLOWS, "polyclinic.synthesis.flows.recipe:make"),
    "likelihoods": {
        "linear": "polyclinic.inference.likelihood:Linear",
        "logistic": "polyclinic.inference.likelihood:Logistic",
    },
    "strategies": {name: strategy.place for name, strategy in STRATEGIES.items()},
    "mods": MODS,
    "evaluators": {},
    "sources": sources.BUILT_IN,
    "accountants": dict.fromkeys(
        ("basic", "advanced", "rdp", "zcdp", "gdp", "pld", "prv"),
        "polyclinic.privacy.accounting.comparison:shown_epsilon",
    ),
    "experiments": {},
    "programs": {},
    "objectives": {
        "classification": "polyclinic.objectives.classes:Classification",
        "binary": "polyclinic.objectives.classes:Binary",
        "ordinal": "polyclinic.objectives.classes:Ordinal",
        "multi-label": "polyclinic.objectives.sets:MultiLabel",
        "squared": "polyclinic.objectives.numbers:Squared",
        "huber": "polyclinic.objectives.numbers:Huber",
        "quantile": "polyclinic.objectives.numbers:Quantile",
        "poisson": "polyclinic.objectives.counts:Poisson",
        "negative-binomial": "polyclinic.objectives.counts:NegativeBinomial",
        "hazards": "polyclinic.objectives.survival:Hazards",
        "piecewise-exponential": "polyclinic.objectives.survival:PiecewiseExponential",
    },
    "tasks": {
        "classification": "polyclinic.training.classification:",
        "output-perturbation": "polyclinic.training.logistic.convex:OUTPUT",
        "objective-perturbation": "polyclinic.training.logistic.convex:OBJECTIVE",
        "exponential-mechanism": "polyclinic.training.logistic.convex:EXPONENTIAL",
        "synthesis": "polyclinic.training.synthesis:SumsTask",
        "posterior": "polyclinic.training.synthesis:SumsTask",
        **dict.fromkeys(ANALYSES, "polyclinic.training.synthesis:ExactSumsTask"),
    },
}
# Groups whose names stand under one key.
_ONE_KEY = (("methods", "games"), ("tasks", "programs"))
# One function makes all of these; it is told which.
_MADE_BY_NAME = ("games", "densities")


def _built_in(group: str, name: str) -> Any:
    module, _, attribute = BUILT_IN[group][name].partition(":")
    built_in: Any = import_module(module)
    if attribute:
        built_in = getattr(built_in, attribute)
    return partial(built_in, name=name) if group in _MADE_BY_NAME else built_in


def plugins() -> list[Plugin]:
    """Every name that may be used or that a package claims, ours first; loads nothing."""
    listed = [Plugin(group, name, "polyclinic", polyclinic.__version__) for group in GROUPS for name in BUILT_IN[group]]
    for group in GROUPS:
        listed += claims(group, _ours(group))
    return listed + strays(GROUPS)


def with_problem(plugin: Plugin) -> Plugin:
    """The same with why it cannot be used, if so; loads what another package brings, which runs that package's code."""
    if plugin.problem or not plugin.object:
        return plugin
    checks: dict[str, Callable[[str], object]] = {
        "datasets": lambda name: name == TABLES or dataset_named(name), "strategies": strategy_named, "tasks": task_named,
    }  # fmt: skip
    try:
        loaded = checks[plugin.group](plugin.name) if plugin.group in checks else resolve(plugin.group, plugin.name)
    except PolyclinicError as error:
        return replace(plugin, problem=str(error).rstrip("."))
    if plugin.group not in checks and not callable(loaded):
        return replace(plugin, problem=f"it is not callable, but a {type(loaded).__name__}")
    return plugin


def resolve(group: str, name: str) -> Any:
    """The object that ``name`` stands for in ``group``.

    Raises ConfigError for a name that nobody or several bring, with the nearest known, and for one that does not load.
    """
    if name in BUILT_IN[group]:
        return _built_in(group, name)
    where = f"{GROUPS[group]} has the value {name!r}"
    if ":" not in name and (point := claim_of(group, name, _ours(group))):
        return _try_load(point.load, where)
    if _place(name):
        return _load_object(name, where)
    if group == "datasets" and name in _OF_STUDIES:
        raise ConfigError(
            f"{where}, a dataset of the package polyclinic-studies, which is not installed; in Polyclinic's repository, `python "
            "-m pip install ./experiments` adds it."
        )
    # by its name alone a method is no more likely than a game
    groups = next((several for several in _ONE_KEY if group in several), (group,))
    allowed = [entry for group in groups for entry in (*BUILT_IN[group], *_plugin_names(group))]
    names = (
        f"; known are {', '.join(allowed)}, or package.module:Name."
        if allowed
        else ", which must be package.module:Name."
    )
    raise ConfigError(f"{where}{names}{nearest(name, allowed)}")


def brought_by(group: str, name: str) -> str:
    """The module of another package that brings ``name`` in ``group``; empty for a name that is Polyclinic's own, or nobody's."""
    if name in BUILT_IN[group]:
        return ""
    point = claim_of(group, name, _ours(group)) if ":" not in name else None
    return (point.value if point else name if _place(name) else "").partition(":")[0]


def _place(name: str) -> bool:
    """Whether a name is of the form ``package.module:Name``."""
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _load_object(name: str, where: str) -> Any:
    """What ``package.module:Name`` is. Raises ConfigError, a sentence that begins with ``where``, for what does not load."""
    if not _place(name):
        raise ConfigError(f"{where}, which must be package.module:Name.")
    module, _, attribute = name.partition(":")
    return _try_load(lambda: getattr(import_module(module), attribute), where)


def _try_load(load: Callable[[], Any], where: str) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # an import runs a stranger's code, which may raise anything
        raise ConfigError(f"{where}, which does not load: {why(error)}.") from error


def _plugin_names(group: str) -> list[str]:
    """The names of ``group`` that are other packages' own."""
    return [plugin.name for plugin in claims(group, _ours(group)) if not plugin.problem]


def _ours(group: str) -> Collection[str]:
    """The names that no other package may claim in ``group``: a program is named where a task is."""
    return BUILT_IN["tasks" if group == "programs" else group]


def dataset_named(name: str, options: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset of this name; what makes one is called with the options. Raises ConfigError for options that are not taken."""
    if _is_table(name):
        raise ConfigError(
            f"Configuration key 'dataset' has the value {name!r}, which is a file or a folder; give it as `--data {name} --label "
            f"COLUMN`, or as dataset='tables' with dataset-options=\"files='{name}', label='COLUMN'\"."
        )
    dataset = resolve("datasets", name)
    if isinstance(dataset, Dataset) and options:
        raise ConfigError(
            f"Configuration key 'dataset-options' names {next(iter(options))!r}, but the dataset {name!r} takes no options."
        )
    if callable(dataset) and not isinstance(dataset, Dataset):
        with failing(f"Configuration key 'dataset' has the value {name!r}, which makes no polyclinic Dataset"):
            dataset = dataset(**(options or {}))
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"Configuration key 'dataset' has the value {name!r}, which is not a polyclinic Dataset.")
    return dataset


def _is_table(name: str) -> bool:
    tables = (".csv", ".csv.gz", ".tsv", ".parquet", ".xlsx", ".xls", ".toml")
    return name.lower().endswith(tables) or (
        (os.sep in name or name not in {*BUILT_IN["datasets"], *_plugin_names("datasets")}) and Path(name).exists()
    )


def open_source(data: str, folder: Path, options: Mapping[str, str], schema: Schema) -> Iterator[Chunk]:
    """The records of a hospital file in chunks, by the source that its ``data`` names.

    Args:
        data: As in the file: a source's name and a place, or a place alone.
        folder: What relative paths are relative to.
        options: The keys of the file's table ``[source]``.
        schema: The schema of the records.

    Raises:
        ConfigError: Options that the source does not know.
        DataError: Records that cannot be read. What a plug-in raises of its own is not repeated: it could quote a cell.
    """
    name, text = named_place(data, [plugin.name for plugin in plugins() if plugin.group == "sources"])
    try:
        for chunk in resolve("sources", name)(Place(text, folder, options), schema):
            if not isinstance(chunk, Chunk):
                raise DataError(f"The source {name!r} gives {type(chunk).__name__} where it must give chunks.")
            yield chunk
    except PolyclinicError:
        raise
    except Exception as error:
        raise DataError(f"The source {name!r} failed ({type(error).__name__}).") from None


#: By what an objective predicts, which label a draft of tables must make of the column's cells.
_LABEL_KINDS = {"ranks": "ordered", "numbers": "number", "quantiles": "number", "counts": "number"}
#: Datasets of the package polyclinic-studies, which few have.
_OF_STUDIES = ("sprint", "mimic-hf", "icd", "digits", "mnist")


def dataset_of(config: RunConfig) -> Dataset:
    """The run's dataset, under the schema of its ``data.schema-file`` where it names one, with the labels of its ``data.label``
    and the indicators of its ``imputation``. Raises DataError for a bad file, and ConfigError for a label that is not a column.
    """
    options = keyword_arguments(config.dataset_options)
    if config.dataset == TABLES and config.objective and not config.data.label:
        predicts = getattr(resolve("objectives", config.objective), "predicts", "")
        options["kind"] = _LABEL_KINDS.get(predicts, "")
    time, event = (str(config.program_options.get(name, "")) for name in ("time", "event"))
    if config.dataset == TABLES and time and time == options.get("label"):
        options["kind"] = "time"
    data = dataset_named(config.dataset, options)
    schema = Schema.from_toml(config.data.schema_file) if config.data.schema_file else data.schema
    data = replace(data, schema=schema)
    if names := [name.strip() for name in config.data.label.split(",") if name.strip()]:
        if names == [time, event]:
            from polyclinic.training.survival.counts import check_outcome  # torch takes a second to load

            check_outcome(data.schema, time, event)
        data = data.with_labels(names)
    return replace(data, schema=with_indicators(data.schema)) if config.data.imputation == "indicator" else data


def dealer_named(name: str, options: Mapping[str, Any]) -> Dealer | None:
    """What the partitioner ``name`` deals records by, with its options; None where it is ours.

    Raises ConfigError for an unknown name and for options that it does not take.
    """
    others = check_partitioner(name).others
    if not others:
        return None
    from polyclinic.ehr.partition.flower import deal_by, is_flowers  # a hospital deals nothing

    partitioner = resolve("partitioners", others)
    if is_flowers(partitioner):
        return partial(deal_by, partitioner, options)
    if not callable(partitioner):
        raise ConfigError(f"Configuration key 'partitioner' has the value {name!r}, which is not callable.")
    return partial(partitioner, **options)


def model_named(name: str) -> Callable[..., nn.Module] | nn.Module:
    """A function or a class that makes a module, or a module."""
    model: Callable[..., nn.Module] | nn.Module = resolve("models", name)
    return model


def objective_of(config: RunConfig, labels: tuple[Column, ...]) -> Objective:
    """What the run's model is trained towards, for these label columns.

    Raises ConfigError for a name that stands for no objective, for options that it does not take, and for labels that it does not
    take.
    """
    from polyclinic.objectives.objective import Objective, usual_objective  # torch takes a second to load

    name = config.objective or usual_objective(labels)
    made = resolve("objectives", name)
    if not (isinstance(made, type) and issubclass(made, Objective)):
        raise ConfigError(
            f"Configuration key 'objective' has the value {name!r}, which must stand for a subclass of "
            "polyclinic.objectives.objective.Objective."
        )
    try:
        return made(labels, **config.objective_arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective-options do not make an objective {name!r}: {why(error)}.") from error


def strategy_named(name: str) -> type[Strategy]:
    from flwr.serverapp.strategy import Strategy

    strategy = resolve("strategies", name)
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        older = (
            getattr(strategy, "configure_fit", None)
            and "; it is one of Flower's older API, which `polyclinic simulate` runs"
        )
        raise ConfigError(
            f"Configuration key 'strategy' has the value {name!r}, which is not a Flower Strategy class{older or ''}."
        )
    return strategy


def strategy_options(config: RunConfig) -> dict[str, Any]:
    """The strategy's keyword arguments, with the functions that those ending in ``_fn`` name.

    Raises ConfigError for one that does not load.
    """
    return {
        name: _load_object(value, f"Configuration key 'strategy-options' gives {name.replace('_', '-')!r} the value {value!r}")
        if name.endswith("_fn") and isinstance(value, str) else value
        for name, value in config.options.items()
    }  # fmt: skip


def mod_named(name: str) -> Callable[..., Any]:
    """A mod of Flower's: a function of (message, context, what comes next) to a message."""
    return _function("mods", name)


def evaluator_named(name: str) -> Callable[..., Any]:
    """A function of (round, arrays) to metrics."""
    return _function("evaluators", name)


def _function(group: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = resolve(group, name)
    if not callable(function):
        raise ConfigError(f"{GROUPS[group]} has the value {name!r}, which is not callable.")
    return function


def accountant_named(name: str) -> Callable[[float, float, int, float, str], float]:
    """A function of (sample rate, noise multiplier, steps, delta, relation) that gives epsilon, to be shown.

    Only ``privacy.accounting``'s two enforce: no other package's word decides what a ledger allows. Raises ConfigError for
    an unknown name; the function does where what it gives is not an epsilon.
    """
    from polyclinic.privacy.accounting import check_terms, dpsgd_event

    epsilon_of = resolve("accountants", name)
    if name in BUILT_IN["accountants"]:
        return partial(epsilon_of, name)

    def compute_epsilon(*asked: Any) -> float:
        dpsgd_event(*asked[:3])
        check_terms(asked[3], "pld", asked[4])
        try:
            epsilon = float(epsilon_of(*asked))
        except Exception as error:
            raise ConfigError(f"The accountant {name!r} failed: {why(error)}.") from error
        if not epsilon >= 0:
            raise ConfigError(f"The accountant {name!r} gives {epsilon}, which is not an epsilon.")
        return epsilon

    return compute_epsilon


def is_program(name: str) -> bool:
    """Whether a task of this name is a program that another package brings; loads nothing."""
    return (
        name not in BUILT_IN["tasks"] and ":" not in name and claim_of("programs", name, _ours("programs")) is not None
    )


def task_named(name: str) -> Any:
    task = resolve("tasks", name)
    missing = [part for part in ("event", "check", "train", "evaluate") if not hasattr(task, part)]
    if missing:
        raise ConfigError(f"Configuration key 'task' has the value {name!r}, which lacks {', '.join(missing)}.")
    return task
