"""Runs of task posterior: the library's numbers over any hospitals, a charge for every sum, and no result that is not one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from torch import Tensor

from polyclinic import Federation, RunResult
from polyclinic.cli import main
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inference.gauss_newton import fit
from polyclinic.inference.likelihood import Likelihood
from polyclinic.inspection.audits import subject_of_config
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import clipped_total
from polyclinic.programs.analyses.posterior import Posterior
from polyclinic.server.calibration import calibrate
from polyclinic.server.federate import Places, federate
from polyclinic.server.progress import Progress
from polyclinic.training.auditing.audit import noise, sensitivity, steps
from polyclinic.training.auditing.faults import fault_named
from polyclinic.types import Arrays
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, make_hospital, message

COLUMNS = "intensive, age, male, controlled"
Run = Callable[..., RunResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> RunResult:
        usual = {"task": "posterior", "posterior.columns": COLUMNS, "sites": 3, "privacy.epsilon": 20.0}
        return Federation.from_dataset("trial", out=str(tmp_path)).run(**({"pictures": False} | usual | options))

    return call


def tables(config: RunConfig) -> list[np.ndarray]:
    """The records of each hospital's training patients, as the likelihood reads them."""
    dataset = dataset_named(config.dataset)
    method = Posterior(config).method(dataset.schema)
    shards = load_shards(dataset, config.sites, config.partitioner or "natural", config.seed, config.alpha)
    return [method.layout.rows(shard.train.x, shard.train.y)[:, method.places] for shard in shards]


def numbers(result: RunResult) -> np.ndarray:
    """(k, 2) means and standard deviations."""
    return np.array([[row["mean"], row["sd"]] for row in result.numbers["posterior"]["parameters"].values()])


def test_it_is_the_librarys_and_one_hospital_split_in_three_gives_the_same(run: Run) -> None:
    for options in (
        {},
        {"model": "linear", "posterior.columns": "age, male, intensive", "posterior.options": "deviation=0.3"},
    ):
        whole, split = (run(privacy={"dp": False}, sites=sites, partitioner="iid", **options) for sites in (1, 3))
        method = Posterior(split.config).method(dataset_named("trial").schema).method
        found = fit(method, tables(split.config), 0.0, generator(0, "none"))
        expected = np.column_stack([found.posterior.mean, found.posterior.deviations])
        np.testing.assert_allclose(numbers(split), expected, rtol=1e-9)
        above = np.triu_indices(len(expected), 1)
        assert np.allclose(
            np.array(split.numbers["posterior"]["correlations"])[above], found.posterior.correlations, atol=1e-9
        )
        assert sum(map(len, tables(whole.config))) == sum(map(len, tables(split.config)))
        np.testing.assert_allclose(numbers(whole), numbers(split), rtol=1e-6)
        assert split.numbers["posterior"]["patients"] == sum(map(len, tables(split.config)))


def test_every_sum_and_the_count_are_charged_and_the_file_says_so(run: Run) -> None:
    result = run(pictures=True)
    plan = calibrate(result.config)
    for site in result.summary["statement"]["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", *["train"] * 8]
        assert site["epsilon"] == pytest.approx(epsilon(plan.total_event, result.config.privacy.delta), rel=1e-6)
        assert site["epsilon"] <= 20.0
    written = json.loads((result.path / "analysis.json").read_text())
    assert written["privacy"]["epsilon"] == result.privacy["epsilon"]
    written = written["numbers"]["posterior"]
    assert written["parameters"] == result.numbers["posterior"]["parameters"]
    assert written["columns"]["age"] == {"centre": 65.0, "scale": 12.5, "unit": "years"}
    page = (result.path / "report.html").read_text()
    assert "Widened" in page and not any(word in page for word in ("AUROC", "held-out patients. In this"))
    assert (result.path / "plots" / "posterior.svg").is_file()
    wide = [row["inflation"] for row in result.numbers["posterior"]["parameters"].values()]
    assert all(1.0 < one < 2.0 for one in wide)
    exact = numbers(run(privacy={"dp": False}))
    assert (np.abs(numbers(result) - exact)[:, 0] < 3 * exact[:, 1]).all()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
        pytest.param({"secure.aggregation": True}, marks=pytest.mark.slow),
        {"secure.aggregation": True, "secure.shared-noise": True},
    ],
)
def test_every_way_of_collecting_gives_the_posterior(run: Run, options: dict[str, Any]) -> None:
    result, plain = run(**options), run()
    if options == {"workers": 2}:
        assert result.numbers["posterior"] == plain.numbers["posterior"]
    else:
        widened = [
            np.array([row["inflation"] for row in one.numbers["posterior"]["parameters"].values()])
            for one in (result, plain)
        ]
        assert np.allclose(*widened, rtol=0.02) if len(options) == 1 else (widened[0] < widened[1]).all()
        exact = numbers(run(privacy={"dp": False}))
        assert (np.abs(numbers(result) - exact)[:, 0] < 3 * exact[:, 1]).all()


