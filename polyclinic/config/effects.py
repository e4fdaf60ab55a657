"""Which keys have an effect only with certain values of others: one table, by which a key without effect is refused or noted.

Whoever gives a key expects an effect, above all of a key that protects. So a key that can do nothing is refused before a run
begins. The exception is ``privacy.dp`` false: the run's notes name the keys that it puts aside. So one file serves a private run
and the same run without privacy. A key at its default counts as not given, since Flower's run-config holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyclinic.config.programs.kinds import READ_BY
from polyclinic.config.run import RunConfig
from polyclinic.errors import ConfigError


@dataclass(frozen=True)
class Effect:
    """``keys``, and all keys of a section among them ``but`` some, have an effect only with ``needs``, as words and as a claim on
    a configuration; ``noted``: not refused."""

    keys: tuple[str, ...]
    needs: str
    met: Callable[[RunConfig], bool]
    noted: bool = False
    but: tuple[str, ...] = ()

    def without(self, config: RunConfig, given: Sequence[str]) -> list[str]:
        """Which of the given keys this finds without effect."""
        if self.met(config):
            return []
        return [key for key in given if key not in self.but and {key, key.partition(".")[0]} & set(self.keys)]


def _others(config: RunConfig) -> bool:
    """Whether records are dealt by another package's partitioner, or one's own."""
    from polyclinic.ehr.partition import check_partitioner  # takes pandas, which --help does without

    return config.partitioner != "" and check_partitioner(config.partitioner).others != ""


def _read_by(key: str) -> Effect:
    """A key or a section has an effect only with the kinds of run that read it."""
    but = ("training.weight-decay", "training.optimizer", "training.recalibrate") if key == "training" else ()
    return Effect((key,), READ_BY[key], lambda config: key in config.kind.reads, but=but)


_SKEWED = ("dirichlet", "quantity", "power-law", "label-quantity", "feature-shift")

EFFECTS = (
    Effect(("data.imputer-file",), "data.imputation at chained", lambda c: c.data.imputation == "chained"),
    Effect(
        ("alpha",), f"the partitioner {', '.join(_SKEWED)}, one of another package, or +bias after one",
        lambda c: c.partitioner in ("", *_SKEWED) or "+bias" in c.partitioner or _others(c),
    ),
    Effect(("partitioner-options",), "a partitioner that another package brings", lambda c: _others(c)),
    Effect(("split.fraction", "split.seed"), "split.time empty", lambda c: c.split.time == ""),
    Effect(("split.fraction",), "split.folds at 0", lambda c: c.split.folds == 0),
    *map(_read_by, READ_BY),
    Effect(
        ("evaluation.epsilon", "evaluation.releases"), "evaluation.metrics other than none",
        lambda c: c.evaluation.metrics != "none",
    ),
    Effect(
        ("synthesis.selected", "synthesis.selection-epsilon"), "synthesis.candidates above 0",
        lambda c: c.synthesis.candidates > 0,
    ),
    Effect(("training.recalibrate",), "training.optimizer at newton", lambda c: c.training.optimizer in ("auto", "newton")),
    Effect(("hidden",), READ_BY["hidden"], lambda c: c.model != "logistic"),
    Effect(("participation.fraction",), "participation.sites at 0", lambda c: c.participation.sites == 0),
    Effect(
        ("training.momentum",), "the optimizer sgd or rmsprop",
        lambda c: c.training.optimizer in ("sgd", "rmsprop") or c.training.momentum == 0,
    ),
    Effect(
        ("training.noise-options",), "a training.noise other than independent",
        lambda c: c.training.noise != "independent",
    ),
    Effect(("training.denoise-gain",), "training.denoise at kalman or disk", lambda c: c.training.denoise != "none"),
    Effect(
        ("privacy.statistics-share",), "data.standardise at measured or privacy.patients-per-site at 0",
        lambda c: c.data.standardise == "measured" or c.privacy.patients_per_site == 0,
    ),
    Effect(
        ("privacy.patients-per-site",), "data.standardise at public or none",
        lambda c: c.data.standardise != "measured",
    ),
    Effect(
        ("secure.clip-norm", "secure.bits", "secure.dropouts"), "secure.aggregation at true",
        lambda c: c.secure.aggregation,
    ),
    Effect(("tracking.place",), "tracking.tool at tensorboard or mlflow", lambda c: c.tracking.tool != ""),
    Effect(("central",), "central.epsilon above 0", lambda c: c.central.on),
    Effect(("central.quantile",), "central.clipping at adaptive", lambda c: c.central.clipping == "adaptive"),
    Effect(
        ("simulation.straggling", "simulation.round-deadline"),
        "simulation.seconds-per-step or simulation.bandwidth above 0",
        lambda c: c.simulation.seconds_per_step > 0 or c.simulation.bandwidth > 0,
    ),
    Effect(
        (
            "privacy.epsilon", "privacy.delta", "privacy.overlap", "training.noise", "training.noise-options",
            "privacy.statistics-share", "privacy.patients-per-site", "convex",
        ),
        "privacy.dp at true", lambda c: c.privacy.dp, noted=True,
    ),
    Effect(
        ("privacy.max-grad-norm",), "privacy.dp at true or a task other than classification",
        lambda c: c.privacy.dp or c.kind.bounds_always, noted=True,
    ),
)  # fmt: skip
#: Of no effect where Flower's own runtime runs the hospitals.
NOT_UNDER_FLOWER = Effect(
    ("simulation", "workers", "ray-address"), "`polyclinic run`, not under Flower's runtime", lambda c: False
)
#: Of no effect where the run's folder is given instead.
UNDER_FLOWER = Effect(("resume",), "Flower's runtime, as `polyclinic run --resume RUN` has here", lambda c: False)
#: Of no effect in a simulation of this process, which `polyclinic prepare --dataset` asks.
AT_COORDINATORS = Effect(("question",), "`polyclinic prepare --coordinator` or `query --coordinator`", lambda c: False)


def check_effects(config: RunConfig, effects: Sequence[Effect] = EFFECTS) -> None:
    """Raises ConfigError for the first key that was given, is not merely noted, and can have no effect."""
    given = _unusual_keys(config)
    for effect in effects:
        if not effect.noted and (idle := effect.without(config, given)):
            raise ConfigError(
                f"Configuration key {idle[0]!r} has the value {config.value(idle[0])!r}, which has an effect only with "
                f"{effect.needs}; change that, or leave {idle[0]} out."
            )


def put_aside(config: RunConfig) -> list[str]:
    """The keys that were given and have no effect because ``privacy.dp`` is false."""
    given = _unusual_keys(config)
    return [key for effect in EFFECTS if effect.noted for key in effect.without(config, given)]


def _unusual_keys(config: RunConfig) -> list[str]:
    """Keys that are neither at their default nor at what is usual for the task and the strategy."""
    defaults = RunConfig().flat()
    return [key for key, value in config.minimal().items() if value != defaults[key]]
