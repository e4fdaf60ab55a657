"""The form's page around the patients: what reviewers are told, its style, and the script that keeps and saves answers."""

from __future__ import annotations

from collections.abc import Sequence

from polyclinic.evaluation.report.style import STYLE, policy

MOST_SCORE = 10
LONGEST_INITIALS = 12
SCORES_FORMAT = "polyclinic-review-scores/1"
WARNING = "This packet contains real patients' records. It stays at the hospital."

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
const packet = document.documentElement.dataset.packet, find = id => document.getElementById(id);
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


def page(title: str, digest: str, patients: int, glossary: Sequence[tuple[str, str, str]], body: str) -> str:
    """The whole page; everything given is HTML already.

    digest: the packet's.  glossary: (name, meaning, public bounds) of each column.  body: the patients' articles.
    """
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{meaning or "–"}</td><td>{bounds}</td></tr>'
        for name, meaning, bounds in glossary
    )
    return f"""<!doctype html>
<html lang="en" data-packet="{digest}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(_SCRIPT)}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{WARNING}">
<meta name="robots" content="noindex, noarchive">
<title>Real patients' records, for this hospital alone: blinded review, {title}</title>
<style>{STYLE}{_STYLE}</style>
</head>
<body>
<div class="stays" role="note">{WARNING}</div>
<main>
<header>
<h1>Which of these {patients} patients are real?</h1>
<p class="muted">Blinded review of {title}; packet {digest[:8]}</p>
</header>
<p>Half of the {patients} patients below are real ones of this hospital, the other half were made by a computer; they are mixed in
an order that says nothing. For each, please say how realistic it looks to you, from 0 (certainly not real) to {MOST_SCORE}
(certainly real), and whether you think it is real. Judge each for itself, as it comes to your mind; please look
nobody up in the hospital's own records, and do not talk about it with other reviewers before all have answered.</p>
<p>All numbers are rounded in the same way, for real and made-up patients alike, so how many digits one has tells nothing.
Charts of one measurement have the same scale for all patients.</p>
<details><summary>What the values are</summary><div class="scroll"><table class="facts"><thead><tr>
<th>value</th><th>meaning</th><th>allowed</th></tr></thead><tbody>{rows}</tbody></table></div></details>
<p class="printed">Reviewer's initials: ____________ Circle one number and one guess for each patient.</p>
<noscript><p class="notice warn">This browser runs no scripts, so answers cannot be saved: print the page and circle them.</p>
</noscript>
<form id="begin" class="screen notice">
<p><label for="initials">Your initials</label>
<input type="text" id="initials" required maxlength="{LONGEST_INITIALS}" pattern="[A-Za-z0-9]+" autocomplete="off" size="8"
 title="1 to {LONGEST_INITIALS} letters or digits"> <button class="main">Begin</button></p>
<p class="small muted">Answers stay in this browser (scores and guesses only, no record), under this packet and these initials, so
that you can close the page and go on later. Keys: Tab to the next question, digits or arrows within it.</p>
</form>
<div class="bar screen" id="bar" hidden>
<strong id="who"></strong> <progress id="progress" max="{patients}" value="0" aria-label="Patients answered"></progress>
<output id="count" aria-live="polite"></output>
<button type="button" id="next">Next without an answer</button>
<button type="button" id="save" class="main">Save scores</button>
<button type="button" id="forget">Remove my answers</button>
<span id="kept" class="small" role="status"></span>
</div>
<form id="form"><fieldset id="all">
{body}
</fieldset></form>
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""
