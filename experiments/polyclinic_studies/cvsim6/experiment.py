"""CVSim-6: its published outputs, its speed in batches, its surrogate, and two parameters inferred from patients.

Targets R6 to R8, and the protocol of Su, Wang, Schiavazzi and Liu 2023's Table 5 on the resistance that the paper names
(r_ro) and on the one that its code varies (r_ri), within the paper's range and within the code's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic_studies.cvsim6 import DYNES, OUTPUTS, STEPS, TARGETS, UNITS, measured, parameters, simulate
from polyclinic_studies.cvsim6.circuit_loop import array_path, pressure_path
from polyclinic_studies.cvsim6.private_patients import synthetic_patients
from polyclinic_studies.cvsim6.two_parameters import Fitted, Grid, Pair, by_flow, fitted, grid
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE, estimate, margin

# Harrod et al. 2020's supplement, validation_EHR.txt: the defaults, and with r_a half as large again.
PUBLISHED = {
    "sbp": (102.538, 133.413), "dbp": (71.808, 103.867), "co": (4.861, 4.533), "svr": (1448.999, 2112.413),
    "cvp": (0.061, 0.057), "rv_diastolic": (-2.134, -2.182), "rv_systolic": (20.405, 20.279),
    "lv_diastolic": (2.462, 3.347), "lv_systolic": (103.164, 133.979), "dpap": (9.968, 10.493), "spap": (19.980, 19.883),
    "wedge": (8.456, 9.149),
}  # fmt: skip
PAIRS = tuple(Pair(resistance, width) for resistance in ("r_ro", "r_ri") for width in (1, 2))
# The circulation behind our patients, in shares of the narrower box, and what records scatter by around it: round numbers
# of ours, not of a cohort. The ranges are public.
TRUTH = (0.3, 0.3)
SCATTER = {"sbp": 20.0, "dbp": 12.0, "co": 1.5, "svr": 350.0, "lvef": 15.0, "dpap": 7.0, "spap": 11.0, "wedge": 5.0}
RANGES = {"sbp": (60, 200), "dbp": (30, 130), "co": (1, 11), "svr": (400, 3000), "lvef": (10, 90), "dpap": (-10, 40),
          "spap": (-10, 70), "wedge": (-10, 35)}  # fmt: skip
PATIENTS, EPSILONS, DELTA, COHORTS = 43, (32.0, 16.0, 8.0, 4.0), 1e-3, 100
SEEDS = 12  # surrogates, and timings


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form takes few beats and one pair."""
    quick = asked.quick
    published = _published()
    say(f"published outputs: largest difference {max(row['difference'] for row in published):.4f}")
    speed = _speed(beats=1 if quick else 10, batch=16 if quick else 1024, times=2 if quick else SEEDS)
    say(f"speed: {speed}")
    parts, pairs = Parts(asked.out, say), PAIRS[-1:] if quick else PAIRS
    surrogates = [_surrogates(parts, pair, quick) for pair in pairs]
    cases = [parts.answer(f"patients-{pair.resistance}-{pair.width}", {"quick": quick}, partial(_case, pair, quick, say))
             for pair in pairs]  # fmt: skip
    results = {"published": published, "figure 2": _figure2(), "speed": speed, "surrogates": surrogates, "cases": cases}
    figures = {"cycle": _cycle(), "posteriors": _figure(cases)}
    config = {"patients": PATIENTS, "delta": DELTA, "epsilons": list(EPSILONS), "cohorts": COHORTS}
    return Findings(config, _targets(results), results, _table(results), figures)


def _targets(results: Mapping[str, Any]) -> tuple[Target, ...]:
    made, exact = [], "a simulation without chance"
    for i, case in enumerate(("defaults", "r_a x 1.5")):
        rows = [(row["original"][i], row["published"][i]) for row in results["published"]]
        shares = [abs(ours - theirs) / max(0.2, 0.002 * abs(theirs)) for ours, theirs in rows]
        largest = max(abs(ours - theirs) for ours, theirs in rows)
        made.append(Target("R6", f"{len(rows)} outputs, {case}: largest difference", "0", f"{largest:.4f}", "within .2 or .2 %",
                           max(shares) <= 1, exact=exact, by="outputs"))  # fmt: skip
    for loop in ("scalars", "NumPy arrays"):
        times = results["speed"][f"times over {loop.split()[-1]}"]
        words = f"a batch of {results['speed']['batch']}, times as fast as a loop of {loop}, each timed with it"
        made.append(Target("R6", words, "", estimate(times, 0), "at least 100", fmean(times) >= 100, len(times), by="speed",
                           margin=margin(times, 100.0)))  # fmt: skip
    for name, row in results["figure 2"].items():
        made.append(
            Target("R7", name, f"{row['published']:g}", f"{row['ours']:.3f}", row["goal"], row["met"], exact=exact)
        )
    for one in results["surrogates"]:
        errors, words = one["largest errors"], f"{one['resistance']}, width {one['width']}"
        made.append(Target(
            "R8", f"surrogate of {words}: largest error at new points, of the range", "", f"{100 * fmean(errors):.2f} % ± "
            f"{100 * stdev(errors) / sqrt(len(errors)):.2f} %", "below 1 %", fmean(errors) < 0.01, len(errors),
            margin=margin(errors, 0.01, least=False), by=words,
        ))  # fmt: skip
    return tuple(made)


