"""Figures of synthetic patients: what is drawn is what was given, names are kept whole, odd input is drawn or refused."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from polyclinic.errors import DataError
from polyclinic.evaluation.plots import MUTED, to_png, to_svg
from polyclinic.evaluation.synthetic.codes import probabilities
from polyclinic.evaluation.synthetic.resampling import Interval
from polyclinic.evaluation.synthetic.transfer import Judged
from polyclinic.evaluation.synthetic_plots import (
    plot_correlations,
    plot_pictures,
    plot_probabilities,
    plot_spent,
    plot_trajectories,
    plot_transfer,
)

RNG = np.random.default_rng(0)


def arms(rows: int = 50, visits: int = 12) -> dict[str, np.ndarray]:
    return {arm: RNG.normal(level, 10, (rows, visits)) for arm, level in (("standard", 135), ("intensive", 122))}


def judged(value: float | None) -> Judged:
    score = Interval(None) if value is None else Interval(value, value - 0.05, value + 0.03)
    return Judged({"accuracy": score}, {}, None)


def texts_stay_inside(figure: Figure) -> bool:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = [*figure.texts, *(text for axes in figure.axes for text in (*axes.texts, axes.title, axes._left_title))]  # type: ignore[attr-defined]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [text.get_window_extent(renderer) for text in found if text.get_text() and text.get_visible()]
    return all(b.x0 >= -1 and b.y0 >= -1 and b.x1 <= figure.bbox.x1 + 1 and b.y1 <= figure.bbox.y1 + 1 for b in boxes)


def test_trajectories_draw_the_medians_and_quarters_of_each_arm() -> None:
    tables = {"real": arms(), "acgan": arms(30), "moments": arms(20)}
    tables["real"]["standard"][:, 3] = np.nan  # a visit at which nobody came
    figure = plot_trajectories(tables, [f"{i}M" for i in range(12)], "Systolic blood pressure (mmHg)")
    assert len(figure.axes) == 3 and len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, table in zip(figure.axes, tables.values(), strict=True):
        for line, values in zip(axes.lines, table.values(), strict=True):
            expected = [np.median(column) for column in values.T]
            assert np.asarray(line.get_ydata()) == pytest.approx(expected, nan_ok=True)
        assert len(axes.collections) == 2
    assert [text.get_text() for text in figure.axes[-1].texts] == ["standard", "intensive"]
    assert texts_stay_inside(figure)


def test_trajectories_over_time_stand_at_their_times() -> None:
    axes = plot_trajectories({"real": arms(visits=3)}, [0, 1, 12], "meds").axes[0]
    assert list(axes.lines[0].get_xdata()) == [0, 1, 12]


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
        "real": {"lr": judged(0.93), "knn": judged(0.87)},
        "acgan": {"lr": judged(0.88), "knn": judged(None)},
        "worse": {"lr": judged(0.4), "knn": judged(0.6)},
    }
    figure = plot_transfer(found)
    bars = [bar for bar in figure.axes[0].patches if bar.get_height()]
    assert sorted(bar.get_y() + bar.get_height() for bar in bars) == pytest.approx([0.4, 0.6, 0.87, 0.88, 0.93])
    assert {bar.get_y() for bar in bars} == {0.5}
    assert sum(same_color(bar.get_facecolor(), MUTED) for bar in bars) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == [".93", ".87", ".88", ".40", ".60"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["real", "acgan", "worse"]
    low, high = figure.axes[0].get_ylim()
    assert low < 0.35 and high > 0.96 and texts_stay_inside(figure)


def test_spent_epsilon_of_all_sizes_is_readable() -> None:
    rounds = np.arange(1.0, 51.0)
    courses = {"stated by the paper": (rounds, np.full(50, 5.0)), "true": (rounds, 2.8e8 * rounds / 50)}
    figure = plot_spent(courses, logarithmic=True)
    assert figure.axes[0].get_yscale() == "log" and texts_stay_inside(figure)
    plain = plot_spent({"acgan": (rounds, rounds / 25)}, budget=2.5)
    assert plain.axes[0].get_ylim()[0] == 0 and "budget  2.50" in {text.get_text() for text in plain.axes[0].texts}
    assert to_png(plot_spent({})).startswith(b"\x89PNG")
    assert to_png(plot_spent({"none": (rounds, 0 * rounds)}, logarithmic=True)).startswith(b"\x89PNG")


def test_probabilities_put_absent_codes_at_half_a_patient() -> None:
    real, synthetic = np.eye(4)[[0, 0, 1, 2]], np.eye(4)[[0, 1, 1, 3]]
    figure = plot_probabilities({"dpgan": probabilities(real, synthetic)}, 4)
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert points.tolist() == [[0.5, 0.25], [0.25, 0.5], [0.25, 0.125], [0.125, 0.25]]
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("dpgan") and "RMSE 0.25, R² -1.000" in title and texts_stay_inside(figure)


def test_pictures_stand_in_the_row_of_their_class() -> None:
    pictures, labels = np.stack([np.full((3, 2), value) for value in (0.1, 0.2, 0.3, 0.4)]), np.array([1, 0, 1, 1])
    image = np.asarray(plot_pictures({"real": (pictures, labels)}, each=2).axes[0].images[0].get_array())
    assert image.shape == (7, 5)
    assert image[::4, ::3].tolist() == [[0.2, 0.0], [0.1, 0.3]]
    assert (image[3] == 0).all()


def test_odd_input_is_drawn_or_refused() -> None:
    one = plot_trajectories({"$\\frac$ <b>": {"a": np.zeros((1, 1))}}, [0], "x")
    assert "&lt;b&gt;" in to_svg(one) and to_svg(one) == to_svg(one)
    refused = (
        lambda: plot_trajectories({}, [0], "x"),
        lambda: plot_trajectories({"real": {"a": np.zeros((2, 3))}}, [0, 1], "x"),
        lambda: plot_trajectories({"real": {"a": np.full((2, 1), np.nan)}}, [0], "x"),
        lambda: plot_correlations({"real": np.zeros((2, 2))}, ["a"]),
        lambda: plot_correlations({}, []),
        lambda: plot_transfer({}),
        lambda: plot_probabilities({}, 10),
        lambda: plot_pictures({}),
        lambda: plot_pictures({"a": (np.zeros((2, 3, 3)), [0, 1]), "b": (np.zeros((2, 4, 4)), [0, 1])}),
    )
    for draw in refused:
        with pytest.raises(DataError):
            draw()