def test_a_run_that_was_stopped_goes_on_to_the_same_posterior(run: Run) -> None:
    class Stopped(Exception):
        pass

    class Watcher(Progress):
        def on_folder(self, folder: Path) -> None:
            self.folder = folder

        def on_round(self, config: RunConfig, state: Any) -> None:
            if state.round == 6:
                raise Stopped

    whole, watcher = run(), Watcher()
    with pytest.raises(Stopped):
        run(progress=watcher)
    again = Federation.resume(watcher.folder)
    assert (
        again.numbers["posterior"] == whole.numbers["posterior"]
        and again.privacy["epsilon"] == whole.privacy["epsilon"]
    )


def test_hospitals_that_are_away_leave_the_mean_of_those_that_are_there(run: Run, tmp_path: Path) -> None:
    away = tmp_path / "away.csv"
    away.write_text("round,site\n" + "".join(f"{number},hospital-3\n" for number in (5, 6, 7, 8)))
    found = run(privacy={"dp": False}, simulation={"availability": str(away)})
    config = found.config
    method = Posterior(config).method(dataset_named("trial").schema).method
    others = fit(method, tables(config)[:2], 0.0, generator(0, "none")).posterior
    np.testing.assert_allclose(numbers(found)[:, 1], others.deviations, rtol=0.02)
    assert (np.abs(numbers(found)[:, 0] - others.mean) < 0.1 * others.deviations).all()
    assert found.numbers["posterior"]["patients"] == sum(map(len, tables(config)[:2]))


class Clocked(Likelihood):
    """A likelihood of one's own: a normal of known spread around one level."""

    names, columns = ("level",), ("age",)

    def __init__(self, spread: float = 0.5) -> None:
        self.spread = spread

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        return -(((records[:, 0] - parameters) / self.spread) ** 2) / 2


OWN = f"{__name__}:Clocked"


