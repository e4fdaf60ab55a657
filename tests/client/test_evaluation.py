"""What a real hospital says of its held-out patients: exact metrics within limits, private ones on their own account."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.split import is_test_patient
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.kinds import write_question
from polyclinic.releases.question import Pricing
from polyclinic.releases.scores import BINS, Scores
from polyclinic.releases.statistics import Statistic
from polyclinic.wire.arrays import to_record
from polyclinic.wire.messages import ASK, COUNTS, RECORD, AskRequest, EvaluateRequest
from tests.client.test_hospital import CONFIG, STRICT, context, ledger, make_hospital, message, model, train
from tests.nursery import python

EXACT = STRICT + "release-metrics = true\n"
ALL = "budget = 100.0\ndelta = 1e-3\n"


def evaluate(
    hospital: Path, arrays: dict[str, Any] | None = None, config: RunConfig = CONFIG, **changes: Any
) -> Message:
    values: dict[str, Any] = {"run": "r", "site": 0, "round": 1, "private_evaluations": 1} | changes
    return app(message(EvaluateRequest(**values), "evaluate", arrays or model()), context(hospital, config))


def threshold(cut: float) -> dict[str, np.ndarray]:
    """The model that answers whether a patient's age is above ``cut``."""
    arrays = {name: np.zeros_like(value) for name, value in model().items()}
    arrays["0.weight"][1, 0], arrays["0.bias"][1] = 1e6, -1e6 * (cut / 60 - 1)
    return arrays


def held_out(hospital: Path) -> Ledger:
    return Ledger.read(hospital.parent / "home" / "held-out.sqlite")


def purposes(hospital: Path) -> list[str]:
    return [event["purpose"] for event in ledger(hospital).events()]


def test_fault_39_threshold_models_read_no_held_out_cells(tmp_path: Path) -> None:
    """122 threshold models gave the histogram of held-out patients' ages, of which one round now answers one."""
    hospital = make_hospital(tmp_path, EXACT)
    train(hospital)
    config = CONFIG.with_values({"data.standardise": "none"})
    answered = [
        "accuracy" in evaluate(hospital, threshold(cut), config, round=number).content["metrics"]
        for number, cut in enumerate(np.arange(20.5, 90), start=1)
    ]
    again = [
        "accuracy" in evaluate(hospital, threshold(cut), config, round=1).content["metrics"] for cut in (30.5, 40.5)
    ]
    assert sum(answered) == 1 and answered[0] and not any(again)
    assert purposes(hospital) == ["train", "held-out metrics"]


def test_fault_39_models_beside_the_one_that_is_scored_make_no_two_questions_one(tmp_path: Path) -> None:
    """The first of a message's models is scored; the same models in another order were taken for the same question."""
    hospital = make_hospital(tmp_path, EXACT)
    train(hospital)
    models = {f"above {cut:g}": to_record(threshold(cut)) for cut in (30.5, 40.5, 50.5)}
    question = EvaluateRequest(run="r", site=0, round=1)
    shown = []
    for first in models:
        asked = message(question, "evaluate")
        for name in (first, *models):
            asked.content[name] = models[name]
        shown.append("accuracy" in app(asked, context(hospital)).content["metrics"])
    assert shown == [True, False, False]
    assert purposes(hospital) == ["train", "held-out metrics"]


def test_fault_39_a_models_own_arrays_are_part_of_the_question(tmp_path: Path) -> None:
    """The shared model, and what a hospital keeps of it as its own, are two models for one charge."""
    hospital = make_hospital(tmp_path, ALL + "release-metrics = true\n")
    own = RunConfig.build(CONFIG.minimal() | {"strategy": "ditto"})
    assert not train(hospital, config=own, local_half=True).has_error()
    shared = evaluate(hospital, threshold(50.5), own)
    mine = evaluate(hospital, threshold(50.5), own, own=True)
    assert "accuracy" in shared.content["metrics"] and "accuracy" not in mine.content["metrics"]


