"""What a person sees of a run: a live table while it goes on, and the final one."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from polyclinic.cli.terminal import number
from polyclinic.config import RunConfig
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.server.rounds import RunState
from polyclinic.server.sites import Site

_WIDEST = 12


class LiveProgress:
    """Round, loss, AUROC and epsilon of each site; a line a round where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("[bold]Round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("rounds", total=None)
        self._live = Live(self._bar, console=console, refresh_per_second=8, transient=True)
        self._sites: Sequence[Site] = ()

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None) -> None:
        self._sites = sites
        self._bar.update(self._task, total=config.rounds)
        promise = (
            f"ε = {config.epsilon:g}, δ = {config.delta:g} for each hospital; noise multiplier {privacy.noise_multiplier:.3f}, "
            f"sample rate {config.sample_rate:g}, clip {config.max_grad_norm:g}"
            if privacy
            else "[yellow]no differential privacy[/]"
        )
        what = f"{len(sites)} hospitals, {config.strategy}, {config.model}, {config.rounds} rounds"
        self._console.print(f"[bold]{config.dataset}[/]: {what}\n{promise}")

    def round_done(self, config: RunConfig, state: RunState) -> None:
        rows = {row["site"]: row for row in state.rows if row["round"] == state.round}
        self._bar.update(self._task, completed=state.round, total=config.rounds)
        if self._console.is_terminal:
            self._live.update(Group(self._table(rows, config), self._bar))
            return
        overall = rows.get("pooled") or rows.get("macro") or {}
        spent = f", ε spent at most {max(state.epsilon.values()):.3f}" if config.dp and state.epsilon else ""
        figures = f"loss {number(overall.get('loss'))}, AUROC {number(overall.get('auroc'))}{spent}"
        self._console.print(f"round {state.round}/{config.rounds}: {figures}")

    def _table(self, rows: dict[str, dict[str, Any]], config: RunConfig) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("hospital", "loss", "AUROC", "ε spent"):
            table.add_column(heading, justify="left" if heading == "hospital" else "right")
        shown = [site.name for site in self._sites][:_WIDEST]
        for name in [*shown, "pooled"]:
            row = rows.get(name)
            if row is not None:
                spent = row.get("epsilon")
                table.add_row(name, number(row["loss"]), number(row["auroc"]),
                              f"{spent:.2f} of {config.epsilon:g}" if config.dp and spent is not None else "")  # fmt: skip
        return table


def result_table(summary: dict[str, Any]) -> Table:
    """Each hospital: patients, AUROC, accuracy, epsilon spent of budget; pooled; beside them the comparison, if any."""
    comparison = summary.get("comparison")
    private = summary["privacy"]["epsilon"] is not None
    title = f"{summary['dataset']}: after {summary['rounds']} rounds of {summary['strategy']}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    headings = ["hospital", "patients", "AUROC", "accuracy"] + (["ε spent of budget"] if private else [])
    headings += ["AUROC without DP", "AUROC alone"] if comparison else []
    for heading in headings:
        first = heading == "hospital"
        table.add_column(heading, justify="left" if first else "right", no_wrap=first, overflow="fold")
    for name, row in summary["metrics"]["sites"].items():
        cells = [name, str(row["patients"] or "not released"), number(row["auroc"]), number(row["accuracy"])]
        if private:
            cells.append(f"{number(row['epsilon'], 2)} of {row['budget'] or float('inf'):g}")
        if comparison:
            cells += [number(comparison[kind]["sites"].get(name, {}).get("auroc")) for kind in ("without_dp", "alone")]
        table.add_row(*cells)
    pooled = summary["metrics"]["pooled"]
    cells = ["pooled", "", number(pooled["auroc"]), number(pooled["accuracy"])] + ([""] if private else [])
    if comparison:
        cells += [number(comparison["without_dp"]["pooled"].get("auroc")), ""]
    table.add_section()
    table.add_row(*cells, style="bold")
    return table


def privacy_sentence(summary: dict[str, Any]) -> str:
    """The guarantee with everything that a reader needs to judge it."""
    privacy = summary["privacy"]
    if privacy["epsilon"] is None:
        return "No differential privacy: this run gives patients no formal guarantee."
    return (
        f"Privacy: ε = {privacy['epsilon']:.3f} at δ = {privacy['delta']:g} for each {privacy['unit']} at any hospital, "
        f"neighbours by {privacy['relation']}, accountant {privacy['accountant'].upper()}."
    )
