"""The sections of a run's report in their order. A section is a template of its own and the values that it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.evaluation.attacks.section import attack_section
from polyclinic.evaluation.report import templates
from polyclinic.evaluation.report.cost import COST, cost
from polyclinic.evaluation.report.formats import Summary
from polyclinic.evaluation.report.quality import QUALITY, quality, read_quality
from polyclinic.evaluation.report.utility import UTILITY, utility

Values = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run's folder as it was read."""

    folder: Path
    summary: Summary
    rounds: pd.DataFrame


@dataclass(frozen=True)
class Section:
    """``template``: jinja2, which sees what all sections see (``report_context``) and ``values``; None leaves it out."""

    name: str
    template: str
    values: Callable[[Run], Values | None] = lambda run: {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else "not recorded"


def _files(run: Run) -> Values:
    return {"config": _text(run.folder / "config.toml"), "versions": _text(run.folder / "versions.json")}


def _attacks(run: Run) -> Values | None:
    found = attack_section(run.folder)
    return {"attacks": found} if found else None


SECTIONS = (
    Section("header", templates.HEADER),
    Section("hospitals", templates.HOSPITALS),
    Section("utility", UTILITY, lambda run: utility(run.summary)),
    Section("posterior", templates.POSTERIOR),
    Section("synthesis", templates.SYNTHESIS),
    Section("quality", QUALITY, lambda run: quality(read_quality(run.folder))),
    Section("patients", templates.PATIENTS),
    Section("training", templates.TRAINING),
    Section("cost", COST, lambda run: cost(run.summary, run.rounds)),
    Section("dropouts", templates.DROPOUTS),
    Section("privacy", templates.PRIVACY),
    Section("attacks", "{{ attacks }}", _attacks),
    Section("notes", templates.NOTES),
    Section("repeat", templates.REPEAT, _files),
)