def test_a_likelihood_of_ones_own_is_taken_by_its_name(run: Run) -> None:
    result = run(
        model=OWN,
        **{"posterior.columns": "", "posterior.prior-sd": 10, "posterior.options": "spread=0.7", "privacy.dp": False},
    )
    ages = np.concatenate([table[:, 0] for table in tables(result.config)])
    assert numbers(result)[0] == pytest.approx([ages.mean(), 0.7 / np.sqrt(len(ages))], rel=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"privacy.epsilon": 0.3}, "budget is too small for 4 parameters"),
        ({"posterior.columns": "age, mal, controlled"}, "no number 'mal' in a record. Did you mean 'male'"),
        ({"posterior.columns": "age, age, controlled"}, "names 'age' twice"),
        ({"posterior.columns": "age, controlled=0, controlled"}, "has the label more than once"),
        ({"posterior.columns": "male, age"}, "'age' last, which is a number; the model's outcome is 0 or 1"),
        (
            {"posterior.columns": "male, sbp_01", "model": "linear", "posterior.options": "deviation=1"},
            "an outcome is not filled in",
        ),
        ({"posterior.prior-sd": "1, 2"}, "has 2 numbers; allowed are 1, or 4 for intercept, intensive, age, male"),
        ({"posterior.prior-sd": "0"}, "must be positive numbers"),
        ({"posterior.prior-sd": "1e-300"}, "positive numbers separated by commas.*from 1e-06"),
        ({"posterior.prior-mean": "none"}, "must be numbers separated by commas"),
        ({"posterior.prior-mean": "0, 1e300, 0, 0"}, "must be numbers separated by commas.*to 1e"),
        ({"model": "linear"}, "needs the option 'deviation'"),
        ({"model": "linear", "posterior.options": "deviation=inf"}, "positive finite deviation"),
        ({"model": "linear", "posterior.options": "sd=1"}, "no option 'sd'; allowed are deviation"),
        ({"model": "logistics"}, "Did you mean 'logistic'"),
        ({"model": OWN}, "has its own columns"),
        ({"rounds": 1}, "whose last half is averaged"),
        ({"data.standardise": "public"}, "standardise is 'public' but task is 'posterior'"),
        ({"strategy": "fedadam"}, "which no step or strategy changes"),
        ({"privacy.max-grad-norm": 3.0}, "set privacy.max-grad-norm to 1.0"),
        ({"hidden": "8"}, "hidden"),
        ({"synthesis.rows": 20}, "only with the task synthesis"),
        ({"synthesis.candidates": 2}, "only with the task synthesis"),
        ({"task": "classification"}, "only with the task posterior"),
        ({"secure.aggregation": True, "secure.clip-norm": 0.5}, "a shorter one would be cut and the result false"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    run: Run, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**options)
    assert not list(tmp_path.iterdir())


def test_a_budget_that_a_real_count_shows_too_small_costs_the_count_alone(tmp_path: Path) -> None:
    given = {"dataset": "trial", "task": "posterior", "posterior.columns": COLUMNS, "sites": 3, "privacy.epsilon": 0.3}
    for number, (public, words) in enumerate(((0, "the numbers of patients were spent"), (200, "nothing was spent"))):
        config, home = RunConfig.build(given, {"privacy.patients-per-site": public}), tmp_path / str(number)
        home.mkdir()
        with Federation._grid(config) as grid, pytest.raises(ConfigError, match=f"budget is too small.*{words}"):
            federate(grid, config, "run", Places(home))
        path = home / "ledger.sqlite"
        charged = (
            [event["purpose"] for site in Ledger.read_all(path).values() for event in site.events()]
            if public == 0
            else []
        )
        assert charged == ["statistics"] * (0 if public else 3) and path.exists() == (public == 0)


def test_steps_that_do_not_settle_leave_the_bill_and_no_posterior(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two rounds from a prior far away: no step of theirs is near the end.
    given = {
        "task": "posterior",
        "posterior.columns": COLUMNS,
        "sites": "3",
        "rounds": "2",
        "posterior.prior-mean": "40",
        "privacy.epsilon": "50",
    }
    sets = [part for key, value in given.items() for part in ("-c", f"{key}={value}")]
    with pytest.raises(SystemExit) as end:
        monkeypatch.setattr(
            "sys.argv", ["polyclinic", "run", "--dataset", "trial", "--out", str(tmp_path), "--json", *sets]
        )
        main()
    assert end.value.code == 1
    said = capsys.readouterr()
    assert "did not settle" in said.err and "ledger.json" in said.err
    (folder,) = tmp_path.iterdir()
    told = json.loads(said.out)
    assert "did not settle" in told["analysis"]["refused"] and not told["analysis"]["numbers"]
    assert json.loads((folder / "ledger.json").read_text())["sites"]["hospital-1"]["epsilon"] > 0
    assert not (folder / "analysis.json").exists() and "There is no result." in (folder / "report.html").read_text()
    monkeypatch.setattr("sys.argv", ["polyclinic", "show", str(folder)])
    with pytest.raises(SystemExit) as shown:
        main()
    assert not shown.value.code and "did not settle" in capsys.readouterr().out
    with pytest.raises(PolyclinicError, match="did not settle"):
        RunResult.read(folder).folder.analysis()


POLICY = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["posterior"]\n'


def asked(hospital: Path, question: dict[str, np.ndarray], arrays: Arrays | None = None, **changes: Any) -> Any:
    config = RunConfig.build({"task": "posterior"} | changes)
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=4.0, public_patients=150.0, learning_rate=1.0)
    sent = message(request, "train", arrays or {})
    sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in question.items()})
    return app(sent, context(hospital, config))


