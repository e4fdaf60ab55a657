"""The EHR experiment's pipeline on real patients: the first day's physiology in the eICU demo, a region held out.

The form is that of the simulated cohorts: continuous attributes with missing cells, of which one is regressed on the others and
called high above a threshold. Here it is creatinine above 1.5 mg/dl. Hospitals are four regions, which train together; the fifth
is looked at for scores alone. One record a patient, the first; patients without a creatinine are left out, and so are attributes
that nobody takes of most patients. Centres and spreads are what is usual in intensive care, not computed from these records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset, eicu
from polyclinic.ehr.encoding import column_values, encode
from polyclinic.ehr.imputation import impute_chained
from polyclinic.ehr.schema import Column, Schema
from polyclinic.experiments import markdown
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats
from polyclinic_studies.ehr_flow.judges import taught
from polyclinic_studies.generators.patients import synthesizer_of
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import spread

HELD_OUT, ABOVE, DELTA = "West", 1.5, 1e-4
OUTCOME = "creatinine"
USUAL: dict[str, tuple[float, float]] = {
    "age_years": (62, 17), "urine": (1800, 1000), "wbc": (11, 5), "temperature": (36.9, 0.8), "respiratoryrate": (20, 7),
    "sodium": (139, 5), "heartrate": (90, 20), "meanbp": (80, 18), "hematocrit": (33, 6), "albumin": (3.2, 0.7), "bun": (25, 18),
    "glucose": (140, 50), OUTCOME: (1.4, 1.0),
}  # fmt: skip
#: Flows take a minute each.
FLOWS = 1
REGIONS = ("Midwest", "Northeast", "South", "unknown")


def _schema() -> Schema:
    own = {column.name: column for column in eicu.SCHEMA.columns}
    changed = [
        own[name].model_copy(update={"centre": float(centre), "spread": float(width), "nullable": name != OUTCOME, "fill": None})
        for name, (centre, width) in USUAL.items()
    ]  # fmt: skip
    label = Column(name="high", kind="binary", role="label", description=f"{OUTCOME} above {ABOVE} mg/dl")
    return Schema(name="eicu-creatinine", columns=(own["patient"], own["site"], *changed, label))


SCHEMA = _schema()
PREDICTORS = SCHEMA.model_copy(update={"columns": tuple(c for c in SCHEMA.columns if c.name != OUTCOME)})


def records(held_out: bool) -> pd.DataFrame:
    """First stays with a creatinine, of the region that is held out or of the others; ``site`` is the region.

    Raises DataError where the eICU demo's files are not there.
    """
    table = eicu.load().drop_duplicates("patient")
    table = table[table[OUTCOME].notna() & ((table["region"] == HELD_OUT) == held_out)].reset_index(drop=True)
    table["site"] = table["region"]
    table["high"] = (table[OUTCOME] > ABOVE).astype("int64")
    return table[[column.name for column in SCHEMA.columns]].copy()


DATASET = Dataset(
    name="eicu-creatinine", title="eICU demo, creatinine", description="Creatinine by the first day's physiology, four regions.",
    schema=SCHEMA, licence=eicu.DATASET.licence, citation=eicu.DATASET.citation, patients=982, rows=982, default_sites=4,
    default_partitioner="natural", natural_sites=REGIONS, load=lambda: records(False), available=eicu.DATASET.available,
)  # fmt: skip
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
METHODS: dict[str, Mapping[str, Any]] = {
    "moments, own noise": {"model": "moments"},
    "moments, shared noise": {"model": "moments", **SHARED},
    "flow, own noise": {"model": "maf", "synthesis.baselines": False},
}


def real(
    parts: Parts, epsilons: tuple[float, ...], seeds: int, methods: Sequence[str] = tuple(METHODS), rows: int = 2000
) -> list[dict[str, Any]]:
    """Scores on the region that is held out of what real and synthetic patients of the others teach; ``rows`` are drawn."""
    found = [
        {
            "trained on": "real patients",
            "epsilon": None,
            **parts.answer("real", {}, lambda: [_judged(records(False), 0)])[0],
        }
    ]
    for name in methods:
        options = METHODS[name]
        for epsilon in epsilons:
            for seed in range(min(seeds, FLOWS) if options["model"] == "maf" else seeds):
                terms = {
                    "dataset": f"{__name__}:DATASET", "task": "synthesis", "synthesis.quality": False,
                    "sites": len(REGIONS), "seed": seed,
                    "privacy.epsilon": epsilon, "privacy.delta": DELTA, **options,
                }  # fmt: skip
                part = f"{name} {epsilon:g} {seed}"
                result = parts.run(part, terms)
                layout = Layout.of(SCHEMA)
                rng = generator(seed, "real", name)
                made = layout.decode(synthesizer_of(result, layout).sample(rows, rng))
                found.append({"trained on": name, "epsilon": epsilon, "seed": seed, **_judged(made, seed)})
    return found


def _judged(table: pd.DataFrame, seed: int) -> dict[str, float]:
    """Missing predictors of both sides by regressions on predictors, fitted to ``table`` alone: the outcome is in none."""
    test = records(True)
    x, seen = impute_chained(_x(table), PREDICTORS, seed, [_x(test)], iterations=5)
    outcomes = (one[OUTCOME].to_numpy(dtype=np.float64) for one in (table, test))
    (learnt, asked) = zip((_values(x), _values(seen)), outcomes, strict=True)
    score = taught(learnt, [asked], ABOVE, 100)[0]
    return {"accuracy": score.accuracy, "error": score.error, "patients": len(test)}


def _x(table: pd.DataFrame) -> Floats:
    return encode(table[[column.name for column in PREDICTORS.columns if column.name in table]], PREDICTORS).x


def _values(x: Floats) -> Floats:
    """(n, predictors) in units."""
    return np.stack([column_values(x, PREDICTORS, column.name) for column in PREDICTORS.features], axis=1)


def real_table(found: list[dict[str, Any]]) -> str:
    """In Markdown; empty where eICU is not there. Beside what calling nobody high and the mean of the others would score."""
    if not found:
        return "Real patients: the eICU demo's files are not there (`polyclinic datasets fetch eicu-demo`).\n"
    test, train = records(True), records(False)
    rows = [["nothing: the commoner class, the mean", "", f"{1 - test['high'].mean():.3f}",
             f"{((test[OUTCOME] - train[OUTCOME].mean()) ** 2).mean():.3f}"]]  # fmt: skip
    for key in dict.fromkeys((one["trained on"], one["epsilon"]) for one in found):
        own = [one for one in found if (one["trained on"], one["epsilon"]) == key]
        rows.append(
            [
                key[0],
                "" if key[1] is None else f"{key[1]:g}",
                *(spread([one[m] for one in own]) for m in ("accuracy", "error")),
            ]
        )
    words = (
        f"Real patients: eICU demo, creatinine above {ABOVE} mg/dl and its value by twelve others of the first day. Four regions "
        f"({len(train)} patients, of whom the platform holds out a quarter) train, the region {HELD_OUT} ({len(test)} patients) "
        f"tests. δ = {DELTA:g}, a patient added or removed; predictors of rows and of test patients are imputed by what "
        "synthetic rows say, creatinine left out.\n"
    )  # fmt: skip
    return words + "\n" + markdown(["trained on", "ε", "accuracy", "mean square error"], rows)
