"""What a person sees of a run: a live table, then tables of metrics or of an analysis; of a sweep, its progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import fitting, interval, number, significant, table, unless_withheld
from polyclinic.evaluation.formats import dataset_title
from polyclinic.evaluation.judges import calibration_targets, headline, in_line, titles
from polyclinic.evaluation.privacy_text import central_sentence, held_out_sentence, risk_sentence, share
from polyclinic.server import progress
from polyclinic.sweeps.carrying import Outcome, Watch
from polyclinic.sweeps.plan import Planned

if TYPE_CHECKING:
    from polyclinic.config import RunConfig
    from polyclinic.privacy.accounting import PrivacyPlan
    from polyclinic.server.exchange.sites import Site
    from polyclinic.server.state import RunState

_WIDEST = 12
_NAME_WIDTH = 20
_MOST_ROWS, _FEW_ROWS = 60, 10
#: What metrics of calibration are called in a sentence, their digits, and what they mean.
_CALIBRATION = {
    "calibration_in_the_large": ("predicted less observed", 3, ""),
    "calibration_slope": ("slope", 2, " and below 1 predictions are too extreme"),
}
_RISK = "attack\nTPR at\n1% FPR"


class LiveProgress(progress.Progress):
    """Round, loss, AUROC and epsilon of each site; a line a round or a step where the output is no terminal.

    The first Ctrl-C within the rounds stops the run after the round, with its checkpoint; a second stops it at once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[speed]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("Starting", total=None, speed="")
        self._live = Live(self._bar, console=console, refresh_per_second=8, transient=True)
        self._sites: Sequence[Site] = ()
        self._in_rounds = self._stop = False
        self._interrupt: Any = signal.SIG_DFL

    def __enter__(self) -> LiveProgress:
        if threading.current_thread() is threading.main_thread():
            self._interrupt = signal.signal(signal.SIGINT, self._on_interrupt)
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupt)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if self._stop or not self._in_rounds:
            raise KeyboardInterrupt
        self._stop = True
        # In a thread of its own: the signal may have come while this one writes to the console and holds its lock.
        message = "Stopping after this round; Ctrl-C again stops at once."
        threading.Thread(target=self._console.print, args=(message,)).start()

    def is_stopping(self) -> bool:
        return self._stop

    def on_folder(self, folder: Path) -> None:
        self._console.print(f"Run folder: {folder}", soft_wrap=True)

    def on_step(self, what: str) -> None:
        self._bar.update(self._task, description=what)
        if self._console.is_terminal:
            self._live.refresh()
        else:
            self._console.print(what, soft_wrap=True)

    def on_start(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: str | None
    ) -> None:
        from polyclinic.programs import program_of  # only a run needs it

        self._sites, self._in_rounds = sites, True
        self._bar.update(self._task, description="Round", total=config.rounds)
        program = program_of(config)
        batches = "" if not program.stepwise else f"sample rate {config.training.sample_rate:g}, "
        promise = (
            f"ε = {config.privacy.epsilon:g}, δ = {config.privacy.delta:g} for each hospital; noise multiplier "
            f"{privacy.noise_multiplier:.3f}, {batches}clip {config.privacy.max_grad_norm:g}"
            if privacy
            else "no differential privacy"
            if not config.central.on
            else "no noise at the hospitals"
        )
        if config.central.on:
            promise += (
                f"\ncentral noise: ε = {config.central.epsilon:g}, δ = {config.central.delta:g} for a whole hospital"
            )
        what = f"{len(sites)} hospital{'s' if sites[1:] else ''}, {config.strategy}, {program.model_title(sites[0].schema)}"
        what += f", {config.task}" if not program.stepwise else ""
        what += f", {config.rounds} round{'s' if config.rounds > 1 else ''}"
        what += f", each {program.round_is}" if program.round_is and config.rounds > 1 else ""
        what += f", engine {engine}" if engine else ""
        self._console.print(
            Text.assemble(
                (config.dataset.rpartition(":")[2], "bold"),
                f": {what}\n",
                (promise, "" if privacy or config.central.on else "yellow"),
            )
        )
        if chosen := program.why_model(sites[0].schema):
            self._console.print(chosen, style="dim", soft_wrap=True)

    def on_round(self, config: RunConfig, state: RunState) -> None:
        rows = {row["site"]: row for row in state.newest_rows()}
        sites = sum(1 for row in rows.values() if row.get("bytes_up") is not None)
        speed = f"{state.round / state.seconds:.2g} rounds/s, {sites * state.round / state.seconds:.3g} sites/s"
        self._bar.update(self._task, completed=state.round, total=config.rounds, speed=speed)
        self._in_rounds = state.round < config.rounds
        if self._console.is_terminal:
            whole = state.hospital_epsilon
            most = f" of {config.central.epsilon:g}" if config.central.on else ""
            message = f"each hospital as a whole: ε {significant(whole)}{most}" if whole else ""
            self._live.update(Group(self._table(rows, config), *([message] if message else []), self._bar))
        else:
            self._console.print(progress.round_line(config, state), soft_wrap=True, markup=False)
        if self._stop and self._in_rounds:
            raise KeyboardInterrupt

    def _table(self, rows: dict[str, dict[str, Any]], config: RunConfig) -> Table:
        def of_budget(spent: float | None) -> str:
            return (
                f"{significant(spent)} of {config.privacy.epsilon:g}" if config.privacy.dp and spent is not None else ""
            )

        names = [site.name for site in self._sites][:_WIDEST]
        shown = [(name, rows[name]) for name in (*names, "pooled") if name in rows]
        from polyclinic.server.progress import first_metrics

        cells = [
            (name, *map(number, first_metrics(row).values()), of_budget(row.get("epsilon"))) for name, row in shown
        ]
        metrics = first_metrics(next(iter(rows.values()), {}))
        return table(("hospital", *metrics, "epsilon"), cells)


