"""What a real hospital's messages tell of its records beside the noised numbers: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message

import polyclinic
from polyclinic.client.app import app
from polyclinic.wire.messages import EnrolRequest, EvaluateRequest, StatisticsRequest
from tests.client.test_hospital import COUNT_AND_ROUND, context, make_hospital, message, model, train


def told(folder: Path, rows: int) -> list[Any]:
    """All that a hospital with so many patients sends in a run, but the values of its arrays."""
    folder.mkdir()
    hospital = make_hospital(folder, rows=rows)
    counted = StatisticsRequest(run="r", site=0, noise_multiplier=5.0, plan=COUNT_AND_ROUND)
    replies = [
        app(message(EnrolRequest(run="r", site=0, version=polyclinic.__version__), "query.enrol"), context(hospital)),
        app(message(counted, "query.statistics"), context(hospital)),
        train(hospital),
        app(message(EvaluateRequest(run="r", site=0, round=1), "evaluate", model()), context(hospital)),
    ]
    return [_but_arrays(reply) for reply in replies]


def _but_arrays(reply: Message) -> dict[str, Any]:
    return {
        key: [(name, value.dtype, value.shape) for name, value in record.items()]
        if isinstance(record, ArrayRecord)
        else dict(record)
        for key, record in reply.content.items()
    }


def test_fault_15_one_patient_fewer_changes_nothing_but_noised_arrays(tmp_path: Path) -> None:
    """Counts, divisors, losses and shapes: a server that compares two runs learns of no patient beside the noise."""
    all_of_them, one_fewer = told(tmp_path / "all", 200), told(tmp_path / "fewer", 199)
    assert all_of_them == one_fewer
    assert [sorted(reply) for reply in all_of_them][2] == ["arrays", "metrics", "polyclinic"]


def test_fault_15_the_loss_of_private_training_stays_though_held_out_metrics_may_leave(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 2.0\ndelta = 1e-3\nrelease-metrics = true\n")
    assert set(train(hospital).content["metrics"]) == {"steps", "num-examples"}
