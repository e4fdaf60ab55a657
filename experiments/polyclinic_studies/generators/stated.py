"""What published systems state of their epsilon beside what their settings come to: as a table and over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np
from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.streams import keyed_stream
from polyclinic.synthesis.layout import Layout
from polyclinic_studies.datasets import sprint
from polyclinic_studies.generators.figures import plot_spent
from polyclinic_studies.parts import Parts
from polyclinic_studies.published_games.claims import (
    CRITIC_STEPS,
    DELTA,
    GENERATOR_STEPS,
    TRIAL_NOISE,
    TRIAL_RATE,
    TRIAL_STEPS,
    Published,
    composed_epsilon,
    published,
    stated_multiplier,
)
from polyclinic_studies.published_games.games import acgan
from polyclinic_studies.published_games.training import AsPublished, noisy_average
from polyclinic_studies.tables import estimate, margin, smallest

_POINTS, _DRAWS, _CLOSE = 12, 12, 2e-3


class Plan(Protocol):
    """Runs by method and seed."""

    @property
    def seeds(self) -> Sequence[int]: ...

    @property
    def methods(self) -> Mapping[str, Mapping[str, Any]]: ...

    def options(self, method: str, seed: int) -> dict[str, Any]:
        """The configuration of one run."""
        ...


_EPOCHS = 500


def rows_of(systems: Sequence[str]) -> list[Published]:
    """What was published of these systems; takes some seconds the first time."""
    return [one for one in published() if one.system in systems]


def table(systems: Sequence[str]) -> str:
    """Stated against true epsilon, in Markdown, with what else is wrong."""
    rows = [
        [
            one.system,
            one.setting,
            f"{one.claimed:g}",
            f"{one.true:.4g}",
            f"{one.delta:g}",
            one.relation,
            one.unit,
            "; ".join(f"{name} {value:.4g}" for name, value in one.beside.items()),
            one.why,
        ]
        for one in rows_of(systems)
    ]
    head = ["system", "setting", "stated ε", "true ε", "δ", "relation", "unit", "by other accountants", "what else"]
    return "Stated epsilon against the true one, every step counted.\n\n" + markdown(head, rows)


def epochs_figure() -> Figure:
    """The AC-GAN on SPRINT: epsilon over its 500 epochs of 6,000 steps, beside the 2 that is stated."""
    epochs = np.linspace(_EPOCHS / _POINTS, _EPOCHS, _POINTS)
    true = [
        epsilon(dpsgd_event(TRIAL_RATE, TRIAL_NOISE, int(TRIAL_STEPS * epoch / _EPOCHS)), DELTA, "rdp")
        for epoch in epochs
    ]
    return plot_spent({"add or remove": (epochs, np.array(true))}, budget=2.0)


def steps_figure(claimed: float = 5.0) -> Figure:
    """DPGAN on MNIST: epsilon over the generator's 500,000 steps at the noise of ``claimed``."""
    steps = np.geomspace(1, GENERATOR_STEPS, _POINTS).round()
    true = [composed_epsilon(stated_multiplier(claimed), steps=int(step) * CRITIC_STEPS) for step in steps]
    return plot_spent(
        {"true": (steps, np.array(true)), "stated": (steps, np.full(len(steps), claimed))}, logarithmic=True
    )


def guarantees(parts: Parts, plan: Plan) -> str:
    """What the runs of the first seed say of their guarantee, where it is other than their epsilon: presets as published."""
    seed = plan.seeds[0]
    said = {
        method: parts.run(f"{method}-{seed}", plan.options(method, seed)).summary["synthesis"]["guarantee"]
        for method in plan.methods
    }
    return "\n".join(f"- {method}: {words}" for method, words in said.items() if words) + "\n"


def run(asked: Asked, say: Say) -> Findings:
    """Every published claim beside what it comes to, and the trial's epsilon over its epochs."""
    rows = published()
    systems = list(dict.fromkeys(one.system for one in rows))
    figures = {} if asked.quick else {"epochs": epochs_figure()}
    results = {"published": [asdict(row) for row in rows]}
    return Findings({"systems": systems}, _targets(), results, table(systems), figures)


def _targets() -> tuple[Target, ...]:
    """R11: the AC-GAN's networks as published, and its steps' clip and noise."""
    layout = Layout.of(sprint.SCHEMA)
    game = acgan(layout)
    assert isinstance(game.published, AsPublished) and game.published.batch_clip
    networks = {"generator": (game.generator(layout), 333_897), "critic": (game.critic(layout), 1_858_947)}
    made = []
    for name, (network, listed) in networks.items():
        count = sum(parameter.numel() for parameter in network.parameters())
        made.append(Target("R11", f"parameters of the AC-GAN's {name}", f"{listed:,}", f"{count:,}", "equal", count == listed,
                           exact="a count"))  # fmt: skip
    size, clip, noise = networks["critic"][1], game.published.batch_clip, game.published.noise
    long, streams = {"all": np.ones(size)}, [keyed_stream(seed, "R11") for seed in range(_DRAWS)]
    quiet = noisy_average(replace(game.published, noise=0.0), long, streams[0])["all"]
    length = float(np.linalg.norm(quiet)) / clip
    made.append(Target("R11", "a long gradient after the clip, over C", "1", f"{length:.9f}", "1, but for rounding",
                       abs(length - 1) < 1e-9, exact="a clip"))  # fmt: skip
    spreads = [float(np.std(noisy_average(game.published, long, stream)["all"] - quiet)) / noise for stream in streams]
    near = all(abs(one - 1) <= _CLOSE for one in spreads)
    made.append(Target("R11", "standard deviation of a step's noise, over the stated", "1", estimate(spreads, 5),
                       "within .002 at every seed", near, len(spreads),
                       margin=smallest((margin(spreads, 1 - _CLOSE), margin(spreads, 1 + _CLOSE, least=False)))))  # fmt: skip
    return tuple(made)
