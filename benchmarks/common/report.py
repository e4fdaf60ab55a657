"""The table and the plot of a result; both are functions of its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- benchmarks.engine: begin -->", "<!-- benchmarks.engine: end -->"
TITLES = {
    "flower": "Flower's simulation, a round",
    "flower_command": "Flower's simulation, whole command, 15 rounds",
    "opacus_loop": "a loop over sites of Opacus",
    "plain_loop": "a loop over sites of plain SGD",
    "pfl": "pfl-research, a round",
    "floor": "the floor: one big-batch loop and the noise",
    "ours_dp_over_ours_plain": "our own training without privacy",
    "many_sites": "ours at 200 sites, seconds per site",
    "cohorts": "ours at 1,000 sites, cohorts of 500, seconds per site asked",
    "importing": "importing torch, pandas and matplotlib alone",
    "start": "start to first round",
}
Result = Mapping[str, Any]


def table(result: Result) -> str:
    """GitHub markdown, one line a row and a sentence on the machine."""
    head = ["against", "sites", "privacy", "ours", "theirs", "ratio", "goal", "met", "note"]
    lines = [_line(head), _line(["---", *["---:"] * 1, "---", *["---:"] * 3, "---", "---", "---"])]
    lines += [_line(_cells(row)) for row in result["rows"]]
    return "\n".join([*lines, "", _sentence(result)])


def write_section(path: Path, result: Result, plot: str) -> None:
    """Put table and plot between the two marks of ``path``, which is made, with its section "Speed", where it is missing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else "# The simulation engine\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## Speed\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    picture = f"![How many times faster than each peer, and the goals]({plot})"
    path.write_text(f"{before}{BEGIN}\n{table(result)}\n\n{picture}\n{END}{after}", encoding="utf-8")


def write_plot(path: Path, result: Result) -> None:
    """Bars of how many times faster we are, on a logarithmic axis, with a tick at each goal."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "polyclinic"
    from matplotlib import pyplot

    rows = [row for row in result["rows"] if row["ratio"] is not None and row["goal"].startswith(">=")]
    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 1))
    places = range(len(rows))
    axes.barh(places, [row["ratio"] for row in rows], color=["#2a7f62" if row["met"] else "#b5651d" for row in rows])
    for place, row in zip(places, rows, strict=True):
        goal = float(row["goal"].removeprefix(">=").removesuffix("x"))
        axes.plot([goal, goal], [place - 0.45, place + 0.45], color="black", linewidth=1.5)
    axes.set_yticks(places, [f"{TITLES[row['against']]}, {row['sites']} sites{_privacy(row, ', ')}" for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="grey", linewidth=0.5)
    axes.set_xlabel("times faster (black: goal)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _privacy(row: Mapping[str, Any], lead: str = "") -> str:
    return f"{lead}{'DP' if row['dp'] else 'no DP'}"


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    goal, note = row["goal"].replace(">=", "≥").replace("<=", "≤"), row["note"]
    if "peak_gigabytes" in row:
        goal += f", {row['memory_goal']}"
        note += f"; peak {row['peak_gigabytes']:.2f} GB"
    met = {True: "yes", False: "no", None: ""}[row["met"]]
    return [TITLES[row["against"]], f"{row['sites']:,}", _privacy(row), seconds(row["ours_seconds"]),
            seconds(row["theirs_seconds"]), ratio, goal, met, note.replace("|", "/")]  # fmt: skip


def seconds(value: float | None) -> str:
    """Three digits in the unit that suits."""
    if value is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(result: Result) -> str:
    machine, busy = result["machine"], [row.get("busy_cores") for row in result["rows"]]
    packages = ", ".join(f"{name} {machine[name]}" for name in ("torch", "flwr", "opacus", "ray") if machine.get(name))
    beside = "" if None in busy or not busy else f"; before a row other work took at most {max(busy):g} cores"
    return (
        f"Measured {machine['date']} at commit {machine['commit']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gigabytes']} GiB, Python {machine['python']}, {packages}. Load at the start {machine['load']}{beside}."
    )
