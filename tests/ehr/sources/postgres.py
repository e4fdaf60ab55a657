"""A real PostgreSQL server in a folder of its own, reached by a Unix socket only; it refuses whoever has no password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "hunter2-canary"


@dataclass(frozen=True)
class Server:
    """``url`` is of the one database, without the password that ``password_file`` holds."""

    url: str
    folder: Path
    password_file: Path

    def execute(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user="owner", password=PASSWORD, dbname="postgres", autocommit=True
        ) as c:
            for statement in statements:
                c.execute(statement)


@contextmanager
def running_server() -> Iterator[Server]:
    """Skips, with the reason, where PostgreSQL or its driver is not installed."""
    places = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    path = os.pathsep.join([os.environ.get("PATH", ""), *places])
    initdb, postgres = shutil.which("initdb", path=path), shutil.which("postgres", path=path)
    if initdb is None or postgres is None:
        pytest.skip("no PostgreSQL server here: neither initdb nor postgres is on PATH or under /usr/lib/postgresql")
    pytest.importorskip("psycopg", reason="no psycopg here: install polyclinic[postgresql]")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    as_user: dict[str, object] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        as_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        shutil.chown(folder, "nobody", "nogroup")
    secret = folder / "password"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o644)
    data = folder / "data"
    options = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **as_user}
    try:
        made = subprocess.run(
            [initdb, "-D", data, "-U", "owner", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "-E", "UTF8",
             "--locale=C"], text=True, check=False, **options,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        server = subprocess.Popen(
            [postgres, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=32MB"],
            **{**options, "stderr": subprocess.DEVNULL},
        )  # fmt: skip
        try:
            _wait(server, folder)
            yield Server(f"postgresql://owner@/postgres?host={folder}", folder, secret)
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], folder: Path) -> None:
    import time

    import psycopg

    for _ in range(300):
        assert server.poll() is None, "the server ended"
        try:
            psycopg.connect(host=str(folder), user="owner", password=PASSWORD, dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")
