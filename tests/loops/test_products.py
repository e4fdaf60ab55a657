"""Products of small matrices, against float64 and whatever else stands in the arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.loops import compile_loop, products

# Of no file, so that numba keeps neither width for the other.
LOOP = """def loop(a, row, step, b, c, at, rows, depth, columns):
    times(a, at, row, step, b, 0, columns, c, at, columns, rows, depth, columns)"""


@cache
def product(lanes: int) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(LOOP, names)
    kinds = "float32[::1], int64, int64, float32[::1], float32[::1], int64, int64, int64, int64"
    return compile_loop(names["loop"], f"void({kinds})", {"times": products.product(lanes)})


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 9), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_products_are_those_of_numpy_in_registers_of_any_width(
    rows: int, depth: int, columns: int, turned: bool, seed: int
) -> None:
    rng, columns, at = np.random.default_rng(seed), 16 * columns, seed % 5
    a, b = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, columns)).astype(np.float32)
    flat = np.concatenate([np.full(at, np.nan), a.T.ravel() if turned else a.ravel()]).astype(np.float32)
    steps = (1, rows) if turned else (depth, 1)
    found = [np.full(at + rows * columns + 3, 7.0, dtype=np.float32) for _ in range(2)]
    for lanes, out in zip((8, 16), found, strict=True):
        product(lanes)(flat, *steps, b.ravel(), out, at, rows, depth, columns)
    assert np.array_equal(found[0], found[1])
    exact, most = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    assert (np.abs(found[0][at:-3].reshape(rows, columns) - exact) <= (depth + 1) * 2.0**-24 * most).all()
    assert (found[0][:at] == 7).all() and (found[0][-3:] == 7).all()


def test_rows_are_padded_to_whole_vectors() -> None:
    assert [products.padded_size(size) for size in (0, 1, 16, 17)] == [0, 16, 16, 32]
