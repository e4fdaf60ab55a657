"""A process that stands by draws what this one would have drawn; where it fails, or there is none, this one draws."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyclinic.evaluation.report import artist

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="a core of its own is needed"
)
# In a Python of its own, whose threads are none of pytest's.
CODE = """
import os, sys
from functools import partial
from pathlib import Path
from polyclinic.evaluation.report import artist
def draw(name, folder):
    assert name != str(folder)
    return {name: (os.getpid(), str(folder))}
artist.stand_by(partial(draw, "a"), partial(draw, "b"))
artist.stand_by(partial(draw, "a"), partial(draw, "b"))
first, second = artist.ask(Path(sys.argv[1]))(), artist.ask(Path("again"))()
print(first and (len({os.getpid(), first["a"][0], first["b"][0]}), first["b"][1]), second)
"""


@pytest.mark.parametrize(("folder", "said"), [("there", "(3, 'there') None"), ("a", "None None"), ("b", "None None")])
def test_it_draws_once_elsewhere_or_leaves_it_to_the_run(folder: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, folder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


def test_nobody_stands_by_unless_asked() -> None:
    assert artist.ask(Path("there"))() is None
