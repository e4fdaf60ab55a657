"""What returned scores say: means, Mann-Whitney, who was guessed rightly, what so many patients cannot exclude, and a page of it.

Patients are the units. Several reviewers' scores of one patient are no independent patients, so the pooled comparison is of
each patient's mean over reviewers. It speaks of these reviewers; it does not count that others might judge otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from polyclinic.evaluation.figures.canvas import PALETTE, label_axes, legend, panels
from polyclinic.evaluation.intervals import LEVEL, Interval, bootstrap, percentiles, weighted_auroc, wilson
from polyclinic.evaluation.page import embed, frame, render
from polyclinic.evaluation.review.answers import Key, Review
from polyclinic.evaluation.review.form import MOST_SCORE
from polyclinic.files import write_outputs
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLES = 2000
FEWEST = 5  # patients of each kind, for an interval that is found by drawing again
POWER = 0.8
_IN_A_ROW = 4
NOTES = (
    "Patients are the units: several reviewers' scores of a patient are averaged before real and synthetic ones are compared, "
    "since they are no independent patients.",
    "The figures speak of these reviewers and this packet; they do not count that other reviewers might judge otherwise.",
    "Each reviewer's p is for that reviewer alone; with several reviewers some are small by chance. The pooled line is the "
    "one to read.",
    "Looking real is not being private, nor being of use: a copied record looks most real of all.",
    "These figures come without noise from real patients' records, which were scored: they are no release with differential "
    "privacy and epsilon does not cover them. Ask whoever answers for privacy before they leave the hospital.",
)


_RESULT = """<header>
<h1>Could clinicians tell synthetic patients from real ones?</h1>
<p class="muted">Blinded review of {{ patients }} patients, {{ real }} real and {{ synthetic }} synthetic; packet
{{ packet[:8] }}</p>
</header>
<div class="notice">{% for sentence in verdict %}<p>{{ sentence }}</p>{% endfor %}</div>
<h2>Scores from 0, certainly not real, to 10, certainly real</h2>
{% call table(["Reviewer"], ["Real: mean (sd)", "Synthetic: mean (sd)", "Difference", "Real above synthetic", "Mann-Whitney p"],
"Scores", kind="") %}
{% for kind, rows in (("", reviewers), ("totals", [{"reviewer": "Pooled", "scores": pooled.scores}])) %}
{% if kind %}</tbody><tbody class="{{ kind }}">{% endif %}{% for one in rows %}
<tr><th scope="row">{{ one.reviewer }}</th>
{% for side in (one.scores.real, one.scores.synthetic) %}{% call cell((side.mean | metric) ~ " (" ~ (side.sd | metric) ~ ")") %}
<small>{{ side.patients }} patients</small>{% endcall %}{% endfor %}
{{ estimated(one.scores.difference) }}{{ estimated(one.scores.auc) }}{{ metric(one.scores.p) }}</tr>{% endfor %}
{% endfor %}{% endcall %}
<p class="small muted">Difference: of means, real less synthetic, with Welch's 95 % interval. Real above synthetic: the chance
that a real patient has the higher score, ties half (0.5: none), with a 95 % bootstrap interval over patients. Pooled: each
patient's mean over reviewers.</p>
{{ pictures(figures) }}
<h2>Guesses</h2>
{% call table(["Reviewer"], ["Right", "p against one half", "Synthetic called synthetic", "Real called real"],
"Guesses", kind="") %}
{% for kind, rows in (("", reviewers), ("totals", [{"reviewer": "Pooled", "guesses": pooled.guesses}])) %}
{% if kind %}</tbody><tbody class="{{ kind }}">{% endif %}{% for one in rows %}
<tr><th scope="row">{{ one.reviewer }}</th>{{ estimated(one.guesses.accuracy) }}
{% if kind and one.guesses.p is none %}{{ cell("–") }}{% else %}{{ metric(one.guesses.p) }}{% endif %}
{{ estimated(one.guesses.sensitivity) }}{{ estimated(one.guesses.specificity) }}</tr>{% endfor %}
{% endfor %}{% endcall %}
<p class="small muted">With 95 % intervals: Wilson's for a reviewer, a bootstrap over patients for all of several.</p>
{% if agreement.pairs %}
<h2>Agreement between reviewers</h2>
<p>Of scores: ICC(2,1) {{ agreement.icc | metric }}. Of guesses, Cohen's kappa:
{% for pair in agreement.pairs %}{{ pair.reviewers | join(" and ") }} {{ pair.kappa | metric }}{{ ", " if not loop.last }}
{%- endfor %}. 0 is what chance gives, 1 full agreement.</p>
{% endif %}
<h2>How to read this</h2>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
"""


def analyse(reviews: Sequence[Review], key: Key) -> dict[str, Any]:
    """All of ``review.json`` (docs/reference/json.md); a value that the answers do not define is ``None``."""
    each = [_reviewer(review, key) for review in reviews]
    scores, guesses = (np.array([getattr(review, name) for review in reviews]) for name in ("scores", "guesses"))
    right = np.where(np.isnan(guesses), np.nan, guesses == key.real)
    pooled = {"scores": compare(_mean(scores), key.real), "guesses": _pooled_guesses(_mean(right), key.real)}
    if len(each) == 1:
        pooled = {name: each[0][name] for name in pooled}
    analysis = {
        "packet": key.packet, "patients": len(key.real), "real": int(key.real.sum()), "synthetic": int((~key.real).sum()),
        "confidence": LEVEL, "reviewers": each, "pooled": pooled, "agreement": agreement(reviews),
    }  # fmt: skip
    return {**analysis, "verdict": verdict(analysis), "notes": list(NOTES)}


def compare(scores: Floats, real: Bools) -> dict[str, Any]:
    """Compare the scores of real patients with those of synthetic ones.

    Args:
        scores: (n,), NaN where missing.
        real: (n,) whether each patient is real.

    Returns:
        difference: Of means, real less synthetic, with Welch's interval (1947).
        u, p: Mann and Whitney 1947, of the real ones, two-sided.
        auc: u / (n real x n synthetic), the chance that a real patient scores above a synthetic one, ties half, with
            its bootstrap interval over patients.
        detectable: The difference that a review of this size and spread would find significant in 80 of 100 cases.
        real, synthetic: The number of patients, mean and standard deviation of each.
    """
    has_score = np.isfinite(scores)
    groups = scores[has_score & real], scores[has_score & ~real]
    comparison: dict[str, Any] = {
        name: {"patients": len(group), "mean": _finite(group.mean()) if len(group) else None,
               "sd": _finite(group.std(ddof=1)) if len(group) > 1 else None}
        for name, group in zip(("real", "synthetic"), groups, strict=True)
    }  # fmt: skip
    difference, detectable = _difference(*groups)
    u, p = stats.mannwhitneyu(*groups) if all(map(len, groups)) else (np.nan, np.nan)
    auc = _resample(lambda weights: weighted_auroc(real[has_score], scores[has_score], weights), real[has_score], "auc")
    return comparison | {
        "difference": asdict(difference), "detectable": detectable, "u": _finite(u), "p": _finite(p), "auc": asdict(auc),
    }  # fmt: skip


def _difference(real: Floats, synthetic: Floats) -> tuple[Interval, float | None]:
    if not len(real) or not len(synthetic):
        return Interval(None), None
    apart = float(real.mean() - synthetic.mean())
    error = float(np.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in (real, synthetic) if len(sample) > 1)))
    if min(len(real), len(synthetic)) < 2 or error == 0:
        return Interval(apart), None
    span = stats.ttest_ind(real, synthetic, equal_var=False).confidence_interval(LEVEL)
    factor = stats.norm.isf((1 - LEVEL) / 2) + stats.norm.ppf(POWER)
    return Interval(apart, float(span.low), float(span.high)), float(factor * error)


def guess_rates(guesses: Floats, real: Bools) -> dict[str, Any]:
    """One reviewer's guesses (n,), 1 for real and NaN where missing, with Wilson intervals, against chance.

    accuracy: share that is right; p: exact binomial test against one half, two-sided.  sensitivity: share of the synthetic
    patients called synthetic.  specificity: share of the real ones called real.
    """
    guessed = np.isfinite(guesses)
    right = guesses[guessed] == real[guessed]
    truth = real[guessed]
    return {
        "patients": len(right),
        "accuracy": asdict(wilson(int(right.sum()), len(right))),
        "p": float(stats.binomtest(int(right.sum()), len(right), 0.5).pvalue) if len(right) else None,
        "sensitivity": asdict(wilson(int(right[~truth].sum()), int((~truth).sum()))),
        "specificity": asdict(wilson(int(right[truth].sum()), int(truth.sum()))),
    }


def _pooled_guesses(share: Floats, real: Bools) -> dict[str, Any]:
    """As ``guess_rates``, of each patient's share of reviewers who were right (n,); intervals are over patients, no test."""
    rates: dict[str, Any] = {"patients": int(np.isfinite(share).sum())}
    chosen = {
        "accuracy": np.isfinite(share),
        "sensitivity": np.isfinite(share) & ~real,
        "specificity": np.isfinite(share) & real,
    }
    for name, patients in chosen.items():
        rates[name] = asdict(_resample(lambda w, of=share[patients]: w @ of / w.sum(axis=1), real[patients], name))
    return rates | {"p": None}


