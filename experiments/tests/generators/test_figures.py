"""Figures of studies: trajectories of tables, epsilon of all sizes, pictures by class, scores by metric."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import to_png
from polyclinic.evaluation.intervals import Interval
from polyclinic.evaluation.synthetic.classifiers import Judged
from polyclinic_studies.generators.figures import plot_judged, plot_pictures, plot_spent, plot_trajectories
from tests.evaluation.synthetic.test_synthetic_plots import legends, texts_stay_inside

RNG = np.random.default_rng(0)


def names(figure: Figure) -> list[str]:
    return [text.get_text() for made in legends(figure) for text in made.get_texts()]


def arms(rows: int = 50, visits: int = 12) -> dict[str, np.ndarray]:
    return {arm: RNG.normal(level, 10, (rows, visits)) for arm, level in (("standard", 135), ("intensive", 122))}


def test_trajectories_draw_the_medians_and_quarters_of_each_arm() -> None:
    tables = {"real": arms(), "acgan": arms(30), "moments": arms(20)}
    tables["real"]["standard"][:, 3] = np.nan  # a visit at which nobody came
    figure = plot_trajectories(tables, list(range(12)), "Systolic blood pressure (mmHg)")
    assert len(figure.axes) == 3 and len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, table in zip(figure.axes, tables.values(), strict=True):
        for line, values in zip(axes.lines, table.values(), strict=True):
            expected = [np.median(column) for column in values.T]
            assert np.asarray(line.get_ydata()) == pytest.approx(expected, nan_ok=True)
        assert len(axes.collections) == 2
    assert names(figure) == ["standard", "intensive"]
    assert texts_stay_inside(figure)


def test_trajectories_over_time_stand_at_their_times() -> None:
    axes = plot_trajectories({"real": arms(visits=3)}, [0, 1, 12], "meds").axes[0]
    assert list(axes.lines[0].get_xdata()) == [0, 1, 12]


def test_spent_epsilon_of_all_sizes_is_readable() -> None:
    rounds = np.arange(1.0, 51.0)
    courses = {"stated by the paper": (rounds, np.full(50, 5.0)), "true": (rounds, 2.8e8 * rounds / 50)}
    figure = plot_spent(courses, logarithmic=True)
    assert figure.axes[0].get_yscale() == "log" and texts_stay_inside(figure)
    plain = plot_spent({"acgan": (rounds, rounds / 25)}, budget=2.5)
    assert plain.axes[0].get_ylim()[0] == 0 and "budget  2.50" in names(plain)
    assert to_png(plot_spent({})).startswith(b"\x89PNG")
    assert to_png(plot_spent({"none": (rounds, 0 * rounds)}, logarithmic=True)).startswith(b"\x89PNG")


def test_pictures_stand_in_the_row_of_their_class() -> None:
    pictures, labels = np.stack([np.full((3, 2), value) for value in (0.1, 0.2, 0.3, 0.4)]), np.array([1, 0, 1, 1])
    image = np.asarray(plot_pictures({"real": (pictures, labels)}, each=2).axes[0].images[0].get_array())
    assert image.shape == (7, 5)
    assert image[::4, ::3].tolist() == [[0.2, 0.0], [0.1, 0.3]]
    assert (image[3] == 0).all()


def test_scores_are_drawn_by_metric_and_the_classifiers_words() -> None:
    judged = Judged({"accuracy": Interval(0.9, 0.85, 0.93)}, {}, None)
    axes = plot_judged({"real": {"lr": judged}}).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["logistic regression"]
    assert [text.get_text() for text in axes.texts] == [".90"]


def test_odd_input_is_refused() -> None:
    refused = (
        lambda: plot_trajectories({}, [0], "x"),
        lambda: plot_trajectories({"real": {"a": np.zeros((2, 3))}}, [0, 1], "x"),
        lambda: plot_trajectories({"real": {"a": np.full((2, 1), np.nan)}}, [0], "x"),
        lambda: plot_pictures({}),
        lambda: plot_pictures({"a": (np.zeros((2, 3, 3)), [0, 1]), "b": (np.zeros((2, 4, 4)), [0, 1])}),
    )
    for draw in refused:
        with pytest.raises(DataError):
            draw()
