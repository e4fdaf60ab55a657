"""Any Flower app at simulated nodes: as Flower means it, with any number of workers, and with errors that say what is wrong."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import polyclinic
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.sim.randomness import Generators, current, same, seed_all
from polyclinic.sim.simulation import FlowerApp
from polyclinic.sim.threads import threads
from tests.nursery import Done, python

PYPROJECT = """
[project]
name = "small"
version = "1.0.0"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "small.parts:server"
clientapp = "small.parts:client"
[tool.flwr.app.config]
rounds = 2
rate = 0.5
[tool.flwr.app.config.deep]
name = "one"
"""
PARTS = """
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def query(message, context):
    said = MetricRecord({"part": context.node_config["partition-id"], "of": context.node_config["num-partitions"]})
    return Message(RecordDict({"metrics": said}), reply_to=message)

@server.main()
def main(grid, context):
    replies = grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])
    print("SAID", sorted((reply.content["metrics"]["part"], reply.content["metrics"]["of"]) for reply in replies))
    print("CONFIG", dict(context.run_config))
    MORE
"""


def small_app(folder: Path, more: str = "", pyproject: str = PYPROJECT, parts: str = PARTS) -> Path:
    (folder / "small").mkdir()
    (folder / "pyproject.toml").write_text(pyproject)
    (folder / "small" / "__init__.py").touch()
    (folder / "small" / "parts.py").write_text(parts.replace("MORE", more))
    return folder


def simulate(folder: Path, *options: str) -> Done:
    return python("-m", "polyclinic", "simulate", str(folder), *options, NO_COLOR="1", COLUMNS="200")


# ---- apps made here


def drawing_client() -> ClientApp:
    """A ClientApp that draws from every global generator, and adds up its calls in its state."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        drawn = np.array([random.random(), np.random.random(), float(torch.rand(1))])  # noqa: NPY002, S311
        calls = context.state["count"]["calls"] + 1 if "count" in context.state else 1
        context.state["count"] = ConfigRecord({"calls": calls})
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + drawn)})
        said = MetricRecord({"num-examples": 1, "calls": calls})
        return Message(RecordDict({"arrays": arrays, "metrics": said}), reply_to=message)

    return app


def averaging_server(into: dict[str, Any], rounds: int = 2) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, fraction_train=0.5)
        result = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=rounds)
        into["w"] = result.arrays["w"].numpy()
        into["calls"] = result.train_metrics_clientapp[rounds]["calls"]

    return app


def test_with_a_seed_the_result_does_not_depend_on_the_workers() -> None:
    found, before = ({}, {}, {}), current()
    for into, (workers, seed) in zip(found, [(1, 5), (2, 5), (1, 6)], strict=True):
        resources = polyclinic.Resources(workers)
        done = polyclinic.simulate(averaging_server(into), drawing_client(), 6, resources=resources, seed=seed)
        assert (done.messages, done.failures) == (6, 0) and done.seconds > 0
        assert same(before, current()), "the caller's own generators are as they were"
    np.testing.assert_array_equal(found[0]["w"], found[1]["w"])
    assert not np.allclose(found[0]["w"], found[2]["w"])


def test_clients_do_not_move_the_servers_generators() -> None:
    client, server = ClientApp(), ServerApp()
    drawn: list[tuple[float, ...]] = []

    @client.query()
    def query(message: Message, context: Context) -> Message:
        seed_all(1)
        return Message(RecordDict({"m": MetricRecord({"drawn": random.random()})}), reply_to=message)  # noqa: S311

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        seed_all(2)
        for _ in range(2):
            drawn.append((random.random(), np.random.random(), float(torch.rand(1))))  # noqa: NPY002, S311
            grid.send_and_receive([Message(RecordDict(), 1, "query")])

    polyclinic.simulate(server, client, 1)
    seed_all(2)
    alone = [(random.random(), np.random.random(), float(torch.rand(1))) for _ in range(2)]  # noqa: NPY002, S311
    assert drawn == alone


