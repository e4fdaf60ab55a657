"""Algorithm 2 at hospitals: the exact posterior's mean, one hospital split in three, a charge for every step, no bad question."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from polyclinic import Federation, RunResult
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.gauss_newton import GaussNewton, fit
from polyclinic.inference.likelihood import Logistic
from polyclinic.inference.private_flow import FlowSums, flow_settings
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.streams import generator
from polyclinic.server.calibration import calibrate
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import context, make_hospital, message

FLOW = "method=flow, clip=1000, draws=4, hidden=4"
Run = Callable[..., RunResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> RunResult:
        usual = {
            "task": "posterior", "posterior.columns": "age, male, controlled", "sites": 3, "rounds": 4, "posterior.options": FLOW,
        }  # fmt: skip
        return Federation.from_dataset("trial", out=str(tmp_path)).run(**({"pictures": False} | usual | options))

    return call


def flow(rounds: int, **options: Any) -> FlowSums:
    settings = flow_settings({"clip": 1e3, "draws": 8, "hidden": 4} | options, rounds)
    return FlowSums(Logistic(("x", "y")), np.zeros(2), np.full(2, 2.5), settings)


def test_without_noise_the_mean_is_near_the_exact_posteriors() -> None:
    rng = generator(3, "flow runs")
    x = rng.normal(size=400)
    table = np.column_stack([x, rng.uniform(size=400) < 1 / (1 + np.exp(0.5 - x))]).astype(np.float64)
    method = flow(100)
    exact = fit(GaussNewton(method.likelihood, method.start, method.scale), [table], 0.0, rng).posterior
    state = method.begin(400)
    for round in range(1, 101):
        mean = method.contributions(method.question(state), table).sum(0) / 400
        state = method.absorb(round, state, mean, 0.0)
    found = method.posterior(state).as_json(method.likelihood.names)
    rows = found["parameters"].values()
    assert np.allclose([row["mean"] for row in rows], exact.mean, atol=1.5 * exact.deviations.max())
    assert all(row["low"] < row["mean"] < row["high"] and row["sd"] < 1.0 for row in rows)  # from 2.5
    assert np.diag(found["correlations"]) == pytest.approx(1.0) and "noise of the steps" in found["not_counted"]


def test_a_patients_vector_holds_its_scores_at_the_draws_by_the_clip() -> None:
    method, records = flow(5, clip=2.0), np.array([[0.5, 1.0], [-1.0, 0.0]])
    question = method.question(method.begin(2))
    draws = torch.tensor(question["draws"])
    for found, record in zip(method.contributions(question, records), torch.tensor(records), strict=True):
        scores = torch.stack([method.likelihood.score(draw, record[None])[0] for draw in draws]).numpy()
        np.testing.assert_allclose(2.0 * found.reshape(scores.shape), scores / np.sqrt(len(draws)), atol=1e-12)
        assert 2.0 * np.linalg.norm(found) == pytest.approx(np.sqrt((scores**2).sum(axis=1).mean()))


def test_one_hospital_split_in_three_gives_the_same_and_goes_on_the_same(run: Run) -> None:
    whole, split = (run(privacy={"dp": False}, sites=sites, partitioner="iid") for sites in (1, 3))
    for name, row in whole.numbers["posterior"]["parameters"].items():
        assert split.numbers["posterior"]["parameters"][name] == pytest.approx(row, rel=1e-6)
    assert run(privacy={"dp": False}, partitioner="iid").numbers["posterior"] == split.numbers["posterior"]


def test_every_step_is_charged_and_the_report_says_what_intervals_leave_out(run: Run) -> None:
    result = run(privacy={"epsilon": 5.0}, **{"posterior.options": "method=flow, draws=4, hidden=4"})
    for site in result.summary["statement"]["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", *["train"] * 4]
        assert site["epsilon"] == pytest.approx(
            epsilon(calibrate(result.config).total_event, result.config.privacy.delta), rel=1e-6
        )
        assert site["epsilon"] <= 5.0
    written = json.loads((result.path / "analysis.json").read_text())["numbers"]["posterior"]
    assert written["method"] == "flow" and all("inflation" not in row for row in written["parameters"].values())
    page = (result.path / "report.html").read_text()
    assert "They do not count the noise of the steps" in page and "Widened" not in page
    assert any("Algorithm 2" in note for note in result.summary["notes"])


def test_rounds_are_a_hundred_unless_given() -> None:
    given = {"task": "posterior", "posterior.options": "method=flow"}
    assert RunConfig.build(given).rounds == 100 and RunConfig.build(given | {"rounds": 9}).rounds == 9
    assert RunConfig.build({"task": "posterior"}).rounds == 8
    assert RunConfig.from_flower(RunConfig.build(given).flat()) == RunConfig.build(given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("method=flows", "'method' is 'flows'; allowed are gauss-newton and flow"),
        ("method=flow, clip=0", "'clip' is 0; allowed are numbers from 1e-06"),
        ("method=flow, clip=nan", "'clip' is nan"),
        ("method=flow, draws=2.5", "'draws' is 2.5; allowed are whole numbers from 1 to 64"),
        ("method=flow, rate=true", "'rate' is True"),
        ("method=flow, averaged=1", "'averaged' is 1; allowed are numbers from 0.0 to 0.9"),
        ("clip=1", "no option 'clip'"),
    ],
)
def test_an_option_that_cannot_be_is_named(run: Run, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**{"posterior.options": options})


def test_a_real_hospital_refuses_a_bad_question_unpaid(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["posterior"]\n')
    config = RunConfig.build({"task": "posterior", "posterior.options": "method=flow, draws=4, hidden=4"})
    method = FlowSums(
        Logistic(("a", "b", "y")), np.zeros(3), np.full(3, 2.5), flow_settings({"draws": 4, "hidden": 4}, 100)
    )
    good = {"round": np.array([1]), **method.question(method.begin(1.0))}

    def asked(**wrong: np.ndarray) -> Any:
        request = TrainRequest(
            run="r", site=0, round=1, noise_multiplier=40.0, public_patients=150.0, learning_rate=1.0
        )
        sent = message(request, "train", {})
        sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in (good | wrong).items()})
        return app(sent, context(hospital, config))

    for wrong, words in (
        ({"round": np.array([101])}, "'round' must be one number from 1 to 100"),
        ({"draws": np.full((4, 3), np.nan)}, "not finite"),
        ({"draws": np.zeros((5, 3))}, "is not one that flow can answer"),
        ({"draws": good["draws"].astype(np.float32)}, "is not one that flow can answer"),
        ({"draws": np.full((4, 3), 1e200)}, "holds values that are not finite numbers from -1e+06"),
    ):
        assert words in asked(**wrong).error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert not asked().has_error() and (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_run_of_few_sums_is_no_posterior() -> None:
    method = flow(10)
    with pytest.raises(DataError, match="too few hospitals answered"):
        method.posterior(method.begin(5.0))
