"""What a summary says beside its numbers."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting.risk import worst
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import risk_of
from polyclinic.server.notes import best_before, last_fall
from tests.privacy.ledger.test_ledger_terms import ran

CYCLIC = {"training.batching": "cyclic", "rounds": 4, "training.local-steps": 4}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"training.sample-rate": 1.0, "training.noise": "tree"},
            "With a patient in every step of 16, at most 16 times, tree noise leaves",
        ),
        (
            {"training.sample-rate": 0.5, "training.noise": "tree"},
            "one step in 2 of 16, at most 8 times, tree noise leaves",
        ),
        ({"training.sample-rate": 0.25, "training.noise": "banded"}, None),
        ({"training.sample-rate": 1.0, "training.noise": "banded"}, None),
        ({"training.sample-rate": 1.0, "training.noise": "independent"}, None),
        ({"training.sample-rate": 1.0, "training.noise": "tree", "privacy.dp": False}, None),
    ],
)
def test_noise_over_time_that_is_worse_than_independent_noise_is_told(
    quick: Callable[..., RunResult], options: dict[str, object], told: str | None
) -> None:
    notes = quick(**CYCLIC, **options).summary["notes"]
    found = [note for note in notes if "independent noise is better" in note]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        ({"privacy.dp": False}, "no formal guarantee", "guarantee is that of the method|Epsilon does not cover"),
        (
            {"data.standardise": "none", "privacy.patients-per-site": 100},
            "sent: every model update",
            "number of patients and every|standardise features and",
        ),
        ({}, "the noised number of training patients and every model update", "standardise features|secure|masks"),
        (
            {"data.standardise": "measured"},
            "the statistics that standardise features and every model update",
            "secure|masks",
        ),
        ({"secure.aggregation": True, "sites": 2}, "With two hospitals in a round", "no formal guarantee"),
    ],
)
def test_notes_claim_nothing_that_the_run_does_not_have(
    quick: Callable[..., RunResult], options: dict[str, object], said: str, unsaid: str
) -> None:
    notes = " ".join(quick(rounds=1, **options).summary["notes"])
    assert said in notes and not re.search(unsaid, notes)


def test_beside_every_epsilon_stands_its_risk(quick: Callable[..., RunResult]) -> None:
    """Recomputed from the ledger's events; the worst hospital's is the run's."""
    run = quick()
    ledgers = Ledger.read_all(run.path / "sites" / "ledger.sqlite")
    own = {
        name: risk_of(ran([entry_in(event) for event in one.events()]), "add-remove") for name, one in ledgers.items()
    }
    sites = run.summary["metrics"]["sites"]
    assert own and all(sites[name]["risk"] == found.as_dict() for name, found in own.items())
    assert all(run.summary["statement"]["sites"][name]["risk"] == found.as_dict() for name, found in own.items())
    assert run.privacy["risk"] == worst(own.values()).as_dict()
    assert 0.01 < run.privacy["risk"]["tpr_at_1_percent_fpr"] < 1 and 0 < run.privacy["risk"]["advantage"] < 1
    shared = quick(privacy={"overlap": 2}).privacy["risk"]
    assert all(shared[key] > run.privacy["risk"][key] for key in shared)


def test_without_privacy_the_risk_is_certainty_and_a_whole_hospitals_has_one_of_its_own(
    quick: Callable[..., RunResult],
) -> None:
    run = quick(
        privacy={"dp": False, "patients_per_site": 100},
        data={"standardise": "none"},
        central={"epsilon": 4.0},
    )
    assert run.privacy["epsilon"] is None and run.privacy["risk"] == {"advantage": 1.0, "tpr_at_1_percent_fpr": 1.0}
    central = run.privacy["central"]["risk"]
    assert central == run.summary["statement"]["central"]["risk"] and 0 < central["advantage"] < 1


def entry_in(event: dict[str, Any]) -> str:
    return json.dumps(event["event"], sort_keys=True)


