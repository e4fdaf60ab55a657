"""Kinds of run that end in tables: statistics of all hospitals' patients, by rounds of sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.programs.program import Half, State
from polyclinic.programs.sums import Sums, SumsHalf
from polyclinic.training.preparation import PatientSums
from polyclinic.training.synthesis import ExactSumsTask
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays

if TYPE_CHECKING:
    from polyclinic.synthesis.synthesizer import Synthesizer
    from polyclinic.training.auditing.fixed import Fixed
    from polyclinic.training.auditing.subject import Claim

__all__ = ["Analysis", "Cell", "Result", "Table"]

#: A cell of a table; None where there is no value.
Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """A table for the report and for a publication.

    name: Of its files, ``tables/NAME.csv``, ``.tex`` and ``.html``.
    columns: Headings, of which the first stands above the rows' names.
    rows: As many cells each as there are columns.
    formats: By heading, how numbers are shown, as ``.3f``, or ``p`` for p-values; a CSV file has all digits.
    note: What a reader of the table must know, as sentences.

    Examples:
        >>> Table("ages", "Age by arm", ("Arm", "Mean"), (("aspirin", 71.66),), {"Mean": ".1f"}).texts()
        [['aspirin', '71.7']]
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formats: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def texts(self) -> list[list[str]]:
        """The cells as texts; without a value a dash."""
        return [
            [_text(cell, self.formats.get(heading, "")) for heading, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def _text(cell: Cell, form: str) -> str:
    if cell is None or cell != cell:
        return "–"
    if form == "p" and not isinstance(cell, str):
        return "<0.001" if cell < 0.001 else f"{cell:.3f}"
    return cell if isinstance(cell, str) else format(cell, form).removesuffix(".")


@dataclass(frozen=True)
class Result:
    """What an analysis ends in.

    title: In a reader's words. numbers: JSON that figures are drawn from, by the figure's name. notes: What a reader must know
    beside the tables, as sentences.

    Examples:
        >>> ages = Table("ages", "Age by arm", ("Arm", "Mean"), (("aspirin", 71.66),))
        >>> [table.name for table in Result("Baseline", (ages,), notes=("Ages are in years.",)).tables]
        ['ages']
    """

    title: str
    tables: tuple[Table, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statistic(Sums):
    """A kind of run that ends in tables about patients, and in nothing that scores one."""

    judged: ClassVar[bool] = False
    limits_noise: ClassVar[bool] = True

    def classes(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        return np.ones(1)

    def arrays_to_score(self, model: Arrays, synthesizer: Synthesizer | None) -> None:
        """Nothing scores a patient."""

    def subject(self, claim: Claim) -> Fixed:
        return replace(super().subject(claim), counts=lambda shard: PatientSums(shard.schema).exact(shard))

    @abstractmethod
    def result(self, method: Any, state: State) -> Result:
        """The tables of a finished run. method: What ``method`` made. state: The last one of ``SumsHalf``.

        Raises DataError, which says why, where the noise or the records leave no result.
        """

    def statement(
        self, half: Half | None, state: State, synthesizer: Synthesizer | None, patients: Sequence[int], stopped: str | None
    ) -> dict[str, Any]:  # fmt: skip
        """The tables and what figures are drawn from, or in ``refused`` why there are none.

        Args:
            half: The server's half, which has the method of sums; not used where the run was stopped.
            state: The half's last state.
            synthesizer: Not used.
            patients: Not used.
            stopped: Why the run ended early; None where it did not.
        """
        refused, result = stopped, None
        if not stopped:
            try:
                result = self.result(cast(SumsHalf, half).method, state)
            except DataError as error:
                refused = f"No result: {error}"
        result = result or Result(self.config.task, ())
        tables = [asdict(table) | {"shown": table.texts()} for table in result.tables]
        return {"analysis": {"task": self.config.task, "refused": refused, **asdict(result), "tables": tables}}


@dataclass(frozen=True)
class Analysis(Statistic):
    """A statistic whose sums are exact without privacy (``ExactSumsTask``). A subclass has its options as fields, which
    ``task-options`` fill.

    By default nobody is held out, so that all of a hospital's patients count (``split.fraction``).

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(task="components"))
        >>> isinstance(program, Analysis), program.judged, program.noisy(0.5)
        (True, False, True)
    """

    def noisy(self, noise: float) -> bool:
        """Whether a sum has noise for privacy, and not a secure sum's rounding alone."""
        return self.config.privacy.dp and noise > 0

    def model_title(self, schema: Schema) -> str:
        return self.config.task

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> ExactSumsTask:
        task = ExactSumsTask(self.method(schema), name=self.config.task)
        return task if question is None else task.with_question(question)

    def price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """As of every program. Raises ConfigError for a private run of which exact sums are asked: its method keeps none back."""
        if self.config.privacy.dp and settings.noise_multiplier is None:
            raise ConfigError(f"The run of task {self.config.task!r} is private, but exact sums are asked of it.")
        return super().price(settings, begun)

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean; not used.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where it would.
        """
        method = self.method(schema)
        sizes = [method.size(number, {}) for number in range(1, method.rounds + 1)]
        self.check_length(max(sizes), noise_multiplier, fewest)