def _figure2() -> dict[str, dict[str, Any]]:
    """Volumes and pressures of Harrod et al.'s figure 2 as the original has them, and two that it has wrong, corrected."""
    old, new = (
        dict(zip(OUTPUTS, measured(parameters(), original=first)[0].tolist(), strict=True)) for first in (True, False)
    )
    rows = [("ventricle's least volume, mL", 57.2, old["lv_esv"]), ("ventricle's largest volume, mL", 124.6, old["lv_edv"]),
            ("ejection fraction, %", 54.1, old["lvef"]), ("pulmonary resistance, dyn s/cm^5", 107.0, old["pvr"]),
            ("central venous pressure, corrected, mmHg", 7.10, new["cvp"]),
            ("pulmonary valve's peak gradient, corrected, mmHg", 1.79, new["pv_peak_pg"])]  # fmt: skip
    found: dict[str, dict[str, Any]] = {
        name: {"published": theirs, "ours": ours, "goal": "within 1 %", "met": abs(ours / theirs - 1) <= 0.01}
        for name, theirs, ours in rows
    }
    total = simulate(parameters(), original=True).volumes.sum(1)
    change = float(total.max() - total.min())
    found["change of the whole volume over a cycle, mL"] = {
        "published": 0.0, "ours": change, "goal": "at most .02", "met": change <= 0.02,
    }  # fmt: skip
    return found


def _published() -> list[dict[str, Any]]:
    both = parameters({"r_a": torch.tensor([1.0, 1.5])})
    ours, corrected = measured(both, original=True).tolist(), measured(both).tolist()
    rows = []
    for name, values in PUBLISHED.items():
        i = OUTPUTS.index(name)
        found = [ours[0][i], ours[1][i]]
        difference = max(abs(a - b) for a, b in zip(found, values, strict=True))
        rows.append({"output": name, "unit": UNITS[name], "published": values, "original": found,
                     "corrected": [corrected[0][i], corrected[1][i]], "difference": difference})  # fmt: skip
    return rows


def _speed(beats: int, batch: int, times: int) -> dict[str, Any]:
    """Processor seconds for one run of ten beats, best of ``times``; the loops are timed on ``beats`` of them and scaled.

    "times over": how many times as long a loop took as the batch that was timed with it, for each of ``times``.
    """
    row = parameters()
    begin = simulate(row, 1, 1)
    pressures, volumes = begin.pressures[0, :, 0].tolist(), begin.stressed[0, :, 0].numpy()
    steps, dt = beats * STEPS, 60 / 72 / STEPS

    def seconds(work: Callable[[], object], share: float) -> float:
        started = time.process_time()
        work()
        return (time.process_time() - started) / share

    taken: list[tuple[float, float, float]] = []
    with torch.no_grad():
        for _ in range(times):
            scalars = seconds(lambda: pressure_path(pressures, row[0].tolist(), steps, dt), beats / 10)
            arrays = seconds(lambda: array_path(volumes, row[0].tolist(), steps, dt), beats / 10)
            taken.append((seconds(lambda: measured(parameters(batch=batch)), batch), scalars, arrays))
    batched, scalars, arrays = (min(column) for column in zip(*taken, strict=True))
    return {
        "batch": batch, "threads": torch.get_num_threads(), "batched": batched, "loop of scalars": scalars,
        "loop of arrays": arrays, "times over scalars": [one[1] / one[0] for one in taken],
        "times over arrays": [one[2] / one[0] for one in taken],
    }  # fmt: skip


def _fitted(pair: Pair, quick: bool, seed: int) -> Fitted:
    return fitted(
        pair, held_out=50 if quick else 200, iterations=200 if quick else 3000, beats=2 if quick else 10, seed=seed
    )


def _largest_error(pair: Pair, quick: bool, seed: int) -> float:
    return max(_fitted(pair, quick, seed).errors)


