"use strict";
const $ = id => document.getElementById(id);
const number = (value, digits = 3) => value === null || value === undefined ? "–" : value.toFixed(digits);
const cell = (row, text, numeric = true) => {
  const made = row.insertCell();
  if (numeric) made.className = "num";
  made.append(text);
};
let chosen = decodeURIComponent(location.hash.slice(1)), course = [], seen = 0;

function list(runs) {
  const body = $("runs");
  body.replaceChildren();
  for (const run of runs) {
    const row = body.insertRow(), link = document.createElement("a"), bar = document.createElement("progress");
    link.href = "#" + encodeURIComponent(run.name);
    link.textContent = run.name;
    bar.max = run.rounds || 1;
    bar.value = run.round;
    if (run.name === chosen) row.className = "chosen";
    cell(row, link, false);
    cell(row, (run.dataset || "–") + ", " + (run.strategy || "–"), false);
    cell(row, run.problem ? run.state + ": " + run.problem : run.state, false);
    cell(row, bar, false);
    cell(row, run.round + " of " + (run.rounds ?? "–"));
    const [[main, title] = []] = Object.entries(run.metrics);
    cell(row, run.newest && main ? title + " " + number(run.newest[main]) : "–");
    cell(row, run.private ? number(run.epsilon, 2) + " of " + (run.budget ?? "–") : "no guarantee");
  }
  $("none").hidden = runs.length > 0;
}

function draw(id, key) {
  const svg = $(id), space = "http://www.w3.org/2000/svg", rows = course.filter(row => Number.isFinite(row[key]));
  svg.replaceChildren();
  if (!rows.length) return;
  const values = rows.map(row => row[key]), last = Math.max(2, rows[rows.length - 1].round);
  const bottom = Math.min(...values), top = Math.max(...values, bottom + 1e-6);
  const x = round => 50 + 600 * (round - 1) / (last - 1), y = value => 190 - 170 * (value - bottom) / (top - bottom);
  const add = (kind, values, text) => {
    const made = document.createElementNS(space, kind);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
  };
  for (const part of [0, .25, .5, .75, 1]) {
    const value = bottom + part * (top - bottom);
    add("line", {x1: 50, x2: 650, y1: y(value), y2: y(value), class: "grid"});
    add("text", {x: 44, y: y(value) + 4, "text-anchor": "end"}, value.toFixed(2));
  }
  add("text", {x: 650, y: 208, "text-anchor": "end"}, "round " + rows[rows.length - 1].round);
  add("polyline", {points: rows.map(row => x(row.round) + "," + y(row[key])).join(" "), class: "line"});
  add("text", {x: 656, y: y(values[values.length - 1]) + 4}, values[values.length - 1].toFixed(3));
}

function show(run) {
  if (run.round < seen) course = [];
  seen = run.round;
  course = course.filter(row => !run.course.some(one => one.round === row.round)).concat(run.course);
  $("run").hidden = false;
  $("name").textContent = run.name;
  const wrong = run.problem ? ". " + run.problem : "";
  $("state").textContent = run.state + ", round " + run.round + " of " + (run.rounds ?? "–") + wrong;
  $("report").hidden = run.state !== "finished";
  $("report").href = "/runs/" + encodeURIComponent(run.name) + "/report.html";
  const names = Object.keys(run.metrics), body = $("sites");
  document.querySelector(".main").textContent = run.metrics[names[0]] || "Metrics";
  draw("main", names[0]);
  draw("loss", "loss");
  $("columns").replaceChildren(...["Hospital", "Round", ...Object.values(run.metrics), "Epsilon spent"].map((text, i) => {
    const head = document.createElement("th");
    if (i) head.className = "num";
    head.textContent = text;
    return head;
  }));
  body.replaceChildren();
  for (const [name, site] of Object.entries(run.sites).slice(0, 300)) {
    const row = body.insertRow();
    cell(row, name, false);
    cell(row, String(site.round));
    for (const key of names) cell(row, number(site[key]));
    cell(row, run.private ? number(site.epsilon) : "no guarantee");
  }
  $("dropped").hidden = !run.dropouts.length;
  $("dropouts").replaceChildren(...run.dropouts.map(one => {
    const item = document.createElement("li");
    item.textContent = "Round " + one.round + ": " + one.site + ": " + one.reason;
    return item;
  }));
}

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store"});
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

async function look() {
  try {
    const runs = await ask("/api/runs");
    if (!chosen && runs.length) chosen = runs[0].name;
    list(runs);
    // The newest round is asked for again: a checkpoint may have held a part of it.
    if (runs.some(run => run.name === chosen))
      show(await ask("/api/runs/" + encodeURIComponent(chosen) + "?after=" + Math.max(0, seen - 1)));
    $("lost").hidden = true;
  } catch { $("lost").hidden = false; }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
addEventListener("hashchange", () => { chosen = decodeURIComponent(location.hash.slice(1)); course = []; seen = 0; });
look();