@pytest.mark.parametrize(("key", "most"), [("most-evaluations-per-run", 2), ("most-evaluations", 3)])
def test_fault_39_limits_are_counted_from_the_ledger_and_the_same_question_is_one(
    tmp_path: Path, key: str, most: int
) -> None:
    hospital = make_hospital(tmp_path, f"budget = 100.0\ndelta = 1e-3\nrelease-metrics = true\n{key} = {most}\n")
    shown = []
    for run in ("a", "b"):
        for number in (1, 2, 3):
            train(hospital, run=run, round=number)
            replies = [evaluate(hospital, run=run, round=number) for _ in range(2)]
            assert dict(replies[0].content["metrics"]) == dict(replies[1].content["metrics"])
            shown.append("auroc" in replies[0].content["metrics"])
    assert shown == ([True, True, False] * 2 if key == "most-evaluations-per-run" else [True] * 3 + [False] * 3)
    assert key in str(replies[0].content[RECORD]["withheld"])
    assert purposes(hospital).count("held-out metrics") == sum(shown)


def test_fault_34_exact_metrics_do_not_tell_how_many_patients_are_trained_on(tmp_path: Path) -> None:
    policy, replies = ALL + "release-metrics = true\n", []
    gone = next(i for i in range(200) if not is_test_patient(str(i), 0.25))
    for name in ("all", "fewer"):
        folder = tmp_path / name
        folder.mkdir()
        hospital = make_hospital(folder, policy)
        if name == "fewer":
            records = pd.read_csv(folder / "records.csv")
            records[records.id != gone].to_csv(folder / "records.csv", index=False)
        train(hospital)
        replies.append(dict(evaluate(hospital).content["metrics"]))
    assert replies[0] == replies[1] and "patients" not in replies[0]
    assert replies[0]["held-out-patients"] == sum(is_test_patient(str(i), 0.25) for i in range(200))


def _bad_arrays(hospital: Path) -> Message:
    return evaluate(hospital, {"0.weight": np.zeros((7, 9)), "0.bias": np.zeros(7)})


def _no_arrays(hospital: Path) -> Message:
    question = message(EvaluateRequest(run="r", site=0, round=1, private_evaluations=1), "evaluate")
    return app(question, context(hospital))


def _bad_scale(hospital: Path) -> Message:
    question = message(EvaluateRequest(run="r", site=0, round=1, private_evaluations=1), "evaluate", model())
    question.content["standardiser"] = question.content["arrays"]
    return app(question, context(hospital))


def _large_numbers(hospital: Path) -> Message:
    return evaluate(hospital, {name: np.full_like(value, 1.1e6) for name, value in model().items()})


def _other_model(hospital: Path) -> Message:
    return evaluate(hospital, config=CONFIG.with_values({"model": "elsewhere:Net"}))


@pytest.mark.parametrize("policy", [EXACT, STRICT], ids=["exact", "private"])
@pytest.mark.parametrize("ask", [_bad_arrays, _no_arrays, _bad_scale, _large_numbers, _other_model])
def test_a_refused_evaluation_leaves_no_row_in_any_ledger(
    tmp_path: Path, policy: str, ask: Callable[[Path], Message]
) -> None:
    hospital = make_hospital(tmp_path, policy)
    train(hospital)
    reply = ask(hospital)
    assert reply.has_error() and "its own log" not in str(reply.error.reason)
    assert purposes(hospital) == ["train"] and not (tmp_path / "home" / "held-out.sqlite").exists()


def test_private_metrics_leave_by_default_at_the_policys_price_and_cost_training_patients_nothing(
    tmp_path: Path,
) -> None:
    hospital = make_hospital(tmp_path)
    train(hospital)
    before = ledger(hospital).epsilon()
    content = evaluate(hospital).content
    assert set(content["metrics"]) == {"num-examples"} and content["metrics"]["num-examples"] == 1.0
    counts = content[COUNTS]["counts"].numpy()
    assert counts.shape == (1, 2, BINS) and counts.sum() == pytest.approx(50, abs=40)
    assert ledger(hospital).epsilon() == before and purposes(hospital) == ["train"]
    noise = Scores.within(2, 1.0, 1, Pricing(1e-3)).noise_multiplier
    assert held_out(hospital).epsilon() == epsilon(gaussian_event(noise), 1e-3) <= 1.0
    assert content[RECORD]["held-out-epsilon"] == held_out(hospital).epsilon()
    assert held_out(hospital).budget == 2.0 and held_out(hospital).verify()