def test_a_real_hospital_answers_one_sum_and_refuses_a_lying_servers_question_unpaid(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    good = {"round": np.array([1]), "estimate": np.zeros(3), "basis": np.diag([2.5] * 3)}
    for wrong, words in (
        ({"round": np.array([9])}, "'round' must be one number from 1 to 8"),
        ({"estimate": np.array([0.0, np.nan, 0.0])}, "not finite"),
        ({"basis": np.full((3, 3), np.inf)}, "not finite"),
        ({"estimate": np.zeros((3, 1))}, "is not one that gauss-newton can answer"),
        ({"estimate": np.zeros(4)}, "is not one that gauss-newton can answer"),
        ({"basis": np.eye(4)}, "is not one that gauss-newton can answer"),
        ({"basis": np.zeros((3, 3), dtype=np.int64)}, "is not one that gauss-newton can answer"),
    ):
        assert words in asked(hospital, good | wrong).error.reason
    assert "has no model, but the message holds sum" in asked(hospital, good, {"sum": np.zeros(10)}).error.reason
    assert "can answer" in asked(hospital, {"round": good["round"]}).error.reason
    default = make_hospital(tmp_path, "budget = 2.0\ndelta = 1e-3\n")
    assert "the policy allows the tasks classification" in asked(default, good).error.reason
    named = asked(make_hospital(tmp_path, POLICY), good, model=OWN).error.reason
    assert "the policy allows the models logistic" in named
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    first, again = asked(hospital, good), asked(hospital, good)
    np.testing.assert_array_equal(*[reply.content["arrays"]["sum"].numpy() for reply in (first, again)])


def test_a_patients_rows_count_once_and_a_missing_number_stands_at_its_public_centre() -> None:
    method = Posterior(RunConfig.build({"task": "posterior"})).method(Schema.from_dict(SCHEMA))
    question, rng = method.question(1, {}), generator(3, "rows")
    x, y, patient = rng.uniform(-1, 1, (9, 2)), rng.integers(0, 2, 9), np.array([0, 0, 0, 0, 1, 2, 2, 3, 4])
    z = method.layout.rows(x, y)

    def total(z: np.ndarray, patient: np.ndarray, patients: int) -> np.ndarray:
        def vectors(rows: np.ndarray, patient: np.ndarray, patients: int) -> np.ndarray:
            return method.contributions(1, question, rows, patient, patients)

        return clipped_total(vectors, method.size(1, {}), z, patient, patients)

    each = [total(z[patient == one], np.zeros((patient == one).sum(), dtype=np.int64), 1) for one in range(5)]
    np.testing.assert_allclose(total(z, patient, 5), np.sum(each, axis=0), atol=1e-12)
    assert max(map(np.linalg.norm, each)) <= 1.0
    np.testing.assert_allclose(
        each[0], np.mean([total(row[None], np.array([0]), 1) for row in z[:4]], axis=0), atol=1e-12
    )
    x[:, 1] = np.nan
    assert (method.layout.rows(x, y)[:, method.places[1]] == 0).all()
    named = Posterior(RunConfig.build({"task": "posterior", "posterior.columns": "sbp missing, died"})).method(
        Schema.from_dict(SCHEMA)
    )
    assert (named.layout.rows(x, y)[:, named.places[0]] == 1).all()


def test_the_audit_passes_and_catches_what_is_planted() -> None:
    config = RunConfig.build(
        {"dataset": "trial", "task": "posterior", "posterior.columns": COLUMNS, "privacy.epsilon": 8.0}
    )
    subject = subject_of_config(config, seed=0)
    assert all(found.passed for found in (sensitivity(subject), steps(subject), *noise(subject)))
    assert not sensitivity(subject_of_config(config, 0, fault_named("no-clipping"))).passed
    assert not all(found.passed for found in noise(subject_of_config(config, 0, fault_named("half-noise"))))