def test_generators_go_on_by_themselves_and_those_of_others_are_put_back() -> None:
    seed_all(3)
    seeded = current()
    assert same(seeded, current())
    torch.rand(1)
    assert not same(seeded, current())
    own, begun = Generators(), current()
    with own.in_place():
        assert not same(begun, current())
        first, left = torch.rand(2), current()
    assert same(begun, current())
    with own.in_place():
        assert same(left, current()) and not torch.equal(first, torch.rand(2))
    with Generators(seeded).in_place():
        assert same(seeded, current())


def test_a_client_that_fails_leaves_its_state_and_answers_with_its_error() -> None:
    client, server = ClientApp(), ServerApp()
    said: list[Any] = []

    @client.query()
    def query(message: Message, context: Context) -> Message:
        calls = context.state["count"]["calls"] + 1 if "count" in context.state else 1
        context.state["count"] = ConfigRecord({"calls": calls})
        if message.content["ask"]["how"] == "raise":
            raise ValueError("no such ward")
        if message.content["ask"]["how"] == "configure":
            context.run_config["rate"] = 2.0
        return Message(RecordDict({"m": MetricRecord({"calls": calls})}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for how in ("plain", "raise", "configure", "plain"):
            (reply,) = grid.send_and_receive([Message(RecordDict({"ask": ConfigRecord({"how": how})}), 1, "query")])
            said.append(reply.error if reply.has_error() else reply.content["m"]["calls"])

    done = polyclinic.simulate(server, client, 1, run_config={"rate": 1.0})
    assert (said[0], said[3]) == (1, 2) and (done.messages, done.failures) == (4, 2)
    # Flower's own code for what a ClientApp raises.
    assert (said[1].code, said[1].reason) == (2, "ValueError: no such ward")
    assert said[2].code == 2 and "changed its context's run_config" in said[2].reason


def test_when_every_reply_is_an_error_the_simulation_fails() -> None:
    client, server = ClientApp(), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grid.send_and_receive([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])

    with pytest.raises(
        PolyclinicError, match=r"Every one of 3 replies was an error; the first: ValueError: No train function"
    ):
        polyclinic.simulate(server, client, 3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_supernodes": 0}, "num_supernodes has the value 0, which must be a whole number of at least 1."),
        ({"num_supernodes": True}, "num_supernodes has the value True"),
        ({"resources": {"workers": 0}}, "workers has the value 0"),
        ({"resources": {"threads": 1.5}}, "threads has the value 1.5"),
        (
            {"server_app": ClientApp()},
            "simulate takes a ServerApp and a ClientApp, and got a ClientApp for the ServerApp.",
        ),
        ({"seed": -1}, "seed has the value -1, which must be a whole number of at least 0."),
        ({"resources": {"ray_address": "nowhere:1"}}, "Configuration key 'ray-address' has the value 'nowhere:1'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        values["resources"] = polyclinic.Resources(**values.get("resources", {}))
        polyclinic.simulate(**{"server_app": ServerApp(), "client_app": ClientApp(), "num_supernodes": 2, **values})
    assert str(refused.value).startswith(words) and "\n" not in str(refused.value)


def test_threads_are_as_they_were_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    with threads(2):
        assert torch.get_num_threads() == 2 and os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "2"
    assert torch.get_num_threads() == before
    assert os.environ["OMP_NUM_THREADS"] == "3" and "MKL_NUM_THREADS" not in os.environ


# ---- the command


def test_the_command_runs_an_app_with_its_configuration(tmp_path: Path) -> None:
    app = small_app(tmp_path)
    done = simulate(app, "-c", "rate=2 deep.name='two'", "-c", "rounds=7", "--json")
    assert json.loads(done.stdout)["messages"] == 2, done.stderr
    assert "SAID [(0, 2), (1, 2)]" in done.stderr
    assert "CONFIG {'rounds': 7, 'rate': 2, 'deep.name': 'two'}" in done.stderr
    (tmp_path / "more.toml").write_text("rate = 3.0\n[deep]\nname = 'three'\n")
    done = simulate(app, "-c", str(tmp_path / "more.toml"), "--nodes", "3", "--workers", "2")
    assert "SAID [(0, 3), (1, 3), (2, 3)]" in done.stdout and "'deep.name': 'three'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("3 replies of nodes in ")


def test_workers_are_forked_from_a_process_that_has_imported_the_app(tmp_path: Path) -> None:
    imports = f"import os\nwith open({str(tmp_path / 'imports')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    app = small_app(tmp_path, parts=imports + PARTS)
    assert simulate(app, "--nodes", "4", "--workers", "3").returncode == 0
    # The process of the ServerApp, and the one that all three workers share their memory with.
    assert len(set((tmp_path / "imports").read_text().split())) == 2


def test_a_value_of_another_type_is_taken_as_flower_takes_it_and_told(tmp_path: Path) -> None:
    done = simulate(small_app(tmp_path), "-c", "rounds='many'")
    assert "'rounds': 'many'" in done.stdout and done.returncode == 0
    assert "--run-config gives 'rounds' the value 'many', where the app has 2." in done.stderr


OLDER = '[tool.flwr.federations]\ndefault = "local"\n[tool.flwr.federations.local]\noptions.num-supernodes = 7\n'
WAITS = (
    "from flwr.serverapp.strategy import FedAvg; list(FedAvg(min_available_nodes=3).configure_train(1, None, {}, grid))"
)
MISTAKES: dict[str, tuple[Callable[[Path], Path], list[str], int, str]] = {
    "no folder": (lambda folder: folder / "none", [], 2, "is not a Flower app: it holds no pyproject.toml."),
    "no app": (
        lambda folder: small_app(folder, pyproject="[project]\nname='x'\n"), [], 2, "is not an app that Flower runs:",
    ),
    "no such key": (small_app, ["-c", "ronds=3"], 2, "--run-config names 'ronds', which is not in the app's "
        "[tool.flwr.app.config]. Did you mean 'rounds'?"),
    "no configuration": (small_app, ["-c", "rounds=[1"], 2, "--run-config cannot be read: "),
    "no pair": (small_app, ["-c", "rounds"], 2, "--run-config cannot be read: 'rounds' is not a key=value."),
    "nodes that are no number": (
        lambda folder: small_app(folder, pyproject=f"{PYPROJECT}{OLDER.replace('7', repr('six'))}"), [], 2,
        "num-supernodes has the value 'six'",
    ),
    "too few nodes": (lambda folder: small_app(folder, WAITS), [], 1,
        "Error: The ServerApp waits for more nodes than the 2 that there are, and no more will come"),
    "no such file": (small_app, ["-c", "none.toml"], 2, "--run-config cannot be read: "),
    "no nodes": (small_app, ["--nodes", "0"], 2, "num_supernodes has the value 0"),
    "no such module": (lambda folder: small_app(folder, parts=f"import nothing_like_it\n{PARTS}"), [], 2,
        "does not load: ModuleNotFoundError: No module named 'nothing_like_it'."),
    "no ServerApp": (lambda folder: small_app(folder, parts=f"{PARTS}\nserver = 3\n"), [], 2,
        "does not load: TypeError: small.parts:server is not a Flower ServerApp."),
    "no ClientApp": (lambda folder: small_app(folder, parts=f"{PARTS}\nclient = 3\n"), [], 2, "is not a Flower ClientApp."),
    "a server that raises": (lambda folder: small_app(folder, "raise ValueError('no ward')"), [], 1, "ValueError: no ward"),
    "a server that exits": (lambda folder: small_app(folder, "raise SystemExit(7)"), [], 7, ""),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_is_said_and_the_exit_code_is_true(tmp_path: Path, mistake: str) -> None:
    made, options, code, words = MISTAKES[mistake]
    done = simulate(made(tmp_path), *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and (code != 2 or done.stderr.splitlines()[-1].startswith("Error: "))


def test_an_older_apps_number_of_nodes_is_taken(tmp_path: Path) -> None:
    assert FlowerApp.read(small_app(tmp_path, pyproject=PYPROJECT + OLDER)).nodes == 7


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_it_and_its_workers(tmp_path: Path, workers: str) -> None:
    waits = PARTS.replace(
        "    said = ", "    import time, pathlib; pathlib.Path('begun').touch(); time.sleep(60)\n    said = "
    )
    app = small_app(tmp_path, parts=waits)
    command = [sys.executable, "-m", "polyclinic", "simulate", str(app), "--workers", workers]
    # A shell has what it runs in the background ignore Ctrl-C, and so would its children.
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heeds)
    while not (tmp_path / "begun").exists():
        assert run.poll() is None
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=20)
    assert run.returncode == 130
