"""Two of CVSim-6's parameters given 3,000 SIMULATED patients at three hospitals: Algorithm 2 and Gauss-Newton sums, privately.

Every patient's eight measurements scatter, by public standard deviations, around the outputs of one circulation, so that the
model is right and what is seen is the methods' own. The prior is normal with the mean and the deviations of the paper's box;
surrogate and grid are of the code's, which is twice as wide.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import torch
from dp_accounting import SelfComposedDpEvent
from torch import Tensor

from polyclinic.errors import DataError
from polyclinic.experiments import Say, markdown
from polyclinic.inference.gauss_newton import GaussNewton, fit
from polyclinic.inference.likelihood import Gaussian
from polyclinic.inference.private_flow import Everywhere
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats
from polyclinic_studies.cvsim6 import BEATS, TARGETS
from polyclinic_studies.cvsim6.experiment import SCATTER, TRUTH
from polyclinic_studies.cvsim6.two_parameters import UNITS, Grid, Pair, fitted, grid
from polyclinic_studies.ehr_vi.simulated import Simulated
from polyclinic_studies.ehr_vi.transport import held
from polyclinic_studies.flows import algorithm_2
from polyclinic_studies.flows.variational import posterior
from polyclinic_studies.parts import Parts

Row = dict[str, Any]
PAIRS = {"r_ri (its code's)": Pair("r_ri", 2), "r_ro (the paper's)": Pair("r_ro", 2)}
SHARES, DELTA, ROUNDS = (0.5, 0.3, 0.2), 1e-5, 8
_COVERED = 1.959964


def settings(quick: bool, seeds: int) -> dict[str, Any]:
    """What decides the numbers."""
    return {
        "patients": 600 if quick else 3000, "epsilons": [5.0] if quick else [5.0, 2.0, 1.0], "seeds": 1 if quick else seeds,
        "flow-seeds": 1, "flow-steps": 10 if quick else 500, "vi-steps": 40 if quick else 400,
        "sets": 5 if quick else 100, "beats": 2 if quick else BEATS, "surrogate-iterations": 100 if quick else 1500,
        "grid": 9 if quick else 33, "finer": 61 if quick else 101,
    }  # fmt: skip


def study(parts: Parts, quick: bool, seeds: int, say: Say) -> dict[str, Any]:
    """Both pairs, each a part."""
    chosen = settings(quick, seeds)
    return {
        name: parts.answer(f"population {i}", chosen, partial(_found, pair, chosen, say))
        for i, (name, pair) in enumerate(PAIRS.items())
    }  # fmt: skip


@cache
def _noise(epsilon: float) -> float:
    return calibrate_noise_multiplier(epsilon, DELTA, lambda z: SelfComposedDpEvent(gaussian_event(z), ROUNDS))


def _found(pair: Pair, chosen: dict[str, Any], say: Say) -> dict[str, Any]:
    return _Population(pair, chosen, say).found()


class _Population:
    def __init__(self, pair: Pair, chosen: dict[str, Any], say: Say) -> None:
        self.pair, self.chosen, self.say = pair, chosen, say
        low, high = Pair(pair.resistance, 1).box()
        self.truth = low + (high - low) * torch.tensor(TRUTH, dtype=torch.float64)
        self.prior = Everywhere((low + high) / 2, (high - low) / 12**0.5)
        self.scatter = torch.tensor([SCATTER[name] for name in TARGETS], dtype=torch.float64)
        beats = chosen["beats"]
        self.centre = pair.outputs(self.truth[None], beats)
        self.exactly: Grid = grid(pair, chosen["grid"], chosen["finer"], beats)
        made = fitted(pair, 100, 50 if beats < BEATS else 200, chosen["surrogate-iterations"], beats)
        self.errors = made.errors
        self.model = Simulated(pair.names, TARGETS, made.surrogate, self.scatter)

    def records(self, seed: int) -> Tensor:
        """(patients, 8)."""
        rng = generator(seed, "population", self.pair.resistance)
        draws = torch.from_numpy(rng.standard_normal((self.chosen["patients"], len(TARGETS))))
        return self.centre + self.scatter * draws

    def tables(self, records: Tensor) -> list[Tensor]:
        """One for each hospital."""
        ends = np.cumsum(SHARES[:-1]) * len(records)
        return list(torch.tensor_split(records, [round(end) for end in ends]))

    def exact(self, records: Tensor) -> Gaussian:
        """By CVSim-6's own runs."""
        mean, number = records.mean(0), len(records)

        def log_density(values: Tensor, outputs: Tensor) -> Tensor:
            prior = ((values - self.prior.centre) / self.prior.scale).square().sum(-1)
            return -(number * ((outputs - mean) / self.scatter).square().sum(-1) + prior) / 2

        found, covariance = self.exactly.near(log_density)
        return Gaussian(found.numpy(), covariance.numpy())

    def sums(self, records: Tensor, epsilon: float, seed: int) -> Gaussian:
        """Gauss-Newton over hospitals' sums."""
        method = GaussNewton(self.model, self.prior.centre.numpy(), self.prior.scale.numpy(), ROUNDS)
        rng = generator(seed, "population, sums", str(epsilon))
        return fit(method, [table.numpy() for table in self.tables(records)], _noise(epsilon), rng).posterior

    def gradients(self, records: Tensor, epsilon: float, seed: int) -> Gaussian:
        """Algorithm 2 as published, over hospitals' gradients."""
        settings = algorithm_2.settings(self.chosen["flow-steps"])
        noise = calibrate_noise_multiplier(epsilon, DELTA, lambda z: algorithm_2.event(z, settings))
        rng = generator(seed, "population, gradients", str(epsilon))
        return algorithm_2.private_flow(self.model, self.tables(records), self.prior, noise, rng, settings, seed)

    def flow(self, records: Tensor) -> Gaussian:
        """Variational inference without privacy, by the surrogate and sums over all patients."""
        mean, number = records.mean(0, keepdim=True), len(records)

        def log_density(values: Tensor) -> Tensor:
            prior = ((values - self.prior.centre) / self.prior.scale).square().sum(-1)
            return number * self.model.log_density(values, mean)[:, 0] - prior / 2

        found = posterior(log_density, self.prior, 2, self.chosen["vi-steps"]).moments()
        return Gaussian(*(part.numpy() for part in found))

    def found(self) -> dict[str, Any]:
        records = self.records(0)
        exact = self.exact(records)
        rows = [self.row("exact, by CVSim-6", None, 0, exact, exact)]
        rows.append(self.row("flow, without privacy", None, 0, self.flow(records), exact))
        for epsilon in self.chosen["epsilons"]:
            for seed in range(self.chosen["seeds"]):
                released = self.sums(records, epsilon, seed)
                rows.append(self.row("Gauss-Newton", epsilon, seed, released, exact))
                if seed < self.chosen["flow-seeds"]:
                    drawn = self.gradients(records, epsilon, seed)
                    rows.append(self.row("Algorithm 2", epsilon, seed, drawn, exact))
                    for name in ("kl", "wasserstein"):
                        wide = held(torch.from_numpy(released.covariance), torch.from_numpy(drawn.deviations), name)
                        both = Gaussian(released.mean, wide.numpy())
                        rows.append(self.row(f"its spread, sums, {name}", epsilon, seed, both, exact))
            self.say(f"population, {self.pair.resistance}: epsilon {epsilon:g}")
        return {"resistance": self.pair.resistance, "errors": self.errors, "truth": (self.truth * UNITS).tolist(),
                "rows": rows, "coverage": self.coverage()}  # fmt: skip

    def row(self, method: str, epsilon: float | None, seed: int, found: Gaussian, exact: Gaussian) -> Row:
        scale = UNITS.numpy()
        return {
            "method": method, "epsilon": epsilon, "seed": seed, "mean": (found.mean * scale).tolist(),
            "deviations": (found.deviations * scale).tolist(), "correlation": float(found.correlations[0]),
            "away": ((found.mean - exact.mean) / exact.deviations).tolist(),
            "inflation": (found.deviations / exact.deviations).tolist(),
        }  # fmt: skip

    def coverage(self) -> list[Row]:
        """How often 95 % intervals hold the truth, over fresh sets of patients; a set without a result counts apart."""
        kinds: dict[float | None, list[Floats]] = {epsilon: [] for epsilon in (None, *self.chosen["epsilons"])}
        for seed in range(1000, 1000 + self.chosen["sets"]):
            records = self.records(seed)
            for epsilon, inside in kinds.items():
                try:
                    found = self.exact(records) if epsilon is None else self.sums(records, epsilon, seed)
                except DataError:
                    continue
                inside.append(abs(found.mean - self.truth.numpy()) <= _COVERED * found.deviations)
        self.say(f"population, {self.pair.resistance}: coverage")
        return [
            {"epsilon": epsilon, "sets": self.chosen["sets"], "results": len(inside),
             "coverage": np.mean(inside, axis=0).tolist() if inside else None}
            for epsilon, inside in kinds.items()
        ]  # fmt: skip


