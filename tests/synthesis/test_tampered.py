"""A synthesizer's file with an array that cannot be is refused when it is read, before a row is drawn by it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from polyclinic.errors import DataError
from polyclinic.synthesis.flows.recipe import make as make_flow
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.games.builders import make as make_game
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.counts import merged_sizes
from polyclinic.synthesis.marginals.estimation import Measured
from polyclinic.synthesis.marginals.network import NetworkSynthesizer, shares_within
from polyclinic.synthesis.marginals.posterior import Evidence
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.methods.mixture import Mixture
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import SynthesisMethod, fit_centrally
from polyclinic.synthesis.synthesizer import Synthesizer, describe, load, made_again, save
from polyclinic.synthesis.visits.method import VisitByVisit
from polyclinic.training.modules import dump
from polyclinic.types import Arrays
from tests.synthesis.tables import MIXED, mixed, rows_of

LAYOUT = Layout.of(MIXED)


def fitted(method: SynthesisMethod) -> Synthesizer:
    z = rows_of(LAYOUT, mixed(400, 0))
    return fit_centrally(method, z, np.arange(len(z)), len(z), 1.0, np.random.default_rng(0))


def network() -> Synthesizer:
    """Each column by the label, all cells alike; the first number's first two cells merged, and its pair asked in groups."""
    table = Table.of(LAYOUT, 4, 60)
    label = len(table.sizes) - 1
    merged = [np.arange(size) for size in table.sizes]
    merged[0] = np.maximum(merged[0] - 1, 0)
    flat = np.concatenate(merged)
    sizes, cells = merged_sizes(flat, table), int(table.sizes.sum())
    parents = ((), *((label,) for _ in range(label)))
    tables = tuple(
        np.full((sizes[list(above)].prod(dtype=np.int64), sizes[own]), 1.0 / sizes[own])
        for own, above in zip((label, *range(label)), parents, strict=True)
    )
    groups = (np.array([0, 0, 1]), np.arange(3))
    measured = (
        Measured((label,), np.full(3, 1 / 3), np.full(3, 0.01)),
        Measured((0, label), np.full(6, 1 / 6), np.full(6, 0.01), groups),
    )
    evidence = Evidence(400.0, measured, np.full(cells, 0.1), np.full(cells, 0.01))
    fine = shares_within(table, flat, np.ones(cells))
    return NetworkSynthesizer(table, 4, flat, fine, (label, *range(label)), parents, tables, evidence)


def game() -> Synthesizer:
    made = make_game(LAYOUT, "gan")
    return GeneratedRows(LAYOUT, made, (first_state(made, LAYOUT, 0).weights,), np.array([0.7, 0.2, 0.1]))


def flow() -> Synthesizer:
    recipe = make_flow(LAYOUT, "maf", transforms="1", hidden="16")
    features = recipe.coordinates.features
    based = replace(recipe, base=(np.zeros(features), np.eye(features)))
    return FlowRows(based, dump(based.module()), np.array([0.7, 0.2, 0.1]))


def mixture() -> Synthesizer:
    return Mixture.of([fitted(Independent(LAYOUT)), fitted(Independent(LAYOUT))], [1.0, 3.0])


MADE: dict[str, Callable[[], Synthesizer]] = {
    "independent": lambda: fitted(Independent(LAYOUT)),
    "independent, not by label": lambda: fitted(Independent(LAYOUT, by_label=False)),
    "moments": lambda: fitted(Moments(LAYOUT)),
    "moments of scores": lambda: fitted(Moments(LAYOUT, rounds=2)),
    "latent": lambda: fitted(Latent(LAYOUT, classes=3, rounds=4)),
    "visits": lambda: fitted(VisitByVisit(LAYOUT)),
    "mixture": mixture, "marginals": network, "game": game, "flow": flow,
}  # fmt: skip


@cache
def made(name: str) -> Synthesizer:
    return MADE[name]()


def read_again(synthesizer: Synthesizer, arrays: Arrays, path: Path) -> Synthesizer:
    """Of a file that says what its own says, with other arrays."""
    save(synthesizer, path)
    with safe_open(path, framework="numpy") as file:
        meta = file.metadata()
    save_file({name: np.array(values, order="C") for name, values in arrays.items()}, path, meta)
    return load(path, LAYOUT)


