"""The flow of Su, Wang, Schiavazzi and Liu 2023 trained as published in form, and why nothing is promised of any patient.

Batch norm between its blocks, Poisson batches, each record's gradient out of the whole batch's losses and clipped, Gaussian noise
in the sum, divided by the number in the batch, SGD. Scaled down: 5 blocks of 50 units in place of 15 of 200, and 800 steps in
place of 8,000 at a rate fifty times as large, in single precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyclinic.experiments import Asked, Findings, Say, markdown
from polyclinic.models.flows import ConditionalFlow
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.streams import generator, torch_seed
from polyclinic.types import Floats
from polyclinic_studies.ehr_flow.cohort import COLUMNS
from polyclinic_studies.ehr_flow.figures import figures
from polyclinic_studies.ehr_flow.release import batch_norm, moved
from polyclinic_studies.ehr_flow.study import (
    QUICK,
    Arm,
    Patients,
    Scale,
    answers,
    cohorts,
    judged_on_own_sets,
    original,
    own_sets,
    rows_of,
    shown_in,
)
from polyclinic_studies.ehr_flow.tables import AS_PUBLISHED, MU, Key, norm_table, score_table
from polyclinic_studies.flows.published import clipped_sum_at_once, published_flow
from polyclinic_studies.parts import Parts

#: The paper's noise, in times of the clip, by what it claims at delta = .01.
NOISE = {inf: 0.0, 32.0: 7.36, 16.0: 11.44, 8.0: 18.28, 4.0: 29.93}
PUBLISHED_STEPS, DELTA = 8000, 1e-2
SCALE = Scale(cohorts=1, steps=800)
#: Patients whose influence is measured: as many as a batch has on average.
LOOKED_AT = 32
REASONS = (
    "batch norm couples the patients of a batch, so that clipping bounds nobody's influence",
    "missing cells are imputed out of all 84 patients before the split and before any noise",
    "δ = .01 is near 1/64: publishing each patient with probability .01, and so some patient 47 % of the time, would meet it",
    "sum and noise are divided by the realised size of the batch, which a patient changes too",
    "each of fifty flows of a budget is charged alone",
)


@dataclass(frozen=True)
class PublishedSettings:
    """The published training; blocks (15), hidden (200), steps (8,000) and rate (2e-5) are scaled down."""

    steps: int
    blocks: int = 5
    hidden: int = 50
    rate: float = 1e-3
    clip: float = 10.0
    sample_rate: float = 0.5


def run(asked: Asked, say: Say) -> Findings:
    """The published form alone, and what original patients teach. ``seeds``: the number of cohorts."""
    scale = QUICK if asked.quick else SCALE
    scale = replace(scale, cohorts=asked.seeds or scale.cohorts)
    settings, parts, patients = PublishedSettings(scale.steps), Parts(asked.out, say), cohorts(scale)
    arms: dict[Key, Arm] = {("original", inf): partial(original, scale=scale)}
    for level in (inf, *scale.epsilons):
        arms[AS_PUBLISHED, level] = partial(_published, scale=scale, settings=settings, level=level)
    config = {**asdict(scale), **{f"published-{name}": value for name, value in asdict(settings).items()}, "delta": DELTA,
              "epsilons": list(scale.epsilons), "noise": [NOISE[level] for level in scale.epsilons]}  # fmt: skip
    found = {
        (arm, level): {**one, "holds": holds(level, one["moved"])} if arm == AS_PUBLISHED else one
        for (arm, level), one in answers(parts, arms, config, patients, say).items()
    }
    begin = parts.answer("batch norm", {"quick": asked.quick}, lambda: batch_norm(patients()[0].sets[0], asked.quick))
    norm = {f"{name}, as it begins": one for name, one in begin.items()}
    norm |= {f"with batch norm, {_level(level)}": one["moved"] for (_, level), one in found.items() if "moved" in one}
    return Findings(
        {**config, "guarantee": f"no guarantee: {'; '.join(REASONS)}"}, (), {"rows": rows_of(found), "batch norm": norm},
        "\n".join((score_table(found, asdict(scale)), _why(settings, scale.epsilons), norm_table(norm))),
        figures(found, shown_in(found)),
    )  # fmt: skip


def holds(level: float, influence: Mapping[str, float]) -> str:
    """What is promised of a patient by the form that claims epsilon ``level``, with what one record was seen to move."""
    claims = f"; the paper claims μ = {MU[level]}, ε = {level:g} at δ = .01" if level < inf else ", and no noise"
    return (
        f"no guarantee: batch norm (a patient moves the clipped sum by {influence['largest']:.2f} clips, an outlier by "
        f"{influence['wrong']:.0f}), imputed over all patients, δ near 1/n, realised batch size{claims}"
    )


def trained(rows: Floats, settings: PublishedSettings, noise: float, number: int) -> ConditionalFlow:
    """A flow of (n, 19) complete scaled rows, by noise of ``noise`` times the clip in every sum, ready to be drawn from.

    No guarantee holds of it, whatever the noise. ``number``: another one is another start, batches and noise.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(number, "published flow"))
        module = published_flow(len(COLUMNS), 0, settings.blocks, settings.hidden).train()
    batches, draws = (generator(number, "published", name, str(noise)) for name in ("batches", "noise"))
    given, parameters = torch.from_numpy(rows).float(), list(module.parameters())
    for _ in range(settings.steps):
        batch = given[torch.from_numpy(batches.random(len(rows)) < settings.sample_rate)]
        if len(batch) == 0:
            continue
        total = clipped_sum_at_once(module, batch, settings.clip)
        total += noise * settings.clip * torch.from_numpy(draws.standard_normal(len(total), dtype=np.float32))
        with torch.no_grad():
            vector_to_parameters(parameters_to_vector(parameters) - settings.rate / len(batch) * total, parameters)
    return module.double().eval()


