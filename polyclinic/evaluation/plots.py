"""Figures of a run over its rounds: held-out AUROC and loss of every site, and epsilon against the budget.

Each function takes the ``rounds`` table of a run folder and returns a ``matplotlib.figure.Figure``; nothing here
touches pyplot or a global backend. Lines carry their names at their ends in place of a legend. Of very many hospitals
the distribution is drawn instead of each line.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POOLED, MACRO = "pooled", "macro"
INK, MUTED, FAINT, GRID = "#1a1a1a", "#555555", "#b4b4b4", "#e6e6e6"
# Paul Tol's "muted" scheme: told apart under the common colour-vision deficiencies; black is kept for the pooled line.
PALETTE = ("#332288", "#cc6677", "#117733", "#882255", "#44aa99", "#999933", "#aa4499", "#88ccee")
LABEL_POINTS = 9.0
LONGEST_NAME = 19
SITES_WITH_OWN_COLOUR = len(PALETTE)
MOST_LINES = 60
MARKED_ROUNDS = 20
SHADING = "half, and 90 %, of"
SHADES = (((0.05, 0.95), "#ededed"), ((0.25, 0.75), "#d3d3d3"))

Series = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True)
class Line:
    """One named series: x (rounds) and y, both (m,) finite with m >= 1; an empty name is drawn without a label."""

    name: str
    x: NDArray[np.floating]
    y: NDArray[np.floating]
    colour: str
    width: float = 1.5
    dashed: bool = False
    bold: bool = False


@dataclass(frozen=True)
class Band:
    """An area between low and high over x (rounds), all (m,) finite with m >= 1."""

    x: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    colour: str


def plot_auroc(rounds: pd.DataFrame, floor: float | None = None) -> Figure:
    """AUROC on held-out patients by round: one line a site (or bands), the pooled line bold, ``floor`` as a dashed line.

    rounds: columns round, site, auroc; rows without a value are left out.
    """
    series = _series(rounds, "auroc")
    caption = _caption(series, "Higher is better; 0.5 is a coin toss.")
    references = {} if floor is None else {"no-skill floor": floor}
    drawn = _site_lines(series)
    return _draw(drawn, "AUROC on held-out patients", caption, references, ceiling=1.0, bands=_bands(series))


def plot_loss(rounds: pd.DataFrame) -> Figure:
    """Mean cross-entropy on held-out patients by round: one line a site (or bands), the pooled line bold.

    rounds: columns round, site, loss, and optionally train_loss, drawn dashed for the pooled row where present.
    """
    series = _series(rounds, "loss")
    lines = _site_lines(series)
    training = _series(rounds, "train_loss").get(POOLED)
    if lines and training is not None:
        lines.append(Line("pooled, training", *training, MUTED, dashed=True))
    caption = _caption(series, "Lower is better.")
    return _draw(lines, "Loss on held-out patients", caption, bands=_bands(series))


def plot_epsilon(rounds: pd.DataFrame, budget: float | Mapping[str, float | None] | None = None) -> Figure:
    """Epsilon spent by each site up to each round, with the budget as a dashed line.

    rounds: columns round, site, epsilon (cumulative).  budget: one for all sites, or one for each site by name.
    Sites with the same course share a line. A budget over four times the largest epsilon is named, not drawn,
    so that the course stays readable.
    """
    series = {name: xy for name, xy in _series(rounds, "epsilon").items() if name != POOLED}
    same: dict[tuple[bytes, bytes], list[str]] = {}
    for name, (x, y) in series.items():
        same.setdefault((x.tobytes(), y.tobytes()), []).append(name)
    groups = list(same.values())
    crowded = len(groups) > SITES_WITH_OWN_COLOUR
    top = max((xy[1].max() for xy in series.values()), default=0.0)
    largest = max(groups, key=lambda names: series[names[0]][1][-1], default=[])
    shaded = len(groups) > MOST_LINES
    lines = [
        Line(
            "" if crowded and names is not largest else _group_name(names, len(series)),
            *series[names[0]],
            FAINT if crowded and names is not largest else PALETTE[i % len(PALETTE)],
            width=2.0,
        )
        for i, names in enumerate([largest] if shaded else groups)
    ]
    budgets = _budget_lines(budget, list(series))
    near = {name: value for name, value in budgets.items() if value / 4 <= top}
    beyond = [f"{name} of {value:g} is above the chart" for name, value in budgets.items() if name not in near]
    words = (
        f"grey: {SHADING} {len(series):,} hospitals" if shaded else "the hospital refuses what would pass its budget"
    )
    caption = "; ".join([f"Adds up over rounds; {words}", *beyond]) + "."
    return _draw(
        lines, "Privacy spent (epsilon)", caption, near, ground=0.0, bands=_bands(series) if shaded else ()
    )  # fmt: skip


def plot_accountants(curves: Mapping[str, tuple[NDArray[np.floating], NDArray[np.floating]]], settings: str) -> Figure:
    """Epsilon over the steps of training by each way to account it, on a logarithmic scale.

    curves: steps and epsilon, both (m,) and finite, by the accountant's name; "pld", which reports, is bold, and "gdp",
    an approximation, dashed.  settings: what the curves are of, in a few words.
    """
    drawn = {name: (x[y > 0], y[y > 0]) for name, (x, y) in curves.items() if (y > 0).any()}
    lines = [Line("pld", *drawn["pld"], INK, width=3.0, bold=True)] if "pld" in drawn else []
    lines += [
        Line(name, *xy, PALETTE[i], dashed=name == "gdp")
        for i, (name, xy) in enumerate(drawn.items()) if name != "pld"
    ]  # fmt: skip
    caption = f"{settings}. gdp (dashed) is an approximation, the others are bounds."
    return _draw(lines, "Privacy spent (epsilon) by accountant", caption, across="step", logarithmic=True)


def to_svg(figure: Figure) -> str:
    """The figure as one SVG document, the same text for the same figure (no date, no random ids)."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "polyclinic"}), io.StringIO() as out:
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return out.getvalue()


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """The figure as PNG bytes."""
    with io.BytesIO() as out:
        figure.savefig(out, format="png", dpi=dpi)
        return out.getvalue()


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places at least ``gap`` apart, in the order of ``wanted`` and as near to it as can be (least squares).

    Kept within low..high if they fit. Isotonic regression of wanted minus rank times gap, by pooling neighbours.
    """
    order = np.argsort(np.asarray(wanted, dtype=np.float64), kind="stable")
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        mean, size = float(wanted[index]) - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    bases = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks]) if blocks else np.empty(0)
    bases = bases.clip(low, max(low, high - (len(order) - 1) * gap))
    places = [0.0] * len(order)
    for rank, index in enumerate(order):
        places[index] = float(bases[rank]) + rank * gap
    return places


def _series(rounds: pd.DataFrame, metric: str) -> Series:
    """Finite values of ``metric`` by round for each site that has any, sites sorted, the pooled row last."""
    if metric not in rounds.columns:
        return {}
    x = pd.to_numeric(rounds["round"], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    y = pd.to_numeric(rounds[metric], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    site, names = pd.factorize(rounds["site"].astype(str), sort=True)
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    order = kept[np.lexsort((x[kept], site[kept]))]
    parts = np.split(order, np.flatnonzero(np.diff(site[order])) + 1) if len(order) else []
    found = {str(names[site[part[0]]]): (x[part], y[part]) for part in parts}
    return {name: found[name] for name in sorted(found, key=lambda name: (name == POOLED, name)) if name != MACRO}


def _site_lines(series: Series) -> list[Line]:
    sites = [name for name in series if name != POOLED]
    last = {name: float(series[name][1][-1]) for name in sites}
    named: dict[str, str] = {}
    if len(sites) > SITES_WITH_OWN_COLOUR:
        named = {max(sites, key=last.__getitem__): PALETTE[0], min(sites, key=last.__getitem__): PALETTE[1]}
    lines = []
    for i, name in enumerate(sites if len(sites) <= MOST_LINES else ()):
        if not named:
            lines.append(Line(name, *series[name], PALETTE[i]))
        elif name not in named:
            lines.append(Line("", *series[name], FAINT, width=0.9))
    lines += [Line(name, *series[name], colour) for name, colour in named.items()]
    if POOLED in series:
        lines.append(Line(POOLED, *series[POOLED], INK, width=3.0, bold=True))
    return lines


def _bands(series: Series) -> list[Band]:
    """Where the sites of each round lie, if they are too many for a line each."""
    sites = [xy for name, xy in series.items() if name != POOLED]
    if len(sites) <= MOST_LINES:
        return []
    x, y = (np.concatenate([xy[part] for xy in sites]) for part in (0, 1))
    order = np.argsort(x, kind="stable")
    rounds, first = np.unique(x[order], return_index=True)
    shares = sorted(share for pair, _ in SHADES for share in pair)
    quantiles = np.array([np.quantile(part, shares) for part in np.split(y[order], first[1:])])
    found = dict(zip(shares, quantiles.T, strict=True))
    return [Band(rounds, found[low], found[high], colour) for (low, high), colour in SHADES]


def _caption(series: Series, words: str) -> str:
    sites = len(series.keys() - {POOLED})
    if sites <= SITES_WITH_OWN_COLOUR:
        return words
    if sites <= MOST_LINES:
        return f"{words} {sites} hospitals; the highest and the lowest at the end are named."
    return f"{words} Grey: {SHADING} {sites:,} hospitals; highest and lowest named."


def _group_name(names: Sequence[str], sites: int) -> str:
    if len(names) == 1:
        return names[0]
    return f"all {sites} hospitals" if len(names) == sites else f"{len(names)} hospitals"


def _budget_lines(budget: float | Mapping[str, float | None] | None, sites: Sequence[str]) -> dict[str, float]:
    if not isinstance(budget, Mapping):
        return {} if budget is None else {"budget": float(budget)}
    owners: dict[float, list[str]] = {}
    for name in sites:
        value = budget.get(name)
        if value is not None:
            owners.setdefault(float(value), []).append(name)
    if len(owners) == 1 and len(next(iter(owners.values()))) == len(sites):
        return {"budget": next(iter(owners))}
    if len(owners) > 3:
        return {"lowest budget": min(owners), "highest budget": max(owners)}
    return {f"budget, {_group_name(names, len(sites))}": value for value, names in owners.items()}


def _short(name: str) -> str:
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return plain if len(plain) <= LONGEST_NAME else plain[: LONGEST_NAME - 1] + "…"


def _draw(
    lines: Sequence[Line],
    title: str,
    caption: str,
    references: Mapping[str, float] | None = None,
    ground: float | None = None,
    ceiling: float | None = None,
    bands: Sequence[Band] = (),
    across: str = "round",
    logarithmic: bool = False,
) -> Figure:
    # Matplotlib takes a third of a second to load, which no run waits for before its end.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.6, 3.7), facecolor="white")
    axes = figure.add_axes((0.075, 0.135, 0.655, 0.68))
    figure.text(0.012, 0.955, title, fontsize=12, fontweight="bold", color=INK, va="center")
    figure.text(0.012, 0.885, caption, fontsize=9, color=MUTED, va="center")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=9, length=3, color=FAINT)
    if not lines:
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color=MUTED, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
        return figure
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(across, color=MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    references = references or {}
    shaded = [part for band in bands for part in (band.low, band.high)]
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    _set_limits(axes, lines, np.concatenate([[*references.values()], *shaded]), ground, ceiling)
    for band in bands:
        if len(band.x) == 1:
            axes.vlines(band.x, band.low, band.high, color=band.colour, linewidth=12, zorder=1)
        axes.fill_between(band.x, band.low, band.high, color=band.colour, linewidth=0, zorder=1)
    marked = len({float(x) for line in lines for x in line.x}) <= MARKED_ROUNDS
    for line in lines:
        style = "--" if line.dashed else "-"
        axes.plot(line.x, line.y, style, color=line.colour, linewidth=line.width, solid_capstyle="round", zorder=3)
        dots = slice(None) if marked and line.name else slice(-1, None)
        axes.plot(
            line.x[dots], line.y[dots], "o", color=line.colour, markersize=2.2 + line.width, clip_on=False, zorder=3
        )
    for value in references.values():
        axes.axhline(value, color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)), zorder=2)
    _label_ends(figure, axes, lines, references)
    return figure


def _set_limits(
    axes: Axes, lines: Sequence[Line], others: NDArray[np.float64], ground: float | None, ceiling: float | None
) -> None:
    first, last = min(line.x.min() for line in lines), max(line.x.max() for line in lines)
    axes.set_xlim(first - 0.5 if first == last else first - 0.01 * (last - first), last + (0.5 if first == last else 0))
    values = np.concatenate([line.y for line in lines] + [others])
    low, high = float(values.min()), float(values.max())
    if axes.get_yscale() == "log":
        share = max((high / low) ** 0.06, 1.05)
        axes.set_ylim(low / share, high * share)
        return
    room = 0.06 * (high - low) or 0.05 * max(abs(high), 0.1)
    top = high + room if ceiling is None else min(high + room, ceiling + room / 6)
    axes.set_ylim(low - room if ground is None else ground, top)


def _label_ends(figure: Figure, axes: Axes, lines: Sequence[Line], references: Mapping[str, float]) -> None:
    right = axes.get_xlim()[1]
    ends = [(f"{_short(n.name)}  {_number(n.y[-1])}", n.x[-1], n.y[-1], n.colour, n.bold) for n in lines if n.name]
    ends += [(f"{_short(name)}  {_number(value)}", right, value, MUTED, False) for name, value in references.items()]
    heights = [float((axes.transScale + axes.transLimits).transform((x, y))[1]) for _, x, y, _, _ in ends]
    height_points = axes.get_position().height * figure.get_figheight() * 72
    places = spread(heights, 1.25 * LABEL_POINTS / height_points, 0.0, 1.0)
    for (text, x, y, colour, bold), place in zip(ends, places, strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.06, place),
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL_POINTS,
            fontweight="bold" if bold else "normal",
            color=INK,
            annotation_clip=False,
            parse_math=False,  # a site may have a dollar sign in its name
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.9,
                "relpos": (0.0, 0.5),
                "shrinkA": 2,
                "shrinkB": 2,
            },
        )


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}"
