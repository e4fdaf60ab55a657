"""Pages that open without a network: one frame, style and script for the report, the review's form and the live view.

All that a page shows is escaped by jinja2, and a content policy in its head forbids that it loads or runs anything else.
Templates are strings, since only .py files travel in a Flower bundle.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.evaluation import formats
from polyclinic.files import write_file

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --muted: #555; --line: #ddd; --rule: #999; --soft: #f5f6f8;
  --accent: #332288; --warn: #b3261e; --warned: #fdf1f0; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue",
  "DejaVu Sans", Arial, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, li { max-width: 46rem; } header p { max-width: none; }
ul { padding-left: 1.2rem; } li { margin: .35rem 0; }
.muted { color: var(--muted); } .small { font-size: .875rem; }
.notice { border-left: 5px solid var(--accent); background: var(--soft); padding: .8rem 1.1rem; margin: 1.25rem 0; }
.notice p { margin: .2rem 0; } .notice.warn { border-color: var(--warn); background: var(--warned); }
dl.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0; }
dl.figures div { border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; }
dl.figures dt { color: var(--muted); font-size: .85rem; } dl.figures dd { margin: 0; font-size: 1.5rem;
  font-variant-numeric: tabular-nums; line-height: 1.35; } dl.figures small { display: block; color: var(--muted);
  font-size: .8rem; line-height: 1.35; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .925rem; }
th, td { padding: .4rem .55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--muted); font-weight: 600; vertical-align: bottom; border-bottom: 2px solid var(--rule); }
thead tr.groups th { border-bottom: 0; padding-bottom: 0; color: var(--ink); }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 7rem; }
.num { text-align: right; font-variant-numeric: tabular-nums; } td.num { white-space: nowrap; }
.first { border-left: 1px solid var(--line); padding-left: 1rem; }
tbody.totals th, tbody.totals td { background: var(--soft); } tbody.totals tr.pooled > * { font-weight: 700; }
td small { display: block; color: var(--muted); font-size: .8rem; line-height: 1.3; }
td.undefined { color: var(--muted); font-style: italic; }
table.facts { width: auto; } table.facts :is(th, td):first-child { padding-left: 0; }
table.facts :is(th, td) { padding-right: 1.25rem; } table.facts tbody th { color: var(--muted); font-weight: 400; }
figure { margin: 1.25rem 0; overflow-x: auto; } figure img { width: 100%; max-width: 50rem; height: auto; display: block; }
pre { background: var(--soft); padding: .9rem 1.1rem; overflow-x: auto; font-size: .8rem; line-height: 1.45;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-size: .875em; overflow-wrap: anywhere; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0; cursor: pointer;
  text-align: inherit; } th button:hover { text-decoration: underline; }
:is(th button, .scroll, a):focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort] button::after { content: " \\25B2"; font-size: .7em; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
@media screen and (max-width: 40rem) { figure img { min-width: 34rem; } }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #1a1a1a; --ink: #eaeaea; --muted: #b0b0b0; --line: #3c3c3c; --rule: #777; --soft: #262830; --accent: #a99bf0;
    --warn: #f2857d; --warned: #3a2422; }
  figure img { filter: invert(.9) hue-rotate(180deg); }
}
@media print {
  :root { color-scheme: light; }
  @page { margin: 16mm; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; } .scroll { overflow: visible; }
  figure, tr, .notice, dl.figures { break-inside: avoid; } h2, h3 { break-after: avoid; }
  table { font-size: 9pt; } th, td { padding: .25rem .4rem; } tbody th { min-width: 0; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

# Names of columns become buttons; what is not a number goes last either way, and totals stay where they are.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells], body = table.tBodies[0];
  const value = (row, i) => {
    const text = row.cells[i].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numeric = [...body.rows].some(row => typeof value(row, i) === "number") && i > 0;
      const order = (a, b) => {
        const x = value(a, i), y = value(b, i), known = typeof x === "number", other = typeof y === "number";
        if (!numeric) return sign * String(x).localeCompare(String(y), "en", {numeric: true});
        return known && other ? sign * (x - y) : other - known;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
});
"""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% for name, content in meta.items() %}<meta name="{{ name }}" content="{{ content }}">
{% endfor %}
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
{{ above }}<main>
{{ body }}
</main>
<script>{{ script }}</script>
</body>
</html>
"""
# cell, metric, estimated: a cell of a number, and what the caller sets beside it.  table: columns of words and then of numbers,
# of which those at ``firsts``, from 1, begin a group; the rows are the caller's.
_MACROS = """{%- macro cell(shown, first=false) -%}
<td class="num{{ ' undefined' if shown in ('undefined', 'not released') }}{{ ' first' if first }}">{{ shown }}
{{- caller() if caller }}</td>
{%- endmacro %}
{%- macro cells(texts) -%}
{% for text in texts %}{{ cell(text) }}{% endfor %}
{%- endmacro %}
{%- macro metric(value, first=false) -%}
{{ cell(value | metric, first) }}
{%- endmacro %}
{%- macro estimated(value, first=false) -%}
{%- set shown, beside = value | estimate -%}{%- set more = caller() if caller -%}
{%- call cell(shown, first) %}{% if beside %} <small>{{ beside }}</small>{% endif %}{{ more }}{% endcall -%}
{%- endmacro %}
{%- macro table(words, numbers=(), label="Table", kind="sortable", firsts=()) -%}
<div class="scroll" role="region" tabindex="0" aria-label="{{ label }}">
<table class="{{ kind }}"><thead><tr>{% for name in words %}<th>{{ name }}</th>{% endfor %}
{%- for name in numbers %}<th class="num{{ ' first' if loop.index in firsts }}">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{{ caller() }}</tbody></table></div>
{%- endmacro %}
{%- macro pictures(figures) -%}
{% for figure in figures %}<figure><img src="{{ figure.source }}" alt="{{ figure.alt }}"></figure>
{% endfor %}
{%- endmacro %}
"""


def render(template: str, values: Mapping[str, Any]) -> Markup:
    """The values in a jinja2 template, which knows the filters of ``formats`` and the macros above."""
    from markupsafe import Markup

    return Markup(_template(template).render({**values, **_macros()}).strip())  # escaped by jinja2


def frame(
    title: str, body: Markup, *, script: str = SCRIPT, style: str = "", above: Markup | str = "", allowed: str = "",
    meta: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Return a whole page around its body.

    Args:
        title: The page's title.
        body: Its content.
        script: The page's script.
        style: The page's own style, beside that of all pages.
        above: Content over the page's column.
        allowed: More of the content policy.
        meta: Names and contents for machines, and for the script.
    """
    from markupsafe import Markup

    return _template(_FRAME).render(
        title=title, body=body, above=above, script=Markup(script), style=Markup(STYLE + style), meta=meta or {},
        policy=Markup(policy(script, allowed)),
    )  # fmt: skip


