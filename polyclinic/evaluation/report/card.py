"""The model card of a run (Mitchell et al. 2019): what its model is, what it was made of, how good it is, and its limits.

It tells what the run's summary tells, which holds only what hospitals' policies let leave. The purpose is its authors' to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import several
from polyclinic.evaluation.formats import Summary, count, dataset_title, delta, part, percent, span
from polyclinic.evaluation.judges import groups_shown, titles
from polyclinic.runs.folder import Run

#: A paragraph, a list of items, or a table with its ``headings`` and ``rows``.
Block = str | list[str] | dict[str, Any]
Section = tuple[str, list[Block]]
_MOST_CATEGORIES = 8
_UNSAID = (
    "Not stated yet. Its authors say what the model is for, who is to use it and what it must not be used for, in the file "
    "purpose.md of the run's folder; polyclinic report then writes it here."
)


def model_card(run: Run, facts: Mapping[str, Any]) -> list[Section]:
    """The sections of the card by title; none for a run of no model of labelled patients, and for one without its files.

    facts: what ``report_context`` gives of the run.
    """
    if facts["synthesis"] or not facts["scored"] or not (run.schema_file.is_file() and run.config_file.is_file()):
        return []
    summary, schema, config = facts["summary"], run.schema(), run.config()
    versions = run.versions().get("coordinator", {})
    return [
        ("Purpose", [*run.purpose()] or [_UNSAID]),
        ("Model", _model(run, summary, schema)),
        ("Data", _data(facts, config, schema)),
        ("Privacy", _privacy(facts)),
        ("Metrics", _metrics(facts, part(summary, "evaluation"))),
        ("Limits", [_limits(facts, part(summary, "evaluation"))]),
        ("Versions", [[f"{name} {versions[name]}" for name in versions if name != "platform"]]),
    ]


def _model(run: Run, summary: Summary, schema: Schema) -> list[Block]:
    """The seed is left out: whoever knows it can take a simulation's noise away."""
    config = run.config()
    return [
        [
            f"Kind: {summary.get('model') or config.model}, task {config.task}.",
            f"Input: {len(schema.features)} columns of a patient's row. It predicts {several(_labels(schema))}"
            f"{f', in {unit}' if (unit := part(summary, 'objective').get('unit')) else ''}.",
            f"Training: strategy {summary.get('strategy')}, {count(summary.get('rounds'))} rounds, settings of config.toml.",
            f"Run: {run.name}",
            f"Digest of its arrays (SHA-256): {summary.get('model_sha256')}",
        ]
    ]


def _data(facts: Mapping[str, Any], config: RunConfig, schema: Schema) -> list[Block]:
    flow = facts["summary"].get("flow") or []
    chosen = [f"{stage['name']}: {stage['rows']:,} rows of {stage['patients']:,} patients" for stage in flow]
    hospitals = [[hospital["name"], count(hospital.get("patients"))] for hospital in facts["hospitals"]]
    where = "simulated from" if facts["simulation"] else "that keep"
    sites = "hospital" if facts["sites"] == 1 else "hospitals"
    return [
        f"{facts['sites']} {sites} {where} {dataset_title(facts['summary'])}; {facts['patients_sentence']}.",
        *([f"How the records were chosen: {'; '.join(chosen)}."] if chosen else []),
        {"headings": ["Hospital", "Patients"], "rows": hospitals},
        f"The label is {several(_labels(schema))}, the other columns are the model's input.",
        {
            "headings": ["Column", "Kind", "Unit", "Allowed", "May be missing", "Meaning"],
            "rows": [_column(column) for column in (*schema.labels, *schema.features)],
        },
        f"Missing cells: {config.data.imputation}. Scaling: {config.data.standardise}.",
    ]


def _labels(schema: Schema) -> list[str]:
    return [column.name for column in schema.labels]


def _column(column: Column) -> list[str]:
    low, high = column.bounds or (None, None)
    more = (
        f", and {len(column.categories) - _MOST_CATEGORIES} more" if len(column.categories) > _MOST_CATEGORIES else ""
    )
    allowed = ", ".join(column.categories[:_MOST_CATEGORIES]) + more
    if low is not None and high is not None:
        allowed = f"{low:g} to {high:g}" + (", others moved to the nearer" if column.clip else "")
    return [
        column.name, column.kind, column.unit, allowed or "0, 1", "yes" if column.nullable else "no", column.description,
    ]  # fmt: skip


