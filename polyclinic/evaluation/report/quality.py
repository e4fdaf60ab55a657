"""How like held-out patients the synthetic ones are, from ``quality.json``: a section of a run's report, or a hospital's page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.synthetic import quality_figures, transfer_figures
from polyclinic.evaluation.formats import estimate, finite
from polyclinic.evaluation.judges import TITLES
from polyclinic.evaluation.page import embed, render, write_page
from polyclinic.evaluation.report.templates import ALT, BY_ROUND
from polyclinic.runs.folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 40
Values = Mapping[str, Any]

_HEADER = """<header>
<h1>{{ title }}</h1>
<p class="muted">{{ comparison.run }}</p>
</header>
<div class="notice warn"><p><strong>Stays at the hospital.</strong> These are exact figures of real patients, without noise; no
privacy guarantee covers them, and nothing of this page was sent.</p></div>
"""

QUALITY = """
<h2>Quality of the synthetic patients</h2>
{% if comparison.undefined %}
<p>Undefined: {{ comparison.undefined }}.</p>
{% else %}
<p>{{ comparison.rows.synthetic | count }} synthetic patients beside {{ comparison.rows.held_out | count }} held-out
real ones{% if comparison.hospital %} of {{ comparison.hospital }}{% endif %}, who took no part in training.
Read each figure against the next column: the same, with {{ comparison.rows.training | count }} real training patients in place of
the synthetic ones, which is what a perfect
generator would reach. These are exact figures of patients' records, which epsilon does not cover.</p>
{% call table(["Measure"], ["Synthetic patients", "Real training patients", "Best"], "Quality", kind="") %}
{% for row in rows %}<tr><th scope="row">{{ row.name }}</th>
{% for shown, beside in (row.synthetic, row.training) %}
{% call cell(shown) %}{% if beside %} <small>{{ beside }}</small>{% endif %}{% endcall %}
{% endfor %}{{ cell(row.best) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Means over columns or pairs where there are several; with 95 % intervals of the bootstrap where there are
two numbers. No cell lies outside the schema's bounds or categories: generated rows are brought within them.
Pairs of columns are undefined below 2 and above 150 columns.
{% if not comparison.full %}Classifiers were not asked; <code>polyclinic quality</code> asks them too.{% endif %}</p>
{% if comparison.rules %}
<h3>Rules broken</h3>
{% call table(["Rule"], ["Synthetic patients", "Held-out patients", "Training patients"], "Rules") %}
{% for one in comparison.rules %}<tr><th scope="row"><code>{{ one.rule }}</code></th>
{% for part in (one.synthetic, one.held_out, one.training) %}{% if part.share is none %}{{ cell("undefined") }}{% else %}
{% call cell("%.2g %%" | format(100 * part.share)) %}
<small>{{ part.broken | count }} of {{ part.asked | count }}</small>{% endcall %}
{% endif %}{% endfor %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Of all cases in which what a rule names is recorded; a rule over trajectories is asked at each visit.</p>
{% endif %}
{{ pictures(figures.quality) }}
{% if transfer %}
<h3>What they teach</h3>
<p>Classifiers of <code>{{ label }}</code> that learned from synthetic patients or from real training patients, all judged on
held-out real ones.</p>
{{ pictures(figures.transfer) }}
{% call table(["Classifier"], ["AUROC, by synthetic", "by real", "Difference", "Accuracy, by synthetic", "by real",
"F1, by synthetic", "by real", "Same features matter"], "Transfer", firsts=(4, 6, 8)) %}
{% for row in transfer %}<tr><th scope="row">{{ row.name }}</th>
{{ estimated(row.synthetic.auroc) }}{{ estimated(row.real.auroc) }}{{ estimated(row.less) }}
{{ estimated(row.synthetic.accuracy, true) }}{{ estimated(row.real.accuracy) }}
{{ estimated(row.synthetic.f1, true) }}{{ estimated(row.real.f1) }}
{{ metric(row.importance, true) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Same features matter: Spearman correlation of coefficients (logistic regression, SVM) or importances
(forest) between the two; nearest neighbours have none, and so it is undefined.</p>
{% endif %}
{% if comparison.cutoff %}
<h3>A cut-off from synthetic patients</h3>
{% call table(["Logistic regression and cut-off of"], ["Cut-off", "Fowlkes-Mallows index", "Sensitivity", "Specificity"],
kind="facts") %}
{% for name, one in comparison.cutoff.items() %}<tr><th scope="row">{{ name }} patients</th>{{ metric(one.cutoff) }}
{{ metric(one.index) }}{{ metric(one.sensitivity) }}{{ metric(one.specificity) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">The probability that is best by Fowlkes and Mallows' index (root of precision times recall) in five folds
of the patients named; the index, sensitivity and specificity are of held-out real patients.</p>
{% endif %}
{% if columns %}
<h3>Columns</h3>
{% call table(["Column"], ["Alike", "Real training patients", "Wasserstein", "Mean, synthetic", "Mean, held-out",
"Within held-out range", "Missing alike"], "Columns") %}
{% for one in columns %}<tr><th scope="row">{{ one.name }}</th>{{ cells(one.cells) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Alike: one less the distance of Kolmogorov and Smirnov for numbers, one less the total variation distance
for categories. Wasserstein in the column's unit. A dash: not for categories.
{% if more %}{{ more | count }} more columns, which are more alike, are in <code>quality.json</code>.{% endif %}</p>
{% endif %}
{% endif %}
"""


def write_quality_page(comparison: Values, page: Path) -> None:
    """Writes what ``quality.json`` of a hospital that judged at home holds as one page that loads nothing."""
    drawn = {"quality": pictures(quality_figures(comparison)), "transfer": pictures(transfer_figures(comparison))}
    title = f"Synthetic patients beside those of {comparison['hospital']}"
    write_page(
        page, title, render(_HEADER + QUALITY, {"title": title, "figures": drawn, **(quality(comparison) or {})})
    )


def pictures(figures: Mapping[str, Figure | str]) -> list[dict[str, str]]:
    """The figures, drawn or as SVG, as a page embeds them."""
    return [embed(figure, _alt(name)) for name, figure in figures.items()]


def _alt(name: str) -> str:
    """What stands for a figure, by its name or by the metric that it is of."""
    kind = name.split("-")[0]
    return ALT.get(kind) or f"{TITLES.get(name, name)} on held-out patients {BY_ROUND}"


def read_quality(run: Run) -> dict[str, Any]:
    """What ``quality.json`` holds, empty where there is none. Raises DataError for a damaged file."""
    path = run.quality_file
    if not path.is_file():
        return {}
    try:
        quality = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(quality, dict) or "undefined" not in quality:
            raise ValueError
    except (ValueError, OSError):
        raise DataError(f"{path} cannot be read; write it again with `polyclinic quality`.") from None
    return quality


def quality(comparison: Values) -> dict[str, Any] | None:
    """What the section shows; None where nothing was judged."""
    if not comparison:
        return None
    if comparison["undefined"]:
        return {"comparison": comparison}
    columns = _columns(comparison)
    return {
        "comparison": comparison,
        "rows": quality_rows(comparison),
        "columns": columns[:MOST_COLUMNS],
        "more": len(columns[MOST_COLUMNS:]),
        "transfer": _transfer(comparison["transfer"]),
        "label": comparison["label"],
    }


#: What is compared column by column, pair by pair and in the correlations: its words, the best value, and where it stands.
_OF_NUMBERS = (
    ("Numbers alike (Kolmogorov-Smirnov)", "1", ("means", "ks")),
    ("Numbers apart (Wasserstein, in standard deviations)", "0", ("means", "wasserstein_sd")),
    ("Numbers within the held-out range", "1", ("means", "boundary")),
)
_OF_CATEGORIES = (("Categories alike (total variation)", "1", ("means", "tv")),)
_OF_ALL = (
    ("Missing cells alike", "1", ("means", "missing")),
    ("Pairs of columns alike (total variation)", "1", ("pairs",)),
    ("Correlations alike (Spearman between the matrices)", "1", ("correlations", "spearman")),
    ("Correlations apart, the largest difference", "0", ("correlations", "largest")),
)
_OF_CODES = (
    ("shares of codes on the diagonal (R²)", "1", ("r2",)),
    ("shares of codes apart (RMSE)", "0", ("rmse",)),
    ("codes together apart, relative", "0", ("co_occurrence", "l1")),
    ("codes together beyond chance apart, relative", "0", ("co_occurrence", "excess_l1")),
    ("codes a patient has apart (Wasserstein)", "0", ("per_patient", "wasserstein")),
)


#: Of schemas with trajectories.
_OF_VISITS = (
    ("Courses apart: means by visit and class, in standard deviations", "0", "mean"),
    ("Courses apart: 10 % and 90 % quantiles, in standard deviations", "0", "band"),
    ("Autocorrelations apart, one to three visits later", "0", "autocorrelation"),
    ("Visits a patient has apart (Wasserstein)", "0", "visits"),
    ("Times between visits apart (Wasserstein, in standard deviations)", "0", "interval"),
    ("The next visit, predicted by what they teach (R²)", "as real", "next_visit"),
)


def quality_rows(comparison: Values) -> list[dict[str, Any]]:
    """By measure ``name``, ``best`` and of ``synthetic`` and ``training`` patients a text and its interval, as texts.

    What patients teach comes first: they may look like real ones column by column and tell nothing of the outcome.
    """
    tables = comparison["tables"]
    kinds = [set(column) for column in tables["synthetic"]["columns"].values()]
    numbers, categories = any("ks" in kind for kind in kinds), any("tv" in kind for kind in kinds)
    measures: list[tuple[str, str, tuple[str, ...]]] = [
        *(_OF_NUMBERS if numbers else ()), *(_OF_CATEGORIES if categories else ()), *_OF_ALL,
    ]  # fmt: skip
    for name in tables["synthetic"]["codes"]:
        measures += [(f"{name}: {words}", best, ("codes", name, *place)) for words, best, place in _OF_CODES]
    taught = comparison["transfer"] or {"real": {}, "synthetic": {}}
    rows: list[dict[str, Any]] = [
        {"name": f"What they teach {kind}, on held-out patients (AUROC)", "best": "as real",
         **{key: estimate(taught[table][kind]["scores"]["auroc"])
            for key, table in (("synthetic", "synthetic"), ("training", "real"))}}
        for kind in taught["synthetic"]
    ]  # fmt: skip
    rows += [
        {"name": words, "best": best,
         **{key: (_figure(reduce(getitem, place, tables[key])), "") for key in ("synthetic", "training")}}
        for words, best, place in measures
    ]  # fmt: skip
    if visits := comparison.get("visits"):
        rows += [
            {"name": words, "best": best,
             **{key: (_figure(visits["tables"][key][name]), "") for key in ("synthetic", "training")}}
            for words, best, name in _OF_VISITS
            if any(table[name] is not None for table in visits["tables"].values())
        ]  # fmt: skip
        carried = _figure(visits["carried_forward"])
        rows.append({"name": "The next visit, predicted as the value of the last (R²)", "best": "",
                     "synthetic": (carried, ""), "training": (carried, "")})  # fmt: skip
    if prediction := comparison["prediction"]:
        rows += [
            {"name": f"{name}: code told from the others, mean F1", "best": "as real",
             "synthetic": (_figure(f1["mean_synthetic"]), ""), "training": (_figure(f1["mean_real"]), "")}
            for name, f1 in prediction.items()
        ]  # fmt: skip
    for judge in (comparison["two_sample"] or {}).get("synthetic", ()):
        scores = {key: comparison["two_sample"][key][judge] for key in ("synthetic", "training")}
        cells = {key: (_figure(score["value"]), estimate(score)[1]) for key, score in scores.items()}
        rows.append({"name": f"Told from held-out patients by {judge} (AUROC)", "best": "0.5", **cells})
    return rows


def _columns(comparison: Values) -> list[dict[str, Any]]:
    """The columns, least alike first, undefined ones last."""
    synthetic, real = (comparison["tables"][key]["columns"] for key in ("synthetic", "training"))
    likeness = {name: finite(column.get("ks", column.get("tv"))) for name, column in synthetic.items()}
    order = sorted(synthetic, key=lambda name: 2.0 if likeness[name] is None else float(likeness[name] or 0.0))
    return [
        {"name": name, "cells": [
            _figure(likeness[name]), _figure(real[name].get("ks", real[name].get("tv"))),
            *(_figure(synthetic[name][key]) if key in synthetic[name] else "–"
              for key in ("wasserstein", "mean_synthetic", "mean_real")),
            _figure(synthetic[name].get("boundary", synthetic[name].get("category"))),
            _figure(synthetic[name]["missing"]),
        ]}
        for name in order
    ]  # fmt: skip


def _transfer(transfer: Values | None) -> Sequence[dict[str, Any]]:
    if not transfer:
        return ()
    return [
        {"name": name, "real": transfer["real"][name]["scores"], "synthetic": transferred["scores"],
         "less": transferred["minus_real"]["auroc"], "importance": transferred["importance"]}
        for name, transferred in transfer["synthetic"].items()
    ]  # fmt: skip


def _figure(value: object) -> str:
    """Three digits after the point; of small numbers two that count."""
    number = finite(value)
    if number is None:
        return "undefined"
    return f"{number:.3f}" if abs(number) >= 0.0995 or number == 0 else f"{number:.2g}"
