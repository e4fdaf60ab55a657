"""Hospitals out of reach, stragglers, deadlines, thin lines: repeatable, and a run goes on without them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from polyclinic.sim.unreliable import Conditions

Quick = Callable[..., RunResult]


def test_conditions_are_repeatable_and_have_the_rates_asked_for() -> None:
    conditions = Conditions(seed=1, dropout_rate=0.3, compute_seconds=10.0, straggling=0.5, bandwidth=100.0)
    reached = [conditions.reachable(round, node) for round in range(100) for node in range(20)]
    assert np.mean(reached) == pytest.approx(0.7, abs=0.03)
    assert reached == [conditions.reachable(round, node) for round in range(100) for node in range(20)]
    seconds = [conditions.seconds(round, 3, 500) - 5.0 for round in range(2000)]
    assert np.median(seconds) == pytest.approx(10.0, rel=0.05)
    assert np.std(np.log(seconds)) == pytest.approx(0.5, rel=0.06)


def test_a_hospital_out_of_reach_is_not_asked_and_not_charged(quick: Quick, tmp_path: Path) -> None:
    trace = tmp_path / "away.csv"
    trace.write_text("round,site\n1,hospital-2\n2,hospital-2\n2,hospital-3\n")
    result = quick(rounds=3, simulation={"availability": str(trace)})
    assert [(drop["round"], drop["site"]) for drop in result.summary["dropouts"]] == [
        (1, "hospital-2"), (2, "hospital-2"), (2, "hospital-3"),
    ]  # fmt: skip
    assert all("could not be reached" in drop["reason"] for drop in result.summary["dropouts"])
    trained = {
        name: [event["round"] for event in site["events"] if event["purpose"] == "train"]
        for name, site in result.summary["statement"]["sites"].items()
    }
    assert trained == {"hospital-1": [1, 2, 3], "hospital-2": [3], "hospital-3": [1, 3], "hospital-4": [1, 2, 3]}


def test_who_misses_the_deadline_was_charged_and_is_left_out(quick: Quick) -> None:
    slow = {"simulation.seconds-per-step": 1.0, "simulation.straggling": 1.0}
    free = quick(rounds=2, **slow)
    times = free.rounds[free.rounds["round"] == 1].set_index("site").simulated_seconds.dropna()
    assert len(times) == 4
    deadline = float(times.sort_values().iloc[1:3].mean())
    result = quick(rounds=2, simulation={"round_deadline": deadline}, **slow)
    late = {drop["site"] for drop in result.summary["dropouts"] if drop["round"] == 1}
    assert late == set(times.index[times > deadline]) and len(late) == 2
    for name in late:
        events = Ledger.read(result.path / "sites" / "ledger.sqlite", name).events()
        assert 1 in [event["round"] for event in events if event["purpose"] == "train"]
        assert result.summary["metrics"]["sites"][name]["epsilon"] > 0


def test_bytes_are_recorded_and_thin_lines_take_time(quick: Quick) -> None:
    """30 features, 2 classes: 62 numbers of 4 bytes, and the standardiser's 60 of 8 bytes on the way down."""
    rows = quick(rounds=1, simulation={"bandwidth": 100.0}).rounds.set_index("site")
    assert rows.loc["hospital-1", "bytes_up"] == 62 * 4
    assert rows.loc["hospital-1", "bytes_down"] == 62 * 4 + 60 * 8
    assert rows.loc["hospital-1", "simulated_seconds"] == pytest.approx((2 * 62 * 4 + 60 * 8) / 100)


@pytest.mark.parametrize(("options", "most"), [
    ({"upload.form": "difference", "upload.precision": "half"}, 62 * 2),
    ({"upload.form": "difference", "upload.precision": "int8"}, 62 + 4),
    ({"upload.form": "difference", "upload.share": 0.1}, 6 * 8),
])  # fmt: skip
def test_smaller_uploads_train_nearly_the_same_model(quick: Quick, options: dict[str, object], most: int) -> None:
    whole, small = (
        quick(rounds=4, privacy={"dp": False}),
        quick(rounds=4, privacy={"dp": False}, **options),
    )
    rows = small.rounds.dropna(subset="bytes_up")
    assert rows.bytes_up.max() <= most
    assert small.pooled["auroc"] == pytest.approx(whole.pooled["auroc"], abs=0.05)


def test_smaller_uploads_cost_no_privacy_and_resume_keeps_what_was_left_out(quick: Quick) -> None:
    options = {"upload.form": "difference", "upload.share": 0.2, "upload.precision": "int8"}
    first, again = quick(rounds=3, **options), quick(rounds=3, **options)
    assert first.summary["model_sha256"] == again.summary["model_sha256"]
    assert first.privacy["epsilon"] == quick(rounds=3).privacy["epsilon"]
    assert list((first.path / "sites").glob("*/optimizer-*"))  # the part left out lies with the site


@pytest.mark.parametrize(
    "content",
    [
        "",
        "site\nhospital-1\n",
        "round,site\n1,nobody\n",
        "round,site\nx,hospital-1\n",
        "round,site\n1.5,hospital-1\n",
        "round,site\n-3,hospital-1\n",
    ],
)
def test_a_bad_trace_is_refused_before_a_folder_is_made(quick: Quick, tmp_path: Path, content: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    with pytest.raises(ConfigError, match="'simulation.availability' has the value"):
        quick(simulation={"availability": str(trace)})


def test_a_round_that_nobody_answers_changes_no_model_and_the_run_goes_on(quick: Quick, tmp_path: Path) -> None:
    trace = tmp_path / "away.csv"
    trace.write_text("round,site\n" + "".join(f"2,hospital-{site}\n" for site in (1, 2, 3, 4)))
    result = quick(rounds=3, simulation={"availability": str(trace)})
    rows = result.rounds[result.rounds.site == "pooled"].set_index("round")
    assert rows.loc[2, "loss"] == rows.loc[1, "loss"] != rows.loc[3, "loss"]
    lost = [drop["site"] for drop in result.summary["dropouts"] if drop["round"] == 2]
    assert lost == ["hospital-1", "hospital-2", "hospital-3", "hospital-4"]
    assert result.summary["rounds"] == 3 and result.sites.rounds_joined.tolist() == [2, 2, 2, 2]
