"""A posterior as a person sees it in the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table


def posterior_table(posterior: dict[str, Any]) -> Table:
    """A row for each parameter: mean, standard deviation, 95 % interval, and how many times privacy widened it, where known."""
    widened = "not_counted" not in posterior
    caption = "Widened: standard deviation over that without privacy."
    if not widened:
        caption = f"Intervals do not count {posterior['not_counted']}."
    table = Table(
        title=f"Posterior of {posterior['model']}, by feature as scaled", title_justify="left", box=box.SIMPLE_HEAD,
        pad_edge=False, caption=caption, caption_justify="left",
    )  # fmt: skip
    for heading in ("parameter", "mean", "SD", "from", "to", *(["widened"] if widened else [])):
        table.add_column(heading, justify="left" if heading == "parameter" else "right", no_wrap=heading != "parameter")
    for name, row in posterior["parameters"].items():
        figures = (f"{row[key]:.3f}" for key in ("mean", "sd", "low", "high"))
        table.add_row(name, *figures, *([f"{row['inflation']:.3g} times"] if widened else []))
    return table
