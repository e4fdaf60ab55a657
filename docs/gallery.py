"""``python docs/gallery.py`` runs the commands of docs/gallery.md and takes its pictures with an installed Chromium.

The title of each picture names the page that it shows and, after a comma, the heading at its top.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from polyclinic.evaluation.page import STYLE

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.docs.test_docs import PICTURE, prepare, steps  # noqa: E402
from tests.evaluation.browser import Tab, browser  # noqa: E402

PAGE = "docs/gallery.md"
WIDTH, HEIGHT = 1024, 1000
# A table for papers has no style of its own.
DRESS = f"""document.querySelector("main") || document.head.append(
  Object.assign(document.createElement("style"), {{textContent: {json.dumps(STYLE + "body { padding: 1.5rem; }")}}}))"""
TOP = """((heading) => {
  const place = [...document.querySelectorAll("h2, h3")].find(element => element.textContent === heading);
  return place ? place.getBoundingClientRect().top - 16 : 0;
})"""
END = 'document.querySelector("main, table").getBoundingClientRect().bottom + 24'


def picture(tab: Tab, page: Path, heading: str) -> bytes:
    """A part of the page as WebP, from the heading on, or from the top where the heading is empty."""
    tab.open(page.as_uri())
    tab.value(DRESS)
    top = tab.value(f"{TOP}({json.dumps(heading)})")
    height = min(HEIGHT, tab.value(END) - top)
    clip = {"x": 0, "y": top, "width": WIDTH, "height": height, "scale": 1}
    taken = tab.call("Page.captureScreenshot", format="webp", quality=80, captureBeyondViewport=True, clip=clip)
    return base64.b64decode(taken["data"])


def main() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as pages, TemporaryDirectory(ignore_cleanup_errors=True) as home:
        prepare(PAGE, Path(pages), environment)
        for _, arguments in steps(PAGE):
            subprocess.run([sys.executable, "-m", "polyclinic", *arguments], cwd=pages, env=environment, check=True)
        with browser(Path(home)) as tab:
            tab.call(
                "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False
            )
            for file, page, heading in PICTURE.findall((ROOT / PAGE).read_text(encoding="utf-8")):
                [path] = Path(pages).glob(page)
                (ROOT / "docs" / file).write_bytes(picture(tab, path, heading))


if __name__ == "__main__":
    main()
