"""Ask hospitals a question from Python: a dataset's simulated ones, one real hospital in this process, or a federation.

A schema is prepared by such a question too: by a survey, and an imputer by how the features go together.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from flwr.app import Message
from flwr.serverapp import Grid

from polyclinic.client.home.hospital import typed_here
from polyclinic.client.home.own_files import LEDGER
from polyclinic.client.home.policy import HospitalFile, Policy
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.files import Content, NewFile, reason, write_files
from polyclinic.naming import name_objects
from polyclinic.plugins import dataset_of
from polyclinic.privacy.accounting import Relation, check_terms
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.kinds import write_question
from polyclinic.releases.question import Pricing, Question
from polyclinic.releases.relations import Relations
from polyclinic.releases.survey import Survey
from polyclinic.runs.simulation import check_simulation, settle, simulated_sites
from polyclinic.server import questions
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.messages import AskRequest

_CLIENT = AppReference("polyclinic.client_app")


def new_ledger(out: Path) -> Path:
    """Where the ledger of a query begins that names none: in a new folder under ``out``, made when it is charged."""
    return out / _fresh_run("query") / "ledger.sqlite"


@dataclass(frozen=True)
class Target:
    """The hospitals that are asked, their ledger and its terms: a dataset's simulated ones, or a real one.

    ``config``: of a simulation.  ``path``: the ``hospital.toml`` of a real hospital.
    """

    schema: Schema
    ledger: Path
    pricing: Pricing
    budget: float | None
    config: RunConfig
    path: Path | None = None

    def request(self, question: Question) -> AskRequest:
        """What hospitals are sent; a simulation's noise follows the number of such questions before."""
        name, text = question.purpose.partition("-")[0], write_question(question)
        if self.path:
            return AskRequest(run=_fresh_run(name), site=0, question=text)
        return AskRequest(
            run=f"{name}-{_asked_before(self.ledger, name) + 1}", site=0, home=str(self.ledger.parent), question=text,
            ledger=str(self.ledger), budget=self.budget, relation=self.pricing.relation,
        )  # fmt: skip

    def grid(self) -> LocalGrid:
        if self.path:
            return real_grid(self.path)
        return LocalGrid(_CLIENT, len(simulated_sites(self.config)), self.config.flat())

    def cost(self, epsilon: float | None = None, share: float | None = None, exact: bool = False) -> float | None:
        """As the function ``cost``, of the target's budget.

        Args:
            epsilon: What it may cost each hospital.
            share: In its place, the part of the budget, above 0 and at most 1.
            exact: In place of both, exact numbers, which are not private.

        Raises:
            ConfigError: Not exactly one of the three is given, or a share is impossible or of no budget.
        """
        return cost(epsilon, share, exact, self.budget)


def cost(epsilon: float | None, share: float | None, exact: bool, budget: float | None) -> float | None:
    """What a question may cost each hospital, in epsilon; None where its answer is exact.

    Args:
        epsilon: The cost itself.
        share: In its place, the part of ``budget``, above 0 and at most 1.
        exact: In place of both, an exact answer, which is not private.
        budget: The ledger's budget, in epsilon; None without.

    Raises:
        ConfigError: Not exactly one of the first three is given, or a share is impossible or of no budget.
    """
    if (epsilon is not None) + (share is not None) + exact != 1:
        raise ConfigError("Give exactly one of epsilon, share (of the budget) and exact (without privacy).")
    if share is not None:
        if not 0 < share <= 1:
            raise ConfigError(f"share must lie above 0 and at most at 1, got {share}.")
        if budget is None:
            raise ConfigError("share is of a budget, and there is none; give budget, or epsilon instead of share.")
        epsilon = share * budget
    return epsilon


def simulated_hospitals(
    dataset: str, ledger: Path, *, relation: str | None = None, budget: float | None = None, **options: Any
) -> Target:
    """All hospitals of a dataset, as ``simulated_by`` has them.

    Args:
        dataset: The dataset's name.
        ledger: The file that is charged, begun if there is none. Its terms stay, so that a given ``privacy.delta`` must be its
            own; a new one has a run's.
        relation: Which data sets are neighbours, which must be the ledger's own; None is that, and "add-remove" of a new one.
        budget: In epsilon, above 0, in place of the ledger's budget; None is that, and no budget of a new one.
        options: Configuration keys, as ``sites``, ``seed`` (of the split and, with the number of the ledger's questions before,
            of the noise), ``privacy={"delta": 1e-5}`` or ``data={"schema_file": "schema.toml"}``.

    Raises:
        ConfigError: Terms that are impossible, or not those of the ledger.
    """
    return simulated_by(
        RunConfig.build(name_objects({"dataset": dataset}), name_objects(options)), ledger, relation, budget
    )


def simulated_by(config: RunConfig, ledger: Path, relation: str | None = None, budget: float | None = None) -> Target:
    """All hospitals of a configuration's dataset.

    Args:
        config: The configuration, whose ``privacy.delta`` must be the ledger's own where it is given.
        ledger, relation, budget: As in ``simulated_hospitals``.

    Raises:
        ConfigError: As of ``simulated_hospitals``.
    """
    if budget is not None and not budget > 0:
        raise ConfigError(f"budget must be positive, got {budget}.")
    begun = next((site.terms for site in _in_ledger(ledger)), None)
    delta = config.privacy.delta or None
    for name, wanted in (("delta", delta), ("relation", relation)):
        if begun and wanted is not None and wanted != getattr(begun, name):
            raise ConfigError(f"{name} is {wanted}, but the ledger {ledger} was begun with {getattr(begun, name)}.")
    if begun:
        delta, relation, budget = begun.delta, begun.relation, begun.budget if budget is None else budget
    config = settle(config if delta is None else config.with_values({"privacy.delta": delta}))
    neighbours = cast(Relation, relation or "add-remove")
    check_terms(config.privacy.delta, "pld", neighbours)
    check_simulation(config)
    pricing = Pricing(config.privacy.delta, "pld", neighbours)
    return Target(dataset_of(config).schema, ledger.expanduser().resolve(), pricing, budget, config)


