"""``python docs/performance.py`` writes the tables of docs/performance.md from benchmarks/results; a test keeps them equal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.common.report import TITLES, seconds  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results"
BEFORE = RESULTS / "before" / "engine.json"
MET = {True: "yes", False: "**no**", None: ""}
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
#: Result files, and where their own pages tell more.
PAGES = {
    "engine": "engine.md#speed", "simulate": "flower.md", "critics": "engine.md#speed", "flows": "flows/flows.md",
    **dict.fromkeys(("latency", "latency-30"), "deploy/README.md#what-a-round-costs-and-why"),
    "anonymity": "records/anonymity.md#speed",
    "growth": "deploy/README.md#what-a-round-costs-and-why",
    "report_page": "evaluation.md#the-report", "intervals": "evaluation.md#intervals",
    "utility": "privacy/choosing.md", "imports": "architecture.md", "sweeps": "sweep.md#speed",
    "brought": "engine.md#speed",
    "boosting": "boosting.md", "survival": "survival.md#models", "regressions": "regression.md#with-privacy",
    "coverage": "synthesis/inference.md#measured-columns-in-pairs",
    "marginals": "synthesis/marginals.md#beside-the-authors-code",
}  # fmt: skip
PAGES = {name: page for name, page in PAGES.items() if (RESULTS / f"{name}.json").is_file()}
Row = tuple[str, str, str, str, str, str, bool | None]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def engine() -> Iterator[tuple[str, ...]]:
    """(what, against, ours at 0.1, ours, theirs, ratio at 0.1, ratio, wanted, met) of the simulation's rows."""
    key = itemgetter("against", "sites", "dp")
    before = {key(row): row for row in json.loads(BEFORE.read_text(encoding="utf-8"))["rows"]}
    for row in read("engine")["rows"]:
        old: dict[str, Any] = before.get(key(row), {"ours_seconds": None, "ratio": None})
        yield (
            f"{row['sites']:,} hospitals, {'DP' if row['dp'] else 'no DP'}", TITLES[row["against"]],
            *(seconds(value) for value in (old["ours_seconds"], row["ours_seconds"], row["theirs_seconds"])),
            *(_ratio(one) for one in (old, row)), _wanted(row), MET[row["met"]],
        )  # fmt: skip


def _ratio(row: dict[str, Any]) -> str:
    times = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    return f"{times}, {row['peak_gigabytes']:.2f} GB" if "peak_gigabytes" in row else times


def _wanted(row: dict[str, Any]) -> str:
    wanted = row["goal"].replace(">=", "≥").replace("<=", "≤")
    return f"{wanted}, {row['memory_goal']}" if "memory_goal" in row else str(wanted)


def missed() -> str:
    """In a sentence, which of the engine's rows miss what was wanted."""
    every = read("engine")["rows"]
    rows = [row for row in every if row["met"] is False]
    names = dict.fromkeys(TITLES[row["against"]] for row in rows)
    return f"Of the engine's {len(every)} rows {len(rows)} are missed" + (
        f". They are: {'; '.join(names)}." if rows else "."
    )


