"""The reviewers' form as one HTML file: each patient by the same template, from whole numbers that do not say whence they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import several
from polyclinic.evaluation.page import frame, render
from polyclinic.evaluation.review.grid import MISSING, decimals, slices
from polyclinic.types import Ints

MOST_SCORE = 10
LONGEST_INITIALS = 12
SCORES_FORMAT = "polyclinic-review-scores/1"
WARNING = "This packet contains real patients' records. It stays at the hospital."
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _ROOM = 300, 110, 34, 16, 6

_STYLE = """
[hidden] { display: none !important; }
.stays { position: sticky; top: 0; z-index: 1; background: var(--warn); color: var(--paper); font-size: .875rem; line-height: 1.4;
  font-weight: 600; padding: .25rem 1rem; text-align: center; }
fieldset { border: 0; margin: 0; padding: 0; min-width: 0; }
legend { padding: 0; font-weight: 600; margin-bottom: .35rem; } legend small, h2 small { font-weight: 400; color: var(--muted); }
.bar { position: sticky; top: 1.7rem; z-index: 1; background: var(--paper); border-bottom: 1px solid var(--line);
  padding: .6rem 0; display: flex; flex-wrap: wrap; gap: .5rem .9rem; align-items: center; }
.bar progress { width: 9rem; accent-color: var(--accent); } .bar output { font-variant-numeric: tabular-nums; min-width: 10rem; }
button, input[type=text] { font: inherit; color: var(--ink); background: var(--soft); border: 1px solid var(--rule);
  border-radius: 5px; padding: .4rem .8rem; }
button { cursor: pointer; } button:disabled { color: var(--muted); cursor: default; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--paper); }
:is(button, input, summary):focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
article { border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem 1.25rem; margin: 1.5rem 0;
  scroll-margin-top: 7rem; }
article h2 { margin: 0 0 .9rem; } article > h3 { margin: 1rem 0 .4rem; }
.state { float: right; font-size: .85rem; font-weight: 400; color: var(--muted); }
dl.values { columns: 15rem; column-gap: 2.25rem; margin: 0 0 1rem; }
dl.values div { display: flex; gap: 1rem; justify-content: space-between; break-inside: avoid; padding: .2rem 0;
  border-bottom: 1px solid var(--line); }
dl.values dt { color: var(--muted); } dl.values dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
dl.values small, ul.codes small { color: var(--muted); }
.charts { display: flex; flex-wrap: wrap; gap: .5rem 1.25rem; } .charts figure { margin: 0 0 .5rem; flex: 1 1 15rem;
  max-width: 22rem; } .charts figcaption { font-size: .875rem; color: var(--muted); }
svg { display: block; width: 100%; } svg path { fill: none; stroke: var(--accent); stroke-width: 1.75; } svg circle {
  fill: var(--accent); } svg line { stroke: var(--line); } svg text { font-size: 11px; fill: var(--muted); }
article table { margin-bottom: .75rem; table-layout: fixed; min-width: 36rem; } article td, article th { padding: .25rem .4rem; }
article thead th:first-child { width: 10rem; }
ul.codes { columns: 15rem; margin: .25rem 0 1rem; } ul.codes li { break-inside: avoid; margin: 0 0 .2rem; }
.score, .guess { margin-top: 1rem; } .score label, .guess label { display: inline-block; margin: 0 .35rem .35rem 0; }
:is(.score, .guess) label span { display: inline-block; border: 1px solid var(--rule); border-radius: 5px; padding: .3rem .7rem;
  min-width: 2.6rem; text-align: center; }
:is(.score, .guess) input { position: absolute; opacity: 0; }
:is(.score, .guess) :checked + span { background: var(--accent); border-color: var(--accent); color: var(--paper);
  font-weight: 700; }
