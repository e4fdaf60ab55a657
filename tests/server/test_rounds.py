"""The round loop: determinism, drop-outs, third-party strategies, checkpoints and resume, for real."""

import json
import multiprocessing
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from polyclinic import Federation
from polyclinic.cli import main
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import dpsgd_event, epsilon
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.server.calibration import calibrate
from polyclinic.server.checkpoint import load_checkpoint
from polyclinic.server.exchange.sites import Site
from polyclinic.server.phases.joining import unlike
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState
from tests.nursery import python

Quick = Callable[..., RunResult]


class Halving(FedAvg):
    """A third-party strategy in the form that Flower's documentation teaches: override one method."""

    associative = True

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays, metrics


def test_same_seed_same_model_other_seed_other_model(quick: Quick) -> None:
    first, again, other = quick(), quick(), quick(seed=1)
    assert first.summary["model_sha256"] == again.summary["model_sha256"] != other.summary["model_sha256"]
    assert first.rounds.drop(columns="seconds").equals(again.rounds.drop(columns="seconds"))


def test_fault_06_epsilon_of_the_run_is_the_accountants_and_within_the_budget(quick: Quick) -> None:
    result = quick(rounds=3, privacy={"epsilon": 1.0})
    planned = epsilon(calibrate(result.config).total_event, result.config.privacy.delta)
    assert planned <= 1.0
    for name, site in result.summary["statement"]["sites"].items():
        assert site["epsilon"] == pytest.approx(planned, rel=1e-6), name
        steps = sum(event["event"].get("count", 0) for event in site["events"] if event["purpose"] == "train")
        assert steps == 3 * result.config.training.local_steps
    spent = result.rounds[result.rounds.site == "hospital-1"].epsilon
    assert spent.is_monotonic_increasing and 0 < spent.iloc[0] < spent.iloc[-1] <= 1.0


def test_a_third_party_strategy_runs_and_options_reach_it(quick: Quick) -> None:
    named = f"{__name__}:Halving" if __name__ in sys.modules else "tests.server.test_rounds:Halving"
    assert (
        quick(strategy=named, privacy={"dp": False}).summary["model_sha256"]
        == quick(privacy={"dp": False}).summary["model_sha256"]
    )
    with pytest.raises(ConfigError, match="not a Flower Strategy"):
        quick(strategy="json:loads")


def test_multiclass_adam_mlp_and_trial_run(quick: Quick) -> None:
    result = quick(dataset="trial", sites=3, model="mlp", training={"optimizer": "adam", "learning_rate": 0.01})
    assert len(result.sites) == 3 and result.privacy["epsilon"] <= 3.0


def test_one_class_at_a_site_is_undefined_not_a_number(quick: Quick, heart_disease: None) -> None:
    result = quick(dataset="heart-disease", privacy={"dp": False})
    assert result.sites.loc["switzerland", "patients"] == 46
    text = json.dumps(result.summary)
    assert "NaN" not in text


def test_a_site_that_spent_its_budget_drops_out_and_the_run_goes_on(quick: Quick, tmp_path: Path) -> None:
    whole = quick(rounds=4)
    # A charge from elsewhere uses up what hospital-2 had left for the last rounds.
    plan = calibrate(whole.config)
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=2)
    ledger = _with_a_larger_budget(folder / "sites" / "ledger.sqlite", "hospital-2")
    ledger.charge(dpsgd_event(1.0, plan.noise_multiplier, 2), "elsewhere", "other", 1)
    resumed = Federation.resume(folder)
    drops = resumed.summary["dropouts"]
    assert {drop["site"] for drop in drops} == {"hospital-2"}
    assert all("budget" in drop["reason"] for drop in drops)
    assert resumed.summary["metrics"]["sites"]["hospital-2"]["epsilon"] <= 3.0
    assert resumed.summary["rounds"] == whole.summary["rounds"] == 4
    assert "hospital-2" in (folder / "report.html").read_text()


