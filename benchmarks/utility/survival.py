"""Predicted survival beside other models of it, and how calibrated it is: ``python -m benchmarks.utility.survival [--quick]``.

Ours are federated over four hospitals, between which the share of patients with the event differs (Dirichlet 0.5). The peers have
all patients in one place and no privacy: Cox's regression (lifelines), a random survival forest and gradient boosting
(scikit-survival), and Kaplan and Meier's curve, which is the same for everybody. The full benchmark writes
benchmarks/results/survival.json and the tables of docs/survival.md; runs that are known are not made again.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from benchmarks.utility.cohorts import made_up_survival
from benchmarks.utility.report import standard_error
from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import decode
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.survival import brier_scores, concordance, kaplan_meier, over_time
from polyclinic.runs.simulation import SimulatedRecords
from polyclinic.types import Bools, Floats

RESULT = ROOT / "benchmarks" / "results" / "survival.json"
PARTS = RESULT.with_suffix(".partial.json")
PAGE = ROOT / "docs" / "survival.md"
BEGIN, END = "<!-- benchmarks.utility.survival: begin -->", "<!-- benchmarks.utility.survival: end -->"
#: Each cohort with the last of ten equal intervals, in the unit of its time.
COHORTS = {"whas500": 1800.0, "gbsg2": 2000.0, "rossi": 50.0, "made_up": 240.0}
EPSILONS, SPLITS, DELTA, HOSPITALS = (1.0, 3.0, 10.0), (1, 2, 3, 4, 5), 1e-3, 4
#: Which of the intervals' ends calibration is looked at.
HORIZONS = (2, 5, 8)
OURS: dict[str, tuple[str, str, str]] = {
    "hazards": ("hazards", "", "logistic"), "cloglog": ("hazards", ", link='complementary-log-log'", "logistic"),
    "piecewise": ("piecewise-exponential", "", "logistic"), "ebm": ("hazards", "", "ebm"),
}  # fmt: skip
TITLES = {
    "hazards": "`hazards`", "cloglog": "`hazards`, complementary log-log", "piecewise": "`piecewise-exponential`",
    "ebm": "`hazards`, `model=ebm`", "cox": "Cox, pooled", "forest": "random survival forest, pooled",
    "boosting": "gradient boosting, pooled", "curve": "Kaplan and Meier, pooled",
}  # fmt: skip
DEALT: dict[str, dict[str, Any]] = {
    "alike": {"partitioner": "iid"},
    "apart": {"partitioner": "dirichlet", "alpha": 0.5},
}
Job = tuple[str, str, str, float | None, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.survival", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="WHAS500 and one split; writes nothing")
    parser.add_argument("--splits", nargs="*", type=int, help="other splits, to choose by; writes nothing")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    shown = not given.quick and not given.splits
    jobs = list(
        _jobs(list(COHORTS)[: 1 if given.quick else None], given.splits or SPLITS[: 1 if given.quick else None])
    )
    lines = PARTS.read_text(encoding="utf-8").splitlines() if shown and PARTS.is_file() else []
    done = {json.dumps(job): values for job, values in map(json.loads, lines)}
    for job in jobs:
        if (key := json.dumps(job)) not in done:
            done[key] = carry_out(*job)
            if shown:
                with PARTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([job, done[key]]) + "\n")
    result = {"machine": machine(), "command": "python -m benchmarks.utility.survival", "delta": DELTA,
              "cohorts": COHORTS, "rows": rows({tuple(json.loads(key)): values for key, values in done.items()})}  # fmt: skip
    if shown:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, tables(result))
    print(tables(result))
    return 0


def _jobs(cohorts: Sequence[str], splits: Sequence[int]) -> Iterator[Job]:
    for split in splits:
        for cohort in cohorts:
            for method in OURS:
                yield from ((cohort, method, epsilon, split) for epsilon in (*EPSILONS, None))
            yield from ((cohort, method, None, split) for method in PEERS)


def _config(cohort: str, method: str, epsilon: float | None, split: int) -> dict[str, Any]:
    objective, further, model = OURS.get(method, OURS["hazards"])
    privacy = {"privacy.dp": False} if epsilon is None else {"privacy.epsilon": epsilon, "privacy.delta": DELTA}
    return {
        "dataset": f"benchmarks.utility.cohorts:{cohort.upper()}", "sites": HOSPITALS, "seed": split, "split.seed": str(split),
        "objective": objective, "objective-options": f"edges={_ends(cohort).tolist()}{further}", "model": model,
        "evaluation.every": 10_000, "partitioner": "dirichlet", "alpha": 0.5, **privacy,
    }  # fmt: skip


def _ends(cohort: str) -> Floats:
    return np.linspace(0.0, COHORTS[cohort], 11)[1:]


def carry_out(cohort: str, method: str, epsilon: float | None, split: int) -> dict[str, Any]:
    """Of all hospitals' held-out patients together: the integrated Brier score, Harrell's concordance, by horizon the mean
    prediction less Kaplan and Meier's curve and the mean difference of tenths of patients by their prediction, and of the made-up
    patients the root mean square of predictions less the truth."""
    keys = _config(cohort, method, epsilon, split)
    shards = [*SimulatedRecords.of(RunConfig.build(keys)).shards().values()]
    test, ends = Rows.join([shard.test for shard in shards]), _ends(cohort)
    if method in OURS:
        with tempfile.TemporaryDirectory() as folder:
            dataset = keys.pop("dataset")
            table = Federation.from_dataset(dataset).run(**keys, pictures=False, out=folder).predictions
        table = table[table["split"] == "held-out"]
        survival = table[[name for name in table if str(name).startswith("score_")]].to_numpy(float)
        assert np.allclose(table[[name for name in table if str(name).startswith("label_")]], test.y, atol=1e-3)
    else:
        train = Rows.join([shard.train for shard in shards])
        filled = np.nanmean(train.x, axis=0)
        x, asked = (np.where(np.isnan(rows.x), filled, rows.x) for rows in (train, test))
        survival = PEERS[method](x, train.y[:, 0], train.y[:, 1] > 0, asked, ends, split)
    time, event = test.y[:, 0], test.y[:, 1] > 0
    gaps, tenths, drawn = [], [], np.random.default_rng(split).permutation(len(time))
    for at in HORIZONS:
        predicted, end = survival[:, at], ends[at : at + 1]
        gaps.append(float(predicted.mean() - kaplan_meier(time, event, end)[0]))
        parts = np.array_split(drawn[np.argsort(predicted[drawn], kind="stable")], 10)
        off = [predicted[part].mean() - kaplan_meier(time[part], event[part], end)[0] for part in parts]
        tenths.append(float(np.abs(off).mean()))
    found: dict[str, Any] = {
        "brier": float(over_time(brier_scores(time, event, survival, ends), ends).mean()), "gaps": gaps, "tenths": tenths,
        "concordance": float(concordance(time, event, -survival.sum(axis=1), np.ones((1, len(time))))[0]),
    }  # fmt: skip
    if cohort == "made_up":
        truth = made_up_survival(decode(test.x, shards[0].schema), ends)
        found["off"] = float(np.sqrt(((survival - truth) ** 2).mean()))
    return found


def _cox(x: Floats, time: Floats, event: Floats, asked: Floats, ends: Floats, seed: int) -> Floats:
    from lifelines import CoxPHFitter

    varies = x.std(axis=0) > 1e-9
    fitter = CoxPHFitter(penalizer=1e-3).fit(pd.DataFrame(x[:, varies]).assign(time=time, event=event), "time", "event")
    return np.asarray(fitter.predict_survival_function(pd.DataFrame(asked[:, varies]), times=ends)).T


def _sksurv(model: Any, x: Floats, time: Floats, event: Floats, asked: Floats, ends: Floats) -> Floats:
    from sksurv.util import Surv

    fitted = model.fit(x, Surv.from_arrays(event, np.maximum(time, 1e-6)))
    return np.stack([curve(np.clip(ends, *curve.domain)) for curve in fitted.predict_survival_function(asked)])


def _forest(x: Floats, time: Floats, event: Floats, asked: Floats, ends: Floats, seed: int) -> Floats:
    from sksurv.ensemble import RandomSurvivalForest

    model = RandomSurvivalForest(200, min_samples_leaf=10, random_state=seed, n_jobs=1)
    return _sksurv(model, x, time, event, asked, ends)


def _boosting(x: Floats, time: Floats, event: Floats, asked: Floats, ends: Floats, seed: int) -> Floats:
    from sksurv.ensemble import GradientBoostingSurvivalAnalysis

    return _sksurv(GradientBoostingSurvivalAnalysis(max_depth=2, random_state=seed), x, time, event, asked, ends)


def _curve(x: Floats, time: Floats, event: Bools, asked: Floats, ends: Floats, seed: int) -> Floats:
    return np.tile(kaplan_meier(time, event, ends), (len(asked), 1))


PEERS: dict[str, Callable[..., Floats]] = {"cox": _cox, "forest": _forest, "boosting": _boosting, "curve": _curve}


def rows(results: Mapping[Job, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each cohort, method and epsilon, with what ``carry_out`` says of each split."""
    by: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for (*what, _), values in results.items():
        by.setdefault(tuple(what), []).append(values)
    names = ("cohort", "method", "epsilon")
    return [dict(zip(names, what, strict=True)) | {"splits": splits} for what, splits in by.items()]


