"""All experiments together: those that are not finished are run one after another, and one table has the targets of all."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyclinic.errors import DataError
from polyclinic.experiments.experiment import Asked, Experiment, Say, markdown
from polyclinic.experiments.running import RESULTS, carry_out
from polyclinic.experiments.targets import RULE, Target, target_of, verdict_of
from polyclinic.files import NewFile, write_files

TARGETS, TARGETS_TABLE = "targets.json", "targets.md"
_NUMBERED = re.compile(r"([A-Z]+)(\d+)")


@dataclass(frozen=True)
class Result:
    """What one folder's results.json says. commit: of the code, in words.  targets: judged by today's rule."""

    experiment: str
    commit: str
    quick: bool
    preset: str
    targets: tuple[Target, ...]


def run_all(experiments: Mapping[str, Experiment], out: Path, quick: bool, say: Say) -> dict[str, str]:
    """Runs every experiment into a folder of its name in ``out``, unless it is finished there.

    One that fails does not stop the others.

    Args:
        experiments: The experiments by their names.
        out: The folder of all.
        quick: Run the short form of each.
        say: Called with each line of progress.

    Returns:
        Why each experiment that failed did so, by name.
    """
    failed: dict[str, str] = {}
    left = [name for name in experiments if not _is_finished(out / name, quick)]
    hours = sum(experiments[name].hours for name in left)
    cost = "" if quick else f", about {_duration(hours)} of one core in all"
    say(f"{len(left)} of {len(experiments)} experiments are to be run{cost}; stopped, they go on where they were.")
    for number, name in enumerate(left, 1):
        takes = "" if quick else f", about {_duration(experiments[name].hours)}"
        say(f"{number} of {len(left)}, {name}{takes}: begins")
        begun = time.monotonic()
        try:
            carry_out(name, experiments[name], Asked(out / name, quick=quick), say)
        except Exception as error:  # noqa: BLE001  one experiment's fault is not the others'
            failed[name] = str(error) or type(error).__name__
        word = f"failed: {failed[name]}" if name in failed else "done"
        say(f"{number} of {len(left)}, {name}: {word} ({time.monotonic() - begun:.0f} s)")
    return failed


def gather(experiments: Mapping[str, Experiment], out: Path) -> dict[str, Any]:
    """Write targets.json and targets.md into ``out`` from every folder's results.json there, and return the former.

    ``experiments``: the experiments that are to be there, which say what their goals are.

    Raises DataError for results that cannot be read.
    """
    measured = results(out)
    whole = together(experiments, measured)
    text = page(whole)
    out.mkdir(parents=True, exist_ok=True)
    files = {TARGETS: json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n", TARGETS_TABLE: text}
    write_files({out / name: NewFile(content) for name, content in files.items()})
    return whole


def results(out: Path) -> list[Result]:
    """Of every folder in ``out`` that has results, by name. Raises DataError for results that cannot be read."""
    return [_read(path) for path in sorted(out.glob(f"*/{RESULTS}"))]


def together(experiments: Mapping[str, Experiment], measured: Sequence[Result]) -> dict[str, Any]:
    """The table of all targets as JSON: ``goals`` has a line for each numbered id, ``own`` one for each experiment's others."""
    words: dict[str, str] = {}
    for experiment in experiments.values():
        words |= {id: text for id, text in experiment.goals.items() if id not in words}
    numbered: dict[str, list[tuple[Result, Target]]] = {id: [] for id in words}
    own: dict[str, list[tuple[Result, Target]]] = {}
    for result in measured:
        for target in result.targets:
            home = numbered if _NUMBERED.fullmatch(target.id) else own
            home.setdefault(target.id if home is numbered else result.experiment, []).append((result, target))
    order = sorted(numbered, key=_place)
    rows = [pair for id in order for pair in numbered[id]] + [pair for name in sorted(own) for pair in own[name]]
    return {
        "rule": RULE,
        "quick": any(result.quick for result in measured),
        "goals": [{"id": id, "what": words.get(id, ""), **_line(numbered[id])} for id in order],
        "own": [{"experiment": name, **_line(own[name])} for name in sorted(own)],
        "not run": sorted(experiments.keys() - {result.experiment for result in measured}),
        "targets": [
            {"experiment": result.experiment, "commit": result.commit, **asdict(target)} for result, target in rows
        ],
    }


