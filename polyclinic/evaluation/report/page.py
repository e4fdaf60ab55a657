"""Pages that open without a network, written from the files of run folders.

They only read what a run left (summary.json, rounds.parquet, config.toml, versions.json); they measure nothing and touch no
record. All that they show is escaped by jinja2, and a content policy in their head forbids that they load or run anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.errors import DataError
from polyclinic.evaluation.plots import to_png, to_svg
from polyclinic.evaluation.report import formats
from polyclinic.evaluation.report.context import report_context
from polyclinic.evaluation.report.figures import run_figures
from polyclinic.evaluation.report.sections import SECTIONS, Run, Section
from polyclinic.evaluation.report.style import SCRIPT, STYLE, policy
from polyclinic.evaluation.report.utility import utility_figures

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
{{ body }}
</main>
<script>{{ script }}</script>
</body>
</html>
"""
_MACROS = """{%- macro metric(value, first=false) -%}
{%- set shown = value | metric -%}
<td class="num{{ ' undefined' if shown == 'undefined' }}{{ ' first' if first }}">{{ shown }}</td>
{%- endmacro %}
{%- macro estimated(value, first=false) -%}
{%- set shown, beside = value | estimate -%}
<td class="num{{ ' undefined' if shown == 'undefined' }}{{ ' first' if first }}">{{ shown }}
{%- if beside %}<small>{{ beside }}</small>{% endif %}{{ caller() if caller }}</td>
{%- endmacro %}
{%- macro pictures(figures) -%}
{% for figure in figures %}<figure><img src="{{ figure.source }}" alt="{{ figure.alt }}"></figure>
{% endfor %}
{%- endmacro %}
"""


def render_report(run_dir: Path, page: Path | None = None) -> Path:
    """Writes ``report.html`` into a run folder, or ``page``, and returns its path.

    Raises DataError if summary.json or rounds.parquet is missing or cannot be read; the other files are optional.
    """
    run_dir = Path(run_dir)
    run = Run(run_dir, *read_run(run_dir))
    shared = report_context(run.summary, run.rounds)
    parts = [(section, section.values(run)) for section in SECTIONS]
    body = [(section, shared | values) for section, values in parts if values is not None]
    return write_page(page or run_dir / "report.html", shared["title"], body)


def write_page(page: Path, title: str, sections: Sequence[tuple[Section, Mapping[str, Any]]]) -> Path:
    """Writes the sections, each with the values that it shows, as one page: whole, or the earlier page stays."""
    from jinja2 import Environment  # with the plots' matplotlib, only at the end of a run
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        metric=formats.metric, epsilon=formats.epsilon, budget=formats.budget, delta=formats.delta,
        count=formats.count, share=formats.in_percent, estimate=formats.estimate,
    )  # fmt: skip
    rendered = [environment.from_string(_MACROS + one.template).render(values).strip() for one, values in sections]
    # Markup: ours alone, and what jinja2 has escaped.
    found = environment.from_string(_PAGE).render(
        policy=policy(), title=title, style=Markup(STYLE), script=Markup(SCRIPT), body=Markup("\n\n".join(rendered))
    )
    partial = page.with_suffix(".partial")
    partial.write_text(found, encoding="utf-8")
    partial.replace(page)
    return page


def write_plots(run_dir: Path) -> list[Path]:
    """Writes ``plots/{auroc,loss,epsilon,...}.svg`` and ``.png`` into a run folder and returns their paths.

    Epsilon is left out when no site spent any; ``posterior`` stands for the first two where the run found one;
    calibration, decision and hospitals are there where predictions left. Raises DataError as ``render_report`` does.
    """
    folder = Path(run_dir) / "plots"
    summary, rounds = read_run(Path(run_dir))
    figures = run_figures(summary, rounds) | utility_figures(summary)
    folder.mkdir(exist_ok=True)
    written = []
    for name, figure in figures.items():
        written += [folder / f"{name}.svg", folder / f"{name}.png"]
        written[-2].write_text(to_svg(figure), encoding="utf-8")
        written[-1].write_bytes(to_png(figure))
    return written


def read_run(run_dir: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """The summary and the rounds table of a run folder; DataError if either is missing or cannot be read."""
    for name in ("summary.json", "rounds.parquet"):
        if not (run_dir / name).is_file():
            raise DataError(f"{run_dir} is not a finished run: it has no {name}.")
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        rounds = pd.read_parquet(run_dir / "rounds.parquet")
    except (ValueError, OSError) as error:  # pyarrow's errors are both
        raise DataError(f"{run_dir} holds a summary.json or rounds.parquet that cannot be read.") from error
    if not isinstance(summary, dict):
        raise DataError(f"{run_dir / 'summary.json'} must hold one JSON object.")
    return summary, rounds