def _with_a_larger_budget(path: Path, site: str) -> Ledger:
    """A simulated hospital's ledger, as if its policy let it spend more on other runs; the run itself takes it back."""
    return Ledger.open_all(path, [replace(Ledger.read(path, site).terms, budget=9.0)])[0]


def test_a_run_that_budgets_stop_keeps_the_rounds_that_were_paid_for(tmp_path: Path) -> None:
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=2, options=["-c", "participation.min-sites=4"])
    ledger = _with_a_larger_budget(folder / "sites" / "ledger.sqlite", "hospital-2")
    plan = calibrate(Run.open(folder).config())
    ledger.charge(dpsgd_event(1.0, plan.noise_multiplier, 2), "elsewhere", "other", 1)
    done = python("-m", "polyclinic", "run", "--resume", str(folder))
    assert done.returncode == 3
    resumed = RunResult.read(folder)
    assert 2 <= resumed.summary["rounds"] < 4 and "participation.min-sites is 4" in resumed.summary["stopped"]
    assert any("stopped after round" in note for note in resumed.summary["notes"])
    assert resumed.rounds["round"].max() == resumed.summary["rounds"]


@pytest.mark.parametrize("damage", ["missing", "older"])
def test_a_run_does_not_go_on_without_what_its_ledger_held(tmp_path: Path, damage: str) -> None:
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=2)
    path = folder / "sites" / "ledger.sqlite"
    terms = Ledger.read(path, "hospital-1").terms
    path.unlink()
    if damage == "older":
        for site in ("hospital-1", "hospital-2", "hospital-3", "hospital-4"):
            Ledger.open_all(path, [replace(terms, site=site)])
    with pytest.raises(DataError, match=r"ledger"):
        Federation.resume(folder)


@pytest.mark.parametrize(
    ("strategy", "dies"), [("fedavg", "checkpoint"), ("fedadam", "checkpoint"), ("fedavg", "training")]
)
def test_a_killed_run_resumes_to_the_same_model_and_never_undercounts(
    quick: Quick, tmp_path: Path, strategy: str, dies: str
) -> None:
    options = ["-c", f"strategy={strategy}", "-c", "training.optimizer=adam", "-c", "training.learning-rate=0.05"]
    whole = quick(rounds=4, strategy=strategy, training={"optimizer": "adam", "learning_rate": 0.05})
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=2, options=options, dies=dies)
    charged = {event["round"] for event in Ledger.read(folder / "sites" / "ledger.sqlite", "hospital-1").events()}
    assert charged == ({0, 1, 2} if dies == "checkpoint" else {0, 1, 2, 3})
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    for name, site in resumed.summary["statement"]["sites"].items():
        trained = [event["round"] for event in site["events"] if event["purpose"] == "train"]
        assert trained == [1, 2, 3, 4], name  # a round that was charged, lost and run again gives the same numbers
        assert site["epsilon"] == whole.summary["statement"]["sites"][name]["epsilon"]
        assert site["intact"]


def test_a_torn_checkpoint_is_said(tmp_path: Path) -> None:
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=2)
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        Federation.resume(folder)


_DIES = {
    "checkpoint": "        if state.round == after: os.kill(os.getpid(), signal.SIGKILL)\n",
    # Of the next two rounds there is no checkpoint.
    "two rounds on": """
        if state.round == after:
            real, seen = classification.train, []
            def later(*a, **k):
                seen.append(1)
                if len(seen) == 3: os.kill(os.getpid(), signal.SIGKILL)
                return real(*a, **k)
            classification.train = later
""",
    # The next round is trained, its states written; then, where its checkpoint would be, the process dies.
    "after training": "        if state.round == after + 1: os.kill(os.getpid(), signal.SIGKILL)\n",
    # The next round is charged; then, where training would begin, the process dies.
    "training": "        if state.round == after: classification.train = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n",
}


