"""One file that holds a run's state after a round: safetensors, replaced atomically, no pickle. And whether the files that a run
goes on from still hold all that its checkpoint counts on.

The records of all rounds so far lie in the history beside it, of which a checkpoint knows its part.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.serverapp.strategy import Strategy
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyclinic.errors import DataError
from polyclinic.files import write_file
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.statements import statements
from polyclinic.runs.folder import Run
from polyclinic.runs.history import Extent, History
from polyclinic.runs.json_text import json_text
from polyclinic.server.accounts import Account
from polyclinic.server.state import RunState
from polyclinic.strategies.base.state import strategy_state, unsaved_attributes
from polyclinic.types import Arrays, under
from polyclinic.wire.messages import site_home, state_file

_ELSEWHERE = ("arrays", "standardiser", "rows", "strategy_metrics", "dropouts", "predictions", "score_counts", "saved")
_ACCOUNTS = "accounts", "held_out_accounts"
_PLAIN = [field.name for field in dataclasses.fields(RunState) if field.name not in _ELSEWHERE]


def save_checkpoint(path: Path, state: RunState, strategy: Strategy, history: History, checkpoints: int = 1) -> None:
    """Writes the state and the strategy's own: whole and on the disk, or the earlier file stays.

    Args:
        path: The checkpoint's file.
        state: The run's state after a round.
        strategy: The strategy, whose own arrays and numbers are written too.
        history: The history beside the checkpoint, which gains the state's new records first.
        checkpoints: Above 1, how many of the newest stay beside ``path``, named by their rounds.
    """
    arrays = {f"model/{name}": value for name, value in state.arrays.items()}
    arrays |= {f"strategy/{name}": value for name, value in strategy_state(strategy).items()}
    if state.standardiser is not None:
        arrays |= {"standardiser/mean": state.standardiser[0], "standardiser/std": state.standardiser[1]}
    # What a strategy made after it began, and no checkpoint can hold: the run goes on, but cannot be resumed.
    lost = unsaved_attributes(strategy)
    accounts = {name: {site: dataclasses.asdict(account) for site, account in getattr(state, name).items()}
                for name in _ACCOUNTS}  # fmt: skip
    records = {"row": state.rows, "strategy": state.strategy_metrics, "dropout": state.dropouts}
    meta = {
        "state": json_text({name: getattr(state, name) for name in _PLAIN} | accounts),
        "lost": json_text(lost),
        "history": json_text(dataclasses.asdict(history.add(records))),
        # The file sorts its arrays; noise, and Flower's momentum, go by their order in the model.
        "model": json_text(list(state.arrays)),
    }
    ordered = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    write_file(path, lambda aside: save_file(ordered, aside, meta))
    if checkpoints > 1:
        named = _round_file(path, state.round)
        named.parent.mkdir(exist_ok=True)
        named.unlink(missing_ok=True)
        named.hardlink_to(path)
        for old in sorted(named.parent.iterdir())[:-checkpoints]:
            old.unlink()


def history_of(checkpoint: Path) -> Path:
    """The history of the run that ``checkpoint`` belongs to."""
    return Run(checkpoint.parent).history_file


def _round_file(path: Path, round: int) -> Path:
    return Run(path.parent).kept_checkpoints / f"round-{round:06d}{path.suffix}"


def load_checkpoint(path: Path) -> tuple[RunState, History, Arrays]:
    """The state that was saved, its history, cut back to it, and the strategy's own state.

    Kept checkpoints of later rounds go: the history that they count on is written anew. Raises DataError for a missing
    or damaged file.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            plain, extent, names, lost = (
                json.loads(file.metadata()[name]) for name in ("state", "history", "model", "lost")
            )
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError):
        raise DataError(f"{path} is not a checkpoint that can be resumed: it is missing or damaged.") from None

    if lost:
        raise DataError(
            f"The run cannot go on: its strategy has {', '.join(lost)}, which it made after it began and no checkpoint holds; "
            "make it in __init__, or give the strategy the methods state() and restore(state)."
        )

    plain |= {name: {site: Account(**account) for site, account in plain.get(name, {}).items()} for name in _ACCOUNTS}
    history, records = History.resume(history_of(path), Extent(**extent))
    scale = under(arrays, "standardiser/")
    state = RunState(
        arrays={name: arrays[f"model/{name}"] for name in names},
        standardiser=(scale["mean"], scale["std"]) if scale else None, rows=records["row"],
        strategy_metrics=records["strategy"], dropouts=records["dropout"], saved=plain["round"], **plain,
    )  # fmt: skip
    for later in _round_file(path, 0).parent.glob("*"):
        if later.name > _round_file(path, state.round).name:
            later.unlink()
    return state, history, under(arrays, "strategy/")


def check_ledgers(path: Path, told_of: Mapping[str, float]) -> None:
    """Raises DataError when a site's ledger is missing, altered, or shows less than the checkpoint was told."""
    ledgers = Ledger.read_all(path) if told_of else {}
    for statement in statements([ledgers.get(site) or Ledger.read(path, site) for site in told_of]) if told_of else ():
        site, events = statement["site"], statement["events"]
        # A site tells the quick bound after a charge and the exact one after evaluating; the ledger holds the first.
        shown = [statement["epsilon"], events[-1]["epsilon_after"]] if events else [0.0]
        most = math.inf if None in shown else max(shown)
        if not statement["intact"] or most < told_of[site] * (1 - 1e-9):
            raise DataError(
                f"The ledger {path} shows less for {site!r} than the checkpoint, or was altered; restore it before "
                "the run goes on."
            )


def check_states(home: Path, sites: Sequence[str], run: str, state: RunState) -> None:
    """Checks that no simulated site has lost what it kept after its last round: it would begin anew, silently.

    Args:
        home: The folder of the simulated sites.
        sites: The sites' names.
        run: The run's name.
        state: The run's state, with the last round of each site.

    Raises:
        DataError: A site's file is missing or damaged.
    """
    for site in sites:
        if site in state.trained:
            path = state_file(site_home(home, site), run, state.trained[site])
            try:
                with safe_open(path, framework="numpy"):
                    pass
            except (OSError, SafetensorError):
                raise DataError(
                    f"{path}, what {site!r} kept after round {state.trained[site]}, is missing or damaged; restore it "
                    "before the run goes on."
                ) from None
