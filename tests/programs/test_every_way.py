"""Every kind of analysis, and shape functions: a secure sum gives the plain run's numbers, and shared noise its right level."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from polyclinic import Federation, RunResult
from polyclinic.programs.program import Collected
from polyclinic.programs.sums import ModelHalf, SumsHalf
from polyclinic.training.synthesis import SUM
from tests.programs.wards import RUNS

Run = Callable[..., RunResult]
SECURE = {"secure.aggregation": True}
SHARED = SECURE | {"secure.shared-noise": True}
FOUR = {
    "partitioner": "iid",
    "sites": 4,
    "privacy.delta": 1e-3,
    "privacy.patients-per-site": 100,
    "data.standardise": "none",
}
# Of shape functions without privacy, whose sums are small beside what one patient may add.
STEPS = {"ebm": 5e-3}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(kind: str, **keys: Any) -> RunResult:
        federation = Federation.from_dataset("tests.programs.wards:WARDS", out=str(tmp_path))
        return federation.run(**RUNS[kind] | keys, pictures=False)

    return call


def numbers(result: RunResult) -> Iterator[tuple[str, np.ndarray]]:
    """Every table's numbers, or the model's arrays, by name."""
    if not result.summary.get("analysis"):
        yield from ((name, value.numpy().astype(float)) for name, value in result.arrays.items())
        return
    for name, table in result.tables.items():
        yield name, table.select_dtypes("number").to_numpy(dtype=float)


def assert_near(result: RunResult, plain: RunResult, off: float, least: float | None = None) -> None:
    """That numbers differ by the share ``off`` at most, or by ``least``."""
    theirs = dict(numbers(plain))
    assert theirs
    for name, value in numbers(result):
        assert value.shape == theirs[name].shape
        np.testing.assert_allclose(value, theirs[name], rtol=off, atol=off if least is None else least, err_msg=name)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("keys", [{"privacy.dp": False}, {"privacy.epsilon": 20.0}], ids=["exact", "private"])
def test_a_secure_sum_gives_the_plain_runs_numbers(run: Run, kind: str, keys: dict[str, Any]) -> None:
    more = {"rounds": 8} if kind in ("regression", "cox") and "privacy.dp" in keys else {}  # else it does not converge
    plain, secure = (run(kind, **keys | more | own) for own in ({}, SECURE))
    assert_near(secure, plain, STEPS.get(kind, 2e-4))


@pytest.mark.parametrize("kind", RUNS)
def test_shared_noise_is_as_large_as_the_run_counts_it(run: Run, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first sum, whose question no records reach: the standard deviation that the program is given is that of what was
    added, and it is smaller than of four hospitals that add theirs apart."""
    came: list[Collected] = []
    for half in (SumsHalf, ModelHalf):

        def absorb(self: Any, number: int, *rest: Any, real: Any = half.absorb) -> Any:
            came.extend(rest[2:] if number == 1 else ())
            return real(self, number, *rest)

        monkeypatch.setattr(half, "absorb", absorb)
    for keys in ({"privacy.epsilon": 5000.0}, {"privacy.epsilon": 8.0}, SHARED | {"privacy.epsilon": 8.0}):
        run(kind, **keys | FOUR)
    true, apart, shared = came
    off = (shared.mean[SUM] - true.mean[SUM]).astype(float) / shared.noise
    assert 1e-3 < chi2.cdf(off @ off, len(off)) < 1 - 1e-3
    assert 0.5 < shared.noise / apart.noise < 0.8
