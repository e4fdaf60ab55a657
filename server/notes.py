"""What a reader must know beside a run's numbers, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from polyclinic.config import put_aside
from polyclinic.ehr.schema import Column
from polyclinic.ehr.split import OWN_SPLIT
from polyclinic.errors import several
from polyclinic.evaluation.judges import predicts_numbers
from polyclinic.plugins import dataset_of
from polyclinic.privacy.ledger.terms import Terms
from polyclinic.privacy.noise import warning
from polyclinic.programs import Program
from polyclinic.runs.history import OVERALL
from polyclinic.server.accounts import doubts
from polyclinic.server.exchange.cohort import cohort_size
from polyclinic.server.federate import Outcome

_MOST_UNCHANGED = 5
_STILL_FALLING = 0.02  # share of the loss
_RISEN = 0.05  # the same
_SKEWED = 4  # how many times as far the upper bound lies from the centre as the lower one
_FLATTEST = 1.25  # calibration slope, and its inverse the steepest
_TOLERATED = 0.1  # of the mean of what came about, by which risks may be too high or too low
# What was paid for before training: by whether features were measured.
_STATISTICS = "the noised number of training patients", "the statistics that standardise features"


def cautions(outcome: Outcome, evaluation: Mapping[str, Any] | None) -> list[str]:
    """What may make the result wrong: how one's own tables were read, risks that are off, and a training that went badly."""
    state = outcome.state
    sentences = list(dataset_of(outcome.config).notes) if _is_simulated(outcome) else []
    if state.stopped:
        sentences.append(f"The run stopped after round {state.round} of {outcome.config.rounds}: {state.stopped}")
    if worse := _noise_warning(outcome):
        sentences.append(worse)
    sentences += _calibration_notes(outcome, evaluation) + _unsure(evaluation)
    if outcome.program.judged and outcome.program.objective(outcome.sites[0].schema).name == "squared":
        sentences += _skew_notes(outcome.sites[0].schema.label)
    if outcome.program.stepwise and not (outcome.program.draws or state.stopped):
        sentences += _loss_notes(state.rows, private=outcome.privacy is not None)
    if outcome.privacy:
        sentences += doubts(state.accounts, state.epsilon, terms_of(outcome))
    return sentences


def notes(outcome: Outcome, unchanged: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None) -> list[str]:
    """What else a reader must know beside the numbers.

    Args:
        outcome: What the run left.
        unchanged: The rounds that changed no model, and why, as the summary has them.
        comparison: The comparison without privacy and with each hospital alone; None where there is none.
    """
    sentences = []
    state, simulated = outcome.state, _is_simulated(outcome)
    if outcome.privacy is None and outcome.config.secure.noise:
        sentences.append(
            "Hospitals added noise that protects whole hospitals in the sum alone; patients have no epsilon of their own."
        )
    elif outcome.privacy is None and outcome.central:
        sentences.append(
            "Hospitals added no noise: the only epsilon is each whole hospital's, against whoever sees the models alone."
        )
    elif outcome.privacy is None:
        sentences.append("This run had no differential privacy: it gives patients no formal guarantee.")
    else:
        asked = outcome.config.asks_statistics and _statistics_asked(outcome.program)
        updates = _updates(outcome.program)
        sentences.append(
            "Epsilon covers the training patients' records in everything that "
            f"{'the server learned' if outcome.config.secure.shared_noise else 'the hospitals sent'}: "
            f"{f'{asked} and ' if asked else ''}{updates}."
        )
    if (split := outcome.config.split.rule) != OWN_SPLIT:
        sentences.append(f"Held out: {split.words}.")
    if outcome.config.secure.shared_noise:
        trusted = "" if all(site.knows_others for site in outcome.sites) else " and the server keeps to the protocol"
        sentences.append(
            f"The noise is shared: epsilon holds as long as the other hospitals add their shares{trusted}, for one hospital's "
            "update has next to no noise but its masks."
        )
    if idle := put_aside(outcome.config):
        sentences.append(f"With privacy.dp at false these keys had no effect: {', '.join(idle)}.")
    if outcome.central:
        sentences += _central_notes(outcome)
    if outcome.config.secure.aggregation:
        sentences.append("Secure aggregation: of the updates the server learned each round's sum alone.")
        apart = ["statistics"] * outcome.config.asks_statistics + ["metrics"] * any(state.released.values())
        if apart:
            sentences.append(f"{' and '.join(apart).capitalize()} were not summed under masks.")
        trusting = sum(not site.knows_others for site in outcome.sites)
        if trusting:
            sentences.append(
                "It counts on a server that passes hospitals' keys and identities on unchanged: "
                f"{trusting} of {len(outcome.sites)} hospitals have no list of the others' keys."
            )
        if cohort_size(outcome.config, len(outcome.sites)) == 2:
            sentences.append("With two hospitals in a round, the sum tells each of them the other's update.")
    if simulated and (outcome.privacy or outcome.central):
        sentences.append(
            "This is a simulation on one machine: noise and sampling follow the seed and can be reproduced by anyone who "
            "knows it, so the guarantee is that of the method, not of these very numbers. Patients were computed together; "
            "a real hospital computes each apart."
        )
    if state.released:
        sentences += _metrics_notes(outcome, simulated)
    learned = outcome.learning.state if outcome.learning else {}
    sentences += filter(None, [outcome.program.why_model(outcome.sites[0].schema)])
    sentences += outcome.program.notes(learned, scored=any(state.released.values()))
    if comparison:
        sentences.append(
            "The comparison without privacy and with each hospital alone is extra training that epsilon does not cover."
        )
    sentences += _of_unchanged(unchanged, private=outcome.privacy is not None)
    return sentences + list(dataset_of(outcome.config).readings if simulated else ())