def rows() -> Iterator[Row]:
    """(what, against, ours, theirs, ratio, wanted, met) of all that is measured but the simulation's rounds."""
    for row in read("simulate")["rows"]:
        workers = f", {row['workers']} workers" if row["workers"] > 1 else ""
        what = f"Flower app `{row['app']}`, {row['nodes']} nodes, {row['rounds']} rounds{workers}: {row['figure']}"
        if row["figure"] == "memory":
            times = f"{row['ours'] / 1e6:.0f} MB", f"{row['theirs'] / 1e6:.0f} MB"
        else:
            times = seconds(row["ours"]), seconds(row["theirs"])
        wanted = f"≥ {row['limit']:g}x" if row["limit"] else ""
        yield what, "`flwr run`", *times, f"{row['ratio']:.3g}x", wanted, row["met"]
    critics, flows, latency = read("critics"), read("flows"), read("latency")
    names = {"opacus": "Opacus, hospital by hospital", "opacus_lean": "Opacus for speed: float32, 8 patients at a time",
             "apart": "our own engine, hospital by hospital", "records": "a plain loop over hospitals and records",
             "flower": "Flower's own SuperExec and pauses"}  # fmt: skip
    yield from _beside(critics, f"a private step of a critic, {critics['terms']['sites']} hospitals", names, "≥ {:g}x")
    yield from _beside(flows, f"a private step of a flow, {flows['terms']['sites']} hospitals", names, "≥ {:g}x")
    yield from _beside(latency, f"a round of {latency['terms']['sites']} real nodes on loopback", names, "")
    ours, theirs = (row["node_megabytes"] for row in latency["rows"])
    yield (
        "memory of a real node just after a run", names["flower"], f"{ours:.0f} MB", f"{theirs:.0f} MB",
        f"{theirs / ours:.3g}x", "", None,
    )  # fmt: skip
    [of_many] = read("latency-30")["rows"]
    waiting = of_many["waiting_megabytes"]
    yield "memory of a real node that waits, of thirty", "", f"{waiting:.0f} MB", "", "", "≤ 250 MB", waiting <= 250
    page = read("report_page")
    what = f"report of {page['terms']['sites']} sites, {page['terms']['rounds']} rounds"
    most, size = page["terms"]["most_seconds"], page["terms"]["most_bytes"]
    yield what, "", seconds(page["report"]["seconds"]), "", "", f"≤ {most:g} s", page["report"]["seconds"] <= most
    megabytes = page["report"]["bytes"] / 1e6
    yield f"{what}: size", "", f"{megabytes:.2f} MB", "", "", f"≤ {size / 1e6:g} MB", page["report"]["bytes"] <= size
    for row in read("anonymity")["rows"]:
        yield f"{row['what']}, 100,000 rows", "", seconds(row["seconds"]), "", "", f"≤ {row['limit']:g} s", row["met"]
    for row in read("sweeps")["rows"] if "sweeps" in PAGES else ():
        what = f"sweep of {row['runs']} runs, {row['what']}, {row['rounds']} rounds, {row['jobs']} jobs"
        times = seconds(row["seconds"]), seconds(row["alone_seconds"]), f"{row['ratio']:.3g}x"
        yield what, "`polyclinic run` once for each", *times, f"≥ {row['goal']:g}x", row["met"]
    terms = read("brought")["terms"]
    for row in read("brought")["rows"]:
        what = f"a private round of `{row['model']}`, {terms['sites']} hospitals, seconds of the processor"
        times = seconds(row["ours"]), seconds(row["opacus"]), f"{row['ratio']:.3g}x"
        yield what, f"Opacus, hospital by hospital, {row['mode']}", *times, f"≥ {terms['goal']:g}x", row["met"]
    for row in read("imports")["rows"]:
        times = seconds(row["seconds"]), seconds(row["theirs_seconds"]), f"{row['ratio']:.3g}x"
        limit = row["limit"]
        wanted, met = (f"≤ {limit:g}x", row["ratio"] <= limit) if limit else ("", None)
        yield f"{row['what']}, seconds of the processor", f"`{row['against']}`", *times, wanted, met


def _beside(result: dict[str, Any], what: str, names: dict[str, str], wanted: str) -> Iterator[Row]:
    first, *others = result["rows"]
    for row in others:
        goal = wanted.format(result["terms"]["goal"]) if wanted else ""
        ours, theirs = seconds(first["seconds"]), seconds(row["seconds"])
        yield what, names[row["way"]], ours, theirs, f"{row['ratio']:.3g}x", goal, row["met"] if wanted else None


def _machine(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["machine"]
    return found


def tables() -> str:
    """What stands between the marks of the page."""
    lines = [
        "| simulation | against | ours, 0.1 | ours | theirs | ratio, 0.1 | ratio | wanted | met |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in engine()),
        "",
        f"{missed()} [Why](engine.md#what-is-missed-and-what-is-left-of-it). The columns of 0.1 are of "
        f"[the measurement of {_machine(BEFORE)['date']}](../benchmarks/results/before/engine.json) at commit "
        f"{_machine(BEFORE)['commit']} on {_machine(BEFORE)['cpu']}.",
        "",
        "| what | against | ours | theirs | ratio | wanted | met |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    lines += [f"| {' | '.join(row[:-1])} | {MET[row[-1]]} |" for row in rows()]
    lines += ["", "| command | machine | load | commit | date | numbers | page |"]
    lines += ["| --- | --- | ---: | --- | --- | --- | --- |"]
    for name, page in PAGES.items():
        machine, command = read(name)["machine"], read(name)["command"]
        where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gigabytes']} GiB"
        numbers = f"[{name}.json](../benchmarks/results/{name}.json)"
        told = [
            f"`{command}`",
            where,
            str(machine.get("load", "–")),  # of timings alone
            machine.get("commit", "–"),
            machine["date"],
            numbers,
            f"[page]({page})",
        ]
        lines.append(f"| {' | '.join(told)} |")
    lines += ["", "| AUROC on the stroke trial's 20 hospitals, behind the pooled model | wanted | measured | met |"]
    lines += ["| --- | ---: | ---: | --- |"]
    for goal in read("utility")["goals"]:
        measured = f"{goal['gap']:.3f} ± {goal['gap_error']:.3f}"
        lines.append(f"| {goal['goal']} | ≤ {goal['most']:.3f} | {measured} | {MET[goal['met']]} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page, with its tables as the results have them now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
