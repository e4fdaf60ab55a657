"""``polyclinic query`` as a person uses it: over simulated hospitals, over one real hospital, and refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dp_accounting import ComposedDpEvent
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Schema
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import calibrate_noise_multiplier, epsilon, gaussian_event
from polyclinic.privacy.ledger import Ledger

Command = Callable[..., Any]
KEYS = {"statistic", "column", "where", "value", "standard_error", "mechanism", "event", "sites", "privacy", "ledger",
        "dropouts"}  # fmt: skip


def query(*arguments: str) -> Any:
    """The JSON of the command in this process; raises what it raises."""
    done = CliRunner().invoke(app, ["query", *arguments, "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Any]:
    def ask(statistic: str, *arguments: str, file: str = "ledger.sqlite") -> Any:
        return query(statistic, "--dataset", "breast-cancer", "--ledger", str(tmp_path / file), *arguments)

    return ask


def test_all_hospitals_answer_and_are_charged(heart_disease: None, tmp_path: Path) -> None:
    result = query("count", "--dataset", "heart-disease", "--epsilon", "1", "--ledger", str(tmp_path / "l"))
    shards = load_shards(dataset_named("heart-disease"), 0, "natural", 0, 1.0)
    truth = {shard.site: shard.patients for shard in shards}
    assert set(result) >= KEYS and set(result["sites"]) == set(truth)
    assert abs(result["value"] - sum(truth.values())) < 6 * result["standard_error"] < 20
    assert result["value"] == sum(site["value"] for site in result["sites"].values())
    ledgers = Ledger.read_all(tmp_path / "l")
    for name, site in result["sites"].items():
        assert abs(site["value"] - truth[name]) < 6 * site["standard_error"]
        assert 0.99 < site["epsilon"] == ledgers[name].epsilon() <= 1.0
        assert site["budget"] is None
    assert (
        result["privacy"].items() >= {"delta": 1e-4, "unit": "patient", "relation": "add-remove", "overlap": 1}.items()
    )
    assert 0.99 < result["privacy"]["epsilon"] <= 1


def test_fault_37_a_ledger_takes_no_charge_for_other_records_than_it_was_begun_with(
    simulated: Any, tmp_path: Path
) -> None:
    """Dealt by another seed, a patient is at another hospital, and the largest over hospitals would be no bound."""
    simulated("count", "--epsilon", "0.5")
    before = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(
        PolyclinicError, match="was begun with records 'breast-cancer dealt to .* seed 0.*'; it must stay so"
    ):
        simulated("count", "--epsilon", "0.5", "--seed", "1")
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


def test_the_column_is_given_by_its_place_or_by_name(tmp_path: Path) -> None:
    asked = ("--dataset", "breast-cancer", "--epsilon", "1", "--ledger")
    placed = query("mean", "mean_radius", *asked, str(tmp_path / "a"))
    named = query("mean", "--column", "mean_radius", *asked, str(tmp_path / "b"))
    assert placed["column"] == "mean_radius" and placed["value"] == named["value"]
    with pytest.raises(ConfigError, match="Give the column once"):
        query("mean", "mean_radius", "--column", "malignant", *asked, str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_a_narrow_terminal_loses_no_figure_of_many_hospitals(tmp_path: Path) -> None:
    asked = ["query", "count", "--dataset", "breast-cancer", "--sites", "20", "--epsilon", "1", "--out", str(tmp_path)]
    shown = CliRunner(env={"COLUMNS": "60"}).invoke(app, asked).stdout
    assert len([line for line in shown.splitlines() if " ± " in line]) == 21 and "…" not in shown


def test_every_statistic_is_near_the_truth(simulated: Callable[..., Any]) -> None:
    shards = load_shards(dataset_named("breast-cancer"), 0, "iid", 0, 1.0)
    radius = np.concatenate([shard.x[:, 0] for shard in shards]) * 20 + 20
    ill = np.concatenate([shard.y for shard in shards])
    mean = simulated("mean", "--column", "mean_radius", "--epsilon", "2")
    assert abs(mean["value"] - radius.mean()) < 6 * mean["standard_error"]
    where = ("--where", "mean_radius >= 15", "--where", "malignant == 1")
    count = simulated("count", *where, "--epsilon", "2", "--mechanism", "discrete-gaussian")
    assert abs(count["value"] - ((radius >= 15) & (ill == 1)).sum()) < 6 * count["standard_error"]
    histogram = simulated("histogram", "--column", "malignant", "--epsilon", "2", "--mechanism", "gaussian")
    for cell, number in histogram["value"].items():
        assert abs(number - (ill == int(cell)).sum()) < 6 * histogram["standard_error"][cell]
    for mechanism in ("exponential", "laplace"):
        found = simulated("quantile", "--column", "mean_radius", "--epsilon", "4", "--mechanism", mechanism)
        assert found["value"] == pytest.approx(np.median(radius), abs=3) and found["standard_error"] is None


def test_queries_of_one_ledger_add_up_and_a_seed_repeats_them(simulated: Callable[..., Any]) -> None:
    one, other = (simulated("count", "--epsilon", "0.5", "--mechanism", "gaussian") for _ in range(2))
    assert one["value"] != other["value"]
    for name, site in other["sites"].items():
        assert 1.3 * one["sites"][name]["epsilon"] < site["epsilon"] < 2 * one["sites"][name]["epsilon"]
    again = [simulated("count", "--epsilon", "0.5", "--mechanism", "gaussian", file="new") for _ in range(2)]
    assert [result["value"] for result in again] == [one["value"], other["value"]]
    seeded = simulated("count", "--epsilon", "0.5", "--mechanism", "gaussian", "--seed", "1", file="third")
    assert seeded["value"] != one["value"]


def test_a_run_and_queries_share_a_ledger(quick: Callable[..., RunResult]) -> None:
    ledger = quick(rounds=1, privacy={"epsilon": 1.0}).path / "sites" / "ledger.sqlite"
    asked = ("count", "--dataset", "breast-cancer", "--ledger", str(ledger), "--epsilon", "0.5")
    with pytest.raises(BudgetRefused, match="would spend the budget of 1, and only what it declared is answered"):
        query(*asked)
    result = query(*asked, "--mechanism", "gaussian", "--budget", "3")
    noises = [calibrate_noise_multiplier(spent, 1e-4, gaussian_event) for spent in (1.0, 0.5)]
    both = epsilon(ComposedDpEvent([gaussian_event(noise) for noise in noises]), 0.75e-4)
    for site in result["sites"].values():
        assert site["epsilon"] == pytest.approx(both, rel=1e-3) and site["budget"] == 3


def test_a_pure_query_after_a_run_costs_the_part_of_the_budget_that_pure_answers_have(
    quick: Callable[..., RunResult],
) -> None:
    """docs/privacy/filter.md: a quarter of epsilon is for the count here, and three quarters are for the run."""
    ledger = quick(rounds=1, privacy={"epsilon": 1.0}).path / "sites" / "ledger.sqlite"
    result = query("count", "--dataset", "breast-cancer", "--ledger", str(ledger), "--epsilon", "0.5", "--budget", "3")
    assert all(site["epsilon"] == pytest.approx(0.5 / (1 / 4)) for site in result["sites"].values())


def test_a_refused_budget_exits_with_3_and_charges_nothing(command: Command, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    arguments = ("count", "--dataset", "breast-cancer", "--ledger", str(ledger), "--epsilon", "0.8")
    query(*arguments, "--budget", "1")
    done = command("query", *arguments, "--json")
    assert done.returncode == 3 and "budget" in done.stderr and done.stdout == "" and "Traceback" not in done.stderr
    assert all(len(site.events()) == 1 and site.budget == 1 for site in Ledger.read_all(ledger).values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mean", "--column", "mean_radiu"], "Did you mean 'mean_radius'"),
        (["mean"], "needs a column"),
        (["median", "--column", "mean_radius"], "statistic must be one of count, mean, histogram, quantile, got"),
        (["count", "--where", "mean_radius >= 1000"], "public bounds 0 to 40"),
        (["count", "--where", "malignant == 2"], "one of 0, 1"),
        (["count", "--mechanism", "laplac"], "Did you mean 'laplace'"),
        (["count", "--mechanism", "randomised-response"], "'replace-one', not 'add-remove'"),
        (["histogram", "--column", "malignant", "--bins", "0"], "bins must lie"),
        (["histogram", "--column", "malignant", "--bins", "5"], "histogram of column 'malignant' has none"),
        (["mean", "--column", "mean_radius", "--bins", "5"], "--bins is 5, but a mean"),
        (["count", "--quantile", "0.2"], "--quantile is 0.2, but a count has none"),
        (["count", "--out", "elsewhere"], "--out is for a new ledger"),
        (["count", "--epsilon", "-1"], "epsilon must lie"),
        (["count", "--delta", "0.1"], "1/patients"),
        (["count", "--relation", "both"], "relation must be one of add-remove, replace-one, got"),
        (["count", "--budget", "-1"], "budget"),
        (["count", "--dataset", "breast-cance"], "Did you mean 'breast-cancer'"),
        (["count", "--sites", "-1"], "'sites' has the value -1"),
        (["count", "--hospital", "hospital.toml"], "exactly one of --dataset"),
    ],
)
def test_wrong_questions_are_refused_before_a_ledger_is_begun(tmp_path: Path, arguments: list[str], words: str) -> None:
    ledger = tmp_path / "deep" / "ledger.sqlite"
    with pytest.raises(ConfigError, match=words) as refused:
        query(*["--epsilon", "1", "--dataset", "breast-cancer", "--ledger", str(ledger)], *arguments)
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)
    assert not ledger.parent.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [(("--delta", "1e-5"), "begun with 0.0001"), (("--relation", "replace-one"), "begun with add-remove")],
)
def test_a_ledgers_terms_stay(simulated: Callable[..., Any], change: tuple[str, ...], words: str) -> None:
    simulated("count", "--epsilon", "0.5")
    with pytest.raises(ConfigError, match=words):
        simulated("count", "--epsilon", "0.5", *change)


def test_randomised_response_goes_with_replaced_patients(simulated: Callable[..., Any]) -> None:
    asked = ("histogram", "--column", "malignant", "--mechanism", "randomised-response", "--epsilon", "3")
    result = simulated(*asked, "--relation", "replace-one")
    assert result["privacy"]["relation"] == "replace-one" and 2.98 < result["privacy"]["epsilon"] <= 3
    assert sum(result["value"].values()) == pytest.approx(569)
    assert abs(result["value"]["1"] - 212) < 6 * result["standard_error"]["1"]
    assert all(2.98 < site["epsilon"] <= 3 for site in result["sites"].values())


def test_without_a_ledger_a_new_one_is_begun_and_named(tmp_path: Path) -> None:
    results = [query("count", "--dataset", "breast-cancer", "--epsilon", "1", "--out", str(tmp_path)) for _ in range(2)]
    ledgers = [Path(result["ledger"]) for result in results]
    assert ledgers[0] != ledgers[1] and all(ledger.is_relative_to(tmp_path) for ledger in ledgers)
    assert all(len(Ledger.read(ledger, "hospital-1").events()) == 1 for ledger in ledgers)


def test_a_person_reads_a_table(tmp_path: Path) -> None:
    asked = ["histogram", "--column", "malignant", "--dataset", "breast-cancer", "--epsilon", "1"]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["query", *asked, "--ledger", str(tmp_path / "l")])
    assert done.exit_code == 0 and "hospital-4" in done.stdout and "±" in done.stdout
    assert "costs each patient at most ε = 0.99" in done.stdout and "at δ = 0.0001 (add-remove, laplace)" in done.stdout
    assert str(tmp_path / "l") in done.stdout


# One real hospital.


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    records = pd.DataFrame({"id": np.arange(200), "age": rng.integers(20, 90, 200), "died": rng.integers(0, 2, 200)})
    records.to_csv(tmp_path / "records.csv", index=False)
    columns = [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120]},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    Schema.from_dict({"name": "clinic", "columns": columns}).to_toml(tmp_path / "schema.toml")
    (tmp_path / "hospital.toml").write_text(
        'site = "north"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n'
        '[policy]\nbudget = 1.0\ndelta = 1e-3\nallowed-tasks = ["query"]\n'
    )
    return tmp_path / "hospital.toml"


def test_a_real_hospital_answers_by_its_own_policy_and_ledger(hospital: Path) -> None:
    asked = ("mean", "--column", "age", "--hospital", str(hospital), "--epsilon", "0.4")
    one, other = query(*asked), query(*asked)
    assert one["value"] != other["value"]
    assert abs(one["value"] - 55) < 5 + 12 * one["standard_error"]
    assert set(one["sites"]) == {"north"} and one["sites"]["north"]["budget"] == 1.0
    ledger = Ledger.read(Path(one["ledger"]))
    assert [event["purpose"] for event in ledger.events()] == ["query-mean"] * 2
    assert other["sites"]["north"]["epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02)
    with pytest.raises(BudgetRefused, match="refuses 'query-mean'"):
        query(*asked)
    assert len(ledger.events()) == 2


def test_a_real_hospital_that_allows_no_queries_refuses(hospital: Path) -> None:
    hospital.write_text(hospital.read_text().replace('"query"', '"statistics"'))
    with pytest.raises(BudgetRefused, match="the policy allows statistics, not 'query'"):
        query("count", "--hospital", str(hospital), "--epsilon", "0.4")
    assert [path.name for path in (hospital.parent / "home").iterdir()] == ["journal.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "9"), "--budget is for a simulation"),
        (("--seed", "3"), "--seed is for a simulation"),
        (("--column", "agee"), "Did you mean 'age'"),
        (("--mechanism", "randomised-response"), "'replace-one', not 'add-remove'"),
        (("--mechanism", "foo"), "mechanism must be one of laplace"),
        (("--epsilon", "-1"), "epsilon must lie between"),
        (("--epsilon", "nan"), "epsilon must lie between"),
        (("--hospital", "nowhere.toml"), "There is no hospital file nowhere.toml"),
    ],
)
def test_a_real_hospital_is_not_asked_what_cannot_be(hospital: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words) as refused:
        query("count", "--hospital", str(hospital), "--epsilon", "0.4", *arguments)
    assert refused.value.exit_code == 2
    assert not (hospital.parent / "home").exists()
