"""Every command and every Python block that the documentation shows is run, in a folder of its own; links resolve.

The pages' blocks run in their order in one fresh Python, through the same ``main`` as the installed command, so that all
of them together cost one start and each calibration once.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

from polyclinic import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.runs.folder import Run
from tests.flower.foreign import app_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if re.search(r"^```(?:sh|python)$", page.read_text(encoding="utf-8"), re.M)
)
# Pages whose runs take minutes together; `make slow` runs them.
LONG = (
    "docs/datasets/own.md", "docs/datasets/partitioners.md", "docs/effects.md", "docs/evaluation.md", "docs/flows/inference.md",
    "docs/gallery.md", "docs/models.md", "docs/objectives.md", "docs/regression.md", "docs/privacy/attacks.md",
    "docs/privacy/audit.md", "docs/privacy/central.md", "docs/privacy/secure-aggregation.md", "docs/records/imputation.md",
    "docs/start.md", "docs/strategies.md", "docs/survival.md", "docs/sweep.md", "docs/synthesis/README.md",
    "docs/synthesis/inference.md", "docs/synthesis/marginals.md", "docs/synthesis/quality.md", "docs/synthesis/review.md",
    "docs/synthesis/synthesize.md", "docs/trackers.md", "docs/tutorials/data-office.md", "docs/tutorials/method-developer.md",
    "docs/tutorials/researcher.md", "docs/tutorials/trial-statistician.md",
)  # fmt: skip
# Pages that show records of POLYCLINIC_DATA, by the folder in it.
DATA = {"docs/flows/inference.md": "heart_uci", "docs/describe.md": "heart_uci", "docs/survival.md": "ist",
        "docs/effects.md": "ist", "docs/tutorials/trial-statistician.md": "ist"}  # fmt: skip
#: A picture of the gallery: its file, the page that it shows and the heading at its top.
PICTURE = re.compile(r'\]\((gallery/\S+) "([^",]+)(?:, ([^"]+))?"\)')
# A line that begins so is not run here, because
ELSEWHERE = (
    "make ",  # .ci/run runs make's targets; this test is itself a part of `make test`
    "export ",  # it only prepares the line after it
    "flwr run ",  # tests/flower runs the bundle and real SuperNodes
    "polyclinic flower run ",  # tests/flower
    "flower-superlink ",  # a server that does not end; tests/flower starts it
    "flower-supernode ",  # the same
    "polyclinic coordinator ",  # tests/deployment runs docs/deploy/README.md and the administrator's tutorial with real processes
    "polyclinic hospital ",  # the same
    "pip install ",  # tests/cli/test_new.py installs the packages that `polyclinic new` writes
    "python -m pytest ",  # the same runs their tests
    "tensorboard ",  # a server that does not end; tests/server/test_tracking.py reads what it shows
    "docker compose ",  # needs an engine; tests/packaging checks the file
)
RUN_PAGES = """
import json, os, sys, time, traceback, types
from polyclinic.cli import main

def run(kind, code):
    if kind == "python":
        # Objects of a page are found as those of a script or a notebook are.
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "page", "exec"), vars(sys.modules["__main__"]))
        return
    sys.argv = ["polyclinic", *code]
    try:
        main()
    except SystemExit as end:
        assert not end.code, f"exit code {end.code}"

PROBLEMS = sys.argv[1]
problems = {}
for page, (folder, todo) in json.load(sys.stdin).items():
    os.chdir(folder)
    for kind, code in todo:
        began = time.monotonic()
        try:
            run(kind, code)
        except BaseException:
            problems[page] = f"{code}\\n{traceback.format_exc()}"
            break
        finally:
            print(f"{time.monotonic() - began:6.1f} s  {page}: {code!r:.90}", file=sys.stderr)
with open(PROBLEMS, "w") as file:
    json.dump(problems, file)
"""


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """(language, text) of the page's code blocks in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", text, re.S | re.M)


def steps(page: str) -> list[tuple[str, str | list[str]]]:
    """What of the page is to be run: Python blocks, and the arguments of ``polyclinic``."""
    found: list[tuple[str, str | list[str]]] = []
    for language, text in blocks(page, "sh", "python"):
        if language == "python":
            found.append(("python", text))
            continue
        for line in text.replace("\\\n", " ").splitlines():
            command = line.split("  #")[0].strip()
            if not command or command.startswith("#") or f"{command} ".startswith(ELSEWHERE):
                continue
            program, *arguments = shlex.split(command)
            assert program == "polyclinic", f"{page} shows a command that no test runs: {command}"
            found.append(("command", arguments))
    return found


def prepare(page: str, folder: Path, environment: dict[str, str]) -> None:
    """The files that the page tells its reader to write."""
    if page.endswith("researcher.md"):
        (folder / "study.toml").write_text(blocks(page, "toml")[0][1])
    if page in ("docs/models.md", "docs/objectives.md"):
        (folder / f"my{Path(page).stem}.py").write_text(blocks(page, "python")[0][1])
    if page in ("README.md", "docs/index.md", "docs/start.md"):
        (folder / "waiting.py").write_text(blocks(page, "python")[0][1])
        tables = [sys.executable, "-c", blocks("docs/datasets/own.md", "python")[0][1]]
        assert subprocess.run(tables, cwd=folder, env=environment).returncode == 0
        shutil.copy(folder / "hospitals" / "west.csv", folder / "new-patients.csv")
    if page == "docs/gallery.md":
        [tables] = [text for _, text in blocks("docs/tutorials/trial-statistician.md", "python") if "to_csv" in text]
        assert subprocess.run([sys.executable, "-c", tables], cwd=folder, env=environment).returncode == 0
    if page == "docs/flower.md":
        app_folder("own_loop", folder).rename(folder / "my-app")
    if page.endswith("method-developer.md"):
        (folder / "mymethods.py").write_text("\n".join(text for _, text in blocks(page, "python")))
    if page.endswith("administrator.md"):
        (folder / "schema.toml").write_text(blocks(page, "toml")[0][1])


def missing_records(page: str) -> str:
    """Which records the page needs that are not here, in one sentence; empty where none are missing."""
    folder = DATA.get(page)
    if folder is None or (Path(os.environ.get("POLYCLINIC_DATA", "")) / folder).is_dir():
        return ""
    return f"POLYCLINIC_DATA names no folder with {folder}, whose records {page} shows"


def pages_under_test(items: list[pytest.Item]) -> list[str]:
    """The pages that this session's tests are of, but for those whose records are not here."""
    pages = [item.callspec.params["page"] for item in items if item.name.startswith("test_everything_that")]  # type: ignore[attr-defined]
    return [page for page in pages if not missing_records(page)]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    """Where each page was run."""
    return {}


@pytest.fixture(scope="module")
def problems(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]
) -> dict[str, str]:
    """What went wrong, by page; every page that a test is of is run in an empty folder of its own."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    todo = {}
    for page in pages_under_test(request.session.items):
        if found := steps(page):
            folder = folders[page] = tmp_path_factory.mktemp("page")
            prepare(page, folder, environment)
            todo[page] = (str(folder), found)
    result = tmp_path_factory.mktemp("result") / "problems.json"
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN_PAGES, str(result)], input=json.dumps(todo), env=environment, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return dict(json.loads(result.read_text()))


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in PAGES])
def test_everything_that_a_page_shows_runs(page: str, problems: dict[str, str]) -> None:
    if missing := missing_records(page):
        pytest.skip(missing)
    assert page not in problems, problems[page]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/tutorials/trial-statistician.md"])
def test_everything_that_the_trial_statistician_reads_is_what_the_commands_find(
    page: str, problems: dict[str, str], folders: dict[str, Path], tmp_path: Path
) -> None:
    if missing := missing_records(page):
        pytest.skip(missing)
    assert page not in problems, problems[page]
    runs = sorted(Run.all_in(folders[page] / "runs"), key=lambda run: run.name)
    regression, meta, survival, cox, stroke, dead, adjusted = (RunResult.read(run.path) for run in runs)

    def exact(result: RunResult) -> RunResult:
        """The same run without privacy, of hospitals that may answer it."""
        config = result.folder.config()
        keys = {
            "privacy.dp": False,
            "partitioner": config.partitioner,
            "data.label": config.data.label,
            "pictures": False,
        }
        federation = Federation.from_dataset(config.dataset, out=str(tmp_path))
        return federation.run(task=config.task, task_options=config.task_options, **keys)

    def within(values: Iterable[float], form: str) -> str:
        value, low, high = (f"{each:{form}}".replace("-", "−") for each in values)
        return f"{value} ({low} to {high})"

    shown = [f"all {len(regression.sites)} hospitals add their noise together"]
    sides = [result.tables["ratios"].set_index("Term") for result in (exact(regression), regression)]
    for term, name, form in (
        ("rxasp[T.Y]", "aspirin", ".2f"), ("age", "a year of age", ".3f"), ("C(sex)[T.M]", "male", ".2f"),
        ("rconsc[T.D]", "drowsy, beside fully alert", ".1f"),
    ):  # fmt: skip
        shown.append(f"| {name} | {' | '.join(within(side.loc[term], form) for side in sides)} |")
    shown.append(f"| unconscious | {within(sides[0].loc['rconsc[T.U]'], '.0f')} | nothing can be said |")
    assert "rconsc[T.U]" not in sides[1].index
    spread = meta.tables["heterogeneity"].set_index("Term")["I²"]
    shown.append(
        f"On aspirin they do (I² is {spread['rxasp[T.Y]']:.0f}), on age less ({spread['age']:.0%})".replace("%", " %")
    )
    alive = survival.tables["survival"].set_index(["Group", "Until (days)"])["Survival"] * 100
    shown += [
        f"After 14 days {alive['N', 14]:.1f} % are alive of those without aspirin and {alive['Y', 14]:.1f} % of those with it, "
        f"after 180 days {alive['N', 180]:.1f} % and {alive['Y', 180]:.1f} %; the log-rank test has p = "
        f"{survival.summary['analysis']['numbers']['log-rank']['p']:.2f}."
    ]
    ratio = cox.tables["ratios"].set_index("Term")
    of_age = within(ratio.loc["age"], ".2f")
    shown.append(f"hazard ratio is {within(ratio.loc['rxasp[T.Y]'], '.2f')}, that of a year of age {of_age}")
    for outcome, result, form in (("14 days | 2.8, 3.9", stroke, ".2f"), ("at 6 months | 62.2, 63.5", dead, ".1f")):
        (risk, *_), (other, *_), own = 100 * result.tables["effect"].iloc[:3, 1:4].to_numpy()
        free = 100 * exact(result).tables["effect"].iloc[2, 1:4].to_numpy(float)
        shown.append(f"{outcome} | {risk:{form}}, {other:{form}}, {within(own, '.2f')} | {within(free, '.2f')} |")
    own, simple = (100 * result.tables["effect"].iloc[2, 1:5].to_numpy(float) for result in (adjusted, dead))
    shown.append(
        f"The difference is {within(own[:3], '.2f').replace(' (', ' % (')}: its standard error falls from {simple[3]:.2f} % to "
        f"{own[3]:.2f} %"
    )
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert not [part for part in shown if part not in text]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/gallery.md"])
def test_everything_that_the_gallery_shows_is_small_and_of_a_page_that_its_commands_write(
    page: str, problems: dict[str, str], folders: dict[str, Path]
) -> None:
    assert page not in problems, problems[page]
    pictures = PICTURE.findall((ROOT / page).read_text(encoding="utf-8"))
    sizes = [(ROOT / "docs" / file).stat().st_size for file, _, _ in pictures]
    assert len(pictures) == 9 and max(sizes) < 80_000 and sum(sizes) < 600_000
    for _, shown, heading in pictures:
        [path] = folders[page].glob(shown)
        assert not heading or re.search(rf"<h[23]>{heading}</h[23]>", path.read_text(encoding="utf-8")), shown


def test_commands_name_data_sets_that_are_installed() -> None:
    catalogue = (ROOT / "docs/datasets/README.md").read_text(encoding="utf-8")
    extra = re.findall(r"^\| \[`([\w-]+)`\]", catalogue.split("polyclinic-studies")[1], re.M)
    named = [(page, text) for page in PAGES for _, text in blocks(page, "sh", "python")]
    used = {page for page, text in named if re.search(rf"dataset\W+(?:{'|'.join(extra)})\b", text)}
    assert len(extra) == 5 and used == {f"docs/datasets/{name}.md" for name in ("mimic-hf", "sprint")}


def test_the_tutorials_have_something_to_run() -> None:
    for name in ("researcher", "administrator", "method-developer", "trial-statistician"):
        assert steps(f"docs/tutorials/{name}.md"), name


def anchors(page: Path) -> set[str]:
    """The names to which a link into the page may lead: its headings', as the site forms them, and those given by hand."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), re.M)
    return {slugify(case="lower")(heading, "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


def test_links_between_pages_resolve() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments/results").rglob("*.md")]
    wrong = []
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            if "://" in target or target.startswith("mailto:"):
                continue
            place = page.parent / target if target else page
            if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not wrong
