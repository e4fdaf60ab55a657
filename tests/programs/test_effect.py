"""Runs of task effect: charged sums, tables and figure; the published effect of aspirin; options that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyclinic import Federation, RunResult
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic.programs.analyses.effect import Effect

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
    if not secure:
        assert result.tables["overlap"]["Patients"].tolist() == [9720, 9715]


def effect(**options: Any) -> Effect:
    return Effect(RunConfig.build({"dataset": "trial", "task": "effect"}), **({"treatment": "intensive"} | options))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"treatment": ""}, "names '', which is no feature"),
        ({"treatment": "intensiv"}, "Did you mean 'intensive'"),
        ({"treatment": "age"}, "a column of kind 'integer'; allowed are yes or no"),
        ({"treatment": "intensive=maybe"}, "has the category 'maybe'; intensive has 0, 1"),
        ({"covariates": "age+intensive"}, "names 'intensive', which is the treatment or named twice"),
        ({"covariates": "age+age"}, "named twice"),
        ({"covariates": "height"}, "names 'height', which is no feature"),
        ({"propensity": 1.0}, "'propensity' of task effect is 1.0; allowed are numbers from 0 to 0.99"),
        ({"propensity": "half"}, "'propensity' of task effect is 'half'"),
        ({"most_weight": 1}, "'most-weight' of task effect is 1; allowed are numbers from 2 to 1000"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        effect(**options).method(TRIAL)
    assert sentence in str(refused.value)


def test_a_category_is_compared_with_another_or_with_all_others() -> None:
    ist = dataset_named("ist").schema
    method = effect(treatment="rxhep=M", control="N", covariates="age+ratrial+stype").method(ist)
    names = ("rxhep=L", "rxhep=M")
    at = [method.layout.names.index(name) + 1 for name in names]
    assert method.names == ["age", "ratrial=N", "ratrial=Y", "stype=LACS", "stype=TACS", "stype=POCS", "stype=OTH"]
    for arms, (medium, neither) in (
        (method.arms, ([0, 0, 1], [1, -1, -1])),
        (effect(treatment="rxhep=M", covariates="age").method(ist).arms, ([0, 0, 1], [1, 0, -1])),
    ):
        assert arms[[0, *at], 0].tolist() == medium and arms[[0, *at], 1].tolist() == neither
    with pytest.raises(ConfigError, match="which may be missing; name the control too"):
        effect(treatment="ratrial=Y").method(ist)
    assert effect(treatment="ratrial=Y", control="N").method(ist).names[0] == "rdelay"
