"""What a run of a published game says that it guarantees, in its summary."""

from pathlib import Path
from typing import Any

import pytest

from polyclinic import Federation
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic_studies.published_games import games
from polyclinic_studies.published_games.claims import stated_noise
from polyclinic_studies.published_games.training import AsPublished
from tests.synthesis.tables import MIXED

LAYOUT = Layout.of(MIXED)
SETTING = (64 / 6_000, 5, 10_000, 1e-5)


def promised(game: Game, *setting: Any) -> str:
    assert game.published is not None
    return game.published.guarantee(*setting)


def test_theorems_state_five_where_nothing_or_next_to_nothing_holds() -> None:
    dpgan = promised(games.dpgan(LAYOUT), [6_000], *SETTING)
    assert "would state epsilon 5 at delta 1e-05" in dpgan and "no epsilon is true" in dpgan
    ppgan = promised(games.ppgan(LAYOUT), [6_000], *SETTING)
    assert "would state epsilon 5 at delta 1e-05" in ppgan and "turn a batch's clipped average round" in ppgan
    true = float(ppgan.split("keep an epsilon of ")[1].split(" and")[0])
    assert 1e5 < true < 1e9 and "50,000 steps" in ppgan
    assert "nobody" in promised(games.wgan(LAYOUT), [100], *SETTING)
    for said in (dpgan, ppgan):
        assert said.endswith("nothing was charged to a ledger.")


def test_batches_of_one_clipped_patient_are_known_steps() -> None:
    said = AsPublished("", 2e-4, 1e-4).guarantee([500, 900], 1 / 6_000, 10, 60, 1e-5)
    true = epsilon(dpsgd_event(1 / 500, 2.0, 600), 1e-5, "rdp")
    assert f"epsilon {true:.2g} at delta 1e-05" in said and "one is always drawn" in said


def test_noise_is_that_of_the_publications() -> None:
    dpgan, ppgan = (game(LAYOUT).published for game in (games.dpgan, games.ppgan))
    assert isinstance(dpgan, AsPublished) and isinstance(ppgan, AsPublished)
    assert dpgan.noise * 8 == pytest.approx(stated_noise(5.0, 64 / 6_000)) and dpgan.batch_clip is None
    assert ppgan.batch_clip == 1e-2 and ppgan.noise == pytest.approx(1e-2 * stated_noise(5.0, 64 / 6_000))


@pytest.mark.parametrize("model", ["dpgan", "ppgan"])
def test_a_run_as_published_says_what_it_guarantees(model: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "task": "synthesis",
        "model": f"{model}-paper",
        **games.SETTINGS[f"{model}-paper"],
        "sites": 2,
        "rounds": 2,
        "synthesis.rows": 50,
    }
    federation = Federation.from_dataset("trial", out=str(tmp_path))
    with pytest.raises(ConfigError, match="keeps no epsilon"):
        federation.run(**options)
    summary = federation.run(**options, privacy={"dp": False}, synthesis={"baselines": False, "quality": False}).summary
    said = summary["synthesis"]["guarantee"]
    assert summary["synthesis"]["finished"] and "states an epsilon" in said and "With this run's noise" in said
    assert summary["privacy"]["epsilon"] is None
