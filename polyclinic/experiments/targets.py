"""What an experiment was to reach, and the one rule by which a goal counts as met, as missed or as open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from polyclinic.errors import DataError

#: How many independent repetitions a verdict needs.
FEWEST: Mapping[str, int] = {"seeds": 12, "splits": 5}
#: By how many standard errors a goal is met at least, so that other seeds meet it too.
SURE = 2.0
#: The rule in words.
RULE = (
    f"A goal is met or missed only by {FEWEST['seeds']} seeds (or {FEWEST['splits']} splits of one data set) or more, unless "
    "chance has no part in it; and it is met only by at least two standard errors, so that other seeds meet it too. Everything "
    "else has no verdict, and says why."
)


@dataclass(frozen=True)
class Target:
    """A result to be reached: what it is, as published, as measured here with its standard error, and the goal in words.

    met: whether the numbers reach the goal, ``None`` where there is none; ``judge`` says what counts.
    seeds: how many independent seeds (draws of patients and noise) or splits, as ``of`` says, are behind ``measured``.
        ``None`` where nobody recorded it.
    exact: why chance has no part in it, as "closed form".
    margin: by how many standard errors the goal is met (negative: missed). ``None`` where the goal counts standard
        errors or cases itself.
    by: the method that is to reach the goal; a method reaches what it is held to by all targets of one id together.
    why: why there is no verdict.
    """

    id: str
    what: str
    paper: str
    measured: str
    goal: str
    met: bool | None
    seeds: int | None = None
    of: Literal["seeds", "splits"] = "seeds"
    exact: str = ""
    margin: float | None = None
    by: str = ""
    why: str = ""

    def judge(self, quick: bool = False, preset: str = "sound") -> Target:
        """The target with the verdict that counts. A short form (``quick``) gives none, nor does another ``preset`` than
        "sound", which keeps no epsilon.

        Examples:
            >>> Target("R0", "accuracy", ".8", ".9", ">= .8", True, seeds=3).judge().why
            '3 seeds; a verdict needs 12'
        """
        why = self.why or self._open(quick, preset)
        return replace(self, met=None, why=why, margin=self.margin if self._is_clear else None) if why else self

    def _open(self, quick: bool, preset: str) -> str:
        if not self.goal:
            return "no goal: shown beside the others"
        if quick:
            return "the short form"
        if preset != "sound":
            return f"the preset {preset!r}, which keeps no epsilon"
        if self.met is None:
            return "not judged"
        if not self._is_clear:
            return "its margin is not a finite number"
        if self.exact:
            return ""
        if self.seeds is None:
            return "the number of seeds was not recorded"
        if self.seeds < FEWEST[self.of]:
            return f"{self.repeats}; a verdict needs {FEWEST[self.of]}"
        if self.met and self.margin is not None and self.margin < SURE:
            return f"met by {self.margin:.2f} standard errors, fewer than {SURE:g}: other seeds may miss it"
        return ""

    @property
    def _is_clear(self) -> bool:
        return self.margin is None or math.isfinite(self.margin)

    @property
    def repeats(self) -> str:
        """How often chance was drawn, in words."""
        if self.exact:
            return f"exact: {self.exact}"
        if self.seeds is None:
            return "not recorded"
        return f"{self.seeds} {self.of if self.seeds != 1 else self.of[:-1]}"

    @property
    def verdict(self) -> str:
        """In words, of a target that was judged."""
        return {True: "met", False: "missed", None: "-" if not self.goal else f"no verdict: {self.why}"}[self.met]


#: Of what type each part is, in a file too.
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "what", "paper", "measured", "goal", "of", "exact", "by", "why"), (str,)),
    "met": (bool, type(None)), "seeds": (int, type(None)), "margin": (float, int, type(None)),
}  # fmt: skip


def target_of(values: Mapping[str, Any]) -> Target:
    """A target as results.json has it. Raises DataError where a part of it is not there, or is what no target has."""
    try:
        target = Target(**{field.name: values[field.name] for field in fields(Target) if field.name in values})
    except TypeError:
        raise DataError(
            f"A target has {', '.join(values)}; it must have id, what, paper, measured, goal and met."
        ) from None
    for name, kinds in _KINDS.items():
        value = getattr(target, name)
        if type(value) not in kinds or (name == "of" and value not in FEWEST):
            raise DataError(f"The target {target.id!r} has {name} {value!r}, which no target has.")
    return target


def verdict_of(targets: Iterable[Target]) -> str:
    """What all judged targets of one id come to, in one line, by who reaches them.

    Examples:
        >>> given = (("a", True), ("b", False), ("a", True))
        >>> many = [Target("R0", "", "", "", "1", met, exact="a sum", by=by) for by, met in given]
        >>> verdict_of(many)
        'met by `a`; missed by `b`'
    """
    groups: dict[str, list[Target]] = {}
    for target in targets:
        if target.goal:
            groups.setdefault(target.by, []).append(target)
    words: dict[str, list[str]] = {"met": [], "missed": [], "no verdict": []}
    for by, group in groups.items():
        words[_together(group)].append(by)
    if not groups:
        return "nothing measured"
    if set(groups) == {""}:
        (word,) = (word for word, listed in words.items() if listed)
        return f"{word}{_of_how_many(word, groups[''])}"
    phrases = {"met": "met by", "missed": "missed by", "no verdict": "no verdict on"}
    text = "; ".join(
        f"{phrases[word]} {', '.join(f'`{by}`' if by else 'the rest' for by in listed)}"
        for word, listed in words.items() if listed
    )  # fmt: skip
    reasons = {target.why for by in words["no verdict"] for target in groups[by] if target.met is None}
    return f"{text} ({reasons.pop()})" if len(reasons) == 1 else text


def _together(group: Sequence[Target]) -> str:
    verdicts = {target.met for target in group}
    return "missed" if False in verdicts else "no verdict" if None in verdicts else "met"


def _of_how_many(word: str, group: Sequence[Target]) -> str:
    if word == "met":
        return f" ({len(group)} of {len(group)})" if len(group) > 1 else ""
    which = next(target for target in group if target.met is (False if word == "missed" else None))
    number = sum(target.met is which.met for target in group)
    share = f"{number} of {len(group)}, " if len(group) > 1 else ""
    return f" ({share}{'first: ' if number > 1 else ''}{which.what}: {which.measured}{f'; {which.why}' if which.why else ''})"
