"""How good a finished run's synthetic patients are: in a simulation beside all hospitals' patients, at a hospital beside its own.

What comes out are exact functions of real records. A real hospital judges at home and sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.records import own_records
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows, Shard, read_shard
from polyclinic.errors import ConfigError
from polyclinic.evaluation.report import render_report
from polyclinic.evaluation.report.quality import write_quality_page
from polyclinic.evaluation.synthetic.quality import MOST, MOST_FULL, Sample, judge, one_row_each
from polyclinic.files import write_file, write_outputs
from polyclinic.privacy.streams import generator
from polyclinic.runs.folder import Run
from polyclinic.synthesis.synthesizer import Synthesizer


def judge_run(
    path: Path, *, full: bool = True, seed: int = 0, on_step: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Judge a simulated run, and return the content of ``quality.json``.

    It writes that file into the run's folder and the report anew.

    Args:
        path: The run's folder, or one that holds it alone.
        full: Compute also what takes classifiers, up to a minute or two.
        seed: Of what is drawn.
        on_step: Called with the name of what is under way.

    Raises:
        ConfigError: Where there is no finished run of task synthesis, or one of real hospitals.
    """
    run = Run.open(path)
    simulation = run.simulation("each judges at home with --hospital")
    synthesizer = run.synthesizer()
    schema, dataset = synthesizer.layout.schema, simulation.config.dataset
    quality = _judge(synthesizer, schema, list(simulation.shards.values()), full, seed, on_step)
    whole = {"run": str(run.path), "dataset": dataset, "hospital": None, "unit": schema.unit, **quality}
    write_file(run.quality_file, _json(whole))
    render_report(run.path)
    return whole


def judge_at_home(
    path: Path, hospital: Path, out: Path, *, full: bool = True, seed: int = 0, force: bool = False,
    on_step: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Judge a run's generator beside one hospital's own patients, and return the content of ``quality.json``.

    It writes ``out``, a page, and ``quality.json`` beside it. Nothing is sent or charged.

    Args:
        path: The run's folder as the coordinator handed it over.
        hospital: Its ``hospital.toml``.
        out: The file of the page.
        full: Compute also what takes classifiers, up to a minute or two.
        seed: Of what is drawn.
        force: Replace files that exist.
        on_step: Called with the name of what is under way.

    Raises:
        ConfigError: As ``judge_run``, and where the hospital's schema has other columns than the run's.
    """
    run = Run.open(path)
    run.summary()  # raises for a run that has not finished
    synthesizer = run.synthesizer()
    described, home = HospitalFile.read(hospital), hospital.resolve().parent
    schema = Schema.from_toml(home / described.schema_)
    if schema.columns != synthesizer.layout.schema.columns:
        raise ConfigError(f"The schema of {hospital} has other columns than that of the run in {run.path}.")
    on_step("reading the hospital's records")
    split = run.config().split.rule
    shard = read_shard(own_records(described, home, schema), schema, described.site, described.data, split)
    quality = _judge(synthesizer, schema, [shard], full, seed, on_step)
    whole = {"run": str(run.path), "dataset": None, "hospital": described.site, "unit": schema.unit, **quality}
    write_outputs(
        {out: lambda path: write_quality_page(whole, path), out.with_name(run.quality_file.name): _json(whole)}, force
    )
    return whole


def _judge(
    synthesizer: Synthesizer,
    schema: Schema,
    shards: Sequence[Shard],
    full: bool,
    seed: int,
    on_step: Callable[[str], None],
) -> dict[str, Any]:
    on_step("drawing synthetic patients")
    most = MOST_FULL if full else MOST
    held_out, training = Rows.join([shard.test for shard in shards]), Rows.join([shard.train for shard in shards])
    if not held_out.patients or not training.patients:
        return {"undefined": "no patient was held out" if training.patients else "no patient was trained on"}
    real = [_sample(rows, schema, seed, most) for rows in (held_out, training)]
    drawn = synthesizer.sample(len(real[1].y), generator(seed, "quality", "synthetic"))
    if not np.isfinite(drawn).all():
        return {"undefined": "the generator has diverged, and its rows hold numbers that are not finite"}
    synthetic = Sample.of(*synthesizer.layout.features_and_labels(drawn), schema)
    on_step("comparing tables" + (", training classifiers" if full else ""))
    return {"undefined": None, **judge(real[0], real[1], synthetic, full=full, seed=seed)}


def _sample(rows: Rows, schema: Schema, seed: int, most: int) -> Sample:
    at = one_row_each(rows.patient, rows.patients, seed, most)
    return Sample.of(rows.x[at], rows.y[at], schema)


def _json(whole: dict[str, Any]) -> str:
    return json.dumps(whole, indent=1, allow_nan=False)
