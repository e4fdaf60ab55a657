"""Table 5 again: the posterior of two parameters given synthetic patients, beside that given the patients, and the truth.

Three models of the same patients: the resistance that the paper names, in the paper's range; the one that its code varies, in the
code's; and the latter with all other parameters at the patients' own means, which only a simulation knows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyclinic.errors import ConfigError
from polyclinic.experiments import Say, markdown
from polyclinic.privacy.accounting.composition import gdp_epsilon
from polyclinic.privacy.streams import generator
from polyclinic_studies.cvsim6 import BEATS
from polyclinic_studies.cvsim6.surrogate import Surrogate
from polyclinic_studies.cvsim6.two_parameters import (
    UNITS,
    Grid,
    Pair,
    by_flow,
    deviations,
    fitted,
    grid,
    log_likelihood,
)
from polyclinic_studies.ehr_vi.patients import GENERATORS, MUS, PUBLIC, Measured, patients
from polyclinic_studies.flows.variational import Box, posterior
from polyclinic_studies.parts import Parts

Row = dict[str, Any]
#: What Table 5 prints, dyn s/cm^5 and 1e-4 cm^5/dyn: from the patients, and the range over its four budgets.
PUBLISHED = {"R": "35.7 → 43.8 to 47.5", "C_a": "6.52 → 8.0 to 8.9"}
DELTA, SPREADS = 1e-3, ("its own", "public")


def settings(quick: bool) -> dict[str, Any]:
    """What decides the numbers. releases: of each generator at each mu.  steps: of the flow's 15,000 in the paper."""
    return {
        "mus": [0.0 if mu is None else mu for mu in (MUS[1:4:2] if quick else MUS)],
        "releases": {"moments": 1, "maf": 1} if quick else {"moments": 20, "maf": 3},
        "maf-steps": 5 if quick else 400, "beats": 2 if quick else BEATS, "surrogate-iterations": 100 if quick else 1500,
        "grid": 9 if quick else 33, "finer": 61 if quick else 101, "steps": 40 if quick else 400,
        "published-steps": 20 if quick else 1000,
    }  # fmt: skip


def cases(given: Measured) -> dict[str, Pair]:
    """The three models by name."""
    others = {name: value for name, value in given.truth.items() if name not in ("r_ri", "c_a")}
    return {
        "r_ro (the paper's)": Pair("r_ro", 1), "r_ri (its code's)": Pair("r_ri", 2),
        "r_ri, others known": Pair("r_ri", 2, others),
    }  # fmt: skip


def study(parts: Parts, quick: bool, say: Say) -> dict[str, Any]:
    """Rows of all cases; each case is a part."""
    given, chosen = patients(), settings(quick)
    drawn = {key: chosen[key] for key in ("mus", "releases", "maf-steps")}
    released = parts.answer("table5 synthetic patients", drawn, lambda: _released(given, chosen, say))
    found = {
        name: parts.answer(f"table5 {i}", chosen | {"case": name}, partial(_case, given, pair, released, chosen, say))
        for i, (name, pair) in enumerate(cases(given).items())
    }  # fmt: skip
    truth = {name: given.truth[name] for name in ("r_ri", "r_ro", "c_a")}
    return {"patients": len(given.records), "truth": truth, "cases": found}


def _released(given: Measured, chosen: dict[str, Any], say: Say) -> list[Row]:
    """Every release and the synthetic patients that were drawn of it; null is a missing cell."""
    rows = []
    for name, make in GENERATORS.items():
        for mu in chosen["mus"]:
            for seed in range(chosen["releases"][name]):
                extra = {"steps": chosen["maf-steps"]} if name == "maf" else {}
                synthesizer = make(given, mu or None, seed, **extra)
                drawn = given.synthetic(synthesizer, generator(seed, "table 5, patients", name, str(mu)))
                cells = [[None if np.isnan(v) else v for v in row] for row in drawn.tolist()]
                rows.append({"generator": name, "mu": mu, "release": seed, "records": cells})
        say(f"table 5: {name} drawn")
    return rows


def _case(given: Measured, pair: Pair, released: list[Row], chosen: dict[str, Any], say: Say) -> dict[str, Any]:
    surrogate = fitted(
        pair, 100, 50 if chosen["beats"] < BEATS else 200, chosen["surrogate-iterations"], chosen["beats"]
    )
    exact = grid(pair, chosen["grid"], chosen["finer"], chosen["beats"])
    say(f"table 5: {pair.resistance}, width {pair.width}, {len(pair.others)} others known: surrogate within "
        f"{max(surrogate.errors):.2%}")  # fmt: skip
    rows = []
    for one in [{"generator": "", "mu": 0.0, "release": 0, "records": given.records.tolist()}, *released]:
        records = _read(one["records"])
        about = {key: one[key] for key in ("generator", "mu", "release")} | {"patients": len(records)}
        for spread, values in zip(SPREADS, (None, PUBLIC), strict=True):
            row = about | {"spread": spread, "exact": _exact(exact, records, values)}
            if one["release"] == 0 and (values is None or not one["generator"]):
                row["flow"] = _flow(pair, surrogate.surrogate, records, values, chosen["steps"])
            rows.append(row)
    low, high = pair.box()
    big = posterior(
        lambda z: log_likelihood(surrogate.surrogate(z), given.records), Box(low, high), 2, chosen["published-steps"], 500,
        1e-2, 5, (100, 100), decay=0.9999 ** (15_000 / chosen["published-steps"]),
    )  # fmt: skip
    truth = torch.tensor([given.truth[name] for name in pair.names], dtype=torch.float64) * UNITS
    before = torch.stack([(low + high) / 2, (high - low) / 12**0.5]) * UNITS
    return {
        "resistance": pair.resistance, "width": pair.width, "others": len(pair.others), "errors": surrogate.errors,
        "truth": truth.tolist(), "prior": {"mean": before[0].tolist(), "deviations": before[1].tolist()}, "rows": rows,
        "published settings": _summary(*big.moments()) | {"effective": big.effective},
    }  # fmt: skip


