"""Every command and every Python block that the documentation shows is run, in a folder of its own; links resolve."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *(f"docs/tutorials/{name}.md" for name in ("researcher", "administrator", "method-developer"))]
# Run for real by .ci/run (make) and tests/flower (Flower's commands); the rest of a line needs a coordinator.
ELSEWHERE = ("make ", "export ", "flwr run", "polyclinic flower run", "flower-supernode", "--auth-supernode")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)


def prepare(page: str, folder: Path) -> None:
    """The files that the page tells its reader to write."""
    if page.endswith("researcher.md"):
        (folder / "study.toml").write_text(blocks(page, "toml")[0])
    if page.endswith("method-developer.md"):
        (folder / "mymethods.py").write_text("\n".join(blocks(page, "python")))
    if page.endswith("administrator.md"):
        schema, hospital = blocks(page, "toml")
        (folder / "schema.toml").write_text(schema)
        (folder / "hospital.toml").write_text(hospital)
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "import test_hospital as t, pathlib\n"
            "hospital, rows = pathlib.Path('hospital.toml'), 400\n"
            "import numpy as np, pandas as pd\n"
            "rng = np.random.default_rng(0)\n"
            "pd.DataFrame({'id': range(rows), 'age': rng.integers(0, 99, rows), 'sbp': 120.0, 'died': rng.integers(0, 2, rows)}"
            ").to_csv('records.csv', index=False)\n"
            "reply = t.train(hospital)\n"
            "assert reply.has_content(), reply.error.reason\n"
        )
        subprocess.run(
            [sys.executable, "-c", script, str(ROOT / "tests" / "client")], cwd=folder, env=environment(), check=True
        )


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, "."]), "NO_COLOR": "1"}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page: str, tmp_path: Path) -> None:
    prepare(page, tmp_path)
    ran = 0
    for line in "\n".join(blocks(page, "sh")).splitlines():
        command = line.split("  #")[0].strip()
        if not command or command.startswith(ELSEWHERE):
            continue
        program, *arguments = shlex.split(command)
        assert program == "polyclinic", f"{page} shows a command that no test runs: {command}"
        done = subprocess.run([sys.executable, "-m", "polyclinic", *arguments], cwd=tmp_path, env=environment(),
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        ran += 1
    assert ran or page == "README.md"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_every_python_block_runs(page: str, tmp_path: Path) -> None:
    for block in blocks(page, "python"):
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_links_between_pages_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
