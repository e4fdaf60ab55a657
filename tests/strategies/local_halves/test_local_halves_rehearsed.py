"""A mistake in a local half shows before a folder is made or anything is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from polyclinic import LocalHalf, Trained
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.training.local import Penalty, Sites
from polyclinic.training.sites.rehearsal import check_half
from tests.strategies.local_halves.halves import HALVES, START, build, settings

Quick = Callable[..., RunResult]


def half(change: Callable[[Sites], Any], **said: Any) -> type[LocalHalf]:
    """A half whose round is ``change``, with class attributes ``said``."""
    return dataclass(frozen=True)(type("Mine", (LocalHalf,), {"round": lambda _self, sites: change(sites), **said}))


def later(sites: Sites) -> Trained:
    """What it keeps has another form than what it begins from."""
    sites.state("mean", torch.zeros(2, 5)).reshape(2, 5)
    return Trained(sites.model, state={"mean": torch.zeros(2, 7)})


def penalised(sites: Sites, term: Callable[..., Any]) -> Trained:
    return Trained(sites.gradient(sites.model, penalty=Penalty([sites.model], term)))


MISTAKES: dict[str, tuple[type[LocalHalf], str]] = {
    "a tensor": (half(lambda sites: sites.model), "must return Trained(models), not a Tensor"),
    "nothing": (half(lambda sites: None), "must return Trained(models), not a NoneType"),
    "too many gradients": (
        half(lambda sites: [Trained(sites.gradient(sites.model)) for _ in range(5)][0]),
        "asks for more gradients than the 4 that the half's passes() declares",
    ),
    "another pass": (half(lambda sites: Trained(sites.gradient(sites.model, "more"))), "no pass 'more'; its passes are ''"),
    "one row": (half(lambda sites: Trained(sites.model[0])), "not of the shape (2, "),
    "gradient of one row": (half(lambda sites: Trained(sites.gradient(sites.model[:1]))), "took models of the shape (1, "),
    "own unsaid": (half(lambda sites: Trained(sites.model, own=sites.model)), "set personal = True"),
    "kept unsaid": (half(lambda sites: Trained(sites.model, state={"a": sites.model})), "set keeps = True"),
    "sent unsaid": (half(lambda sites: Trained(sites.model, sent={"a": sites.model})), "returned sent ['a'], and the class"),
    "said, not sent": (half(lambda sites: Trained(sites.model), sends=("a",)), "returned sent [], and the class has sends ['a']"),
    "said, no metric": (half(lambda sites: Trained(sites.model), metrics=("a",)), "returned metrics [], and the class"),
    "one number": (
        half(lambda sites: Trained(sites.model, metrics={"a": 1.0}), metrics=("a",)), "without a number for each of 2 hospitals",
    ),
    "first is no tensor": (half(lambda sites: Trained(sites.model + sites.state("a", 0)), keeps=True), "('a', first) got a int"),  # type: ignore[arg-type]
    "kept without rows": (
        half(lambda sites: Trained(sites.model, state={"a": torch.tensor(1.0)}), keeps=True), "a row for each of 2 hospitals",
    ),
    "kept in another form": (half(later, keeps=True), "RuntimeError"),
    "not received": (half(lambda sites: Trained(sites.model + sites.from_server("a"))), "KeyError: 'a'"),
    "a penalty of all rows": (half(lambda sites: penalised(sites, lambda row, others: row.sum()), penalises=True), "for 3 rows"),
    "division by zero": (half(lambda sites: Trained(sites.model / (1 // 0))), "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_on_made_up_gradients(mistake: str) -> None:
    kind, words = MISTAKES[mistake]
    with pytest.raises(ConfigError) as refused:
        check_half(build, START, replace(settings(), local=kind()))
    said = str(refused.value)
    assert said.startswith("The strategy's half at hospitals, Mine, fails on made-up gradients: ") and words in said
    assert "\n" not in said and said.endswith(".") and not said.endswith("..")


@pytest.mark.parametrize("name", HALVES)
def test_halves_that_work_pass(name: str) -> None:
    for noise in (None, 0.7):
        check_half(build, START, settings(local=HALVES[name], noise_multiplier=noise, learning_rate=0.0))


class Wrong(FedAvg):
    """Its half forgets to say that hospitals evaluate with models of their own."""

    Local = MISTAKES["own unsaid"][0]


class Silent(FedAvg):
    """Its half sends what Flower's FedAvg does not expect."""

    Local = half(lambda sites: Trained(sites.model, sent={"a": sites.model}), sends=("a",))


def test_a_run_ends_before_a_folder_is_made(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fails on made-up gradients: .* set personal = True"):
        quick(strategy=Wrong)
    with pytest.raises(ConfigError, match="sends a beside the model, which Flower's aggregate_train of Silent"):
        quick(strategy=Silent)
    assert not list(tmp_path.iterdir())
