"""What was spent: other deltas, each run by itself, what still fits, and patients of several sites together."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations
from pathlib import Path

import dp_accounting as dpa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.accounting.risk import Risk, risk
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.statements import smaller_deltas, statement_of, statements, with_details
from polyclinic.privacy.ledger.terms import (
    Block,
    History,
    entry_of,
    epsilon_of,
    epsilon_together,
    flat,
    from_text,
    risk_of,
    risk_together,
    to_text,
    together,
    with_charge,
)

ROUND = dpsgd_event(0.1, 1.2, 5)
COUNT = gaussian_event(9.0)
EVENTS = [entry_of(event) for event in (ROUND, COUNT, gaussian_event(4.0))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def opened(path: Path, budget: float | None = 3.0) -> Ledger:
    return Ledger.open(path, Terms("hospital-1", 1e-5, budget=budget))


def ran(entries: list[str], run: str = "run-1") -> History:
    """One run that was charged all that it declared."""
    spent = tuple(sorted(Counter(entries).items()))
    return (Block(run, spent, spent),) if spent else ()


def detail(path: Path, deltas: tuple[float, ...] = ()) -> dict:
    return with_details(statements([Ledger.read(path)])[0], deltas)


def test_epsilon_at_another_delta_is_the_accountants_and_falls_with_delta(path: Path) -> None:
    ledger = opened(path)
    for turn in range(3):
        ledger.charge(ROUND, "train", "run-1", turn, plan=[(ROUND, 3)])
    deltas = [1e-3, 1e-5, 1e-6, 1e-8, 1e-12]
    found = [ledger.epsilon(delta=delta) for delta in deltas]
    assert found == [epsilon(dpsgd_event(0.1, 1.2, 15), delta) for delta in deltas]
    assert found == sorted(found) and ledger.epsilon() == found[1]
    assert ledger.epsilon("rdp", delta=1e-6) == epsilon(dpsgd_event(0.1, 1.2, 15), 1e-6, "rdp")


def test_epsilon_is_finite_at_a_delta_below_what_loss_distributions_resolve(path: Path) -> None:
    ledger = opened(path)
    ledger.charge(ROUND, "train", "run-1", 1)
    assert ledger.epsilon() < ledger.epsilon(delta=1e-12) <= epsilon(ROUND, 1e-12, "rdp")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_an_impossible_delta_is_refused(path: Path, delta: float) -> None:
    with pytest.raises(ConfigError, match="delta must lie in"):
        opened(path).epsilon(delta=delta)


@pytest.mark.parametrize(
    ("delta", "smaller"),
    [(1e-5, [1e-6, 1e-7, 1e-8]), (3e-4, [1e-4, 1e-5, 1e-6]), (0.5, [0.1, 0.01, 0.001]), (1e-3, [1e-4, 1e-5, 1e-6])],
)
def test_the_curve_goes_on_at_the_next_powers_of_ten(delta: float, smaller: list[float]) -> None:
    assert smaller_deltas(delta) == smaller


def test_the_curve_in_a_statement(path: Path) -> None:
    opened(path).charge(ROUND, "train", "run-1", 1)
    assert [one["delta"] for one in detail(path)["at"]] == [1e-6, 1e-7, 1e-8]
    assert detail(path, (1e-4,))["at"] == [{"delta": 1e-4, "epsilon": epsilon(ROUND, 1e-4)}]


def test_the_budget_stays_at_the_ledgers_delta(path: Path) -> None:
    ledger = opened(path, epsilon(ROUND, 1e-5))
    ledger.charge(ROUND, "train", "run-1", 1)
    assert ledger.epsilon(delta=1e-8) > ledger.budget


def test_runs_are_told_apart_and_do_not_add_up(path: Path) -> None:
    ledger = opened(path)
    ledger.charge(COUNT, "statistics", "run-1", 0, plan=[(COUNT, 1), (ROUND, 2)])
    for turn in (1, 2):
        ledger.charge(ROUND, "train", "run-1", turn)
    ledger.charge(COUNT, "statistics", "run-2", 1)
    first, second = detail(path)["runs"]
    assert (first["run"], first["charges"], second["run"], second["charges"]) == ("run-1", 3, "run-2", 1)
    assert first["epsilon"] == epsilon(dpa.ComposedDpEvent([COUNT, dpa.SelfComposedDpEvent(ROUND, 2)]), 1e-5)
    assert second["epsilon"] == epsilon(COUNT, 1e-5)
    assert max(first["epsilon"], second["epsilon"]) < ledger.epsilon() < first["epsilon"] + second["epsilon"]


def test_the_room_that_is_said_to_be_left_is_there_and_no_more(path: Path) -> None:
    ledger = opened(path)
    for turn in range(3):
        ledger.charge(ROUND, "train", "run-1", turn, plan=[(ROUND, 3)])
    room = detail(path)["room"]
    assert room["epsilon"] == epsilon(gaussian_event(room["noise_multiplier"]), 1e-5)
    assert 3.0 - ledger.epsilon() < room["epsilon"] < 3.0
    with pytest.raises(BudgetRefused):
        ledger.charge(gaussian_event(room["noise_multiplier"] * 0.99), "more", "run-2", 1)
    ledger.charge(gaussian_event(room["noise_multiplier"]), "more", "run-2", 1)


def test_room_is_the_budget_at_first_none_at_last_and_unlimited_without_one(path: Path, tmp_path: Path) -> None:
    ledger = opened(path)
    assert detail(path)["room"]["epsilon"] == pytest.approx(3.0, rel=5e-3)
    ledger.charge(ROUND, "train", "run-1", 1)
    opened(path, 0.5)
    assert detail(path)["room"] == {"epsilon": 0.0, "noise_multiplier": None}
    opened(tmp_path / "other.sqlite", None).charge(dpa.NonPrivateDpEvent(), "train", "run-1", 1)
    said = detail(tmp_path / "other.sqlite")
    assert said["room"] is None and said["runs"][0]["epsilon"] is None and said["at"][0]["epsilon"] is None


def test_what_leaves_outside_epsilon_is_listed_by_run_costs_nothing_and_is_never_refused(path: Path) -> None:
    ledger = opened(path)
    ledger.charge(ROUND, "train", "run-1", 1)
    spent = ledger.epsilon()
    for run in ("run-1", "run-1", "run-2"):
        opened(path, 0.5).charge(dpa.NoOpDpEvent(), "held-out metrics", run, 1)
    assert ledger.epsilon() == spent and ledger.verify()
    assert detail(path)["outside"] == [
        {"run": "run-1", "purpose": "held-out metrics", "times": 2},
        {"run": "run-2", "purpose": "held-out metrics", "times": 1},
    ]
    assert [one["epsilon"] for one in detail(path)["runs"]] == [spent, 0.0]


def test_several_releases_cost_what_all_of_them_compose_to_and_more_than_each(path: Path) -> None:
    """Golden list 2.17: statistics, a model and metrics with noise in one statement."""
    ledger = opened(path, 30.0)
    events = {"statistics": COUNT, "train": dpsgd_event(0.1, 1.2, 40), "metrics": gaussian_event(5.0)}
    for turn, (purpose, event) in enumerate(events.items()):
        ledger.charge(event, purpose, "run-1", turn, plan=[(event, 1) for event in events.values()])
    assert ledger.epsilon() == epsilon(dpa.ComposedDpEvent(list(events.values())), 1e-5)
    assert all(ledger.epsilon() > epsilon(event, 1e-5) for event in events.values())


spent_lists = st.lists(
    st.lists(st.sampled_from(EVENTS), max_size=6).map(ran),
    min_size=1,
    max_size=5,
)


@given(spent=spent_lists, most=st.integers(1, 6))
@settings(max_examples=100)
def test_together_holds_every_choice_of_so_many_sites(spent: list, most: int) -> None:
    whole = dict(flat(together(spent, most)))
    for chosen in combinations(spent, min(most, len(spent))):
        sums: dict[str, int] = {}
        for one in chosen:
            for entry, count in flat(one):
                sums[entry] = sums.get(entry, 0) + count
        assert all(count <= whole[entry] for entry, count in sums.items())
    if most >= len(spent):
        assert sum(whole.values()) == sum(count for one in spent for _, count in flat(one))
    assert dict(flat(together(spent, 1))) == {e: max(dict(flat(one)).get(e, 0) for one in spent) for e in whole}


def test_fault_patient_in_several_sites_costs_their_composition_and_not_one_sites_epsilon() -> None:
    """Golden list 2.24: parallel composition holds for disjoint patients only."""
    terms = Terms("", 1e-5)
    one, other = ran([EVENTS[0]] * 2), ran([EVENTS[0]] * 5 + [EVENTS[1]])
    each = [epsilon_of(spent, terms) for spent in (one, other)]
    both = epsilon_together([one, other], 2, terms)
    exact = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(ROUND, 7), COUNT])
    assert both == epsilon(exact, 1e-5)
    assert max(each) < both < sum(each)
    assert epsilon_together([one, other], 1, terms) == max(each)
    assert epsilon_together([one, other], 9, terms) == both


def test_the_worst_choice_of_sites_is_found_among_few_and_bounded_among_many() -> None:
    """Few: exactly the dearest pair. Of 41 that all differ there are 820 pairs: one bound, not below any of them."""
    terms = Terms("", 1e-5)
    few = [ran([entry] * 3) for entry in EVENTS]
    pairs = [epsilon_of(together(pair, 2), terms) for pair in combinations(few, 2)]
    assert epsilon_together(few, 2, terms) == max(pairs) < epsilon_of(together(few, 2), terms)
    many = [ran([EVENTS[1]] * count + [EVENTS[2]] * (41 - count)) for count in range(41)]
    bound = epsilon_together(many, 2, terms)
    assert all(epsilon_of(together(pair, 2), terms) <= bound for pair in ((many[0], many[1]), (many[40], many[39])))
    assert epsilon_together([few[0]] * 1000, 2, terms) == epsilon_of(ran([EVENTS[0]] * 6), terms)


def test_a_composition_within_an_event_can_be_charged(path: Path) -> None:
    ledger = opened(path)
    events = (dpa.ComposedDpEvent([COUNT, ROUND]), dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([COUNT]), 2))
    for event in events:
        ledger.charge(event, "both", "run-1", 1, plan=[(event, 1) for event in events])
    assert ledger.epsilon() == epsilon(dpa.ComposedDpEvent([COUNT, COUNT, COUNT, ROUND]), 1e-5)


def test_what_was_spent_survives_a_message() -> None:
    spent = with_charge(ran(EVENTS * 2), "run-1", EVENTS[0])
    heard = from_text(to_text(spent))
    assert [block[1:] for block in heard] == [block[1:] for block in spent] and flat(spent) == flat(heard)
    assert "run-1" not in to_text(spent)
    for wrong in ("{}x", "[1]", '[["a"]]', '[["a", "b"]]', '[["a", [["b", 1]], [["b", "c"]], []]]'):
        with pytest.raises((ValueError, TypeError)):
            from_text(wrong)


def test_fault_38_blocks_that_no_ledger_has_are_not_read() -> None:
    """A plan of fewer charges than were made of it would cost less than they did."""
    first, other = (entry_of(gaussian_event(noise)) for noise in (5.0, 6.0))
    assert from_text(json.dumps([["run", [[first, 2]], [[first, 1]], [[other, 3]]]]))
    for wrong in (
        [["run", [], [[first, 1]], []]],
        [["run", [[first, 1]], [[first, 2]], []]],
        [["run", [[first, 1]], [[other, 1]], []]],
        [["run", [[first, 1]], [[first, -1]], []]],
        [["run", [[first, 1]], [], [[other, 0]]]],
        [["run", [[first, 1]], [], [[other, 10**12]]]],
        [["run", [[first, 1], [first, 5]], [[first, 5]], []]],
        [["run", [[first, 1]], [[first, 1]], []], ["run", [[first, 1]], [], []]],
    ):
        with pytest.raises(ValueError):
            from_text(json.dumps(wrong))


def test_statements_of_disjoint_sites_say_the_largest(path: Path) -> None:
    ledgers = Ledger.open_all(path, [Terms(f"s{i}", 1e-5, budget=3.0) for i in range(3)])
    for turn, ledger in enumerate(ledgers):
        for number in range(turn):
            ledger.charge(ROUND, "train", "run-1", number, plan=[(ROUND, turn)])
    whole = statement_of(statements(ledgers))
    assert whole["epsilon"] == ledgers[2].epsilon() and len(whole["events"]) == 3


def test_the_risk_of_a_statement_is_that_of_all_its_charges_whatever_run_made_them(path: Path) -> None:
    ledger = opened(path, budget=20.0)
    for turn in range(3):
        ledger.charge(ROUND, "train", f"run-{turn}", turn)
    assert detail(path)["risk"] == risk(dpsgd_event(0.1, 1.2, 15)).as_dict()
    ledger = opened(path, budget=None)
    ledger.charge(dpa.NonPrivateDpEvent(), "train", "run-3", 1)
    told = detail(path)
    assert told["epsilon"] is None and told["risk"] == {"advantage": 1.0, "tpr_at_1_percent_fpr": 1.0}


def test_the_risk_of_a_patient_of_several_sites_is_that_of_the_worst_of_them_together() -> None:
    spent = [ran([entry_of(ROUND)] * count) for count in (1, 3, 2)]
    assert risk_together(spent, 1, "add-remove") == risk_of(spent[1], "add-remove") == risk(dpsgd_event(0.1, 1.2, 15))
    assert risk_together(spent, 2, "add-remove") == risk(dpsgd_event(0.1, 1.2, 25))
    assert risk_together([ran([])] * 3, 2, "add-remove") == Risk(0.0, 0.01)
    many = [ran([entry_of(gaussian_event(3.0 + site))]) for site in range(40)]
    worst_two = risk(dpa.ComposedDpEvent([gaussian_event(3.0), gaussian_event(4.0)]))
    assert risk_together(many, 1, "add-remove") == risk(gaussian_event(3.0))
    assert risk_together(many, 2, "add-remove").advantage >= worst_two.advantage