def _privacy(facts: Mapping[str, Any]) -> list[Block]:
    privacy, blocks = facts["privacy"], list[Block]()
    if facts["private"]:
        blocks += [
            f"Differentially private: epsilon {facts['known_epsilon']} at delta {delta(privacy['delta'])}, per {facts['unit']}"
            f"{' trained on' if facts['whose'] else ''} ({facts['composition']}), by the accountant {privacy['accountant']}.",
            f"Neighbouring relation: {privacy['relation']}; {facts['relation_meaning']}",
            *([facts["risk"]] if facts["risk"] else []),
            "Epsilon covers:",
            list(facts["covers"]),
        ]
    elif not facts["central"]:
        blocks.append("There is no privacy guarantee: the model may reveal the records that it was trained on.")
    if facts["central"]:
        blocks.append(facts["central"])
    return [*blocks, *facts["warnings"], "No epsilon covers:", list(facts["does_not_cover"])]


def _metrics(facts: Mapping[str, Any], evaluation: Summary) -> list[Block]:
    blocks = list[Block]()
    if noised := facts["private_metrics"]:
        headings = ["Hospital", *noised["titles"]]
        rows = [[row["name"], *row["cells"]] for row in noised["rows"]]
        blocks += [noised["sentence"], {"headings": headings, "rows": rows}]
    if evaluation.get("undefined") or not evaluation:
        why = evaluation.get("undefined") or "the run was not evaluated"
        return [*blocks, f"There are no exact metrics with intervals: {why}."]
    columns = [evaluation[key] for key in ("pooled", "macro", "worst")]
    blocks += [
        f"On held-out patients, {facts['pooled_of'].removeprefix('over the held-out patients ')}, with 95 % intervals where "
        "there are enough patients.",
        {
            "headings": ["Metric", "Pooled", "Mean over hospitals", "Worst hospital"],
            "rows": [
                [name, *(_estimate(each[key]) for each in columns)] for key, name in titles(facts["summary"]).items()
            ],
        },
        "By hospital:",
        _table("Hospital", evaluation["sites"], facts["summary"]),
    ]
    if groups := part(evaluation, "groups"):
        judged = {name: row["metrics"] for name, row in groups["groups"].items() if row["metrics"]}
        few = [name for name, row in groups["groups"].items() if not row["metrics"]]
        blocks += (
            [f"Groups by {groups['column']}:", _table(groups["column"], judged, facts["summary"])] if judged else []
        )
        blocks += [f"Of {several(few)} fewer than 10 patients were held out, so nothing is told."] if few else []
        blocks += [f"Groups by {groups['column']}: {groups['undefined']}."] if groups["undefined"] else []
    if not evaluation["calibration"]:
        return blocks
    predicted = "prediction" if facts["predicts_numbers"] else "predicted probability"
    return [
        *blocks,
        "Calibration, pooled:",
        {
            "headings": ["Share of rows", f"Mean {predicted}", "Came about"],
            "rows": [
                [percent(bin["share"]), f"{bin['predicted']:.3f}", span({**bin, "value": bin["observed"]})]
                for bin in evaluation["calibration"]
            ],
        },
    ]


def _table(first: str, estimates: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    shown, names = groups_shown(summary), titles(summary)
    rows = [[name, *(_estimate(row[key]) for key in shown)] for name, row in estimates.items()]
    return {"headings": [first, *(names[key] for key in shown)], "rows": rows}


def _estimate(row: Summary | None) -> str:
    """An estimate with its interval, and of the worst hospital its name."""
    return "undefined" if row is None else span(row) + (f", {row['name']}" if "name" in row else "")


def _limits(facts: Mapping[str, Any], evaluation: Summary) -> list[str]:
    """What is measured, or was not, and what the run itself noted."""
    limits = ["It was judged at the hospitals that trained it: how it does elsewhere, or later, was not measured."]
    if evaluation and not evaluation.get("undefined") and not evaluation["groups"]:
        limits.append("No groups of patients were judged apart (key evaluation.groups).")
    if facts["dropouts"]:
        limits.append(f"{several(sorted({row['site'] for row in facts['dropouts']}))} missed rounds of the training.")
    return [*limits, *facts["notes"]]


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The card as Markdown; what could be markup in names and sentences is escaped, but for the purpose."""
    parts = [f"# Model card: {_escape(title)}"]
    for name, blocks in sections:
        parts.append(f"## {name}")
        parts += [block if name == "Purpose" and isinstance(block, str) else _to_markdown(block) for block in blocks]
    return "\n\n".join(parts) + "\n"


def _to_markdown(block: Block) -> str:
    if isinstance(block, str):
        return _escape(block)
    if isinstance(block, list):
        return "\n".join(f"- {_escape(item)}" for item in block)
    rows = [block["headings"], ["---"] * len(block["headings"]), *block["rows"]]
    return "\n".join(f"| {' | '.join(_escape(str(cell)) for cell in row)} |" for row in rows)


def _escape(text: str) -> str:
    return re.sub(r"([\\`*<>|\[\]])", r"\\\1", " ".join(text.split()))