def agreement(reviews: Sequence[Review]) -> dict[str, Any]:
    """kappa: Cohen's (1960) of two reviewers' guesses.  icc: of all reviewers' scores, (2,1) of Shrout and Fleiss 1979."""
    scores = np.array([review.scores for review in reviews]).T
    pairs = [
        {"reviewers": [a.reviewer, b.reviewer], "kappa": kappa(a.guesses, b.guesses)}
        for a, b in combinations(reviews, 2)
    ]
    return {"pairs": pairs, "icc": icc(scores[np.isfinite(scores).all(axis=1)])}


def kappa(a: Floats, b: Floats) -> float | None:
    """Cohen's kappa of two reviewers' guesses (n,) where both guessed; None where chance alone would always agree."""
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return None
    a, b = a[both], b[both]
    chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    return None if chance == 1 else float(((a == b).mean() - chance) / (1 - chance))


def icc(scores: Floats) -> float | None:
    """ICC(2,1) of scores (patients, reviewers) without a missing one; None where it is not defined."""
    n, k = scores.shape
    if n < 2 or k < 2:
        return None
    rows, columns = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    between = float(k * rows.var(ddof=1))
    judges = float(n * columns.var(ddof=1))
    error = float(((scores - rows - columns + scores.mean()) ** 2).sum() / ((n - 1) * (k - 1)))
    below = between + (k - 1) * error + k * (judges - error) / n
    return None if below <= 0 else (between - error) / below


