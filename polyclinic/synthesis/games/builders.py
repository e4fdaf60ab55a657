"""The games by name, each with a ``sound`` preset, whose critics can be trained privately, and the publication's ``paper``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.synthesis.games import publications, tables
from polyclinic.synthesis.games.game import Adaptive, Game
from polyclinic.synthesis.layout import Layout

PRESETS = ("sound", "paper")
# Each game's builder, and the options that only it takes.
GAMES: Mapping[str, tuple[Callable[[Layout, str, Mapping[str, Any]], Game], tuple[str, ...]]] = {
    "gan": (tables.gan, ("widths", "floor")),
    "acgan": (tables.acgan, ()),
    "dpgan": (publications.dpgan, ("form",)),
    "ppgan": (publications.ppgan, ("form",)),
    "wgan": (publications.wgan, ("form",)),
    "wgan-gp": (publications.wgan_gp, ("form",)),
    "medgan": (publications.medgan, ("decoder-file",)),
}


def make(layout: Layout, name: str = "gan", preset: str = "sound", **options: Any) -> Game:
    """The game ``name``; options may be text. Raises ConfigError for an unknown name, preset or option, for a value that is
    not allowed, and for a schema that the game is not for.
    """
    for key, value, allowed in (("game", name, tuple(GAMES)), ("preset", preset, PRESETS)):
        if value not in allowed:
            raise ConfigError(
                f"The {key} {value!r} is unknown; allowed are {', '.join(allowed)}.{nearest(value, allowed)}"
            )
    build, own = GAMES[name]
    unknown = [key for key in options if key not in (*own, *OPTIONS)]
    if unknown:
        known = (*own, *OPTIONS)
        raise ConfigError(
            f"The game {name!r} has no option {unknown[0]!r}; allowed are {', '.join(known)}.{nearest(unknown[0], known)}"
        )
    changed = {key.replace("-", "_"): _read(key, value) for key, value in options.items() if key in OPTIONS}
    try:
        game = build(layout, preset, {key: options[key] for key in own if key in options})
    except ValueError:
        raise ConfigError(f"The options of the game {name!r} are {options}, of which one is not of its kind.") from None
    return replace(game, **changed, options=dict(options))


def options_of(game: Game) -> dict[str, Any]:
    """What ``make`` needs to make the game again, as JSON."""
    return {"name": game.name, "preset": game.preset, **game.options}


def _read(key: str, value: Any) -> Any:
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
