"""The sections of a run's report as jinja2 templates in strings: only .py files travel in a Flower bundle."""

from __future__ import annotations

BY_ROUND = "by round at the hospitals; the numbers are in rounds.csv."
#: What stands for a figure, by its name without its number.
ALT = {
    "rounds": f"The main metric (AUROC of classes) on held-out patients {BY_ROUND}",
    "posterior": "Each parameter's mean and 95 % interval; the numbers are in analysis.json.",
    "shapes": "Shape functions of the columns that matter most; `RunResult.shapes` has the numbers.",
    "loss": f"Loss on held-out patients {BY_ROUND}",
    "epsilon": f"Epsilon spent {BY_ROUND}",
    "sites": "The main metric (AUROC of classes) at each hospital with 95 % intervals; the numbers are in summary.json.",
    "roc": "ROC curve: sensitivity over one less specificity; the numbers are in summary.json.",
    "pr": "Precision over sensitivity; the numbers are in summary.json.",
    "calibration": "Calibration curve: share that came about by predicted probability; the numbers are in summary.json.",
    "decision": "Decision curve: net benefit by threshold; the numbers are in summary.json.",
    "columns": "Shares by value of the columns that are least alike; the numbers are in quality.json.",
    "correlations": "Correlations of held-out and of synthetic patients, and their difference; the numbers are in quality.json.",
    "trajectory": "Median and middle half over visits by arm, held-out and synthetic patients; the numbers are in quality.json.",
    "codes": "Share of patients with each code, synthetic against held-out; the numbers are in quality.json.",
    "transfer": "AUROC of classifiers by what trained them; the numbers are in quality.json.",
    "flow": "Rows and patients left after each step; the numbers are in summary.json.",
}

HEADER = """<header>
<h1>{{ title }}</h1>
<p class="muted">{{ subtitle }}</p>
</header>

{% if private %}
<div class="notice">
<p><strong>Differentially private: epsilon {{ known_epsilon }} at delta {{ privacy.delta | delta }},
per {{ unit }}{{ " trained on" if whose }}.</strong></p>
<p>{{ "This is the largest epsilon that any hospital spent." if privacy.overlap == 1 else
"This is what the " ~ privacy.overlap ~ " hospitals that spent most cost together, for one " ~ unit ~
" may be at so many; any one hospital's own is in the table." }}
{% if simulation %}Its noise was seeded, as in every simulation. {% endif %}
The part <em>Privacy</em> says what it covers and what it does not.</p>
{% if risk %}<p>{{ risk }}</p>{% endif %}
{% if private_metrics %}<p>{{ private_metrics.sentence }}</p>{% endif %}
{% if central %}<p>{{ central }}</p>{% endif %}
</div>
{% elif central %}
<div class="notice">
<p><strong>Differentially private for whole hospitals.</strong> {{ central }}</p>
<p>Hospitals added no noise of their own: the server saw exact functions of their patients' records.</p>
</div>
{% else %}
<div class="notice warn">
<p><strong>No privacy guarantee.</strong> {% if analysis %}These numbers are of exact sums, without differential privacy, and
may reveal records{% else %}This model was trained without differential privacy: no noise was added,
and the model may reveal its training records{% endif %}. Do not share {{ "them" if analysis else "it" }} as if
{{ "they were" if analysis else "it were" }} anonymous.</p>
</div>
{% endif %}
{% for warning in warnings %}
<div class="notice warn"><p><strong>Warning.</strong> {{ warning }}</p></div>
{% endfor %}

<p>{{ sentence }}</p>

<dl class="figures">
{% if scored %}
<div><dt>{{ titles[0] }}, pooled</dt><dd>{{ pooled[scores[0]] | metric }}</dd>
<small>{{ "of a classifier fitted to synthetic patients, " if synthesis }}{{ pooled_of }}
{%- if floor %}; a constant prediction: {{ floor[scores[0]] | metric }}{% endif %}</small></div>
<div><dt>{{ titles[1] }}, pooled</dt><dd>{{ pooled[scores[1]] | metric }}</dd>
<small>of {{ objective.label or "the label" }}
{%- if floor %}; a constant prediction: {{ floor[scores[1]] | metric }}{% endif %}</small></div>
{% endif %}
<div><dt>Epsilon, {{ "largest" if privacy.overlap == 1 else "composed" }}</dt>
<dd>{{ known_epsilon if private else "none" }}</dd>
<small>{{ "delta " ~ (privacy.delta | delta) ~ ", per " ~ unit ~ (" trained on" if whose else "") if private else
"for whole hospitals only" if central else "no privacy guarantee" }}</small></div>
<div><dt>Hospitals</dt><dd>{{ sites | count }}</dd>
<small>{% if scored %}{{ patients_sentence }}, {% endif %}
{{ rounds | count }} {{ "round" if rounds == 1 else "rounds" }}</small></div>
</dl>
"""

