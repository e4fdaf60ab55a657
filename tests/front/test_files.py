"""How files are written: whole and on the disk, or not at all."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from polyclinic.errors import ConfigError, DataError
from polyclinic.files import SECRET, NewFile, new_folder, sha256, write_file, write_files, write_outputs

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"new", "new", lambda path: path.write_text("new")])
def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_text("old")
    write_file(tmp_path / "a", content)
    assert (tmp_path / "a").read_text() == "new" and names(tmp_path) == ["a"]


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "a").symlink_to(tmp_path / "there")
    write_file(tmp_path / "a", "new")
    assert not (tmp_path / "a").is_symlink() and (tmp_path / "there").read_text() == "old"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_are_those_asked_for_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    def anew(path: Path) -> None:
        path.unlink()
        path.write_text("made again by the function")

    before = os.umask(umask)
    try:
        write_files({tmp_path / "public": NewFile("a", 0o644), tmp_path / "key": NewFile("b", SECRET)})
        write_file(tmp_path / "anew", anew, mode=SECRET)
        write_file(tmp_path / "plain", "c")
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)}
    assert modes == {"public": 0o644, "key": 0o600, "anew": 0o600, "plain": 0o666 & ~umask}


def test_a_secret_is_never_open_to_others_while_it_is_written(tmp_path: Path) -> None:
    seen: list[int] = []
    write_file(tmp_path / "key", lambda path: seen.append(stat.S_IMODE(path.stat().st_mode)), mode=SECRET)
    assert seen == [0o600]


def test_a_function_that_fails_leaves_the_earlier_files_and_no_other(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("halfway")

    (tmp_path / "a").write_text("old")
    with pytest.raises(RuntimeError, match="halfway"):
        write_files({tmp_path / "a": NewFile("new"), tmp_path / "b": NewFile(fails)})
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


def test_exclusive_files_replace_nothing_and_come_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError) as caught:
        write_files({tmp_path / "a": NewFile("1"), tmp_path / "b": NewFile("2")}, exclusive=True)
    assert caught.value.filename == str(tmp_path / "b") and names(tmp_path) == ["b"]
    write_file(tmp_path / "a", "1", exclusive=True)
    assert (tmp_path / "a").read_text() == "1" and (tmp_path / "a").stat().st_nlink == 1


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_file(tmp_path / "no" / "a", "1")
    assert caught.value.filename == str(tmp_path / "no" / "a")


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path) -> None:
    """No more than 4 KB can be written to a file, as where a disk or a quota is full."""
    (tmp_path / "a").write_text("old")
    code = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from pathlib import Path\nfrom polyclinic.files import write_file\n"
        "write_file(Path('a'), b'x' * 100_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 1 and b"File too large: 'a'" in done.stderr, done.stderr
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


def test_a_process_killed_while_it_writes_leaves_the_earlier_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom polyclinic.files import write_file\n"
        "def half(path):\n    path.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_file(Path('a'), half)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL and (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("durable", [True, False])
def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real(descriptor)

    def rename(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and str(args[1]).startswith(str(tmp_path)):
            order.append("rename")

    sys.addaudithook(rename)
    monkeypatch.setattr(os, "fsync", fsync)
    write_files({tmp_path / "a": NewFile("1"), tmp_path / "b": NewFile("2")}, durable=durable)
    assert order == (["file", "file", "rename", "rename", "folder"] if durable else ["rename", "rename"])


def test_a_file_in_its_place_stays_though_the_folder_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have opened it, and charged a ledger that must not go."""

    def fails(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        write_file(tmp_path / "ledger", "charged", exclusive=True)
    assert names(tmp_path) == ["ledger"]


def test_what_a_killed_process_left_a_day_ago_goes_with_the_next_write(tmp_path: Path) -> None:
    old, new, another = (tmp_path / name for name in (".partial-0123abcd.a", ".partial-4567cdef.a", ".hidden"))
    for path in (old, new, another):
        path.write_text("half")
    for path in (old, another):
        os.utime(path, (0, 0))
    write_file(tmp_path / "b", "whole")
    assert names(tmp_path) == [".hidden", new.name, "b"]


def test_a_commands_files_are_its_owners_and_replaced_only_when_asked(tmp_path: Path) -> None:
    files = {tmp_path / "a.csv": "1", tmp_path / "b.json": "2"}
    write_outputs(files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    with pytest.raises(ConfigError, match="a.csv exists already; give another name, or --force to replace it"):
        write_outputs(files)
    write_outputs({tmp_path / "a.csv": "3"}, force=True)
    assert (tmp_path / "a.csv").read_text() == "3"
    with pytest.raises(ConfigError, match=r"no/a.csv cannot be written: its folder does not exist"):
        write_outputs({tmp_path / "no" / "a.csv": "1"})


def test_a_folder_takes_its_place_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out") as beside:
        (beside / "half").touch()
        raise KeyboardInterrupt
    assert not names(tmp_path)
    with new_folder(tmp_path / "out") as beside:
        (beside / "in").mkdir()
        (beside / "in" / "a").write_text("1")
    assert (tmp_path / "out" / "in" / "a").read_text() == "1" and names(tmp_path) == ["out"]
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(DataError, match="b cannot be read: No such file or directory"):
        sha256(tmp_path / "b")
