"""The in-process grid: any ClientApp, state that persists, errors as replies, the same result for any worker count."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid, place
from polyclinic.sim.ray_workers import RayWorkers
from polyclinic.sim.workers import ProcessWorkers, Workers

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Adds the node's partition and counts its calls in the node's own state."""
    calls = int(context.state["calls"]["n"]) + 1 if "calls" in context.state else 1
    context.state["calls"] = MetricRecord({"n": calls})
    if (
        context.run_config.get("dies")
        and context.node_config["partition-id"] == 0
        and not Path(str(context.run_config["dies"])).exists()
    ):
        Path(str(context.run_config["dies"])).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if context.node_config["partition-id"] == 3 and calls == 2:
        raise RuntimeError("this node fails in its second round")
    value = message.content["arrays"]["w"].numpy() + int(context.node_config["partition-id"])
    content = RecordDict(
        {"arrays": ArrayRecord({"w": Array(value)}), "metrics": MetricRecord({"num-examples": 1, "calls": calls})}
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.5})}), reply_to=message)


def test_flowers_own_start_runs_on_it_with_any_client_app() -> None:
    with LocalGrid(AppReference(__name__), 4, {}) as grid:
        result = FedAvg(min_available_nodes=4).start(grid, ArrayRecord({"w": Array(np.zeros(2))}), num_rounds=2)
    # Round 1 adds the mean of 0..3; in round 2 node 3 fails, so the mean of 0..2.
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1.5 + 1.0)
    assert result.train_metrics_clientapp[2]["calls"] == 2
    assert result.evaluate_metrics_clientapp[2]["loss"] == 0.5


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])
def two_workers(request: pytest.FixtureRequest) -> Callable[[], Workers]:
    return lambda: ProcessWorkers(2) if request.param == "processes" else RayWorkers(2, "local")


@pytest.mark.slow
def test_calls_of_a_killed_worker_are_made_again(tmp_path: Path, two_workers: Callable[[], Workers]) -> None:
    with LocalGrid(AppReference(__name__), 3, {"dies": str(tmp_path / "died")}, two_workers()) as grid:
        arrays = ArrayRecord({"w": Array(np.zeros(2))})
        for number in (1, 2):
            replies = grid.send_and_receive(
                [Message(RecordDict({"arrays": arrays}), node, "train") for node in (1, 2, 3)]
            )
            assert [reply.content["metrics"]["calls"] for reply in replies] == [number] * 3
    assert (tmp_path / "died").exists()


class Together(ClientApp):
    """Takes all messages at once; its replies tell how many came together."""

    def call_stack(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        metrics = MetricRecord({"num-examples": 1, "together": len(messages)})
        return [Message(RecordDict({"metrics": metrics}), reply_to=message) for message in messages]


stacked = Together()


@pytest.mark.parametrize(("workers", "together"), [(None, [5] * 5), (2, [3, 2, 3, 2, 3])])
def test_an_app_that_takes_a_stack_is_called_once_for_each_worker(workers: int | None, together: list[int]) -> None:
    with LocalGrid(AppReference(__name__, "stacked"), 5, {}, ProcessWorkers(workers) if workers else None) as grid:
        replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in range(1, 6)])
    assert [reply.content["metrics"]["together"] for reply in replies] == together
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3, 4, 5]


collected = ClientApp()