def _surrogates(parts: Parts, pair: Pair, quick: bool) -> dict[str, Any]:
    """Each seed's largest error of any output."""
    name = f"{pair.resistance}-{pair.width}"
    errors = [
        parts.answer(f"surrogate-{name}-{seed}", {"quick": quick}, partial(_largest_error, pair, quick, seed))
        for seed in range(2 if quick else SEEDS)
    ]
    parts.say(f"surrogates of {name}: {', '.join(f'{100 * error:.2f} %' for error in errors)}")
    return {"resistance": pair.resistance, "width": pair.width, "largest errors": errors}


def _case(pair: Pair, quick: bool, say: Say) -> dict[str, Any]:
    beats = 2 if quick else 10
    surrogate = _fitted(pair, quick, 0)
    exact: Grid = grid(pair, points=7 if quick else 33, finer=81 if quick else 201, beats=beats)
    narrow_low, narrow_high = Pair(pair.resistance, 1).box()
    truth = narrow_low + (narrow_high - narrow_low) * torch.tensor(TRUTH, dtype=torch.float64)
    centre = pair.outputs(truth[None], beats)
    prior_mean, prior_deviation = (pair.box()[0] + pair.box()[1]) / 2, (pair.box()[1] - pair.box()[0]) / 12**0.5
    sources: list[dict[str, Any]] = []
    for epsilon in (None, *(EPSILONS[-1:] if quick else EPSILONS)):
        noise = None if epsilon is None else calibrate_noise_multiplier(epsilon, DELTA, gaussian_event)
        records = _records(centre, noise, seed=0)
        flow = by_flow(pair, surrogate.surrogate, records, steps=200 if quick else 1500)
        sources.append({
            "epsilon": epsilon, "noise multiplier": noise, "flow": _summary(*flow.moments()),
            "exact": _summary(*exact.moments(records)), "effective": flow.effective,
            "coverage": _coverage(exact, truth, centre, noise, cohorts=5 if quick else COHORTS),
        })  # fmt: skip
        say(f"{pair.resistance}, width {pair.width}, epsilon {epsilon}: {sources[-1]['flow']}")
    return {
        "resistance": pair.resistance, "width": pair.width, "hold-out error": dict(zip(TARGETS, surrogate.errors, strict=True)),
        "truth": _cgs(truth), "prior": {"mean": _cgs(prior_mean), "deviation": _cgs(prior_deviation)}, "sources": sources,
    }  # fmt: skip


def _records(centre: Tensor, noise: float | None, seed: int) -> Tensor:
    """A cohort's records (PATIENTS, 8), or with ``noise`` synthetic patients made from that cohort."""
    scatter = torch.tensor([SCATTER[name] for name in TARGETS], dtype=torch.float64)
    draws = generator(seed, "patients of CVSim-6").standard_normal((PATIENTS, len(TARGETS)))
    real = centre + scatter * torch.from_numpy(draws)
    if noise is None:
        return real
    low, high = (np.array([RANGES[name][end] for name in TARGETS], dtype=np.float64) for end in (0, 1))
    return torch.from_numpy(synthetic_patients(real.numpy(), low, high, noise, seed))


def _coverage(exact: Grid, truth: Tensor, centre: Tensor, noise: float | None, cohorts: int) -> list[float]:
    """How often the exact posterior's mean is within two of its deviations of each parameter's truth, over new cohorts."""
    hits = torch.zeros(2, dtype=torch.float64)
    for seed in range(1, cohorts + 1):
        mean, covariance = exact.moments(_records(centre, noise, seed))
        hits += (mean - truth).abs() <= 2 * covariance.diag().sqrt()
    return (hits / cohorts).tolist()


def _cgs(pair: Tensor) -> list[float]:
    """dyn s/cm^5 and cm^5/dyn."""
    return [float(pair[0]) * DYNES, float(pair[1]) / DYNES]


def _summary(mean: Tensor, covariance: Tensor) -> dict[str, Any]:
    deviation = covariance.diag().sqrt()
    correlation = float(covariance[0, 1] / deviation.prod())
    return {"mean": _cgs(mean), "deviation": _cgs(deviation), "correlation": correlation}


