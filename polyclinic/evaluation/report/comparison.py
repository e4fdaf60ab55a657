"""The page of several runs beside each other: what each spent and reached, how they went, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.config.keys import flat_keys
from polyclinic.ehr.split import Split, held_out_per_training
from polyclinic.errors import ConfigError
from polyclinic.evaluation.figures.rounds import (
    POOLED,
    Course,
    Point,
    course_of,
    plot_lines,
    plot_privacy_utility,
    read_series,
)
from polyclinic.evaluation.formats import finite, part, size
from polyclinic.evaluation.intervals import summarize_repetitions
from polyclinic.evaluation.judges import compared_metrics, headline, in_line, titles
from polyclinic.evaluation.page import embed, render, write_page
from polyclinic.evaluation.privacy_text import NOT_RELEASED
from polyclinic.evaluation.report.run import Results, read_results
from polyclinic.runs.folder import Run
from polyclinic.toml import read_toml

MOST_COURSES = 16
# No part of what kind of run it is: where it went on, and which repetition of others it is.
_WHERE = {"out", "seed", "timeout", "workers", "ray-address", "split.seed", "split.fold"}
_UTILITY = {"privacy.epsilon", "privacy.dp", "privacy.delta"}

_PAGE = """
<header>
<h1>{{ title }}</h1>
<p class="muted">{{ datasets | join(", ") }}</p>
</header>
{% for warning in warnings %}<div class="notice warn"><p><strong>Warning.</strong> {{ warning }}</p></div>
{% endfor %}
<h2>Runs</h2>
{% call table(["Run"] + differing, ["Epsilon", "Delta"] + names + ["Worst hospital's " ~ names[0], "Rounds", "Seconds",
"Sent by hospitals"], "Runs", firsts=(1, 3, 4 + names | length)) %}
{% for run in runs %}
<tr><th scope="row">{{ run.name }}</th>{% for value in run.differing %}<td>{{ value }}</td>{% endfor %}
{{ cell(run.epsilon | epsilon, true) }}{{ cell(run.delta | delta) }}
{% for one in run.metrics %}{{ estimated(one, loop.first) }}{% endfor %}{{ estimated(run.worst) }}
{{ cell(run.rounds | count, true) }}{{ cells([run.seconds, run.sent]) }}</tr>
{% endfor %}{% endcall %}
<p class="small muted">{{ names | join(", ") }}: pooled over the held-out patients of hospitals whose policies let predictions
leave, with 95 % intervals; each run's own report has the rest. Intervals of runs over the same patients are not
independent: that two overlap does not say that the runs are alike. Epsilon is a patient's in each run alone; whoever looks at
several runs on the same patients learns more than any one of them tells.</p>
{% if repeated %}
<h2>Over seeds and splits</h2>
{% call table(["Runs of"], ["Runs"] + with_sd, "Over seeds and splits", firsts=range(2, 2 + with_sd | length, 2)) %}
{% for row in repeated %}
<tr><th scope="row">{{ row.name }}</th>{{ cell(row.runs | count) }}
{% for one in row.metrics %}{{ estimated(one, true) }}{{ metric(one.sd) }}{% endfor %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Means of runs that differ in seed or split alone, with 95 % intervals of Student's t for the noise and the
split, and the standard deviation of one run. Where splits differ, they count that training sets overlap (Nadeau and Bengio
2003).</p>
{% endif %}
<h2>What privacy costs</h2>
{{ pictures(curve) }}
{% if courses %}
<h2>Course of the training</h2>
{{ pictures(courses) }}
{% endif %}
<h2>What the runs share</h2>
<pre>{{ shared }}</pre>
"""


def render_comparison(run_dirs: Sequence[Path], page: Path) -> Path:
    """Writes one page of several finished runs and returns its path.

    Raises ConfigError for fewer than two runs, DataError as ``read_results`` does.
    """
    if len(run_dirs) < 2:
        raise ConfigError(f"A comparison needs at least two runs, not {len(run_dirs)}.")
    runs = [read_results(Run(Path(folder))) for folder in run_dirs]
    configs = [_config(run.run) for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1 and key not in _WHERE]
    kinds = [_kind(config, run, differing) for config, run in zip(configs, runs, strict=True)]
    title = {name: words for run in reversed(runs) for name, words in titles(run.summary).items()}
    metrics = list(dict.fromkeys(name for run in runs for name in compared_metrics(run.summary)))
    first = headline(runs[0].summary)[0]
    named = [key for key in differing if key not in _UTILITY]
    rows = [_row(run, metrics, first) | {"name": name, "differing": [config.get(key, "–") for key in named]}
            for run, name, config in zip(runs, _names(runs), configs, strict=True)]  # fmt: skip
    points = [
        Point(kind, finite(row["epsilon"]), float(of_metric["value"]), of_metric.get("low"), of_metric.get("high"))
        for kind, row in zip(kinds, rows, strict=True)
        if finite((of_metric := row["metrics"][metrics.index(first)]).get("value")) is not None
    ]  # fmt: skip
    courses = _courses(runs, kinds, first) if len(runs) <= MOST_COURSES else {}
    datasets = list(dict.fromkeys(str(run.summary.get("dataset", "records")) for run in runs))
    values: dict[str, Any] = {
        "title": f"{len(runs)} runs beside each other",
        "datasets": datasets,
        "warnings": [
            f"The runs are of different {what}; their figures do not compare."
            for what, several in (("datasets", datasets), ("labels", {_label(run) for run in runs})) if len(several) > 1
        ],
        "names": [title[name] for name in metrics],
        "with_sd": [heading for name in metrics for heading in (title[name], "SD")],
        "differing": named,
        "runs": rows,
        "repeated": _repetitions(rows, configs, kinds),
        "shared": "\n".join(f"{key} = {configs[0][key]!r}" for key in keys if key not in differing and key not in _WHERE)
        or "nothing is recorded",
        "curve": [embed(
            plot_privacy_utility(points, title[first]), f"{title[first]} over epsilon; the numbers are in the table.",
        )]
        if points else [],
        "courses": [embed(
            plot_lines(courses, f"{title[first]} on held-out patients", "Pooled over hospitals, by round."),
            f"Pooled {in_line(title[first])} by round, a line a run.",
        )] if courses else [],
    }  # fmt: skip
    return write_page(page, values["title"], render(_PAGE, values))


def _repetitions(
    rows: Sequence[dict[str, Any]], configs: Sequence[dict[str, Any]], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """Of runs that differ in what repeats them alone, two or more, how many there are and the estimates of their metrics."""
    alike: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        alike.setdefault(repr({key: value for key, value in config.items() if key not in _WHERE}), []).append(place)
    repetitions = []
    for places in alike.values():
        if len(places) < 2:
            continue
        config, spent = configs[places[0]], finite(rows[places[0]]["epsilon"])
        private = "no DP" if spent is None else f"ε {config.get('privacy.epsilon', spent):g}"
        splits = [Split(**{key.name: each.get(f"split.{key.name}", key.default) for key in fields(Split)})
                  for each in (configs[place] for place in places)]  # fmt: skip
        values = [[finite(estimate.get("value")) for estimate in several]
                  for several in zip(*(rows[place]["metrics"] for place in places), strict=True)]  # fmt: skip
        numbers = [[value for value in several if value is not None] for several in values]
        share = held_out_per_training(splits)
        estimates = [summarize_repetitions(several, share) if len(several) > 1 else {} for several in numbers]
        if any(estimates):
            metrics = [{**estimate, "value": estimate.get("mean", "")} for estimate in estimates]
            repetitions.append({"name": f"{kinds[places[0]]}, {private}", "runs": len(places), "metrics": metrics})
    return repetitions


def _config(run: Run) -> dict[str, Any]:
    """The keys of the run's configuration as they are written, whatever their Polyclinic; none where there is no file."""
    written = read_toml(run.config_file, "configuration file") if run.config_file.is_file() else {}
    return flat_keys(written, tuple(written))


def _kind(config: dict[str, Any], run: Results, differing: Sequence[str]) -> str:
    """What a run is of, but for its privacy: its strategy, and what else differs."""
    settings = [str(config.get(key, "–")) for key in differing if key not in (*_UTILITY, "strategy")]
    return ", ".join([str(run.summary.get("strategy", "run")), *settings[:2]])


def _names(runs: Sequence[Results]) -> list[str]:
    """What tells the runs' folders apart: the folders in which they lie, where each lies in one of its own."""
    places = [run.run.path.resolve() for run in runs]
    outer = [place.parent.name for place in places]
    return outer if len(set(outer)) == len(runs) else [place.name for place in places]


def _label(run: Results) -> str:
    return str(part(run.summary, "objective").get("label"))


def _row(run: Results, metrics: Sequence[str], first: str) -> dict[str, Any]:
    """What the table shows of a run; a metric that its objective does not have is no estimate."""
    summary = run.summary
    evaluation, exact = part(summary, "evaluation"), part(part(summary, "metrics"), "pooled")
    pooled, worst = part(evaluation, "pooled"), part(evaluation, "worst").get(first)
    estimates = [pooled.get(name, {"value": exact.get(name, "")}) for name in metrics]
    if exact.get("released") is False:
        estimates, worst = [{"value": NOT_RELEASED}] * len(metrics), {"value": NOT_RELEASED}
    seconds = finite(summary.get("seconds"))
    sent = pd.to_numeric(run.rounds.get("bytes_up", pd.Series()), errors="coerce").sum()
    return {
        "metrics": estimates, "worst": worst,
        "epsilon": part(summary, "privacy").get("epsilon"), "delta": part(summary, "privacy").get("delta"),
        "rounds": summary.get("rounds"),
        "seconds": "–" if seconds is None else f"{seconds:,.1f}", "sent": size(float(sent)),
    }  # fmt: skip


def _courses(runs: Sequence[Results], kinds: Sequence[str], metric: str) -> dict[str, Course]:
    courses: dict[str, Course] = {}
    for run, kind in zip(runs, kinds, strict=True):
        pooled = read_series(run.rounds, metric).get(POOLED)
        if pooled is not None:
            spent = finite(part(run.summary, "privacy").get("epsilon"))
            name = f"{kind}, {'no DP' if spent is None else f'ε {spent:.3g}'}"
            unique = name if name not in courses else f"{len(courses) + 1}: {name}"
            courses[unique] = course_of(pooled)
    return courses