@collected.train()
def tell_what_is_frozen(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1, "frozen": gc.get_freeze_count()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def test_a_worker_keeps_what_its_first_call_loaded_from_the_garbage_collector() -> None:
    before = gc.get_freeze_count()
    with LocalGrid(AppReference(__name__, "collected"), 1, {}, ProcessWorkers(1)) as grid:
        first, second = (
            grid.send_and_receive([Message(RecordDict(), 1, "train")])[0].content["metrics"]["frozen"] for _ in range(2)
        )
    assert first == 0 and second > 100_000
    assert gc.get_freeze_count() == before


def test_the_dearest_nodes_are_placed_first_and_evenly() -> None:
    assert place([5, 4, 3, 3, 3], 2) == [0, 1, 1, 0, 1]
    assert place([1.0] * 5, 2) == [0, 1, 0, 1, 0]
    costs = [float(cost) for cost in np.random.default_rng(0).exponential(size=200)]
    load = np.bincount(place(costs, 4), weights=costs)
    assert load.max() - load.min() < max(costs)


@pytest.mark.slow
def test_ray_actors_give_the_model_that_this_process_gives(quick: Callable[..., RunResult]) -> None:
    whole, actors = quick(sites=5), quick(sites=5, workers=2, ray_address="local")
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(actors.arrays[name].numpy(), value.numpy(), rtol=2e-5, atol=2e-6)
    assert whole.privacy["epsilon"] == actors.privacy["epsilon"]


def test_no_cluster_at_an_address_is_said(quick: Callable[..., RunResult]) -> None:
    with pytest.raises(ConfigError, match="'ray-address' has the value '127.0.0.1:1'"):
        quick(ray_address="127.0.0.1:1")


def test_a_message_to_nobody_is_refused() -> None:
    with LocalGrid(AppReference(__name__), 2, {}) as grid, pytest.raises(ValueError, match="Node 9 does not exist"):
        grid.push_messages([Message(RecordDict({"c": ConfigRecord()}), 9, "train")])


def test_results_do_not_depend_on_the_number_of_workers(quick: Callable[..., RunResult]) -> None:
    one: RunResult = quick(model="mlp")
    two = quick(model="mlp", workers=2)
    assert one.summary["model_sha256"] == two.summary["model_sha256"]
    assert Path(two.path / "report.html").exists()


ORPHANS = """
import os, sys
from flwr.app import ArrayRecord, Message, RecordDict
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid, place
from polyclinic.sim.ray_workers import RayWorkers
from polyclinic.sim.workers import ProcessWorkers, Workers
if __name__ == "__main__":
    workers = ProcessWorkers(2)
    grid = LocalGrid(AppReference("tests.sim.test_grid", "stacked"), 4, {}, workers)
    grid.send_and_receive([Message(RecordDict(), node, "train") for node in (1, 2, 3, 4)])
    print(*(pid for pool in workers._pools.values() for pid in pool._processes), flush=True)
    os.kill(os.getpid(), 9)
"""


# The run dies while its workers load.
BEGINNING = """
import os, threading, time
from flwr.app import Message, RecordDict
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.sim.workers import ProcessWorkers
def die(workers):
    while len(workers._pools) < 2 or not all(pool._processes for pool in workers._pools.values()):
        time.sleep(0.01)
    time.sleep(0.3)
    print(*(pid for pool in workers._pools.values() for pid in pool._processes), flush=True)
    os.kill(os.getpid(), 9)
if __name__ == "__main__":
    workers = ProcessWorkers(2)
    threading.Thread(target=die, args=(workers,)).start()
    grid = LocalGrid(AppReference("tests.sim.test_grid", "stacked"), 4, {}, workers)
    grid.send_and_receive([Message(RecordDict(), node, "train") for node in (1, 2, 3, 4)])
"""


# The fork server starts here, which takes long enough for every thread to come upon another's environment.
TOGETHER = """
import os, threading
from polyclinic.sim.workers import one_process
os.environ.pop("PYTHONPATH", None)
begin, pools = threading.Barrier(4), []
def start():
    begin.wait()
    pools.append(one_process(("json",)))
threads = [threading.Thread(target=start) for _ in range(4)]
for step in (threading.Thread.start, threading.Thread.join):
    for thread in threads:
        step(thread)
print(len(pools), os.environ.get("PYTHONPATH"))
"""


def test_threads_that_start_processes_at_once_leave_the_environment_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=120)
    assert done.stdout == "4 None\n", done.stderr


@pytest.mark.parametrize(
    "text", [ORPHANS, pytest.param(BEGINNING, marks=pytest.mark.slow)], ids=["at work", "beginning"]
)
def test_workers_of_a_killed_run_end_too(tmp_path: Path, text: str) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(text)
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2, done.stderr
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers):
        assert time.monotonic() < deadline, "workers outlived their run"
        time.sleep(0.2)