def of(rows: list[Row], method: str, epsilon: float | None) -> list[Row]:
    """Those of a method at this epsilon, one a seed."""
    return [row for row in rows if row["method"] == method and row["epsilon"] == epsilon]


def tables(found: dict[str, Any]) -> str:
    """Posteriors, means over seeds, and coverage."""
    lines, covered = [], []
    for name, case in found.items():
        lines.append([name, "truth", "", _two(case["truth"], 3), "", "", "", ""])
        for method, epsilon in dict.fromkeys((row["method"], row["epsilon"]) for row in case["rows"]):
            rows = of(case["rows"], method, epsilon)
            mean, spread, inflation = (
                np.mean([row[key] for row in rows], 0) for key in ("mean", "deviations", "inflation")
            )
            away = np.sqrt(np.mean(np.square([row["away"] for row in rows]), 0))
            correlation = " ".join(f"{row['correlation']:.2f}" for row in rows)
            lines.append(
                [
                    name,
                    method,
                    _epsilon(epsilon),
                    _two(mean, 3),
                    _two(spread, 3),
                    _two(inflation),
                    _two(away),
                    correlation,
                ]
            )
        for one in case["coverage"]:
            share = "-" if one["coverage"] is None else ", ".join(f"{value:.1%}" for value in one["coverage"])
            method = "exact" if one["epsilon"] is None else "Gauss-Newton"
            covered.append([name, method, _epsilon(one["epsilon"]), f"{one['results']} of {one['sets']}", share])
    header = ["parameters", "method", "ε", "mean R, C_a x 1e4", "SD", "SD over exact", "RMS from exact, in SDs",
              "correlation, by seed"]  # fmt: skip
    return (
        f"{markdown(header, lines)}\n\"its spread, sums\": Gauss-Newton's release held at Algorithm 2's standard deviations by "
        "the dissimilarity named.\n\n"
        f"{markdown(['parameters', 'intervals of', 'ε', 'sets with a result', 'coverage of 95 %: R, C_a'], covered)}"
    )


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else f"{value:g}"


def _two(values: Any, digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)
