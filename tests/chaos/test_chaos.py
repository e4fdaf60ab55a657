"""Every kind of fault, some at once, against a coordinator and three hospitals; `python -m tests.chaos` has random schedules."""

from collections.abc import Iterator

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.place import NAMES, Place, made
from tests.chaos.schedules import Schedule, carry_out, strike
from tests.deployment.conftest import Cli

pytestmark = [pytest.mark.flower, pytest.mark.slow]
# The first at the first hospital, and so on.
TOGETHER = (
    ("ClientApp killed in a round", "database gone in a query", "budget spent before"),
    ("SuperLink killed", "messages replayed", "clock moved"),
    ("checkpoint damaged", "disk full", "database down"),
    ("ServerApp killed", "network cut", "database slow"),
    ("SuperNode killed", "hospital late", "database silent"),
    ("any process of a hospital killed", "network silent", "two runs at once"),
    ("hospital paused", "approval asked for", "run stopped by the coordinator"),
    ("run given twice", "run stopped at a hospital", "hospital upgraded"),
    ("home restored",),
)


@pytest.fixture(scope="module")
def place(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with made(tmp_path_factory.mktemp("chaos"), cli) as found:
        yield found


@pytest.mark.parametrize("faults", TOGETHER)
def test_no_run_and_no_epsilon_is_lost(place: Place, faults: tuple[str, ...]) -> None:
    strikes = tuple(strike(fault, seed, name) for seed, (fault, name) in enumerate(zip(faults, NAMES, strict=False)))
    story = carry_out(place, Schedule(1, strikes))
    assert not story.complaints, story
    assert set(story.struck) == set(faults)
    if left_out := [f"{fault}: {what}" for fault, what in story.struck.items() if "left out: " in what]:
        pytest.skip(f"held, but not all was struck: {'; '.join(left_out)}")


def test_every_kind_of_fault_is_among_them() -> None:
    assert sorted(sum(TOGETHER, ())) == sorted(FAULTS)