def _published(patients: Sequence[Patients], scale: Scale, settings: PublishedSettings, level: float) -> dict[str, Any]:
    sets = own_sets(patients, scale)
    modules = [trained(rows, settings, NOISE[level], number) for number, rows in enumerate(sets)]
    found = judged_on_own_sets(patients, scale, modules, "as published", str(level), loose=True)
    each = [moved(module, rows[:LOOKED_AT], settings.clip) for module, rows in zip(modules, sets, strict=True)]
    most = {name: max(one[name] for one in each) for name in each[0]}
    return {**found, "noise": NOISE[level], "moved": most}


def _why(settings: PublishedSettings, levels: Sequence[float]) -> str:
    """What was run in place of the publication, why nothing holds, and what an accountant would say if clipping bounded."""
    words = (
        f"The published form, scaled down: {settings.blocks} blocks of {settings.hidden} units in place of 15 of 200, "
        f"{settings.steps} steps of SGD at rate {settings.rate:g} in place of 8,000 at 2e-5; clip {settings.clip:g}, Poisson "
        f"batches at {settings.sample_rate:g} and the noise are the paper's. **No guarantee** holds of any patient, whatever the "
        f"noise: {'; '.join(REASONS)}. What follows would be true if one record moved the sum by one clip at most.\n"
    )

    def accountant(level: float, steps: int) -> str:
        return f"{epsilon(dpsgd_event(settings.sample_rate, NOISE[level], steps), DELTA):.2f}"

    rows = [
        [f"{NOISE[level]:g}", f"μ = {MU[level]}, ε = {level:g}", accountant(level, PUBLISHED_STEPS),
         accountant(level, settings.steps), "no guarantee"] for level in levels
    ]  # fmt: skip
    head = ["noise / clip", "the paper claims, δ = .01", f"accountant (PLD), {PUBLISHED_STEPS:,} steps",
            "accountant, the steps run here", "holds"]  # fmt: skip
    return f"{words}\n{markdown(head, rows)}"


def _level(level: float) -> str:
    return "trained without noise" if level == inf else f"trained at ε = {level:g} as claimed"