@pytest.mark.parametrize(
    ("losses", "fall"),
    [
        ([0.6, 0.5, 0.4, 0.3], 1 - 0.35 / 0.55),
        ([0.7] * 8 + [0.5, 0.5, 0.4, 0.4], 1 - 1.3 / 1.9),
        ([0.5, 0.4, 0.3], 0),  # too few
        ([0.9, 0.6, 0.5, 0.3] + [0.3] * 12, 0),  # converged long ago
        ([0.5, 0.5, 0.4, 0.45], 0),  # rises again
        ([0.5, 0.5, 0.495, 0.494], 0),  # by less than 2 %
        ([0.0, 0.0, 0.0, 0.0], 0),
        ([0.50, 0.40, 0.52, 0.42, 0.51, 0.36, 0.48, 0.34], 0),  # by less than it goes up and down
    ],
)
def test_a_fall_of_the_loss_in_the_last_rounds(losses: list[float], fall: float) -> None:
    assert last_fall(losses) == pytest.approx(fall)


@pytest.mark.parametrize(
    ("losses", "place"),
    [
        ([0.5, 0.3, 0.4, 0.4, 0.38], 1),
        ([0.5, 0.3, 0.31, 0.3, 0.31], None),  # by less than 5 %
        ([0.5, 0.4, 0.3, 0.35], None),  # among the last ones
        ([0.3, 0.5, 0.5], None),  # too few
    ],
)
def test_where_the_loss_was_lower_before(losses: list[float], place: int | None) -> None:
    assert best_before(losses) == place


def test_a_run_says_that_its_risks_are_too_low_and_that_its_loss_was_lower_before(
    quick: Callable[..., RunResult],
) -> None:
    rare = {"dataset": "icu", "rounds": 8, "privacy.epsilon": 3.0, "training.learning-rate": 0.5}
    run = quick(**rare)
    off = run.summary["evaluation"]["pooled"]["calibration_in_the_large"]
    [note] = [note for note in run.summary["notes"] if "on average" in note]
    assert off["high"] < 0 and f"{-off['value']:.3f} too low" in note and "`training.optimizer=newton`" in note
    assert any("was lower before the run ended" in note for note in run.summary["notes"])
    steps = {"model": "gru", "hidden": (8,), "training.optimizer": "sgd", "privacy.max-grad-norm": 2.0}
    [low] = [note for note in quick(**rare | steps).summary["notes"] if "on average" in note]
    assert "too low" in low and "try a `privacy.max-grad-norm` of 4 in place of 2." in low and "newton" not in low
    newton = {"training.optimizer": "newton", "training.local-steps": 1}
    true = quick(**{"dataset": "icu", "rounds": 8, "privacy.epsilon": 3.0} | newton).summary["notes"]
    assert not any("on average" in note for note in true)


def test_a_run_says_that_its_risks_are_unsure(quick: Callable[..., RunResult]) -> None:
    newton = {"dataset": "trial", "rounds": 8, "training.optimizer": "newton", "training.local-steps": 1}
    noisy, exact = (quick(**newton | {"privacy.dp": dp, "privacy.epsilon": 1.0}) for dp in (True, False))
    assert noisy.summary["evaluation"]["pooled"]["calibration_slope"]["low"] > 1.25
    [note] = [note for note in noisy.summary["notes"] if "calibration slope" in note]
    assert "differ less from patient to patient" in note and "high ones are too low" in note
    assert not any("calibration slope" in note for note in exact.summary["notes"])


def test_a_run_that_ended_too_early_says_so_and_what_to_change(quick: Callable[..., RunResult]) -> None:
    def notes(**options: Any) -> list[str]:
        return [note for note in quick(**options).summary["notes"] if "still improving" in note]

    slow = {"privacy.dp": False, "training.learning-rate": 0.01, "training.momentum": 0.0, "rounds": 8}
    [note] = notes(**slow)
    assert "over the last 2 rounds" in note and "`rounds`" in note and "`training.local-steps`" in note
    [note] = notes(**slow | {"privacy.dp": True})
    assert "share the same ε, so that each has more noise" in note
    assert not notes(**slow | {"training.local-steps": 200, "training.learning-rate": 0.5})
    assert not notes(**slow | {"evaluation.metrics": "none"})