def write_page(page: Path, title: str, body: Markup) -> Path:
    """Write a page and return its path: whole, or the earlier page stays.

    Args:
        page: The file.
        title: The page's title.
        body: Its content.
    """
    write_file(page, frame(title, body))
    return page


def embed(figure: Figure | str, alt: str) -> dict[str, str]:
    """``source`` and ``alt`` of an image that holds the figure itself; figure: drawn, or as SVG."""
    from polyclinic.evaluation.figures.canvas import to_svg

    svg = figure if isinstance(figure, str) else to_svg(figure)
    return {"source": f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", "alt": alt}


def policy(script: str = SCRIPT, allowed: str = "") -> str:
    """A page's content policy: nothing is loaded but what is ``allowed``, and no script runs but its own."""
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'{allowed}"


@lru_cache(maxsize=64)
def _template(text: str) -> Template:
    return _environment().from_string(text)


@cache
def _macros() -> dict[str, Any]:
    """The macros by name, compiled once for all templates."""
    return {name: value for name, value in vars(_template(_MACROS).module).items() if not name.startswith("_")}


@cache
def _environment() -> Environment:
    from jinja2 import Environment  # with the figures' matplotlib, only at the end of a run

    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters.update(
        metric=formats.metric, epsilon=formats.epsilon, budget=formats.budget, delta=formats.delta, count=formats.count,
        share=formats.in_percent, estimate=formats.estimate, figure=formats.figure, span=formats.span, percent=formats.percent,
    )  # fmt: skip
    return environment
