"""Write what follows from the code and from results: the references of keys and of commands in docs/, Flower's config in
pyproject.toml, the table of all targets, and what pages say of it.

``python docs/generate.py`` writes them; a test compares them with what is committed.
"""

from __future__ import annotations

import inspect
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import tomli_w
import typer

from polyclinic.cli import app
from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, SECTIONS, RunConfig
from polyclinic.config.keys import Keys
from polyclinic.experiments import Experiment, markdown
from polyclinic.experiments.together import gather

ROOT = Path(__file__).resolve().parent.parent
MARK = "# GENERATED from RunConfig by `make generate`; a test keeps the two equal.\n"


def pyproject(text: str) -> str:
    """``text`` with the section [tool.flwr.app.config] replaced by the defaults of ``RunConfig``."""
    head, rest = text.split(MARK, 1)
    tail = rest[rest.index("\n[") :] if "\n[" in rest else ""
    return head + MARK + "".join(f"{key} = {_toml(value)}\n" for key, value in RunConfig.app_config().items()) + tail


def _toml(value: object) -> str:
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def reference() -> str:
    """The tables of configuration keys, one for each section, and of what they need, in Markdown."""
    lines = ["# Configuration keys", "",
    "Generated from `RunConfig`. A TOML file (`polyclinic run FILE`) has the keys of the first "
             "table at its top and each section as a table: `[privacy]`. Elsewhere a section's key has the section's name before "
             "it: `-c privacy.epsilon=1`, `flwr run --run-config 'privacy.epsilon=1'`. In Python they are keyword arguments: "
             "`Federation.from_dataset(\"trial\", rounds=20, privacy={\"epsilon\": 1})`, or `privacy=Privacy(epsilon=1)`.", "",
             "A default in *italics* is what most runs take: some tasks, models, strategies and optimizers take another where "
             "nothing is given. Flower's configuration of the app holds an empty text for these keys, which is a key that is not "
             "given.", "", "## At the top", "", *_table(RunConfig, "")]  # fmt: skip
    for name, section in SECTIONS.items():
        lines += ["", f"## [{name}]", "", inspect.cleandoc(section.__doc__ or ""), "", *_table(section, f"{name}.")]
    return "\n".join(lines) + "\n\n" + needs()


def _table(section: type[Keys], before: str) -> list[str]:
    rows, varying = ["| key | default | meaning |", "|---|---|---|"], RunConfig.app_config()
    for name, value in section().model_dump(by_alias=True).items():
        if isinstance(value, dict):
            continue
        field = section.model_fields[name.replace("-", "_")]
        default = f"`{tomli_w.dumps({'v': value})[4:].strip()}`"
        default = f"*{default}*" if varying[before + name] == "" and value != "" else default
        rows.append(f"| `{name}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return rows


def needs() -> str:
    """The table of keys that have an effect only where others are so, in Markdown."""
    rows = ["## Keys without effect", "", "A key that is given and can have no effect is refused in one sentence, before "
            "anything is spent: whoever gives it expects something of it. `dp` false is the exception: what it puts aside is "
            "told in the run's notes (below: told), so that one file serves a private run and the same without privacy. A key "
            "at its default counts as not given, since Flower's run-config holds all of them.", "",
            "| keys | have an effect only with | else |", "|---|---|---|"]  # fmt: skip
    for effect in (*EFFECTS, NOT_UNDER_FLOWER):
        keys = ", ".join(f"all of `[{key}]`" if key in SECTIONS else f"`{key}`" for key in effect.keys)
        keys += f" except {', '.join(f'`{key}`' for key in effect.but)}" if effect.but else ""
        rows.append(f"| {keys} | {effect.needs} | {'told' if effect.noted else 'refused'} |")
    return "\n".join(rows) + "\n"


def commands() -> str:
    """Every command with its arguments and options, in Markdown."""
    lines = ["# Commands", "", "Generated from the command line. `polyclinic COMMAND --help` says the same in the terminal. "
             "Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 3 a privacy budget refused it."]  # fmt: skip
    for path, command in _walk("polyclinic", typer.main.get_command(app)):
        context = click.Context(command, info_name=path)
        lines += ["", f"## {path}", "", inspect.cleandoc(command.help or "").replace("\f", ""), ""]
        lines += ["```text", f"{path} {' '.join(command.collect_usage_pieces(context))}", "```"]
        records = [param.get_help_record(context) for param in command.params if not getattr(param, "hidden", False)]
        rows = [f"| `{_cell(name)}` | {_cell(meaning)} |" for name, meaning in filter(None, records)]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    shown = {name: below for name, below in getattr(command, "commands", {}).items() if not below.hidden}
    for name, below in shown.items():
        yield from _walk(f"{path} {name}", below)


def _cell(text: str) -> str:
    return " ".join(text.replace("\\[", "[").split()).replace("|", "\\|")


RESULTS = ROOT / "experiments/results"
#: What pages say of targets: ``<!-- targets R12, accuracy -->``, ids or experiments with goals of their own.
VERDICTS = re.compile(r"<!-- targets ([^\n]*) -->\n.*?<!-- end of targets -->", re.S)


def studies() -> dict[str, Experiment]:
    """The experiments of experiments/, whether they are installed or not."""
    package = tomllib.loads((ROOT / "experiments/pyproject.toml").read_text(encoding="utf-8"))
    places = package["project"]["entry-points"]["polyclinic.experiments"]
    return {
        name: getattr(import_module(place.partition(":")[0]), place.partition(":")[2]) for name, place in places.items()
    }


def verdicts(page: Path, text: str, whole: Mapping[str, Any]) -> str:
    """The ``page``'s ``text`` with the verdicts that it names, as the table of all targets ``whole`` has them."""
    lines = {line["id"]: line for line in whole["goals"]} | {line["experiment"]: line for line in whole["own"]}
    table = os.path.relpath(RESULTS / "targets.md", page.parent)

    def written(match: re.Match[str]) -> str:
        rows = []
        for name in match[1].split(", "):
            line = lines[name]
            what = f"{name}. {line['what']}" if "id" in line else f"own goals of `{name}`"
            rows.append([what, line["verdict"], str(line["met"]), str(line["missed"]), str(line["open"])])
        made = markdown([f"[goal]({table})", "verdict", "met", "missed", "no verdict"], rows)
        return f"<!-- targets {match[1]} -->\n\n{made}\n<!-- end of targets -->"

    return VERDICTS.sub(written, text)


def main() -> None:
    path = ROOT / "pyproject.toml"
    path.write_text(pyproject(path.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs/reference/configuration.md").write_text(reference(), encoding="utf-8")
    (ROOT / "docs/reference/commands.md").write_text(commands(), encoding="utf-8")
    whole = gather(studies(), RESULTS)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if VERDICTS.search(text):
            page.write_text(verdicts(page, text, whole), encoding="utf-8")


if __name__ == "__main__":
    main()
