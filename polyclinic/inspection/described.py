"""A description of patients as tables for a publication."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.files import NewFile, write_files
from polyclinic.programs.analyses import Table
from polyclinic.runs.tables import analysis_files, table_frame

if TYPE_CHECKING:
    import pandas as pd

# So many hospitals at most stand beside each other in the first table; more have one of their own.
_MOST_COMPARED = 8
_QUARTILES = ("lower quartile", "median", "upper quartile")
_EXACT = "These numbers are exact: this table is NOT private."
_NOISY = (
    "Noise was added that costs each {unit} at most epsilon = {epsilon:.4g} at delta = {delta:g}. The number without it lies "
    "within ± in 95 % of releases; how few patients were described is not in that."
)
_ROWS = "A patient with several rows counts once, by the mean of the numbers or the commonest category."
_HIDDEN = " A dash: too few patients for this budget."
_SMD = "SMD: standardised difference, of several groups the largest between two of them."


@dataclass(frozen=True)
class Described:
    """The answer of hospitals to a ``Description``. answer: As ``asking.ask`` gives it (docs/reference/json.md)."""

    answer: Mapping[str, Any]

    @property
    def table(self) -> pd.DataFrame:
        """Table 1 as a data frame of texts: of the groups, where some were asked for, else of the hospitals."""
        return table_frame(self.tables[0], shown=True)

    @property
    def tables(self) -> tuple[dict[str, Any], ...]:
        """Table 1 by group, and by hospital where there are several, each as an analysis has its tables."""
        sites, by, columns, made = self.answer["sites"], self.answer["by"], self.answer["columns"], []
        if by or not 1 < len(sites) <= _MOST_COMPARED:
            groups = {
                f"{by} = {name}": {"patients": size, **{each: part["groups"][name] for each, part in columns.items()}}
                for name, size in self.answer["groups"].items()
            }
            differences = {name: part["difference"] for name, part in columns.items()}
            made.append(self._table("table1", f"Patients by {by}" if by else "Patients", groups, differences))
        if len(sites) > 1:
            hospitals = {
                name: {"patients": site["patients"]} | {each: part["overall"] for each, part in site["columns"].items()}
                for name, site in sites.items()
            }
            name = "table1-hospitals" if made else "table1"
            made.append(self._table(name, "Patients by hospital", hospitals, self.answer["between_hospitals"]))
        return tuple(asdict(table) | {"shown": table.texts()} for table in made)

    def write(self, folder: Path) -> None:
        """Write ``tables/table1`` as CSV, LaTeX and HTML, and ``description.json``. Raises OSError where it cannot."""
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        files = analysis_files(folder, {"refused": None, "tables": self.tables}, self.answer["privacy"])
        del files[folder / "analysis.json"]
        files[folder / "description.json"] = json.dumps(dict(self.answer), indent=1)
        write_files({path: NewFile(content) for path, content in files.items()})

    def _repr_html_(self) -> str:
        return f"{self.table.to_html(index=False)}<p>{self.tables[0]['note']}</p>"

    def _table(
        self, name: str, title: str, groups: Mapping[str, Mapping[str, Any]], differences: Mapping[str, Any]
    ) -> Table:  # fmt: skip
        """One table. groups: By heading, the number of ``patients`` and the figures of each column."""
        compares = len(groups) > 1
        rows = [("n", "", "", *(_count(group["patients"]) for group in (self.answer, *groups.values())), "")]
        for column, part in self.answer["columns"].items():
            figures = [part["overall"], *(group[column] for group in groups.values())]
            missing, difference = _count(part["overall"]["missing"]), _number(differences[column], 3)
            named = f"{column}, {part['unit']}" if part["unit"] else column
            if levels := part["overall"].get("levels"):
                for level in levels:
                    cells = [_level(figure["levels"][level]) for figure in figures]
                    first = (f"{column}, n (%)", missing, difference) if level == next(iter(levels)) else ("", "", "")
                    rows.append((first[0], level, first[1], *cells, first[2]))
                continue
            digits = _digits(part["overall"]["sd"])
            means = [f"{_number(figure['mean'], digits)} ({_number(figure['sd'], digits)})" for figure in figures]
            low, middle, high = ([_number(figure[name], digits) for figure in figures] for name in _QUARTILES)
            medians = [f"{three[1]} [{three[0]}, {three[2]}]" for three in zip(low, middle, high, strict=True)]
            rows.append((f"{named}, mean (SD)", "", missing, *means, difference))
            rows.append((f"{named}, median [Q1, Q3]", "", "", *medians, ""))
        headings = ("Variable", "Level", "Missing", "Overall", *groups, "SMD")
        end = len(headings) - (not compares)
        note = self._note(compares) + _HIDDEN * any("–" in cell for row in rows for cell in row)
        return Table(name, title, headings[:end], tuple(row[:end] for row in rows), note=note)

    def _note(self, compares: bool) -> str:
        fewest, exact = self.answer["fewest"], self.answer["exact"]
        first = _EXACT if exact else _NOISY.format(**self.answer["privacy"])
        small = [f"of fewer than {fewest} patients"] * (fewest > 1) + ["that may be noise alone"] * (not exact)
        follow = "; they may still follow from others" if exact else ""
        hidden = [f"Counts {' or '.join(small)} are not shown{follow}."] * bool(small)
        return " ".join([first, *hidden, _ROWS, *[_SMD] * compares])


def _number(figure: Mapping[str, Any] | None, digits: int, times: float = 1.0) -> str:
    """A value, and after a ± half of its interval where that is not one point."""
    if figure is None:
        return "–"
    half = times * max(figure["high"] - figure["value"], figure["value"] - figure["low"])
    return f"{times * figure['value']:,.{digits}f}" + (f" ± {half:,.{digits}f}" if half > 0 else "")


def _count(figure: Mapping[str, Any]) -> str:
    return f"<{figure['below']:,.0f}" if figure["value"] is None else _number(figure, 0)


def _level(level: Mapping[str, Any]) -> str:
    share = f" ({_number(level['share'], 1, 100.0)} %)" if level["share"] else " (–)"
    return _count(level["count"]) + (share if level["count"]["value"] is not None else "")


def _digits(spread: Mapping[str, Any] | None) -> int:
    """How many decimals show a column of such a deviation to two digits, from 1 to 6."""
    value = spread["value"] if spread else 0.0
    return min(max(1 - math.floor(math.log10(value)), 1), 6) if value > 0 else 1
