"""``polyclinic account`` from the outside: every accountant, the risk, the picture, and refusals that leave nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import ConfigError
from polyclinic.evaluation.privacy_text import risk_sentence

STEPS = ["account", "--sample-rate", "0.001", "--steps", "1000", "--delta", "1e-5"]


def _asked(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*STEPS, *arguments, "--json"])
    assert done.exception is None, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*STEPS, *arguments])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert "\n" not in str(done.exception) and done.stdout == ""
    return str(done.exception)


def test_only_gdp_is_approximate_and_says_so() -> None:
    found = {name: _asked("--noise-multiplier", "0.5", "--accountant", name) for name in ("gdp", "pld", "basic")}
    assert [one["approximate"] for one in found.values()] == [True, False, False]
    assert found["gdp"]["epsilon"] == pytest.approx(0.8515, rel=1e-3)
    assert found["pld"]["epsilon"] == pytest.approx(3.2389, rel=1e-3)
    assert found["basic"]["epsilon"] > 3.2389
    said = CliRunner().invoke(app, [*STEPS, "--noise-multiplier", "0.5", "--accountant", "gdp"]).stdout
    assert "ε ≈ 0.8515" in said and "approximation" in said


def test_the_risk_is_that_of_all_steps_whatever_accounts() -> None:
    found = [_asked("--noise-multiplier", "0.5", "--accountant", name)["risk"] for name in ("pld", "rdp", "gdp")]
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {"advantage", "tpr_at_1_percent_fpr"}
    assert 0 < found[0]["advantage"] < 1 and 0.01 < found[0]["tpr_at_1_percent_fpr"] < 1
    said = CliRunner().invoke(app, [*STEPS, "--noise-multiplier", "0.5"]).stdout
    assert risk_sentence(found[0], "patient", "add-remove") in said


def test_an_epsilon_without_a_bound_is_null() -> None:
    assert _asked("--noise-multiplier", "0.01", "--accountant", "gdp")["epsilon"] is None


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_names_every_accountant(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"accountants.{suffix}"
    few = ["account", "--sample-rate", "0.1", "--steps", "20", "--delta", "1e-5", "--noise-multiplier", "2"]
    done = CliRunner().invoke(app, [*few, "--plot", str(path)])
    assert done.exception is None and str(path) in done.stdout.replace("\n", "")
    done = CliRunner().invoke(app, [*few, "--plot", str(path), "--json"])
    assert json.loads(done.stdout)["plot"] == str(path) and path.is_file()
    if suffix == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    drawn = path.read_text(encoding="utf-8")
    for name in ("basic", "advanced", "rdp", "zcdp", "gdp", "pld", "prv"):
        assert f">{name}  " in drawn


def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    noise = ["--noise-multiplier", "1"]
    assert "a .svg or .png file" in _refused(*noise, "--plot", str(tmp_path / "x.pdf"))
    assert "folder that exists" in _refused(*noise, "--plot", str(tmp_path / "nowhere" / "x.svg"))
    assert "'gdp' is an approximation" in _refused("--target-epsilon", "1", "--accountant", "gdp")
    assert "overstates" in _refused("--target-epsilon", "1", "--accountant", "zcdp")
    assert "add-remove" in _refused(*noise, "--accountant", "prv", "--relation", "replace-one")
    assert "Did you mean 'basic'?" in _refused(*noise, "--accountant", "basics")
    assert not list(tmp_path.iterdir())
