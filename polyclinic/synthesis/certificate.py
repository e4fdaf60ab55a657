"""What goes with synthetic records: whence they come, what privacy they have and have not, and the digests that tie it together.

A certificate is not signed: it shows that files are those it was written for, not who wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyclinic.errors import ConfigError, DataError, several
from polyclinic.files import sha256

ENDING = ".certificate.json"
POST_PROCESSING = (
    "Drawing rows costs no further privacy: post-processing. However many are drawn, they follow from what the run had "
    "released."
)
NO_GUARANTEE = "no privacy guarantee: the generator was trained without noise, and rows may tell of real patients."
UNBOUNDED = "no privacy guarantee: the run spent more than any finite epsilon says."
SIMULATED = (
    "The run was a simulation, whose noise follows its seed: against whoever knows that seed it protects nothing. Epsilon says "
    "what the same run costs with noise of the operating system's entropy, as in production."
)
SHARED = (
    "The hospitals shared their noise: epsilon holds as long as the other hospitals added their shares and the server kept to "
    "the protocol of secure sums."
)
_RULES = "see docs/synthesis/inference.md."
UNDER_COVER_PRIVACY = (
    "Confidence intervals from these rows are too narrow: all that the generator draws has the noise that privacy put into it, "
    "and no rule that combines sets knows of it. Intervals that count it need models drawn anew, as --sets 20 draws them of "
    f"a run of model 'marginals' that released up to 4,000 numbers; {_RULES}"
)
UNDER_COVER_SAMPLE = (
    "Confidence intervals from one set, taken as if its rows were patients, are too narrow: "
    "the generator knows only a sample."
)
UNDER_COVER_ONE = (
    f"{UNDER_COVER_SAMPLE} Draw several with --sets and combine them with rule 'partial', or widen them by rule 'single'; "
    f"{_RULES}"
)
UNDER_COVER_ANEW = (
    "Confidence intervals from one set, taken as if its rows were patients, are too narrow. Draw 20 sets with --sets 20, each "
    f"of a model that is drawn anew, and combine them with rule 'full'; {_RULES}"
)
TRUST = (
    "Combined with rule 'full', intervals count sampling and the noise of privacy where every two variables of the analysis were "
    "measured together, as 'measured_together' lists them, and it asks for no interaction of three. Of two variables that were "
    "not measured together, and of interactions, trust neither estimate nor interval: the model made them up from the "
    f"other pairs; {_RULES}"
)


#: Of fewer sets of models drawn anew rule 'full' gives intervals many times too wide.
FEWEST_SETS = 10


def privacy_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The privacy of a run's summary: of all its hospitals together, and of each; None of a run without privacy."""
    privacy = summary["privacy"]
    central = privacy.get("central")
    if privacy["delta"] is None and not central:
        return None
    sites = summary["metrics"]["sites"]
    keys = ("epsilon", "delta", "unit", "relation", "accountant", "overlap", "composition")
    return {
        **{name: privacy.get(name) for name in keys},
        "sites": {name: {key: site.get(key) for key in ("epsilon", "delta", "budget")} for name, site in sites.items()},
        "central": central
        and {name: central.get(name) for name in ("epsilon", "delta", "unit", "relation", "accountant")},
    }


def guarantee_of(summary: Mapping[str, Any]) -> str:
    """The one sentence on what the run promises; of a run without privacy with its game's own words, which promise nothing."""
    own = (summary.get("synthesis") or {}).get("guarantee")
    privacy = privacy_of(summary)
    if privacy is None:
        return f"{NO_GUARANTEE} {own}" if own else NO_GUARANTEE
    if privacy["epsilon"] is None and not privacy["central"]:
        return UNBOUNDED
    promises = []
    if privacy["epsilon"] is not None:
        promises.append(
            f"each {privacy['unit']}: epsilon {privacy['epsilon']:.4g} at delta {privacy['delta']:g} ({privacy['relation']}, "
            f"{str(privacy['accountant']).upper()}; {privacy['composition']})"
        )
    if central := privacy["central"]:
        promises.append(
            f"each hospital as a whole: epsilon {central['epsilon']:.4g} at delta {central['delta']:g} ({central['relation']}, "
            f"{str(central['accountant']).upper()})"
        )
    return f"Differential privacy of {', and of '.join(promises)}."


