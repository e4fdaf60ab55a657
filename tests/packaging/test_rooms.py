"""The arrows between the rooms (docs/architecture.md): who may import whom, read from the source itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(?:polyclinic/)?([\w.]+)/?` \|.*\| ?([\w, ]*?) ?\|$", re.M)
#: By room or module: which others it imports, from the page's two tables.
IMPORTS = {
    name: {*filter(None, listed.split(", "))}
    for name, listed in ROW.findall((ROOT / "docs/architecture.md").read_text())
}
ROOMS = [name for name in IMPORTS if not name.endswith(".py")]
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
    if room.endswith(".py"):
        return [inside]
    return sorted((inside if not inside.is_symlink() else ROOT / room).rglob("*.py"))


def test_every_room_and_module_has_its_row() -> None:
    here = [
        path for path in (ROOT / "polyclinic").iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed")
    ]
    assert set(IMPORTS) == {path.name for path in here}


@pytest.mark.parametrize("room", IMPORTS)
def test_a_room_imports_what_the_page_says(room: str) -> None:
    by_file = {
        path: {name.split(".")[1] for name in imports(path) if name.startswith("polyclinic.")} for path in files(room)
    }
    for path, ours in by_file.items():
        extra = ours - IMPORTS[room] - {room}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"
    unused = IMPORTS[room] - set().union(*by_file.values())
    assert not unused, f"{room} imports no {sorted(unused)}"


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
    for room in ROOMS:
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
