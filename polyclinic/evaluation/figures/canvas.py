"""What every figure is drawn on: panels under a title and a caption, legends, and the figure as a file.

Matplotlib lays out panels, tick labels and legends by itself (compressed layout). Nothing here touches pyplot or a global
backend.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

INK, MUTED, FAINT, GRID = "#1a1a1a", "#555555", "#b4b4b4", "#e6e6e6"
# Paul Tol's "muted" scheme, which the common colour-vision deficiencies leave distinct; black is the pooled line's.
PALETTE = ("#332288", "#cc6677", "#117733", "#882255", "#44aa99", "#999933", "#aa4499", "#88ccee")
DASHES = (0, (5, 4))
SMALL = 9.0  # points, of all text but titles
HEAD, NARROWEST = 0.6, 4.9  # inches: above the panels for title and caption; a figure's width at least
LONGEST_NAME, LONGEST_TITLE = 19, 28


def panels(
    title: str, caption: str, names: Sequence[str] = ("",), width: float = 7.6, height: float = 3.7, columns: int = 0,
    share: bool = True,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """Return a figure with a panel for each name, under a title and a caption.

    Args:
        title: The figure's title.
        caption: One line under it.
        names: The panels' titles.
        width, height: Of the figure, in inches.
        columns: Panels in a row; 0 means all in one row.
        share: All panels have one vertical scale.
    """
    from matplotlib.figure import Figure  # a third of a second, which no run waits for before its end

    width, columns = max(width, NARROWEST), columns or max(len(names), 1)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.set_layout_engine("compressed", rect=(0, 0, 1, 1 - HEAD / height), w_pad=0.08, h_pad=0.06)
    place: dict[str, Any] = {"x": 0.012, "va": "center", "parse_math": False}
    figure.text(y=1 - 0.17 / height, s=title, fontsize=12, fontweight="bold", color=INK, **place)
    figure.text(y=1 - 0.43 / height, s=caption, fontsize=SMALL, color=MUTED, **place)
    grid = figure.subplots(-(-len(names) // columns), columns, sharey=share, squeeze=False)
    for axes in list(grid.flat)[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names, strict=False):
        _prepare(axes, short(name, LONGEST_TITLE))
    return figure, list(grid.flat)[: len(names)]


def panel(title: str, caption: str, ax: Axes | None = None, height: float = 3.7) -> tuple[Figure, Axes]:
    """Return a new figure of one panel with its axes, or ``ax`` with its figure, prepared likewise under the title alone.

    Args:
        title: The figure's title.
        caption: One line under the title of a new figure.
        ax: Axes to draw on; None makes a new figure.
        height: Of a new figure, in inches.
    """
    if ax is None:
        figure, (axes,) = panels(title, caption, height=height)
        return figure, axes
    _prepare(ax, title)
    return cast("Figure", ax.figure), ax


def _prepare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, color=INK, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=3, color=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def label_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Write the names of both axes.

    Args:
        axes: The panel.
        x, y: The names; empty writes none.
    """
    axes.set_xlabel(x, color=MUTED, fontsize=SMALL)
    axes.set_ylabel(y, color=MUTED, fontsize=SMALL)


def name_rows(axes: Axes, names: Sequence[str], longest: int) -> None:
    """Prepare rows from the top, each with its name at the left, and a vertical grid.

    Args:
        axes: The panel.
        names: The rows' names.
        longest: The most characters of a name.
    """
    axes.set_yticks(range(len(names)), [short(name, longest) for name in names], color=INK, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def legend(on: Axes | Figure, **options: Any) -> Legend:
    """A legend of names as they are, at the right of the axes unless the options say otherwise."""
    beside: dict[str, Any] = {} if "loc" in options else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    made: Legend = on.legend(frameon=False, fontsize=SMALL, labelcolor=INK, **beside, **options)
    for text in made.get_texts():
        text.set_parse_math(False)  # a hospital may have a dollar sign in its name
    return made


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name on one line, cut where it is too long."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def to_svg(figure: Figure) -> str:
    """The figure as one SVG document, the same text for the same figure (no date, no random ids)."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "polyclinic"}), io.StringIO() as out:
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return out.getvalue()


def to_png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    with io.BytesIO() as out:
        figure.savefig(out, format="png", dpi=160)
        return out.getvalue()


def to_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as a file of that suffix holds it: ``.png``, or SVG for any other."""
    return to_png(figure) if suffix.lower() == ".png" else to_svg(figure).encode()
