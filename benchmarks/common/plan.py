"""Which rows a full and a quick benchmark measure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks.common.environment import Unavailable, pfl_python
from benchmarks.common.probes import OUT, Probe, module
from benchmarks.common.rows import Goal, Row
from benchmarks.common.tables import PATIENTS

# In the order in which they are measured, should a machine not stay quiet for all of them.
NAMES = (
    "floor", "flower", "importing", "plain_loop", "opacus_loop", "many_sites", "cohorts", "flower_command", "pfl",
    "ours_dp_over_ours_plain", "start",
)  # fmt: skip
_COMMAND_ROUNDS = 15


def full(names: Sequence[str]) -> list[Row]:
    """Every row of the table."""
    return [row for name in names for row in _FULL[name]()]


def quick(names: Sequence[str]) -> list[Row]:
    """Fewer sites, rounds and turns, one worker: to see that everything runs, not for figures to quote."""
    return [row for name in names if name in _QUICK for row in _QUICK[name]()]


def ours(
    sites: int, rounds: int, dp: bool, workers: int = 1, patients: int = PATIENTS, skip: int = 2, asked: int = 0,
    each: bool = False,
) -> Probe:  # fmt: skip
    """Our rounds, timed in ``benchmarks.ours``; ``asked`` sites in each, 0 for all. ``each``: the seconds of one site."""
    flags = ("--sites", sites, "--rounds", rounds, "--workers", workers, "--patients", patients, "--cohort", asked)
    label = f"{workers} worker{'s' if workers > 1 else ''}"
    argv = module("benchmarks.ours", *flags, *(("--dp",) if dp else ()))
    return Probe(label, argv, skip=skip, divide=(asked or sites) if each else 1)


def either(sites: int, rounds: int, dp: bool) -> tuple[Probe, ...]:
    """Our rounds with one worker and with two."""
    return tuple(ours(sites, rounds, dp, workers) for workers in (1, 2))


def peer(name: str, sites: int, rounds: int, dp: bool, python: str = sys.executable) -> Probe:
    """Another project's rounds."""
    flags = ("--sites", sites, "--rounds", rounds, *(("--dp",) if dp else ()))
    return Probe(name, module(f"benchmarks.peers.{name}", *flags, python=python))


def command(sites: int, rounds: int, dp: bool, workers: int, kind: Literal["command", "start"]) -> Probe:
    """``polyclinic run`` as a user starts it, evaluating once after the last round."""
    from benchmarks.common.settings import epsilon_for, options

    keys = options(sites, rounds, dp, PATIENTS, epsilon_for(rounds) if dp else 1.0)
    keys |= {"dataset": "benchmarks.common.work:hospitals_500", "workers": workers, "out": OUT}
    sets = [part for key, value in keys.items() for part in ("-c", f"{key.replace('_', '-')}={_toml(value)}")]
    return Probe(f"{workers} worker{'s' if workers > 1 else ''}", (*_program(), "run", *sets), kind=kind)


def _program() -> tuple[str, ...]:
    script = Path(sys.executable).with_name("polyclinic")
    return (str(script),) if script.exists() else module("polyclinic")


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flower(rounds: int = 12) -> list[Row]:
    note = "theirs: Ray on 2 CPUs, without get_epsilon; median round after the first two"
    return [
        Row("flower", sites, dp, Goal("at least", 40), either(sites, rounds, dp), peer("flower", sites, 6, dp),
            note=note)
        for sites in (50, 200) for dp in (True, False)
    ]  # fmt: skip


def _flower_command() -> list[Row]:
    rounds = _COMMAND_ROUNDS
    return [
        Row("flower_command", sites, dp, Goal("at least", goal),
            tuple(command(sites, rounds, dp, workers, "command") for workers in (1, 2)),
            Probe("flower_command", module("benchmarks.peers.flower", "--sites", sites, "--rounds", rounds,
                                           *(("--dp",) if dp else ())), kind="command"),
            note=f"{rounds} rounds; theirs by run_simulation, which starts sooner than flwr run; ours with its report")
        for sites, dp, goal in ((50, True, 10), (50, False, 10), (4, True, 5))
    ]  # fmt: skip


def _opacus_loop() -> list[Row]:
    return [
        Row("opacus_loop", sites, True, Goal("at least", 25), either(sites, 12, True),
            peer("opacus_loop", sites, 6, True), note="theirs in one process, without get_epsilon")
        for sites in (50, 200)
    ]  # fmt: skip


