"""Losses that keep correlations, at a spread that is too wide: on the regression and on the bivariate Gaussian.

Regression: five parameters of Su, Wang, Schiavazzi and Liu 2023 (Table 6), whose beta0 and beta3 correlate at -.74. The spread
is the one that Algorithm 2 ends with at epsilon 5, the target what Gauss-Newton sums release there. Gaussian: their
Figure 4, here with flows whose spread is held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from dp_accounting import SelfComposedDpEvent
from torch import Tensor

from polyclinic.experiments import Say, markdown
from polyclinic.inference.gauss_newton import GaussNewton, fit
from polyclinic.inference.likelihood import Gaussian
from polyclinic.inference.private_flow import Everywhere
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic_studies.ehr_vi.dissimilarities import best_correlation
from polyclinic_studies.ehr_vi.transport import held, sliced_loss
from polyclinic_studies.flows import algorithm_2
from polyclinic_studies.flows.paper_regression import PaperRegression, maximum_likelihood, measurements, records_of
from polyclinic_studies.flows.variational import Loss, fit_flow
from polyclinic_studies.parts import Parts

Row = dict[str, Any]
EPSILON, DELTA, HOSPITALS, ROUNDS = 5.0, 1e-5, 3, 8
#: Of the upper triangle of five parameters, row by row: beta0 with beta3.
PAIR = 2
RHO0 = 0.5


def settings(quick: bool) -> dict[str, Any]:
    """What decides the numbers."""
    return {
        "records": 1500 if quick else 6000, "flow-steps": 10 if quick else 500,
        "ratios": [3.0] if quick else [1.0, 2.0, 3.0],
        "held-steps": 60 if quick else 300, "transport-steps": 20 if quick else 600,
    }  # fmt: skip


def study(parts: Parts, quick: bool, say: Say) -> dict[str, Any]:
    """Two parts."""
    chosen = settings(quick)
    found = {"regression": parts.answer("losses regression", chosen, lambda: _regression(chosen)),
             "gaussian": parts.answer("losses gaussian", chosen, lambda: _gaussian(chosen))}  # fmt: skip
    say("losses: done")
    return found


def _regression(chosen: dict[str, Any]) -> list[Row]:
    model, start = PaperRegression(), torch.zeros(5, dtype=torch.float64)
    records = records_of(measurements(0, chosen["records"]))
    exact = maximum_likelihood(model, records, start)
    tables = list(torch.tensor_split(records, HOSPITALS))
    noise = calibrate_noise_multiplier(EPSILON, DELTA, lambda z: SelfComposedDpEvent(gaussian_event(z), ROUNDS))
    method = GaussNewton(model, np.zeros(5), np.ones(5), ROUNDS)
    released = fit(method, [table.numpy() for table in tables], noise, generator(0, "losses, sums")).posterior
    steps = algorithm_2.settings(chosen["flow-steps"])
    multiplier = calibrate_noise_multiplier(EPSILON, DELTA, lambda z: algorithm_2.event(z, steps))
    everywhere = Everywhere(start, torch.ones(5, dtype=torch.float64))
    wide = algorithm_2.private_flow(model, tables, everywhere, multiplier, generator(0, "losses, flow"), steps)
    rows = [
        _row("maximum likelihood", exact, exact),
        _row("Gauss-Newton", released, exact),
        _row("Algorithm 2", wide, exact),
    ]
    target, spread = torch.from_numpy(released.covariance), torch.from_numpy(wide.deviations)
    for name in ("kl", "reverse-kl", "wasserstein"):
        found = Gaussian(released.mean, held(target, spread, name).numpy())
        rows.append(_row(f"held at Algorithm 2's spread, {name}", found, exact))
    near = Everywhere(torch.from_numpy(released.mean), torch.from_numpy(released.deviations))
    flows = {"": None, ", held at twice the spread": torch.full((5,), 2.0, dtype=torch.float64)}
    for words, deviations in flows.items():
        draws, _, _ = fit_flow(
            sliced_loss(released),
            near,
            5,
            chosen["transport-steps"],
            512,
            transforms=2,
            samples=20_000,
            deviations=deviations,
        )
        found = Gaussian(draws.mean(0).numpy(), np.cov(draws.numpy().T))
        rows.append(_row(f"flow by sliced Wasserstein{words}", found, exact))
    return rows


def _row(method: str, found: Gaussian, exact: Gaussian) -> Row:
    change = abs(found.correlations - exact.correlations)
    return {
        "method": method, "inflation": (found.deviations / exact.deviations).tolist(),
        "correlations": found.correlations.tolist(), "correlation difference": float(change.max()),
    }  # fmt: skip


def _gaussian(chosen: dict[str, Any]) -> list[Row]:
    """Correlations of flows at held spreads, beside the closed forms."""
    covariance = torch.tensor([[1.0, RHO0], [RHO0, 1.0]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance)
    everywhere = Everywhere(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))

    def free_energy(draws: Tensor, log_density: Tensor) -> Tensor:
        return (log_density + torch.einsum("ni,ij,nj->n", draws, precision, draws) / 2).mean()

    losses: dict[str, Loss] = {"kl": free_energy, "wasserstein": sliced_loss(Gaussian(np.zeros(2), covariance.numpy()))}
    rows = []
    for ratio in chosen["ratios"]:
        spread = torch.full((2,), ratio, dtype=torch.float64)
        for name, loss in losses.items():
            draws, _, _ = fit_flow(
                loss,
                everywhere,
                2,
                chosen["held-steps"],
                512,
                transforms=2,
                hidden=(16,),
                samples=20_000,
                deviations=spread,
            )
            rows.append({
                "ratio": ratio, "loss": name, "flow": float(np.corrcoef(draws.numpy().T)[0, 1]),
                "closed form": best_correlation(name, ratio, RHO0),
            })  # fmt: skip
    return rows


def tables(found: dict[str, Any]) -> str:
    """Both."""
    regression = [
        [row["method"], " ".join(f"{value:.2f}" for value in row["inflation"]), f"{row['correlations'][PAIR]:.3f}",
         " ".join(f"{value:.2f}" for value in row["correlations"]), f"{row['correlation difference']:.3f}"]
        for row in found["regression"]
    ]  # fmt: skip
    gaussian = [
        [f"{row['ratio']:g}", row["loss"], f"{row['closed form']:.3f}", f"{row['flow']:.3f}"]
        for row in found["gaussian"]
    ]
    header = ["method", "SD over exact, β0 to β4", "β0 with β3", "correlations (01 02 03 04 12 13 14 23 24 34)",
              "largest difference"]  # fmt: skip
    return (
        f"**The regression at ε = {EPSILON:g}**\n\n{markdown(header, regression)}\n"
        f"**The bivariate Gaussian, ρ0 = {RHO0}**\n\n"
        f"{markdown(['spread over the target', 'loss', 'best ρ, closed form', 'ρ of a flow with that spread'], gaussian)}"
    )
