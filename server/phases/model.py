"""Whether a run, its strategy and its hospitals' schema go together, and how the hospitals of a simulation will train."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.evaluation.groups import group_names
from polyclinic.programs import Program
from polyclinic.server.exchange.sites import Site, SiteGrid
from polyclinic.strategies.base.wrapping import messages_of
from polyclinic.training.local import BESIDE
from polyclinic.training.modules import load
from polyclinic.training.preparation import check_imputation
from polyclinic.training.stacked.engines import Engine, choose
from polyclinic.wire.arrays import contents_of, to_record
from polyclinic.wire.messages import QUESTION, EnrolRequest, is_model


def check_model(program: Program, schema: Schema) -> None:
    """Raises ConfigError for a model or imputation that hospitals would refuse; touches no record and costs no privacy."""
    config = program.config
    check_imputation(
        config.data.imputation, schema, Imputer.read(config.data.imputer_file) if config.data.imputer_file else None
    )
    if config.evaluation.groups:
        group_names(schema, config.evaluation.groups)
    program.check(schema)


#: What no hospital sends with its update in a private run, and what it sends.
WITHHELD, TOLD_IN_PRIVATE = "train_loss", ("num-examples", "steps")
#: What hospitals follow of the configuration that a strategy gives them, beside what its half takes.
FOLLOWED = ("server-round", "lr", "proximal-mu")


def check_messages(strategy: Strategy, program: Program, grid: Grid, sites: Sequence[Site]) -> None:
    """Checks that hospitals would understand a strategy's messages and send what it needs.

    A copy of the strategy configures a first round, of which nothing is sent. Where the strategy's code names the
    training loss, the copy also aggregates one made-up reply of a private run. A strategy that cannot be copied is not
    tried.

    Args:
        strategy: The run's strategy, which stays as it is.
        program: The run's program.
        grid: Flower's grid; nothing is sent.
        sites: The hospitals of a made-up round.

    Raises:
        ConfigError: Hospitals would not understand the messages or follow them in part only, or the strategy needs the
            training loss, which hospitals withhold in a private run.
    """
    try:
        copied = deepcopy(strategy)
    except Exception:  # whatever an attribute of a stranger's raises
        return
    local = set(program.local(sites[0].schema))
    first = {name: value for name, value in program.first(sites[0].schema).items() if name not in local}
    config = ConfigRecord({"lr": program.config.training.learning_rate or 0.1})
    view = SiteGrid(grid, sites, lambda site: EnrolRequest(run="", site=0), {})
    messages, name = messages_of(copied, 1, to_record(first), config, view), type(strategy).__name__
    check_understood(messages, program, name)
    if program.config.privacy.dp and messages and names_text(strategy, WITHHELD):
        metrics = MetricRecord(dict.fromkeys(TOLD_IN_PRIVATE, 1.0))
        try:
            copied.aggregate_train(
                1, [Message(RecordDict({"arrays": to_record(first), "metrics": metrics}), reply_to=messages[0])]
            )
        except KeyError as missing:
            if missing.args == (WITHHELD,):
                raise ConfigError(
                    f"The strategy {name} reads {WITHHELD!r} of hospitals' replies, which hospitals withhold in a private "
                    f"run; they send {' and '.join(TOLD_IN_PRIVATE)}. Set privacy.dp to false, or let the strategy do without it."
                ) from None
        except Exception:  # a stranger's code may need more replies than one, or real ones
            return


def names_text(strategy: Strategy, text: str) -> bool:
    """Whether the code of a strategy that is neither Flower's nor ours holds ``text`` as a constant, itself or through the
    functions of its modules. It reads compiled code and calls nothing."""
    seen: set[int] = set()

    def holds(value: Any, module: dict[str, Any]) -> bool:
        if isinstance(value, FunctionType):
            foreign = not value.__module__.startswith(("flwr.", "polyclinic."))
            return foreign and holds(value.__code__, value.__globals__)
        if not isinstance(value, CodeType):
            return bool(isinstance(value, str) and value == text)
        if id(value) in seen:
            return False
        seen.add(id(value))
        globals_read = (module.get(name) for name in value.co_names)
        return any(holds(part, module) for part in (*value.co_consts, *globals_read))

    methods = [part for kind in type(strategy).__mro__ for part in vars(kind).values()]
    return any(holds(part, {}) for part in (*methods, *vars(strategy).values()) if isinstance(part, FunctionType))


def check_understood(messages: Sequence[Message], program: Program, name: str) -> None:
    """Checks that messages to hospitals hold no more than they understand.

    Args:
        messages: The messages of a round.
        program: The run's program, with the strategy's half at hospitals.
        name: The strategy's name, for the message.

    Raises:
        ConfigError: A message is of another type, or holds records or numbers that hospitals would not look at.
    """
    half = program.local_half
    if others := {message.metadata.message_type for message in messages} - {MessageType.TRAIN}:
        raise ConfigError(
            f"The strategy {name} sends messages of the type {min(others)!r}, which hospitals do not answer in a round; they "
            "answer 'train'."
        )
    for content in contents_of(messages):
        beside = {BESIDE + received for received in half.receives}
        models = [key for key in content.array_records if is_model(key)]
        records = [key for key in content if key not in {*models[:1], *beside, QUESTION, "config"}]
        if records:
            raise ConfigError(
                f"The strategy {name} sends hospitals the record {records[0]!r}, which they would not look at; a half of the "
                f"strategy's gets arrays by the name {BESIDE + records[0]!r} (receives), and numbers of 'config' (takes)."
            )
        config_record = content.config_records.get("config")
        if unheard := [key for key in config_record or () if key not in (*FOLLOWED, *half.takes)]:
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
