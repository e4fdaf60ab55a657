"""Hooks of the documentation site: what pages link to outside docs/ becomes a page or a file of the site.

Pages link as files of the repository do, so that they can be read in a clone too. In the site docs/ is the root, and
what lies beside it (the tables and figures of experiments/, an example's README) keeps its path.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to outside docs/, and what those pages link to in turn."""
    unread = [(f"docs/{file.src_uri}", Path(str(file.abs_src_path))) for file in files.documentation_pages()]
    while unread:
        path, place = unread.pop()
        for _, target in LINK.findall(place.read_text(encoding="utf-8")):
            linked = _in_repository(path, target)
            if linked.startswith("docs/") or not (ROOT / linked).is_file() or files.get_file_from_path(linked):
                continue
            files.append(File.generated(config, linked, abs_src_path=str(ROOT / linked)))
            if linked.endswith(".md"):
                unread.append((linked, ROOT / linked))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository as links within the site."""
    uri = page.file.src_uri
    path = f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri

    def moved(link: re.Match[str]) -> str:
        linked = _in_repository(path, link[2]).removeprefix("docs/")
        return link[1] + os.path.relpath(linked, posixpath.dirname(uri) or ".")

    return LINK.sub(moved, markdown)


def _in_repository(path: str, target: str) -> str:
    """The path in the repository of what the file at ``path`` links to as ``target``."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
