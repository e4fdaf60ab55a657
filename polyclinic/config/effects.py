"""Which keys have an effect only where others are so: one table, by which a key without effect is refused or told.

Whoever gives a key expects something of it, above all of one that protects; so a key that can do nothing is refused before a
run begins. ``dp`` false is the exception: what it puts aside is told in the run's notes, so that one file serves a private run
and the same without privacy. A key at its default counts as not given, since Flower's run-config holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyclinic.config.run import RunConfig
from polyclinic.errors import ConfigError


@dataclass(frozen=True)
class Effect:
    """``keys`` have an effect only with ``needs``, as words and as a claim on a configuration; ``told``: not refused."""

    keys: tuple[str, ...]
    needs: str
    met: Callable[[RunConfig], bool]
    told: bool = False


_STEPS = (
    "local-steps", "sample-rate", "batching", "noise", "noise-options", "denoise", "denoise-gain", "optimizer",
    "learning-rate", "momentum", "proximal-mu", "engine",
)  # fmt: skip
_CENTRAL = (
    "central-delta",
    "central-clip-norm",
    "central-clipping",
    "central-quantile",
    "central-noise",
    "central-weights",
)
_SKEWED = ("dirichlet", "quantity", "power-law", "label-quantity", "feature-shift")

EFFECTS = (
    Effect(("imputer-file",), "imputation at chained", lambda c: c.imputation == "chained"),
    Effect(
        ("alpha",), f"the partitioner {', '.join(_SKEWED)}, or +bias after one",
        lambda c: c.partitioner in ("", *_SKEWED) or "+bias" in c.partitioner,
    ),
    Effect(("method-options",), "the task synthesis or posterior", lambda c: c.synthesis or c.posterior),
    Effect(("method-kind", "synthetic-rows", "condition-hospitals", "quality"), "the task synthesis", lambda c: c.synthesis),
    Effect(("columns", "prior-mean", "prior-sd"), "the task posterior", lambda c: c.posterior),
    Effect(
        ("evaluate-every", "groups", "metrics", "metrics-epsilon", "private-evaluations"),
        "a task whose result is judged on held-out patients", lambda c: not c.posterior,
    ),
    Effect(("metrics-epsilon", "private-evaluations"), "metrics other than none", lambda c: c.metrics != "none"),
    Effect(("candidates",), "task synthesis with a game, as gan", lambda c: c.game),
    Effect(("baselines",), "task synthesis with a game or a density, as gan or maf", lambda c: c.game or c.density),
    Effect(("selected", "selection-epsilon"), "candidates above 0", lambda c: c.candidates > 0),
    Effect(
        ("hidden",), "a classifier that has hidden layers, as mlp",
        lambda c: c.model != "logistic" and not (c.synthesis or c.posterior),
    ),
    Effect(("fraction-train",), "sites-per-round at 0", lambda c: c.sites_per_round == 0),
    Effect(_STEPS, "a task that trains in steps, as classification", lambda c: not c.one_release),
    Effect(("perturbation",), "the task output-perturbation or objective-perturbation",
           lambda c: c.task != "classification" and not c.sums),
    Effect(("momentum",), "the optimizer sgd or rmsprop", lambda c: c.optimizer in ("sgd", "rmsprop") or c.momentum == 0),
    Effect(("noise-options",), "a noise other than independent", lambda c: c.noise != "independent"),
    Effect(("denoise-gain",), "denoise at kalman or disk", lambda c: c.denoise != "none"),
    Effect(("personal-mu",), "the strategy ditto", lambda c: c.strategy == "ditto"),
    Effect(
        ("statistics-share",), "standardise at measured or patients-per-site at 0",
        lambda c: c.standardise == "measured" or c.patients_per_site == 0,
    ),
    Effect(("patients-per-site",), "standardise at public or none", lambda c: c.standardise != "measured"),
    Effect(
        ("secure-clip-norm", "secure-bits", "secure-dropouts"), "secure-aggregation at true", lambda c: c.secure_aggregation
    ),
    Effect(("tracker-place",), "tracker at tensorboard or mlflow", lambda c: c.tracker != ""),
    Effect(_CENTRAL, "central-epsilon above 0", lambda c: c.central),
    Effect(("central-quantile",), "central-clipping at adaptive", lambda c: c.central_clipping == "adaptive"),
    Effect(
        ("straggling", "round-deadline"),
        "seconds-per-step or bandwidth above 0",
        lambda c: c.seconds_per_step > 0 or c.bandwidth > 0,
    ),
    Effect(
        ("epsilon", "delta", "overlap", "noise", "noise-options", "statistics-share", "patients-per-site", "perturbation"),
        "dp at true", lambda c: c.dp, told=True,
    ),
    Effect(
        ("max-grad-norm",), "dp at true or a task other than classification",
        lambda c: c.dp or c.task != "classification", told=True,
    ),
)  # fmt: skip
#: Of no effect where Flower's own runtime runs the hospitals.
NOT_UNDER_FLOWER = Effect(
    ("dropout-rate", "availability", "seconds-per-step", "straggling", "bandwidth", "round-deadline", "workers", "ray-address"),
    "`polyclinic run`, not under Flower's runtime", lambda c: False,
)  # fmt: skip
#: Of no effect where the run's folder is given instead.
UNDER_FLOWER = Effect(("resume",), "Flower's runtime, as `polyclinic run --resume RUN` has here", lambda c: False)


def check_effects(config: RunConfig, effects: Sequence[Effect] = EFFECTS) -> None:
    """Raises ConfigError for the first key that was given, is not merely told, and can have no effect."""
    values, given = config.flat(), _given(config)
    for effect in effects:
        idle = [key for key in effect.keys if key in given and not effect.met(config)]
        if idle and not effect.told:
            raise ConfigError(
                f"Configuration key {idle[0]!r} has the value {values[idle[0]]!r}, which has an effect only with "
                f"{effect.needs}; change that, or leave {idle[0]} out."
            )


def put_aside(config: RunConfig) -> list[str]:
    """The keys that were given and have no effect because ``dp`` is false."""
    given = _given(config)
    return [key for effect in EFFECTS if effect.told and not effect.met(config) for key in effect.keys if key in given]


def _given(config: RunConfig) -> set[str]:
    """Keys that are neither at their default nor at what is usual for the task and the strategy."""
    defaults, values = RunConfig().flat(), config.flat()
    return {key for key in config.given() if values[key] != defaults[key]}
