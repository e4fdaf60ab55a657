"""What a run gave, in a form that is compared: bit for bit on processors that compute alike, within rounding on others."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression

from polyclinic import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.runs.synthesize import synthesize
from polyclinic.server.progress import Progress

Arrays = Mapping[str, NDArray[Any]]
#: By how much results may differ where processors add up in another order, as a share of their size.
TOLERANCE = 0.02
_METRICS = ("loss", "auroc", "accuracy", "epsilon")
_DIGITS = 9


def arithmetic() -> str:
    """A digest of what this processor makes of products, sums and functions; where it is equal, results are bit-equal."""
    generator = torch.Generator().manual_seed(0)
    results = []
    for dtype in (torch.float32, torch.float64):
        for rows, inner, outer in ((3, 30, 2), (90, 30, 64), (257, 64, 33), (1000, 7, 7)):
            a = torch.randn(rows, inner, generator=generator, dtype=dtype)
            b = torch.randn(inner, outer, generator=generator, dtype=dtype)
            results += [a @ b, torch.baddbmm(b[None, :1], a[None], b[None])[0], (a.numpy() @ b.numpy())]
            results += [torch.tanh(a), torch.exp(a), torch.log_softmax(a, 1), torch.sum(a)]
    square = np.cov(np.asarray(a, dtype=np.float64).T)
    results += [np.exp(square), np.linalg.inv(square), np.linalg.eigh(square)[0], np.log(np.abs(square))]
    # Sums and norms by rows, and the fit of the classifier that judges synthetic patients.
    wide = b.double().numpy()
    results += [wide.sum(axis=0), wide.mean(axis=1), np.linalg.norm(wide, axis=1), np.cumsum(wide)]
    judge = LogisticRegression(max_iter=1000).fit(a.numpy(), a[:, 0].numpy() + a[:, 1].numpy() > 0)
    results += [judge.coef_, judge.intercept_, judge.predict_proba(a.numpy())]
    return _digest(b"".join(np.asarray(value).tobytes() for value in results))


def run(options: Mapping[str, Any], folder: Path, progress: Progress | None = None) -> RunResult:
    """The run with these options, below ``folder``."""
    return Federation.from_dataset(options["dataset"], out=str(folder)).run(
        progress=progress, pictures=False, **{key: value for key, value in options.items() if key != "dataset"}
    )


def results(run: RunResult) -> dict[str, Any]:
    """``{"digest", "sketch"}`` of the run's arrays, rounds, synthetic rows and tables; its charges; its epsilon.

    Rows have no sketch: one number rounded otherwise changes which patient is drawn.
    """
    parts: dict[str, Arrays] = {
        name: _numbers(load_file(run.path / f"{name}.safetensors")) for name in ("model", "checkpoint", "synthesizer")
        if (run.path / f"{name}.safetensors").exists()
    }  # fmt: skip
    parts["rounds"] = {name: run.rounds[name].to_numpy(np.float64) for name in _METRICS if name in run.rounds}
    if (run.path / "synthesizer.safetensors").exists():
        with tempfile.TemporaryDirectory() as folder:
            synthesize(run.path, 200, Path(folder) / "rows.csv")
            rows = pd.read_csv(Path(folder) / "rows.csv").apply(lambda column: pd.to_numeric(column, errors="coerce"))
        parts["rows"] = {str(name): rows[name].to_numpy(np.float64) for name in rows}
    if run.summary["analysis"]:
        parts["tables"] = {
            f"{name} {column}": cells.to_numpy(np.float64)
            for name, table in run.tables.items()
            for column in table
            if len(cells := pd.to_numeric(table[column], errors="coerce").dropna())
        }
    charges = [
        (site, event["round"], event["purpose"], _rounded(event["event"]))
        for site, statement in sorted(run.statement["sites"].items())
        for event in statement["events"]
    ]
    return {
        **{
            name: {"digest": _digest_of(arrays), "sketch": [] if name == "rows" else _sketch(arrays)}
            for name, arrays in parts.items()
        },
        "charges": _digest(json.dumps(charges, sort_keys=True).encode()),
        "epsilon": _rounded(run.privacy["epsilon"]),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any], exact: bool) -> list[str]:
    """What differs, by name: digests where the arithmetic is the same, sketches where it is not; charges and epsilon always."""
    unlike = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if not exact and isinstance(old, dict) and isinstance(new, dict):
            if len(old["sketch"]) != len(new["sketch"]) or not np.allclose(
                new["sketch"], old["sketch"], rtol=TOLERANCE, atol=TOLERANCE * max(map(abs, old["sketch"]), default=0.0)
            ):
                unlike.append(name)
        elif isinstance(old, dict) and isinstance(new, dict):
            if old["digest"] != new["digest"]:
                unlike.append(name)
        elif old != new:
            unlike.append(name)
    return unlike


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _digest_of(arrays: Arrays) -> str:
    parts = [
        f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes() for name, value in sorted(arrays.items())
    ]
    return _digest(b"".join(parts))


def _numbers(arrays: Arrays) -> Arrays:
    """Without arrays of bytes, which are text that names the run."""
    return {name: value for name, value in arrays.items() if value.dtype.kind == "f"}


def _sketch(arrays: Arrays) -> list[float]:
    """Three random projections and the norm of all numbers, which move little where the numbers do."""
    every = np.concatenate([np.zeros(0), *(np.nan_to_num(value).ravel() for _, value in sorted(arrays.items()))])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(3, len(every)))
    return [float(f"{value:.10g}") for value in (*(signs @ every), np.linalg.norm(every))]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
