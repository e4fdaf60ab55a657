"""The whole audit of a subject: canaries where the task takes the model, and every check beside them."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.errors import ConfigError
from polyclinic.training.auditing.canaries import Guessing, guess
from polyclinic.training.auditing.checks import Finding, findings, refusal, sensitivity
from polyclinic.training.auditing.subject import Subject


@dataclass(frozen=True)
class Audit:
    """What was found; ``guessing`` is None, and ``refused`` says why, for a model that the task does not train."""

    guessing: Guessing | None
    findings: tuple[Finding, ...]
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

    A model that the task refuses, which only a planted fault may bring, is measured for its sensitivity alone.
    Raises ConfigError for a refused model without a fault, and for one that does not tell the canaries apart.
    """
    refused = refusal(subject)
    if refused is not None:
        if not subject.fault.name:
            raise ConfigError(refused)
        return Audit(None, (sensitivity(subject),), refused)
    guessing = guess(subject, canaries, guesses, confidence, white_box)
    found = Finding("canaries", "epsilon is at least", guessing.epsilon_lower, 0.0, subject.epsilon)
    return Audit(guessing, (found, *findings(subject)))