class SweepProgress(Watch):
    """How many runs of a sweep have ended, and the time left; a line a run where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            speed_estimate_period=3600.0,  # seconds; a run may take minutes
        )
        self._task = self._bar.add_task("Checking", total=None)

    def __enter__(self) -> SweepProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def on_begin(self, total: int, finished: int) -> None:
        before = f", of which {finished} are finished" if finished else ""
        self._console.print(f"{total} runs{before}")
        self._bar.reset(self._task, total=total, completed=finished)

    def on_run(self, planned: Planned) -> None:
        self._bar.update(self._task, description=str(planned))

    def on_outcome(self, outcome: Outcome) -> None:
        self._bar.advance(self._task)
        ended = f"failed: {outcome.error}" if outcome.run is None else "finished"
        if outcome.run is None or not self._console.is_terminal:
            self._console.print(f"{outcome.planned}: {ended}", soft_wrap=True)


def result_table(summary: dict[str, Any], screen: Console) -> Table:
    """Each hospital: patients, AUROC, accuracy, epsilon spent of budget, and what that risks; pooled; the comparison, if any.

    Columns that do not fit the screen are left out, the least needed first, and named below the table. Of very many
    hospitals those with the lowest and the highest AUROC are shown.
    """
    columns = _result_columns(summary)
    left_out: list[str] = []
    first, second = (_heading(titles(summary)[name]) for name in headline(summary))
    least_needed = (_RISK, second, "patients", f"{first}\nalone", f"{first}\nno DP")
    while (dropped := next((name for name in least_needed if name in columns), None)) is not None:
        if _natural_width(_scores_table(summary, columns, left_out), screen) <= screen.width:
            break
        del columns[dropped]
        left_out.append(" ".join(dropped.split()))
    return _scores_table(summary, columns, left_out)


def _result_columns(summary: dict[str, Any]) -> dict[str, list[str]]:
    """Headings and their cells: one for each hospital, then the pooled one, then that of a constant prediction if known."""
    comparison, pooled, floor = summary.get("comparison"), summary["metrics"]["pooled"], summary.get("floor")
    first, second = headline(summary)
    sites = _few(summary["metrics"]["sites"], first)
    title = {name: _heading(title) for name, title in titles(summary).items()}
    columns = {
        "hospital": [*sites, "pooled"],
        "patients": [*(str(row["patients"] or "not released") for row in sites.values()), ""],
    } | {
        title[key]: [unless_withheld(row, number(row.get(key))) for row in (*sites.values(), pooled)]
        for key in (first, second)
    }  # fmt: skip
    if _is_unscored(summary):
        columns = {
            "hospital": columns["hospital"],
            "rounds": [*(str(row["rounds_joined"]) for row in sites.values()), ""],
        }
    if summary["privacy"]["private"]:
        columns["epsilon"] = [*(_cost_text(row) for row in sites.values()), ""]
        columns[_RISK] = [*(_attack_rate(row) for row in sites.values()), ""]
    if comparison:
        without, alone = comparison["without_dp"], comparison["alone"]["sites"]
        rows = (*(without["sites"].get(name, {}) for name in sites), without["pooled"])
        columns[f"{title[first]}\nno DP"] = [number(row.get(first)) for row in rows]
        columns[f"{title[first]}\nalone"] = [*(number(alone.get(name, {}).get(first)) for name in sites), ""]
    if floor:
        constant = {"hospital": "constant"} | {title[key]: number(floor.get(key)) for key in (first, second)}
        columns = {heading: [*cells, constant.get(heading, "")] for heading, cells in columns.items()}
    return columns


def _is_unscored(summary: dict[str, Any]) -> bool:
    """Whether the run scored no patient."""
    return bool(summary.get("analysis"))


def _heading(title: str) -> str:
    """A metric's title above its column, the unit on a line of its own."""
    return in_line(title).replace(" (", "\n(")


