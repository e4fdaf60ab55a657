"""What is shipped: sdist and wheel hold every room, one name in site-packages, and the wheel runs elsewhere."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from generate import commands, pyproject, reference  # noqa: E402

ROOMS = ("server", "client", "strategies", "sim")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return out


def test_sdist_and_wheel_hold_every_room_once(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = [name.split("/", 1)[1] for name in sdist.getnames() if "/" in name]
    assert {f"{room}/__init__.py" for room in ROOMS} <= set(names)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {f"polyclinic/{room}/__init__.py" for room in ROOMS} | {"polyclinic/py.typed"} <= set(names)
    # What `polyclinic new` writes, the schemas of the built-in datasets and the page of runs are read from files.
    for folder, pattern, least in (
        ("cli/templates", "*.in", 6),
        ("ehr/datasets", "*.toml", 6),
        ("serving", "page.*", 3),
    ):
        read = {f"polyclinic/{folder}/{path.name}" for path in (ROOT / "polyclinic" / folder).glob(pattern)}
        assert len(read) >= least and read <= set(names)
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"polyclinic"}


@pytest.mark.slow
def test_the_wheel_runs_elsewhere(built: Path, tmp_path: Path) -> None:
    """Installed in an environment that has the dependencies but no source tree."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "packages.pth").write_text(f"{ours}\n")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site),
                    str(next(built.glob("*.whl")))], check=True)  # fmt: skip
    python = tmp_path / "venv" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = subprocess.run([python, "-c", "import polyclinic.server as s; print(s.__file__)"], cwd=tmp_path, env=environment,
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert where.startswith(str(site)), where
    done = subprocess.run([python, "-m", "polyclinic", "run", "--rounds", "1", "-c", "training.local-steps=1"], cwd=tmp_path,
                          env=environment, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs").glob("*/report.html"))


def test_every_place_that_lists_the_rooms_lists_all() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    for room in ROOMS:
        assert (ROOT / "polyclinic" / room).is_symlink()
        assert f"/polyclinic/{room}" in told["hatch"]["build"]["exclude"]
        assert f"{room}/**/*.py" in told["flwr"]["app"]["fab-include"]
        assert f"polyclinic/{room}" in told["pyright"]["include"]
        assert f'"{room}"' in (ROOT / "hatch_build.py").read_text()


def test_generated_files_are_current() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert pyproject(text) == text, "run `make generate`"
    assert (ROOT / "docs/reference/configuration.md").read_text() == reference(), "run `make generate`"
    assert (ROOT / "docs/reference/commands.md").read_text() == commands(), "run `make generate`"


def test_every_fault_in_the_list_has_its_test() -> None:
    page = (ROOT / "docs/reference/faults.md").read_text()
    rows = {
        int(number): set(re.findall(r"`(test_\w+)`", row)) for number, row in re.findall(r"^\| (\d+) (.*)$", page, re.M)
    }
    assert sorted(rows) == list(range(1, 44))
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    written: dict[int, set[str]] = {}
    for name, number in re.findall(r"^def (test_fault_(\d\d)_\w+)\(", text, re.M):
        written.setdefault(int(number), set()).add(name)
    assert rows == written


@pytest.mark.parametrize("page", ["docs/security.md", "docs/reference/faults.md"])
def test_every_test_that_a_page_on_attacks_names_is_there(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text()))
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30 and named <= set(re.findall(r"^def (test_\w+)\(", text, re.M))
