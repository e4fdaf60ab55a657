"""The arrows between the rooms (docs/architecture.md): who may import whom, read from the source itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRONT = {"errors", "arrays", "passing", "compression", "config", "messages", "plugins", "versions"}
MAY_IMPORT: dict[str, set[str]] = {
    "ehr": {"errors"},
    "privacy": {"errors", "spreadsheets"},
    "models": {"errors"},
    "inference": {"errors", "privacy", "models"},
    "synthesis": {"errors", "ehr", "privacy", "models"},
    "training": {"errors", "ehr", "privacy", "models", "inference", "synthesis"},
    "evaluation": {"errors", "ehr", "privacy", "synthesis"},
    "strategies": {"errors", "privacy", "models", "synthesis"},
    "client": {*FRONT, "ehr", "privacy", "training", "evaluation", "synthesis"},
    "sim": {"errors", "arrays", "passing"},
    "serving": {"errors", "evaluation"},
    "deployment": {"errors", "config", "plugins", "client", "ehr", "privacy", "server"},
    "server": {*FRONT, "spreadsheets", "ehr", "privacy", "models", "training", "strategies", "evaluation", "synthesis"},
}
FLOWER_FREE = ("ehr", "privacy", "models", "inference", "synthesis", "training", "evaluation")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module} if node.module != "polyclinic" else {f"polyclinic.{alias.name}" for alias in node.names}
            )
    return found


def files(room: str) -> list[Path]:
    inside = ROOT / "polyclinic" / room
    return sorted((inside if not inside.is_symlink() else ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    assert files(room), f"the room {room} is empty"
    for path in files(room):
        ours = {name.split(".")[1] for name in imports(path) if name.startswith("polyclinic.")}
        extra = ours - MAY_IMPORT[room] - {room}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


@pytest.mark.parametrize("room", FLOWER_FREE)
def test_the_library_knows_nothing_of_flower(room: str) -> None:
    for path in files(room):
        assert not any(name.split(".")[0] in ("flwr", "ray") for name in imports(path)), path.relative_to(ROOT)


def called(path: Path) -> set[str]:
    """Every dotted name that is called, as it is written."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return {ast.unparse(function) for function in calls if isinstance(function, ast.Attribute)}


def test_fault_19_no_global_random_state_is_used() -> None:
    of_their_own = r"np\.random\.(default_rng|Generator|PCG64|Philox|SeedSequence)"
    inside_a_fork = r"torch\.(default_generator|cuda)\.manual_seed(_all)?"
    shared = (
        r"(np|numpy)\.random\.\w+|random\.\w+"
        r"|torch\.(.*manual_seed.*|seed|rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson)(_like)?"
    )
    for room in MAY_IMPORT:
        for path in files(room):
            assert not imports(path) & {"random", "numpy.random"}, f"{path.relative_to(ROOT)} imports global draws"
            for name in called(path):
                anew = path.name == "executor.py" and name == "np.random.seed"  # from the system, after a fork
                allowed = anew or re.fullmatch(f"{of_their_own}|{inside_a_fork}", name)
                assert allowed or not re.fullmatch(shared, name), f"{path.relative_to(ROOT)} calls {name}"


def test_entry_modules_import_the_package_first() -> None:
    for name in ("server_app", "client_app"):
        tree = ast.parse((ROOT / "polyclinic" / f"{name}.py").read_text())
        first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        assert isinstance(first, ast.Import) and first.names[0].name == "polyclinic"


def test_a_run_starts_without_what_only_some_runs_or_their_ends_need() -> None:
    slow = ["jinja2", "matplotlib", "opacus", "ray", "sklearn"]
    code = f"import sys, polyclinic.federation, polyclinic.client_app; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
