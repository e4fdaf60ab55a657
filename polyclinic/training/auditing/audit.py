"""The whole audit of a subject: canaries where the task takes the model, and every check beside them."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.errors import ConfigError
from polyclinic.training.auditing.canaries import Guessing, guess
from polyclinic.training.auditing.checks import findings, refusal, sensitivity, takes_steps
from polyclinic.training.auditing.finding import Finding
from polyclinic.training.auditing.fixed import Fixed
from polyclinic.training.auditing.releases import is_release
from polyclinic.training.auditing.subject import Subject


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

    A game that is trained as published, which claims nothing, is searched for what breaks a guarantee. A task that neither
    takes steps nor releases a minimiser shows its final model alone: a black box, without checks. A model that the task
    refuses, which only a planted fault may bring, is measured for its sensitivity alone.
    Raises ConfigError for a refused model without a fault, for one that does not tell the canaries apart, and for a fault
    that the task has no place for.
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
    found = Finding("canaries", "epsilon is at least", guessing.epsilon_lower, 0.0, subject.epsilon)
    return Audit(guessing, (found, *([] if opaque else findings(subject))), white_box)


def _check_fault(subject: Subject) -> None:
    """Raises ConfigError for a fault that the task has no place for."""
    subject.fault.settings(subject.settings)
    if subject.fault.name == "shuffled" and not takes_steps(subject):
        name = getattr(subject.task, "name", "given")
        raise ConfigError(f"The fault 'shuffled' is of batches, of which the task {name!r} takes none.")