HOSPITALS = """{% macro scores_of(rows) %}
{% for row in rows %}{{ metric(row[scores[0]], true) }}{{ metric(row[scores[1]]) }}{% endfor %}
{% endmacro %}
<h2>Hospitals</h2>
<div class="scroll" role="region" tabindex="0" aria-label="Table">
<table class="sortable">
<thead>
{% if comparisons %}
<tr class="groups"><th colspan="2"></th><th colspan="2" class="first">This run</th>
{%- for comparison in comparisons %}<th colspan="2" class="first">{{ comparison.title }}</th>{% endfor -%}
<th colspan="4" class="first"></th></tr>
{% endif %}
<tr><th>Hospital</th>{% if scored %}
<th class="num">Patients</th><th class="num first">{{ titles[0] }}</th><th class="num">{{ titles[1] }}</th>{% endif %}
{%- for _ in comparisons %}<th class="num first">{{ titles[0] }}</th><th class="num">{{ titles[1] }}</th>{% endfor -%}
<th class="num first">Epsilon spent</th><th class="num">Attack TPR at 1 % FPR</th><th class="num">Advantage</th>
<th class="num">Rounds joined</th></tr>
</thead>
<tbody>
{% for hospital in hospitals %}
<tr><th scope="row">{{ hospital.name }}</th>{% if scored %}{{ cell(hospital.patients | count) }}
{% if hospital.estimates %}{{ estimated(hospital.estimates[scores[0]], true) }}
{{ estimated(hospital.estimates[scores[1]]) }}{% else %}{{ scores_of(hospital.scores[:1]) }}{% endif %}{% endif %}
{{ scores_of(hospital.scores[1:]) }}
{{ cell(hospital.spent, true) }}{{ cells([hospital.risk.tpr_at_1_percent_fpr | share, hospital.risk.advantage | share,
(hospital.rounds_joined | count) ~ " of " ~ (rounds | count)]) }}</tr>
{% endfor %}
</tbody>
{% if scored %}
<tbody class="totals">
{% for row in totals %}
<tr{% if loop.first %} class="pooled"{% endif %}><th scope="row">{{ row.name }}</th>{{ cell(row.patients) }}
{{ scores_of(row.scores) }}<td class="first"></td><td colspan="3"></td></tr>
{% endfor %}
</tbody>
{% endif %}
</table>
</div>
{% if spread %}
<p>Of {{ sites | count }} hospitals the table shows the {{ few }} with the lowest and the {{ few }} with the highest
{{ in_line }}; <code>summary.json</code> has all.
{{ titles[0] }} is at most {{ spread[0] | metric }} at one hospital in ten, at most
{{ spread[1] | metric }} at one in four, at most {{ spread[2] | metric }} at half, at least {{ spread[3] | metric }} at
one in four, and at least {{ spread[4] | metric }} at one in ten.</p>
{% elif hospitals | length < sites %}
<p>The table shows {{ hospitals | length }} of {{ sites | count }} hospitals; <code>summary.json</code> has all.</p>
{% endif %}
{% if scored %}
<p class="small muted">{% if judged %}All measured on held-out patients, who took no part in training.{% endif %}
{% if has_withheld %}<strong>Not released</strong>: the hospital's policy does not let it leave; exact pooled figures need
predictions, which a policy allows apart.{% endif %}
{% if has_undefined %}<strong>Undefined</strong>: the held-out patients hold one class only, or the model gave no
usable probabilities, so the metric has no value; it is left out of the mean over hospitals.{% endif %}
{% if has_missing %} <strong>–</strong>: not measured in this run.{% endif %}
{% if floor %} <strong>Constant prediction</strong>: the best that is the same for every patient.{% endif %}
{% for comparison in comparisons %} <strong>{{ comparison.title }}</strong>: {{ comparison.meaning }}{% endfor %}</p>
{% endif %}
{% if private_metrics %}
<h3>Private metrics</h3>
{% call table(["Hospital"], private_metrics.titles) %}
{% for row in private_metrics.rows %}<tr><th scope="row">{{ row.name }}</th>{{ cells(row.cells) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">{{ private_metrics.sentence }} Each figure is of noised counts or sums, with the standard error of that
noise; how few patients were held out adds to it. <strong>Undefined</strong>: the noise drowns the counts.</p>
{% endif %}
{% if strategy_metrics %}
<h3>What the strategy measured</h3>
{% call table(["Metric", "Of"], ["Round " ~ (strategy_metrics.round | count)], kind="") %}
{% for phase, name, value in strategy_metrics.rows %}<tr><th scope="row">{{ name }}</th>
<td>{{ "training" if phase == "train" else "evaluation" }}</td>{{ cell(value | figure) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">As the strategy returned it; <code>summary.json</code> has every round.</p>
{% endif %}
"""

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
{% if "calibration_error" in metrics %}<strong>Calibration error</strong> stands beside what a perfectly calibrated model stays
below in 95 of 100 such samples. {% endif %}{% if "calibration_in_the_large" in metrics %}<strong>Calibration in the
large</strong>: {% if predicts_numbers %}mean prediction less the mean that came about; above 0, the
label is overstated.{% else %}mean probability less the share that came about; above 0, risk is overstated.{% endif %} {% endif %}
{% if "calibration_slope" in metrics %}<strong>Calibration slope</strong>: 1 is true; below 1, high predictions are too high and
low ones too low. {% endif %}
<strong>Gap</strong>: largest less smallest; the two were picked because they differ most, so that it is above 0 by chance
alone.</p>
<h3>By hospital</h3>
{% call table(["Hospital"], names, "Metrics by hospital") %}
{% for name, row in hospitals.items() %}<tr><th scope="row">{{ name }}</th>
{% for key in of_groups %}{{ estimated(row[key]) }}{% endfor %}</tr>
{% endfor %}{% endcall %}
{% if hospitals | length < judged_at %}<p class="small muted">The first {{ hospitals | length }}; <code>summary.json</code> has
all.</p>{% endif %}
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

