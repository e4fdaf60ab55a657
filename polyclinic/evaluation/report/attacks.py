"""What the report says of attacks: a section of its own and its figures, from ``attacks.json`` in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import DASHES, MUTED, PALETTE, SMALL, label_axes, legend, panels
from polyclinic.evaluation.figures.utility import plot_intervals
from polyclinic.evaluation.page import embed, render
from polyclinic.runs.folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Any]
_LEAST_ERROR = 1e-4

TEMPLATE = """<h2>What attacks found</h2>
<p>{{ attacks.members | count }} patients took part in training, {{ attacks.non_members | count }} did not and are the
baseline: what
is right of them too, the population tells and no record. An attack that finds nothing proves nothing.
{% if attacks.claimed.epsilon is none %}This run claims no epsilon: nothing bounds what a better attack would find.{% else %}
The bound on all attacks is epsilon, {{ attacks.claimed.epsilon | figure }}{% if attacks.allowed %}: whoever guesses
who took part has an advantage of at most {{ attacks.allowed.advantage | figure }}{% endif %}.{% endif %}</p>

{% if attacks.audit or attacks.membership %}
<h3>Lower bounds on epsilon</h3>
{% call table(["By"], ["Epsilon is at least", "At delta", "Right guesses"], kind="facts") %}
{% if attacks.audit %}{% set one = attacks.audit %}<tr><th scope="row">the audit's canaries</th>
{{ cells([one.epsilon_lower | figure, one.delta, one.correct ~ " of " ~ one.guesses]) }}</tr>{% endif %}
{% for one in attacks.membership %}<tr><th scope="row">{{ one.attack }}</th>{% if one.bound %}
{{ cells([one.bound.epsilon_lower | figure, one.bound.delta, one.bound.correct ~ " of " ~ one.bound.guesses]) }}
{% else %}{{ cells(["undefined", "", "who takes part was published with the dataset"]) }}{% endif %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">With 95 % confidence each. Claimed: {% if attacks.claimed.epsilon is none %}nothing{% else %}
{{ attacks.claimed.epsilon | figure }} at delta {{ attacks.claimed.delta }}{% endif %}. A bound above the claim would
show a mistake;
one below it shows none.</p>
{% endif %}
{% if attacks.membership %}
<h3>Who took part?</h3>
{% call table(["Attack"], ["AUC", "Advantage", "TPR at 1 % FPR", "TPR at 0.1 % FPR"], kind="facts") %}
{% for one in attacks.membership %}<tr><th scope="row">{{ one.attack }}</th>
{{ cells([one.auc | span, one.advantage | span, one.tpr_at_1_percent_fpr | span, one.tpr_at_01_percent_fpr | span]) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">AUC: 0.5 tells nothing, 1 all. TPR, FPR: true- and false-positive rate of the attack. Undefined: too few
others to show so small a rate.</p>
{% endif %}
{% if gains %}
{{ pictures([gains]) }}
{% endif %}
{% if attacks.closest %}
<h3>Closest records</h3>
{% set near = attacks.closest %}
<p>Of {{ near.rows | count }} synthetic rows the share that is nearer to a patient who took part than to one who did not is
{{ near.nearer_to_members | span }}; 0.5 where neither is. The closest record is {{ near.median_members | figure }} columns away
(median) among those who took part and {{ near.median_non_members | figure }} among others; equal to a record are
{{ near.copies_members | percent }} and {{ near.copies_non_members | percent }}.</p>
{% endif %}
{% if attacks.identification %}
<h3>Singling out, linking, inferring</h3>
{% call table(["By the synthetic table"], ["Of who took part", "Of others", "Naive guess", "Risk"], kind="facts") %}
{% for one in attacks.identification %}<tr><th scope="row">{{ one.name }}{{ ": " ~ one.column if one.column }}</th>
{{ cells([one.attack | span, one.control | span, one.naive | span, (one.risk | span) ~ (" (weak)" if one.weak else "")]) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Weak: no better than the naive guess, which tells nothing of the risk.</p>
{% endif %}
{% if attacks.attributes %}
<h3>Secret columns</h3>
{% call table(["Column"], ["Of who took part", "Of others", "Without the model", "Difference"], kind="facts") %}
{% for one in attacks.attributes %}<tr><th scope="row">{{ one.column }}</th>
{{ cells([one.members | span, one.non_members | span, one.without_model | span, one.excess | span]) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Shares of right guesses of a column by all others, the label and the model.</p>
{% endif %}
{% if gradients %}
<h3>Records out of gradients</h3>
<p>What one step tells whoever sees it, such as the server, at the model that the run began with; privacy is gradients clipped to
{{ attacks.gradients.clip_norm | figure }} and noise of {{ attacks.gradients.noise_multiplier | figure }} times that.
{% for one in attacks.gradients.trials if one.batch == 1 %}{{ "With" if one.private else "Without" }} privacy
{{ one.recovered | percent }} of the records of single patients are reconstructed
{%- if one.labels is not none %}, and {{ one.labels | percent }} of their labels read off{% endif %}.
{% endfor %}</p>
{{ pictures([gradients]) }}
{% endif %}
{% if attacks.left_out %}<p class="small muted">Left out:
{% for one in attacks.left_out %}{{ one.attack }} ({{ one.why }}){{ "; " if not loop.last }}{% endfor %}.</p>{% endif %}
"""


def attack_section(run: Run) -> str:
    """The section as escaped HTML; empty where the run was not attacked. Raises DataError for a damaged file."""
    path = run.attacks_file
    if not path.is_file():
        return ""
    try:
        attacks = json.loads(path.read_text(encoding="utf-8"))
        figures = {}
        if gains(attacks):
            alt = "What each attack gains over its baseline; the numbers are in attacks.json."
            figures["gains"] = embed(plot_gains(attacks), alt)
        if attacks["gradients"]:
            alt = "Errors of records made of gradients; the numbers are in attacks.json."
            figures["gradients"] = embed(plot_gradients(attacks["gradients"]["trials"]), alt)
        return render(TEMPLATE, {"attacks": attacks, **figures})
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}; attack the run again.") from None


def gains(attacks: Values) -> dict[str, Values]:
    """What each attack gains over its baseline, by name, as intervals: 0 is nothing, 1 all. Undefined ones are left out."""
    rows = {f"who took part: {row['attack']}": row["advantage"] for row in attacks["membership"]}
    rows |= {f"secret column: {row['column']}": row["excess"] for row in attacks["attributes"]}
    for row in attacks["identification"]:
        rows[f"{row['name']}: {row['column']}" if row["column"] else row["name"]] = row["risk"]
    return {name: value for name, value in rows.items() if value["value"] is not None}


def plot_gains(attacks: Values) -> Figure:
    """One row an attack, its gain with the 95 % interval; dashed the most that epsilon allows a guess of membership."""
    caption = "Over patients who did not take part: 0 learns nothing, 1 all. With 95 % intervals."
    figure = plot_intervals(gains(attacks), "What attacks gain", caption, 0.0)
    allowed = (attacks.get("allowed") or {}).get("advantage")
    if allowed is not None:
        (axes,), who = figure.axes, len(attacks["membership"])
        axes.plot([allowed, allowed], [-0.5, who - 0.5], color=PALETTE[3], linewidth=1.4, linestyle="--")
        axes.annotate(
            f"epsilon allows {allowed:.2f}", (allowed, -0.5), xytext=(0, 3), textcoords="offset points",
            ha="right", fontsize=SMALL, color=PALETTE[3], annotation_clip=False,
        )  # fmt: skip
    return figure


def plot_gradients(trials: Sequence[Values]) -> Figure:
    """A dot a record, by how many patients were in the step: its reconstruction's error over that of the best constant guess.

    Errors of 1e-4 and less are drawn there: the record itself.
    """
    caption = "Error over that of the best constant guess (dashed), by how many patients were in the step."
    figure, (axes,) = panels("Records made of one step's gradient", caption)
    batches = sorted({trial["batch"] for trial in trials})
    for trial in trials:
        errors = np.sort(np.maximum(trial["error"], _LEAST_ERROR))
        aside = np.linspace(-0.13, 0.13, len(errors)) if len(errors) > 1 else np.zeros(1)
        private = trial["private"]
        axes.plot(
            batches.index(trial["batch"]) + (0.2 if private else -0.2) + aside, errors, "s" if private else "o", markersize=4,
            alpha=0.8, color=PALETTE[0 if private else 1],
            label=f"{'with' if private else 'without'} privacy" if trial["batch"] == batches[0] else None,
        )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.1, linestyle=DASHES)
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_ERROR / 2, None)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.minorticks_off()
    label_axes(axes, "patients in the step", "error over a constant guess's")
    legend(axes)
    return figure
