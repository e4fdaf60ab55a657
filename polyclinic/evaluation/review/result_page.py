"""``review.html``: the verdict in words, a table, and how often each score was given to real and to synthetic patients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.figures.canvas import PALETTE, label_axes, legend, panels
from polyclinic.evaluation.page import embedded, frame, render
from polyclinic.evaluation.review.form import MOST_SCORE
from polyclinic.files import write_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IN_A_ROW = 4

_RESULT = """<header>
<h1>Could clinicians tell synthetic patients from real ones?</h1>
<p class="muted">Blinded review of {{ patients }} patients, {{ real }} real and {{ synthetic }} synthetic; packet
{{ packet[:8] }}</p>
</header>
<div class="notice">{% for sentence in verdict %}<p>{{ sentence }}</p>{% endfor %}</div>
<h2>Scores from 0, certainly not real, to 10, certainly real</h2>
{% call table(["Reviewer"], ["Real: mean (sd)", "Synthetic: mean (sd)", "Difference", "Real above synthetic", "Mann-Whitney p"],
"Scores", kind="") %}
{% for kind, rows in (("", reviewers), ("totals", [{"reviewer": "Pooled", "scores": pooled.scores}])) %}
{% if kind %}</tbody><tbody class="{{ kind }}">{% endif %}{% for one in rows %}
<tr><th scope="row">{{ one.reviewer }}</th>
{% for side in (one.scores.real, one.scores.synthetic) %}{% call cell((side.mean | metric) ~ " (" ~ (side.sd | metric) ~ ")") %}
<small>{{ side.patients }} patients</small>{% endcall %}{% endfor %}
{{ estimated(one.scores.difference) }}{{ estimated(one.scores.auc) }}{{ metric(one.scores.p) }}</tr>{% endfor %}
{% endfor %}{% endcall %}
<p class="small muted">Difference: of means, real less synthetic, with Welch's 95 % interval. Real above synthetic: the chance
that a real patient has the higher score, ties half (0.5: none), with a 95 % bootstrap interval over patients. Pooled: each
patient's mean over reviewers.</p>
{{ pictures(figures) }}
<h2>Guesses</h2>
{% call table(["Reviewer"], ["Right", "p against one half", "Synthetic called synthetic", "Real called real"],
"Guesses", kind="") %}
{% for kind, rows in (("", reviewers), ("totals", [{"reviewer": "Pooled", "guesses": pooled.guesses}])) %}
{% if kind %}</tbody><tbody class="{{ kind }}">{% endif %}{% for one in rows %}
<tr><th scope="row">{{ one.reviewer }}</th>{{ estimated(one.guesses.accuracy) }}
{% if kind and one.guesses.p is none %}{{ cell("–") }}{% else %}{{ metric(one.guesses.p) }}{% endif %}
{{ estimated(one.guesses.sensitivity) }}{{ estimated(one.guesses.specificity) }}</tr>{% endfor %}
{% endfor %}{% endcall %}
<p class="small muted">With 95 % intervals: Wilson's for a reviewer, a bootstrap over patients for all of several.</p>
{% if agreement.pairs %}
<h2>Agreement between reviewers</h2>
<p>Of scores: ICC(2,1) {{ agreement.icc | metric }}. Of guesses, Cohen's kappa:
{% for pair in agreement.pairs %}{{ pair.reviewers | join(" and ") }} {{ pair.kappa | metric }}{{ ", " if not loop.last }}
{%- endfor %}. 0 is what chance gives, 1 full agreement.</p>
{% endif %}
<h2>How to read this</h2>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
"""


def write_results(found: Mapping[str, Any], folder: Path) -> None:
    """Writes ``review.json`` and ``review.html`` of what ``analyse`` found, both or neither, in place of earlier ones.

    Raises ConfigError where the folder cannot be written to.
    """
    figure = embedded(plot_scores(found["reviewers"]), "How often each score was given; numbers are in review.json.")
    body = render(_RESULT, {**found, "figures": [figure]})
    write_outputs(
        {
            folder / "review.json": json.dumps(found, indent=2, allow_nan=False),
            folder / "review.html": frame("Blinded review: scores", body),
        },
        force=True,
    )


def plot_scores(reviewers: list[dict[str, Any]]) -> Figure:
    """Share of real and of synthetic patients by score, a panel a reviewer; of more than four, the first four."""
    shown = reviewers[:_IN_A_ROW]
    more = f" The first {len(shown)} of {len(reviewers)} reviewers." if len(reviewers) > len(shown) else ""
    figure, row = panels(
        "Scores of real and synthetic patients",
        f"Share of patients (%) by score; plain: real, hatched: synthetic.{more}",
        [one["reviewer"] for one in shown], 1.0 + 2.4 * len(shown), 3.2,
    )  # fmt: skip
    top = 0.0
    for axes, one in zip(row, shown, strict=True):
        for place, (name, colour) in enumerate((("real", PALETTE[0]), ("synthetic", PALETTE[1]))):
            counts = np.array(one["distribution"][name], dtype=np.float64)
            share = 100 * counts / max(counts.sum(), 1.0)
            axes.bar(
                np.arange(MOST_SCORE + 1) + 0.4 * place - 0.2, share, 0.4, color=colour if not place else "white",
                edgecolor=colour, hatch="////" if place else None, linewidth=0.8, label=name,
            )  # fmt: skip
            top = max(top, float(share.max()))
        axes.set_xticks(range(0, MOST_SCORE + 1, 2))
        label_axes(axes, "score")
    row[0].set_ylim(0, 1.06 * top or 1.0)
    legend(row[-1])
    return figure
