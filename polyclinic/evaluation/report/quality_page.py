"""The page of a hospital that judged synthetic patients at home."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyclinic.evaluation.plots import to_svg
from polyclinic.evaluation.quality_plots import quality_figures, transfer_figures
from polyclinic.evaluation.report.figures import alt, embedded
from polyclinic.evaluation.report.page import write_page
from polyclinic.evaluation.report.quality import QUALITY, quality
from polyclinic.evaluation.report.sections import Section

_HEADER = """<header>
<h1>{{ title }}</h1>
<p class="muted">{{ found.run }}</p>
</header>
<div class="notice warn"><p><strong>Stays at the hospital.</strong> These are exact figures of real patients, without noise; no
privacy guarantee covers them, and nothing of this page was sent.</p></div>
"""


def write_quality_page(found: Mapping[str, Any], page: Path) -> None:
    """Writes what ``quality.json`` holds as one page that loads nothing."""
    drawn = {"quality": quality_figures(found), "transfer": transfer_figures(found)}
    shown = {
        part: [embedded(to_svg(figure), alt(name)) for name, figure in figures.items()]
        for part, figures in drawn.items()
    }
    title = f"Synthetic patients beside those of {found['hospital']}"
    values = {"title": title, "figures": shown, **(quality(found) or {})}
    sections = (Section("header", _HEADER), Section("quality", QUALITY))
    write_page(page, title, [(section, values) for section in sections])
