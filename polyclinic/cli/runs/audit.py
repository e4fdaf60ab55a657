"""``polyclinic audit``: what canaries and checks find of a configuration's training, or of a simulated run's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, assignments, loading, significant, table, working
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.training.auditing.audit import Audit
    from polyclinic.training.auditing.subject import Subject

# What is audited without a run. No statistics are paid for, so that all of epsilon is the training's.
_OWN = {"privacy.delta": 1e-5, "data.standardise": "none", "privacy.patients-per-site": 200}
_STEPS = {
    "training.sample-rate": 0.1,
    "training.local-steps": 10,
    "rounds": 15,
    "training.learning-rate": 0.3,
    "training.momentum": 0.0,
}


def audit(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of a finished simulated run. Default: a small training of its own.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Without RUN: task by name.")] = None,
    model: Annotated[str | None, typer.Option(help="Without RUN: model by name.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Without RUN: strategy by name; its half at the hospitals is audited too.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("-c", "--set", metavar="KEY=VALUE", help="Without RUN: any configuration key; repeatable.")
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(help="Plant a fault: noise-off, half-noise, no-clipping, batch-norm, shuffled or second-noise-off.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the audit. Default: the run's own, or 1e-05 without RUN.")
    ] = None,
    canaries: Annotated[int, typer.Option(help="Made-up patients, each of whom takes part by the toss of a coin.")] = 1000,
    guesses: Annotated[
        list[int] | None,
        typer.Option(help="How many of the tosses to guess; repeatable. Default: a third.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    white_box: Annotated[
        bool, typer.Option(
            "--white-box/--black-box",
            help="The attacker sees all that a hospital releases in each round, or the final model alone."
        )
    ] = True,
    seed: Annotated[
        int | None, typer.Option(help="Seed of draws that can be repeated. Default: the system's entropy.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Attack the training with canaries and check its sensitivity, noise and sampling: epsilon is at least so much."""
    numbers = tuple(guesses) if guesses else (canaries // 3,)
    _check(canaries, numbers, confidence, seed)
    if run is not None and not (task is model is strategy is None and not sets):
        raise ConfigError("A run has its own configuration; give --task, --model, --strategy and -c without one.")
    flags = {"task": task, "model": model, "strategy": strategy, "privacy.delta": delta}
    given = {key: value for key, value in flags.items() if value is not None}
    with working(as_json, "Starting"), loading():
        from polyclinic.inspection.audits import subject_of_config, subject_of_run
        from polyclinic.training.auditing.audit import audit as carry_out
        from polyclinic.training.auditing.faults import fault_named
    with working(as_json, "Training"):
        planted = fault_named(fault)
        if run is None:
            subject = subject_of_config(_config(assignments(sets), given), seed, planted)
        else:
            subject = subject_of_run(run, seed, planted, delta)
        bound = carry_out(subject, canaries, numbers, confidence, white_box)
    answer(as_json, _value(bound, subject, confidence), *_describe_audit(bound, subject))
    if bound.violated:
        raise typer.Exit(1)


def _config(sets: dict[str, Any], given: dict[str, Any]) -> RunConfig:
    """What is audited without a run: steps where the task takes any, and else its usual release."""
    from polyclinic.programs import program_of

    steps = _STEPS if program_of(RunConfig.build(_OWN, sets, given)).stepwise else {}
    return RunConfig.build(_OWN, steps, sets, given)


def _check(canaries: int, guesses: tuple[int, ...], confidence: float, seed: int | None) -> None:
    """Raises ConfigError for numbers that no audit can be made with."""
    if not 10 <= canaries <= 3000:
        raise ConfigError(f"--canaries is {canaries}; allowed are 10 to 3000.")
    for number in guesses:
        if not 1 <= number <= canaries:
            raise ConfigError(f"--guesses is {number}; allowed are 1 to {canaries}, the number of canaries.")
    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence is {confidence:g}; it must lie between 0 and 1, both excluded.")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed are whole numbers of at least 0.")


def _value(outcome: Audit, subject: Subject, confidence: float) -> dict[str, Any]:
    guessing = outcome.guessing
    return {
        "epsilon_lower": guessing.epsilon_lower if guessing else 0.0, "confidence": confidence,
        "epsilon_claimed": subject.epsilon, "violated": outcome.violated, "delta": subject.delta,
        "relation": "add-remove", "box": "white" if outcome.white_box else "black", "fault": subject.fault.name or None,
        "canaries": guessing.canaries if guessing else 0, "guesses": guessing.guesses if guessing else 0,
        "correct": guessing.correct if guessing else 0, "refused": outcome.refused, "caught_by": outcome.caught_by,
        "findings": [
            {"name": f.name, "what": f.what, "measured": f.measured if f.measured < float("inf") else None,
             "least": f.least, "most": f.most, "passed": f.passed}
            for f in outcome.findings
        ],
    }  # fmt: skip


def _describe_audit(outcome: Audit, subject: Subject) -> Iterator[str | Text | Table]:
    if outcome.guessing:
        lower, sure = significant(outcome.guessing.epsilon_lower), f"{100 * outcome.guessing.confidence:g} %"
        yield (
            f"ε is at least {lower} with {sure} confidence; claimed {significant(subject.epsilon)} at δ = "
            f"{subject.delta:g} ({outcome.guessing.correct} of {outcome.guessing.guesses} guesses right about "
            f"{outcome.guessing.canaries} canaries, {'white' if outcome.white_box else 'black'} box)."
        )
        if len(outcome.findings) == 1:
            yield "The task takes no steps that the audit knows: only its final model was attacked, and nothing measured."
    if outcome.refused:
        yield f"The task refuses the model: {outcome.refused}"
    if outcome.findings:
        yield table(
            ("check", "what", "measured", "allowed", ""),
            ((f.name, f.what, significant(f.measured), f"{significant(f.least)} to {significant(f.most)}",
              Text("passed", "green") if f.passed else Text("violated", "bold red")) for f in outcome.findings),
            words=("what", "allowed", ""),
        )  # fmt: skip
    if subject.fault.name:
        caught = ", ".join(outcome.caught_by)
        yield f"The fault {subject.fault.name} was " + (f"caught by: {caught}." if caught else "not caught.")
    elif outcome.violated:
        yield Text(f"Violated: {', '.join(outcome.caught_by)}.", "bold red")
