"""The page of a sweep: metrics against the first key that varies as a number, with intervals over seeds and splits; a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.evaluation.figures.rounds import Point, plot_over
from polyclinic.evaluation.figures.utility import plot_intervals
from polyclinic.evaluation.page import embed, render, write_page

_BARS = "Means over seeds and splits; bars: their 95 % intervals."

_PAGE = """
<header>
<h1>{{ title }}</h1>
<p class="muted">{{ subtitle }}</p>
</header>
{% for sentence in failed %}<div class="notice warn"><p><strong>Failed.</strong> {{ sentence }}</p></div>
{% endfor %}
{{ pictures(figures) }}
<h2>Combinations</h2>
{% call table(keys, ["Runs", "Epsilon"] + names, "Combinations", firsts=(1, 3)) %}
{% for row in rows %}
<tr><th scope="row">{{ row.labels[0] }}</th>{% for value in row.labels[1:] %}<td>{{ value }}</td>{% endfor %}
{{ cell(row.runs | count, true) }}{{ cell(row.epsilon | epsilon) }}
{% for one in row.estimates %}{{ estimated(one, loop.first) }}{% endfor %}</tr>
{% endfor %}{% endcall %}
<p class="small muted">Means over the runs of each combination, pooled over the held-out patients of all hospitals, with 95 %
intervals of Student's t. They say how much a result varies with the noise and the split; where splits differ, they count that
training sets overlap (Nadeau and Bengio 2003). Epsilon is a patient's in one run; whoever looks at several runs on the same
patients learns more than any one of them tells. sweep-summary.csv beside this page has every metric of every hospital.</p>
<h2>What the runs share</h2>
<pre>{{ shared }}</pre>
"""


@dataclass(frozen=True)
class Row:
    """One combination: its values by key, how many runs finished, and by metric the estimates over these."""

    values: Mapping[str, Any]
    runs: int
    estimates: Mapping[str, Mapping[str, float | None]]


def render_sweep(
    rows: Sequence[Row], failed: Sequence[str], shared: Mapping[str, Any], titles: Mapping[str, str], page: Path
) -> Path:
    """Write the page of a sweep and return its path.

    Args:
        rows: At least one, all of the same keys.
        failed: A sentence for each run that failed.
        shared: The keys that all runs have.
        titles: By name, of the metrics to show.
        page: The file.
    """
    drawn = [name for name in titles if any(name in row.estimates for row in rows)]
    runs = sum(row.runs for row in rows)
    title = f"{runs} runs of {len(rows)} combinations" if len(rows) > 1 else f"{runs} runs"
    values = {
        "title": title, "subtitle": str(shared.get("dataset", "")),
        "failed": failed,
        "figures": [_figure(rows, name, titles[name]) for name in drawn],
        "keys": list(rows[0].values) or ["Combination"],
        "names": [titles[name] for name in drawn],
        "rows": [
            {"labels": list(row.values.values()) or ["all runs"], "runs": row.runs, "epsilon": _mean(row, "epsilon"),
             "estimates": [_estimate(row, name) for name in drawn]}
            for row in rows
        ],
        "shared": "\n".join(f"{key} = {value!r}" for key, value in shared.items()),
    }  # fmt: skip
    return write_page(page, title, render(_PAGE, values))


def _figure(rows: Sequence[Row], metric: str, name: str) -> dict[str, str]:
    """The metric against the first key whose values are several numbers, a line for each other combination; without such a key a
    row for each combination."""
    combinations = [row for row in rows if metric in row.estimates]
    key = next((key for key in rows[0].values if _varies_as_number([row.values[key] for row in rows])), None)
    alt = f"{name} of each combination; the numbers are in the table."
    if key is None:
        intervals = {_words(row.values) or "all runs": _estimate(row, metric) for row in combinations}
        return embed(plot_intervals(intervals, name, _BARS, None), alt)
    points = [
        Point(_words({other: value for other, value in row.values.items() if other != key}), float(row.values[key]),
              **_estimate(row, metric))
        for row in combinations
    ]  # fmt: skip
    return embed(plot_over(points, f"{name} over {key}", _BARS, key), alt)


def _varies_as_number(values: Sequence[Any]) -> bool:
    return len(set(values)) > 1 and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _words(values: Mapping[str, Any]) -> str:
    """The values of a combination; of numbers and truths, which say nothing alone, with their keys."""
    return ", ".join(
        str(value) if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}" for key, value in values.items()
    )


def _estimate(row: Row, metric: str) -> dict[str, Any]:
    estimate = row.estimates.get(metric, {})
    return {"value": estimate.get("mean"), "low": estimate.get("low"), "high": estimate.get("high")}


def _mean(row: Row, metric: str) -> float | None:
    return row.estimates.get(metric, {}).get("mean")
