"""``polyclinic account``: the epsilon of DP-SGD by every accountant, the noise for an epsilon, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from polyclinic.cli.terminal import Json, answer, loading, significant
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.privacy.accounting import Accountant, Relation

_SUFFIXES = (".svg", ".png")


def account(
    sample_rate: Annotated[float, typer.Option(help="Probability that a patient is in a batch.")],
    steps: Annotated[int, typer.Option(help="Number of steps.")],
    delta: Annotated[float, typer.Option(help="Target delta.")],
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over sensitivity; give this or --target-epsilon.")
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Find the noise multiplier for this epsilon, by pld or rdp.")
    ] = None,
    accountant: Annotated[
        str,
        typer.Option(
            help="Accountant: pld or rdp may enforce; basic, advanced, zcdp, gdp, prv or a package's own only show."
        ),
    ] = "pld",
    relation: Annotated[str, typer.Option(help="Neighbouring relation: add-remove or replace-one.")] = "add-remove",
    plot: Annotated[
        Path | None, typer.Option(help="Draw epsilon over the steps by all accountants into this .svg or .png file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The epsilon of DP-SGD, or the noise that a target epsilon needs, and the risk of a patient in plain numbers.

    Accountants: pld is tight, rdp is Opacus' bound, and prv is Opacus' check of pld. Two others, basic and advanced, add up
    each step's own epsilon, amplified by the sample. The accountant zcdp adds up each step as if it saw all patients. And gdp
    is an approximation, not a bound.
    """
    with loading():
        from polyclinic.evaluation.privacy_text import risk_sentence
        from polyclinic.privacy.accounting import calibrate_noise_multiplier, dpsgd_event
        from polyclinic.privacy.accounting.comparison import APPROXIMATE, SHOWN, shown_epsilon
        from polyclinic.privacy.accounting.risk import risk

    if (noise_multiplier is None) == (target_epsilon is None):
        raise ConfigError("Give exactly one of --noise-multiplier and --target-epsilon.")
    if plot is not None and (plot.suffix.lower() not in _SUFFIXES or not plot.absolute().parent.is_dir()):
        raise ConfigError(f"--plot must name a {' or '.join(_SUFFIXES)} file in a folder that exists, got {plot}.")
    # Checked by the accounting itself, whose sentence names what is allowed.
    neighbours = cast("Relation", relation)
    if noise_multiplier is None:
        assert target_epsilon is not None
        noise_multiplier = calibrate_noise_multiplier(
            target_epsilon,
            delta,
            lambda sigma: dpsgd_event(sample_rate, sigma, steps),
            cast("Accountant", accountant),
            neighbours,
        )
    by = partial(shown_epsilon, accountant) if accountant in SHOWN else _load_accountant(accountant)
    epsilon = by(sample_rate, noise_multiplier, steps, delta, neighbours)
    unproved = accountant in APPROXIMATE or accountant not in SHOWN
    if accountant == "prv" and math.isinf(epsilon):
        raise ConfigError("accountant 'prv' has no finite bound here, or would need gigabytes for it; 'pld' has one.")
    learned = risk(dpsgd_event(sample_rate, noise_multiplier, steps), neighbours)
    if plot is not None:
        _draw(plot, sample_rate, noise_multiplier, steps, delta, neighbours)
    bounded = math.isfinite(epsilon)
    caveat = []
    if accountant in APPROXIMATE:
        caveat = ["This is an approximation, which may be too small; --accountant pld gives a bound."]
    elif unproved:
        caveat = [
            "This accountant is another package's: it shows and enforces nothing; --accountant pld gives a bound."
        ]
    value = {
        "epsilon": epsilon if bounded else None, "delta": delta, "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate, "steps": steps, "accountant": accountant, "relation": relation,
        "approximate": unproved, "risk": learned.as_dict(), "plot": str(plot) if plot else None,
    }  # fmt: skip
    answer(
        as_json, value,
        f"ε {'≈' if unproved else '='} {significant(epsilon) if bounded else 'unbounded'} "
        f"at δ = {delta:g} ({relation}, {accountant.upper()}): "
        f"{steps} steps, sample rate {sample_rate:g}, noise multiplier {significant(noise_multiplier)}",
        *caveat, risk_sentence(learned.as_dict(), "patient", relation), *([f"Picture: {plot}"] if plot else []),
    )  # fmt: skip


def _load_accountant(accountant: str) -> Callable[[float, float, int, float, str], float]:
    with loading():
        from polyclinic.plugins import accountant_named  # loads torch

    return accountant_named(accountant)


def _draw(path: Path, rate: float, noise: float, steps: int, delta: float, relation: Relation) -> None:
    with loading():
        from polyclinic.evaluation.figures.canvas import to_bytes
        from polyclinic.evaluation.figures.rounds import plot_accountants
        from polyclinic.privacy.accounting.comparison import curves

    settings = f"Sample rate {rate:g}, noise {noise:.3g}, δ = {delta:g}, {relation}"
    figure = plot_accountants(curves(rate, noise, steps, delta, relation), settings)
    path.write_bytes(to_bytes(figure, path.suffix))
