"""The whole audit of a subject: canaries where the task takes the model, and checks beside them.

The checks are of sensitivity, noise, sampling and steps of a task's own ``train``, each measured from outside.
Canaries see gross faults only; checks see a noise that is a few percent too small, or a batch that is no Poisson sample.
Each alarms falsely with a probability of about one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.audit import mean_square_interval
from polyclinic.privacy.events import merge_events
from polyclinic.privacy.streams import generator
from polyclinic.training.auditing.canaries import Contributions, Guessing, guess, noiseless, told_apart
from polyclinic.training.auditing.fixed import Fixed, label_counts
from polyclinic.training.auditing.law import ROUNDING, SIGNIFICANCE, Finding, counts, covariance
from polyclinic.training.auditing.releases import independence, is_release, release_findings
from polyclinic.training.auditing.subject import Subject, moves, neighbours, nobody, noisy_sums, train
from polyclinic.training.auditing.views import View
from polyclinic.training.logistic.convex import EXPONENTIAL
from polyclinic.types import Arrays, Builder, Reals

_WIDE = 2000
_ROUNDS, _SITES = 10, 20
_NOISE_ROUNDS = 4
_REFERENCES = 100


def takes_steps(subject: Subject) -> bool:
    """Whether the task says that a round is noisy sums of clipped gradients: its event is Gaussians, sampled or not.

    A task whose steps are of another kind says so itself, with ``takes_steps = False``.
    """
    own = subject.task
    if is_release(subject) or not getattr(own, "takes_steps", True):
        return False
    return all(_precision(part) > 0 for part, _ in merge_events(own.event(subject.settings)))


def refusal(subject: Subject) -> str | None:
    """Why the task refuses to train the model; None when it does not."""
    build, arrays = subject.model()
    try:
        subject.task.check(build, arrays, subject.features, subject.settings.engine)
    except ConfigError as error:
        return str(error)
    return None


def findings(subject: Subject) -> list[Finding]:
    """What all checks found of a model that the task takes."""
    if is_release(subject):
        return release_findings(subject)
    checks = [sensitivity(subject), *noise(subject), steps(subject), *sampling(subject)]
    return [*checks, label_counts(subject)] if isinstance(subject, Fixed) else checks


def sensitivity(subject: Subject) -> Finding:
    """The most that one patient, typical or extreme, moves a sum, in clip norms: at most 1 when it is added or removed."""
    if isinstance(subject, Fixed) and subject.parts:
        return max(
            (sensitivity(replace(part, parts=())) for part in subject.parts), key=lambda finding: finding.measured
        )
    build, arrays = subject.model()
    pairs, settings = neighbours(subject), noiseless(subject.settings)
    hospitals = [
        subject.hospital(rows, settings, "neighbours", name, side)
        for name, both in pairs.items()
        for side, rows in enumerate(both)
    ]
    sums = noisy_sums(subject, build, arrays, hospitals, settings)
    worst = {
        view.check_name(name): moved / settings.max_grad_norm
        for view, seen in zip(subject.views(), sums, strict=True)
        for name, moved in moves(pairs, seen[0]).items()
    }
    name = max(worst, key=worst.__getitem__)
    return Finding("sensitivity", f"most that a patient moves a sum, over C: {name}", worst[name], 0.0, 1.0 + ROUNDING)


def noise(subject: Subject) -> list[Finding]:
    """The size of the noise that empty batches get, over what is claimed, and whether sites, rounds or sums share any."""
    settings, rounds = subject.settings, min(_NOISE_ROUNDS, subject.rounds)
    wide, sites = (0, _as_many(subject)) if isinstance(subject, Fixed) else (_WIDE, _SITES)
    build, arrays = subject.model(extra=wide)
    hospitals = [subject.hospital(nobody(subject, wide), settings, "empty", site) for site in range(sites)]
    sizes, all_draws = [], []
    for view, sums in zip(
        subject.views(), noisy_sums(subject, build, arrays, hospitals, settings, rounds), strict=True
    ):
        # Noise that is correlated over the rounds as the process says is independent again after this.
        mixing = np.linalg.cholesky(covariance(view.settings, rounds))
        unmixed = np.linalg.solve(mixing, sums.reshape(rounds, -1) / view.settings.noise_scale)
        draws = unmixed.reshape(rounds * sites, -1)
        low, high = np.sqrt(mean_square_interval(draws.size, SIGNIFICANCE))
        size = float(np.sqrt(np.mean(draws**2)))
        sizes.append(Finding(view.check_name("noise size"), "noise of empty batches, over what is claimed", size, float(low),
                             float(high)))  # fmt: skip
        all_draws.append(draws)
    return [*sizes, independence(np.concatenate(all_draws), "largest correlation of two sites or rounds")]


def _as_many(subject: Fixed) -> int:
    """Sites whose noise tells as much as that of ``_SITES`` with wide models, or nearly."""
    return min(max(4, -(-_SITES * _WIDE // subject.numbers)), 10 * _SITES)


def steps(subject: Subject) -> Finding:
    """The steps that a round takes, counted by what canaries add, and the steps that the ledger is charged for."""
    build, arrays = subject.model(extra=2)
    rows, contributions = told_apart(subject, build, arrays, 2)
    settings, seen = replace(noiseless(subject.settings), local_steps=subject.settings.local_steps), subject.views()
    hospital = subject.hospital(rows, settings, "steps")
    # A sum with more noise counts as the share of a step that it costs.
    shares = [
        ((subject.settings.noise_multiplier or 0.0) / (view.settings.noise_multiplier or 1.0)) ** 2 for view in seen
    ]
    sums = noisy_sums(subject, build, arrays, [hospital], settings)
    taken = sum(
        share * float(contributions.counts(sums_of_view[0]).max())
        for share, sums_of_view in zip(shares, sums, strict=True)
    )
    untold = sum(share for share, view in zip(shares, seen, strict=True) if not view.reported)
    reported = untold + train(subject, build, arrays, [hospital], settings, 1.0, [{}])[0].steps
    charged = _charged_steps(subject)
    wrong = max(taken, reported, key=lambda number: abs(number - charged))
    return Finding("steps", "steps that a round takes, and reports", wrong, charged - 0.01, charged + 0.01)


def _charged_steps(subject: Subject) -> float:
    """The steps of a round that are paid for, round by round, or all at once when the run begins."""
    settings = subject.settings
    if settings.noise is not None:  # a hospital may have left rounds out
        return len(subject.views()) * min(settings.local_steps, settings.noise.steps / subject.rounds)
    parts = merge_events(subject.task.event(settings))
    # Plain Gaussians are merged to one, whose precision is that of so many steps.
    return sum(count * (_precision(part) * (settings.noise_multiplier or 0.0) ** 2) for part, count in parts)


def _precision(event: DpEvent) -> float:
    """One over the variance of a Gaussian, sampled or not; Poisson samples stay apart in a composition."""
    inner = event.event if isinstance(event, PoissonSampledDpEvent) else event
    return 1.0 / float(inner.noise_multiplier) ** 2 if isinstance(inner, GaussianDpEvent) else 0.0


def sampling(subject: Subject) -> list[Finding]:
    """How often each of some canaries is in a round, against counts drawn from the law that is claimed."""
    settings = replace(subject.settings, noise_multiplier=0.0, noise=None)
    # So many that a round is expected to have a few of them.
    patients = min(max(60, round(3 / (settings.sample_rate * settings.local_steps))), 300)
    build, arrays = subject.model(extra=patients)
    rows, contributions = several(subject, build, arrays, patients)
    hospitals = [subject.hospital(rows, settings, "sampling", site) for site in range(_SITES)]
    sums = noisy_sums(subject, build, arrays, hospitals, settings, _ROUNDS)
    return [
        finding
        for view, seen in zip(subject.views(settings), sums, strict=True)
        for finding in as_claimed(view, np.rint(contributions.counts(seen)))
    ]


def several(subject: Subject, build: Builder, arrays: Arrays, wanted: int) -> tuple[Rows, Contributions]:
    """As many canaries as are wanted, or where none has a column of its own as the model tells apart.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        wanted: How many canaries are wanted.

    Raises:
        ConfigError: The model does not tell the canaries apart.
    """
    while isinstance(subject, Fixed) and wanted > 2:
        try:
            return told_apart(subject, build, arrays, wanted, exact=True)
        except ConfigError:
            wanted //= 2
    return told_apart(subject, build, arrays, wanted)


def as_claimed(view: View, patient_counts: Reals) -> Iterator[Finding]:
    """Statistics of the (rounds, sites, patients) counts against those of draws from the view's law."""
    draw = generator(0, "audit", "counts")
    law = np.array([_moments(counts(view.settings, patient_counts.shape, draw)) for _ in range(_REFERENCES)])
    middle, width = law.mean(axis=0), 6.0 * law.std(axis=0) + ROUNDING
    names = {
        "sample rate": "mean steps of a patient in a round",
        "batch sizes": "variance of a round's patients",
        "patients' turns": "variance of a patient's steps",
        "pairs": "mean square covariance of two patients",
    }
    for (name, what), measured, mid, far in zip(names.items(), _moments(patient_counts), middle, width, strict=True):
        yield Finding(view.check_name(name), what, float(measured), float(mid - far), float(mid + far))


