"""The command line in this process, and a coordinator's and a hospital's folder made by it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import PolyclinicError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """``code`` as the process would exit, ``out`` its stdout, ``error`` its sentence."""

    code: int
    out: str
    error: str


Cli = Callable[..., Done]


def command_line(*arguments: object) -> Done:
    """The command line in this process."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    error = result.exception
    if isinstance(error, PolyclinicError):
        return Done(error.exit_code, result.stdout, str(error))
    assert error is None or isinstance(error, SystemExit), error
    return Done(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="session")
def cli() -> Cli:
    return command_line


@pytest.fixture
def coordinator(cli: Cli, tmp_path: Path) -> Path:
    hosts = ("--host", "coordinator.example", "--address", "10.1.2.3", "--listen", "127.0.0.1", "--port", 18000)
    assert cli("coordinator", "init", tmp_path / "co", *hosts).code == 0
    return tmp_path / "co"


def records(folder: Path, rows: int = 200) -> tuple[Path, Path]:
    """Records and their schema: those of the tests of a hospital's client."""
    sys.path.insert(0, str(ROOT / "tests" / "client"))
    from test_hospital import make_hospital

    folder.mkdir(parents=True, exist_ok=True)
    make_hospital(folder, rows=rows)
    return folder / "records.csv", folder / "schema.toml"


def init_arguments(tmp_path: Path, made: Path, /, **changed: object) -> list[object]:
    """Those of `polyclinic hospital init`; ``changed`` replaces an option, None leaves it out."""
    data, schema = records(tmp_path / "records")
    given = {
        "site": "St. Elsewhere", "data": data, "schema": schema, "coordinator": "coordinator.example:18000",
        "ca": made / "ca.crt", "budget": 2.0, "delta": 1e-3,
    } | changed  # fmt: skip
    options = [(f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None]
    return ["hospital", "init", tmp_path / "hospital", *(part for option in options for part in option)]


@pytest.fixture
def hospital(cli: Cli, coordinator: Path, tmp_path: Path) -> Path:
    done = cli(*init_arguments(tmp_path, coordinator))
    assert done.code == 0, done
    return tmp_path / "hospital"
