"""The study of audits: which trainers it has, what it counts as an alarm, and no verdict from few seeds."""

from __future__ import annotations

from typing import Any

from polyclinic.config import RunConfig
from polyclinic.config.programs.synthesis import FLOWS, GAMES, METHODS
from polyclinic.plugins import BUILT_IN
from polyclinic_studies import audits


def _found(alarms: int, seeds: int) -> list[dict[str, Any]]:
    return [
        {"caught_by": ["noise size"] if seed < alarms else [], "lower": 0.1 * seed, "claimed": 3.0}
        for seed in range(seeds)
    ]


def test_every_trainer_that_comes_with_polyclinic_is_audited() -> None:
    models = {RunConfig.build({**audits.COMMON, **keys}).model for keys in audits.TRAINERS.values()}
    # medgan needs a decoder of public records, and is the same critic as dpgan's.
    assert models >= {*BUILT_IN["models"], *METHODS, *GAMES, *FLOWS} - {"medgan"}
    tasks = {RunConfig.build({**audits.COMMON, **keys}).task for keys in audits.TRAINERS.values()}
    # survival and cox ask for a dataset with times.
    assert tasks >= {*BUILT_IN["tasks"]} - {"survival", "cox"}


def test_alarms_are_counted_and_few_seeds_give_no_verdict() -> None:
    sound, wrong = {"moments": _found(0, 20), "latent": _found(1, 20)}, {"without noise": _found(20, 20)}
    assert [one.judge().met for one in audits._targets(sound, wrong)] == [True, False, True]
    assert [one.judge().met for one in audits._targets({"moments": _found(0, 19)}, {})] == [None]
    row = next(line for line in audits._table(sound).splitlines() if line.startswith("| moments"))
    assert row == "| moments | 0 of 20 | 0.14 | 0.95 | 1.90 | - |"  # 1 - .05 ** (1 / 20)
