"""The games by name, whose critics can be trained privately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.synthesis.games import publications, tables
from polyclinic.synthesis.games.game import Adaptive, Game
from polyclinic.synthesis.layout import Layout

Build = Callable[[Layout, Mapping[str, Any]], Game]
# Each game's builder, and the options that only it takes.
GAMES: Mapping[str, tuple[Build, tuple[str, ...]]] = {
    "gan": (tables.gan, ("widths", "floor")),
    "acgan": (tables.acgan, ()),
    "dpgan": (publications.dpgan, ("form",)),
    "ppgan": (publications.ppgan, ("form",)),
    "wgan": (publications.wgan, ("form",)),
    "wgan-gp": (publications.wgan_gp, ("form",)),
    "medgan": (publications.medgan, ("decoder-file",)),
}


def make(layout: Layout, name: str = "gan", **options: Any) -> Game:
    """The built-in game ``name``; options may be text. Raises ConfigError for an unknown name or option, for a value that is
    not allowed, and for a schema that the game is not for.
    """
    if name not in GAMES:
        raise ConfigError(f"The game {name!r} is unknown; allowed are {', '.join(GAMES)}.{nearest(name, GAMES)}")
    build, own = GAMES[name]
    game = with_options(build, own, layout, name, options)
    return replace(game, made_by=f"{make.__module__}:{make.__name__}", options={"name": name, **options})


def with_options(build: Build, own: Sequence[str], layout: Layout, name: str, options: Mapping[str, Any]) -> Game:
    """What ``build`` makes of its ``own`` options, changed by those that every game takes.

    Raises ConfigError for an option that neither takes, and for a value that is not of its kind.
    """
    unknown = [key for key in options if key not in (*own, *OPTIONS)]
    if unknown:
        known = (*own, *OPTIONS)
        raise ConfigError(
            f"The game {name!r} has no option {unknown[0]!r}; allowed are {', '.join(known)}.{nearest(unknown[0], known)}"
        )
    changed = {key.replace("-", "_"): _read(key, value) for key, value in options.items() if key in OPTIONS}
    try:
        game = build(layout, {key: options[key] for key in own if key in options})
    except ValueError:
        raise ConfigError(f"The options of the game {name!r} are {options}, of which one is not of its kind.") from None
    return replace(game, **changed)


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
