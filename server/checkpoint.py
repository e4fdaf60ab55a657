"""One file that holds a run's state after a round: safetensors, replaced atomically, no pickle."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
from flwr.serverapp.strategy import Strategy
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyclinic.errors import DataError
from polyclinic.server.rounds import RunState
from polyclinic.strategies.state import restore_strategy, strategy_state

_PLAIN = [field.name for field in dataclasses.fields(RunState) if field.name not in ("arrays", "standardiser")]


def save_checkpoint(path: Path, state: RunState, strategy: Strategy, kept: int = 1) -> None:
    """Write the state and the strategy's own: whole and on the disk, or the earlier file stays.

    ``kept`` above 1 keeps that many of the newest beside ``path``, named by their rounds.
    """
    arrays = {f"model/{name}": value for name, value in state.arrays.items()}
    arrays |= {f"strategy/{name}": value for name, value in strategy_state(strategy).items()}
    if state.standardiser is not None:
        arrays |= {"standardiser/mean": state.standardiser[0], "standardiser/std": state.standardiser[1]}
    partial = path.with_suffix(".partial")
    plain = json.dumps({name: getattr(state, name) for name in _PLAIN})
    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, partial, {"state": plain})
    flush(partial)
    partial.replace(path)
    flush(path.parent)
    if kept > 1:
        history = path.with_name("checkpoints")
        history.mkdir(exist_ok=True)
        named = history / f"round-{state.round:06d}{path.suffix}"
        named.unlink(missing_ok=True)
        named.hardlink_to(path)
        for old in sorted(history.iterdir())[:-kept]:
            old.unlink()


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_checkpoint(path: Path, strategy: Strategy) -> RunState:
    """The state that was saved; puts the strategy's own back. Raises DataError for a missing or damaged file."""
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            plain = json.loads(file.metadata()["state"])
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError):
        raise DataError(f"{path} is not a checkpoint that can be resumed: it is missing or damaged.") from None

    def part(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

    restore_strategy(strategy, part("strategy/"))
    scale = part("standardiser/")
    return RunState(arrays=part("model/"), standardiser=(scale["mean"], scale["std"]) if scale else None, **plain)