@pytest.mark.parametrize("name", MADE)
def test_every_array_that_was_tampered_with_is_refused(name: str, tmp_path: Path) -> None:
    one, path = made(name), tmp_path / "synthesizer.safetensors"
    arrays = {key: np.array(value) for key, value in one.arrays().items()}
    again = read_again(one, arrays, path)
    np.testing.assert_array_equal(*(each.sample(9, np.random.default_rng(3)) for each in (one, again)))
    for key, value in arrays.items():
        tampered = {"shape": np.stack([value, value])}
        if value.dtype.kind == "f" and value.size:
            tampered |= {"not a number": np.full_like(value, np.nan), "endless": np.full_like(value, np.inf)}
        elif value.size:
            tampered |= {"too large": value + 1000, "below 0": value - 1000}
        for what, values in tampered.items():
            with pytest.raises(DataError, match="holds no synthesizer of this schema: "):
                read_again(one, arrays | {key: values}, path)
                pytest.fail(f"{key!r} may be of another {what}")
    with pytest.raises(DataError, match="holds no synthesizer of this schema"):
        read_again(one, dict(list(arrays.items())[1:]), path)


@pytest.mark.parametrize(
    ("name", "array", "change", "said"),
    [
        ("independent", "frequencies", lambda a: a + 1, "'frequencies' must hold finite numbers from 0 to 1, of shape"),
        ("independent", "histograms", lambda a: -a, "'histograms' must hold numbers from 0 to 1 that add up to 1"),
        ("independent", "classes", lambda a: 2 * a, "'classes' must hold numbers from 0 to 1 that add up to 1"),
        ("moments", "deviation", lambda a: -a - 1, "'deviation' must hold finite numbers from 0, of shape"),
        ("moments", "root", lambda a: 100 * a, "'root' must hold finite numbers from -1.5 to 1.5"),
        ("latent", "variance", lambda a: -a - 1, "'variance' must hold finite numbers from 0"),
        ("latent", "weights", lambda a: 0 * a, "'weights' must hold numbers from 0 to 1 that add up to 1"),
        ("marginals", "merged", lambda a: 2 * a, "'merged' must hold"),
        ("marginals", "order", lambda a: a[::-1].copy(), "'order' must hold the number of each column once, that of the label"),
        ("marginals", "order", lambda a: 0 * a, "'order' must hold the number of each column once"),
        ("marginals", "fine", lambda a: 0 * a, "'fine' must add up to 1"),
        ("marginals", "parents 0", lambda a: np.array([0]), "'parents 0' must hold columns that stand before it"),
        ("marginals", "conditional 0", lambda a: 0 * a, "'conditional 0' must hold numbers from 0 to 1 that add up to 1"),
        ("marginals", "released deviation 0", lambda a: -a, "'deviation 0' must hold finite numbers from 1e-12"),
        ("marginals", "released patients", lambda a: 0 * a, "'patients' must hold finite numbers from 1e-09"),
        ("mixture", "weights", lambda a: 0 * a, "'weights' must hold numbers from 0 to 1"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused_in_words(
    name: str, array: str, change: Callable[[np.ndarray], np.ndarray], said: str, tmp_path: Path
) -> None:
    arrays = made(name).arrays()
    with pytest.raises(DataError, match=said):
        read_again(made(name), arrays | {array: change(arrays[array])}, tmp_path / "s.safetensors")


@pytest.mark.parametrize("name", ["independent", "moments", "latent", "visits"])
def test_an_option_that_asks_for_all_memory_is_refused(name: str) -> None:
    one = made(name)
    told = describe(one)
    with pytest.raises(DataError, match="the option 'bins' is 1000000000; allowed are whole numbers up to 10000"):
        made_again(LAYOUT, told | {"options": told["options"] | {"bins": 10**9}}, one.arrays())


def test_a_posterior_of_too_many_cells_is_refused() -> None:
    """Two numbers in the file may else stand for cliques whose covariance fills the memory."""
    sizes, cliques = np.array([100, 100]), {"clique 0": np.array([0, 1])}
    grouped = {f"groups 0 {axis}": np.zeros(100, dtype=np.int64) for axis in range(2)}
    numbers = {"patients": np.array(9.0), "alone": np.zeros(200), "spread": np.zeros(200)}
    given = cliques | grouped | numbers | {"values 0": np.ones(1), "deviation 0": np.ones(1)}
    with pytest.raises(DataError, match="may stand for at most 4000 cells"):
        Evidence.load(given, sizes, 200, [(0, 1)])


def test_an_array_of_no_synthesizer_is_refused(tmp_path: Path) -> None:
    one = made("independent")
    with pytest.raises(DataError, match="the array 'more' is none of its own"):
        read_again(one, one.arrays() | {"more": np.zeros(1)}, tmp_path / "s.safetensors")
