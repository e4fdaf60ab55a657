"""The regression of Su, Wang, Schiavazzi and Liu 2023 (Tables 6 and 7): exact, by flows, and two private posteriors.

Targets R1, R2 and R4; R3, records by a private flow, is of ``regression_flow``. The data are made up by the paper's law, for its
own file has no licence: estimates are compared with the maximum likelihood of the same data, standard deviations and correlations
also with those published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent, SelfComposedDpEvent
from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.inference.gauss_newton import GaussNewton, fit
from polyclinic.inference.likelihood import Gaussian
from polyclinic.inference.private_flow import Everywhere, FlowSettings, FlowSums
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.clipping import clipped_sum
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats
from polyclinic_studies.flows import algorithm_2, regression_flow
from polyclinic_studies.flows.paper_regression import (
    TRUTH,
    PaperRegression,
    exact,
    maximum_likelihood,
    measurements,
    records_of,
)
from polyclinic_studies.flows.variational import posterior
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE

EPSILONS, DELTA = (50.0, 5.0, 2.0, 1.0), 1e-5
PUBLISHED = {
    "mean": (0.1581, 1.0022, 0.8262, -1.1909, 0.6088),
    "deviations": (0.0267, 0.0036, 0.0180, 0.0152, 0.0194),
    "correlations": (-0.1197, -0.4342, -0.7374, -0.4881, -0.0027, -0.0158, -0.0077, 0.0043, -0.0018, -0.0022),
}
MODEL = PaperRegression()
ALIGNED, PUBLISHED_FLOW = "Algorithm 2, aligned gradients", "Algorithm 2, as published"
_START = torch.zeros(5, dtype=torch.float64)
_WIDE = Everywhere(_START, torch.ones(5, dtype=torch.float64))
_COVERED = 1.96


def run(asked: Asked, say: Say) -> Findings:
    """``quick``: 1500 records, few steps, one seed, two epsilons."""
    seeds, hospitals = asked.seeds or (1 if asked.quick else 5), asked.hospitals or 3
    n, sets = (1500, 10) if asked.quick else (6000, 200)
    epsilons = (50.0, 5.0) if asked.quick else EPSILONS
    published = algorithm_2.settings(20 if asked.quick else 500)
    aligned = FlowSettings(steps=20 if asked.quick else 8000, clip=20.0, draws=8, rate=0.05, square=0.99)
    config = {"records": n, "hospitals": hospitals, "seeds": seeds, "delta": DELTA, "epsilons": list(epsilons),
              "rounds": _method().rounds, "aligned": asdict(aligned), "published": asdict(published),
              "simulated-sets": sets}  # fmt: skip
    parts = Parts(asked.out, say)
    found = parts.answer("posteriors", config, lambda: _posteriors(config, published, asked.quick, say))
    found["rows"] += _aligned(parts, config, aligned)
    rows, coverage = found["rows"], found["coverage"]
    near = np.array(rows[0]["mean"])
    drawn = regression_flow.runs(parts, measurements(0, n), near, epsilons, seeds, asked.quick)
    targets = (*_targets(rows, coverage, asked.quick), *regression_flow.targets(drawn, asked.quick))
    results = {"records": n, "hospitals": hospitals, "delta": DELTA, **found, "synthetic records": drawn}
    figures = {"posteriors": _figure(rows), "synthetic-records": regression_flow.figure(drawn)}
    tables = f"{_tables(rows, coverage)}\n{regression_flow.table_of(drawn)}"
    plans = {} if asked.quick else {f"{e:g}": asdict(regression_flow.PLANS[e]) for e in epsilons}
    return Findings(config | {"synthetic-records": plans}, targets, results, tables, figures)


def _method() -> GaussNewton:
    return GaussNewton(MODEL, np.zeros(5), np.ones(5))


def _aligned(parts: Parts, config: dict[str, Any], settings: FlowSettings) -> list[dict[str, Any]]:
    """A row for each epsilon and seed of the flow that hospitals train, and one without noise; each is a part of its own."""
    records = records_of(measurements(0, config["records"]))
    likelihood = maximum_likelihood(MODEL, records, _START)
    rows = []
    for epsilon in (None, *config["epsilons"]):
        for seed in range(config["seeds"] if epsilon else 1):
            made = partial(_aligned_row, records.numpy(), likelihood, epsilon, seed, settings)
            rows.append(parts.answer(f"aligned-{epsilon}-{seed}", {"records": len(records), **asdict(settings)}, made))
        parts.say(
            f"flow with aligned gradients, epsilon {epsilon}: SD {_mean(rows[-1:], 'inflation').max():.2f} times the exact one"
        )
    return rows


def _aligned_row(
    table: Floats, exactly: Gaussian, epsilon: float | None, seed: int, settings: FlowSettings
) -> dict[str, Any]:
    """The rounds of task ``posterior`` with ``method=flow``: one sum over all records, clipped and noised, each."""
    method = FlowSums(MODEL, np.zeros(5), np.ones(5), settings, seed)
    noise = _noise(epsilon, lambda z: SelfComposedDpEvent(gaussian_event(z), settings.steps))
    rng, state = generator(seed, "aligned", str(epsilon)), method.begin(len(table))
    for round in range(1, settings.steps + 1):
        vectors = torch.from_numpy(method.contributions(method.question(state), table))
        total = clipped_sum(vectors, 1.0).total.numpy() + noise * rng.standard_normal(method.width)
        state = method.absorb(round, state, total / len(table), noise / len(table))
    samples = method.posterior(state).samples
    return _row(ALIGNED, epsilon, Gaussian(samples.mean(0), np.cov(samples.T)), exactly, seed)


def _posteriors(config: dict[str, Any], settings: FlowSettings, quick: bool, say: Say) -> dict[str, Any]:
    begun, n, method = time.monotonic(), config["records"], _method()
    records = records_of(measurements(0, n))
    likelihood = maximum_likelihood(MODEL, records, _START)
    true, effective = exact(MODEL, records, likelihood, 500 if quick else 10_000)
    say(f"exact posterior: effective share of draws {effective:.2f}")
    rows = [_row("maximum likelihood", None, likelihood, likelihood), _row("exact posterior", None, true, likelihood)]
    flow = _flow(records, likelihood, 60 if quick else 1200)
    rows.append(_row("flow, without privacy", None, flow, likelihood))
    say(f"flow without privacy: {time.monotonic() - begun:.0f} s")
    tables = [np.ascontiguousarray(part) for part in np.array_split(records.numpy(), config["hospitals"])]
    for epsilon in (*config["epsilons"], None):
        newton = _noise(epsilon, lambda z: SelfComposedDpEvent(gaussian_event(z), method.rounds))
        gradient = _noise(epsilon, lambda z: algorithm_2.event(z, settings))
        for seed in range(config["seeds"] if epsilon else 1):
            found = fit(method, tables, newton, generator(seed, "newton", str(epsilon)))
            rows.append(_row("Gauss-Newton", epsilon, found.posterior, likelihood, seed) | {"kept": found.kept})
            drawn = algorithm_2.private_flow(
                MODEL, [torch.from_numpy(table) for table in tables], _WIDE, gradient,
                generator(seed, "flow", str(epsilon)), settings, seed,
            )  # fmt: skip
            rows.append(_row(PUBLISHED_FLOW, epsilon, drawn, likelihood, seed))
        say(f"epsilon {epsilon}: {time.monotonic() - begun:.0f} s")
    coverage = _coverage(method, config["simulated-sets"], n, (None, *config["epsilons"][-2:]))
    say(f"coverage: {time.monotonic() - begun:.0f} s")
    return {"effective": effective, "rows": rows, "coverage": coverage, "seconds": round(time.monotonic() - begun, 1)}


def _noise(epsilon: float | None, event: Callable[[float], DpEvent]) -> float:
    return 0.0 if epsilon is None else calibrate_noise_multiplier(epsilon, DELTA, event)


def _flow(records: torch.Tensor, near: Gaussian, steps: int) -> Gaussian:
    """Variational inference without privacy, begun one standard deviation off a pilot fit, and twice as wide."""
    pilot = near.mean + near.deviations, 2 * near.deviations
    support = Everywhere(*(torch.from_numpy(np.asarray(part)) for part in pilot))
    found = posterior(lambda z: MODEL.log_density(z, records).sum(1), support, 5, steps, 64, transforms=3, samples=8000)
    mean, covariance = found.moments()
    return Gaussian(mean.numpy(), covariance.numpy())


def _row(method: str, epsilon: float | None, found: Gaussian, exactly: Gaussian, seed: int = 0) -> dict[str, Any]:
    away = found.mean - exactly.mean
    return {
        "method": method, "epsilon": epsilon, "seed": seed, "mean": found.mean.tolist(),
        "deviations": found.deviations.tolist(), "correlations": found.correlations.tolist(),
        "away": float(np.sqrt((away**2).mean())), "inflation": (found.deviations / exactly.deviations).tolist(),
        "correlation difference": float(abs(found.correlations - exactly.correlations).max()),
        "standardised": (away / found.deviations).tolist(),
    }  # fmt: skip


def _coverage(method: GaussNewton, sets: int, n: int, epsilons: tuple[float | None, ...]) -> list[dict[str, Any]]:
    """How often 95 % intervals hold the truth, over simulated data sets: maximum likelihood (None) and Gauss-Newton."""
    noises = {e: _noise(e, lambda z: SelfComposedDpEvent(gaussian_event(z), method.rounds)) for e in epsilons}
    inside: dict[float | None, list[Any]] = {epsilon: [] for epsilon in epsilons}
    for seed in range(1000, 1000 + sets):
        records = records_of(measurements(seed, n))
        for epsilon, noise in noises.items():
            if epsilon is None:
                found = maximum_likelihood(MODEL, records, _START)
            else:
                found = fit(method, [records.numpy()], noise, generator(seed, "coverage", str(epsilon))).posterior
            inside[epsilon].append(abs(found.mean - TRUTH) <= _COVERED * found.deviations)
    return [
        {
            "epsilon": epsilon,
            "sets": sets,
            "coverage": float(np.mean(held)),
            "by parameter": np.mean(held, axis=0).tolist(),
        }
        for epsilon, held in inside.items()
    ]


def _of(rows: list[dict[str, Any]], method: str, epsilon: float | None) -> list[dict[str, Any]]:
    return [row for row in rows if row["method"] == method and row["epsilon"] == epsilon]


def _mean(rows: list[dict[str, Any]], name: str) -> Floats:
    found: Floats = np.mean([row[name] for row in rows], axis=0)
    return found


def _numbers(values: Any, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in np.atleast_1d(values))


def _targets(rows: list[dict[str, Any]], coverage: list[dict[str, Any]], quick: bool) -> tuple[Target, ...]:
    def target(id: str, what: str, paper: str, measured: str, goal: str, met: bool) -> Target:
        return Target(id, what, paper, measured, goal, None if quick else bool(met))

    exactly, true = (_of(rows, name, None)[0] for name in ("maximum likelihood", "exact posterior"))
    flow = _of(rows, "flow, without privacy", None)[0]
    deviations = np.array(exactly["deviations"]) / PUBLISHED["deviations"]
    correlations = abs(np.array(exactly["correlations"]) - PUBLISHED["correlations"]).max()
    spread = np.array(true["deviations"])
    away = abs(np.array(flow["mean"]) - true["mean"])
    ratio = np.array(flow["deviations"]) / spread
    apart = abs(np.array(flow["correlations"]) - true["correlations"]).max()
    held = coverage[0]["coverage"]
    found = [
        target("R1", "SD, as a ratio to the published ones (other data of the same law)", "1", _numbers(deviations, 3),
               "within .03", abs(deviations - 1).max() <= 0.03),
        target("R1", "largest difference of a correlation from the published ones", "0", f"{correlations:.3f}",
               "at most .03", correlations <= 0.03),
        target("R1", f"coverage of 95 % intervals, {coverage[0]['sets']} simulated sets", "", f"{held:.1%}", "93 to 97 %",
               0.93 <= held <= 0.97),
        target("R2", "flow without privacy: largest distance of a mean from the exact one", "", f"{away.max():.4f}",
               "at most .003", away.max() <= 0.003),
        target("R2", "the same, in posterior SDs", "", f"{(away / spread).max():.3f}", "at most .1",
               (away / spread).max() <= 0.1),
        target("R2", "its SDs, as a ratio to the exact ones", "", _numbers(ratio, 3), "within .05 (published: .1)",
               abs(ratio - 1).max() <= 0.05),
        target("R2", "largest difference of a correlation", ".08", f"{apart:.3f}", "at most .05 (published: .15)", apart <= 0.05),
    ]  # fmt: skip
    noiseless = _of(rows, ALIGNED, None)
    found += [
        target("R4", f"{ALIGNED}, without noise: SD over the exact one, of five", "", _numbers(_mean(noiseless, "inflation"), 2),
               "within .1 of 1: it has converged", abs(_mean(noiseless, "inflation") - 1).max() <= 0.1),
        target("R4", "the same: largest difference of a correlation", "", f"{_mean(noiseless, 'correlation difference'):.3f}",
               "at most .1", bool(_mean(noiseless, "correlation difference") <= 0.1)),
    ]  # fmt: skip
    for epsilon in (e for e in EPSILONS if _of(rows, "Gauss-Newton", e)):
        newton = _of(rows, "Gauss-Newton", epsilon)
        for method in ("Gauss-Newton", ALIGNED, PUBLISHED_FLOW):
            of = _of(rows, method, epsilon)
            inflation, change = _mean(of, "inflation"), float(_mean(of, "correlation difference"))
            name = f"{method}, ε = {epsilon:g}"
            found += [
                target("R4", f"{name}: SD over the exact one, least and largest of five, means over seeds", "5 to 10",
                       _numbers([inflation.min(), inflation.max()], 2), ".5 to 2",
                       inflation.min() >= 0.5 and inflation.max() <= 2),
                target("R4", f"{name}: largest difference of a correlation, mean over seeds", "up to .6", f"{change:.3f}",
                       "at most .1", change <= 0.1),
            ]  # fmt: skip
        distance = float(_mean(newton, "away"))
        found.append(target(
            "own",
            f"Gauss-Newton, ε = {epsilon:g}: RMS distance of the mean from the MLE (published: by synthetic records, Table 7)",
            f"{regression_flow.PUBLISHED[epsilon]:.4f}", f"{distance:.4f}", "below the published one",
            distance < regression_flow.PUBLISHED[epsilon],
        ))  # fmt: skip
    for one in coverage[1:]:
        found.append(target("own", f"Gauss-Newton, ε = {one['epsilon']:g}: coverage of 95 % intervals", "",
                            f"{one['coverage']:.1%}", "93 to 97 %", 0.93 <= one["coverage"] <= 0.97))  # fmt: skip
    return tuple(found)


def _tables(rows: list[dict[str, Any]], coverage: list[dict[str, Any]]) -> str:
    lines, seen = [], []
    for row in rows:
        key = row["method"], row["epsilon"]
        if key in seen:
            continue
        seen.append(key)
        of = _of(rows, *key)
        epsilon = "∞" if key[1] is None else f"{key[1]:g}"
        lines.append([
            key[0], epsilon, _numbers(_mean(of, "mean"), 4), f"{_mean(of, 'away'):.4f}", _numbers(_mean(of, "deviations"), 4),
            _numbers(_mean(of, "correlations"), 3), f"{_mean(of, 'inflation').max():.2f}",
            f"{_mean(of, 'correlation difference'):.3f}",
        ])  # fmt: skip
    lines.insert(0, ["published MLE (their data)", "∞", *(
        part for part in (_numbers(PUBLISHED["mean"], 4), "", _numbers(PUBLISHED["deviations"], 4),
                          _numbers(PUBLISHED["correlations"], 3), "", "")
    )])  # fmt: skip
    header = ["method", "ε", "β0 to β4", "RMS from MLE", "SD", "correlations (01 02 03 04 12 13 14 23 24 34)",
              "largest SD ratio", "largest correlation difference"]  # fmt: skip
    held = [["maximum likelihood" if one["epsilon"] is None else "Gauss-Newton",
             "∞" if one["epsilon"] is None else f"{one['epsilon']:g}", str(one["sets"]), f"{one['coverage']:.1%}",
             " ".join(f"{value:.1%}" for value in one["by parameter"])] for one in coverage]  # fmt: skip
    return (
        f"{markdown(header, lines)}\nMeans over seeds; the mean of means hides their spread, which \"RMS from MLE\" shows: it is "
        "the mean over seeds of each one's own distance. Rows at ε = ∞ of the private methods are their own without noise.\n\n"
        f"{markdown(['intervals of', 'ε', 'simulated sets', 'coverage of 95 %', 'β0 to β4'], held)}"
    )  # fmt: skip


def _figure(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    exactly = _of(rows, "maximum likelihood", None)[0]
    for place, axis in enumerate(figure.subplots(1, 5)):
        for name, colour, shift in (("Gauss-Newton", BLUE, -0.15), (ALIGNED, ORANGE, 0.15)):
            for at, epsilon in enumerate(EPSILONS):
                for row in _of(rows, name, epsilon):
                    axis.errorbar(
                        at + shift + 0.03 * row["seed"], row["mean"][place], 1.96 * row["deviations"][place], fmt="o",
                        markersize=2, linewidth=0.8, color=colour,
                        label=name if (at, row["seed"]) == (1, 0) else None,
                    )  # fmt: skip
        mean, deviation = exactly["mean"][place], exactly["deviations"][place]
        axis.axhspan(mean - 1.96 * deviation, mean + 1.96 * deviation, color=GREY, alpha=0.3)
        axis.axhline(TRUTH[place], color=GREEN, linestyle=":", label="truth")
        axis.set(title=f"β{place}", xlabel="ε")
        axis.set_xticks(range(len(EPSILONS)), [f"{epsilon:g}" for epsilon in EPSILONS])
    axis.legend(frameon=False, fontsize=7)
    return figure
