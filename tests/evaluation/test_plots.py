"""Figures of a run: labels that do not overlap, references that are drawn, and odd tables that do not break them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from polyclinic.errors import ConfigError
from polyclinic.evaluation.assessment import MOST_POINTS, operating_points
from polyclinic.evaluation.figures.analyses import ANALYSES
from polyclinic.evaluation.figures.canvas import to_png, to_svg
from polyclinic.evaluation.figures.results import FIGURES, draw_figure
from polyclinic.evaluation.figures.rounds import plot_epsilon, plot_loss, plot_metric, quantile_bands, read_series


def table(sites: int, rounds: int = 10, apart: float = 0.001) -> pd.DataFrame:
    names = [*(f"hospital-{i:02d}" for i in range(sites)), "pooled", "macro"]
    rows = itertools.product(range(1, rounds + 1), enumerate(names))
    return pd.DataFrame(
        [
            {"round": r, "site": name, "auroc": 0.7 + 0.02 * r + apart * i, "loss": 0.7 - 0.02 * r, "epsilon": 0.3 * r}
            for r, (i, name) in rows
        ]
    )


def budgets(rounds: pd.DataFrame, value: float) -> dict[str, float | None]:
    return dict.fromkeys(rounds["site"], value)


def texts(figure: Figure) -> list[Text]:
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return legend.get_texts()


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def plot_auroc(rounds: pd.DataFrame, floor: float | None = None) -> Figure:
    return plot_metric(rounds, "auroc", "AUROC", floors=None if floor is None else {"no-skill floor": floor})


def test_names_of_close_lines_do_not_overlap_nor_leave_the_figure() -> None:
    figure = plot_auroc(table(8), 0.5)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in texts(figure)]
    heights = sorted((box.y0, box.y1) for box in boxes)
    assert len(boxes) == 10
    assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(heights))
    assert min(box.y0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_pooled_line_is_the_widest_and_macro_is_not_drawn() -> None:
    figure = plot_auroc(table(3))
    assert len(labels(figure)) == 4
    assert [text.get_text().split()[0] for text in texts(figure) if text.get_fontweight() == "bold"] == ["pooled"]
    widths = {float(line.get_linewidth()) for line in figure.axes[0].lines if line.get_linestyle() == "-"}
    assert max(widths) >= 2 * sorted(widths)[0]


def test_names_stand_in_the_order_in_which_lines_end() -> None:
    names = [text.split()[0] for text in labels(plot_auroc(table(3), 0.5))]
    assert names == ["pooled", "hospital-02", "hospital-01", "hospital-00", "no-skill"]


def test_many_hospitals_name_only_the_highest_the_lowest_and_pooled() -> None:
    figure = plot_auroc(table(40))
    assert [text.split()[0] for text in labels(figure)] == ["pooled", "hospital-39", "hospital-00"]


@pytest.mark.parametrize("rounds", [1, 10])
def test_very_many_hospitals_are_a_distribution_and_the_file_stays_small(rounds: int) -> None:
    many = table(2000, rounds, apart=1e-4)
    many["epsilon"] = many["epsilon"] + many["auroc"]  # no two spend alike
    for figure in (plot_auroc(many), plot_loss(many), plot_epsilon(many, budgets(many, 4.0))):
        assert len(figure.axes[0].lines) < 10 and figure.axes[0].collections
        assert "90 %, of 2,000 hospitals" in figure.texts[1].get_text() and len(figure.texts[1].get_text()) < 110
        assert len(to_svg(figure)) < 50_000
    assert [text.split()[0] for text in labels(plot_auroc(many))] == ["pooled", "hospital-1999", "hospital-00"]
    assert labels(plot_epsilon(many))[0].startswith("hospital-1999")


def test_bands_hold_half_and_nine_tenths_of_the_hospitals() -> None:
    sites = read_series(table(101, rounds=3, apart=0.01), "auroc")
    quantiles = quantile_bands(sites.drop(columns="pooled"))
    assert quantiles.index.tolist() == [1, 2, 3]
    assert quantiles.iloc[-1].to_numpy() - 0.76 == pytest.approx((0.05, 0.25, 0.75, 0.95))


def test_floor_and_budget_are_drawn_dashed() -> None:
    for figure, height in (
        (plot_auroc(table(2), 0.5), 0.5),
        (plot_epsilon(table(2), budgets(table(2), 4.0)), 4.0),
    ):
        dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
        assert [float(line.get_ydata()[0]) for line in dashed] == [height]
        low, high = figure.axes[0].get_ylim()
        assert low <= height <= high


def test_hospitals_that_spend_alike_share_one_line() -> None:
    assert labels(plot_epsilon(table(5), budgets(table(5), 4.0))) == ["budget  4.00", "all 5 hospitals  3.00"]


def test_budgets_of_each_hospital_are_told_apart() -> None:
    found = labels(plot_epsilon(table(3), {"hospital-00": 4.0, "hospital-01": 4.0, "hospital-02": 5.0}))
    assert {"budget, 2 hospitals  4.00", "budget, hospital-02  5.00"} <= {text.replace("…", "") for text in found}


def test_budget_far_above_is_named_and_not_drawn() -> None:
    figure = plot_epsilon(table(2), budgets(table(2), 1000.0))
    assert figure.axes[0].get_ylim()[1] < 10
    assert any("1000" in text.get_text() for text in figure.texts)


@pytest.mark.parametrize("plot", [plot_auroc, plot_loss, plot_epsilon])
def test_empty_tables_missing_values_and_one_round_are_drawn(plot) -> None:  # type: ignore[no-untyped-def]
    empty = pd.DataFrame({"round": [], "site": []})
    nothing = table(2).assign(auroc=None, loss=np.nan, epsilon=None)
    for rounds in (empty, nothing, table(2, rounds=1), table(1, rounds=1).assign(auroc=1.0, loss=np.inf)):
        assert to_png(plot(rounds)).startswith(b"\x89PNG")


def test_odd_names_are_drawn_as_they_are() -> None:
    rounds = table(1).replace({"site": {"hospital-00": "$\\frac$ <b>&\n" + "x" * 60}})
    svg = to_svg(plot_auroc(rounds))
    assert "<b>" not in svg and "&lt;b&gt;" in svg and "x" * 20 not in svg


def test_svg_of_the_same_table_is_the_same_text() -> None:
    assert to_svg(plot_auroc(table(3))) == to_svg(plot_auroc(table(3)))


def test_operating_points_are_scikit_learns_and_hold_the_area() -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    positive, score = rng.random(150) < 0.3, rng.integers(0, 40, 150) / 40  # with ties
    points = operating_points(positive, score)
    false, hits, _ = roc_curve(positive, score, drop_intermediate=False)
    assert np.allclose(points["false_positives"], false, atol=1e-6)
    assert np.allclose(points["sensitivity"], hits, atol=1e-6)
    assert points["precision"][-1] == pytest.approx(positive.mean(), abs=1e-6)
    many, scores = rng.random(5000) < 0.3, rng.random(5000)
    thinned = operating_points(many, scores)
    area = np.trapezoid(thinned["sensitivity"], thinned["false_positives"])
    assert len(thinned["sensitivity"]) == MOST_POINTS + 1 and area == pytest.approx(
        roc_auc_score(many, scores), abs=0.002
    )


@pytest.fixture
def told(evaluation: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return {"evaluation": evaluation(), "floor": {"accuracy": 0.5}, "metrics": {"sites": {}}}


CURVE = {
    "name": "aspirin", "edges": [1.0, 2.0], "survival": [0.9, 0.7], "low": [0.8, 0.6], "high": [1.0, 0.8], "at_risk": [90, 60],
}  # fmt: skip
ANALYSED = {
    "forest": {"ratio": "Odds ratio", "rows": [
        {"label": "age", "kind": "heading"}, {"label": "North", "kind": "hospital", "estimate": 0.1, "low": -0.2, "high": 0.4},
        {"label": "Random effects", "kind": "pooled", "estimate": 0.2, "low": 0.1, "high": 0.3},
    ]},
    "posterior": {"parameters": {"age": {"mean": 0.4, "sd": 0.1, "low": 0.2, "high": 0.6, "inflation": 1.5}}},
    "scree": {"eigenvalues": [2.0, 0.5, 0.1], "floor": 0.2},
    "loadings": {
        "names": ["age", "bmi"], "values": [[0.8, 0.6], [-0.6, 0.8]], "spread": [[0.1, 0.1], [0.1, 0.1]], "explained": [0.7, 0.3],
    },
    "centres": {"names": ["age", "bmi"], "clusters": ["1", "2"], "shares": [0.6, 0.4], "values": [[0.5, -0.5], [-1.0, 1.0]]},
    "balance": [{"name": "age", "before": 0.3, "after": 0.02, "noise": 0.01}],
    "survival": {"curves": [CURVE], "start": 0.0, "unit": "days"},
    "survival-hospitals": {"curves": [CURVE, CURVE | {"name": "none"}], "start": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", ANALYSES)
def test_each_figure_of_an_analysis_is_drawn_on_the_axes_that_are_given(name: str) -> None:
    left, right = Figure().subplots(1, 2)
    summary = {
        "analysis": {"task": "an analysis", "refused": None, "numbers": {name: ANALYSED[name]}},
        "metrics": {"sites": {}},
    }
    assert draw_figure(summary, table(3), name, right) is right
    assert not left.lines and right.lines and right.get_title(loc="left")
    with pytest.raises(ConfigError, match=f"no figure {name!r}"):
        draw_figure({"metrics": {"sites": {}}}, table(3), name)


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ANALYSES])
def test_each_figure_is_drawn_on_the_axes_that_are_given(told: dict[str, Any], name: str) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw_figure(told, table(3), name, right) is right
    assert not left.lines and right.lines and right.get_title(loc="left")


def test_a_figure_of_its_own_is_pyplots_and_stays_none_where_nothing_is_drawn(told: dict[str, Any]) -> None:
    from matplotlib import pyplot

    axes = draw_figure(told, table(3), "roc")
    assert pyplot.get_fignums() and axes.get_ylabel() == "sensitivity (recall)"
    pyplot.close(axes.figure)
    told["evaluation"] = {"undefined": "no hospital's policy lets predictions leave"}
    with pytest.raises(ConfigError, match="no figure 'roc': no hospital's policy"):
        draw_figure(told, table(3), "roc")
    with pytest.raises(ConfigError, match="no figure 'epsilon': it recorded nothing"):
        draw_figure(told, table(3).assign(epsilon=np.nan), "epsilon")
    assert not pyplot.get_fignums()
    with pytest.raises(ConfigError, match=r"'rocs'; the figures are .*roc, pr.* Did you mean 'roc'"):
        draw_figure(told, table(3), "rocs")