class Saving(Progress):
    """Of how many rounds no checkpoint knew when each was done."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def on_round(self, config: RunConfig, state: RunState) -> None:
        self.lost.append(state.round - state.saved)


def test_rounds_of_a_strategy_that_may_draw_have_a_checkpoint_each(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again, they would be other releases, charged beside the first: the budget would not last to the end."""
    monkeypatch.setattr("polyclinic.server.federate._SECONDS", 1e9)
    for strategy, lost in (("fedavg", [1, 2, 0]), (f"{__name__}:Halving", [0, 0, 0])):
        seen = Saving()
        quick(strategy=strategy, rounds=3, progress=seen, **{"training.optimizer": "sgd", "training.momentum": 0.0})
        assert seen.lost == lost


def test_quick_rounds_of_a_simulation_share_a_checkpoint_and_are_made_again_the_same(
    quick: Quick, tmp_path: Path
) -> None:
    """Killed in round 3, of whose charges the ledger knows and no checkpoint does."""
    whole = quick(rounds=4)
    options = ["-c", "checkpoints.every=0"]
    folder = _start_and_kill(tmp_path / "killed", rounds=4, after=0, options=options, dies="two rounds on")
    assert load_checkpoint(folder / "checkpoint.safetensors")[0].round == 0
    assert [event["round"] for event in Ledger.read(folder / "sites" / "ledger.sqlite", "hospital-1").events()] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]
    for site in resumed.summary["statement"]["sites"].values():
        assert [event["round"] for event in site["events"]] == [0, 1, 2, 3, 4] and site["intact"]


def test_a_hospital_that_skipped_rounds_goes_on_from_its_last_state(quick: Quick, tmp_path: Path) -> None:
    """It last trained two rounds before the one in which the run died after its training."""
    kept = {"participation.fraction": 0.5, "training.optimizer": "adam", "training.learning-rate": 0.05}
    whole = quick(rounds=6, **kept)
    options = [part for key, value in kept.items() for part in ("-c", f"{key.replace('_', '-')}={value}")]
    folder = _start_and_kill(tmp_path / "killed", rounds=6, after=4, options=options, dies="after training")
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]


def test_checkpoints_of_every_so_many_rounds_are_kept_and_resumed_from(quick: Quick, tmp_path: Path) -> None:
    options = {
        "training.optimizer": "adam",
        "training.learning-rate": 0.05,
        "checkpoints.every": 3,
        "checkpoints.keep": 2,
    }
    whole = quick(rounds=7, **options)
    assert sorted(path.name for path in (whole.path / "checkpoints").iterdir()) == [
        "round-000006.safetensors", "round-000007.safetensors",
    ]  # fmt: skip
    flags = [part for key, value in options.items() for part in ("-c", f"{key.replace('_', '-')}={value}")]
    folder = _start_and_kill(tmp_path / "killed", rounds=7, after=3, options=flags, dies="two rounds on")
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_gives_the_unbroken_runs_model(quick: Quick, tmp_path: Path) -> None:
    """Twenty kills by SIGKILL at random moments of runs that go on after each, from the first checkpoint to the report."""
    options = {
        "rounds": 6,
        "training.optimizer": "adam",
        "training.learning-rate": 0.05,
        "participation.fraction": 0.5,
        "model": "mlp",
    }
    whole = quick(**options)
    rng = np.random.default_rng(0)
    # Forked from a process that has imported everything, each start takes a moment and a kill falls into the run.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "polyclinic.federation"])
    kills = 0
    while kills < 20:
        out = tmp_path / f"out-{kills}"
        flags = [part for key, value in options.items() for part in ("-c", f"{key.replace('_', '-')}={value}")]
        command = [*flags, "-c", "training.local-steps=2", "--out", str(out)]
        while True:
            process = context.Process(target=_run, args=(command,))
            process.start()
            folder = _when_begun(out, process)
            # After the last kill the run is left to end.
            process.join(float(rng.uniform(0.1, 4.0)) if kills < 20 else None)
            if process.is_alive():
                process.kill()
                process.join()
                kills += 1
            if (folder / "report.html").exists():
                break
            command = ["--resume", str(folder)]
        found = RunResult.read(folder)
        assert found.summary["model_sha256"] == whole.summary["model_sha256"]
        for name, site in found.summary["statement"]["sites"].items():
            assert site["intact"] and site["epsilon"] == whole.summary["statement"]["sites"][name]["epsilon"]


