"""``polyclinic new``: a small package of one's own that works, to begin with.

Its files are those of ``templates``, in which $name, $module, $Name and the like are put in.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import tomli_w
import typer

from polyclinic.cli.terminal import Json, answer, loading
from polyclinic.config import RunConfig
from polyclinic.config.keys import nested_keys
from polyclinic.errors import ConfigError, nearest

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Kind:
    """One kind of package: its group of names, what the name stands for, how a run names it, and what to know of it."""

    group: str
    object: str
    run: str
    about: str
    beware: str = ""


KINDS = {
    "strategy": Kind(
        "strategies", "$Name", "--strategy $name",
        "It runs at the coordinator alone and sees only what hospitals send.",
        "Arguments of its own come as `-c strategy-options=share=0.7`.",
    ),
    "task": Kind(
        "tasks", "TASK", "--task $name -c privacy.patients-per-site=80",
        "It says what hospitals do with their records, and what that costs.",
        "It runs at hospitals, with their records: they install it themselves and name it in their policy's `allowed-tasks`.\n"
        "`event` must cover all that `train` looks at; epsilon is true only if it does.",
    ),
    "program": Kind(
        "programs", "$Name", "--task $name",
        "It is a kind of run: what hospitals are asked for, what that costs, and what the server makes of it.",
        "Options of its own come as `-c task-options=share=0.3`. It runs at hospitals, with their records: they install it\n"
        "themselves and name it in their policy's `allowed-tasks`.",
    ),
    "dataset": Kind(
        "datasets", "DATASET", "--dataset $name",
        "It is for simulations; real hospitals name their own records in `hospital.toml`.",
        "`polyclinic datasets show $name` describes it.",
    ),
    "model": Kind(
        "models", "model", "--model $name",
        "A function that makes a torch module of what its parameters name: features, outputs, schema, options.",
        "It runs at hospitals too: they install it themselves and name it in their policy's `allowed-models`.",
    ),
    "app": Kind(
        "", "$Name", "--strategy $module:$Name",
        "It is Polyclinic with a strategy of one's own, as an app for `flwr run`.",
    ),
}  # fmt: skip


def new(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.")],
    name: Annotated[str, typer.Argument(help="Name of the part, such as half-way, and of its folder.")],
    as_json: Json = False,
) -> None:
    """Write a package of one strategy, task, program, dataset or model into the folder NAME: code, entry point, test, README.

    An app is a Flower app on top of Polyclinic, with a strategy of its own.
    """
    with loading():
        from polyclinic.plugins import plugins

    folder = Path(name)
    files = package(kind, name)
    group = KINDS[kind].group
    taken = [plugin for plugin in plugins() if (plugin.group, plugin.name) == (group, name)]
    if taken:
        raise ConfigError(f"The name {name!r} is taken in {group}, by {taken[0].whose}; choose another.")
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there already, and nothing is written over; choose another name or move it away."
        )
    if find_spec(_module(name)) is not None:
        raise ConfigError(f"The name {name!r} is that of a Python module that is installed here; choose another.")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    shown = f"polyclinic plugins {group}" if group else f"polyclinic flower run --app {name}"
    answer(
        as_json,
        {"folder": str(folder.resolve()), "kind": kind, "name": name, "files": sorted(files)},
        f"Wrote {', '.join(files)} into {folder}.",
        f"Next: pip install -e {name}, then python -m pytest {name}, then {shown}.",
    )


def package(kind: str, name: str) -> dict[str, str]:
    """The package's files, texts by their paths in its folder. Raises ConfigError for an unknown kind or an impossible name."""
    if kind not in KINDS:
        raise ConfigError(f"There is no kind {kind!r}; kinds are {', '.join(KINDS)}.{nearest(kind, KINDS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(_module(name)):
        raise ConfigError(
            f"The name {name!r} cannot be; use small letters, digits and dashes between them, as half-way."
        )
    described, module = KINDS[kind], _module(name)
    class_name = "".join(part.capitalize() for part in name.split("-"))
    config = RunConfig.app_config() | {"strategy": f"{module}:{class_name}"}
    words = {
        "name": name, "module": module, "Name": class_name, "kind": kind, "group": described.group, "about": described.about,
        "config": tomli_w.dumps({"tool": {"flwr": {"app": {"config": nested_keys(config)}}}}),
    }  # fmt: skip
    for word in ("object", "run", "beware"):
        words[word] = Template(getattr(described, word)).substitute(words)
    app, code = ("-app", "strategy") if kind == "app" else ("", kind)
    templates = {
        "pyproject.toml": f"pyproject{app}.toml", "README.md": f"README{app}.md", f"{module}/__init__.py": f"{code}.py",
        f"tests/test_{module}.py": f"test_{kind}.py",
    }  # fmt: skip
    texts = {path: (_TEMPLATES / f"{file}.in").read_text(encoding="utf-8") for path, file in templates.items()}
    return {path: Template(text).substitute(words) for path, text in texts.items()}


def _module(name: str) -> str:
    return name.replace("-", "_")
