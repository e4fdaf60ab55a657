"""Every kind of fault once, against a coordinator and three hospitals as processes; `python -m tests.chaos` has random ones."""

from collections.abc import Iterator

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.place import Place, made
from tests.chaos.schedules import carry_out, single
from tests.deployment.conftest import Cli

pytestmark = [pytest.mark.flower, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with made(tmp_path_factory.mktemp("chaos"), cli) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS)
def test_no_run_and_no_epsilon_is_lost(place: Place, fault: str) -> None:
    story = carry_out(place, single(fault, 1))
    print(story)
    assert not story.complaints