def _moments(patient_counts: Reals) -> Reals:
    """(4,) statistics of (rounds, sites, patients) counts, which tell ways of sampling apart; the last is 0 without pairs."""
    mean = patient_counts.mean()
    apart = (patient_counts - mean).reshape(-1, patient_counts.shape[2])
    covariance = apart.T @ apart / len(apart)
    pairs = covariance[np.triu_indices(len(covariance), k=1)]
    return np.array(
        [mean, apart.sum(axis=1).var(), patient_counts.sum(axis=0).var(), np.mean(pairs**2) if pairs.size else 0.0]
    )


@dataclass(frozen=True)
class Audit:
    """What was found; ``guessing`` is None, and ``refused`` says why, for a model that the task does not train.

    white_box: whether guesses were made of all that a hospital makes of its records, or of the final model.
    """

    guessing: Guessing | None
    findings: tuple[Finding, ...]
    white_box: bool
    refused: str | None = None

    @property
    def violated(self) -> bool:
        """Whether anything found contradicts the claimed epsilon; a refusal alone does not."""
        return not all(finding.passed for finding in self.findings)

    @property
    def caught_by(self) -> list[str]:
        """The names of what speaks against the subject, a refusal first."""
        refused = ["refusal"] if self.refused else []
        return refused + [finding.name for finding in self.findings if not finding.passed]