def _plain_loop() -> list[Row]:
    return [
        Row("plain_loop", sites, True, Goal("at least", 4), either(sites, 12, True),
            peer("plain_loop", sites, 8, False), note="theirs in one process and without privacy")
        for sites in (50, 200)
    ]  # fmt: skip


def _pfl(sizes: Sequence[int] = (200, 1000), rounds: int = 6, install: bool = True) -> list[Row]:
    missing = None
    try:
        python = pfl_python(install)
    except Unavailable as reason:
        python, missing = sys.executable, str(reason)
    return [
        Row("pfl", sites, False, Goal("at least", 6), (ours(sites, rounds, False),),
            peer("pfl", sites, rounds, False, python), repeats=3 if install else 1,
            note="one process each" + ("" if install else "; quick"),
            missing=missing)
        for sites in sizes
    ]  # fmt: skip


def _floor() -> list[Row]:
    note = "theirs: one model in big batches without privacy, and the same noise drawn; one process, one thread each"
    return [
        Row("floor", sites, True, Goal("at most", goal), (ours(sites, rounds, True),), peer("floor", sites, rounds, False),
            note=note)
        for sites, rounds, goal in ((200, 8, 1.4), (50, 12, 1.7), (4, 120, 2.5))
    ]  # fmt: skip


def _over_plain() -> list[Row]:
    mine, plain = ours(200, 8, True), ours(200, 8, False)
    return [Row("ours_dp_over_ours_plain", 200, True, Goal("at most", 1.6), (mine,), plain, note="one process each")]


def _many_sites() -> list[Row]:
    many = ours(10_000, 3, True, patients=100, skip=1, each=True)
    few = ours(200, 8, True, patients=100, each=True)
    return [
        Row("many_sites", 10_000, True, Goal("at most", 1.2), (many,), few, repeats=1, memory_limit=2.0,
            note="100 patients a site, batches of 10, 10 steps; seconds per site, theirs: ours at 200 sites; one process")
    ]  # fmt: skip


def _cohorts() -> list[Row]:
    many = ours(100_000, 4, True, patients=20, skip=1, asked=500, each=True)
    few = ours(1_000, 8, True, patients=20, asked=500, each=True)
    return [
        Row("cohorts", 100_000, True, Goal("at most", 1.5), (many,), few, repeats=1, memory_limit=4.0,
            note="20 patients a site, 500 sites a round; seconds per site asked, theirs: ours at 1,000 sites; one process")
    ]  # fmt: skip


def _importing() -> list[Row]:
    theirs = Probe("importing", (sys.executable, "-c", "import torch, pandas, matplotlib"), kind="command")
    program = (*_program(), "run", "-c", "rounds=2", "-c", f"out={OUT}")
    return [
        Row("importing", 4, True, Goal("at most", 1.3), (Probe("1 worker", program, kind="command"),), theirs,
            note="the whole command: two rounds of `breast-cancer` at four hospitals, with its report")
    ]  # fmt: skip


def _start() -> list[Row]:
    probe = command(4, 2, True, 1, "start")
    note = "from the start of polyclinic run to the end of its first round; reported only"
    return [Row("start", 4, True, Goal("seconds", 4), (probe,), note=note)]


_FULL = {
    "flower": _flower, "flower_command": _flower_command, "opacus_loop": _opacus_loop, "plain_loop": _plain_loop,
    "pfl": _pfl, "floor": _floor, "ours_dp_over_ours_plain": _over_plain, "many_sites": _many_sites, "start": _start,
    "importing": _importing, "cohorts": _cohorts,
}  # fmt: skip


def _brief(name: str, dp: bool, theirs_dp: bool, goal: Goal) -> list[Row]:
    return [Row(name, 50, dp, goal, (ours(50, 4, dp),), peer(name, 50, 4, theirs_dp), repeats=1, note="quick")]


_QUICK = {
    "flower": lambda: _brief("flower", True, True, Goal("at least", 40)),
    "opacus_loop": lambda: _brief("opacus_loop", True, True, Goal("at least", 25)),
    "plain_loop": lambda: _brief("plain_loop", True, False, Goal("at least", 4)),
    "pfl": lambda: _pfl((50,), 4, install=False),
    "floor": lambda: _brief("floor", True, False, Goal("at most", 1.7)),
    "ours_dp_over_ours_plain": lambda: [
        Row("ours_dp_over_ours_plain", 50, True, Goal("at most", 1.6), (ours(50, 4, True),), ours(50, 4, False),
            repeats=1, note="quick")
    ],
    "start": lambda: [Row("start", 4, True, Goal("seconds", 4), (command(4, 2, True, 1, "start"),), repeats=1,
                          note="quick")],
}  # fmt: skip
