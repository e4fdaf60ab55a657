"""The analysis in plain words; that no difference was found is never said to be that there is none."""

from __future__ import annotations

from typing import Any

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


def verdict(found: dict[str, Any]) -> list[str]:
    """Sentences on the pooled comparison of ``analyse``."""
    return [*_scores(found), *_guesses(found["pooled"]["guesses"]), *_missing(found)]


def _scores(found: dict[str, Any]) -> list[str]:
    pooled = found["pooled"]["scores"]
    real, synthetic, apart = pooled["real"], pooled["synthetic"], pooled["difference"]
    if apart["value"] is None:
        return ["There are no scores of both real and synthetic patients, so nothing can be compared."]
    count = len(found["reviewers"])
    said = [
        f"{count} reviewer{'s' if count > 1 else ''} gave real patients {real['mean']:.2f} on average and synthetic ones "
        f"{synthetic['mean']:.2f}, of 0 to 10."
    ]
    if apart["low"] is None and pooled["p"] is not None and pooled["p"] < 0.05:
        return [
            *said,
            "All real patients have one score and all synthetic ones another, so there is no interval; they were scored "
            f"differently (Mann-Whitney p = {pooled['p']:.3g}).",
        ]
    if apart["low"] is None:
        return [*said, "The scores do not vary enough for an interval, so they say nothing of what may be excluded."]
    low, high = apart["low"], apart["high"]
    span = f"{apart['value']:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}"
    p = "" if pooled["p"] is None else f"; Mann-Whitney p = {pooled['p']:.3g}"
    said.append(f"The difference, real less synthetic, is {span}{p}).")
    if low <= 0 <= high:
        ranks = pooled["p"] is not None and pooled["p"] < 0.05
        told = (
            "The means show no clear difference"
            f"{', though by Mann-Whitney the scores are distributed differently' if ranks else ''}; that is no evidence "
            "that there is none. What "
            f"{real['patients'] + synthetic['patients']} scored patients do exclude, at 95 %, is that real ones score more than "
            f"{high:.2f} points above synthetic ones on average, or more than {-low:.2f} below."
        )
    else:
        told = (
            f"{'Real' if low > 0 else 'Synthetic'} patients looked more real to these reviewers, by at least "
            f"{min(abs(low), abs(high)):.2f} and at most {max(abs(low), abs(high)):.2f} points at 95 %."
        )
    wanted = "" if pooled["detectable"] is None else (
        f" A review of this size finds a true difference of {pooled['detectable']:.2f} points in 80 of 100 cases."
    )  # fmt: skip
    return [*said, told + wanted]


def _guesses(found: dict[str, Any]) -> list[str]:
    one = found["accuracy"]
    if one["value"] is None:
        return ["No guesses were given."]
    if one["low"] is None:
        return [f"Guesses were right for {_share(one['value'])}; 50 % is what chance gives."]
    said = (
        f"Guesses were right for {_share(one['value'])} (95 % interval {_share(one['low'])} to {_share(one['high'])}); "
    )
    if one["low"] <= 0.5 <= one["high"]:
        return [
            f"{said}50 % is what chance gives. They are not shown to be better than chance, and not shown to be chance: up to "
            f"{_share(one['high'])} is not excluded."
        ]
    if one["low"] > 0.5:
        return [f"{said}that is more than the 50 % that chance gives: real and synthetic patients were told apart."]
    return [
        f"{said}that is less than the 50 % that chance gives: they were told apart, and taken for each other; look at which "
        "trait misled."
    ]


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _missing(found: dict[str, Any]) -> list[str]:
    gaps = {one["reviewer"]: len(one["missing"]["scores"]) for one in found["reviewers"]}
    told = ", ".join(f"{name} {count}" for name, count in gaps.items() if count)
    return [f"Patients without a score: {told}. They are left out, as if they lacked by chance."] if told else []
