"""Whether a run and its hospitals' schema go together, and how the hospitals of a simulation will train."""

from __future__ import annotations

from collections.abc import Sequence

from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.evaluation.groups import group_names
from polyclinic.programs import Program
from polyclinic.server.sites import Site
from polyclinic.training.modules import load
from polyclinic.training.preparation import check_imputation
from polyclinic.training.stacked.engines import Engine, choose


def check_model(program: Program, schema: Schema) -> None:
    """Raises ConfigError for a model or imputation that hospitals would refuse; touches no record and costs no privacy."""
    config = program.config
    check_imputation(config.imputation, schema, Imputer.read(config.imputer_file) if config.imputer_file else None)
    if config.groups:
        group_names(schema, config.groups)
    program.check(schema)


def engine_of(program: Program, sites: Sequence[Site]) -> Engine | None:
    """How the hospitals train; None where they are real and choose for themselves, and without steps."""
    if not program.stepwise or not all(site.simulated for site in sites):
        return None
    schema = sites[0].schema
    module = load(program.builder(schema), program.first(schema))
    return choose(module, program.width(schema), program.config.engine)