@pytest.mark.parametrize(
    "engine", ["linear", *(pytest.param(engine, marks=pytest.mark.slow) for engine in ("functional", "opacus"))]
)
def test_engines_and_stacks_give_the_same_model(quick: Callable[..., RunResult], engine: str) -> None:
    """Stacks of 8, or of 4 in two workers, with any engine: the same model within rounding, and the same ledger."""
    whole = quick(model="mlp", sites=8, rounds=2)
    other = quick(model="mlp", sites=8, rounds=2, training={"engine": engine}, workers=2)
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(other.arrays[name].numpy(), value.numpy(), rtol=2e-5, atol=2e-6)
    assert (whole.summary["engine"], other.summary["engine"]) == ("linear", engine)
    assert re.search(rf"Engine</th><td><code>{engine}<", (other.path / "report.html").read_text())
    spent = [run.summary["metrics"]["sites"] for run in (whole, other)]
    assert [site["epsilon"] for site in spent[0].values()] == [site["epsilon"] for site in spent[1].values()]


def test_gpus_that_are_not_there_are_refused_before_a_run_begins(
    quick: Callable[..., RunResult], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="gpus is 2 but workers is 1: a worker uses at most one GPU"):
        quick(gpus=2)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="'gpus' has the value 0.5, but torch finds 0 GPUs here"):
            quick(gpus=0.5)
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_gpus_that_a_ray_cluster_lacks_are_refused_before_a_run_begins(quick: Callable[..., RunResult]) -> None:
    with pytest.raises(ConfigError, match="'gpus' has the value 1, but this Ray cluster has 0 GPUs"):
        quick(gpus=1, ray_address="local")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "ray_address": "local"}])
def test_a_gpu_gives_the_model_that_the_processor_gives(
    quick: Callable[..., RunResult], options: dict[str, Any]
) -> None:
    here, there = quick(sites=5, model="mlp"), quick(sites=5, model="mlp", gpus=1, **options)
    for name, value in here.arrays.items():
        np.testing.assert_allclose(there.arrays[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)
    assert there.privacy["epsilon"] == here.privacy["epsilon"]


@pytest.mark.slow
def test_ten_thousand_hospitals_in_one_run(quick: Callable[..., RunResult]) -> None:
    result = quick(dataset="trial", sites=10_000, rounds=1, training={"local_steps": 1})
    assert len(result.sites) == 10_000 and not result.summary["dropouts"]
    assert (result.sites.rounds_joined == 1).all() and result.sites.epsilon.nunique() == 1
    assert result.report().stat().st_size < 5_000_000


careless = ClientApp()


@careless.train()
def careless_train(message: Message, context: Context) -> Message:
    """An app that changes what it was given, as one may under Flower, where each message comes over a wire."""
    config, arrays = message.content.config_records["config"], message.content.array_records["arrays"]
    told = MetricRecord({"rate": config["rate"], "seen": context.run_config["seen"], "num-examples": 1})
    config["rate"] = float(config["rate"]) / 2  # type: ignore[arg-type]
    context.run_config["seen"] = int(context.run_config["seen"]) + 1
    arrays["w"] = Array(arrays["w"].numpy() + 1)
    kept = context.state.array_records.setdefault("kept", ArrayRecord({"w": Array(np.zeros(1))}))
    kept["w"] = Array(kept["w"].numpy() + 1)
    return Message(RecordDict({"arrays": arrays, "metrics": told, "kept": kept}), reply_to=message)


@pytest.mark.parametrize("workers", [None, 2])
def test_what_a_node_changes_stays_at_the_node(workers: int | None) -> None:
    reference = AppReference(f"{__name__}" if __name__.startswith("tests") else "tests.sim.test_grid", "careless")
    config, arrays = ConfigRecord({"rate": 1.0}), ArrayRecord({"w": Array(np.zeros(1))})
    with LocalGrid(reference, 4, {"seen": 0}, ProcessWorkers(workers) if workers else None) as grid:
        for turn in (1, 2):
            content = RecordDict({"arrays": arrays, "config": config})
            replies = grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()])
            told = [reply.content.metric_records["metrics"] for reply in replies]
            assert [(metrics["rate"], metrics["seen"]) for metrics in told] == [(1.0, 0)] * 4
            assert [float(reply.content.array_records["arrays"]["w"].numpy()[0]) for reply in replies] == [1.0] * 4
            assert [float(reply.content.array_records["kept"]["w"].numpy()[0]) for reply in replies] == [turn] * 4
        assert config["rate"] == 1.0 and arrays["w"].numpy() == 0