def inference_of(
    summary: Mapping[str, Any], sets: int, together: Sequence[tuple[str, str]], patients: float | None,
    conditioned: bool = False, several: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Which rule of ``synthesis.combining`` gives intervals that hold, and for which analyses.

    Args:
        summary: The run's summary.
        sets: How many sets were drawn.
        together: The pairs of columns that were measured together, of a generator that was drawn anew for each of
            several sets; empty for another.
        patients: Of how many patients the run was, as far as it released that; None where it did not.
        conditioned: Whether rows are of values that were asked for: shares are then what was asked, and no rule is
            right.
        several: Columns that hold several codes, which may or may not have been measured with one another.
    """
    anew, counted = bool(together) and sets > 1, bool(together) and sets >= FEWEST_SETS and not conditioned
    private = privacy_of(summary) is not None or conditioned or anew
    rule = "full" if counted else None if private else "partial" if sets > 1 else "single"
    return {
        "rule": rule,
        "models": "drawn anew for each set" if anew else "one",
        "patients": patients,
        "measured_together": [list(pair) for pair in together],
        "several": list(several),
        "trust": TRUST if counted else None,
    }


def warnings_of(summary: Mapping[str, Any], sets: int, together: Sequence[Any] = ()) -> list[str]:
    """Where intervals from the rows would be too narrow: under privacy but for models drawn anew, and with one set.

    Args:
        summary: The run's summary.
        sets: How many sets were drawn.
        together: As in ``inference_of``.
    """
    if together:
        return [TRUST] if sets >= FEWEST_SETS else [UNDER_COVER_ANEW]
    # Under privacy no rule holds by which several sets of one model are combined, so that none is named.
    if privacy_of(summary) is not None:
        return [UNDER_COVER_PRIVACY, *[UNDER_COVER_SAMPLE] * (sets == 1)]
    return [UNDER_COVER_ONE] * (sets == 1)


def certificate(
    summary: Mapping[str, Any], run: str, digests: Mapping[str, str], drawn: Mapping[str, Any]
) -> dict[str, Any]:
    """The certificate as JSON.

    Args:
        summary: The run's summary.
        run: The name of the run's folder.
        digests: SHA-256 of ``synthesizer`` and ``ledger``.
        drawn: What was asked for and made: ``method``, ``rows``, ``sets``, ``seed``, ``inference`` (as
            ``inference_of``), ``conditions``, ``schema``, ``columns``, ``left_out``, ``rules``, ``files``.
    """
    guarantee = guarantee_of(summary)
    shared = [SHARED] if summary.get("shared_noise") and privacy_of(summary) else []
    simulated = [SIMULATED] if summary.get("simulation") and privacy_of(summary) else []
    return {
        "released": "synthetic records, drawn from a generator that was fitted to patients' records",
        "guarantee": guarantee,
        "privacy": privacy_of(summary),
        "statement": [guarantee[0].upper() + guarantee[1:], POST_PROCESSING, *shared, *simulated],
        "warnings": warnings_of(summary, int(drawn["sets"]), drawn["inference"]["measured_together"]),
        "run": {"name": run, "dataset": summary.get("dataset"), "rounds": summary.get("rounds"),
                "strategy": summary.get("strategy"), "simulation": summary.get("simulation")},
        **drawn,
        "sha256": dict(digests),
    }  # fmt: skip


def certificate_path(out: Path) -> Path:
    """``patients.certificate.json`` of ``patients.parquet`` or ``patients.csv``."""
    return out.with_name(out.stem + ENDING)


def verify(file: str | Path, run: Mapping[str, Path] | None = None) -> dict[str, Any]:
    """Whether ``file`` is as its certificate says; all its files where ``file`` is a certificate.

    run: files ``synthesizer`` and ``ledger`` of a run: also whether they are those that the rows came from.
    The answer has ``certificate``, ``checked`` (``file`` and ``state``: intact, changed or missing) and ``intact``.
    Raises ConfigError where there is no certificate of the file, DataError where it is damaged.
    """
    file = Path(file)
    path = certificate_of(file)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        files = {str(entry["file"]): str(entry["sha256"]) for entry in read["files"]}
        digests = {name: str(read["sha256"][name]) for name in ("synthesizer", "ledger")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a certificate of synthetic records: {type(error).__name__}.") from None
    if file != path:
        if file.name not in files:
            raise ConfigError(f"{path} is a certificate of {several(files)}, not of {file.name}.")
        files = {file.name: files[file.name]}
    expected = {path.with_name(Path(name).name): digest for name, digest in files.items()}
    if run is not None:
        expected |= {path: digests[name] for name, path in run.items()}
    checked = [{"file": str(place), "state": _state(place, digest)} for place, digest in expected.items()]
    return {
        "certificate": str(path),
        "checked": checked,
        "intact": all(entry["state"] == "intact" for entry in checked),
    }


def _state(path: Path, digest: str) -> str:
    if not path.is_file():
        return "missing"
    return "intact" if sha256(path) == digest else "changed"


def certificate_of(file: Path) -> Path:
    """The certificate of a file of rows, or ``file`` where it is one. Raises ConfigError where there is none."""
    if file.name.endswith(ENDING):
        places: Sequence[Path] = [file]
    else:
        places = [certificate_path(file), file.with_name(re.sub(r"-\d+$", "", file.stem) + ENDING)]
    for place in places:
        if place.is_file():
            return place
    if file in places:
        raise ConfigError(
            f"There is no certificate {file}; it lies beside the rows that `polyclinic synthesize` wrote."
        )
    raise ConfigError(f"{file} has no certificate: there is no {places[0]}.")