:is(.score, .guess) :focus-visible + span { outline: 3px solid var(--accent); outline-offset: 2px; }
:is(.score, .guess) label:hover span { border-color: var(--accent); }
:is(.score, .guess) :disabled + span { color: var(--muted); border-style: dashed; }
.printed { display: none; }
@media screen and (max-width: 40rem) { .bar { position: static; } article { scroll-margin-top: 4rem; padding: .75rem; } }
@media print {
  @page { margin: 16mm 14mm; @top-center { content: "WARNING"; font: bold 9pt sans-serif; } }
  .screen { display: none !important; } .printed { display: block; }
  details::details-content { content-visibility: visible; block-size: auto; } summary { list-style: none; font-weight: 600; }
  .stays { position: static; background: none; color: #000; border: 2px solid #000; }
  article { break-inside: avoid; border-color: #999; padding: .4rem .7rem; margin: .6rem 0; font-size: 9pt; }
  article::before { content: "WARNING"; display: block; font-size: 8pt; font-weight: 600; }
  article h2 { font-size: 11pt; margin: 0 0 .3rem; } article table { font-size: 8pt; margin: 0; }
  article dl.values { columns: 10rem; margin-bottom: .4rem; } article dl.values div { padding: 0; }
  .charts figure { max-width: 30%; flex-basis: 28%; margin: 0; } .charts figcaption { font-size: 8pt; }
  .score, .guess { margin-top: .4rem; } :is(.score, .guess) label { margin-bottom: 0; }
  :is(.score, .guess) label span { color: #000 !important; border: 1px solid #777 !important; padding: .1rem .5rem; }
}
""".replace("WARNING", WARNING)

_SCRIPT = """
"use strict";
const packet = document.querySelector("meta[name=packet]").content, find = id => document.getElementById(id);
const form = find("form"), all = find("all"), articles = [...document.querySelectorAll("article")];
let reviewer = "", kept = true, unsaved = false;
const slot = () => `polyclinic-review:${packet}:${reviewer}`;
const answer = n => ({
  patient: n,
  score: form.elements[`score-${n}`].value === "" ? null : Number(form.elements[`score-${n}`].value),
  guess: form.elements[`guess-${n}`].value || null,
});
const answers = () => articles.map(article => answer(Number(article.dataset.patient)));
const complete = one => one.score !== null && one.guess !== null;
const touched = one => one.score !== null || one.guess !== null;
function show() {
  const given = answers(), done = given.filter(complete).length;
  articles.forEach((article, i) => {
    article.querySelector(".state").textContent =
      complete(given[i]) ? "\\u2713 answered" : given[i].score !== null ? "guess is missing"
      : given[i].guess !== null ? "score is missing" : "";
  });
  find("progress").value = done;
  find("count").textContent = `${done} of ${articles.length} answered`;
  find("next").disabled = done === articles.length;
}
function keep() {
  try { localStorage.setItem(slot(), JSON.stringify(answers().filter(touched))); kept = true; } catch { kept = false; }
  find("kept").textContent = kept ? "" : "This browser keeps nothing: save before you close the page.";
}
function restore() {
  let found = [];
  try { found = JSON.parse(localStorage.getItem(slot()) || "[]"); } catch { found = []; }
  for (const one of found) {
    for (const name of ["score", "guess"]) {
      if (one[name] !== null) form.elements[`${name}-${one.patient}`].value = String(one[name]);
    }
  }
  return found.length;
}
form.addEventListener("change", () => { unsaved = true; keep(); show(); });
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("keydown", event => {  // a digit gives that score; 10 is one step beyond 9
  const group = event.target.closest(".score");
  if (!group || event.ctrlKey || event.metaKey || event.altKey || !/^[0-9]$/.test(event.key)) return;
  const chosen = group.querySelector(`[value="${event.key}"]`);
  chosen.checked = true;
  chosen.focus();
  chosen.dispatchEvent(new Event("change", {bubbles: true}));
});
find("begin").addEventListener("submit", event => {
  event.preventDefault();
  reviewer = find("initials").value.trim().toUpperCase();
  find("begin").hidden = true;
  all.disabled = false;
  find("bar").hidden = false;
  find("who").textContent = reviewer;
  const found = restore();
  keep();
  show();
  if (found) find("kept").textContent = `${found} earlier answers of ${reviewer} in this browser are back.`;
  next();
});
function next() {
  const missing = articles.find(article => !complete(answer(Number(article.dataset.patient))));
  if (!missing) return;
  missing.scrollIntoView();
  const one = answer(Number(missing.dataset.patient));
  const group = missing.querySelector(one.score === null ? ".score" : ".guess");
  (group.querySelector(":checked") || group.querySelector("input")).focus({preventScroll: true});
}
find("next").addEventListener("click", next);
find("save").addEventListener("click", () => {
  const missing = answers().filter(one => !complete(one)).length;
  if (missing && !confirm(`${missing} patients are not fully answered. Save nevertheless?`)) return;
  const text = JSON.stringify({format: "SCORES_FORMAT", packet, reviewer, answers: answers().filter(touched)}, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  link.download = `scores-${reviewer}-${packet.slice(0, 8)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
  unsaved = false;
  find("kept").textContent = `Saved as ${link.download}: give that file back.`;
});
find("forget").addEventListener("click", () => {
  if (!confirm(`Remove the answers of ${reviewer} from this page and this browser?`)) return;
  try { localStorage.removeItem(slot()); } catch { /* it kept nothing */ }
  unsaved = false;
  location.reload();
});
addEventListener("beforeunload", event => { if (unsaved && !kept) event.preventDefault(); });
form.reset();
all.disabled = true;
""".replace("SCORES_FORMAT", SCORES_FORMAT)

_ABOVE = """<div class="stays" role="note">{{ warning }}</div>
"""
_PATIENTS = """{% macro named(code) %}{{ names.get(code, code) }}{% if code in names %} <small>{{ code }}</small>{% endif %}
{%- endmacro %}
{% macro radios(name, choices) %}{% for value, text in choices %}<label>
{#- #}<input type="radio" name="{{ name }}" value="{{ value }}"><span>{{ text }}</span></label>{% endfor %}{% endmacro %}
{% for records in patients %}{% set number = loop.index %}
<article id="patient-{{ number }}" data-patient="{{ number }}" aria-labelledby="name-{{ number }}">
<h2 id="name-{{ number }}">Patient {{ number }} <small>of {{ patients | length }}</small><span class="state"></span></h2>
{% for record in records %}
{% if records | length > 1 %}<h3>Record {{ loop.index }} of {{ records | length }}</h3>
{% endif %}
{% if record.single %}<dl class="values">{% for title, cell, unit in record.single %}<div><dt>{{ title }}</dt><dd>
{%- if cell is none %}<span class="muted">not recorded</span>{% elif unit is none %}{{ named(cell) }}{% else %}{{ cell }}
{%- if unit %} <small>{{ unit }}</small>{% endif %}{% endif %}</dd></div>{% endfor %}</dl>
{% endif %}
{% for courses in record.courses %}
<div class="charts">{% for course in courses %}<figure><figcaption>{{ course.title }}</figcaption>
<svg viewBox="0 0 {{ width }} {{ height }}" aria-hidden="true">
{% for text, y in course.ends %}<line x1="{{ left }}" x2="{{ width - room }}" y1="{{ y }}" y2="{{ y }}"/>
<text x="{{ left - 4 }}" y="{{ y + 4 }}" text-anchor="end">{{ text }}</text>
{% endfor %}
<text x="{{ left }}" y="{{ height - 2 }}">1</text>
<text x="{{ width - room }}" y="{{ height - 2 }}" text-anchor="end">{{ course.numbers | length }}</text>
<path d="{{ course.path }}"/>{% for x, y in course.dots %}<circle cx="{{ x }}" cy="{{ y }}" r="2.5"/>{% endfor %}</svg></figure>
{% endfor %}</div>
<div class="scroll"><table><thead><tr><th scope="col">visit</th>
{% for _ in courses[0].numbers %}<th scope="col" class="num">{{ loop.index }}</th>{% endfor %}</tr></thead><tbody>
{% for course in courses %}<tr><th scope="row">{{ course.title }}</th>
{% for text in course.numbers %}<td class="num">
{%- if text is none %}<span class="muted">–</span>{% else %}{{ text }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}
{% for title, codes in record.codes %}<h3>{{ title }}</h3>
{% if codes %}<ul class="codes">{% for code in codes %}<li>{{ named(code) }}</li>{% endfor %}</ul>
{% else %}<p>none recorded</p>
{% endif %}{% endfor %}
{% endfor %}
<fieldset class="score"><legend>How realistic is patient {{ number }}? <small>0 certainly not real, {{ most }} certainly
real</small></legend>{{ radios("score-" ~ number, scores) }}</fieldset>
<fieldset class="guess"><legend>Patient {{ number }} is</legend>{{ radios("guess-" ~ number, guesses) }}</fieldset>
</article>
{% endfor %}
"""
_BODY = """<header>
<h1>Which of these {{ patients }} patients are real?</h1>
<p class="muted">Blinded review of {{ title }}; packet {{ digest[:8] }}</p>
</header>
<p>Half of the {{ patients }} patients below are real ones of this hospital, the other half were made by a computer; they are
mixed in an order that says nothing. For each, please say how realistic it looks to you, from 0 (certainly not real) to {{ most }}
(certainly real), and whether you think it is real. Judge each for itself, as it comes to your mind; please look
nobody up in the hospital's own records, and do not talk about it with other reviewers before all have answered.</p>
<p>All numbers are rounded in the same way, for real and made-up patients alike, so how many digits one has tells nothing.
Charts of one measurement have the same scale for all patients.</p>
<details><summary>What the values are</summary><div class="scroll"><table class="facts"><thead><tr>
<th>value</th><th>meaning</th><th>allowed</th></tr></thead><tbody>{% for name, meaning, bounds in glossary %}
<tr><th scope="row">{{ name }}</th><td>{{ meaning or "–" }}</td><td>{{ bounds }}</td></tr>
{%- endfor %}</tbody></table></div></details>
<p class="printed">Reviewer's initials: ____________ Circle one number and one guess for each patient.</p>
<noscript><p class="notice warn">This browser runs no scripts, so answers cannot be saved: print the page and circle them.</p>
</noscript>
<form id="begin" class="screen notice">
<p><label for="initials">Your initials</label>
<input type="text" id="initials" required maxlength="{{ longest }}" pattern="[A-Za-z0-9]+" autocomplete="off" size="8"
 title="1 to {{ longest }} letters or digits"> <button class="main">Begin</button></p>
<p class="small muted">Answers stay in this browser (scores and guesses only, no record), under this packet and these initials, so
that you can close the page and go on later. Keys: Tab to the next question, digits or arrows within it.</p>
</form>
<div class="bar screen" id="bar" hidden>
<strong id="who"></strong> <progress id="progress" max="{{ patients }}" value="0" aria-label="Patients answered"></progress>
<output id="count" aria-live="polite"></output>
<button type="button" id="next">Next without an answer</button>
<button type="button" id="save" class="main">Save scores</button>
<button type="button" id="forget">Remove my answers</button>
<span id="kept" class="small" role="status"></span>
</div>
<form id="form"><fieldset id="all">
{{ articles }}
</fieldset></form>
"""


def render_form(
    patients: Sequence[Ints], schema: Schema, grid: Mapping[str, float], names: Mapping[str, str]
) -> tuple[str, str]:
    """Return the page, and its packet's digest: the SHA-256 (hex) of everything that it shows of the patients.

    Args:
        patients: Each (records, width) on the grid, in the order of their numbers. Which are real is not known here.
        schema: The schema of the records.
        grid: The steps of columns.
        names: What codes and categories mean.
    """
    form = _Form(schema, grid, _ranges(patients, schema, grid))
    articles = render(_PATIENTS, {
        "patients": [[form.record(cells) for cells in records] for records in patients], "names": names, "most": MOST_SCORE,
        "scores": [(score, score) for score in range(MOST_SCORE + 1)],
        "guesses": [("real", "a real patient"), ("synthetic", "a synthetic patient")],
        "width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "room": _ROOM,
    })  # fmt: skip
    digest = sha256(f"{schema.digest()}\n{articles}".encode()).hexdigest()
    body = render(_BODY, {
        "patients": len(patients), "title": schema.name, "digest": digest, "most": MOST_SCORE, "longest": LONGEST_INITIALS,
        "glossary": [(_title(column), column.description, _public(column)) for column, _ in form.columns], "articles": articles,
    })  # fmt: skip
    return frame(
        f"Real patients' records, for this hospital alone: blinded review, {schema.name}", body, script=_SCRIPT, style=_STYLE,
        above=render(_ABOVE, {"warning": WARNING}), allowed="; base-uri 'none'; form-action 'none'",
        meta={"description": WARNING, "robots": "noindex, noarchive", "packet": digest},
    ), digest  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Form:
    """How cells of a schema are written; ranges: from the smallest to the largest reading of each course over visits."""

    schema: Schema
    grid: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]

    @cached_property
    def columns(self) -> list[tuple[Column, slice]]:
        return slices(self.schema)

    def record(self, cells: Ints) -> dict[str, Any]:
        """One record: single values, then courses over as many visits each, then codes."""
        single = [(c, int(cells[at][0])) for c, at in self.columns if c.kind not in ("trajectory", "code_set")]
        courses = [(c, cells[at]) for c, at in self.columns if c.kind == "trajectory"]
        lengths = dict.fromkeys(column.steps for column, _ in courses)
        return {
            "single": [(_title(column), *self._value(column, cell)) for column, cell in single],
            "courses": [
                [self._course(*course) for course in courses if course[0].steps == length] for length in lengths
            ],
            "codes": [
                (_title(column), [code for code, on in zip(column.categories, cells[at], strict=True) if on])
                for column, at in self.columns if column.kind == "code_set"
            ],
        }  # fmt: skip

    def _number(self, column: Column, cell: int) -> str | None:
        """A number on the column's grid, with as many digits as every other one of the column; None where missing."""
        step = self.grid[column.name]
        return None if cell == MISSING else f"{cell * step:.{decimals(step)}f}"

    def _value(self, column: Column, cell: int) -> tuple[str | None, str | None]:
        """A cell and its unit; a category has none."""
        if column.bounds is not None:
            return self._number(column, cell), column.unit
        names = column.categories or (("no", "yes") if column.kind == "binary" else ("0", "1"))
        return (None if cell == MISSING else names[cell]), None

    def _course(self, column: Column, cells: Ints) -> dict[str, Any]:
        """A line over visits, broken where one is missing; its scale is the same for all patients of the packet."""
        low, high = self.ranges[column.name]
        step, last = self.grid[column.name], max(column.steps - 1, 1)
        path, dots, drawn = "", [], False
        for visit, cell in enumerate(cells.tolist()):
            if cell != MISSING:
                x = _LEFT + visit / last * (_WIDTH - _LEFT - _ROOM)
                y = _ROOM + (high - cell * step) / (high - low) * (_HEIGHT - _BOTTOM - _ROOM)
                path += f"{'L' if drawn else 'M'}{x:.1f} {y:.1f}"
                dots.append((f"{x:.1f}", f"{y:.1f}"))
            drawn = cell != MISSING
        ends = [(f"{value:.{decimals(step)}f}", y) for value, y in ((high, _ROOM), (low, _HEIGHT - _BOTTOM))]
        title = _title(column) + (f", {column.unit}" if column.unit else "")
        numbers = [self._number(column, cell) for cell in cells.tolist()]
        return {"title": title, "numbers": numbers, "path": path, "dots": dots, "ends": ends}


def _ranges(patients: Sequence[Ints], schema: Schema, grid: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    cells = np.concatenate(list(patients))
    ranges = {}
    for column, at in slices(schema):
        if column.kind == "trajectory":
            values = cells[:, at][cells[:, at] != MISSING] * grid[column.name]
            low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
            ranges[column.name] = (low, high) if high > low else (low, low + grid[column.name])
    return ranges


def _title(column: Column) -> str:
    return column.name.replace("_", " ")


def _public(column: Column) -> str:
    if column.bounds is None:
        return several(column.categories, 8) or "no (0), yes (1)"
    return f"{column.bounds[0]:g} to {column.bounds[1]:g}" + (f" {column.unit}" if column.unit else "")
