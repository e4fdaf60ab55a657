"""What other packages bring by entry points, found without loading any of it.

A group's entry points are ``polyclinic.GROUP``. Names that are ours stay ours; a name that two packages claim stands for
neither; whatever is wrong with one package is said beside its names and stops no other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

from polyclinic.errors import ConfigError, nearest

PREFIX = "polyclinic."
_NAME = re.compile(r"[^\s:]+")


@dataclass(frozen=True)
class Plugin:
    """One name of one group, the package that brings it, the object that it stands for, and why it cannot be used."""

    group: str
    name: str
    package: str
    version: str = ""
    object: str = ""
    problem: str = ""

    @property
    def whose(self) -> str:
        return f"{self.package} {self.version}".rstrip()


def claims(group: str, ours: Collection[str]) -> list[Plugin]:
    """The names that other packages bring to ``group``, with what is wrong with a claim as such; loads nothing."""
    claimants = [plugin for plugin in _every() if plugin.group == group]
    return [replace(plugin, problem=plugin.problem or _problem(plugin, claimants, ours)) for plugin in claimants]


def claim_of(group: str, name: str, ours: Collection[str]) -> EntryPoint | None:
    """What another package brings under a name; None where none does.

    Args:
        group: The group of names, without the prefix of all.
        name: The name.
        ours: The group's names that are polyclinic's own.

    Raises:
        ConfigError: Several packages bring the name, or it cannot be used; the sentence says why.
    """
    plugins = [plugin for plugin in claims(group, ours) if plugin.name == name]
    if plugins and plugins[0].problem:
        raise ConfigError(f"The name {name!r} in {PREFIX}{group} cannot be used: {plugins[0].problem}.")
    return EntryPoint(name, plugins[0].object, f"{PREFIX}{group}") if plugins else None


def strays(groups: Collection[str]) -> list[Plugin]:
    """What packages bring to groups that there are not, as after a slip of the pen, and packages that cannot be read."""
    known_groups = [f"{PREFIX}{group}" for group in groups]
    return [
        replace(plugin, problem=plugin.problem or
                f"there is no group {PREFIX + plugin.group!r}.{nearest(PREFIX + plugin.group, known_groups)}")
        for plugin in _every() if plugin.group not in groups
    ]  # fmt: skip


def _problem(plugin: Plugin, claimants: Collection[Plugin], ours: Collection[str]) -> str:
    if not _NAME.fullmatch(plugin.name):
        return "a name holds neither a colon nor a blank"
    if plugin.name in ours:
        return f"the name is polyclinic's own, and {plugin.whose} claims it too; it stands for polyclinic's"
    claiming = sorted(other.whose for other in claimants if other.name == plugin.name)
    return f"{' and '.join(claiming)} claim it; remove all but one" if len(claiming) > 1 else ""


def _every() -> tuple[Plugin, ...]:
    """All names under our prefix; looked up again when Python's path changes, or one of its folders."""
    return _in_path(tuple((place, _change_time(place)) for place in sys.path))


@lru_cache(maxsize=1)
def _in_path(places: tuple[tuple[str, int], ...]) -> tuple[Plugin, ...]:
    return tuple(_all_plugins())


def _change_time(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


def _all_plugins() -> Iterator[Plugin]:
    """Of a package that is there twice the one that Python imports first."""
    seen = set()
    for package in distributions():
        if PREFIX not in _text(package):
            continue
        name, version = _name_and_version(package)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key and key in seen:
            continue
        seen.add(key)
        try:
            points = list(package.entry_points)
        except Exception as error:  # a stranger's file, of which any line may be anything
            problem = f"its entry_points.txt cannot be read ({type(error).__name__})"
            yield Plugin("", "", name, version, problem=problem)
            continue
        for point in points:
            if point.group.startswith(PREFIX):
                yield Plugin(point.group.removeprefix(PREFIX), point.name, name, version, point.value)


def _text(package: Distribution) -> str:
    try:
        return package.read_text("entry_points.txt") or ""
    except Exception:  # as above
        return ""


def _name_and_version(package: Distribution) -> tuple[str, str]:
    try:
        metadata = package.metadata
        return metadata["Name"] or "", metadata["Version"] or ""
    except Exception:  # as above
        return "", ""