def tables(result: Mapping[str, Any]) -> str:
    """GitHub markdown: a table for each cohort."""
    parts = []
    for cohort in dict.fromkeys(row["cohort"] for row in result["rows"]):
        cells = {(row["method"], row["epsilon"]): row for row in result["rows"] if row["cohort"] == cohort}
        lines = ["| model | ε = 1 | ε = 3 | ε = 10 | without privacy |", "|---|---|---|---|---|"]
        for method, title in TITLES.items():
            shown = [_cell(cells.get((method, epsilon))) for epsilon in (*EPSILONS, None)]
            lines.append(f"| {title} | {' | '.join(shown)} |")
        splits = max(len(row["splits"]) for row in cells.values())
        parts.append(f"**{cohort}** (splits: {splits})\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    briers = [split["brier"] for split in row["splits"]]
    error = f" ± {standard_error(briers):.3f}" if len(briers) > 1 else ""
    gaps = [fmean(split["gaps"]) for split in row["splits"]]
    text = f"{fmean(briers):.3f}{error}; {fmean(gaps):+.2f}; {fmean(fmean(s['tenths']) for s in row['splits']):.2f}"
    return text + (f"; {fmean(split['off'] for split in row['splits']):.2f}" if "off" in row["splits"][0] else "")


if __name__ == "__main__":
    raise SystemExit(main())
