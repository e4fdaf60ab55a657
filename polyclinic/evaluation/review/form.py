"""The reviewers' form as one HTML file: each patient by the same code, from whole numbers that do not say whence they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import escape

import numpy as np

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import several
from polyclinic.evaluation.review.form_page import MOST_SCORE, page
from polyclinic.evaluation.review.grid import MISSING, Ints, decimals, slices

NOT_RECORDED = '<span class="muted">not recorded</span>'
ABSENT = '<span class="muted">–</span>'
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _ROOM = 300, 110, 34, 16, 6


@dataclass(frozen=True, eq=False)
class Form:
    """How cells of a schema are written: ``grid``, the steps of columns, ``names``, what codes and categories mean."""

    schema: Schema
    grid: Mapping[str, float]
    names: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]

    @cached_property
    def columns(self) -> list[tuple[Column, slice]]:
        return slices(self.schema)

    def number(self, column: Column, cell: int) -> str:
        """A number on the column's grid, with as many digits as every other one of the column."""
        step = self.grid[column.name]
        return f"{cell * step:.{decimals(step)}f}"

    def value(self, column: Column, cell: int) -> str:
        """One cell as HTML, with its unit."""
        if cell == MISSING:
            return NOT_RECORDED
        if column.bounds is not None:
            return self.number(column, cell) + (f" <small>{escape(column.unit)}</small>" if column.unit else "")
        return self.named((column.categories or _YES_NO.get(column.kind) or ("0", "1"))[cell])

    def named(self, code: str) -> str:
        name = self.names.get(code)
        return escape(code) if name is None else f"{escape(name)} <small>{escape(code)}</small>"

    def record(self, cells: Ints) -> str:
        """One record: single values, then courses over visits, then codes."""
        single = [(c, cells[at][0]) for c, at in self.columns if c.kind not in ("trajectory", "code_set")]
        courses = [(c, cells[at]) for c, at in self.columns if c.kind == "trajectory"]
        sets = [(c, cells[at]) for c, at in self.columns if c.kind == "code_set"]
        values = "".join(f"<div><dt>{_title(c)}</dt><dd>{self.value(c, int(cell))}</dd></div>" for c, cell in single)
        parts = [f'<dl class="values">{values}</dl>'] if values else []
        lengths = dict.fromkeys(c.steps for c, _ in courses)
        parts += [self._courses([one for one in courses if one[0].steps == length]) for length in lengths]
        return "".join([*parts, *(self._codes(c, cell) for c, cell in sets)])

    def _courses(self, courses: Sequence[tuple[Column, Ints]]) -> str:
        """Courses of as many visits: a small chart each, and all numbers in one table."""
        charts = "".join(
            f"<figure><figcaption>{_title(c)}{_unit(c)}</figcaption>{self._chart(c, cells)}</figure>"
            for c, cells in courses
        )
        visits = "".join(f'<th scope="col" class="num">{visit + 1}</th>' for visit in range(courses[0][0].steps))
        rows = "".join(
            f'<tr><th scope="row">{_title(c)}{_unit(c)}</th>'
            + "".join(f'<td class="num">{ABSENT if n == MISSING else self.number(c, int(n))}</td>' for n in cells)
            + "</tr>"
            for c, cells in courses
        )
        return (
            f'<div class="charts">{charts}</div><div class="scroll"><table><thead><tr><th scope="col">visit</th>{visits}</tr>'
            f"</thead><tbody>{rows}</tbody></table></div>"
        )

    def _chart(self, column: Column, cells: Ints) -> str:
        """A line over visits, broken where one is missing; its scale is the same for all patients of the packet."""
        low, high = self.ranges[column.name]
        step, last = self.grid[column.name], max(column.steps - 1, 1)
        places = [
            None
            if cell == MISSING
            else (
                _LEFT + visit / last * (_WIDTH - _LEFT - _ROOM),
                _ROOM + (high - cell * step) / (high - low) * (_HEIGHT - _BOTTOM - _ROOM),
            )
            for visit, cell in enumerate(cells.tolist())
        ]
        path, drawn = "", False
        for place in places:
            path += "" if place is None else f"{'L' if drawn else 'M'}{place[0]:.1f} {place[1]:.1f}"
            drawn = place is not None
        dots = "".join(f'<circle cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="2.5"/>' for p in places if p is not None)
        ends = "".join(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _ROOM}" y1="{y}" y2="{y}"/><text x="{_LEFT - 4}" y="{y + 4}" '
            f'text-anchor="end">{value:.{decimals(step)}f}</text>'
            for value, y in ((high, _ROOM), (low, _HEIGHT - _BOTTOM))
        )
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">{ends}<text x="{_LEFT}" y="{_HEIGHT - 2}">1</text>'
            f'<text x="{_WIDTH - _ROOM}" y="{_HEIGHT - 2}" text-anchor="end">{column.steps}</text>'
            f'<path d="{path}"/>{dots}</svg>'
        )

    def _codes(self, column: Column, cells: Ints) -> str:
        found = [f"<li>{self.named(code)}</li>" for code, on in zip(column.categories, cells, strict=True) if on]
        listed = f'<ul class="codes">{"".join(found)}</ul>' if found else "<p>none recorded</p>"
        return f"<h3>{_title(column)}</h3>{listed}"

    def patient(self, number: int, of: int, records: Ints) -> str:
        """A patient's article with the questions about it."""
        shown = [self.record(cells) for cells in records]
        if len(shown) > 1:
            shown = [f"<h3>Record {i} of {len(shown)}</h3>{one}" for i, one in enumerate(shown, start=1)]
        return (
            f'<article id="patient-{number}" data-patient="{number}" aria-labelledby="name-{number}">'
            f'<h2 id="name-{number}">Patient {number} <small>of {of}</small><span class="state"></span></h2>'
            f"{''.join(shown)}{_questions(number)}</article>"
        )


