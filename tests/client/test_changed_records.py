"""A hospital whose records change while a run goes on: it notices, says only that, and takes no further part in that run."""

from pathlib import Path

import pandas as pd
import pytest

from polyclinic.client.app import app
from polyclinic.client.home.hospital import OwnRecords
from polyclinic.config import RunConfig
from polyclinic.wire.messages import FAILED, EvaluateRequest, StatisticsRequest, TrainRequest
from tests.client.test_hospital import STRICT, context, ledger, make_hospital, message, model, train

# Room for several runs, each of which declares rounds of its own.
ROOMY = "budget = 9.0\ndelta = 1e-3\n"
WORDS = "the records are not those with which this run began here"


def change(folder: Path, how: str) -> None:
    """Write the records anew, and forget them as a process of its own would."""
    records = pd.read_csv(folder / "records.csv")
    if how == "fewer":
        records = records[:143]
    elif how == "order":
        records = records[::-1]
    elif how == "a cell":
        records.loc[0, "age"] += 1
    elif how == "a cell less":
        records.loc[0, "sbp"] = float("nan")
    records.to_csv(folder / "records.csv", index=False)
    OwnRecords.read.cache_clear()


@pytest.mark.parametrize("how", ["fewer", "a cell", "a cell less"])
def test_a_run_does_not_go_on_with_other_records_than_it_began_with(tmp_path: Path, how: str) -> None:
    hospital = make_hospital(tmp_path, ROOMY)
    assert train(hospital).has_content()
    spent = ledger(hospital).epsilon()
    change(tmp_path, how)
    for reply in (train(hospital), train(hospital, round=2)):  # neither the same round nor the next
        assert reply.error.code == FAILED and WORDS in str(reply.error.reason)
        assert not any(character.isdigit() for character in str(reply.error.reason))  # and nothing of how they changed
    assert ledger(hospital).epsilon() == spent
    assert train(hospital, run="another").has_content()


def test_statistics_are_a_run_s_beginning(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    request = StatisticsRequest(run="r", site=0, noise_multiplier=5.0)
    assert app(message(request, "query.statistics"), context(hospital)).has_content()
    change(tmp_path, "fewer")
    assert WORDS in str(train(hospital).error.reason)


def test_exact_metrics_of_other_records_do_not_leave_in_the_same_run(tmp_path: Path) -> None:
    """The difference of two would be of the patients that came or went."""
    hospital = make_hospital(tmp_path, f"{STRICT}release-metrics = true\n")
    assert train(hospital).has_content()
    change(tmp_path, "fewer")
    reply = app(message(EvaluateRequest(run="r", site=0, round=1), "evaluate", model()), context(hospital))
    assert reply.error.code == FAILED and WORDS in str(reply.error.reason)


def test_the_order_of_records_may_change_as_a_data_base_changes_it_but_where_batches_are_dealt_by_it(
    tmp_path: Path,
) -> None:
    hospital, cyclic = (
        make_hospital(tmp_path, ROOMY),
        RunConfig(training={"local_steps": 3, "sample_rate": 0.25, "batching": "cyclic"}, rounds=4),
    )
    asked = (
        TrainRequest(run="cyclic", site=0, round=1, noise_multiplier=6.0, public_patients=150.0, learning_rate=0.5),
        "train",
    )
    assert train(hospital).has_content() and app(message(*asked, model()), context(hospital, cyclic)).has_content()
    change(tmp_path, "order")
    assert train(hospital, round=2).has_content()
    assert WORDS in str(app(message(*asked, model()), context(hospital, cyclic)).error.reason)


def test_records_that_are_written_anew_and_are_the_same_do_not_stop_a_run(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    train(hospital)
    change(tmp_path, "nothing")
    assert train(hospital, round=2).has_content()
