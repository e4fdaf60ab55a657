"""A sweep: which runs it plans, that it goes on where it was killed, and what its tables say."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.evaluation.intervals import summarize_repetitions
from polyclinic.evaluation.report import render_comparison, render_sweep
from polyclinic.evaluation.report.sweep import Row
from polyclinic.runs.folder import Run
from polyclinic.sim.threads import cores
from polyclinic.sweeps.carrying import carry_out
from polyclinic.sweeps.plan import in_order, plan, usual_jobs

SMALL = ("--rounds", "2", "-c", "privacy.epsilon=1,3", "-c", "strategy=fedavg,fedavgm")


def small(out: Path, **options: Any) -> Federation:
    return Federation.from_dataset("breast-cancer", rounds=1, sites=2, out=str(out), **options)


def test_the_plan_is_the_product_of_the_values_and_the_seeds() -> None:
    runs = plan(
        {"seed": 5}, [[{"privacy.epsilon": 1}, {"privacy": {"epsilon": 3}}], [{"rounds": 2}, {"rounds": 4}]], seeds=2
    )
    settings = [(run.values["privacy.epsilon"], run.values["rounds"], run.config.seed) for run in runs]
    assert settings == [(e, r, s) for e in (1.0, 3.0) for r in (2, 4) for s in (5, 6)]
    assert all((run.config.privacy.epsilon, run.config.rounds) == settings[i][:2] for i, run in enumerate(runs))
    assert str(runs[0]) == "privacy.epsilon=1.0, rounds=2, seed=5"
    (alone,) = plan({}, [])
    assert alone.config == RunConfig() and alone.values == {}


def test_settings_that_go_together_vary_together_and_leave_others_their_defaults() -> None:
    runs = plan({}, [[{"strategy": "fedavg"}, {"strategy": "fedavgm", "strategy-options": "server-momentum=0.5"}]])
    assert [run.values["strategy-options"] for run in runs] == ["", "server-momentum=0.5"]


@pytest.mark.parametrize(
    ("axes", "seeds", "message"),
    [
        ([[{"rounds": 2}, {"rounds": 0}]], 1, "With rounds=0: Configuration key 'rounds' has the value 0"),
        ([[{"rounds": 2}], [{"rounds": 3}]], 1, "'rounds' varies twice"),
        ([[{"seed": 2}, {"seed": 3}]], 2, "'seed' varies, and a number of seeds"),
        ([[{"rounds": 2}, {"rounds": 2}]], 1, "Two runs of the sweep are the same, of rounds=2, seed=0"),
        ([[{"round": 2}]], 1, "With round=2: Unknown configuration key 'round'"),
        ([], 0, "number of seeds is 0"),
    ],
)
def test_an_impossible_plan_is_refused(axes: Any, seeds: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan({}, axes, seeds)


def test_seeds_draw_splits_and_folds_are_repeated_for_each() -> None:
    def splits(**options: Any) -> list[tuple[int, str, int, int]]:
        runs = plan({"seed": 3} | options.pop("given", {}), [], **options)
        return [
            (run.config.seed, *run.config.split.model_dump(include={"seed", "folds", "fold"}).values()) for run in runs
        ]

    assert splits(seeds=2) == [(3, "3", 0, 0), (4, "4", 0, 0)]
    assert splits(seeds=2, same_split=True) == [(3, "", 0, 0), (4, "", 0, 0)]
    assert splits(seeds=2, given={"split": {"seed": 9}}) == [(3, "9", 0, 0), (4, "9", 0, 0)]
    assert splits(seeds=2, given={"split.time": "seen:2024-01-01"}) == [(3, "", 0, 0), (4, "", 0, 0)]
    assert splits(seeds=1, folds=3) == [(3, "", 3, fold) for fold in range(3)]
    assert splits(seeds=2, folds=2) == [(seed, str(seed), 2, fold) for seed in (3, 4) for fold in (0, 1)]
    with pytest.raises(ConfigError, match="split.folds 1"):
        plan({}, [], folds=1)


def test_folds_judge_every_patient_once_and_their_interval_counts_shared_patients(tmp_path: Path) -> None:
    table = small(tmp_path).sweep(folds=3)
    assert table["split.fold"].tolist() == [0, 1, 2]
    shards = [Run.open(tmp_path / name).simulation("").shards.values() for name in table["run"]]
    held_out = [np.concatenate([shard.is_test for shard in several]) for several in shards]
    assert np.sum(held_out, axis=0).tolist() == [1] * 569
    row = pd.read_csv(tmp_path / "sweep-summary.csv").set_index(["site", "metric"]).loc[("pooled", "auroc")]
    assert row["se"] == pytest.approx(table["auroc"].std() * (1 / 3 + 1 / 2) ** 0.5)


def test_jobs_keep_the_cores_busy_and_few_runs_stay_in_one_process() -> None:
    assert usual_jobs(plan({}, [], seeds=15)) == 1
    assert usual_jobs(plan({}, [], seeds=8 * cores())) == cores()
    assert usual_jobs(plan({"workers": cores()}, [], seeds=8 * cores())) == 1
    assert usual_jobs(plan({"ray_address": "local"}, [], seeds=8 * cores())) == 1


def test_runs_of_one_split_follow_each_other() -> None:
    runs = in_order(plan({}, [[{"privacy.epsilon": 1}, {"privacy.epsilon": 3}]], seeds=2))
    assert [(run.config.seed, run.config.privacy.epsilon) for run in runs] == [(0, 1), (0, 3), (1, 1), (1, 3)]


def test_an_impossible_combination_is_refused_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"With participation.min-sites=9: .* must be at most 2, the number of"):
        small(tmp_path).sweep(participation={"min_sites": [1, 9]})
    assert not list(tmp_path.iterdir())


def test_tables_hold_what_the_runs_reached(tmp_path: Path) -> None:
    federation = small(tmp_path)
    table = federation.sweep(privacy={"epsilon": [1, 3]}, seeds=2)
    assert table["privacy.epsilon"].tolist() == [1, 1, 3, 3] and table["seed"].tolist() == [0, 1, 0, 1]
    assert set(table["status"]) == {"finished"}
    single = federation.run(privacy={"epsilon": 3}, seed=1, split={"seed": 1}, out=str(tmp_path / "single"))
    row = table.iloc[3]
    assert row["auroc"] == single.pooled["auroc"] and row["epsilon"] == single.privacy["epsilon"]
    swept = Run.open(tmp_path / row["run"])
    assert swept.summary().model_sha256 == single.summary["model_sha256"]
    pd.testing.assert_frame_equal(swept.rounds().drop(columns="seconds"), single.rounds.drop(columns="seconds"))
    assert row["auroc@hospital-2"] == single.sites.loc["hospital-2", "auroc"]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "sweep.parquet"), table)
    summary = pd.read_csv(tmp_path / "sweep-summary.csv").set_index(["privacy.epsilon", "site", "metric"])
    values = table["auroc@hospital-1"].iloc[:2]
    estimate = summary.loc[(1.0, "hospital-1", "auroc")]
    assert (
        estimate["runs"] == 2
        and estimate["mean"] == pytest.approx(values.mean())
        and estimate["sd"] == pytest.approx(values.std())
    )


def test_an_undefined_metric_stays_a_column_and_the_terminal_shows_calibration_in_the_large(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    wards = ["a", "b"] * 30
    pd.DataFrame(
        {"ward": wards, "x": [row % 7 for row in range(60)], "died": [int(row in (10, 31)) for row in range(60)]}
    ).to_csv(tmp_path / "a.csv")
    given = ("--data", str(tmp_path / "a.csv"), "--site", "ward", "--label", "died", "--rounds", "1", "--no-dp")
    done = command("sweep", *given, "-c", "training.learning-rate=0.1,0.2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0 and "calibration" in done.stdout, done.stderr
    table = pd.read_csv(tmp_path / "out/sweep.csv")
    assert "calibration_slope" in table and table["calibration_slope"].isna().all()


def test_a_finished_run_is_not_repeated_and_a_longer_sweep_adds_to_it(tmp_path: Path) -> None:
    federation = small(tmp_path)
    first = federation.sweep(seeds=2)
    again = federation.sweep(seeds=3)
    assert again["run"].iloc[:2].tolist() == first["run"].tolist()
    assert len(list(tmp_path.glob("*/report.html"))) == 3


def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    settled = {"privacy.delta": 1e-4, "training.optimizer": "sgd"}
    runs = plan({"out": str(tmp_path), "rounds": 1, "sites": 2, **settled}, [], seeds=3)
    calls: list[int] = []

    def execute(config: RunConfig, goes_on: Path | None) -> Path:
        calls.append(config.seed)
        if config.seed == 1 and len(calls) < 4:
            raise ValueError("the lights went out")
        return Federation(config).run(pictures=False).path

    outcomes = carry_out(runs, tmp_path, execute)
    assert [outcome.error for outcome in outcomes] == ["", "ValueError: the lights went out", ""]
    assert all(outcome.run for outcome in carry_out(runs, tmp_path, execute)) and calls == [0, 1, 2, 1]


def test_objects_stand_in_lists(tmp_path: Path) -> None:
    from flwr.serverapp.strategy import FedAdam

    table = small(tmp_path).sweep(strategy=[FedAdam(eta=0.3), "fedavg"])
    assert table["strategy"].tolist() == ["fedadam", "fedavg"]
    assert table["strategy-options"].tolist() == ["eta=0.3", ""]


def test_two_sweeps_in_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    runs = plan({"out": str(tmp_path)}, [])

    def execute(config: RunConfig, goes_on: Path | None) -> Path:
        carry_out(runs, tmp_path, execute)
        raise AssertionError

    (outcome,) = carry_out(runs, tmp_path, execute)
    assert "Another process carries out a sweep" in outcome.error


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_results(as_json: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ["sweep", "--rounds", "25", "--sites", "2", "-c", "privacy.epsilon=1,3", "--seeds", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "polyclinic", *arguments, "--out", str(tmp_path / "killed")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        reports = list((tmp_path / "killed").glob("*/report.html"))
        checkpoints = list((tmp_path / "killed").glob("*/checkpoint.safetensors"))
        if reports and len(checkpoints) > len(reports):
            break
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("*/report.html")}
    begun = {path.parent.name for path in (tmp_path / "killed").glob("*/checkpoint.safetensors")}
    assert finished and len(finished) < 4 and begun > finished.keys()
    result = as_json(*arguments, "--out", str(tmp_path / "killed"))
    assert result["failed"] == 0 and len(result["runs"]) == 4
    assert begun <= {row["run"] for row in result["runs"]}, "a run with a checkpoint went on"
    for name, written in finished.items():
        assert (tmp_path / "killed" / name / "report.html").stat().st_mtime_ns == written, "a finished run was repeated"
    whole = as_json(*arguments, "--out", str(tmp_path / "whole"), "--jobs", "2")
    for row, expected in zip(result["runs"], whole["runs"], strict=True):
        assert {k: v for k, v in row.items() if k not in ("run", "seconds")} == {
            k: v for k, v in expected.items() if k not in ("run", "seconds")
        }


@pytest.mark.slow
def test_the_command_says_which_run_failed_and_ends_with_1(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text(
        "from flwr.serverapp.strategy import FedAvg\n"
        "class Fails(FedAvg):\n"
        "    def aggregate_train(self, server_round, replies):\n"
        "        raise ValueError('the lights went out')\n"
    )
    done = command("sweep", "-c", "strategy=fails:Fails,fedavg", "--rounds", "1")
    assert done.returncode == 1
    assert "1 of 2 runs failed, of strategy=fails:Fails, seed=0; the same command tries them again." in done.stderr
    table = pd.read_csv(tmp_path / "runs/sweep.csv")
    assert table["status"].str.startswith("failed: ").tolist() == [True, False]
    assert "the lights went out" in table["status"][0]


@pytest.mark.parametrize(
    ("text", "varies"),
    [
        ("hidden=64,32", None),
        ("hidden=['64,32', '16']", ["64,32", "16"]),
        ("model=mlp,logistic", ["mlp", "logistic"]),
        ("privacy.dp=true,false", [True, False]),
        ("data.schema-file='a,b'", None),
    ],
)
def test_commas_part_values_where_no_value_holds_them(text: str, varies: list[Any] | None) -> None:
    from polyclinic.cli.runs.sweep import _values

    key, _, value = text.partition("=")
    assert _values(key, value) == (varies if varies is not None else value.strip("'"))


def test_repetitions_have_the_interval_of_students_t() -> None:
    # Nine values with mean 10 and sd 2: 10 ± 2.306 · 2/3 (Student's table, 8 degrees of freedom).
    values = [10 + 2 * x for x in (-1.5, -1, -0.5, 0, 0, 0, 0.5, 1, 1.5)]
    estimate = summarize_repetitions(values)
    sd = pd.Series(values).std()
    assert estimate["runs"] == 9 and estimate["mean"] == pytest.approx(10) and estimate["sd"] == pytest.approx(sd)
    assert estimate["high"] - 10 == pytest.approx(2.306 * sd / 3, rel=1e-3)
    assert summarize_repetitions(values, share=1 / 3)["se"] == pytest.approx(sd * (1 / 9 + 1 / 3) ** 0.5)
    assert summarize_repetitions([1.0]) == {"runs": 1, "mean": 1.0, "sd": None, "se": None, "low": None, "high": None}
    assert json.dumps(estimate)


def page_text(page: Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())


def test_the_page_draws_each_metric_over_the_number_that_varies(tmp_path: Path) -> None:
    small(tmp_path).sweep(strategy=["fedavg", "fedavgm"], privacy={"epsilon": [1, 3]}, seeds=2)
    page = tmp_path / "sweep.html"
    assert "8 runs of 4 combinations" in page_text(page)
    drawn = [base64.b64decode(image).decode() for image in re.findall(r"base64,([\w+/=]+)", page.read_text())]
    assert [re.findall(r">([^<>]* over privacy.epsilon)<", svg)[0] for svg in drawn] == [
        f"{name} over privacy.epsilon"
        for name in ("AUROC", "Brier score", "Calibration error", "Calibration in the large", "Accuracy")
    ]
    assert all(">fedavgm<" in svg for svg in drawn), "a line for each other combination"
    summary = pd.read_csv(tmp_path / "sweep-summary.csv").set_index(["strategy", "privacy.epsilon", "site", "metric"])
    row = summary.loc[("fedavgm", 3.0, "pooled", "auroc")]
    assert f"fedavgm 3.0 2 3.00 {row['mean']:.3f} {row['low']:.3f} to {row['high']:.3f}" in page_text(page)


def test_the_report_of_several_runs_has_the_mean_over_seeds_and_splits(tmp_path: Path) -> None:
    table = small(tmp_path).sweep(seeds=3, same_split=True)
    page = page_text(render_comparison([tmp_path / name for name in table["run"]], tmp_path / "page.html"))
    estimate = summarize_repetitions(table["auroc"].tolist())
    shown = f"{estimate['mean']:.3f} {estimate['low']:.3f} to {estimate['high']:.3f} {estimate['sd']:.3f}"
    assert f"fedavg, ε 3 3 {shown}" in page.partition("Over seeds and splits")[2]


def test_a_sweep_without_a_number_has_a_row_for_each_combination(tmp_path: Path) -> None:
    estimate = {"mean": 0.8, "low": 0.7, "high": 0.9}
    rows = [Row({"model": model}, 2, {"auroc": estimate}) for model in ("mlp", "logistic")]
    text = page_text(
        render_sweep(
            rows,
            ["model=mlp, seed=3: the lights went out"],
            {"rounds": 3, "sites": 4},
            {"auroc": "AUROC"},
            tmp_path / "page.html",
        )
    )
    assert (
        "Failed. model=mlp, seed=3: the lights went out" in text
        and "What the runs share rounds = 3 sites = 4" in text
        and "logistic 2 no guarantee 0.800 0.700 to 0.900" in text
    )
    assert "all runs 1 no guarantee 0.800" in page_text(
        render_sweep([Row({}, 1, {"auroc": {"mean": 0.8}})], [], {}, {"auroc": "AUROC"}, tmp_path / "page.html")
    )
