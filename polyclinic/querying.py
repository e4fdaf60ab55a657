"""Ask a question from Python: of a simulated federation, or of one real hospital in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flwr.app import Message

from polyclinic.client.hospital import check_simulation, simulated_sites, typed_here
from polyclinic.client.policy import HospitalFile, Policy
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of
from polyclinic.privacy.accounting import Relation, check_terms
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger_terms import Terms
from polyclinic.server.queries import Inquiry, ask
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.training.queries import plan

_CLIENT = AppReference("polyclinic.client_app")


def new_ledger(out: Path) -> Path:
    """Where the ledger of a query begins that names none: in a new folder under ``out``, made when it is charged."""
    return out / fresh_run("query") / "ledger.sqlite"


def query_dataset(
    inquiry: Inquiry, dataset: str, ledger: Path, *, sites: int = 0, seed: int = 0, delta: float | None = None,
    relation: str | None = None, budget: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The answer of all hospitals of a dataset, with the keys of ``server.queries.ask`` and the ``ledger``.

    ledger: the file that is charged, begun if there is none. Its terms stay: ``delta`` and ``relation`` (1e-3 and
    "add-remove" for a new one) must be its own; ``budget`` takes the place of its budget (none for a new one). The noise
    follows the seed and the number of the ledger's queries before. Raises ConfigError before anything is charged,
    BudgetRefused when every hospital's budget refuses.
    """
    simulated = Simulated.of(dataset, ledger, "query", sites, seed, delta, relation, budget)
    inquiry.question.check(dataset_of(simulated.config).schema)
    inquiry = replace(inquiry, ledger=str(simulated.ledger), budget=simulated.budget, relation=simulated.relation)
    found = ask(simulated.grid(), inquiry, simulated.run, simulated.ledger.parent, simulated.config.timeout)
    return found | {"ledger": str(simulated.ledger)}


def schema_of(path: Path) -> Schema:
    """The public schema of a real hospital. Raises ConfigError or DataError if its file or its schema is missing or wrong."""
    return Schema.from_toml(path.resolve().parent / HospitalFile.read(path).schema_)


def own_policy(path: Path) -> Policy:
    """The policy of a real hospital. Raises ConfigError for a file without a usable one."""
    return Policy.build(HospitalFile.read(path).policy, str(path))


def query_hospital(inquiry: Inquiry, path: Path) -> dict[str, Any]:
    """The answer of the one real hospital of a ``hospital.toml``: its own records, policy, ledger, and noise of the system.

    Raises ConfigError before it is asked, so that its journal has no line, BudgetRefused when its policy or budget refuses.
    """
    config, own = RunConfig(), own_policy(path)
    plan(inquiry.question, schema_of(path), inquiry.mechanism, inquiry.epsilon, own.delta, own.accountant, own.relation)
    return ask(real_grid(path), inquiry, fresh_run("query"), "", config.timeout) | {"ledger": str(own_ledger(path))}


@dataclass(frozen=True)
class Simulated:
    """A dataset's hospitals outside a run: their configuration, ledger and its terms, and the name of what is asked now."""

    config: RunConfig
    ledger: Path
    run: str
    relation: Relation
    budget: float | None

    @classmethod
    def of(
        cls, dataset: str, ledger: Path, asks: str, sites: int = 0, seed: int = 0, delta: float | None = None,
        relation: str | None = None, budget: float | None = None, schema_file: str = "",
    ) -> Simulated:  # fmt: skip
        """As ``query_dataset`` says. Raises ConfigError for terms that are impossible, or not those of the ledger."""
        if budget is not None and not budget > 0:
            raise ConfigError(f"budget must be positive, got {budget}.")
        before, begun = _begun(ledger, asks)
        for name, wanted in (("delta", delta), ("relation", relation)):
            if begun and wanted is not None and wanted != getattr(begun, name):
                raise ConfigError(f"{name} is {wanted}, but the ledger {ledger} was begun with {getattr(begun, name)}.")
        if begun:
            delta, relation, budget = begun.delta, begun.relation, begun.budget if budget is None else budget
        options = {"dataset": dataset, "sites": sites, "seed": seed, "schema_file": schema_file}
        config = RunConfig.build(options if delta is None else {**options, "delta": delta})
        neighbours = relation or "add-remove"
        check_terms(config.delta, "pld", neighbours)
        check_simulation(config)
        file = ledger.expanduser().resolve()
        return cls(config, file, f"{asks}-{before + 1}", cast(Relation, neighbours), budget)

    def grid(self) -> LocalGrid:
        return LocalGrid(_CLIENT, len(simulated_sites(self.config)), self.config.flat())


class OwnGrid(LocalGrid):
    """A hospital that is asked by its own command, in this process."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        with typed_here():
            return super().push_messages(messages)


def real_grid(path: Path) -> OwnGrid:
    """The one real hospital of a ``hospital.toml``, in this process. Raises ConfigError for a file that is none."""
    HospitalFile.read(path)
    return OwnGrid(_CLIENT, 1, RunConfig().flat(), node_config={"hospital": str(path.resolve())})


def own_ledger(path: Path) -> Path:
    """The ledger of a real hospital."""
    return path.resolve().parent / HospitalFile.read(path).home / "ledger.sqlite"


def _begun(ledger: Path, asks: str) -> tuple[int, Terms | None]:
    """How many such questions the ledger holds, and a hospital's terms; none where it is still to be begun."""
    if not ledger.exists():
        return 0, None
    found = [*Ledger.read_all(ledger).values()]
    asked = {event["run"] for site in found for event in site.events() if event["purpose"].startswith(asks)}
    return len(asked), found[0].terms


def fresh_run(asks: str) -> str:
    """A name that no other has."""
    return f"{asks}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