def _is_simulated(outcome: Outcome) -> bool:
    return all(site.simulated for site in outcome.sites)


def _metrics_notes(outcome: Outcome, simulated: bool) -> list[str]:
    """Whose metrics left without noise, whose with noise, and whose did not."""
    state = outcome.state
    exact = sorted(name for name, left in state.released.items() if left and name not in state.score_counts)
    rest = sorted(name for name, left in state.released.items() if not left)
    sentences = []
    if exact:
        some = f"{len(exact)} of {len(state.released)} hospitals ({several(exact)})"
        where = some if rest or state.score_counts else "the hospitals"
        allowed = "a simulation's policy allows" if simulated else "their policies allow"
        sentences.append(
            f"Exact metrics of held-out patients and the exact number of these patients left {where} without noise, as {allowed}."
            + (" Epsilon does not cover them." if outcome.privacy or outcome.central else "")
        )
    if state.score_counts:
        epsilon = max(state.held_out.values())
        sentences.append(
            f"Private metrics: counts or sums of held-out patients left {several(sorted(state.score_counts))} with noise. Those "
            f"patients' own epsilon is at most {epsilon:.3g}; no patient is both held out and trained on. The errors beside "
            "figures are of that noise alone."
        )
    if rest and not (exact or state.score_counts):
        sentences.append(
            "No hospital's policy let metrics or the exact number of its patients leave: this run has none."
        )
    elif rest:
        sentences.append(f"Neither left {several(rest)}." if exact else f"No metrics left {several(rest)}.")
    reasons = sorted({f"{name}: {why.rstrip('.')}." for name, why in state.withheld.items()})
    return sentences + reasons[:_MOST_UNCHANGED]


