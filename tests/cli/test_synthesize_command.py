"""``polyclinic synthesize`` as a person uses it; the run that makes a folder is in docs/synthesis, which tests/docs runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import Result
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import dataset_named
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import save
from polyclinic.types import Arrays, Floats, Ints

SCHEMA = dataset_named("trial").schema
PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/json.md").read_text()


@dataclass(frozen=True, eq=False)
class Normal:
    """Independent normal rows."""

    layout: Layout
    spread: float

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        z = self.spread * rng.normal(0.0, 1.0, (rows, self.layout.width))
        if labels is not None:
            z[:, self.layout.label] = np.eye(self.layout.classes)[labels]
        return z

    def arrays(self) -> Arrays:
        return {"spread": np.array([self.spread])}

    def options(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> "Normal":
        return cls(layout, float(arrays["spread"][0]))


def run_folder(path: Path, spread: float = 1.0, epsilon: float | None = 1.0) -> Path:
    path.mkdir()
    site = {"epsilon": epsilon, "delta": epsilon and 1e-4, "budget": None}
    summary = {
        "rounds": 1, "strategy": "sums", "dataset": "trial", "simulation": True, "metrics": {"sites": {"a": site}},
        "privacy": {"epsilon": epsilon, "delta": epsilon and 1e-4, "unit": "patient", "relation": "add-remove",
                    "accountant": "pld", "overlap": 1, "composition": "disjoint", "central": None},
    }  # fmt: skip
    (path / "config.toml").write_text(tomli_w.dumps({"task": "synthesis"}))
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "ledger.json").write_text("{}")
    SCHEMA.to_toml(path / "schema.toml")
    save(Normal(Layout.of(SCHEMA), spread), path / "synthesizer.safetensors")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run")


def called(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["synthesize", *map(str, arguments)])


def test_rows_and_a_certificate(run: Path, tmp_path: Path) -> None:
    done = called(run, "--rows", 30, "--out", tmp_path / "rows.parquet")
    assert done.exit_code == 0, done.output
    encoded = encode(pd.read_parquet(tmp_path / "rows.parquet"), SCHEMA)
    assert len(encoded.x) == 30
    for said in (
        "rows.parquet: 30 rows",
        "rows.certificate.json",
        "epsilon 1 at delta 0.0001",
        "no further privacy",
        "Warning: Confidence intervals from these rows are too narrow: all that the generator draws",
        "Warning: Confidence intervals from one set, taken as if its rows were patients, are too narrow",
    ):
        assert said in done.stdout  # fmt: skip


def test_arms_have_exact_counts_in_every_set(run: Path, tmp_path: Path) -> None:
    arms = ("--condition", "intensive=1:30,intensive=0:20", "--condition", "controlled=1:5")
    done = called(run, "--out", tmp_path / "rows.csv", "--sets", 2, *arms, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [one["file"] for one in found["files"]] == ["rows-01.csv", "rows-02.csv"] and found["rows"] == 55
    for name in ("rows-01.csv", "rows-02.csv"):
        rows = pd.read_csv(tmp_path / name)
        assert rows["intensive"].tolist()[:50] == [1] * 30 + [0] * 20 and rows["controlled"].tolist()[50:] == [1] * 5


def test_without_privacy_no_guarantee_is_claimed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "bare", epsilon=None)
    done = called(folder, "--rows", 5, "--out", tmp_path / "rows.csv", "--sets", 2)
    assert "No privacy guarantee" in done.stdout and "Warning" not in done.stdout and "epsilon" not in done.stdout


def test_verifying(run: Path, tmp_path: Path) -> None:
    called(run, "--rows", 5, "--out", tmp_path / "rows.csv")
    done = called(run, "--verify", tmp_path / "rows.csv", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["intact"]
    assert called(tmp_path / "run" / "..", "--verify", tmp_path / "rows.csv").exit_code == 0
    (tmp_path / "rows.csv").write_text("patient\n")
    done = called("--verify", tmp_path / "rows.csv")
    assert done.exit_code == 1 and "changed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", 5), "--out is not given"),
        (("--rows", 0, "--out", "rows.csv"), "--rows is 0"),
        (("--rows", 5, "--out", "rows.txt"), "its ending must be one of"),
        (("--out", "rows.csv"), "Give exactly one of --rows and --condition"),
        (
            ("--rows", 5, "--condition", "intensive=1:5", "--out", "rows.csv"),
            "Give exactly one of --rows and --condition",
        ),
        (("--verify", "rows.csv", "--rows", 5), "leave --rows out"),
        (("--verify", "rows.csv"), "has no certificate"),
    ],
)
def test_wrong_use_is_refused(
    run: Path, arguments: tuple[object, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    done = called(run, *arguments)
    assert isinstance(done.exception, ConfigError) and said in str(done.exception) and done.exception.exit_code == 2
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_no_run_and_a_diverged_one_are_refused(tmp_path: Path) -> None:
    assert "RUN is not given" in str(called("--rows", 5, "--out", tmp_path / "rows.csv").exception)
    done = called(run_folder(tmp_path / "bad", spread=np.nan), "--rows", 5, "--out", tmp_path / "rows.csv")
    assert isinstance(done.exception, DataError) and "diverged" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_the_page_of_json_names_every_key(run: Path, tmp_path: Path) -> None:
    part = PAGE[PAGE.index("## Synthetic records") :]
    keys = set(json.loads(called(run, "--rows", 5, "--out", tmp_path / "rows.csv", "--json").stdout))
    keys |= set(json.loads(called("--verify", tmp_path / "rows.csv", "--json").stdout))
    assert not [key for key in keys if f"`{key}`" not in part]


@pytest.mark.slow
def test_a_million_rows_need_little_memory(run: Path, tmp_path: Path) -> None:
    """In a Python of its own, whose largest memory is then of this work alone: in pieces, 1 GiB is plenty."""
    import subprocess
    import sys

    code = (
        "import sys; sys.path[:0] = sys.argv[3:]; from polyclinic.runs.synthesize import synthesize; "
        "from tests.memory import peak_bytes; synthesize(sys.argv[1], 1_000_000, sys.argv[2]); print(peak_bytes())"
    )
    arguments = [str(run), str(tmp_path / "rows.parquet"), str(Path(__file__).parent), str(Path(__file__).parents[2])]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1 << 30
    assert len(pd.read_parquet(tmp_path / "rows.parquet", columns=["age"])) == 1_000_000