def page(whole: Mapping[str, Any]) -> str:
    """The same in Markdown: a line for each goal, then all targets."""
    words = "**Short form: it shows that all parts work; its numbers mean nothing.**\n\n" if whole["quick"] else ""
    head = ["verdict", "met", "missed", "no verdict", "experiments"]
    goals = markdown(["goal", "what", *head], [[f"{g['id']}", g["what"], *_cells(g)] for g in whole["goals"]])
    own = markdown(["own goals of", *head[1:4]], [[g["experiment"], *_cells(g)[1:4]] for g in whole["own"]])
    head = ["for", "experiment", "what", "published", "measured", "over", "goal", "verdict", "commit"]
    rows = []
    for values in whole["targets"]:
        t = target_of(values)
        rows.append([t.id, values["experiment"], t.what, t.paper, t.measured, t.repeats, t.goal, t.verdict,
                     values["commit"]])  # fmt: skip
    missing = f"\nNot run: {', '.join(whole['not run'])}.\n" if whole["not run"] else ""
    return (
        f"{words}# All targets\n\nWritten by `polyclinic reproduce all` from each folder's results.json. {whole['rule']} A "
        "method meets a goal where it meets every target of that goal.\n\n"
        f"{_origin(whole)}{goals}{missing}\n{own}\n## Every target\n\n{markdown(head, rows)}"
    )


def _origin(whole: Mapping[str, Any]) -> str:
    """That the table is of several runs, and of which commits; empty where one commit made it all."""
    commits = dict.fromkeys((t["experiment"], t["commit"]) for t in whole["targets"])
    if len({commit for _, commit in commits}) < 2:
        return ""
    each = ", ".join(f"`{name}` {commit}" for name, commit in sorted(commits))
    return (
        f"**No single run made this table**: it is put together from each experiment's results, at these commits: {each}. A "
        "*file of* a commit is results that came of parts of several runs and are in that commit.\n\n"
    )


def _line(rows: Sequence[tuple[Result, Target]]) -> dict[str, Any]:
    with_goal = [target for _, target in rows if target.goal]
    numbers = {word: sum(target.met is met for target in with_goal)
               for word, met in (("met", True), ("missed", False), ("open", None))}  # fmt: skip
    return {"verdict": verdict_of(target for _, target in rows), **numbers,
            "experiments": list(dict.fromkeys(result.experiment for result, _ in rows))}  # fmt: skip


def _cells(line: Mapping[str, Any]) -> list[str]:
    numbers = [str(line[word]) for word in ("met", "missed", "open")]
    return [line["verdict"], *numbers, ", ".join(line["experiments"])]


def _place(id: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(id)
    return (match[1], int(match[2])) if match else (id, 0)


def _read(path: Path) -> Result:
    name = path.parent.name
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        quick, preset = bool(whole.get("quick")), str(whole.get("preset", "sound"))
        targets = tuple(target_of(values).judge(quick, preset) for values in whole.get("targets", ()))
        commit = whole.get("commit") or (f"file of {whole['committed']}" if whole.get("committed") else "not recorded")
        return Result(str(whole.get("name", name)), commit, quick, preset, targets)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, ValueError, AttributeError, TypeError):
        raise DataError(f"{path} is not the results of an experiment; remove it to run the experiment again.") from None


def _is_finished(folder: Path, quick: bool) -> bool:
    """Whether ``folder`` has the results of this form; those of before targets had a home are none."""
    try:
        whole = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        return bool("name" in whole and whole["quick"] is quick and whole["preset"] == "sound")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _duration(hours: float) -> str:
    if hours <= 0:
        return "a minute"
    return f"{hours:.0f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"
