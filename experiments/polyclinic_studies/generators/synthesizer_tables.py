"""Tables, goals and the figure of ``synthesizers``: one cell for each data set, method and epsilon, over its splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from polyclinic.experiments import Target, markdown
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE, estimate, margin, mean, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE, MOST_BELOW = "independent", 0.015
CLASSIFIERS = {"lr": "logistic regression", "gbm": "boosting"}
_COLOURS = {"moments": BLUE, "latent": GREEN, "mixture": "#CC79A7", "independent": GREY, "maf": "#000000"}
_MARKERS = {"marginals-mst": "s", "marginals-aim": "D", "maf": "^", "gan": "x"}
Found = Mapping[str, Any]


def less(cells: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], measure: str) -> list[float]:
    """The measure of each split less that of the same split of ``others``; empty where one of them lacks it."""
    pairs = list(zip(cells, others, strict=True))
    if not all(one.get(measure) is not None and other.get(measure) is not None for one, other in pairs):
        return []
    return [one[measure] - other[measure] for one, other in pairs]


def below(found: Found, epsilon: float) -> Iterator[tuple[str, str, str, list[float]]]:
    """Data set, method, classifier and paired gains over ``independent`` where it teaches less than that by over two standard
    errors."""
    for name, method, classifier, gains in _gains(found, epsilon):
        if len(gains) > 1 and fmean(gains) < -2 * _error(gains):
            yield name, method, classifier, gains


def best(found: Mapping[str, Any], epsilon: float, classifier: str = "lr") -> tuple[str, list[float]]:
    """The method whose mean AUROC is highest on a data set, and its AUROC less that of real training, by split."""
    gaps = {
        method: less(cells[f"{epsilon:g}"], found["real"], classifier)
        for method, cells in found["methods"].items() if f"{epsilon:g}" in cells
    }  # fmt: skip
    gaps = {method: values for method, values in gaps.items() if values}
    winner = max(gaps, key=lambda method: fmean(gaps[method]))
    return winner, gaps[winner]


def targets(found: Found, epsilon: float) -> tuple[Target, ...]:
    """Of each method that it teaches no less than ``independent``, and of each data set that the best comes near to real
    patients."""
    goals, worse = [], list(below(found, epsilon))
    splits = min(len(one["real"]) for one in found.values())
    for method in dict.fromkeys(method for one in found.values() for method in one["methods"] if method != BASE):
        bad = [f"{name} ({kind}) {estimate(gains, signed=True)}" for name, own, kind, gains in worse if own == method]
        sets = [name for name, one in found.items() if f"{epsilon:g}" in one["methods"].get(method, {})]
        goals.append(Target(
            method, f"data sets, of {len(sets)}, on which it teaches less than independent, ε = {epsilon:g}", "-",
            "; ".join(bad) or "none", "none by over 2 standard errors", not bad, seeds=splits, of="splits", by=method,
        ))  # fmt: skip
    for name, one in found.items():
        if not any(f"{epsilon:g}" in cells for cells in one["methods"].values()):
            continue
        method, gaps = best(one, epsilon)
        goals.append(Target(
            name, f"AUROC of the best method, {method}, less that of real training, ε = {epsilon:g}", "-",
            estimate(gaps, signed=True), f"at least -{MOST_BELOW:g}", fmean(gaps) >= -MOST_BELOW, seeds=splits, of="splits",
            margin=margin(gaps, -MOST_BELOW), by=method,
        ))  # fmt: skip
    return tuple(goals)


def tables(found: Found) -> str:
    """Who won where, all utility by epsilon, and fidelity and attacks beside it."""
    parts = ["AUROC on held-out patients of a logistic regression trained on synthetic patients, less that of training on real "
             "ones; mean ± standard error over splits.\n", _by_epsilon(found, "lr"),
             "The same of boosting.\n", _by_epsilon(found, "gbm"),
             "All measures. Less independent: AUROC less that of `independent`, on the same splits. Columns, pairs: mean "
             "distance from held-out patients (total variation; of numbers Kolmogorov and Smirnov's); correlations: rank "
             "correlation with theirs. Nearer: synthetic patients nearer to one who took part than to another (.5 tells "
             "nothing); advantage: of guessing who took part (0 tells nothing). CPU: seconds of a run.\n",
             _all(found)]  # fmt: skip
    return "\n".join(parts)


def choosing(found: Found) -> str:
    """The table of docs/synthesis/choosing.md: how far what the best method and ``independent`` teach is from real training."""
    epsilons, rows = _epsilons(found), []
    for name, one in found.items():
        about = [
            number(mean([cell[key] for cell in one["real"]]), digits)
            for key, digits in (("patients", 0), ("columns", 0))
        ]
        cells = []
        for epsilon in epsilons:
            gaps = {
                m: less(cells_[epsilon], one["real"], "lr") for m, cells_ in one["methods"].items() if epsilon in cells_
            }
            ranked = sorted((m for m in gaps if gaps[m]), key=lambda m: -fmean(gaps[m]))
            shown = dict.fromkeys([*ranked[:1], *(m for m in ranked if m == BASE)])
            cells.append("; ".join(f"`{m}` {estimate(gaps[m], signed=True)}" for m in shown) or "-")
        rows.append([f"`{name}`", *about, estimate([cell["lr"] for cell in one["real"]]), *cells])
    return markdown(["data set", "patients", "columns", "real", *(f"ε = {e}" for e in epsilons)], rows)


def rival_scores(sets: Found) -> str:
    """The table at the top of docs/synthesis/choosing.md: AUROC on each data set, that of most patients first."""
    methods, epsilons = ("moments", "marginals-mst", BASE), ("3", "1")
    rows = []
    for name, results in sorted(sets.items(), key=lambda item: -fmean(cell["patients"] for cell in item[1]["real"])):
        cells = [results["real"], *(results["methods"].get(m, {}).get(e, []) for e in epsilons for m in methods)]
        about = [number(mean([cell[key] for cell in results["real"]]), 0) for key in ("patients", "columns")]
        scores = [number(mean([cell["lr"] for cell in its])).removeprefix("0") if its else "-" for its in cells]
        rows.append([f"`{name}`", *about, *scores])
    scored = [f"ε = {e}: {name}" for e in epsilons for name in ("`moments`", "MST", f"`{BASE}`")]
    return markdown(["data set", "patients", "columns", "real", *scored], rows)


def standings(found: Found, epsilon: float) -> str:
    """Of each method the data sets on which it teaches more, as much and less than ``independent`` at an epsilon: by over two
    standard errors of a classifier, and by none of them the other way."""
    sides: dict[str, dict[str, dict[str, str]]] = {}
    for name, method, classifier, gains in _gains(found, epsilon):
        gain, sure = fmean(gains), 2 * _error(gains)
        side = "more" if gain > sure else "less" if gain < -sure else "alike"
        sides.setdefault(method, {}).setdefault(name, {})[classifier] = side
    rows = []
    for method, by_set in sides.items():
        listed: dict[str, list[str]] = {"more": [], "alike": [], "mixed": [], "less": []}
        for name, by_classifier in by_set.items():
            said = {side for side in by_classifier.values() if side != "alike"}
            listed["mixed" if len(said) > 1 else next(iter(said), "alike")].append(name)
        rows.append([f"`{method}`", *(", ".join(names) or "-" for names in listed.values())])
    return markdown(["method", "more", "alike", "by one classifier more, by one less", "less"], rows)


def _epsilons(found: Found) -> list[str]:
    return sorted(
        {epsilon for one in found.values() for cells in one["methods"].values() for epsilon in cells}, key=float
    )


def _by_epsilon(found: Found, classifier: str) -> str:
    epsilons, rows = _epsilons(found), []
    for name, one in found.items():
        real = [cell.get(classifier) for cell in one["real"]]
        if None in real:
            continue
        for number_, (method, cells) in enumerate(one["methods"].items()):
            gaps = [less(cells[e], one["real"], classifier) if e in cells else [] for e in epsilons]
            about = [name, number(mean(real))] if not number_ else ["", ""]
            rows.append([*about, method, *(estimate(gap, signed=True) for gap in gaps)])
    return markdown(["data set", "real", "method", *(f"ε = {e}" for e in epsilons)], rows)


def _all(found: Found) -> str:
    rows = []
    for name, one in found.items():
        for method, by_epsilon in one["methods"].items():
            for epsilon, cells in sorted(by_epsilon.items(), key=lambda item: float(item[0])):
                base = one["methods"].get(BASE, {}).get(epsilon)
                gains = [less(cells, base, kind) if base and method != BASE else [] for kind in CLASSIFIERS]
                rows.append([
                    name, method, epsilon, *(estimate(gain, signed=True) for gain in gains),
                    *(number(mean([cell[key] for cell in cells])) for key in ("columns_apart", "pairs_apart", "spearman")),
                    *(number(mean([cell[key] for cell in cells])) for key in ("nearer", "advantage")),
                    number(mean([cell["seconds"] for cell in cells]), 1),
                ])  # fmt: skip
        rows.append([
            name, "real", "", "", "", *(number(mean([cell[key] for cell in one["real"]])) for key in
            ("columns_apart", "pairs_apart", "spearman")), "", "", "",
        ])  # fmt: skip
    return markdown(["data set", "method", "ε", "less independent: LR", "boosting", "columns", "pairs", "correlations", "nearer",
                     "advantage", "CPU"], rows)  # fmt: skip


def figure(found: Found) -> Figure:
    """Of each data set the AUROC of logistic regression less that of real training, over epsilon, a line for each method."""
    from polyclinic.evaluation.figures.canvas import label_axes, legend, panels  # matplotlib takes a second to load

    drawn, axes = panels(
        "What synthetic patients teach", "AUROC of logistic regression on real held-out patients, less that of real training; "
        "mean and standard error over splits.", list(found), width=9.6, height=2.2 * -(-len(found) // 4) + 1.2, columns=4,
        share=False,
    )  # fmt: skip
    lines = {}
    for place, one in zip(axes, found.values(), strict=True):
        place.axhline(0.0, color=GREY, linewidth=0.8)
        for method, by_epsilon in one["methods"].items():
            gaps = {float(e): less(cells, one["real"], "lr") for e, cells in by_epsilon.items()}
            at = sorted(epsilon for epsilon, values in gaps.items() if values)
            heights, errors = [fmean(gaps[e]) for e in at], [_error(gaps[e]) for e in at]
            lines[method] = place.errorbar(
                at, heights, errors, marker=_MARKERS.get(method, "o"), markersize=3.5, linewidth=1.2,
                color=_COLOURS.get(method, ORANGE), linestyle="-" if len(at) > 1 else "none",
            )  # fmt: skip
        place.set_xscale("log")
        place.set_xticks([0.5, 1, 3, 10], ["0.5", "1", "3", "10"])
        place.minorticks_off()
        label_axes(place, "ε", "")
    legend(drawn, handles=list(lines.values()), labels=list(lines), loc="outside lower center", ncols=8)
    return drawn


def _error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _gains(found: Found, epsilon: float) -> Iterator[tuple[str, str, str, list[float]]]:
    for name, one in found.items():
        base = one["methods"].get(BASE, {}).get(f"{epsilon:g}")
        for method, cells in one["methods"].items():
            if base and method != BASE and f"{epsilon:g}" in cells:
                for classifier in CLASSIFIERS:
                    if gains := less(cells[f"{epsilon:g}"], base, classifier):
                        yield name, method, classifier, gains