SHAPES = """{% if importances %}
<h2>Shape functions</h2>
<p>The model adds up one function for each column; each is 0 on average over patients.</p>
{{ pictures(figures.shapes) }}
{% call table(["Column"], ["Importance"], kind="facts") %}
{% for name, value in importances.items() %}<tr><th scope="row">{{ name }}</th>{{ metric(value) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Importance: the standard deviation, among training patients, of what a column adds to the output.
<code>polyclinic predict --contributions</code> writes what each column adds for each patient.</p>
{% endif %}
"""

ANALYSIS = """{% if analysis %}
<h2>Result</h2>
{% if analysis.refused %}
<div class="notice warn"><p><strong>There is no result.</strong> {{ analysis.refused }}</p></div>
{% else %}
{% for shown in analysis.tables %}
<h3>{{ shown.title }}</h3>
{% call table(shown["columns"][:1], shown["columns"][1:]) %}
{% for row in shown.shown %}<tr><th scope="row">{{ row[0] }}</th>{{ cells(row[1:]) }}</tr>
{% endfor %}{% endcall %}
{% if shown.note %}<p class="small muted">{{ shown.note }}</p>{% endif %}
{% if loop.first %}{{ pictures(figures.analysis) }}{% endif %}
{% endfor %}
{% for note in analysis.notes %}<p class="small muted">{{ note }}</p>{% endfor %}
<p class="small muted">The tables are in <code>tables/</code> as CSV, LaTeX and HTML, all numbers in
<code>analysis.json</code>.</p>
{% endif %}
{% endif %}
"""

