"""The report of one run: its figures, its sections in their order, and the files that they become.

It only reads what a run left (summary.json, rounds.parquet, config.toml, schema.toml, versions.json, quality.json, attacks.json);
it measures nothing and touches no record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import to_png, to_svg
from polyclinic.evaluation.figures.records import plot_flow
from polyclinic.evaluation.figures.results import result_figures
from polyclinic.evaluation.figures.shapes import plot_shapes
from polyclinic.evaluation.figures.synthetic import quality_figures, transfer_figures
from polyclinic.evaluation.formats import Summary
from polyclinic.evaluation.page import render, write_page
from polyclinic.evaluation.report import artist, templates
from polyclinic.evaluation.report.attacks import attack_section
from polyclinic.evaluation.report.card import markdown, model_card
from polyclinic.evaluation.report.context import cost, report_context, utility
from polyclinic.evaluation.report.quality import QUALITY, pictures, quality, read_quality
from polyclinic.files import write_file
from polyclinic.runs.folder import Run
from polyclinic.runs.shapes import additive_model, importances, shape_functions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Results:
    """What a report shows of a finished run."""

    run: Run
    summary: Summary
    rounds: pd.DataFrame

    @cached_property
    def quality(self) -> Summary:
        """What ``quality.json`` holds, empty without one."""
        return read_quality(self.run)


#: Figures by section and name: as SVG, and those of training as PNG too.
Drawn = dict[str, dict[str, tuple[str, bytes | None]]]
_SECTIONS = ("training", "analysis", "utility", "shapes", "quality", "transfer", "patients")


def render_report(run_dir: Path, page: Path | None = None, with_figures: bool = True) -> Path:
    """Write a run's ``report.html`` and ``model_card.md`` into its folder, or ``page`` alone, and return the page's path.

    Args:
        run_dir: The run's folder; its files other than summary.json and rounds.parquet are optional.
        page: The file of the page; None means those of the run's folder.
        with_figures: False gives a page of tables alone.

    Raises:
        DataError: If summary.json or rounds.parquet is missing or cannot be read.
    """
    results = read_results(Run(Path(run_dir)))
    return _render(results, lambda: _draw(results, False) if with_figures else {}, page or results.run.report)


def write_plots(run_dir: Path) -> list[Path]:
    """Write ``plots/{rounds,loss,epsilon,...}.svg`` and ``.png`` into a run folder and return their paths.

    Epsilon is left out when no site spent any; figures of an analysis stand for the first two. The figures sites, roc,
    pr, calibration and decision, as SVG alone, are there where predictions left.

    Raises:
        DataError: As ``render_report`` does.
    """
    results = read_results(Run(Path(run_dir)))
    return _write(results, _draw(results))


def write_report(run: Run) -> Path:
    """``write_plots`` and ``render_report`` of figures that are drawn once; without pictures a report of tables alone."""
    answer = artist.ask(run.path) if run.pictures else dict
    results = read_results(run)

    def draw_and_write() -> Drawn:
        pictures: Drawn | None = answer()
        if pictures is None:
            pictures = _draw(results)
        _write(results, pictures)
        return pictures

    return _render(results, draw_and_write, run.report)


def stand_by() -> None:
    """Let a process of its own draw the figures of the run that this process is about to make (``write_report``)."""

    def draw(sections: Sequence[str], folder: Path) -> Drawn:
        return _draw(read_results(Run(folder)), sections=sections)

    artist.stand_by(partial(draw, _SECTIONS[:1]), partial(draw, _SECTIONS[1:]))


def read_results(run: Run) -> Results:
    """The summary and the rounds of a run; DataError if they are missing or cannot be read."""
    for path in (run.summary_file, run.rounds_file):
        if not path.is_file():
            raise DataError(f"{run.path} is not a finished run: it has no {path.name}.")
    return Results(run, run.summary_json(), run.rounds())


def _draw(results: Results, in_dots: bool = True, sections: Sequence[str] = _SECTIONS) -> Drawn:
    """The run's figures in some sections."""
    return {
        # A picture in dots takes three times as long as one in lines.
        section: {name: _to_images(figure, in_dots and section == "training") for name, figure in figures.items()}
        for section, figures in ((section, _figures(results, section)) for section in sections)
    }


def _figures(results: Results, section: str) -> dict[str, Figure]:
    match section:
        case "quality":
            return quality_figures(results.quality)
        case "transfer":
            return transfer_figures(results.quality)
        case "shapes":
            return _shapes(results)
        case "patients":
            flow = results.summary.get("flow")
            return {"flow": plot_flow(Flow.from_list(flow))} if flow else {}
    return result_figures(results.summary, results.rounds, section)


def _shapes(results: Results) -> dict[str, Figure]:
    model = additive_model(results.run)
    if model is None:
        return {}
    return {"shapes": plot_shapes(shape_functions(results.run), [*importances(results.run, model).index])}


def _importances(results: Results) -> dict[str, float]:
    """How much each column of an additive model matters, the most first; empty of another model."""
    model = additive_model(results.run)
    return {} if model is None else importances(results.run, model).to_dict()


def _to_images(figure: Figure, in_dots: bool) -> tuple[str, bytes | None]:
    svg = to_svg(figure)
    figure.set_layout_engine(None)  # its parts have their places since it was drawn in lines
    return svg, to_png(figure) if in_dots else None


def _render(results: Results, drawn: Callable[[], Drawn], page: Path) -> Path:
    from markupsafe import Markup

    shared = report_context(results.summary, results.rounds)
    card = model_card(results.run, shared)
    if card and page == results.run.report:
        write_file(results.run.card_file, markdown(shared["title"], card))
    files = {
        name: path.read_text(encoding="utf-8").strip() if path.is_file() else "not recorded"
        for name, path in (("config", results.run.config_file), ("versions", results.run.versions_file))
    }
    sections = [
        (templates.HEADER, {}),
        (templates.ANALYSIS, {}),
        (templates.HOSPITALS, {}),
        (templates.UTILITY, utility(results.summary)),
        (templates.SHAPES, {"importances": _importances(results)}),
        (templates.SYNTHESIS, {}),
        (QUALITY, quality(results.quality)),
        (templates.PATIENTS, {}),
        (templates.TRAINING, {}),
        (templates.COST, cost(results.summary, results.rounds)),
        (templates.DROPOUTS, {}),
        (templates.PRIVACY, {}),
        ("{{ attacks }}", {"attacks": attack_section(results.run)}),
        (templates.NOTES, {}),
        (templates.CARD, {"card": card} if card else None),
        (templates.REPEAT, files),
    ]
    shared["figures"] = {
        name: pictures({key: svg for key, (svg, _) in figures.items()}) for name, figures in drawn().items()
    }
    parts = [render(template, shared | values) for template, values in sections if values is not None]
    return write_page(page, shared["title"], Markup("\n\n").join(parts))


def _write(results: Results, drawn: Drawn) -> list[Path]:
    folder = results.run.plots
    folder.mkdir(exist_ok=True)
    written = []
    for section, figures in drawn.items():
        for name, (svg, png) in figures.items() if section != "patients" else ():
            written.append(folder / f"{name}.svg")
            written[-1].write_text(svg, encoding="utf-8")
            if png is not None:
                written.append(folder / f"{name}.png")
                written[-1].write_bytes(png)
    return written
