"""The commit of the code that an experiment ran, where it lies in a checkout."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def commit_of(folders: Iterable[Path]) -> str | None:
    """The commit of the checkout in which the packages' ``folders`` lie, with ``-dirty`` where their files differ from it.

    ``None`` where they lie in none, as installed packages do.
    """
    git, listed = shutil.which("git"), [folder.resolve() for folder in folders]
    if git is None or not listed:
        return None

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([git, "-C", str(listed[0]), *words], capture_output=True, text=True, check=False)  # noqa: S603

    paths = [str(folder) for folder in listed]
    # An environment inside somebody's checkout is not part of it.
    if ask("ls-files", "--error-unmatch", "--", *paths).returncode:
        return None
    head = ask("rev-parse", "--short=8", "HEAD")
    changed = ask("status", "--porcelain", "--", *paths)
    if head.returncode or changed.returncode:
        return None
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
