"""Attacks on rows that a run's generator draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from polyclinic.attacking.target import Target, judged
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.evaluation.attacks import identification, membership
from polyclinic.evaluation.attacks.closest import closest, proximity
from polyclinic.evaluation.attacks.tables import Table, first_rows
from polyclinic.plugins import layout_of
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.synthesizer import load

ROWS, MOST_PATIENTS = 2000, 5000


def attack_synthetic(target: Target, delta: float, doing: Callable[[str], None]) -> dict[str, Any]:
    """The keys of ``attacks.json`` that a generator has, by 2000 rows of it and at most 5000 patients of either side.

    Raises ConfigError where there is none."""
    if not target.folder.synthesizer.is_file():
        raise ConfigError(f"{target.folder.path} has no generator: the run stopped before there was one.")
    doing("synthetic patients")
    layout, seed = layout_of(target.config, target.schema), target.seed
    drawn = load(target.folder.synthesizer, layout).sample(ROWS, generator(seed, "attacks", "synthetic"))
    synthetic = Table.of(*layout.encoded(drawn), target.schema)
    members, others = (_table(rows, target) for rows in (target.members, target.non_members))
    near = [proximity(side, synthetic) for side in (members, others)]
    doing("singling out, linking, inferring")
    risks = [
        identification.singling_out(synthetic, members, others, seed),
        identification.linkability(synthetic, members, others, seed),
        *identification.inference(synthetic, members, others, seed),
    ]
    return {
        "membership": [judged(membership.judge("closest synthetic row", near[0], near[1], delta, target.share, seed))],
        "closest": asdict(closest(synthetic, members, others, seed)),
        "identification": [asdict(one) | {"weak": one.weak} for one in risks],
    }


def _table(rows: Rows, target: Target) -> Table:
    some = generator(target.seed, "attacks", "patients").permutation(rows.patients)[:MOST_PATIENTS]
    at = first_rows(rows.patient, rows.patients)[some]
    return Table.of(rows.x[at], rows.y[at], target.schema)