SYNTHESIS = """{% if synthesis %}
<h2>Synthetic patients</h2>
<p>This run's result draws synthetic patients by the method <code>{{ synthesis.method }}</code>.
{% if synthesis.finished %}<code>polyclinic synthesize</code> writes as many as are wanted, with a certificate; drawing them costs
no further privacy.{% else %}It stopped before anything could be drawn.{% endif %}</p>
{% if synthesis.measured_together %}
<p>Of several sets (<code>--sets 20</code>) each is of a model drawn anew, so that intervals by rule <code>full</code> count
sampling and the noise of privacy. They hold for analyses of columns that were measured together, of which there are
{{ synthesis.measured_together | length }} pairs. How other columns depend on each other the model makes up.</p>
<details><summary>Pairs that were measured together</summary>
<p>{% for pair in synthesis.measured_together %}
{{ pair[0] }} and {{ pair[1] }}{% if not loop.last %}; {% endif %}{% endfor %}.</p>
</details>
{% endif %}
{% if synthesis.guarantee %}<div class="notice warn"><p><strong>What this method guarantees.</strong>
{{ synthesis.guarantee }}</p></div>{% endif %}
{% if judged %}
<p>AUROC and accuracy on this page are of a logistic regression that was fitted to synthetic patients and judged on held-out real
ones (train on synthetic, test on real).</p>
{% endif %}
{% if synthesis.rows | length > 1 %}
{% call table(["Method"], ["AUROC", "Accuracy"], kind="facts") %}
{% for row in synthesis.rows %}<tr><th scope="row">{{ row.name }}</th>
{% if row.error %}<td colspan="2">{{ row.error }}</td>{% else %}{{ metric(row.auroc) }}{{ metric(row.accuracy) }}{% endif %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">The methods below the first are simple ones at the same epsilon, computed for this simulation alone: extra
releases of the same patients, which this run's epsilon does not cover.</p>
{% endif %}
{% endif %}
"""

PATIENTS = """{% if figures.patients %}
<h2>Patients</h2>
<p>How the dataset's records were chosen from those that were published.</p>
{{ pictures(figures.patients) }}
{% endif %}
"""

TRAINING = """{% if figures.training or not analysis %}
<h2>Course of the {{ "rounds" if analysis else "training" }}</h2>
{{ pictures(figures.training) }}
{% endif %}
"""

DROPOUTS = """<h2>Dropouts</h2>
{% if dropouts %}
<p>Where a reply was missing, the round went on without that hospital.</p>
{% call table(["Hospital", "Rounds missed", "Reason"], kind="facts sortable") %}
{% for one in dropouts %}<tr><td>{{ one.site }}</td><td>{{ one.rounds }}</td><td>{{ one.reason }}</td></tr>
{% endfor %}{% endcall %}
{% if more_dropouts %}<p>And {{ more_dropouts | count }} more in <code>summary.json</code>.</p>{% endif %}
{% else %}
<p>None: every hospital that was asked answered in every round.</p>
{% endif %}
"""

