"""Selection on private data is charged, first, and there is no other way to it."""

from __future__ import annotations

from pathlib import Path

import dp_accounting as dpa
import pytest

from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.privacy.accounting import dpsgd_event, epsilon
from polyclinic.privacy.events import pure_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.selection import best_of
from polyclinic.privacy.streams import keyed_stream

ROUND = dpsgd_event(0.1, 1.2, 5)
STREAM = keyed_stream(0, "selection", 0, "hospital-1")


def opened(folder: Path, budget: float = 3.0) -> Ledger:
    return Ledger.open(folder / "ledger.sqlite", Terms("hospital-1", 1e-5, budget=budget))


def test_fault_16_selection_is_charged_before_a_record_is_looked_at(tmp_path: Path) -> None:
    """The best of three checkpoints: its epsilon is in the ledger when the first count is made, on top of training's."""
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "train", "run-1", 1, plan=[(ROUND, 1), (pure_event(0.5), 1)])
    trained, seen = ledger.epsilon(), []

    def counts() -> list[int]:
        seen.extend(ledger.events())
        return [10, 90, 20]

    assert best_of(3, counts, 0.5, ledger, STREAM, "run-1", 1) in range(3)
    assert [event["purpose"] for event in seen] == ["train", "selection"]
    assert ledger.epsilon() == epsilon(dpa.ComposedDpEvent([ROUND, pure_event(0.5)]), 1e-5) > trained


def test_fault_16_selection_that_the_budget_refuses_looks_at_no_record(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 0.4)

    def counts() -> list[int]:
        raise AssertionError("a record was looked at")

    with pytest.raises(BudgetRefused, match="'selection'"):
        best_of(3, counts, 0.5, ledger, STREAM, "run-1")
    assert ledger.events() == []


def test_selection_costs_the_same_for_two_candidates_and_for_a_thousand(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    few, many = opened(tmp_path), opened(tmp_path / "other")
    best_of(2, lambda: [1, 2], 0.5, few, STREAM, "r")
    best_of(1000, lambda: list(range(1000)), 0.5, many, STREAM, "r")
    assert few.epsilon() == many.epsilon() == pytest.approx(0.5, rel=0.01)


def test_selection_under_replace_one_counts_a_patient_twice(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "l.sqlite", Terms("h", 1e-5, relation="replace-one", budget=3.0))
    best_of(2, lambda: [1, 2], 0.5, ledger, STREAM, "r")
    assert ledger.epsilon() == pytest.approx(1.0, rel=0.01)


def test_much_epsilon_finds_the_best_and_little_may_find_any(tmp_path: Path) -> None:
    """How often which is chosen is the mechanism's own test."""
    ledger = Ledger.open(tmp_path / "l.sqlite", Terms("h", 1e-5))
    assert [best_of(4, lambda: [3, 9, 1, 4], 50.0, ledger, STREAM, "r") for _ in range(5)] == [1] * 5
    assert len({best_of(4, lambda: [3, 9, 1, 4], 1e-6, ledger, STREAM, "r") for _ in range(40)}) > 1


@pytest.mark.parametrize(
    ("candidates", "epsilon_", "words"),
    [
        (1, 0.5, "candidates"),
        (0, 0.5, "candidates"),
        (3, 0.0, "epsilon"),
        (3, float("nan"), "epsilon"),
        (3, -1.0, "epsilon"),
    ],
)
def test_impossible_selections_are_refused_before_the_charge(
    tmp_path: Path, candidates: int, epsilon_: float, words: str
) -> None:
    ledger = opened(tmp_path)
    with pytest.raises(ConfigError, match=words):
        best_of(candidates, lambda: [1, 2, 3], epsilon_, ledger, STREAM, "r")
    assert ledger.events() == []


@pytest.mark.parametrize("wrong", [[1, 2], [1.5, 2.0, 3.0], [[1, 2, 3]]])
def test_counts_that_are_none_choose_nothing_and_stay_charged(tmp_path: Path, wrong: list) -> None:
    ledger = opened(tmp_path)
    with pytest.raises(TypeError, match="3 whole numbers"):
        best_of(3, lambda: wrong, 0.5, ledger, STREAM, "r")
    assert len(ledger.events()) == 1