def _table(results: Mapping[str, Any]) -> str:
    outputs = (
        [f"{row['output']} ({row['unit']})"]
        + [f"{row[kind][i]:.3f}" for i in (0, 1) for kind in ("published", "original", "corrected")]
        for row in results["published"]
    )
    heads = [f"{kind}{case}" for case in (", defaults", ", r_a x 1.5") for kind in ("published", "ours", "corrected")]
    speed = results["speed"]
    errors = (
        [case["resistance"], str(case["width"]), *(f"{100 * value:.2f} %" for value in case["hold-out error"].values())]
        for case in results["cases"]
    )
    found = []
    for case in results["cases"]:
        name = [case["resistance"], str(case["width"])]
        found.append([*name, "truth", f"{case['truth'][0]:.2f}", f"{case['truth'][1] * 1e4:.2f}", *[""] * 6])
        prior = case["prior"]
        found.append([*name, "before any record", *_spread(prior), *[""] * 6])
        for source in case["sources"]:
            epsilon = "the patients" if source["epsilon"] is None else f"synthetic, ε = {source['epsilon']:g}"
            covered = [f"{100 * share:.0f} %" for share in source["coverage"]]
            correlations = [f"{source[kind]['correlation']:.2f}" for kind in ("flow", "exact")]
            found.append([*name, epsilon, *_spread(source["flow"]), *_spread(source["exact"]), *correlations, *covered])
    return "\n".join([
        markdown(["output", *heads], outputs),
        f"Batch of {speed['batch']} runs of ten beats, {speed['threads']} thread(s), in processor time: "
        f"{1e3 * speed['batched']:.2f} ms a run; a loop of scalars {speed['loop of scalars']:.2f} s "
        f"({estimate(speed['times over scalars'], 0)} times), of NumPy arrays {speed['loop of arrays']:.2f} s "
        f"({estimate(speed['times over arrays'], 0)} times).\n",
        markdown(["resistance", "width", *TARGETS], errors),
        markdown(["resistance", "width", "given", "flow: R", "flow: C_a x 1e4", "exact: R", "exact: C_a x 1e4",
                  "flow: correlation", "exact: correlation", "cohorts that cover R", "C_a"], found),
    ])  # fmt: skip


def _spread(summary: dict[str, Any]) -> list[str]:
    mean, deviation = summary["mean"], summary["deviation"]
    return [f"{mean[0]:.2f} ± {deviation[0]:.2f}", f"{mean[1] * 1e4:.2f} ± {deviation[1] * 1e4:.2f}"]


def _cycle() -> Figure:
    """Pressures over a beat, and the left ventricle's loop of pressure and volume (the shape of Harrod et al.'s figure 2)."""
    trace = simulate(parameters())
    seconds = (trace.seconds - trace.seconds[0])[:, 0]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right, loop = figure.subplots(1, 3)
    for axis, rows, title in ((left, (0, 1, 5), "left heart"), (right, (3, 4, 2), "right heart")):
        for row, colour, name in zip(
            rows, (BLUE, ORANGE, GREEN), ("ventricle", "arteries", "veins before it"), strict=True
        ):
            axis.plot(seconds, trace.pressures[:, row, 0], color=colour, label=name)
        axis.set(xlabel="seconds", ylabel="mmHg", title=title)
        axis.legend(frameon=False, fontsize=8)
    loop.plot(trace.volumes[:, 0, 0], trace.pressures[:, 0, 0], color=BLUE)
    loop.set(xlabel="mL", ylabel="mmHg", title="left ventricle")
    return figure


def _figure(cases: list[dict[str, Any]]) -> Figure:
    """Mean and two standard deviations of both parameters, by flow and exactly, for the patients and each epsilon."""
    figure = Figure(figsize=(2.9 * len(cases) + 0.8, 5), layout="constrained")
    axes = figure.subplots(2, len(cases), squeeze=False)
    for column, case in enumerate(cases):
        labels = ["patients" if s["epsilon"] is None else f"ε={s['epsilon']:g}" for s in case["sources"]]
        for i, unit in enumerate(("dyn s/cm⁵", "10⁻⁴ cm⁵/dyn")):
            axis, scale = axes[i][column], (1.0, 1e4)[i]
            for offset, kind, colour in ((-0.12, "flow", BLUE), (0.12, "exact", ORANGE)):
                mean = [s[kind]["mean"][i] * scale for s in case["sources"]]
                twice = [2 * s[kind]["deviation"][i] * scale for s in case["sources"]]
                places = [place + offset for place in range(len(labels))]
                axis.errorbar(places, mean, twice, fmt="o", markersize=4, color=colour, label=kind, capsize=2)
            axis.axhline(case["truth"][i] * scale, color=GREY, linestyle=":", label="truth")
            axis.set_xticks(range(len(labels)), labels, fontsize=8)
            axis.set_ylabel(f"{(case['resistance'], 'c_a')[i]}, {unit}", fontsize=8)
        axes[0][column].set_title(
            f"{case['resistance']}, {'paper' if case['width'] == 1 else 'code'}'s range", fontsize=9
        )
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure
