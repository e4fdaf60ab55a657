"""The arrows between the rooms (docs/architecture.md): who may import whom, read from the source itself."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(?:polyclinic/)?([\w.]+)/?` \|.*\| ?([\w, ]*?) ?\|$", re.M)
PAGE = (ROOT / "docs/architecture.md").read_text()
#: By room or module: which others it imports, from the page's two tables.
IMPORTS = {name: {*filter(None, listed.split(", "))} for name, listed in ROW.findall(PAGE)}
#: What everybody may import: the lowest line of the page's picture.
(GROUND,) = (set(line.split()) for line in re.findall(r"^\d+ +(.*)\n```$", PAGE, re.M))
ROOMS = [name for name in IMPORTS if not name.endswith(".py")]
# An object that the registry names as text and imports when it is asked for; Flower's entries are loaded by Flower.
PLACE = re.compile(r"polyclinic\.(?!client_app|server_app)[\w.]+:\w*")
FLOWER_FREE = (
    "ehr",
    "privacy",
    "models",
    "inference",
    "synthesis",
    "training",
    "programs",
    "runs",
    "evaluation",
    "releases",
)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module} if node.module != "polyclinic" else {f"polyclinic.{alias.name}" for alias in node.names}
            )
        elif isinstance(node, ast.Constant) and PLACE.fullmatch(str(node.value)):
            found.add(str(node.value).partition(":")[0])
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


def test_no_folder_holds_more_than_fifteen_modules() -> None:
    inside = [path for room in (*ROOMS, "../tests", "../experiments", "../benchmarks") for path in files(room)]
    inside += (ROOT / "polyclinic").glob("*.py")
    modules = Counter(path.parent.resolve() for path in inside if ".venvs" not in path.parts)
    crowded = {str(folder.relative_to(ROOT)): number for folder, number in modules.items() if number > 15}
    assert not crowded


@pytest.mark.parametrize("room", IMPORTS)
def test_a_room_imports_what_the_page_says(room: str) -> None:
    by_file = {
        path: {name.split(".")[1] for name in imports(path) if name.startswith("polyclinic.")} for path in files(room)
    }
    for path, ours in by_file.items():
        extra = ours - IMPORTS[room] - GROUND - {room}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"
    unused = IMPORTS[room] - set().union(*by_file.values())
    assert not unused, f"{room} imports no {sorted(unused)}"


@pytest.mark.parametrize("room", FLOWER_FREE)
def test_the_library_knows_nothing_of_flower(room: str) -> None:
    for path in files(room):
        assert not any(name.split(".")[0] in ("flwr", "ray") for name in imports(path)), path.relative_to(ROOT)


# What a configuration says of the kind of its run, and a task's name compared with another.
KIND = re.compile(r"\bconfig\.kind\b|\bkind\.name\b")
TASK = re.compile(r"config\.task (==|!=|in|not in) |[\"']task[\"']\)? (==|!=|in|not in) ")
# The sections of programs, each with its kind.
SECTIONS = ROOT / "polyclinic/config/programs"
# A key of the section of one kind, or a question which kind it is.
OF_ONE_KIND = re.compile(r"config\.(game|sums|density|posterior|synthesis|one_release|convex)\b")


@pytest.mark.parametrize("room", sorted(IMPORTS.keys() - {"programs"}))
def test_only_programs_and_their_sections_know_which_kind_a_run_is(room: str) -> None:
    for path in files(room):
        code = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if " import " not in line)
        assert not TASK.search(code) or path.parent == SECTIONS, path.relative_to(ROOT)
        assert not OF_ONE_KIND.search(code) or path.parent == SECTIONS, path.relative_to(ROOT)
        # The configuration asks a kind what it reads and takes, and nobody but its program which one it is.
        assert not (re.search(r"\bkind\.name\b", code) if room == "config" else KIND.search(code)), path.relative_to(
            ROOT
        )


@pytest.mark.parametrize("room", sorted(IMPORTS.keys() - {"cli"}))
def test_no_function_has_more_than_seven_parameters(room: str) -> None:
    """What belongs together is one value; a command's options are its parameters, and these compiled loops take arrays alone."""
    loops = {"_product", "_sums", "tile"} if room == "loops" else set()
    for path in files(room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name not in loops:
                parameters = {each.arg for each in ast.iter_child_nodes(node.args) if isinstance(each, ast.arg)}
                assert len(parameters - {"self", "cls"}) <= 7, f"{path.relative_to(ROOT)}: {node.name}"


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
            if path.match(
                "sim/randomness.py"
            ):  # it keeps the state of a Flower app's own draws apart, and draws nothing
                continue
            assert not imports(path) & {"random", "numpy.random"}, f"{path.relative_to(ROOT)} imports global draws"
            of_an_app = path.match("sim/*.py") and path.name in ("calls.py", "grid.py", "simulation.py")
            assert of_an_app or "polyclinic.sim.randomness" not in imports(path), path.relative_to(ROOT)
            for name in called(path):
                anew = (
                    path.name in ("executor.py", "workers.py") and name == "np.random.seed"
                )  # from the system, after a fork
                allowed = anew or re.fullmatch(f"{of_their_own}|{inside_a_fork}", name)
                assert allowed or not re.fullmatch(shared, name), f"{path.relative_to(ROOT)} calls {name}"


def test_entry_modules_import_the_package_first() -> None:
    for name in ("server_app", "client_app"):
        tree = ast.parse((ROOT / "polyclinic" / f"{name}.py").read_text())
        first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        assert isinstance(first, ast.Import) and first.names[0].name == "polyclinic"


def loaded(code: str) -> list[str]:
    """The names of all modules that are there after the code has run in a Python of its own."""
    code = f"import json, sys\n{code}\nprint()\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_a_superlink_starts_without_what_only_hospitals_need() -> None:
    modules = set(loaded("import polyclinic.deployment.flower.superlink"))
    assert not {"pandas", "torch", "scipy", "dp_accounting"} & modules and "polyclinic.lines" in modules


def test_a_run_starts_without_what_only_some_runs_or_their_ends_need() -> None:
    slow = {"jinja2", "matplotlib", "opacus", "ray", "sklearn"}
    assert not slow & set(loaded("import polyclinic.federation, polyclinic.client_app"))


def lines_of_code(text: str) -> int:
    """The lines of a module that are not of a docstring."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node) is not None
    ]
    return len(text.splitlines()) - sum(doc.end_lineno - doc.lineno + 1 for doc in docstrings if doc.end_lineno)


def test_a_hospital_loads_what_a_message_needs_and_no_games_flows_or_marginals() -> None:
    ours = [name for name in loaded("import polyclinic.client_app") if name.split(".")[0] == "polyclinic"]
    lines = sum(lines_of_code(Path(str(find_spec(name).origin)).read_text()) for name in ours)  # type: ignore[union-attr]
    assert len(ours) <= 130 and lines <= 12_650
    train = "import pathlib, tempfile\nfrom tests.client import test_hospital as t\n"
    train += "assert t.train(t.make_hospital(pathlib.Path(tempfile.mkdtemp()))).has_content()"
    for name in (*ours, *loaded(train)):
        assert not re.match(r"polyclinic\.(synthesis\.(games|flows|marginals|methods)|inference|server)\b", name), name


def loaded_by(*arguments: str) -> list[str]:
    """The names of all modules that are there after the command has run in a Python of its own."""
    command = f"from polyclinic.cli import main\nsys.argv = ['polyclinic', *{arguments!r}]"
    return loaded(f"{command}\ntry:\n    main()\nexcept SystemExit: pass")


def test_the_help_needs_no_module_but_typer_and_rich() -> None:
    more = set(loaded_by("--help")) - set(loaded("import typer, rich"))
    ours = {"polyclinic", "polyclinic.cli", "polyclinic.cli.commands", "polyclinic.cli.terminal", "polyclinic.errors"}
    assert more == {*ours, "click._textwrap", "gc"}


def test_the_list_of_datasets_is_printed_without_torch() -> None:
    assert not {"torch", "flwr", "ray", "dp_accounting", "scipy"} & set(loaded_by("datasets"))
