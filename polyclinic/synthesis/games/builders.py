"""The games by name, each with a ``sound`` preset, whose critics can be trained privately, and the publication's ``paper``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.models.gan import mlp_critic, moment_critic
from polyclinic.synthesis.games.cores import LabelledAffine
from polyclinic.synthesis.games.game import Adaptive, Game
from polyclinic.synthesis.layout import Layout

PRESETS = ("sound", "paper")
# More columns than this have too many products for a critic under noise.
_MOST_PRODUCTS = 64


def gan(layout: Layout, preset: str) -> Game:
    """Our default for tables: a critic of first and second moments of each label, an affine generator with a small bend."""
    columns = layout.label.start
    moments = columns <= _MOST_PRODUCTS
    latent = columns if moments else 64
    return Game(
        name="gan", preset=preset, latent=latent, loss="wasserstein", spread=0.7, fall=0.5, learning_rate=0.02,
        core=lambda at: LabelledAffine(at.label.start, latent, at.classes, ()),
        critic_of=(lambda at: moment_critic(at.width, 1, at.classes)) if moments else (lambda at: mlp_critic(at.width, 1, (64,))),
        defaults={
            "rounds": 30, "sample-rate": 1.0, "local-steps": 1, "learning-rate": 1.0, "max-grad-norm": 10.0,
            "optimizer": "sgd", "momentum": 0.0, "weight-decay": 0.1,
        },
    )  # fmt: skip


GAMES: Mapping[str, Callable[[Layout, str], Game]] = {"gan": gan}


def make(layout: Layout, name: str = "gan", preset: str = "sound", **options: Any) -> Game:
    """The game ``name``. Raises ConfigError for an unknown name, preset or option, and for a value that is not allowed."""
    for key, value, allowed in (("game", name, tuple(GAMES)), ("preset", preset, PRESETS)):
        if value not in allowed:
            raise ConfigError(
                f"The {key} {value!r} is unknown; allowed are {', '.join(allowed)}.{nearest(value, allowed)}"
            )
    game = GAMES[name](layout, preset)
    changed = {key.replace("-", "_"): _read(key, value) for key, value in options.items()}
    return replace(game, **changed, options=dict(options))


def options_of(game: Game) -> dict[str, Any]:
    """What ``make`` needs to make the game again, as JSON."""
    return {"name": game.name, "preset": game.preset, **game.options}


def _read(key: str, value: Any) -> Any:
    if key not in OPTIONS:
        known = tuple(OPTIONS)
        raise ConfigError(f"A game has no option {key!r}; allowed are {', '.join(known)}.{nearest(key, known)}")
    try:
        return OPTIONS[key](value)
    except ValueError:
        raise ConfigError(f"A game's option {key!r} is {value!r}, which is not of its kind.") from None


def _truth(value: Any) -> bool:
    if str(value).lower() in ("true", "1", "yes"):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise ValueError(value)


def _adaptive(value: Any) -> Adaptive | None:
    return Adaptive() if _truth(value) else None


def _clip(value: Any) -> float | None:
    return float(value) or None


# Options that may be given as text, by what reads them.
OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "loss": str, "law": str, "schedule": str, "optimizer": str, "learning-rate": float, "momentum": float, "steps": int,
    "batch": int, "ring": int, "ema": float, "adaptive": _adaptive, "weight-clip": _clip, "penalty": float,
    "spread": float, "fall": float, "hard": _truth,
}  # fmt: skip