def _reviewer(review: Review, key: Key) -> dict[str, Any]:
    missing = {name: (np.flatnonzero(np.isnan(getattr(review, name))) + 1).tolist() for name in ("scores", "guesses")}
    counts = {
        name: np.bincount(
            review.scores[np.isfinite(review.scores) & of].astype(np.int64), minlength=MOST_SCORE + 1
        ).tolist()
        for name, of in (("real", key.real), ("synthetic", ~key.real))
    }
    return {
        "reviewer": review.reviewer, "file": review.file, "scores": compare(review.scores, key.real),
        "guesses": guess_rates(review.guesses, key.real), "missing": missing, "distribution": counts,
    }  # fmt: skip


def _mean(values: Floats) -> Floats:
    """(n,) each patient's mean over the reviewers (reviewers, n) who answered; NaN where none did."""
    return np.asarray(pd.DataFrame(values).mean(), dtype=np.float64)


def _resample(statistic: Any, real: Bools, name: str) -> Interval:
    """The statistic with its bootstrap interval over patients; none where they are too few or all resamples agree."""
    if not len(real):
        return Interval(None)
    labels = real.astype(np.int64)
    value, draws = bootstrap(statistic, len(real), generator(0, "review", name), RESAMPLES, labels=labels)
    interval = percentiles(float(value), draws)
    few = min(np.unique(labels, return_counts=True)[1]) < FEWEST
    return Interval(interval.value) if few or interval.low == interval.high else interval


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def verdict(analysis: dict[str, Any]) -> list[str]:
    """Sentences on the pooled comparison of ``analyse``."""
    return [*_scores(analysis), *_guesses(analysis["pooled"]["guesses"]), *_missing(analysis)]


def _scores(analysis: dict[str, Any]) -> list[str]:
    pooled = analysis["pooled"]["scores"]
    real, synthetic, apart = pooled["real"], pooled["synthetic"], pooled["difference"]
    if apart["value"] is None:
        return ["There are no scores of both real and synthetic patients, so nothing can be compared."]
    count = len(analysis["reviewers"])
    sentences = [
        f"{count} reviewer{'s' if count > 1 else ''} gave real patients {real['mean']:.2f} on average and synthetic ones "
        f"{synthetic['mean']:.2f}, of 0 to 10."
    ]
    if apart["low"] is None and pooled["p"] is not None and pooled["p"] < 0.05:
        return [
            *sentences,
            "All real patients have one score and all synthetic ones another, so there is no interval; they were scored "
            f"differently (Mann-Whitney p = {pooled['p']:.3g}).",
        ]
    if apart["low"] is None:
        return [
            *sentences,
            "The scores do not vary enough for an interval, so they say nothing of what may be excluded.",
        ]
    low, high = apart["low"], apart["high"]
    span = f"{apart['value']:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}"
    p = "" if pooled["p"] is None else f"; Mann-Whitney p = {pooled['p']:.3g}"
    sentences.append(f"The difference, real less synthetic, is {span}{p}).")
    if low <= 0 <= high:
        ranks = pooled["p"] is not None and pooled["p"] < 0.05
        conclusion = (
            "The means show no clear difference"
            f"{', though by Mann-Whitney the scores are distributed differently' if ranks else ''}; that is no evidence "
            "that there is none. What "
            f"{real['patients'] + synthetic['patients']} scored patients do exclude, at 95 %, is that real ones score more than "
            f"{high:.2f} points above synthetic ones on average, or more than {-low:.2f} below."
        )
    else:
        conclusion = (
            f"{'Real' if low > 0 else 'Synthetic'} patients looked more real to these reviewers, by at least "
            f"{min(abs(low), abs(high)):.2f} and at most {max(abs(low), abs(high)):.2f} points at 95 %."
        )
    wanted = "" if pooled["detectable"] is None else (
        f" A review of this size finds a true difference of {pooled['detectable']:.2f} points in 80 of 100 cases."
    )  # fmt: skip
    return [*sentences, conclusion + wanted]


