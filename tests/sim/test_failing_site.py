"""A site whose training raises: the others finish, and its traceback lies in the run's folder."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Schema
from polyclinic.inspection.result import RunResult

SCHEMA = Schema.from_dict({
    "name": "four",
    "columns": [
        {"name": "patient", "kind": "integer", "role": "patient_id"},
        {"name": "site", "kind": "integer", "role": "site"},
        *({"name": name, "kind": "continuous", "bounds": [-5.0, 5.0]} for name in ("mark", "x")),
        {"name": "y", "kind": "binary", "role": "label"},
    ],
})  # fmt: skip


def generate(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Site 2 alone has 5 in the column ``mark``, which is encoded as 1."""
    site = np.repeat(np.arange(sites), patients // sites)
    x = np.random.default_rng(seed).uniform(-4, 4, len(site))
    marks = np.where(site == 2, 5.0, 0.0)
    return pd.DataFrame({"patient": np.arange(len(site)), "site": site, "mark": marks, "x": x, "y": (x > 0) * 1})


dataset = Dataset(
    name="four", title="Four", description="Made up.", schema=SCHEMA, licence="Apache-2.0", citation="none", patients=200,
    rows=200, default_sites=4, default_partitioner="natural", natural_sites=("0", "1", "2", "3"),
    load=lambda: generate(4, 200, 0), available=lambda: True, simulated=True, generate=generate,
)  # fmt: skip


class Fragile(nn.Module):
    """Raises on site 2's rows as long as it has not been trained, that is, in the first round."""

    def __init__(self, features: int, classes: int, widths: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.linear.bias.any() and (x[:, 0] == 1.0).any():
            raise ArithmeticError("an untrained model meets a marked row")
        return self.linear(x)


class Blind(nn.Linear):
    """Cannot be evaluated on site 2's rows."""

    def __init__(self, features: int, classes: int, widths: Any) -> None:
        super().__init__(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and (x[:, 0] == 1.0).any():
            raise ArithmeticError("a marked row is held out")
        return super().forward(x)


def test_a_site_that_cannot_be_evaluated_is_left_out_alone(quick: Callable[..., RunResult]) -> None:
    module = "tests.sim.test_failing_site"
    result = quick(
        dataset=f"{module}:dataset", model=f"{module}:Blind", training={"engine": "opacus"}, sites=4, rounds=1,
        data={"standardise": "none"}, privacy={"patients_per_site": 40},
    )  # fmt: skip
    (dropped,) = result.summary["dropouts"]
    assert dropped["site"] == "2" and "the traceback is in sites/failed-round-000001-evaluate-" in dropped["reason"]
    assert result.sites.auroc.isna().tolist() == [False, False, True, False]
    assert result.pooled["auroc"] is not None and list(result.sites.rounds_joined) == [1] * 4


@pytest.mark.parametrize(
    "workers", [{}, {"workers": 2}, pytest.param({"workers": 2, "ray_address": "local"}, marks=pytest.mark.slow)]
)
def test_a_site_that_raises_fails_alone_with_its_traceback_in_the_runs_folder(
    quick: Callable[..., RunResult], workers: dict[str, Any]
) -> None:
    module = "tests.sim.test_failing_site"
    result = quick(
        dataset=f"{module}:dataset", model=f"{module}:Fragile", training={"engine": "opacus",
        "sample_rate": 0.5},
        sites=4, data={"standardise": "none"}, privacy={"patients_per_site": 40}, **workers,
    )  # fmt: skip
    (path,) = (result.path / "sites").rglob("failed*")
    file = str(path.relative_to(result.path))
    assert result.summary["dropouts"] == [{
        "round": 1, "site": "2",
        "reason": f"2: ArithmeticError: an untrained model meets a marked row; the traceback is in {file}",
    }]  # fmt: skip
    written = (result.path / file).read_text()
    assert written.startswith("Traceback") and "in forward" in written and written.count("Traceback") == 1
    assert list(result.sites.rounds_joined) == [2, 2, 1, 2]
    assert file in (result.path / "report.html").read_text()
