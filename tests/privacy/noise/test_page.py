"""The tables of docs/privacy/noise.md are what the code computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from polyclinic.privacy.noise import NOISE, Participation, error, noise_process

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "privacy" / "noise.md").read_text(encoding="utf-8")
OPTIONS: dict[str, dict[str, Any]] = {"plain": {"honaker": False}, "a restart each separation": {"restart": True}}


def gain(name: str, steps: int, separation: int, kind: str = "") -> float:
    participation = Participation(separation, steps // separation)
    options = dict(OPTIONS.get(kind, {}))
    if options.get("restart"):
        options["restart"] = separation
    ours = error(noise_process(name, steps, participation=participation, **options), participation)
    return error(noise_process("independent", steps), participation).rms_max / ours.rms_max


def test_every_process_has_its_row() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \| .*\| .*\| .*\|$", PAGE, re.M)[: len(NOISE)] == list(NOISE)


@pytest.mark.parametrize("row", re.findall(r"^\| `[a-z-]+`(?:, [a-z ]+)? \|(?: \d\.\d\d \|){5}$", PAGE, re.M))
def test_the_errors_are_those_of_the_code(row: str) -> None:
    label, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    name, _, kind = label.partition(", ")
    found = [gain(name.strip("`"), 256, separation, kind) for separation in (1, 4, 16, 64, 256)]
    assert [f"{value:.2f}" for value in found] == cells


def test_the_table_has_all_processes() -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, [a-z ]+)?) \|(?: \d\.\d\d \|){5}$", PAGE, re.M)
    assert {row.split("`")[1] for row in rows} == set(NOISE)
    assert {row.partition(", ")[2] for row in rows} == {"", *OPTIONS}


def test_the_gains_at_1024_steps_are_those_of_the_code() -> None:
    banded, blt = re.search(r"`banded` is at (\S+) and\n +`blt` at (\S+)\.", PAGE).groups()  # type: ignore[union-attr]
    assert [f"{gain(name, 1024, 64):.1f}" for name in ("banded", "blt")] == [banded, blt]
