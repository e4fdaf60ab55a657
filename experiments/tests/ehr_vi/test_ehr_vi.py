"""Experiment ehr-vi: its likelihood of incomplete records, its exact posterior, who is chosen, and its quick form."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.interpolate import RectBivariateSpline

from polyclinic.experiments import Asked, reproduce
from polyclinic.privacy.streams import generator
from polyclinic_studies.cvsim6.two_parameters import Grid, Pair, log_likelihood
from polyclinic_studies.ehr_flow.cohort import TRAINING
from polyclinic_studies.ehr_vi.patients import EIGHT, MOST, PUBLIC, moments, patients
from polyclinic_studies.ehr_vi.table5 import summaries

EIGHT_OUTPUTS = 8


def test_cells_that_were_not_measured_say_nothing() -> None:
    rng = generator(0, "records")
    records = torch.from_numpy(rng.standard_normal((9, EIGHT_OUTPUTS)))
    records[torch.from_numpy(rng.uniform(size=records.shape) < 0.3)] = torch.nan
    found = torch.from_numpy(rng.standard_normal((3, EIGHT_OUTPUTS)))
    spread = torch.linspace(0.5, 2, EIGHT_OUTPUTS, dtype=torch.float64)
    cell_by_cell = [
        -sum(
            float((value - cell) / width) ** 2 / 2
            for row in records
            for cell, value, width in zip(row, one, spread, strict=True)
            if not torch.isnan(cell)
        )
        for one in found
    ]
    ours = log_likelihood(found, records, spread)
    assert (ours - ours[0]).tolist() == pytest.approx([value - cell_by_cell[0] for value in cell_by_cell])
    own = torch.from_numpy(np.nanstd(records.numpy(), axis=0, ddof=1))
    assert torch.allclose(log_likelihood(found, records), log_likelihood(found, records, own))


@pytest.mark.parametrize("width", [0.3, 0.002])
def test_the_grid_closes_in_on_a_narrow_posterior(width: float) -> None:
    axis = np.linspace(-1, 1, 9)
    values = np.stack(np.meshgrid(axis, axis, indexing="ij"))
    splines = tuple(RectBivariateSpline(axis, axis, values[i % 2]) for i in range(EIGHT_OUTPUTS))
    fine = torch.cartesian_prod(*[torch.linspace(-1, 1, 41, dtype=torch.float64)] * 2)
    low, high = -torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    made = Grid(low, high, fine, fine.repeat(1, 4), splines)
    centre = torch.tensor([0.1, -0.05], dtype=torch.float64)
    root = width * torch.tensor([[1.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    covariance = root @ root.T

    def log_density(at: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        away = outputs[:, :2] - centre
        return -torch.einsum("ni,ij,nj->n", away, torch.linalg.inv(covariance), away) / 2

    mean, found = made.near(log_density)
    assert mean.tolist() == pytest.approx(centre.tolist(), abs=0.02 * width)
    assert torch.allclose(found / covariance, torch.ones(2, 2, dtype=torch.float64), atol=0.03)


def test_hypertensive_patients_of_training_are_chosen_and_only_their_truth_counts() -> None:
    given = patients()
    training = given.whole.records.iloc[:TRAINING]
    ill = training["hypertensive"].to_numpy() == 1
    assert 10 < len(given.records) == ill.sum() <= MOST
    assert given.truth["c_a"] == pytest.approx(given.whole.parameters[:TRAINING][ill].mean(0)[8])
    assert given.z.shape == (TRAINING, given.layout.width) and len(EIGHT.features) == len(PUBLIC) == EIGHT_OUTPUTS
    drawn = given.synthetic(moments(given, None, 0), generator(0, "drawn"))
    away = (drawn.nanmean(0) - given.records.nanmean(0)) / PUBLIC
    assert len(drawn) > 10 and float(away.abs().max()) < 1


def test_the_range_of_the_code_is_twice_that_of_the_paper_and_the_parameter_another() -> None:
    paper, code = Pair("r_ro", 1), Pair("r_ri", 2)
    assert [round(float(end[0]) * 1333.22, 1) for end in (*paper.box(), *code.box())] == [2.7, 5.3, 26.7, 106.7]


def test_summaries_say_how_far_releases_are_from_the_patients_and_from_the_truth() -> None:
    def row(generator: str, release: int, mean: float) -> dict[str, object]:
        exact = {"mean": [mean, 1.0], "deviations": [2.0, 0.5], "correlation": 0.0}
        return {"generator": generator, "mu": 3.0, "release": release, "spread": "public", "exact": exact, "flow": None}

    nothing = row("moments", 3, 0.0) | {"exact": None}
    rows = [row("", 0, 10.0), row("moments", 0, 16.0), row("moments", 1, 13.0), row("moments", 2, 10.0), nothing]
    found = summaries({"rows": rows, "truth": [17.0, 3.0]})
    assert len(found) == 1 and found[0]["releases"] == 4 and found[0]["without result"] == 1
    assert found[0]["mean"] == [13.0, 1.0]
    assert found[0]["away"] == pytest.approx([((9 + 2.25) / 3) ** 0.5, 0.0])
    assert found[0]["covers patients"] == pytest.approx([2 / 3, 1.0])
    assert found[0]["covers truth"] == pytest.approx([2 / 3, 0.0])


@pytest.mark.slow
def test_the_quick_form(tmp_path: Path) -> None:
    said: list[str] = []
    reproduce("ehr-vi", Asked(tmp_path, quick=True), said.append)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert len(list(tmp_path.glob("*.svg"))) == 3 and all(target["met"] is None for target in found["targets"])
    assert {name.split()[0] for name in found["table 5"]["cases"]} == {"r_ro", "r_ri", "r_ri,"}
    by = {row["method"]: row for row in found["losses"]["regression"]}
    kept, moved = (
        by[f"held at Algorithm 2's spread, {name}"]["correlation difference"] for name in ("wasserstein", "kl")
    )
    assert kept < 0.05 < 0.5 < moved
    case = found["population"]["r_ri (its code's)"]
    sums = next(row for row in case["rows"] if row["method"] == "Gauss-Newton")
    assert max(abs(value) for value in sums["away"]) < 1 and max(sums["inflation"]) < 1.5
    said.clear()
    reproduce("ehr-vi", Asked(tmp_path, quick=True), said.append)
    assert not any("epsilon" in line for line in said)  # finished parts are kept