def _loss_notes(rows: Sequence[Mapping[str, Any]], private: bool) -> list[str]:
    """A sentence where the loss of held-out patients, of all hospitals where pooled, still fell in the last rounds, or had
    been lower before."""
    for site in OVERALL:
        course = [row for row in rows if row["site"] == site and row.get("loss") is not None]
        losses = [row["loss"] for row in course]
        if (best := best_before(losses)) is not None:
            return [
                f"The loss of held-out patients was lower before the run ended: {losses[best]:.3f} after round "
                f"{course[best]['round']}, {losses[-1]:.3f} at the end. A smaller `training.learning-rate`, or fewer `rounds`, "
                "would probably give a better one."
            ]
        fall = last_fall(losses)
        if fall:
            last = course[-1]["round"] - course[-1 - max(2, len(course) // 4)]["round"]
            more = (
                "may improve it further, but share the same ε, so that each has more noise"
                if private
                else ("would probably improve it further")
            )
            return [
                f"The model was still improving when the run ended: over the last {last} rounds the loss of held-out patients "
                f"fell by {fall:.0%}. More `rounds` or more `training.local-steps` {more}."
            ]
    return []


def best_before(losses: Sequence[float]) -> int | None:
    """The place of the lowest of ``losses``, where the mean of the last quarter, two at least, is more than 5 % above it.

    Returns None elsewhere, and for fewer than four losses.

    Examples:
        >>> best_before([0.5, 0.25, 0.4, 0.375]), best_before([0.5, 0.4, 0.3, 0.3]), best_before([0.2, 0.3, 0.4])
        (1, None, None)
    """
    span = max(2, len(losses) // 4)
    if len(losses) < 2 * span or fmean(losses[-span:]) <= (1 + _RISEN) * min(losses):
        return None
    best = losses.index(min(losses))
    return best if best < len(losses) - span else None


def _calibration_notes(outcome: Outcome, evaluation: Mapping[str, Any] | None) -> list[str]:
    """A sentence where predictions of all hospitals together are too high or too low on average, and what helps."""
    if not evaluation or evaluation["undefined"]:
        return []
    off = evaluation["pooled"].get("calibration_in_the_large", {})
    objective, config = outcome.program.objective(outcome.sites[0].schema), outcome.config
    numbers = predicts_numbers({"objective": {"predicts": objective.predicts}})
    if not is_far_off(off, evaluation["calibration"] or [], numbers):
        return []
    least, most = sorted(abs(off[end]) for end in ("low", "high"))
    unit = f" {objective.unit}" if numbers and objective.unit else ""
    newton = (
        outcome.privacy and objective.name == "classification" and objective.has_classes and config.model == "logistic"
        and config.strategy == "fedavg" and config.training.optimizer != "newton"
    )  # fmt: skip
    clip = config.privacy.max_grad_norm
    helps = (
        " `training.optimizer=newton`, without other keys of training, does so within the same budget."
        if newton
        else ""
    )
    if outcome.privacy and outcome.program.stepwise and not (newton or numbers) and off["value"] < 0:
        helps = (
            f" Shortened gradients of the rarer outcome lower risks: try a `privacy.max-grad-norm` of {2 * clip:g} in place of "
            f"{clip:g}."
        )
    return [
        f"The model's {'predictions' if numbers else 'risks'} for held-out patients are on average {abs(off['value']):.3f}{unit} "
        f"too {'high' if off['value'] > 0 else 'low'} ({least:.3f} to {most:.3f}): recalibrate it before anybody acts on a "
        f"{'prediction' if numbers else 'probability'}.{helps}"
    ]


def _unsure(evaluation: Mapping[str, Any] | None) -> list[str]:
    """A sentence where predictions differ surely less or more from patient to patient than what came about."""
    slope = evaluation["pooled"].get("calibration_slope", {}) if evaluation and not evaluation["undefined"] else {}
    if slope.get("low") is None or (slope["low"] <= _FLATTEST and slope["high"] >= 1 / _FLATTEST):
        return []
    differ, high, low = ("less", "low", "high") if slope["low"] > 1 else ("more", "high", "low")
    return [
        f"Predictions differ {differ} from patient to patient than what came about (calibration slope {slope['value']:.2f}, "
        f"{slope['low']:.2f} to {slope['high']:.2f}; 1 is true): high ones are too {high}, and low ones too {low}."
    ]


def _skew_notes(label: Column) -> list[str]:
    """A sentence on a label of numbers most of which lie near the lower bound, by its centre in the schema."""
    if label.centre is None or label.bounds is None:
        return []
    below, above = label.centre - label.bounds[0], label.bounds[1] - label.centre
    if above <= _SKEWED * below:
        return []
    return [
        f"The label {label.name!r} is very skewed: `objective=huber` errs less for most rows, though its predictions are lower "
        "on average."
    ]


def is_far_off(off: Mapping[str, Any], bins: Sequence[Mapping[str, Any]], numbers: bool) -> bool:
    """Whether calibration in the large is off, and by more than a tolerance.

    That is so where its interval excludes 0, and the value is more than a tenth of the mean of what came about. For
    numbers it is a tenth of the spread of that between the tenths of the rows by their prediction.

    Args:
        off: ``value``, ``low`` and ``high`` of calibration in the large; None for ``low`` where there is no interval.
        bins: Of each tenth of the rows, its ``share`` and the mean ``observed``.
        numbers: Whether the label is a number, not a class.

    Examples:
        >>> bins = [{"share": 0.5, "observed": 0.1}, {"share": 0.5, "observed": 0.3}]
        >>> [is_far_off({"value": x, "low": x - 0.01, "high": x + 0.01}, bins, False) for x in (0.008, -0.018, -0.022)]
        [False, False, True]
    """
    if off.get("low") is None or off["low"] <= 0 <= off["high"]:
        return False
    mean = sum(row["share"] * row["observed"] for row in bins)
    spread = sum(row["share"] * (row["observed"] - mean) ** 2 for row in bins) ** 0.5
    return bool(abs(off["value"]) > _TOLERATED * (spread if numbers else mean))


def last_fall(losses: Sequence[float]) -> float:
    """By which share the mean of the last quarter of ``losses``, two at least, lies below that of as many before it.

    Returns 0 for less than 2 %, and for less than two standard errors by how unevenly the losses changed by round. It
    returns 0 also where the last loss is not below that mean, and for fewer than four losses.

    Examples:
        >>> last_fall([0.6, 0.5, 0.4, 0.3]), last_fall([0.6, 0.3, 0.3, 0.3, 0.3]), last_fall([0.5, 0.4, 0.3])
        (0.36363636363636376, 0.0, 0.0)
    """
    span = max(2, len(losses) // 4)
    if len(losses) < 2 * span:
        return 0.0
    before, after = fmean(losses[-2 * span : -span]), fmean(losses[-span:])
    fall = 1 - after / before if before > 0 else 0.0
    changes = [new - old for old, new in pairwise(losses[-2 * span :])]
    error = stdev(changes) / span**0.5  # of the difference of two means, each over span losses
    return fall if fall >= _STILL_FALLING and before - after > 2 * error and losses[-1] < after else 0.0


def terms_of(outcome: Outcome) -> dict[str, Terms]:
    """By what each hospital's epsilon is measured, with the budget of its policy."""
    return {site.name: site.terms for site in outcome.sites}


def _statistics_asked(program: Program) -> str:
    if program.counts_classes:
        return "the noised number of training patients of each class"
    return _STATISTICS[program.config.data.standardise == "measured"]


def _updates(program: Program) -> str:
    """What else left the hospitals, or was learned of them."""
    what = program.released_together if program.config.secure.shared_noise else program.released
    return f"{what} and the choice among the generators" if program.choice else what


def _of_unchanged(unchanged: Sequence[Mapping[str, Any]], private: bool) -> list[str]:
    """A sentence or two for each such round, the first of many."""
    notes = []
    for entry in unchanged[:_MOST_UNCHANGED]:
        count = len(entry["charged"])
        who = "1 hospital charged its ledger" if count == 1 else f"{count} hospitals charged their ledgers"
        charged = [f"{who} for it"] if private and count else []
        charged += (
            ["the server's ledger was charged for what its sum tells of whole hospitals"] if entry["central"] else []
        )
        paid = f", though {' and '.join(charged)}" if charged else ""
        notes.append(f"{entry['reason'].rstrip('.')}. This round changed no model{paid}.")
    if len(unchanged) > _MOST_UNCHANGED:
        notes.append(f"{len(unchanged)} rounds changed no model; summary.json has all under 'unchanged'.")
    return notes


def _noise_warning(outcome: Outcome) -> str | None:
    """A sentence where the noise of the hospitals' steps is worse than independent noise at how often a patient takes part."""
    if outcome.privacy is None or not outcome.program.stepwise:
        return None
    settings = outcome.program.settings(outcome.privacy.noise_multiplier)
    return warning(settings.noise, settings.participation) if settings.noise else None


def _central_notes(outcome: Outcome) -> list[str]:
    """What the hospitals' own epsilon leaves out, and whether its noise drowned the training."""
    central = outcome.central or {}
    notes = [
        "A hospital's epsilon is of the models that the server gave out, and of nothing else in this folder: its metrics, "
        "drop-outs and ledgers tell of single hospitals. Metrics of training were dropped."
    ]
    if central["sample_rate"] < 1:
        notes.append(
            "A hospital's epsilon counts on nobody who sees the models knowing which hospitals took part in which round: "
            "it does not hold against the server, nor against who reads this folder."
        )
    if central["warning"]:
        notes.append(central["warning"].replace("a patient", "a hospital"))
    if central["noise_to_signal"] > 1:
        notes.append(
            f"The noise for whole hospitals is {central['noise_to_signal']:.3g} times as long as the longest mean update "
            f"that clipping allows, with {central['expected_sites']:g} hospitals expected in a round: more hospitals, fewer "
            "rounds, a smaller model or less noise would leave more of what they learn."
        )
    return notes