def _few(sites: dict[str, Any], metric: str) -> dict[str, Any]:
    if len(sites) <= _MOST_ROWS:
        return sites
    ranked = sorted(sites, key=lambda name: (sites[name].get(metric) is None, sites[name].get(metric) or 0.0))
    names = [name for name in ranked if sites[name].get(metric) is not None] or ranked
    return {name: sites[name] for name in (*names[:_FEW_ROWS], *names[-_FEW_ROWS:])}


def _cost_text(row: dict[str, Any]) -> str:
    spent = "undefined" if row["epsilon"] is None else significant(row["epsilon"])
    return spent if row["budget"] is None else f"{spent} of {row['budget']:g}"


def _attack_rate(row: dict[str, Any]) -> str:
    """The largest true-positive rate of an attack at 1 % false-positive rate."""
    return share(row["risk"]["tpr_at_1_percent_fpr"]).replace(" ", "") if row.get("risk") else "undefined"


def _scores_table(summary: dict[str, Any], columns: dict[str, list[str]], left_out: list[str]) -> Table:
    sites, totals = len(summary["metrics"]["sites"]), 2 if summary.get("floor") else 1
    shown = len(columns["hospital"]) - totals
    metric = in_line(titles(summary)[headline(summary)[0]])
    which = (
        f"some of {sites:,} hospitals"
        if _is_unscored(summary)
        else f"{sites:,} hospitals: the lowest and the highest {metric}"
    )
    sentences = [f"{which[0].upper()}{which[1:]}."] if shown < sites else []
    sentences += ["Constant: the best prediction that is the same for everybody."] if totals > 1 else []
    sentences += [f"Too narrow for: {', '.join(left_out)}; report.html has all."] if left_out else []
    rounds = summary["rounds"]
    table = Table(
        title=f"{dataset_title(summary)}: after {rounds} round{'s' if rounds != 1 else ''} of {summary['strategy']}",
        title_justify="left",
        caption=" ".join(sentences) or None, caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for heading in columns:
        first = heading == "hospital"
        # A long name may take more lines, at its spaces; figures and headings may not be broken.
        table.add_column(heading, justify="left" if first else "right", no_wrap=not first, vertical="bottom")
    rows = list(zip(*columns.values(), strict=True))
    for row in rows[:shown]:
        table.add_row(*row)
    if not _is_unscored(summary):
        table.add_section()
        for number_of, row in enumerate(rows[shown:]):
            table.add_row(*row, style="dim" if number_of else "bold")
    return table


def _natural_width(table: Table, screen: Console) -> int:
    """Columns of the screen that the table takes when only the hospitals' names may be broken."""
    names, table.columns[0].max_width = table.columns[0].max_width, _NAME_WIDTH
    wide = Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum
    table.columns[0].max_width = names
    return wide


def analysis_tables(analysis: dict[str, Any], screen: Console) -> list[Table]:
    """The tables of an analysis as they are shown, with their notes; of wide ones the first columns."""
    shown = []
    for part in analysis.get("tables", []):
        fit, file = fitting(part["columns"], part["shown"], screen), f"tables/{part['name']}.csv"
        rest = f"{len(part['columns']) - fit} more columns are in {file}." if fit < len(part["columns"]) else ""
        table = Table(
            title=part["title"], title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
            caption=f"{part['note']} {rest}".strip() or None, caption_justify="left",
        )  # fmt: skip
        for number_of, heading in enumerate(part["columns"][:fit]):
            table.add_column(heading, justify="right" if number_of else "left", no_wrap=number_of > 0)
        for row in part["shown"]:
            table.add_row(*row[:fit])
        shown.append(table)
    return shown


def calibration_sentence(summary: dict[str, Any]) -> str:
    """How true predictions are, with 95 % intervals, and of which hospital they are the least; empty where that is not known."""
    evaluation = summary.get("evaluation") or {}
    pooled, of_hospitals = (evaluation.get(key) or {} for key in ("pooled", "worst"))
    parts = []
    for metric, true in calibration_targets(summary).items():
        words, digits, meaning = _CALIBRATION.get(metric, (in_line(titles(summary)[metric]), 3, ""))
        if (pooled.get(metric) or {}).get("value") is None:
            continue
        is_first = metric == "calibration_in_the_large" and len(evaluation.get("sites") or {}) > 1
        farthest = of_hospitals.get(metric) if is_first else None
        at = f", farthest at {farthest['name']}: {interval(farthest)}" if farthest else ""
        parts.append(f"{words} {interval(pooled[metric], digits)}, {true:g} is true{meaning}{at}")
    return f"Calibration: {'; '.join(parts)}." if parts else ""


def privacy_sentence(summary: dict[str, Any]) -> str:
    """The guarantee with everything that a reader needs to judge it, and what it means."""
    privacy, central = summary["privacy"], summary["privacy"].get("central")
    whole = f" {central_sentence(central)}" if central else ""
    if not privacy["private"]:
        return f"No noise at the hospitals.{whole}" if central else "No differential privacy."
    private = summary.get("private_metrics") or {}
    held_out = f" {held_out_sentence(private, privacy['unit'])}" if private.get("epsilon") is not None else ""
    overlap = privacy.get("overlap", 1)
    spent = "not known" if privacy["epsilon"] is None else significant(privacy["epsilon"])
    where = "any hospital" if overlap == 1 else f"up to {overlap} hospitals together"
    unit, whose = privacy["unit"], f" of {privacy['unit']}s trained on" if held_out else ""
    risk = risk_sentence(privacy["risk"], unit, privacy["relation"], whose) if privacy.get("risk") else ""
    return (
        f"Privacy: ε = {spent} at δ = {privacy['delta']:g} for each {unit}{' trained on' if held_out else ''} at {where}, "
        f"neighbours by {privacy['relation']}, accountant {privacy['accountant'].upper()}.{f' {risk}' if risk else ''}{whole}"
        f"{held_out}"
    )