def test_the_same_question_gets_the_same_counts_and_another_is_paid_for_within_the_runs_epsilon(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    first, again = (evaluate(hospital, private_evaluations=2).content[COUNTS]["counts"].numpy() for _ in range(2))
    assert np.array_equal(first, again) and len(held_out(hospital).events()) == 1
    assert COUNTS in evaluate(hospital, threshold(50.0), round=2, private_evaluations=2).content
    refused = evaluate(hospital, threshold(60.0), round=3, private_evaluations=2).content
    assert COUNTS not in refused and "metrics-epsilon of 1" in str(refused[RECORD]["withheld"])
    # Fewer releases than were planned have less noise, and no more epsilon.
    assert COUNTS not in evaluate(hospital, threshold(60.0), round=3, private_evaluations=1).content
    assert len(held_out(hospital).events()) == 2 and held_out(hospital).epsilon() <= 1.0


def test_an_exhausted_budget_of_held_out_patients_withholds_metrics_and_training_goes_on(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 1.2\ndelta = 1e-3\n")
    assert COUNTS in evaluate(hospital, run="a").content
    refused = evaluate(hospital, run="b").content
    assert COUNTS not in refused and "privacy budget" in str(refused[RECORD]["withheld"])
    assert held_out(hospital).epsilon() <= 1.2
    assert train(hospital, noise_multiplier=3.0).has_content()


def test_a_policy_may_let_no_private_metrics_leave(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, STRICT + "metrics-epsilon = 0\n")
    assert set(evaluate(hospital).content) == {"metrics", RECORD}
    assert not (tmp_path / "home" / "held-out.sqlite").exists()
    assert set(evaluate(hospital, private_evaluations=None).content) == {"metrics", RECORD}


def test_private_metrics_are_withheld_where_imputation_mixes_patients(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, STRICT + "allow-without-privacy = true\n")
    config = RunConfig.build(CONFIG.minimal() | {"data.imputation": "mice", "privacy.dp": False})
    content = evaluate(hospital, config=config).content
    assert COUNTS not in content and "no epsilon holds" in str(content[RECORD]["withheld"])


def test_a_kill_between_charge_and_counts_keeps_the_charge_and_its_release_is_paid_once_more(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    script = (
        "import os, signal, sys, pathlib\n"
        "from polyclinic.client import evaluation\n"
        "evaluation._held_out = lambda call: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from tests.client.test_evaluation import evaluate\n"
        "evaluate(pathlib.Path(sys.argv[1]), private_evaluations=3)\n"
    )
    dead = python("-c", script, str(hospital))
    assert dead.returncode == -signal.SIGKILL
    assert [event["purpose"] for event in held_out(hospital).events()] == ["private-metrics"]
    for _ in range(2):
        assert COUNTS in evaluate(hospital, private_evaluations=3).content
    assert len(held_out(hospital).events()) == 2 and held_out(hospital).epsilon() <= 1.0


def test_a_query_asks_held_out_patients_too_and_is_charged_to_their_account(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, STRICT + 'allowed-tasks = ["classification", "query"]\n')
    evaluate(hospital)
    question = AskRequest(run="q", site=0, question=write_question(Statistic("count", epsilon=0.5)))
    assert app(message(question, ASK), context(hospital)).has_content()
    assert [event["purpose"] for event in held_out(hospital).events()] == ["private-metrics", "query-count"]
    assert 1.0 < held_out(hospital).epsilon() <= 2.0 and ledger(hospital).epsilon() == pytest.approx(0.5, abs=0.01)
    large = Statistic("count", where=("age > 50",), epsilon=1.4)
    refused = app(message(AskRequest(run="q", site=0, question=write_question(large)), ASK), context(hospital))
    assert refused.has_error() and "Held-out patients" in str(refused.error.reason)
    assert ledger(hospital).epsilon() == pytest.approx(0.5, abs=0.01)
