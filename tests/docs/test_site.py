"""The documentation site is built strictly, from the repository alone, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    done = subprocess.run(
        build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there_and_what_it_links_to_outside_docs(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = (site / page.relative_to(ROOT / "docs")).with_suffix(".html")
        assert place.is_file() or (page.stem == "README" and place.with_name("index.html").is_file()), page
    assert 'href="../experiments/results/sprint/table.html"' in (site / "synthesis/reproductions.html").read_text()
    assert (site / "experiments/results/sprint/table.html").is_file() and (
        site / "experiments/results/cvsim6/cycle.svg"
    ).is_file()


def test_the_python_interface_has_signatures_and_docstrings(site: Path) -> None:
    text = (site / "reference/api/federation.html").read_text()
    assert "polyclinic.Federation.run" in text and "Train, write the run's folder" in text.replace("&#39;", "'")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]+src="([^"]+)"', page.read_text())
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="([^"]+)"', page.read_text())
        assert not [address for address in loaded if re.match("(?:https?:)?//", address)], page