def _guesses(guesses: dict[str, Any]) -> list[str]:
    accuracy = guesses["accuracy"]
    if accuracy["value"] is None:
        return ["No guesses were given."]
    if accuracy["low"] is None:
        return [f"Guesses were right for {_share(accuracy['value'])}; 50 % is what chance gives."]
    start = (
        f"Guesses were right for {_share(accuracy['value'])} (95 % interval {_share(accuracy['low'])} to "
        f"{_share(accuracy['high'])}); "
    )
    if accuracy["low"] <= 0.5 <= accuracy["high"]:
        return [
            f"{start}50 % is what chance gives. They are not shown to be better than chance, and not shown to be "
            f"chance: up to {_share(accuracy['high'])} is not excluded."
        ]
    if accuracy["low"] > 0.5:
        return [f"{start}that is more than the 50 % that chance gives: real and synthetic patients were told apart."]
    return [
        f"{start}that is less than the 50 % that chance gives: they were told apart, and taken for each other; "
        "look at which trait misled."
    ]


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _missing(analysis: dict[str, Any]) -> list[str]:
    gaps = {reviewer["reviewer"]: len(reviewer["missing"]["scores"]) for reviewer in analysis["reviewers"]}
    counts = ", ".join(f"{name} {count}" for name, count in gaps.items() if count)
    return [f"Patients without a score: {counts}. They are left out, as if they lacked by chance."] if counts else []


def write_results(analysis: Mapping[str, Any], folder: Path) -> None:
    """Writes ``review.json`` and ``review.html`` of what ``analyse`` found, both or neither, in place of earlier ones.

    Raises ConfigError where the folder cannot be written to.
    """
    figure = embed(plot_scores(analysis["reviewers"]), "How often each score was given; numbers are in review.json.")
    body = render(_RESULT, {**analysis, "figures": [figure]})
    write_outputs(
        {
            folder / "review.json": json.dumps(analysis, indent=2, allow_nan=False),
            folder / "review.html": frame("Blinded review: scores", body),
        },
        force=True,
    )


def plot_scores(reviewers: list[dict[str, Any]]) -> Figure:
    """Share of real and of synthetic patients by score, a panel a reviewer; of more than four, the first four."""
    shown = reviewers[:_IN_A_ROW]
    more = f" The first {len(shown)} of {len(reviewers)} reviewers." if len(reviewers) > len(shown) else ""
    figure, row = panels(
        "Scores of real and synthetic patients",
        f"Share of patients (%) by score; plain: real, hatched: synthetic.{more}",
        [reviewer["reviewer"] for reviewer in shown], 1.0 + 2.4 * len(shown), 3.2,
    )  # fmt: skip
    top = 0.0
    for axes, reviewer in zip(row, shown, strict=True):
        for place, (name, colour) in enumerate((("real", PALETTE[0]), ("synthetic", PALETTE[1]))):
            counts = np.array(reviewer["distribution"][name], dtype=np.float64)
            share = 100 * counts / max(counts.sum(), 1.0)
            axes.bar(
                np.arange(MOST_SCORE + 1) + 0.4 * place - 0.2, share, 0.4, color=colour if not place else "white",
                edgecolor=colour, hatch="////" if place else None, linewidth=0.8, label=name,
            )  # fmt: skip
            top = max(top, float(share.max()))
        axes.set_xticks(range(0, MOST_SCORE + 1, 2))
        label_axes(axes, "score")
    row[0].set_ylim(0, 1.06 * top or 1.0)
    legend(row[-1])
    return figure