_YES_NO: Mapping[str, tuple[str, str]] = {"binary": ("no", "yes")}


def render_form(
    patients: Sequence[Ints], schema: Schema, grid: Mapping[str, float], names: Mapping[str, str]
) -> tuple[str, str]:
    """The page, and its packet's digest: the SHA-256 (hex) of everything that it shows of the patients.

    patients: each (records, width) on the grid, in the order of their numbers. Which are real is not known here.
    """
    form = Form(schema, grid, names, _ranges(patients, schema, grid))
    articles = [form.patient(number, len(patients), one) for number, one in enumerate(patients, start=1)]
    glossary = [
        (_title(column), escape(column.description), _public(column)) for column, _ in form.columns
    ]  # fmt: skip
    body = "\n".join(articles)
    digest = sha256(f"{schema.digest()}\n{body}".encode()).hexdigest()
    return page(escape(schema.name), digest, len(patients), glossary, body), digest


def _ranges(patients: Sequence[Ints], schema: Schema, grid: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """From the smallest to the largest reading in the packet, of each course over visits."""
    cells = np.concatenate(list(patients))
    found = {}
    for column, at in slices(schema):
        if column.kind == "trajectory":
            known = cells[:, at][cells[:, at] != MISSING] * grid[column.name]
            low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
            found[column.name] = (low, high) if high > low else (low, low + grid[column.name])
    return found


def _title(column: Column) -> str:
    return escape(column.name.replace("_", " "))


def _unit(column: Column) -> str:
    return f", {escape(column.unit)}" if column.unit else ""


def _public(column: Column) -> str:
    if column.bounds is None:
        return escape(several(column.categories, 8) or "no (0), yes (1)")
    return f"{column.bounds[0]:g} to {column.bounds[1]:g}" + (f" {escape(column.unit)}" if column.unit else "")


def _questions(number: int) -> str:
    scores = _radios(f"score-{number}", [(str(score), str(score)) for score in range(MOST_SCORE + 1)])
    guesses = _radios(f"guess-{number}", [("real", "a real patient"), ("synthetic", "a synthetic patient")])
    return (
        f'<fieldset class="score"><legend>How realistic is patient {number}? <small>0 certainly not real, 10 certainly real'
        f'</small></legend>{scores}</fieldset><fieldset class="guess"><legend>Patient {number} is</legend>{guesses}</fieldset>'
    )


def _radios(name: str, choices: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'<label><input type="radio" name="{name}" value="{value}"><span>{text}</span></label>'
        for value, text in choices
    )
