"""Every game by name: its networks fit its loss, a round runs, and critics can be trained privately."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, DataError
from polyclinic.synthesis.games.builders import GAMES, make
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.layout import Layout
from polyclinic.training import classification
from tests.synthesis.central import begun, settings_of, train_centrally

LABEL = Column(name="y", kind="binary", role="label")


def layout(*columns: Column) -> Layout:
    return Layout.of(Schema(name="small", unit="record", columns=(*columns, LABEL)))


TRIAL = layout(*(Column(name=name, kind="trajectory", steps=12, bounds=(0.0, 10.0)) for name in ("a", "b", "c")))
CODES = layout(Column(name="codes", kind="code_set", categories=tuple(f"{code:03}" for code in range(20))))
PICTURE = layout(*(Column(name=f"p{pixel:02}", kind="continuous", bounds=(0.0, 1.0)) for pixel in range(64)))
WIDE = layout(
    Column(name="codes", kind="code_set", categories=tuple(f"{code:03}" for code in range(140))), *TRIAL.schema.features
)
TABLE = layout(
    Column(name="age", kind="integer", bounds=(0.0, 100.0)),
    Column(name="ward", kind="categorical", categories=("a", "b")),
)
CASES = [
    ("gan", TABLE, {}), ("gan", TRIAL, {"widths": "16,8"}), ("gan", WIDE, {}),
    ("acgan", TRIAL, {}), ("dpgan", TABLE, {}), ("dpgan", CODES, {}), ("dpgan", PICTURE, {}), ("dpgan", PICTURE, {"form": "mlp"}),
    ("ppgan", CODES, {}), ("wgan", TABLE, {}), ("wgan-gp", TABLE, {}),
]  # fmt: skip


def parameters(module: torch.nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def rows_of(at: Layout, rows: int = 24) -> Rows:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    x = np.where(
        at.numeric[: at.features], rng.uniform(-1, 1, (rows, at.features)), rng.random((rows, at.features)) < 0.3
    )
    for group in at.groups[:-1]:
        x[:, group] = np.eye(group.stop - group.start)[rng.integers(0, group.stop - group.start, rows)]
    return Rows(x, y, np.arange(rows), rows)


@pytest.mark.parametrize(("name", "at", "options"), CASES)
def test_a_private_round_of_every_sound_game(name: str, at: Layout, options: dict[str, str]) -> None:
    game = make(at, name, **options, batch="16", steps="1")
    start = begun(game, at, 0)
    classification.check(lambda: game.critic(at), start.critic, at.width)
    table = rows_of(at)
    settings = settings_of(game, None if name.startswith("wgan") else 1.0)
    played = train_centrally(game, at, table, settings, 1, np.array([0.5, 0.5]), public_patients=24.0)
    assert not played.state.diverged and played.state.steps >= 1
    assert any(not np.array_equal(value, start.critic[key]) for key, value in played.critic.items())
    again = make(at, **game.options)
    assert {k: v.shape for k, v in first_state(again, at, 0).weights.items()} == {
        k: v.shape for k, v in played.state.weights.items()
    }


def test_generated_codes_and_pixels_lie_within_their_bounds() -> None:
    for at in (CODES, PICTURE):
        game = make(at, "dpgan", form="icd" if at is CODES else "dcgan")
        z = game.generator(at)(game.latents(50, np.random.default_rng(0)), torch.arange(50) % 2).detach().numpy()
        low, high = (bound[: at.label.start] for bound in at.bounds)
        assert ((z >= low - 1e-5) & (z <= high + 1e-5)).all()


def test_a_decoder_of_public_records_begins_the_generator(tmp_path: Path) -> None:
    path = tmp_path / "decoder.safetensors"
    decoder = {"weight": np.full((20, 128), 0.25, dtype=np.float32), "bias": np.full(20, -3.0, dtype=np.float32)}
    save_file(decoder, path)
    game = make(CODES, "medgan", **{"decoder-file": str(path)})
    weights = first_state(game, CODES, 0).weights
    assert_array_equal(weights["core.body.1.weight"], decoder["weight"])
    assert set(weights) == set(first_state(make(CODES, "dpgan"), CODES, 0).weights)
    save_file({"weight": decoder["weight"][:5], "bias": decoder["bias"]}, path)
    with pytest.raises(DataError, match=r"\(20, 128\)"):
        first_state(game, CODES, 0)
    with pytest.raises(ConfigError, match="needs the option 'decoder-file'"):
        make(CODES, "medgan")


@pytest.mark.parametrize(
    ("name", "at", "options", "said"),
    [
        ("gam", TABLE, {}, "'gam' is unknown.*gan"),
        ("acgan", TABLE, {}, "trajectories of equal length"),
        ("dpgan", TABLE, {"form": "icd"}, "for codes"), ("dpgan", TABLE, {"form": "dcgan"}, "for pictures"),
        ("dpgan", TABLE, {"form": "cnn"}, "form is 'cnn'"), ("gan", TABLE, {"form": "icd"}, "no option 'form'"),
        ("gan", TABLE, {"widths": "a"}, "not of its kind"),
    ],
)  # fmt: skip
def test_a_game_that_does_not_fit_is_refused(name: str, at: Layout, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(at, name, **options)


def test_every_game_is_tried_above() -> None:
    assert {name for name, *_ in CASES} | {"medgan"} == set(GAMES)
    assert isinstance(make(TABLE), Game)
