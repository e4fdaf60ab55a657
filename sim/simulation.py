"""Any Flower app, simulated on this machine or on a Ray cluster: its ServerApp, and its ClientApp at many nodes.

What it means is what Flower's own simulation means: configuration, contexts, states, error replies, mods and lifespans. What is
not there is what makes that slow: no SuperLink, no packing of the app, no polling, and no Ray unless it is asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from polyclinic.errors import ConfigError, PolyclinicError, nearest, why
from polyclinic.sim.calls import AppReference, AppValue, Guest, attribute, find_in
from polyclinic.sim.grid import LocalGrid
from polyclinic.sim.randomness import Generators, current, restore, same, seed_all
from polyclinic.sim.threads import threads as threads_of
from polyclinic.sim.workers import ProcessWorkers, Workers

# As Flower finds pairs; what is none it leaves out.
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


@dataclass(frozen=True, eq=False)
class Simulated:
    """A simulation that ended well.

    context: the ServerApp's, with what it left in ``context.state``. messages: how many replies of nodes there were.
    failures: how many of them were errors. seconds: from the ServerApp's start to its end.
    """

    context: Context
    messages: int
    failures: int
    seconds: float


def check_count(name: str, value: object, least: int = 1) -> None:
    """Check that the value is a whole number of at least ``least``.

    Args:
        name: Begins the error's message.
        value: What was given.
        least: The smallest number that is allowed.

    Raises:
        ConfigError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} has the value {value!r}, which must be a whole number of at least {least}.")


@dataclass(frozen=True)
class Resources:
    """Who makes the nodes' calls.

    workers: processes side by side; 1 works in this process.
    ray_address: the workers are Ray actors ("local" starts Ray here, "auto" or "HOST:PORT" joins a cluster); "" takes
    processes.
    threads: that numerical libraries take in each process.

    Raises ConfigError for a number below 1.

    Examples:
        >>> Resources().begin() is None  # this process makes the calls
        True
        >>> Resources(workers=0)
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: workers has the value 0, which must be a whole number of at least 1.
    """

    workers: int = 1
    ray_address: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            check_count(name, getattr(self, name))

    def begin(self, module: str = "", folder: str = "") -> Workers | None:
        """The workers; None where this process does the work. module: what each of them imports, from ``folder``."""
        if self.ray_address:
            from polyclinic.sim.ray_workers import RayWorkers  # Ray takes a second to load

            return RayWorkers(self.workers, self.ray_address, threads=self.threads)
        if self.workers == 1:
            return None
        once = [module, "polyclinic.sim.forked"] if module else []
        workers = ProcessWorkers(self.workers, threads=self.threads, imported_once=once, folder=folder)
        workers.begin()  # they load what they need beside the ServerApp
        return workers


def simulate(
    server_app: ServerApp, client_app: ClientApp, num_supernodes: int, *, run_config: UserConfig | None = None,
    resources: Resources = Resources(), seed: int | None = None,
) -> Simulated:  # fmt: skip
    """Run a Flower app, as ``flwr.simulation.run_simulation`` does, in a fraction of its time.

    Args:
        server_app: Called once, with a Grid of the nodes and a Context.
        client_app: Called for each message to a node. Several workers are sent it by value.
        num_supernodes: How many nodes there are; node k has ``partition-id`` k-1.
        run_config: What ``context.run_config`` holds at the server and at every node.
        resources: Who makes the calls, by default this process. A script that uses several workers starts its work under
            ``if __name__ == "__main__":``.
        seed: Seeds the global generators of Python, NumPy and torch, at the server and before every call of a node. An app
            which draws from them gives the same result with any number of workers. None leaves them alone.

    Raises:
        ConfigError: for a number of nodes or a seed that cannot be, or a Ray cluster that does not answer.
        PolyclinicError: when every reply of a node was an error. What the ServerApp raises passes through.

    Examples:
        >>> from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> from flwr.serverapp import Grid, ServerApp
        >>> from flwr.serverapp.strategy import FedAvg
        >>> import numpy as np
        >>> client, server = ClientApp(), ServerApp()
        >>> @client.train()
        ... def train(message: Message, context: Context) -> Message:
        ...     content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        ...     return Message(RecordDict(content), reply_to=message)
        >>> @server.main()
        ... def main(grid: Grid, context: Context) -> None:
        ...     FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
        >>> simulate(server, client, num_supernodes=10).messages
        30
    """
    for app, kind in ((server_app, ServerApp), (client_app, ClientApp)):
        if not isinstance(app, kind):
            raise ConfigError(
                f"simulate takes a ServerApp and a ClientApp, and got a {type(app).__name__} for the {kind.__name__}."
            )
    _check(num_supernodes, seed)
    guest = Guest(AppValue(client_app), seed)
    with threads_of(resources.threads):
        return _run(server_app, guest, num_supernodes, run_config or {}, resources.begin(), Generators())


@dataclass(frozen=True)
class FlowerApp:
    """A Flower app's folder. server, client: ``module:attribute`` of its components; config: its ``[tool.flwr.app.config]``."""

    folder: Path
    server: str
    client: str
    config: UserConfig
    nodes: int

    @classmethod
    def read(cls, folder: Path) -> FlowerApp:
        """Raises ConfigError for a folder that holds no Flower app, or one that Flower would refuse."""
        from flwr.cli.config_utils import load_and_validate
        from flwr.common.config import flatten_dict
        from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG

        folder = folder.expanduser().resolve()
        if not (folder / "pyproject.toml").is_file():
            raise ConfigError(f"{folder} is not a Flower app: it holds no pyproject.toml.")
        try:
            read, _ = load_and_validate(folder / "pyproject.toml")
            app = read["tool"]["flwr"]["app"]
            config = flatten_dict(app.get("config", {}))
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"{folder} is not an app that Flower runs: {' '.join(str(error).split()).rstrip('.')}."
            ) from None
        parts = app["components"]
        nodes = _older_nodes(read) or DEFAULT_SIMULATION_CONFIG.num_supernodes or 1
        return cls(folder, parts["serverapp"], parts["clientapp"], config, nodes)

    def with_overrides(self, overrides: Sequence[str]) -> UserConfig:
        """The configuration with overrides, as ``flwr run --run-config`` takes them: ``'key=1 other="text"'``, or one TOML file.

        Raises ConfigError for a text that Flower cannot read, and for a key that the app does not have.
        """
        from click import ClickException
        from flwr.common.config import parse_config_args

        for text in overrides:
            if not text.endswith(".toml") and (rest := _PAIR.sub("", text).strip()):
                raise ConfigError(f"--run-config cannot be read: {rest!r} is not a key=value.")
        try:
            given = parse_config_args(list(overrides))
        except (ClickException, OSError, ValueError) as error:
            raise ConfigError(f"--run-config cannot be read: {' '.join(str(error).split())}") from None
        for key, value in given.items():
            if key not in self.config:
                raise ConfigError(
                    f"--run-config names {key!r}, which is not in the app's [tool.flwr.app.config].{nearest(key, self.config)}"
                )
            usual = self.config[key]
            if type(value) is not type(usual) and not (isinstance(value, int | float) and isinstance(usual, float)):
                getLogger("flwr").warning(
                    "--run-config gives %r the value %r, where the app has %r.", key, value, usual
                )
        return {**self.config, **given}

    def simulate(self, nodes: int, run_config: UserConfig, resources: Resources, seed: int | None = None) -> Simulated:
        """Run the app, as the function ``simulate`` does.

        Args:
            nodes: How many nodes there are.
            run_config: What ``context.run_config`` holds at the server and at every node.
            resources: Who makes the calls.
            seed: As of the function ``simulate``.

        Raises:
            ConfigError: for components that do not load, else as the function ``simulate``.
            PolyclinicError: as the function ``simulate``.
        """
        (module, name), (server_module, server_name) = self.client.split(":"), self.server.split(":")
        client = AppReference(module, name, str(self.folder))
        _check(nodes, seed)
        before = current()
        with threads_of(resources.threads):
            find_in(str(self.folder))
            workers = resources.begin(module, str(self.folder))
            try:
                server = attribute(server_module, server_name)
                client.load()
                if not isinstance(server, ServerApp):
                    raise TypeError(f"{self.server} is not a Flower ServerApp")
            except Exception as error:
                if workers:
                    workers.close(now=True)
                if not isinstance(error, TypeError):  # what the app's own code raised
                    getLogger("flwr").error("The app does not load.", exc_info=error)
                raise ConfigError(f"The app in {self.folder} does not load: {why(error)}.") from error
            # A module of the app's that seeds generators when it is imported does so at both ends.
            seeded = current()
            generators = Generators(None if same(before, seeded) else seeded)
            return _run(server, Guest(client, seed), nodes, run_config, workers, generators)


def _run(
    server_app: ServerApp, client_app: Guest, nodes: int, run_config: UserConfig, workers: Workers | None,
    generators: Generators,
) -> Simulated:  # fmt: skip
    callers = current()
    with LocalGrid(client_app, nodes, run_config, workers, generators=generators) as grid:
        if client_app.seed is not None:
            seed_all(client_app.seed)
        context = Context(grid.run.run_id, 0, {}, RecordDict(), dict(run_config))
        begun = time.perf_counter()
        try:
            server_app(grid, context)
        finally:
            if client_app.seed is not None:
                restore(callers)
        seconds = time.perf_counter() - begun
    if grid.messages and grid.failures == grid.messages:
        raise PolyclinicError(f"Every one of {grid.messages} replies was an error; the first: {grid.first_failure}")
    return Simulated(context, grid.messages, grid.failures, seconds)


def _check(nodes: int, seed: int | None) -> None:
    check_count("num_supernodes", nodes)
    if seed is not None:
        check_count("seed", seed, least=0)


def _older_nodes(pyproject: dict[str, Any]) -> int:
    """How many nodes ``[tool.flwr.federations]`` names, where apps for older versions of Flower say it; 0 where none does."""
    with suppress(KeyError, TypeError):
        named = pyproject["tool"]["flwr"]["federations"]
        nodes = named[named["default"]]["options"]["num-supernodes"]
        check_count("num-supernodes", nodes)
        return int(nodes)
    return 0
