"""Runs of task effect: charged sums, tables and figure; the published effect of aspirin; options that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord

from polyclinic import Federation, RunResult
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.inspection.audits import subject_of_config
from polyclinic.plugins import dataset_named
from polyclinic.programs.analyses.effect import Effect
from polyclinic.training.auditing.audit import noise, sensitivity, steps
from polyclinic.training.auditing.faults import fault_named
from polyclinic.training.logistic.weighting import Weighting
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, make_hospital, message

Run = Callable[..., RunResult]
TRIAL = dataset_named("trial").schema
STROKES = dataset_named("ist-death-14")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(dataset: str = "trial", **options: Any) -> RunResult:
        usual = {
            "task": "effect",
            "task-options": "treatment=intensive, covariates=age+male+diabetes",
            "pictures": False,
        }
        return Federation.from_dataset(dataset, out=str(tmp_path)).run(**(usual | options))

    return call


def difference(result: RunResult) -> tuple[float, float, float]:
    """Estimate and interval of the difference."""
    row = result.tables["effect"].iloc[2]
    return float(row["Estimate"]), float(row["95 % from"]), float(row["to"])


def test_a_run_leaves_effect_balance_and_overlap_and_charges_every_sum(run: Run) -> None:
    result = run(pictures=True, **{"privacy.epsilon": 20.0})
    for site in result.summary["statement"]["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", *["train"] * 8]
        assert site["epsilon"] <= 20.0
    assert set(result.tables) == {"effect", "balance", "overlap"}
    assert list(result.tables["balance"]["Covariate"]) == ["age", "male", "diabetes"]
    written = json.loads((result.path / "analysis.json").read_text())
    assert [row["name"] for row in written["numbers"]["balance"]] == ["age", "male", "diabetes"]
    assert (result.path / "plots" / "balance.svg").is_file()
    page = (result.path / "report.html").read_text()
    assert "Average treatment effect on" in page and "Standardised differences" in page
    exact = run(privacy={"dp": False})
    (near, low, high), (true, *_) = difference(result), difference(exact)
    assert low < true < high and low < near < high
    by_noise = result.tables["effect"]["By noise"]
    assert (by_noise > 0.01).all() and (exact.tables["effect"]["By noise"] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"workers": 2}, {"secure.aggregation": True}, {"secure.aggregation": True, "secure.shared-noise": True}],
)
def test_every_way_of_collecting_gives_the_effect(run: Run, options: dict[str, Any]) -> None:
    result, plain = run(**options, **{"privacy.epsilon": 20.0}), run(**{"privacy.epsilon": 20.0})
    if "workers" in options:
        assert result.tables["effect"].equals(plain.tables["effect"])
        return
    _, low, high = difference(result)
    true = difference(run(privacy={"dp": False}))[0]
    assert low < true < high
    if "secure.shared-noise" in options:
        assert high - low < difference(plain)[2] - difference(plain)[1]


def test_how_patients_are_dealt_to_hospitals_changes_nothing_without_privacy(run: Run) -> None:
    one, three = (run(privacy={"dp": False}, partitioner="iid", sites=sites) for sites in (1, 3))
    assert difference(one) == pytest.approx(difference(three), rel=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(not STROKES.available(), reason="POLYCLINIC_DATA names no folder with ist")
@pytest.mark.parametrize("options, within", [({"dp": False}, 1e-4), ({"epsilon": 3.0}, 0.004)])
@pytest.mark.parametrize(
    "outcome, given, without, helps", [("dead_at_14", 0.0897, 0.0936, False), ("stroke_at_14", 0.0283, 0.0389, True)]
)
def test_aspirin_in_the_stroke_trial_does_what_was_published(
    run: Run, options: dict[str, Any], within: float, outcome: str, given: float, without: float,
    helps: bool,
) -> None:  # fmt: skip
    """IST 1997 (Lancet 349:1569): 9.0 and 9.4 % died within 14 days; 2.8 and 3.9 % had another ischaemic stroke."""
    secure = {"secure.aggregation": True, "secure.shared-noise": True} if "epsilon" in options else {}
    result = run(
        "ist-death-14", privacy=options, partitioner="natural+pool:100", **secure,
        **{"data.label": outcome, "task-options": "treatment=rxasp, propensity=0.5"},
    )  # fmt: skip
    effect = result.tables["effect"]["Estimate"]
    assert effect[0] == pytest.approx(given, abs=within) and effect[1] == pytest.approx(without, abs=within)
    value, low, high = difference(result)
    assert value < 0 and (high < 0) == helps and low < given - without < high
    page = (Path(__file__).parents[2] / "docs" / "effects.md").read_text(encoding="utf-8")
    shown = "{:.2f}, {:.2f}, {:.2f} ({:.2f} to {:.2f})".format(
        *(100 * x for x in (effect[0], effect[1], value, low, high))
    )
    assert shown.replace("-", "−") in page, shown
    if not secure:
        assert result.tables["overlap"]["Patients"].tolist() == [9720, 9715]


def effect(**options: Any) -> Effect:
    return Effect(RunConfig.build({"dataset": "trial", "task": "effect"}), **({"treatment": "intensive"} | options))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"treatment": ""}, "names '', which is not a feature"),
        ({"treatment": "intensiv"}, "Did you mean 'intensive'"),
        ({"treatment": "age"}, "names 'age'; allowed are columns of yes or no"),
        ({"treatment": "intensive=maybe"}, "has the category 'maybe'; those of intensive are 0, 1"),
        ({"covariates": "age+intensive"}, "names 'intensive', the treatment or a column named twice"),
        ({"covariates": "age+age"}, "a column named twice"),
        ({"covariates": "height"}, "names 'height', which is not a feature"),
        ({"propensity": 1.0}, "propensity is 1.0; allowed are numbers from 0 to 0.99"),
        ({"propensity": "half"}, "propensity is 'half'"),
        ({"most_weight": 1}, "most-weight is 1; allowed are numbers from 2 to 1000"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        effect(**options).method(TRIAL)
    assert sentence in str(refused.value)


def names_of(method: Weighting) -> list[str]:
    return [method.layout.names[place] for place in method.places]


def test_a_category_is_compared_with_another_or_with_all_others() -> None:
    ist = dataset_named("ist").schema
    method = effect(treatment="rxhep=M", control="rxhep=N", covariates="age+ratrial+stype").method(ist)
    at = [method.layout.names.index(name) + 1 for name in ("rxhep=L", "rxhep=M")]
    assert names_of(method) == ["age", "ratrial=N", "ratrial=Y", "stype=LACS", "stype=TACS", "stype=POCS", "stype=OTH"]
    for arms, (medium, neither) in (
        (method.arms, ([0, 0, 1], [1, -1, -1])),
        (effect(treatment="rxhep=M", covariates="age").method(ist).arms, ([0, 0, 1], [1, 0, -1])),
    ):
        assert arms[[0, *at], 0].tolist() == medium and arms[[0, *at], 1].tolist() == neither
    with pytest.raises(ConfigError, match="of one that may be missing two categories"):
        effect(treatment="ratrial=Y").method(ist)
    assert names_of(effect(treatment="ratrial=Y", control="ratrial=N").method(ist))[0] == "rdelay"


POLICY = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["effect"]\nallow-splits = true\n'


def asked(hospital: Path, question: dict[str, np.ndarray], number: int) -> Any:
    config = RunConfig.build({"task": "effect", "task-options": "treatment=treated"})
    request = TrainRequest(
        run="r", site=0, round=number, noise_multiplier=4.0, public_patients=150.0, learning_rate=1.0
    )
    sent = message(request, "train", {})
    sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in question.items()})
    return app(sent, context(hospital, config))


def test_a_real_hospital_answers_one_sum_and_refuses_a_lying_servers_question_unpaid(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    table = pd.read_csv(tmp_path / "records.csv")
    table.assign(treated=np.arange(len(table)) % 2).to_csv(tmp_path / "records.csv", index=False)
    columns = [*cast(list[Any], SCHEMA["columns"]), {"name": "treated", "kind": "binary"}]
    Schema.from_dict(SCHEMA | {"columns": columns}).to_toml(tmp_path / "schema.toml")
    good = {
        "round": np.array([8]), "estimate": np.zeros(4), "corrections": np.zeros((4, 2)), "means": np.full(2, 0.5)
    }  # fmt: skip
    for wrong, words in (
        ({"round": np.array([9])}, "'round' must be one number from 1 to 8"),
        ({"estimate": np.array([0.0, np.nan, 0.0, 0.0])}, "not finite"),
        ({"corrections": np.zeros((3, 2))}, "is not one that effect can answer"),
        ({"means": np.zeros(2, dtype=np.int64)}, "is not one that effect can answer"),
    ):
        assert words in asked(hospital, good | wrong, 8).error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    reply = asked(hospital, good, 8)
    assert reply.content["arrays"]["sum"].numpy().shape == (7,)


@pytest.mark.slow
def test_the_audit_passes_and_catches_what_is_planted() -> None:
    options = {"task-options": "treatment=intensive, covariates=age+male", "privacy.epsilon": 8.0}
    config = RunConfig.build({"dataset": "trial", "task": "effect"} | options)
    subject = subject_of_config(config, seed=0)
    assert all(check.passed for check in (sensitivity(subject), steps(subject), *noise(subject)))
    assert not sensitivity(subject_of_config(config, 0, fault_named("no-clipping"))).passed
    assert not all(check.passed for check in noise(subject_of_config(config, 0, fault_named("half-noise"))))