PRIVACY = """<h2>Privacy</h2>
{% if private %}
<table class="facts"><tbody>
<tr><th scope="row">Epsilon</th><td>{{ known_epsilon }} ({{ composition }})</td></tr>
<tr><th scope="row">Delta</th><td>{{ privacy.delta | delta }}</td></tr>
<tr><th scope="row">Unit</th><td>{{ unit }}</td></tr>
<tr><th scope="row">Neighbouring relation</th>
<td>{{ privacy.relation or "not recorded" }}: {{ relation_meaning }}</td></tr>
<tr><th scope="row">Accountant</th><td>{{ privacy.accountant or "not recorded" }}</td></tr>
{% if risk %}<tr><th scope="row">Attack true-positive rate at 1 % false-positive rate</th>
<td>{{ privacy.risk.tpr_at_1_percent_fpr | share }}</td></tr>
<tr><th scope="row">Advantage</th><td>{{ privacy.risk.advantage | share }}</td></tr>{% endif %}
</tbody></table>
{% elif not central %}
<p><strong>There is no privacy guarantee.</strong> The run was made without differential privacy; epsilon is
unbounded. Updates and the model are exact functions of the records they were trained on.</p>
{% endif %}
{% if central %}<p>{{ central }}</p>{% endif %}
{% if ledgers %}
<h3>Ledgers of the hospitals</h3>
<p>Each hospital charges its own ledger before it reads a record and refuses what would pass its budget. A ledger
outlives a run, so its epsilon holds what earlier runs spent too.</p>
{% call table(["Hospital"], ["Epsilon", "Budget", "Delta", "Attack TPR at 1 % FPR", "Advantage", "Charges", "Chain of entries"],
kind="facts sortable") %}
{% for one in ledgers %}<tr><td>{{ one.name }}</td>
{{ cells([one.epsilon | epsilon, one.budget | budget, one.delta | delta, one.risk.tpr_at_1_percent_fpr | share,
one.risk.advantage | share, one.charges | count, one.intact]) }}</tr>
{% endfor %}{% endcall %}
{% if more_ledgers %}<p>Those that do not verify come first, then those that spent most; {{ more_ledgers | count }} more are
in <code>ledger.json</code>.</p>{% endif %}
{% endif %}
{% if private %}
<h3>What epsilon covers</h3>
<ul>{% for item in covers %}<li>{{ item }}</li>{% endfor %}</ul>
{% endif %}
<h3>{{ "What it does not cover" if private else "What this report itself shows" }}</h3>
<ul>{% for item in does_not_cover %}<li>{{ item }}</li>{% endfor %}</ul>
"""

NOTES = """{% if notes %}
<h2>Notes of the run</h2>
<ul>{% for note in notes[:cautions] %}<li><strong>{{ note }}</strong></li>{% endfor %}
{% for note in notes[cautions:] %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
"""

CARD = """<h2>Model card</h2>
<details><summary>Purpose, data, privacy, metrics and limits, also in <code>model_card.md</code> (Mitchell et al. 2019)</summary>
{% for title, blocks in card %}
<h3>{{ title }}</h3>
{% for block in blocks %}
{% if block is string %}<p>{{ block }}</p>
{% elif block is mapping %}
{% call table(block.headings, kind="") %}
{% for row in block.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}{% endcall %}
{% else %}<ul>{% for item in block %}<li>{{ item }}</li>{% endfor %}</ul>
{% endif %}
{% endfor %}
{% endfor %}
</details>
"""

REPEAT = """<h2>How to repeat it</h2>
<table class="facts"><tbody>
{% for name, key in (("Run folder", "run"), ("Seed", "seed"), ("Engine", "engine"), ("Model, SHA-256", "model_sha256")) %}
{% if summary.get(key) is not none %}<tr><th scope="row">{{ name }}</th><td><code>{{ summary[key] }}</code></td></tr>
{% endif %}{% endfor %}
</tbody></table>
<h3>Configuration</h3>
<pre>{{ config }}</pre>
<h3>Versions</h3>
<pre>{{ versions }}</pre>
<p class="small muted">Numbers of every round: <code>rounds.csv</code> beside this page.</p>
"""

COST = """<h2>Cost</h2>
<table class="facts"><tbody>
{% for name, value in cost %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
<p class="small muted">Bytes are of the arrays in the messages of training, as hospitals were sent them and sent them
back; seconds of the rounds on the machine that ran them, without what came before the first.</p>
"""