def real(path: Path) -> Target:
    """The one real hospital of a ``hospital.toml``: its own records, policy, ledger, and noise of the system.

    Raises ConfigError or DataError if its file, its policy or its schema is missing or wrong.
    """
    described, home = HospitalFile.read(path), path.resolve().parent
    schema, own = Schema.from_toml(home / described.schema_), Policy.build(described.policy, str(path))
    pricing = Pricing(own.delta, own.accountant, own.relation)
    return Target(schema, home / described.home / LEDGER, pricing, own.budget, RunConfig(), path)


class Askable(Protocol):
    """Hospitals that are asked elsewhere, as ``deployment.submitting.Coordinated``."""

    def ask(self, question: Question) -> dict[str, Any]:
        """Their answer, as ``ask`` gives it."""


def ask(target: Target | Grid | Askable, question: Question) -> dict[str, Any]:
    """The answer of the target's hospitals, as plain values (docs/reference/json.md), with the ``ledger`` of a ``Target``.

    A survey's answer has the prepared ``Schema`` under "schema", that of ``Relations`` an ``Imputer`` under "imputer". A
    target that is a Grid is a federation, whose hospitals each answer by their own policy and ledger.

    Raises ConfigError, of a ``Target`` before a hospital is asked, so that its journal has no line; BudgetRefused when every
    hospital's policy or budget refuses.
    """
    if not isinstance(target, Target | Grid):
        return target.ask(question)
    if not isinstance(target, Target):
        name = question.purpose.partition("-")[0]
        request = AskRequest(run=_fresh_run(name), site=0, question=write_question(question))
        return questions.ask(target, question, request, RunConfig().timeout)
    question.plan(target.schema, target.pricing)
    answer = questions.ask(target.grid(), question, target.request(question), target.config.timeout)
    return answer | {"ledger": str(target.ledger)}


# What is written of an answer, by its name in the answer: the file, and that of the statement.
_PREPARED = {"schema": ("prepared.toml", "preparation.json"), "imputer": ("imputer.json", "imputer-statement.json")}


def prepare(out: Path, target: Target | Grid | Askable, question: Survey | Relations) -> dict[str, Any]:
    """Write what a survey or relations make, and its statement, into a folder; returns the statement, with the path.

    A survey, of all features where it names no columns, makes ``prepared.toml`` and ``preparation.json``. Relations make
    ``imputer.json`` and ``imputer-statement.json``; the imputer is of the features under the schema, so prepare that first.

    Args:
        out: The folder, made if there is none; it must not hold what was prepared before.
        target: The hospitals that are asked.
        question: What they are asked.

    Raises:
        ConfigError: Before anything is charged, also where ``out`` holds what was prepared before or cannot be written.
        BudgetRefused: Every hospital's budget refuses. Nothing is written then, but the folder may be made.
    """
    if isinstance(target, Target):
        question = question.of(target.schema) if isinstance(question, Survey) else question
        question.plan(target.schema, target.pricing)
    made = "schema" if isinstance(question, Survey) else "imputer"
    name, statement_name = _PREPARED[made]
    reserve(out, name, statement_name)
    answer = ask(target, question)
    product = answer[made]
    content: Content = product.to_toml if made == "schema" else product.write
    statement = answer | {made: str((out / name).resolve())}
    try:
        write_files({out / name: NewFile(content), out / statement_name: NewFile(json.dumps(statement, indent=1))})
    except OSError as error:
        raise ConfigError(f"{out} cannot be written any more: {reason(error)}.") from None
    return statement


def reserve(out: Path, *names: str) -> None:
    """Make the folder before anything is paid for. Raises ConfigError where one of the files exists, or none can be made."""
    try:
        for path in (out / name for name in names):
            if path.exists():
                raise ConfigError(f"{path} exists already, and what it holds was paid for; choose another folder.")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except FileExistsError:
        raise ConfigError(f"{out} is a file, not a folder; choose another folder.") from None
    except OSError as error:
        raise ConfigError(f"The folder {out} cannot be written: {reason(error)}.") from None


class OwnGrid(LocalGrid):
    """A hospital that is asked by its own command, in this process."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        with typed_here():
            return super().push_messages(messages)


def real_grid(path: Path) -> OwnGrid:
    """The one real hospital of a ``hospital.toml``, in this process. Raises ConfigError for a file that is none."""
    HospitalFile.read(path)
    return OwnGrid(_CLIENT, 1, RunConfig().flat(), node_config={"hospital": str(path.resolve())})


def _asked_before(ledger: Path, asks: str) -> int:
    """How many such questions the ledger holds."""
    events = (event for site in _in_ledger(ledger) for event in site.events())
    return len({event["run"] for event in events if event["purpose"].startswith(asks)})


def _in_ledger(ledger: Path) -> list[Ledger]:
    return list(Ledger.read_all(ledger).values()) if ledger.exists() else []


def _fresh_run(asks: str) -> str:
    """A name that no other has."""
    return f"{asks}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
