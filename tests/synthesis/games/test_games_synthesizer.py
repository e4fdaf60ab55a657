"""Generators in a file draw what they drew before, alone and combined."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import load, save

SCHEMA = Schema(
    name="ward",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(0.0, 100.0)),
        Column(name="sbp", kind="trajectory", steps=3, bounds=(60.0, 240.0)),
        Column(name="died", kind="categorical", role="label", categories=("no", "yes", "unknown")),
    ),
)
LAYOUT = Layout.of(SCHEMA)


def generated(seed: int = 0, shift: float = 0.0, **options: object) -> GeneratedRows:
    game = make(LAYOUT, "gan", **options)  # type: ignore[arg-type]
    weights = first_state(game, LAYOUT, seed).weights
    weights = {name: value + shift if name.endswith("bias") else value for name, value in weights.items()}
    return GeneratedRows(LAYOUT, game, (weights,), np.array([0.7, 0.3, 0.0]))


def test_a_saved_generator_draws_the_same_rows(tmp_path: Path) -> None:
    one = generated(spread="1.5", hard="false")
    save(one, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", LAYOUT)
    assert_array_equal(one.sample(50, np.random.default_rng(4)), again.sample(50, np.random.default_rng(4)))
    assert isinstance(again, GeneratedRows) and again.game.spread == 1.5
    save(replace(one, generators=one.generators + generated(1).generators), tmp_path / "two.safetensors")
    two = load(tmp_path / "two.safetensors", LAYOUT)
    assert isinstance(two, GeneratedRows) and len(two.generators) == 2
    other = Layout.of(SCHEMA.model_copy(update={"columns": SCHEMA.columns[1:]}))
    with pytest.raises(DataError, match="no synthesizer of this schema"):
        load(tmp_path / "two.safetensors", other)


def test_labels_are_those_asked_for_or_by_their_frequencies() -> None:
    one = generated()
    labels = np.array([2, 0, 1, 1])
    assert_array_equal(LAYOUT.labels(one.sample(4, np.random.default_rng(0), labels)), labels)
    free = LAYOUT.labels(one.sample(4000, np.random.default_rng(0)))
    assert np.bincount(free, minlength=3) / 4000 == pytest.approx([0.7, 0.3, 0.0], abs=0.03)


def test_combined_generators_draw_alike() -> None:
    one = generated()
    both = replace(one, generators=one.generators + generated(shift=100.0).generators)
    z = both.sample(2000, np.random.default_rng(0))
    assert (z[:, 0] > 50).mean() == pytest.approx(0.5, abs=0.05)


def test_a_diverged_generator_is_refused() -> None:
    one = generated(shift=float("nan"))
    with pytest.raises(DataError, match="diverged"):
        one.sample(3, np.random.default_rng(0))
