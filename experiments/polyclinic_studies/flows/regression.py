"""The regression of Su, Wang, Schiavazzi and Liu 2023 (Tables 6 and 7): exact, by flows, and two private posteriors.

Targets R1, R2 and R4; R3, records by a private flow, is of ``regression_flow``. The data are made up by the paper's law, for its
own file has no licence: estimates are compared with the maximum likelihood of the same data, standard deviations and correlations
also with those published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
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
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE, estimate, margin, smallest

EPSILONS, DELTA, SEEDS = (50.0, 5.0, 2.0, 1.0), 1e-5, 12
PUBLISHED = {
    "mean": (0.1581, 1.0022, 0.8262, -1.1909, 0.6088),
    "deviations": (0.0267, 0.0036, 0.0180, 0.0152, 0.0194),
    "correlations": (-0.1197, -0.4342, -0.7374, -0.4881, -0.0027, -0.0158, -0.0077, 0.0043, -0.0018, -0.0022),
}
MODEL = PaperRegression()
ALIGNED = "private flow, aligned gradients"
_START = torch.zeros(5, dtype=torch.float64)
_WIDE = Everywhere(_START, torch.ones(5, dtype=torch.float64))
_COVERED = 1.96


def run(asked: Asked, say: Say) -> Findings:
    """``quick``: 1500 records, few steps, one seed, two epsilons."""
    seeds, hospitals = asked.seeds or (1 if asked.quick else SEEDS), asked.hospitals or 3
    n, sets = (1500, 10) if asked.quick else (6000, 1000)
    epsilons = (50.0, 5.0) if asked.quick else EPSILONS
    settings = algorithm_2.settings(20 if asked.quick else 500)
    aligned = FlowSettings(steps=20 if asked.quick else 4000, clip=20.0, draws=8, rate=0.05, square=0.99)
    config = {"records": n, "hospitals": hospitals, "seeds": seeds, "delta": DELTA, "epsilons": list(epsilons),
              "rounds": _method().rounds, "flow-steps": settings.steps, "flow-sample-rate": algorithm_2.SAMPLE_RATE,
              "flow-clip": settings.clip, "flow-rate": settings.rate, "simulated-sets": sets}  # fmt: skip
    parts = Parts(asked.out, say)
    found = _posteriors(parts, config, settings, asked.quick)
    found["rows"] += _aligned(parts, config, aligned)
    rows, coverage = found["rows"], found["coverage"]
    near = np.array(rows[0]["mean"])
    drawn = regression_flow.runs(parts, measurements(0, n), near, epsilons, seeds, asked.quick)
    targets = (*_targets(rows, coverage), *regression_flow.targets(drawn))
    results = {"records": n, "hospitals": hospitals, "delta": DELTA, **found, "synthetic records": drawn}
    figures = {"posteriors": _figure(rows), "synthetic-records": regression_flow.figure(drawn)}
    tables = f"{_tables(rows, coverage)}\n{regression_flow.table_of(drawn)}"
    plans = {} if asked.quick else {f"{e:g}": asdict(regression_flow.PLANS[e]) for e in epsilons}
    config |= {"aligned": asdict(aligned), "synthetic-records": plans}
    return Findings(config, targets, results, tables, figures)


def _method() -> GaussNewton:
    return GaussNewton(MODEL, np.zeros(5), np.ones(5))


def _posteriors(parts: Parts, config: dict[str, Any], settings: FlowSettings, quick: bool) -> dict[str, Any]:
    """Every posterior, a part for each flow, and the coverage."""
    begun, n, method = time.monotonic(), config["records"], _method()
    records = records_of(measurements(0, n))
    likelihood = maximum_likelihood(MODEL, records, _START)

    def part(name: str, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = parts.answer(
            name, {**config, "seeds": 0}, find
        )  # a seed's part is the same among others
        parts.say(f"{name}: {time.monotonic() - begun:.0f} s")
        return found

    def exactly() -> dict[str, Any]:
        true, effective = exact(MODEL, records, likelihood, 500 if quick else 10_000)
        return _row("exact posterior", None, true, likelihood) | {"effective": effective}

    def free(seed: int) -> dict[str, Any]:
        return _row(
            "flow, without privacy", None, _flow(records, likelihood, 60 if quick else 1200, seed), likelihood, seed
        )

    tables = [np.ascontiguousarray(part) for part in np.array_split(records.numpy(), config["hospitals"])]

    def sums(epsilon: float | None, seed: int) -> dict[str, Any]:
        noise = _noise(epsilon, lambda z: SelfComposedDpEvent(gaussian_event(z), method.rounds))
        found = fit(method, tables, noise, generator(seed, "newton", str(epsilon)))
        return _row("Gauss-Newton", epsilon, found.posterior, likelihood, seed) | {"kept": found.mean_weight}

    def steps(epsilon: float | None, seed: int) -> dict[str, Any]:
        drawn = algorithm_2.private_flow(
            MODEL, [torch.from_numpy(table) for table in tables], _WIDE,
            _noise(epsilon, lambda z: algorithm_2.event(z, settings)),
            generator(seed, "flow", str(epsilon)), settings, seed,
        )  # fmt: skip
        return _row("private flow", epsilon, drawn, likelihood, seed)

    both = {"newton": sums, "steps": steps}
    true = part("exact", exactly)
    rows = [_row("maximum likelihood", None, likelihood, likelihood), true]
    rows += [part(f"flow-free-{seed}", partial(free, seed)) for seed in range(config["seeds"])]
    for epsilon in (*config["epsilons"], None):
        for seed in range(config["seeds"] if epsilon else 1):
            for name, find in both.items():
                rows.append(part(f"{name}-{epsilon or 'free'}-{seed}", partial(find, epsilon, seed)))
    levels = (None, *config["epsilons"][-2:])
    coverage = part("coverage", lambda: {"levels": _coverage(method, config["simulated-sets"], n, levels)})
    return {"effective": true["effective"], "rows": rows, "coverage": coverage["levels"]}


def _aligned(parts: Parts, config: dict[str, Any], settings: FlowSettings) -> list[dict[str, Any]]:
    """A row for each epsilon and seed of the flow that hospitals train, and one without noise; each is a part of its own."""
    records = records_of(measurements(0, config["records"]))
    likelihood = maximum_likelihood(MODEL, records, _START)
    rows = []
    for epsilon in (None, *config["epsilons"]):
        for seed in range(config["seeds"] if epsilon else 1):
            made = partial(_aligned_row, records.numpy(), likelihood, epsilon, seed, settings)
            rows.append(
                parts.answer(f"aligned-{epsilon or 'free'}-{seed}", {"records": len(records), **asdict(settings)}, made)
            )
            parts.say(
                f"{ALIGNED}, epsilon {epsilon}, seed {seed}: SD up to {max(rows[-1]['inflation']):.2f} times the exact one"
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


def _noise(epsilon: float | None, event: Callable[[float], DpEvent]) -> float:
    return 0.0 if epsilon is None else calibrate_noise_multiplier(epsilon, DELTA, event)


def _flow(records: torch.Tensor, near: Gaussian, steps: int, seed: int) -> Gaussian:
    """Variational inference without privacy, begun one standard deviation off a pilot fit, and twice as wide."""
    pilot = near.mean + near.deviations, 2 * near.deviations
    support = Everywhere(*(torch.from_numpy(np.asarray(part)) for part in pilot))
    found = posterior(lambda z: MODEL.log_density(z, records).sum(1), support, 5, steps, 64, transforms=3, samples=8000,
                      seed=seed)  # fmt: skip
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
    ratios, apart = [], []
    for seed in range(1000, 1000 + sets):
        records = records_of(measurements(seed, n))
        for epsilon, noise in noises.items():
            if epsilon is None:
                found = maximum_likelihood(MODEL, records, _START)
                ratios.append(found.deviations / PUBLISHED["deviations"])
                apart.append(found.correlations - PUBLISHED["correlations"])
            else:
                found = fit(method, [records.numpy()], noise, generator(seed, "coverage", str(epsilon))).posterior
            inside[epsilon].append(abs(found.mean - TRUTH) <= _COVERED * found.deviations)
    beside = {"SD over the published": _over_sets(ratios), "correlation less the published": _over_sets(apart)}
    return [
        {
            **({} if epsilon else beside),
            "epsilon": epsilon,
            "sets": sets,
            "coverage": float(np.mean(held)),
            "error": float(np.mean(held, axis=1).std(ddof=1) / np.sqrt(sets)),
            "by parameter": np.mean(held, axis=0).tolist(),
        }
        for epsilon, held in inside.items()
    ]


def _over_sets(values: list[Floats]) -> dict[str, list[float]]:
    table = np.array(values)
    return {"mean": table.mean(0).tolist(), "error": (table.std(0, ddof=1) / np.sqrt(len(table))).tolist()}


def _of(rows: list[dict[str, Any]], method: str, epsilon: float | None) -> list[dict[str, Any]]:
    return [row for row in rows if row["method"] == method and row["epsilon"] == epsilon]


def _mean(rows: list[dict[str, Any]], name: str) -> Floats:
    found: Floats = np.mean([row[name] for row in rows], axis=0)
    return found


def _numbers(values: Any, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in np.atleast_1d(values))


def _targets(rows: list[dict[str, Any]], coverage: list[dict[str, Any]]) -> tuple[Target, ...]:
    sets, true = coverage[0]["sets"], np.array(_of(rows, "exact posterior", None)[0]["mean"])
    spread, pairs = (np.array(_of(rows, "exact posterior", None)[0][name]) for name in ("deviations", "correlations"))
    ratio, apart = (coverage[0][name] for name in ("SD over the published", "correlation less the published"))
    largest = int(np.argmax(np.abs(apart["mean"])))
    found = [
        Target("R1", "SD over the published, mean over other data of the same law: β0 to β4", "1",
               ", ".join(f"{a:.3f} ± {b:.3f}" for a, b in zip(ratio["mean"], ratio["error"], strict=True)), "within .03",
               bool(abs(np.array(ratio["mean"]) - 1).max() <= 0.03), sets, margin=_within(ratio, 0.03, 1.0)),
        Target("R1", "correlation less the published one, mean over other data of the same law: the largest", "0",
               f"{apart['mean'][largest]:+.3f} ± {apart['error'][largest]:.3f}", "within .03",
               abs(apart["mean"][largest]) <= 0.03, sets, margin=_within(apart, 0.03, 0.0)),
        _coverage_target("R1", "coverage of 95 % intervals by maximum likelihood", coverage[0]),
    ]  # fmt: skip
    flows = _of(rows, "flow, without privacy", None)
    away = [abs(np.array(flow["mean"]) - true) for flow in flows]
    for what, paper, values, goal, words in (
        ("largest distance of a mean from the exact one", "", [one.max() for one in away], 0.003, "at most .003"),
        ("the same, in posterior SDs", "", [(one / spread).max() for one in away], 0.1, "at most .1"),
        ("SD over the exact one, less 1: the largest", "",
         [abs(np.array(flow["deviations"]) / spread - 1).max() for flow in flows], 0.05, "within .05 (published: .1)"),
        ("largest difference of a correlation", ".08", [abs(np.array(flow["correlations"]) - pairs).max() for flow in flows],
         0.05, "at most .05 (published: .15)"),
    ):  # fmt: skip
        found.append(_most("R2", f"flow without privacy: {what}", paper, values, goal, words))
    noiseless = _of(rows, "private flow", None)
    without, wide = _mean(noiseless, "deviations"), [max(row["inflation"]) for row in noiseless]
    found.append(_most("R4", "private flow without noise: SD over the exact one, largest of five", "", wide, 1.1,
                       "at most 1.1: it has converged", "private flow"))  # fmt: skip
    still = [max(abs(ratio - 1) for ratio in row["inflation"]) for row in _of(rows, ALIGNED, None)]
    found.append(_most("R4", f"{ALIGNED}, without noise: SD over the exact one, less 1, largest of five", "", still, 0.1,
                       "at most .1: it has converged", ALIGNED))  # fmt: skip
    for epsilon in (e for e in EPSILONS if _of(rows, "Gauss-Newton", e)):
        newton, drawn = (_of(rows, name, epsilon) for name in ("Gauss-Newton", "private flow"))
        for name in ("Gauss-Newton", ALIGNED):
            of = _of(rows, name, epsilon)
            found.append(_most("R4", f"{name}, ε = {epsilon:g}: SD over the exact one, largest of five", "5 to 10",
                               [max(row["inflation"]) for row in of], 2.0, "at most 2", name))  # fmt: skip
            found.append(_most("R4", f"{name}, ε = {epsilon:g}: largest difference of a correlation", "up to .6",
                               [row["correlation difference"] for row in of], 0.1, "at most .1", name))  # fmt: skip
        wider = [float((np.array(row["deviations"]) / without).max()) for row in drawn]
        found.append(Target(
            "R4", f"private flow, ε = {epsilon:g}: SD over its own without noise, largest of five",
            "5 to 10 (over the exact one)", estimate(wider), "5 to 10", 5 <= fmean(wider) <= 10, len(wider), by="private flow",
            margin=smallest((margin(wider, 5.0), margin(wider, 10.0, least=False))),
        ))  # fmt: skip
        found.append(_most(
            "own",
            f"Gauss-Newton, ε = {epsilon:g}: RMS distance of the mean from the MLE (published: by synthetic records, Table 7)",
            f"{regression_flow.PUBLISHED[epsilon]:.4f}", [row["away"] for row in newton], regression_flow.PUBLISHED[epsilon],
            "below the published one", "Gauss-Newton",
        ))  # fmt: skip
    for one in coverage[1:]:
        found.append(_coverage_target("own", f"Gauss-Newton, ε = {one['epsilon']:g}: coverage of 95 % intervals", one))
    return tuple(found)


def _most(id: str, what: str, paper: str, values: Sequence[float], goal: float, words: str, by: str = "") -> Target:
    """That the mean over seeds is at most ``goal``."""
    return Target(id, what, paper, estimate(values, 4 if goal < 0.09 else 3), words, bool(fmean(values) <= goal), len(values),
                  by=by, margin=margin(values, goal, least=False))  # fmt: skip


def _within(found: dict[str, list[float]], most: float, centre: float) -> float:
    return min((most - abs(a - centre)) / b for a, b in zip(found["mean"], found["error"], strict=True))


def _coverage_target(id: str, what: str, one: dict[str, Any]) -> Target:
    held, sets, error = one["coverage"], one["sets"], one["error"]
    return Target(id, f"{what}, {sets} simulated sets", "", f"{held:.1%} ± {error:.1%}", "93 to 97 %", 0.93 <= held <= 0.97, sets,
                  margin=(0.02 - abs(held - 0.95)) / error if error else None)  # fmt: skip


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
