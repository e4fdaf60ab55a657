"""The section that says how good a result is: estimates with intervals, hospitals, groups, and the curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.evaluation.figures.utility import plot_calibration, plot_decision, plot_hospitals
from polyclinic.evaluation.formats import Summary, part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "accuracy": "Accuracy",
    "f1": "F1",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "sensitivity_at_90": "Sensitivity at 90 % specificity",
    "loss": "Loss",
    "brier": "Brier score",
    "calibration_error": "Calibration error",
    "calibration_in_the_large": "Calibration in the large",
}
OF_GROUPS = ("auroc", "sensitivity", "specificity", "calibration_in_the_large")

UTILITY = """
<h2>How good it is</h2>
{% if evaluation.undefined %}
<p>There are no intervals, curves or groups: {{ evaluation.undefined }}.</p>
{% else %}
{% set judged_at = evaluation.sites | length %}
<p>On held-out patients of {{ judged_at }} {{ "hospital" if judged_at == 1 else "hospitals" }}, with 95 % intervals of
{{ evaluation.resamples | count }} bootstrap resamples of the patients: how much another sample of such patients would change the
figures of this very model.</p>
{% call table(["Metric"], ["Pooled", "Mean over hospitals", "Worst hospital", "Gap of hospitals"], "Metrics") %}
{% for key, name in metrics.items() %}{% set worst = evaluation.worst[key] %}{% set gap = evaluation.gap[key] %}
<tr><th scope="row">{{ name }}</th>{{ estimated(evaluation.pooled[key]) }}{{ estimated(evaluation.macro[key]) }}
{% call estimated(worst) %}{% if worst %}<small>{{ worst.name }}</small>{% endif %}{% endcall %}
{% call estimated(gap) %}{% if gap %}<small>{{ gap.highest }}, {{ gap.lowest }}</small>{% endif %}{% endcall %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">A value without an interval rests on too few patients for one, or on none that differ.
<strong>Calibration error</strong> stands beside what a perfectly calibrated model stays below in 95 of 100 such samples.
<strong>Calibration in the large</strong>: mean probability less the share that came about; above 0, risk is overstated.
<strong>Gap</strong>: largest less smallest; the two were picked because they differ most, so that it is above 0 by chance
alone.</p>
{% if groups %}
<h3>Groups by {{ groups.column }}</h3>
{% if groups.undefined %}
<p>Undefined: {{ groups.undefined }}.</p>
{% else %}
{% call table([groups.column], ["Held-out patients, about"] + names, "Groups of patients") %}
{% for name, one in groups.groups.items() %}<tr><th scope="row">{{ name }}</th>
{% if one.metrics %}{{ cell(one.about | count) }}{% for key in of_groups %}{{ estimated(one.metrics[key]) }}{% endfor %}
{% else %}{{ cell("below 10") }}{{ cells(["undefined"] * (of_groups | length)) }}{% endif %}</tr>
{% endfor %}</tbody>
<tbody class="totals"><tr><th scope="row">Gap</th><td></td>
{% for key in of_groups %}{{ estimated(groups.gap[key]) }}{% endfor %}</tr>
{% endcall %}
<p class="small muted">Of all hospitals together; hospitals differ in whom they treat, so that a gap between groups may be one
between hospitals. Of fewer than 10 patients nothing is told.</p>
{% endif %}
{% endif %}
{{ pictures(figures.utility) }}
{% endif %}
"""


def utility(summary: Summary) -> dict[str, Any] | None:
    """What the section shows; None for a run that has no evaluation (a posterior, or one of before there was any)."""
    evaluation = part(summary, "evaluation")
    if not evaluation:
        return None
    return {
        "evaluation": evaluation,
        "groups": evaluation.get("groups"),
        "metrics": NAMES,
        "of_groups": OF_GROUPS,
        "names": [NAMES[key] for key in OF_GROUPS],
    }


def utility_figures(summary: Summary) -> dict[str, Figure]:
    """By name ``hospitals``, ``calibration`` and ``decision``, as far as the evaluation has them."""
    evaluation = part(summary, "evaluation")
    if not evaluation or evaluation.get("undefined"):
        return {}
    sites: Mapping[str, Any] = evaluation["sites"]
    pooled = evaluation["pooled"]["auroc"]["value"]
    found = {
        "hospitals": plot_hospitals({name: one["auroc"] for name, one in sites.items()}, pooled, "AUROC"),
        "calibration": plot_calibration(evaluation["calibration"]),
        "decision": plot_decision(evaluation["decision"]) if evaluation["decision"] else None,
    }
    return {name: figure for name, figure in found.items() if figure is not None}