def _read(records: list[list[float | None]]) -> Tensor:
    return torch.tensor([[torch.nan if v is None else v for v in row] for row in records], dtype=torch.float64)


def _exact(exact: Grid, records: Tensor, spread: Tensor | None) -> Row | None:
    """Nothing where a column has too few cells, or no spread of its own."""
    usable = (~records.isnan()).sum(0).min() > 1 if len(records) else False
    if not usable or (spread is None and not bool((deviations(records) > 0).all())):
        return None
    return _summary(*exact.near(lambda values, outputs: log_likelihood(outputs, records, spread)))


def _flow(pair: Pair, surrogate: Surrogate, records: Tensor, spread: Tensor | None, steps: int) -> Row | None:
    try:
        found = by_flow(pair, surrogate, records, steps, spread=spread)
    except ConfigError:  # columns without spread: no density
        return None
    summary = _summary(*found.moments()) | {"effective": found.effective}
    return summary if np.isfinite(summary["mean"]).all() else None


def _summary(mean: Tensor, covariance: Tensor) -> Row:
    deviation = covariance.diag().clamp(min=0).sqrt()
    product = float(deviation.prod())
    return {
        "mean": (mean * UNITS).tolist(), "deviations": (deviation * UNITS).tolist(),
        "correlation": float(covariance[0, 1]) / product if product > 0 else 0.0,
    }  # fmt: skip


def summaries(case: dict[str, Any]) -> list[Row]:
    """By generator, mu and spread over releases: medians of the exact mean and deviation; how far from the patients' mean
    (RMS, in the patients' deviations); shares of releases within two of their own deviations of that mean and of the truth.
    """
    found = []
    original = {row["spread"]: row["exact"] for row in case["rows"] if not row["generator"]}
    truth = np.array(case["truth"])
    keys = dict.fromkeys((r["generator"], r["mu"], r["spread"]) for r in case["rows"] if r["generator"])
    for key in keys:
        rows = [r for r in case["rows"] if (r["generator"], r["mu"], r["spread"]) == key]
        there = [r["exact"] for r in rows if r["exact"]]
        first = rows[0].get("flow")
        means = np.array([one["mean"] for one in there]).reshape(-1, 2)
        spreads = np.array([one["deviations"] for one in there]).reshape(-1, 2)
        real = original[key[2]]
        away = (means - real["mean"]) / np.array(real["deviations"])
        found.append({
            "generator": key[0], "mu": key[1], "spread": key[2], "releases": len(rows), "without result": len(rows) - len(there),
            "flow": first, "mean": np.median(means, 0).tolist() if there else None,
            "deviations": np.median(spreads, 0).tolist() if there else None,
            "away": np.sqrt((away**2).mean(0)).tolist() if there else None,
            "covers patients": (abs(means - real["mean"]) <= 2 * spreads).mean(0).tolist() if there else None,
            "covers truth": (abs(means - truth) <= 2 * spreads).mean(0).tolist() if there else None,
        })  # fmt: skip
    return found


def tables(found: dict[str, Any]) -> str:
    """One table for each model."""
    text = []
    for name, case in found["cases"].items():
        lines = [["before any record", "", "", "", _pm(case["prior"]), "", "", ""]]
        lines.append(["truth, mean of the patients", "", "", "", _two(case["truth"]), "", "", ""])
        for row in (r for r in case["rows"] if not r["generator"]):
            covered = [_within(row["exact"], case["truth"])]
            lines.append(
                ["the patients", "∞", row["spread"], _pm(row.get("flow")), _pm(row["exact"]), "", "", *covered]
            )
        lines.append(["the patients, flow as published", "∞", SPREADS[0], _pm(case["published settings"]), *[""] * 4])
        for row in summaries(case):
            epsilon = f"μ = {row['mu']:g} (ε = {gdp_epsilon(row['mu'], DELTA):.1f})" if row["mu"] else "∞"
            away = "-" if row["away"] is None else _two(row["away"], 1)
            lines.append([row["generator"], epsilon, row["spread"], _pm(row["flow"]), _pm(row), away,
                          _shares(row["covers patients"]), _shares(row["covers truth"])])  # fmt: skip
        header = ["given", f"μ, and ε at δ = {DELTA:g}", "SD of a column", "flow: R, C_a x 1e4", "exact: R, C_a x 1e4",
                  "RMS from the patients' means, in SDs", "within 2 SD of these", "of the truth"]  # fmt: skip
        text.append(f"**{name}**, {found['patients']} patients\n\n{markdown(header, lines)}")
    return "\n".join(text)


def _two(values: list[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _pm(summary: Row | None) -> str:
    if not summary or summary.get("mean") is None:
        return "-"
    return ", ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(summary["mean"], summary["deviations"], strict=True))


def _shares(values: list[float] | None) -> str:
    return "-" if values is None else ", ".join(f"{value:.0%}" for value in values)


def _within(summary: Row, truth: list[float]) -> str:
    away = [abs(m - t) / s for m, t, s in zip(summary["mean"], truth, summary["deviations"], strict=True)]
    return ", ".join("yes" if one <= 2 else f"no, {one:.1f} SD away" for one in away)
