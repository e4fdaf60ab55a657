"""``polyclinic simulate``: any Flower app, on this machine's simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, json_alone, loading


def simulate(
    app_dir: Annotated[Path, typer.Argument(help="Folder of a Flower app, with its pyproject.toml.")] = Path(),
    nodes: Annotated[int | None, typer.Option(help="How many nodes. Default: as the app or Flower sets it.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that make the nodes' calls side by side.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of numerical libraries in each process.")] = 1,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--run-config", metavar="TEXT", help="As `flwr run` takes it: 'key=1 other=\"text\"'; repeatable."
        ),
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Use Ray actors as workers: local, auto, or HOST:PORT of a cluster.")
    ] = "",
    seed: Annotated[
        int | None, typer.Option(help="Seed the generators of Python, NumPy and torch before each call.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a Flower app, unmodified, at many simulated nodes: what `flwr run` does, without its waiting."""
    with loading():
        from polyclinic.sim.simulation import FlowerApp, Resources
    resources = Resources(workers, ray_address, threads)
    app = FlowerApp.read(app_dir)
    configured = app.with_overrides(run_config or [])
    with json_alone(as_json):
        done = app.simulate(app.nodes if nodes is None else nodes, configured, resources, seed)
    shown = f"{done.messages} replies of nodes in {done.seconds:.1f} s."
    if done.failures:
        shown = f"{shown[:-1]}, of which {done.failures} were errors."
    answer(as_json, {"messages": done.messages, "failures": done.failures, "seconds": done.seconds}, shown)