def audit(
    subject: Subject, canaries: int, guesses: tuple[int, ...], confidence: float = 0.95, white_box: bool = True
) -> Audit:
    """One training run with canaries, and all checks.

    A game that is trained as published, which claims nothing, is searched for what breaks a guarantee. A task that
    neither takes steps nor releases a minimiser shows its final model alone: a black box, without checks. A model that
    the task refuses, which only a planted fault may bring, is measured for its sensitivity alone.

    Args:
        subject: What is audited.
        canaries: The number of canaries.
        guesses: One or several numbers of guesses, as in ``guess``.
        confidence: The confidence of the lower bound of epsilon.
        white_box: Whether the sums of every round are seen, or the final model alone.

    Raises:
        ConfigError: The task refuses the model and there is no fault, the model does not tell the canaries apart, or
            the task has no place for the fault.
    """
    _check_fault(subject)
    if isinstance(subject, Fixed) and not white_box:
        raise ConfigError("Task synthesis has no model that a canary could be seen in: audit it as a white box.")
    if isinstance(subject, Fixed) and subject.published:
        return Audit(None, tuple(subject.published.findings(subject)), True)
    opaque = not (is_release(subject) or takes_steps(subject))
    white_box = white_box and not opaque
    refused = refusal(subject)
    if refused is not None:
        if not subject.fault.name:
            raise ConfigError(refused)
        return Audit(None, () if is_release(subject) or opaque else (sensitivity(subject),), white_box, refused)
    guessing = guess(subject, canaries, guesses, confidence, white_box)
    bound = Finding("canaries", "epsilon is at least", guessing.epsilon_lower, 0.0, subject.epsilon)
    return Audit(guessing, (bound, *([] if opaque else findings(subject))), white_box)


def _check_fault(subject: Subject) -> None:
    """Raises ConfigError for a fault that the task has no place for."""
    subject.fault.settings(subject.settings)
    if subject.fault.name == "shuffled" and not takes_steps(subject):
        name = getattr(subject.task, "name", "given")
        raise ConfigError(f"The fault 'shuffled' is of batches, of which the task {name!r} takes none.")
    if subject.fault.name == "no-clipping" and subject.task == EXPONENTIAL:
        raise ConfigError(f"The fault 'no-clipping' would keep the task {EXPONENTIAL.name!r} drawing for ever.")
