"""The model that a run begins with, which of its arrays stay at hospitals, and the digest that identifies a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.evaluation.groups import group_names
from polyclinic.models.tabular import initialise
from polyclinic.plugins import build_model, layout_of, task_of
from polyclinic.privacy.streams import torch_seed
from polyclinic.server.sites import Site
from polyclinic.server.synthesis import check_synthesis, first_arrays_of
from polyclinic.training.modules import load, normalisation_arrays
from polyclinic.training.preparation import check_imputation
from polyclinic.training.stacked.engines import Engine, choose
from polyclinic.types import Arrays


def check_model(config: RunConfig, schema: Schema) -> None:
    """Raises ConfigError for a model or imputation that hospitals would refuse; touches no record and costs no privacy."""
    check_imputation(config.imputation, schema, Imputer.read(config.imputer_file) if config.imputer_file else None)
    if config.synthesis or config.posterior:
        check_synthesis(config, schema)
    if config.groups:
        group_names(schema, config.groups)
    arrays = first_arrays(config, schema)
    features = len(feature_names(schema))
    task_of(config, schema).check(build_model(config, schema), arrays, features, config.engine)
    local_arrays(config, schema)


def first_arrays(config: RunConfig, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
    """What hospitals are sent first; ``classes``: counts of the label, which task synthesis may begin with."""
    if config.sums:
        return first_arrays_of(config, schema, classes)
    build = build_model(config, schema)
    return {name: value.numpy() for name, value in initialise(build, torch_seed(config.seed, "model")).items()}


def local_arrays(config: RunConfig, schema: Schema) -> list[str]:
    """The model's arrays that stay at hospitals. Raises ConfigError where there are none to stay, or none to share."""
    if config.synthesis or config.posterior:
        return []
    module = load(build_model(config, schema), first_arrays(config, schema))
    names = list(module.state_dict())
    local = set(normalisation_arrays(module)) if config.strategy == "fedbn" else set()
    if config.strategy == "fedbn" and not local:
        raise ConfigError(
            f"Configuration key 'strategy' has the value 'fedbn', but the model {config.model!r} has no normalisation layers "
            "to keep at hospitals; take strategy 'fedavg', with local-layers if you like."
        )
    for pattern in config.local_patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise ConfigError(
                f"Configuration key 'local-layers' names {pattern!r}, which no array of the model matches; they are "
                f"{', '.join(names)}."
            )
        local.update(found)
    if local >= set(names):
        raise ConfigError("Configuration key 'local-layers' leaves no array of the model to share.")
    return [name for name in names if name in local]


def engine_of(config: RunConfig, sites: Sequence[Site]) -> Engine | None:
    if config.one_release or not all(site.simulated for site in sites):
        return None
    schema = sites[0].schema
    module = load(build_model(config, schema), first_arrays(config, schema))
    width = layout_of(config, schema).width if config.game or config.density else len(feature_names(schema))
    return choose(module, width, config.engine)
