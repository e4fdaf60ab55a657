"""Pages that open without a network, written from the files of run folders.

They only read what a run left (summary.json, rounds.parquet, config.toml, versions.json); they measure nothing and touch no
record. All that they show is escaped by jinja2, and a content policy in their head forbids that they load or run anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from polyclinic.errors import DataError
from polyclinic.evaluation.plots import to_png, to_svg
from polyclinic.evaluation.quality_plots import quality_figures, transfer_figures
from polyclinic.evaluation.report import formats
from polyclinic.evaluation.report.context import report_context
from polyclinic.evaluation.report.figures import alt, embedded, run_figures
from polyclinic.evaluation.report.quality import read_quality
from polyclinic.evaluation.report.sections import SECTIONS, Run, Section
from polyclinic.evaluation.report.style import SCRIPT, STYLE, policy
from polyclinic.evaluation.report.utility import utility_figures

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

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
<td class="num{{ ' undefined' if shown in ('undefined', 'not released') }}{{ ' first' if first }}">{{ shown }}</td>
{%- endmacro %}
{%- macro estimated(value, first=false) -%}
{%- set shown, beside = value | estimate -%}
<td class="num{{ ' undefined' if shown in ('undefined', 'not released') }}{{ ' first' if first }}">{{ shown }}
{%- if beside %} <small>{{ beside }}</small>{% endif %}{{ caller() if caller }}</td>
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
    run = _read(run_dir)
    return _render(run, _drawn(run), page or run.folder / "report.html")


def write_plots(run_dir: Path) -> list[Path]:
    """Writes ``plots/{auroc,loss,epsilon,...}.svg`` and ``.png`` into a run folder and returns their paths.

    Epsilon is left out when no site spent any; ``posterior`` stands for the first two where the run found one;
    calibration, decision and hospitals, as SVG alone, are there where predictions left. Raises DataError as
    ``render_report`` does.
    """
    run = _read(run_dir)
    return _write(run, _drawn(run))


def write_report(run_dir: Path) -> Path:
    """``write_plots`` and ``render_report`` of figures that are drawn once."""
    run = _read(run_dir)
    drawn = _drawn(run)
    _write(run, drawn)
    return _render(run, drawn, run.folder / "report.html")


Drawn = dict[str, dict[str, tuple[str, "Figure"]]]


def _read(run_dir: Path) -> Run:
    return Run(Path(run_dir), *read_run(Path(run_dir)))


def _drawn(run: Run) -> Drawn:
    """The run's figures by section and name, each as SVG and as it was drawn."""
    sections = {"training": run_figures(run.summary, run.rounds), "utility": utility_figures(run.summary)}
    judged = read_quality(run.folder)
    sections |= {"quality": quality_figures(judged), "transfer": transfer_figures(judged)}
    return {name: {key: (to_svg(one), one) for key, one in figures.items()} for name, figures in sections.items()}


def _render(run: Run, drawn: Drawn, page: Path) -> Path:
    shown = {name: [embedded(svg, alt(key)) for key, (svg, _) in one.items()] for name, one in drawn.items()}
    shared = report_context(run.summary, run.rounds) | {"figures": shown}
    parts = [(section, section.values(run)) for section in SECTIONS]
    return write_page(page, shared["title"], [(one, shared | values) for one, values in parts if values is not None])


def _write(run: Run, drawn: Drawn) -> list[Path]:
    folder = run.folder / "plots"
    folder.mkdir(exist_ok=True)
    written = []
    for section, figures in drawn.items():
        for name, (svg, figure) in figures.items():
            written.append(folder / f"{name}.svg")
            written[-1].write_text(svg, encoding="utf-8")
            if section == "training":  # a picture in dots takes three times as long as one in lines
                written.append(folder / f"{name}.png")
                written[-1].write_bytes(to_png(figure))
    return written


def write_page(page: Path, title: str, sections: Sequence[tuple[Section, Mapping[str, Any]]]) -> Path:
    """Writes the sections, each with the values that it shows, as one page: whole, or the earlier page stays."""
    from markupsafe import Markup

    rendered = [_template(_MACROS + one.template).render(values).strip() for one, values in sections]
    # Markup: ours alone, and what jinja2 has escaped.
    found = _template(_PAGE).render(
        policy=policy(), title=title, style=Markup(STYLE), script=Markup(SCRIPT), body=Markup("\n\n".join(rendered))
    )
    partial = page.with_suffix(".partial")
    partial.write_text(found, encoding="utf-8")
    partial.replace(page)
    return page


@lru_cache(maxsize=64)
def _template(text: str) -> Template:
    from jinja2 import Environment  # with the plots' matplotlib, only at the end of a run

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        metric=formats.metric, epsilon=formats.epsilon, budget=formats.budget, delta=formats.delta,
        count=formats.count, share=formats.in_percent, estimate=formats.estimate,
    )  # fmt: skip
    return environment.from_string(text)


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
