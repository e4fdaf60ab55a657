"""Figures of synthetic patients: what is drawn is what was given, names are kept whole, odd input is drawn or refused."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import MUTED, to_svg
from polyclinic.evaluation.figures.synthetic import plot_correlations, plot_courses, plot_probabilities, plot_transfer
from polyclinic.evaluation.intervals import Interval
from polyclinic.evaluation.synthetic.codes import probabilities

RNG = np.random.default_rng(0)


def score(value: float | None) -> Interval:
    return Interval(None) if value is None else Interval(value, value - 0.05, value + 0.03)


def legends(figure: Figure) -> list[Legend]:
    return [*figure.legends, *(made for axes in figure.axes if (made := axes.get_legend()) is not None)]


def texts_stay_inside(figure: Figure) -> bool:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = [*figure.texts, *(text for axes in figure.axes for text in (*axes.texts, axes.title, axes._left_title))]  # type: ignore[attr-defined]
    found += [text for made in legends(figure) for text in made.get_texts()]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [text.get_window_extent(renderer) for text in found if text.get_text() and text.get_visible()]
    return all(b.x0 >= -1 and b.y0 >= -1 and b.x1 <= figure.bbox.x1 + 1 and b.y1 <= figure.bbox.y1 + 1 for b in boxes)


def test_correlation_maps_share_a_scale_and_grey_what_is_undefined() -> None:
    matrix = np.corrcoef(RNG.normal(size=(40, 50)))
    hole = matrix.copy()
    hole[3] = np.nan
    figure = plot_correlations({"real": matrix, "synthetic": hole}, [f"column_with_a_long_name_{i}" for i in range(40)])
    images = [axes.images[0] for axes in figure.axes[:2]]
    assert {image.get_clim() for image in images} == {(-1, 1)}
    assert np.ma.getmaskarray(images[1].get_array())[3].all()
    assert len(figure.axes[0].get_yticks()) <= 20 and texts_stay_inside(figure)


def test_transfer_bars_begin_at_chance_and_end_at_the_score() -> None:
    found = {
        "real": {"lr": score(0.93), "knn": score(0.87)},
        "acgan": {"lr": score(0.88), "knn": score(None)},
        "worse": {"lr": score(0.4), "knn": score(0.6)},
    }
    figure = plot_transfer(found, "AUROC")
    bars = [bar for bar in figure.axes[0].patches if bar.get_height()]
    assert sorted(bar.get_y() + bar.get_height() for bar in bars) == pytest.approx([0.4, 0.6, 0.87, 0.88, 0.93])
    assert {bar.get_y() for bar in bars} == {0.5}
    assert sum(same_color(bar.get_facecolor(), MUTED) for bar in bars) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == [".93", ".87", ".88", ".40", ".60"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["real", "acgan", "worse"]
    low, high = figure.axes[0].get_ylim()
    assert low < 0.35 and high > 0.96 and texts_stay_inside(figure)


def test_probabilities_put_absent_codes_at_half_a_patient() -> None:
    real, synthetic = np.eye(4)[[0, 0, 1, 2]], np.eye(4)[[0, 1, 1, 3]]
    figure = plot_probabilities({"dpgan": probabilities(real, synthetic)}, 4)
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert points.tolist() == [[0.5, 0.25], [0.25, 0.5], [0.25, 0.125], [0.125, 0.25]]
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("dpgan") and "RMSE 0.25, R² -1.000" in title and texts_stay_inside(figure)


def test_odd_input_is_drawn_or_refused() -> None:
    one = plot_courses({"$\\frac$ <b>": {"a": np.zeros((3, 1))}}, [0], "x")
    assert "&lt;b&gt;" in to_svg(one) and to_svg(one) == to_svg(one)
    refused = (
        lambda: plot_courses({}, [0], "x"),
        lambda: plot_courses({"real": {"a": np.full((3, 1), np.nan)}}, [0], "x"),
        lambda: plot_correlations({"real": np.zeros((2, 2))}, ["a"]),
        lambda: plot_correlations({}, []),
        lambda: plot_transfer({}, "AUROC"),
        lambda: plot_probabilities({}, 10),
    )
    for draw in refused:
        with pytest.raises(DataError):
            draw()
