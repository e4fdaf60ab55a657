"""Ask a question from Python: of simulated hospitals, or of one real hospital in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flwr.app import Message

from polyclinic.client.hospital import typed_here
from polyclinic.client.own_files import LEDGER
from polyclinic.client.policy import HospitalFile, Policy
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of
from polyclinic.privacy.accounting import Accountant, Relation, check_terms
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.simulation import check_simulation, simulated_sites
from polyclinic.server.queries import Inquiry, ask
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

_CLIENT = AppReference("polyclinic.client_app")


def new_ledger(out: Path) -> Path:
    """Where the ledger of a query begins that names none: in a new folder under ``out``, made when it is charged."""
    return out / fresh_run("query") / "ledger.sqlite"


@dataclass(frozen=True)
class Target:
    """The hospitals that are asked, their ledger and its terms: a dataset's simulated ones, or a real one.

    ``config``: of a simulation.  ``path``: the ``hospital.toml`` of a real hospital.
    """

    schema: Schema
    ledger: Path
    delta: float
    accountant: Accountant
    relation: Relation
    budget: float | None
    config: RunConfig
    path: Path | None = None

    @property
    def terms(self) -> dict[str, Any]:
        """What a question tells simulated hospitals of their ledger; a real one goes by its own."""
        return {} if self.path else {"ledger": str(self.ledger), "budget": self.budget, "relation": self.relation}

    @property
    def home(self) -> Path | str:
        """The folder of simulated hospitals."""
        return "" if self.path else self.ledger.parent

    def run(self, asks: str) -> str:
        """The name of what is asked now; a simulation's noise follows the number of such questions before."""
        return fresh_run(asks) if self.path else f"{asks}-{_asked_before(self.ledger, asks) + 1}"

    def grid(self) -> LocalGrid:
        if self.path:
            return real_grid(self.path)
        return LocalGrid(_CLIENT, len(simulated_sites(self.config)), self.config.flat())


def simulated(
    dataset: str, ledger: Path, *, sites: int = 0, seed: int = 0, delta: float | None = None, relation: str | None = None,
    budget: float | None = None, schema_file: str = "",
) -> Target:  # fmt: skip
    """All hospitals of a dataset.

    Args:
        ledger: The file that is charged, begun if there is none. Its terms stay: ``delta`` and ``relation`` (1e-3 and
            "add-remove" for a new one) must be its own; ``budget`` takes the place of its budget (none for a new one).
        seed: Of the split and, with the number of the ledger's questions before, of the noise.
        schema_file: The schema, the dataset's own if empty.

    Raises:
        ConfigError: Terms that are impossible, or not those of the ledger.
    """
    if budget is not None and not budget > 0:
        raise ConfigError(f"budget must be positive, got {budget}.")
    begun = next((site.terms for site in _in_ledger(ledger)), None)
    for name, wanted in (("delta", delta), ("relation", relation)):
        if begun and wanted is not None and wanted != getattr(begun, name):
            raise ConfigError(f"{name} is {wanted}, but the ledger {ledger} was begun with {getattr(begun, name)}.")
    if begun:
        delta, relation, budget = begun.delta, begun.relation, begun.budget if budget is None else budget
    options = {"dataset": dataset, "sites": sites, "seed": seed, "data.schema-file": schema_file}
    config = RunConfig.build(options if delta is None else {**options, "privacy.delta": delta})
    neighbours = cast(Relation, relation or "add-remove")
    check_terms(config.privacy.delta, "pld", neighbours)
    check_simulation(config)
    file = ledger.expanduser().resolve()
    return Target(dataset_of(config).schema, file, config.privacy.delta, "pld", neighbours, budget, config)


def real(path: Path) -> Target:
    """The one real hospital of a ``hospital.toml``: its own records, policy, ledger, and noise of the system.

    Raises ConfigError or DataError if its file, its policy or its schema is missing or wrong.
    """
    described, home = HospitalFile.read(path), path.resolve().parent
    schema, own = Schema.from_toml(home / described.schema_), Policy.build(described.policy, str(path))
    ledger = home / described.home / LEDGER
    return Target(schema, ledger, own.delta, own.accountant, own.relation, own.budget, RunConfig(), path)


def query(inquiry: Inquiry, target: Target) -> dict[str, Any]:
    """The answer of the target's hospitals, with the keys of ``server.queries.ask`` and the ``ledger``.

    Raises ConfigError before a hospital is asked, so that its journal has no line, BudgetRefused when every hospital's policy
    or budget refuses.
    """
    inquiry.planned(target.schema, target.delta, target.accountant, target.relation)
    inquiry = replace(inquiry, **target.terms)
    found = ask(target.grid(), inquiry, target.run("query"), target.home, target.config.timeout)
    return found | {"ledger": str(target.ledger)}


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


def fresh_run(asks: str) -> str:
    """A name that no other has."""
    return f"{asks}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
