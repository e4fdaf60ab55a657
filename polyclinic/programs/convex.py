"""A convex model of labelled records, released once a round: noise on its minimiser or objective, or a draw by its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polyclinic.ehr.schema import Schema
from polyclinic.programs.program import State
from polyclinic.programs.supervised import Supervised
from polyclinic.training.task import Task


@dataclass(frozen=True)
class Convex(Supervised):
    """The convex tasks, as ``output-perturbation``: a round is one release, without steps and batches.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(task="output-perturbation", rounds=1))
        >>> type(program).__name__, program.stepwise, program.price(program.settings(noise_multiplier=4.0))
        ('Convex', False, GaussianDpEvent(noise_multiplier=4.0))
    """

    stepwise: ClassVar[bool] = False
    round_is: ClassVar[str] = "a release of its own"

    def converging_task(self, schema: Schema) -> Task:
        from polyclinic.training import classification  # the same loss, in steps

        return classification

    def notes(self, state: State, scored: bool) -> list[str]:
        if self.config.rounds == 1:
            return []
        return [
            f"Each of the {self.config.rounds} rounds was a release of its own, with its share of epsilon: one round would "
            "have needed less noise."
        ]
