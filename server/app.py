"""The coordinator's Flower ServerApp: ``flwr run`` arrives here with a Grid and the run's configuration.

``coordinate`` is the same for every runtime; the command line and notebooks call it with the in-process grid.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import pandas as pd
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, RunConfig, check_effects
from polyclinic.errors import PolyclinicError, count_text, without_name
from polyclinic.evaluation.report import write_report
from polyclinic.files import write_file
from polyclinic.runs.folder import LATEST, RESULTS, Run
from polyclinic.runs.predicting import held_out_table
from polyclinic.server.calibration import calibrate
from polyclinic.server.exchange.prompt import PromptGrid
from polyclinic.server.federate import Outcome, Places, federate
from polyclinic.server.phases.enrolment import settle
from polyclinic.server.progress import Progress, dropouts_of, round_line
from polyclinic.server.questions import answer_run
from polyclinic.server.state import RunState
from polyclinic.server.summary import summarise
from polyclinic.server.tracking import Tracked

app = ServerApp()
_MOST_LOGGED = 20


def coordinate(
    grid: Grid, config: RunConfig, folder: Run, *, resume: bool = False, progress: Progress | None = None,
) -> tuple[Outcome, dict[str, Any]]:  # fmt: skip
    """Runs ``config`` over ``grid`` and fills ``folder``; returns the outcome and its summary.

    Args:
        grid: Flower's grid, behind which the hospitals are.
        config: The run's configuration.
        folder: The run's folder, which no other process may hold meanwhile.
        resume: Go on from the folder's checkpoint.
        progress: Who watches the run; nobody by default.
    """
    with folder.held():
        watcher = Tracked(progress or Progress(), config, folder.path, resume)
        watcher.on_folder(folder.path)
        if resume:
            folder.write_resumption()
        places = Places(folder.sites, folder.checkpoint, folder.server_ledger, folder.waiting_file)
        try:
            outcome = federate(grid, config, folder.name, places, resume=resume, progress=watcher)
        except BaseException:
            watcher.note_stop()
            raise
        watcher.tell(outcome.state)
        summary = summarise(outcome, folder.path, folder.sites)
        if folder.awaits_comparison:
            # True until the comparison replaces this summary, and for good when the run is stopped before that.
            summary["notes"].append(
                "A comparison was asked for and is missing: the run was stopped before it was made."
            )
        state = outcome.state
        if state.hospitals:
            folder.write_hospitals({name: hospital["versions"] for name, hospital in state.hospitals.items()})
        folder.write(
            summary, state.rows, state.arrays, state.standardiser, outcome.sites[0].schema, synthesizer=outcome.synthesizer,
            predictions=_predictions(outcome),
        )  # fmt: skip
        write_report(folder)
        watcher.close(summary["privacy"]["epsilon"])
    return outcome, summary


def _predictions(outcome: Outcome) -> pd.DataFrame | None:
    """What left of held-out patients, as far as no one can compute it anew from the run's folder and a simulation's records."""
    left = outcome.state.predictions
    if not left or (outcome.sites[0].simulated and not outcome.program.evaluates_own):
        return None
    rows_by_site = {name: (part.patient, part.labels, part.scores) for name, part in left.items()}
    return held_out_table(outcome.program.objective(outcome.sites[0].schema), outcome.config.split.rule, rows_by_site)


class _Logged(Progress):
    """Progress as Flower's log lines."""

    def on_folder(self, folder: Path) -> None:
        log(INFO, "%s%s", RESULTS, folder)

    def on_step(self, what: str) -> None:
        log(INFO, "Polyclinic: %s", what)

    def on_start(self, config: RunConfig, sites: Any, privacy: Any, engine: str | None) -> None:
        noise = (
            f"epsilon {config.privacy.epsilon:g}, noise multiplier {privacy.noise_multiplier:.3f}"
            if privacy
            else "no privacy"
        )
        if config.central.on:
            noise += f" at the hospitals, epsilon {config.central.epsilon:g} of each hospital as a whole"
        trained = f"engine {engine}, " if engine else ""
        hospitals, rounds = count_text(len(sites), "hospital"), count_text(config.rounds, "round")
        log(INFO, "Polyclinic: %s, %s, %s%s", hospitals, rounds, trained, noise)

    def on_round(self, config: RunConfig, state: RunState) -> None:
        if state.unchanged and state.unchanged[-1]["round"] == state.round:
            log(INFO, "No model changed: %s", state.unchanged[-1]["reason"])
        log(WARNING if dropouts_of(state) else INFO, "%s", round_line(config, state))

    def on_dropouts(self, dropouts: Sequence[Mapping[str, Any]]) -> None:
        for dropout in dropouts[:_MOST_LOGGED]:
            when = f"before round {dropout['round']}" if dropout["round"] else "before the first round"
            why = without_name(dropout["site"], dropout["reason"])
            log(WARNING, "Polyclinic: %s dropped out %s: %s", dropout["site"], when, why)
        if len(dropouts) > _MOST_LOGGED:
            log(WARNING, "Polyclinic: %d more dropped out; the summary has all.", len(dropouts) - _MOST_LOGGED)


def simulates(environment: Mapping[str, str]) -> bool:
    """Whether nodes may host simulated hospitals: not at a SuperLink that `polyclinic coordinator start` made."""
    return environment.get("POLYCLINIC_HOSPITALS") != "real"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that Flower's run-config describes; the results are in the run's folder."""
    try:
        config = RunConfig.from_flower(context.run_config)
        check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
        if config.question:
            folder = Run.create(config)
            folder.add_flower_run(context.run_id)
            answer_run(PromptGrid(grid, simulates(os.environ)), config, folder)
            return
        begun = Run.to_resume(config) if config.resume else None
        hospitals = PromptGrid(grid, simulates(os.environ))
        if begun and config.method_is_open:
            begun.check_method(settle(hospitals, config).model)
        config = begun.as_begun(config) if begun else settle(hospitals, config)
        check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
        if config.privacy.dp:
            log(INFO, "Polyclinic: calibrating the noise")
            calibrate(config)
        folder = begun or Run.create(config)
        folder.add_flower_run(context.run_id)
        write_file(Path(config.out).expanduser().resolve() / LATEST, str(folder.path))
        _, summary = coordinate(hospitals, config, folder, resume=bool(config.resume), progress=_Logged())
        if summary["analysis"] and summary["analysis"]["refused"]:
            raise PolyclinicError(f"{summary['analysis']['refused']} What was spent is in {folder.statement_file}.")
    except PolyclinicError as error:
        log(ERROR, "Polyclinic: %s", error)
        # Flower prints it after its traceback, where people look.
        error.add_note("THIS RUN FAILED, though `flwr run` may exit with 0.")
        raise
    log(INFO, "Polyclinic: finished; the report is %s", folder.report)
