"""Whether a run, its strategy and its hospitals' schema go together, and how the hospitals of a simulation will train."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from flwr.app import ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.arrays import to_record
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.evaluation.groups import group_names
from polyclinic.messages import QUESTION, EnrolRequest, is_model
from polyclinic.programs import Program
from polyclinic.server.sites import Site, SiteGrid
from polyclinic.training.local import BESIDE
from polyclinic.training.modules import load
from polyclinic.training.preparation import check_imputation
from polyclinic.training.stacked.engines import Engine, choose


def check_model(program: Program, schema: Schema) -> None:
    """Raises ConfigError for a model or imputation that hospitals would refuse; touches no record and costs no privacy."""
    config = program.config
    check_imputation(
        config.data.imputation, schema, Imputer.read(config.data.imputer_file) if config.data.imputer_file else None
    )
    if config.evaluation.groups:
        group_names(schema, config.evaluation.groups)
    program.check(schema)


#: What hospitals follow of the configuration that a strategy gives them, beside what its half takes.
FOLLOWED = ("server-round", "lr", "proximal-mu")


def check_messages(strategy: Strategy, program: Program, grid: Grid, sites: Sequence[Site]) -> None:
    """Raises ConfigError for a strategy whose messages hospitals would not understand, or follow in part only.

    It has a copy of the strategy configure a first round, and sends nothing. A strategy that cannot be copied is seen in round 1.
    """
    try:
        copied = deepcopy(strategy)
    except Exception:  # whatever an attribute of a stranger's raises
        return
    local = set(program.local(sites[0].schema))
    first = {name: value for name, value in program.first(sites[0].schema).items() if name not in local}
    config = ConfigRecord({"lr": program.config.training.learning_rate or 0.1})
    view = SiteGrid(grid, sites, lambda site: EnrolRequest(run="", site=0), {})
    check_understood(list(copied.configure_train(1, to_record(first), config, view)), program, type(strategy).__name__)


def check_understood(messages: Sequence[Message], program: Program, name: str) -> None:
    """Raises ConfigError for messages to hospitals with more than they understand. name: the strategy's."""
    half = program.local_half
    for message in messages:
        kind, content = message.metadata.message_type, message.content
        if kind != MessageType.TRAIN:
            raise ConfigError(
                f"The strategy {name} sends messages of the type {kind!r}, which hospitals do not answer in a round; they answer "
                "'train'."
            )
        beside = {BESIDE + received for received in half.receives}
        models = [key for key in content.array_records if is_model(key)]
        records = [key for key in content if key not in {*models[:1], *beside, QUESTION, "config"}]
        if records:
            raise ConfigError(
                f"The strategy {name} sends hospitals the record {records[0]!r}, which they would not look at; a half of the "
                f"strategy's gets arrays by the name {BESIDE + records[0]!r} (receives), and numbers of 'config' (takes)."
            )
        told = content.config_records.get("config")
        if unheard := [key for key in told or () if key not in (*FOLLOWED, *half.takes)]:
            raise ConfigError(
                f"The strategy {name} tells hospitals {unheard[0]!r}, which they would not follow; they follow "
                f"{', '.join((*FOLLOWED, *half.takes))}. A half of the strategy's takes more numbers (takes)."
            )


def engine_of(program: Program, sites: Sequence[Site]) -> Engine | None:
    """How the hospitals train; None where they are real and choose for themselves, and without steps."""
    if not program.stepwise or not all(site.simulated for site in sites):
        return None
    schema = sites[0].schema
    module = load(program.builder(schema), program.first(schema))
    return choose(module, program.width(schema), program.config.training.engine, program.local_half.penalises)
