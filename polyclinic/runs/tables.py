"""The tables of an analysis as files: one JSON with all of it, and each table as CSV, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.files import Content, as_text
from polyclinic.runs.json_text import json_text

if TYPE_CHECKING:
    import pandas as pd

_LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
})  # fmt: skip


def table_frame(table: Mapping[str, Any], shown: bool = False) -> pd.DataFrame:
    """One of an analysis' ``tables`` as a data frame; ``shown``: its cells as texts, as a reader sees them."""
    import pandas as pd

    return pd.DataFrame(table["shown" if shown else "rows"], columns=list(table["columns"]))


def analysis_files(folder: Path, analysis: Mapping[str, Any], privacy: Mapping[str, Any]) -> dict[Path, Content]:
    """The contents of an analysis' files, by path; nothing where it was refused.

    Args:
        folder: Where the files are to be.
        analysis: As the summary has it, with its ``tables``.
        privacy: What it cost, for the JSON file.
    """
    if analysis["refused"]:
        return {}
    files: dict[Path, Content] = {folder / "analysis.json": json_text(dict(analysis) | {"privacy": privacy}, indent=2)}
    for table in analysis["tables"]:
        path, shown = folder / "tables" / table["name"], table_frame(table, shown=True).style.hide(axis="index")
        caption = f"{table['title']}. {table['note']}".removesuffix(". ")
        files |= {
            path.with_suffix(".csv"): table_frame(table).rename(columns=as_text).map(as_text).to_csv(index=False),
            path.with_suffix(".tex"): shown.format(escape="latex")
            .format_index(escape="latex", axis=1)
            .to_latex(caption=caption.translate(_LATEX), hrules=True)
            .replace("<", r"\textless{}"),  # which many a font shows as another sign
            path.with_suffix(".html"): shown.format(escape="html")
            .format_index(escape="html", axis=1)
            .to_html(caption=escape(caption)),
        }
    return files