def _run(arguments: list[str]) -> None:
    sys.argv = ["polyclinic", "run", *arguments]
    main()


def _when_begun(out: Path, process: BaseProcess) -> Path:
    """The run's folder, once it holds a checkpoint: before that there is nothing to go on with."""
    while not (found := list(out.glob("*/checkpoint.safetensors"))):
        assert process.is_alive()
        time.sleep(0.02)
    return found[0].parent


def test_other_records_are_another_release(quick: Quick) -> None:
    """Two runs of one name over different records: nothing that was released for the one stands for the other."""
    first, second = quick(rounds=1), quick(rounds=1, partitioner="iid")
    releases = [
        {event["release"] for site in run.summary["statement"]["sites"].values() for event in site["events"]}
        for run in (first, second)
    ]
    assert not releases[0] & releases[1]


def test_a_run_killed_before_its_report_is_written_goes_on(quick: Quick) -> None:
    whole = quick(rounds=2)
    (whole.path / "report.html").unlink()
    shutil.rmtree(whole.path / "plots")
    resumed = Federation.resume(whole.path)
    assert (whole.path / "report.html").exists() and (whole.path / "plots" / "loss.svg").exists()
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_damaged_summary_is_said(quick: Quick) -> None:
    whole = quick(rounds=1)
    (whole.path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json cannot be read"):
        RunResult.read(whole.path)


def _start_and_kill(
    out: Path, rounds: int, after: int, options: list[str] | None = None, dies: str = "checkpoint"
) -> Path:
    """A run in a process of its own, killed by SIGKILL after the checkpoint of round ``after``, or in the next round."""
    script = (
        "import os, signal, sys\n"
        "from polyclinic.server import federate\n"
        "from polyclinic.training import classification\n"
        f"save, after = federate.save_checkpoint, {after}\n"
        "def then_die(path, state, *rest):\n"
        "        if state.round <= after: save(path, state, *rest)\n"
        + _DIES[dies]
        + "federate.save_checkpoint = then_die\n"
        "sys.argv = ['polyclinic', 'run'] + sys.argv[1:]\n"
        "from polyclinic.cli import main\n"
        "main()\n"
    )
    every = ["-c", "checkpoints.every=1", "-c", "training.local-steps=2"]
    arguments = ["--rounds", str(rounds), "--out", str(out), *every, *(options or [])]
    done = python("-c", script, *arguments)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return next(path for path in out.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, None),
        ({"budget": None}, None),
        ({"delta": 2e-3}, "its policy has delta 0.002, the run has 0.001"),
        ({"relation": "replace-one"}, "relation replace-one"),
        ({"accountant": "rdp"}, "accountant rdp"),
        ({"budget": 2.5}, "budget is 2.5, the run's epsilon is 3"),
    ],
)
def test_a_hospital_whose_terms_are_not_the_runs_takes_no_part(terms: dict[str, object], words: str | None) -> None:
    """Else it would refuse halfway, and one epsilon would be stated at another hospital's delta."""
    common = {"delta": 1e-3, "budget": 3.0, "relation": "add-remove", "accountant": "pld"} | terms
    site = Site(index=0, name="h", node=1, simulated=False, schema=None, **common)  # type: ignore[arg-type]
    reason = unlike(site, RunConfig(privacy={"delta": 1e-3}))
    assert reason is None if words is None else reason is not None and words in reason
