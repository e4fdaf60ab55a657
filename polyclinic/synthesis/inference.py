"""From the sets of a certificate to one estimate and its interval, by the rule that the certificate names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.errors import ConfigError, DataError, nearest, several
from polyclinic.synthesis.certificate import verify
from polyclinic.synthesis.combining import Combined, Values, combine

#: Of one table: the estimates and their variances (squared standard errors) as of real patients; numbers, or (k,) of each.
Analysis = Callable[[pd.DataFrame], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Inference:
    """What the sets say together.

    apart: the pairs of its variables that were not measured together, of which the model made up how they depend on
        each other. A column of several codes pairs with itself, for its codes depend on each other too.
    """

    combined: Combined
    apart: tuple[tuple[str, str], ...]

    @property
    def trusted(self) -> bool:
        """Whether every two variables were measured together; an interaction of three is not, whatever this says."""
        return not self.apart


def analyse_sets(
    certificate: str | Path, variables: Sequence[str], analysis: Analysis, patients: float | None = None,
    run: Mapping[str, Path] | None = None,
) -> Inference:  # fmt: skip
    """Applies ``analysis`` to each set of a certificate and combines what it gives by the certificate's rule.

    Only the sets are looked at, so it is free.

    Args:
        certificate: The certificate's file, or that of one of its sets.
        variables: The columns that the analysis uses; each set is read with these alone.
        analysis: Gives an estimate and its variance, or several of each, for one set.
        patients: Of how many patients the run was, where the certificate does not say.
        run: Files ``synthesizer`` and ``ledger`` of the run that the sets must be of; None takes any.

    Raises:
        ConfigError: The certificate names no rule, the number of patients is missing or another, or the sets lack a
            column.
        DataError: A set is missing or was changed, or the sets are of another run.
    """
    path = Path(verify(certificate)["certificate"])
    checked = {entry["file"]: entry["state"] for entry in verify(path, run)["checked"]}
    of_run = {str(place) for place in (run or {}).values()}
    if changed := [file for file, state in checked.items() if state != "intact" and file not in of_run]:
        raise DataError(f"{changed[0]} is missing or not as {path} says; draw the sets again.")
    if others := [file for file, state in checked.items() if state != "intact"]:
        raise DataError(f"{others[0]} is not what the sets of {path} were drawn from; name the run that they are of.")
    read = json.loads(path.read_text(encoding="utf-8"))
    if missing := {"columns", "rows"} - set(read):
        raise DataError(
            f"{path} does not say {min(missing)!r}, without which nothing can be combined; draw the sets again."
        )
    combining, columns = read.get("inference") or {}, list(read["columns"])
    for name in variables:
        if name not in columns:
            raise ConfigError(f"variables names {name!r}; the sets have {several(columns)}.{nearest(name, columns)}")
    rule, stated = combining.get("rule"), combining.get("patients")
    if None not in (patients, stated) and patients != stated:
        raise ConfigError(
            f"patients (--patients) is {patients:g}, but {path} says that the run was of {stated:,}; leave it out."
        )
    patients = stated or patients
    if rule is None:
        raise ConfigError(
            f"{path} names no rule: no way to combine these sets gives intervals that hold (docs/synthesis/inference.md). Draw "
            "20 sets of a run of model 'marginals', or combine several runs that share epsilon by synthesis.combining.combine."
        )
    if patients is None:
        raise ConfigError(
            f"{path} does not say of how many patients the run was, by which rule {rule!r} scales variances; give the number as "
            "patients (--patients)."
        )
    results = [analysis(_read(path.with_name(Path(entry["file"]).name), list(variables))) for entry in read["files"]]
    estimates: Values = [estimate for estimate, _ in results]
    variances: Values = [variance for _, variance in results]
    together = {frozenset(pair) for pair in combining.get("measured_together", ())}
    pairs = [*((name, name) for name in variables if name in combining.get("several", ())), *combinations(variables, 2)]
    apart = tuple(pair for pair in pairs if frozenset(pair) not in together)
    return Inference(combine(estimates, variances, rule, ratio=read["rows"] / patients), apart)


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path, usecols=columns)
    return pd.read_parquet(path, columns=columns)
