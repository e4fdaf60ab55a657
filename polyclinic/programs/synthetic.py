"""What all programs that end in synthetic patients have in common: how rows are laid out, and how their rows are judged."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from polyclinic.config import RunConfig
from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, failing
from polyclinic.plugins import resolve
from polyclinic.privacy.streams import generator
from polyclinic.programs.program import Half, Program, State
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import class_frequencies
from polyclinic.synthesis.synthesizer import Synthesizer, unsure
from polyclinic.training.synthesis import site_probabilities
from polyclinic.types import Arrays


@dataclass(frozen=True)
class Synthetic(Program):
    """A run of task synthesis. Hospitals judge it by a classifier that was fitted to synthetic rows.

    Examples:
        >>> from polyclinic.plugins import dataset_of
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(task="synthesis", model="independent"))
        >>> schema = dataset_of(program.config).schema
        >>> isinstance(program, Synthetic), program.frequencies(schema, [300.0, 100.0]).tolist()
        (True, [0.75, 0.25])
    """

    draws: ClassVar[bool] = True
    counts_classes: ClassVar[bool] = True
    tells_rate: ClassVar[bool] = False
    #: Whether rows are drawn by the generator of a game.
    by_game: ClassVar[bool] = False

    @property
    def any_width(self) -> bool:
        return False

    @property
    def shows_quality(self) -> bool:
        return self.config.synthesis.quality

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of what draws rows. Raises ConfigError when their text is not ``key=value`` pairs."""
        return keyword_arguments(self.config.synthesis.options)

    def arrays_to_score(self, model: Arrays, synthesizer: Synthesizer | None) -> Arrays | None:
        return judge(synthesizer, self.config.synthesis.rows, self.config.seed) if synthesizer else None

    def scores(self, schema: Schema, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        return site_probabilities(arrays, rows)

    def check_evaluated(self, schema: Schema, arrays: Arrays, private: bool) -> None:
        """Nothing is refused: a linear classifier scores every patient apart.

        Args:
            schema: Not used.
            arrays: Not used.
            private: Not used.
        """

    def notes(self, state: State, scored: bool) -> list[str]:
        if not scored:
            return []
        return [
            "AUROC and accuracy are of a logistic regression that was fitted to synthetic rows and judged on held-out real "
            "patients."
        ]

    def statement(
        self, half: Half | None, state: State, synthesizer: Synthesizer | None, patients: Sequence[int], stopped: str | None
    ) -> dict[str, Any]:  # fmt: skip
        config = self.config
        return {
            "synthesis": {
                "method": config.model, "options": config.synthesis.options, "game": self.by_game,
                "finished": synthesizer is not None, "guarantee": self.guarantee(synthesizer, patients),
                "measured_together": [list(pair) for pair in able.together] if (able := unsure(synthesizer)) else [],
            }
        }  # fmt: skip

    def guarantee(self, synthesizer: Synthesizer | None, patients: Sequence[int]) -> str | None:
        """What the method guarantees beside epsilon, with this run's settings; None where that is all."""
        return None

    def class_counts(self, places: Sequence[int], totals: Sequence[np.ndarray]) -> list[float]:
        """Raises ConfigError where the run conditions on another number of hospitals than there are."""
        hospitals = self.config.synthesis.condition_hospitals
        if not hospitals:
            return super().class_counts(places, totals)
        if max(places) >= hospitals:
            raise ConfigError(
                f"Configuration key 'synthesis.condition-hospitals' has the value {hospitals}, but {len(places)} "
                "hospitals take part; give their number."
            )
        counts = np.zeros((len(totals[0]), hospitals))
        for place, total in zip(places, totals, strict=True):
            counts[:, place] = total
        return [float(count) for count in counts.ravel()]

    def layout(self, schema: Schema) -> Layout:
        return Layout.of(schema, self.config.synthesis.condition_hospitals)

    def frequencies(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        """(K,) of the label, from counts that were paid for; where there are none, all alike."""
        return class_frequencies(np.array(classes or [1.0] * self.layout(schema).classes))


def judge(synthesizer: Synthesizer, rows: int, seed: int) -> Arrays:
    """A logistic regression fitted to synthetic rows, as the arrays of ``models.tabular.logistic``.

    Hospitals evaluate it on held-out patients: how well what is learned on synthetic rows holds on real ones (TSTR).

    Args:
        synthesizer: Draws the rows.
        rows: How many.
        seed: Of the draws.

    Examples:
        >>> from types import SimpleNamespace
        >>> from polyclinic.runs.simulation import simulated_shards
        >>> shard = simulated_shards(RunConfig())[0]
        >>> layout = Layout.of(shard.schema)
        >>> drawn = SimpleNamespace(layout=layout, sample=lambda rows, rng: layout.rows(shard.x, shard.y)[:rows])
        >>> {name: array.shape for name, array in judge(drawn, rows=100, seed=0).items()}
        {'0.weight': (2, 30), '0.bias': (2,)}
    """
    layout = synthesizer.layout
    z = synthesizer.sample(rows, generator(seed, "judge"))
    # As hospitals hold it: whole numbers, categories, public bounds.
    encoded = encode(layout.decode(z), layout.schema)
    assert encoded.y is not None
    x, y = np.nan_to_num(encoded.x, nan=0.0), encoded.y
    labels = layout.schema.num_classes
    weight, bias = np.zeros((labels, layout.features)), np.zeros(labels)
    present = np.unique(y)
    if len(present) > 1:
        from sklearn.linear_model import LogisticRegression  # a second to load, which other runs need not wait for

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how far it converged hardly moves a metric
            model = LogisticRegression(max_iter=1000).fit(x, y)
        if len(present) == 2:
            weight[present[1]], bias[present[1]] = model.coef_[0], model.intercept_[0]
        else:
            weight[present], bias[present] = model.coef_, model.intercept_
        bias[[label for label in range(labels) if label not in present]] = -50.0
    return {"0.weight": weight.astype(np.float32), "0.bias": bias.astype(np.float32)}


def making(config: RunConfig) -> AbstractContextManager[None]:
    """What a stranger's code raises while it makes the run's model of its options becomes a ConfigError that says so.

    Examples:
        >>> config = RunConfig(task="synthesis", model="moments", synthesis={"options": "rank=0"})
        >>> with making(config):  # doctest: +ELLIPSIS
        ...     raise ValueError("rank must be positive")
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: Configuration key 'synthesis.options' has the value 'rank=0', ...
    """
    return failing(
        f"Configuration key 'synthesis.options' has the value {config.synthesis.options!r}, which makes no {config.model!r}"
    )


def make_model(group: str, config: RunConfig, layout: Layout, options: Mapping[str, Any]) -> Any:
    """The object that the run's model of ``group`` makes of the layout and the options.

    Args:
        group: The kind of the model, as "games" or "densities".
        config: Of the run, which names the model.
        layout: Of the rows.
        options: By parameter of the model.

    Examples:
        >>> from polyclinic.plugins import dataset_of
        >>> config = RunConfig(task="synthesis", model="maf")
        >>> make_model("densities", config, Layout.of(dataset_of(config).schema), {"hidden": 16}).hidden
        16
    """
    make = resolve(group, config.model)
    with making(config):
        return make(layout, **options)
