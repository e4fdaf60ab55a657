"""``polyclinic attack``: what attacks find of a finished simulated run, beside what its epsilon allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.records.risk import names
from polyclinic.cli.terminal import Json, answer, interval, loading, number, significant, style_lines, table, working
from polyclinic.errors import ConfigError


def attack(
    run: Annotated[Path, typer.Argument(help="Folder of a finished simulated run, or a folder that holds one.")],
    shadows: Annotated[int, typer.Option(help="Shadow models for LiRA; 0 leaves it out.")] = 16,
    sensitive: Annotated[
        list[str] | None, typer.Option(metavar="COLUMNS", help="Columns to guess. Default: the first twelve.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the lower bounds on epsilon. Default: the run's own.")
    ] = None,
    canaries: Annotated[
        int, typer.Option(help="Canaries of the audit that is made beside the attacks; 0 leaves it out.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="The same seed attacks in the same way.")] = 0,
    as_json: Json = False,
) -> None:
    """Attack a run's model or generator: who took part, secret columns, gradients; with hold-out patients as the baseline."""
    _check(shadows, canaries, delta, seed)
    with working(as_json, "Starting"), loading():
        from polyclinic.inspection.attacks import attack_run
        from polyclinic.runs.folder import Run
    with working(as_json, "Attacking") as on_step:
        result = attack_run(
            run, seed=seed, shadows=shadows, sensitive=names(sensitive), delta=delta, canaries=canaries, on_step=on_step
        )
    place = f"All figures: {Run(Path(result['run'])).attacks_file}; the run's report shows them."
    answer(as_json, result, *describe_attacks(result), place)


def _check(shadows: int, canaries: int, delta: float | None, seed: int) -> None:
    """Raises ConfigError for numbers that no attack can be made with."""
    if shadows and not 4 <= shadows <= 256:
        raise ConfigError(f"--shadows is {shadows}; allowed are 0 and 4 to 256.")
    if canaries and not 10 <= canaries <= 3000:
        raise ConfigError(f"--canaries is {canaries}; allowed are 0 and 10 to 3000.")
    if delta is not None and not 0 < delta < 1:
        raise ConfigError(f"--delta is {delta:g}; it must lie between 0 and 1, both excluded.")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed are whole numbers of at least 0.")


def describe_attacks(attacks: dict[str, Any]) -> Iterator[str | Text | Table]:
    """Sentences and tables for people, of what ``attacks.json`` holds."""
    epsilon = attacks["claimed"]["epsilon"]
    claim = "claims no epsilon" if epsilon is None else f"claims ε = {significant(epsilon)}"
    yield f"{attacks['members']:,} patients took part, {attacks['non_members']:,} did not. The run {claim}."
    yield table(
        ("who took part?", "AUC", "advantage", "TPR at 1 % FPR", "ε at least"),
        (
            (attack["attack"], *(interval(attack[key]) for key in ("auc", "advantage", "tpr_at_1_percent_fpr")),
             "undefined" if attack["bound"] is None else significant(attack["bound"]["epsilon_lower"]))
            for attack in attacks["membership"]
        ),
    )  # fmt: skip
    if attacks["attributes"]:
        yield table(
            ("secret column, guessed rightly", "who took part", "others", "without the model", "difference"),
            ((guess["column"], *_values(guess, "members", "non_members", "without_model"), interval(guess["excess"]))
             for guess in attacks["attributes"]),
        )  # fmt: skip
    if gradients := attacks["gradients"]:
        yield table(
            ("records out of one step's gradient", "patients in it", "labels", "error, median", "recovered"),
            (("with privacy" if trial["private"] else "without", str(trial["batch"]),
              "known" if trial["labels"] is None else f"{trial['labels']:.0%}", number(trial["median"]),
              f"{trial['recovered']:.0%}") for trial in gradients["trials"]),
        )  # fmt: skip
    if closest := attacks["closest"]:
        yield (
            f"Synthetic rows nearer to a patient who took part than to one who did not: "
            f"{interval(closest['nearer_to_members'])}; 0.5 where neither is."
        )
    if attacks["identification"]:
        yield table(
            ("by the synthetic table", "who took part", "others", "naive", "risk"),
            ((_name(risk), *_values(risk, "attack", "control", "naive"), interval(risk["risk"]))
             for risk in attacks["identification"]),
        )  # fmt: skip
    if audit := attacks["audit"]:
        yield (
            f"The audit's canaries: ε is at least {significant(audit['epsilon_lower'])} at δ = {audit['delta']:g} with 95 % "
            f"confidence; claimed {significant(audit['epsilon_claimed'])}."
        )
    yield from style_lines(
        "dim", *(f"Left out: {attack['attack']}: {attack['why'].rstrip('.')}." for attack in attacks["left_out"])
    )
    yield from style_lines("dim", "An attack that finds nothing proves nothing: the bound on all attacks is ε.")


def _values(row: dict[str, Any], *keys: str) -> list[str]:
    return [number(row[key]["value"]) for key in keys]


def _name(risk: dict[str, Any]) -> str:
    column, weak = f": {risk['column']}" if risk["column"] else "", " (weak)" if risk["weak"] else ""
    return f"{risk['name']}{column}{weak}"
