"""What noise, clipping and the choice of epochs do to the AC-GAN of ``sprint``: Beaulieu-Jones et al. 2019, Figure 1B to D.

The grid and the course are each of one simulation, as they show a tendency and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic.evaluation.figures.rounds import plot_lines
from polyclinic.evaluation.synthetic.classifiers import transfer
from polyclinic.evaluation.synthetic.columns import correlations
from polyclinic.experiments import markdown
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic_studies.generators.patients import Patients, hospitals_of, real_patients, synthetic
from polyclinic_studies.generators.transfer_study import Options
from polyclinic_studies.parts import Parts, outcome_of

EPSILONS, CLIPS = (1.0, 2.5, 10.0), (0.1, 0.5, 2.5)
#: A third of the rounds, each with three times the generator's steps.
SHORT: Options = {"rounds": 10, "synthesis.options": "steps=60", "synthesis.candidates": 0}
# The paper's choice is by these two.
_JUDGES = ("lr", "rf")


def grid(parts: Parts, options: Options) -> list[dict[str, Any]]:
    """Each cell of ``EPSILONS`` x ``CLIPS``: noise multiplier, accuracy less that of real participants, and Spearman of the
    correlations; ``options``: the configuration of the AC-GAN's run, which is made shorter."""
    cells = []
    for epsilon in EPSILONS:
        for clip in CLIPS:
            cell = {**options, **SHORT, "privacy.epsilon": epsilon, "privacy.max-grad-norm": clip}

            def measure(cell: Options = cell) -> dict[str, Any]:
                outcome = outcome_of(cell)
                assert outcome.synthesizer is not None and outcome.privacy is not None
                scores = _scores(outcome.synthesizer, real_patients(hospitals_of(cell)), int(cell["seed"]))
                return scores | {"noise multiplier": outcome.privacy.noise_multiplier}

            found = parts.answer(f"grid-{epsilon:g}-{clip:g}", cell, measure)
            parts.say(f"acgan, epsilon {epsilon:g}, clip {clip:g}: {found}")
            cells.append({"epsilon": epsilon, "clip": clip, **found})
    return cells


def grid_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A row for each epsilon, a column for each clip norm."""
    rows = []
    for epsilon in EPSILONS:
        own = [cell for cell in cells if cell["epsilon"] == epsilon]
        rows.append([
            f"{epsilon:g}", f"{own[0]['noise multiplier']:.2f}",
            *(f"{cell['lr']:+.3f}, {cell['rf']:+.3f}, {cell['spearman']:.3f}" for cell in own),
        ])  # fmt: skip
    return markdown(["ε", "noise multiplier", *(f"clip norm {clip:g}" for clip in CLIPS)], rows)


def course(parts: Parts, options: Options) -> dict[str, Any]:
    """What each candidate of a run teaches, as ``grid`` measures it, by its round, and the rounds that hospitals ``chosen``."""

    def measure() -> dict[str, Any]:
        outcome = outcome_of(options)
        assert outcome.learning is not None
        real, state = real_patients(hospitals_of(options)), outcome.learning.state
        candidates = outcome.learning.half.candidates(state)
        scores = {str(number): _scores(one, real, int(options["seed"])) for number, one in candidates.items()}
        return {"chosen": state["selected"], "candidates": scores}

    found: dict[str, Any] = parts.answer("candidates", options, measure)
    return found


def course_figure(found: Mapping[str, Any]) -> Figure:
    """Accuracy by round, the chosen ones marked."""
    rounds = np.array([float(number) for number in found["candidates"]])
    lines = {name: np.array([one[name] for one in found["candidates"].values()]) for name in _JUDGES}
    drawn = {words: (rounds, lines[name]) for name, words in (("lr", "logistic regression"), ("rf", "random forest"))}
    marked = np.isin(rounds, found["chosen"])
    drawn["chosen"] = (rounds[marked], lines["lr"][marked])
    caption = "Of classifiers of generated participants, by the generator's round; first simulation."
    style = {"chosen": {"linestyle": "none", "marker": "D", "markersize": 8}}
    return plot_lines(drawn, "Accuracy less that of real participants", caption, style)


def _scores(synthesizer: Synthesizer, real: Patients, seed: int) -> dict[str, float | None]:
    """Accuracy on held-out participants less that of training on real ones, and Spearman of the correlations."""
    table = synthetic(synthesizer, len(real.train.y), seed)[1]
    judged = transfer(
        (real.train.x, real.train.y), {"acgan": (table.x, table.y)}, (real.test.x, real.test.y), seed=seed, classifiers=_JUDGES
    )["acgan"]  # fmt: skip
    return {kind: judged[kind].minus_real["accuracy"].value for kind in _JUDGES} | {
        "spearman": correlations(real.train.x, table.x).spearman
    }
