"""Who watches a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.errors import count_text, several, whose
from polyclinic.evaluation.judges import TITLES, in_line
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.programs import program_of
from polyclinic.server.exchange.sites import Site
from polyclinic.server.state import RunState
from polyclinic.training.stacked.engines import Engine


class Progress:
    """Who watches a run. Every method does nothing; a subclass has those that it wants."""

    def on_folder(self, folder: Path) -> None:
        """The run's folder is there."""

    def on_step(self, what: str) -> None:
        """Something begins that takes a while."""

    def is_stopping(self) -> bool:
        """Whether the run is to stop after this round, whose checkpoint is then written; ``on_round`` stops it."""
        return False

    def on_start(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        """Called when the hospitals have enrolled.

        Args:
            config: The run's configuration.
            sites: The hospitals that take part.
            privacy: The run's privacy plan; None without privacy.
            engine: How the hospitals of a simulation train; None where they are real and choose for themselves.
        """

    def on_round(self, config: RunConfig, state: RunState) -> None:
        """``state`` is the run's after the round."""

    def on_dropouts(self, dropouts: Sequence[Mapping[str, Any]]) -> None:
        """``dropouts``: those of before the next round, as in the run's summary; ``on_round`` sees those of each round."""


def round_line(config: RunConfig, state: RunState) -> str:
    """The newest round in one line: who answered, in how many seconds, how good the model is, what is spent, who dropped out."""
    answered = [name for name, number in state.trained.items() if number == state.round]
    asked = sum(number == state.round for number in state.sampled.values())
    who = f"{len(answered)} of {asked} hospital{'s' if asked != 1 else ''} answered"
    who += f" ({several(answered)})" if answered else ""
    rows = state.newest_rows()
    parts = [f"{who} in {rows[0]['seconds']:.1f} s" if rows else who]
    parts += [_figures(rows, state)] if program_of(config).judged else []
    if config.privacy.dp and state.epsilon:
        parts.append(f"ε spent at most {max(state.epsilon.values()):.4g} at a hospital")
    if state.hospital_epsilon is not None:
        parts.append(f"ε of a whole hospital {state.hospital_epsilon:.4g}")
    gone = whose((drop["site"], drop["reason"]) for drop in dropouts_of(state))
    return f"Round {state.round} of {config.rounds}: {', '.join(parts)}{f'; dropped out: {gone}' if gone else ''}"


def dropouts_of(state: RunState) -> list[dict[str, Any]]:
    """The drop-outs of the newest round."""
    return [drop for drop in state.dropouts if drop["round"] == state.round]


def _figures(rows: Sequence[Mapping[str, Any]], state: RunState) -> str:
    """Loss and AUROC of a round's rows in words, or why there are none."""
    by_site = {row["site"]: row for row in rows}
    overall = by_site.get("pooled") or by_site.get("macro")
    if overall is None:
        return "not evaluated"
    if not any(state.released.values()):
        return "metrics not released"
    shown = [
        f"{name} {'undefined' if value is None else format(value, '.3f')}"
        for name, value in first_metrics(overall).items()
    ]
    return ", ".join(shown) + (", the mean over hospitals" if overall["site"] == "macro" else "")


def first_metrics(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The loss and the metric after it of a row of metrics, by how they are written within a line."""
    return {in_line(TITLES[name]): row[name] for name in [name for name in row if name in TITLES][:2]}


class OneLine(Progress):
    """One line on standard output, written over at every step: a notebook and a terminal both show the newest alone."""

    def __init__(self) -> None:
        self._width = 0

    def on_step(self, what: str) -> None:
        print(f"\r{what.ljust(self._width)}", end="", flush=True)
        self._width = len(what)

    def on_start(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        self.on_step(f"round 0 of {config.rounds}, {count_text(len(sites), 'hospital')}")

    def on_round(self, config: RunConfig, state: RunState) -> None:
        overall: dict[str, Any] = next((row for row in reversed(state.newest_rows()) if row["site"] == "pooled"), {})
        figures = [f"{name} {value:.3f}" for name, value in first_metrics(overall).items() if value]
        spent = [f"ε at most {max(state.epsilon.values()):.4g}"] if config.privacy.dp and state.epsilon else []
        self.on_step(", ".join([f"round {state.round} of {config.rounds}", *figures, *spent]))
        if state.round >= config.rounds:
            print(flush=True)
