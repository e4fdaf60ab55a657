"""A server that lies: questions, generators and requests that would let one patient move more than the charge says."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.privacy import sums
from polyclinic.programs.games import Games
from polyclinic.synthesis.certificate import NO_GUARANTEE, SHARED, certificate, guarantee_of
from polyclinic.synthesis.games.builders import make as make_game
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.method import Marginals, make
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import clipped_total
from polyclinic.training.synthesis import GameTask, SumsTask
from polyclinic.types import Arrays, Floats, Ints
from polyclinic.wire.messages import QUESTION, SelectRequest
from polyclinic_studies.published_games.games import wgan
from polyclinic_studies.published_games.training import AsPublished
from tests.client.test_hospital import STRICT, context, make_hospital, message
from tests.synthesis.tables import MIXED, mixed, rows_of

LAYOUT = Layout.of(MIXED)
POLICY = f'{STRICT}allowed-tasks = ["synthesis", "statistics"]\nallowed-models = ["gan", "logistic"]\n'


def asked(method: Marginals, merged: np.ndarray, pairs: np.ndarray) -> SumsTask:
    return SumsTask(method).with_question({"round": np.array([3]), "merged": merged, "pairs": pairs})


def test_a_question_cannot_write_one_patients_cells_into_anothers_vector() -> None:
    method = make(LAYOUT)
    sizes, label = method.table.sizes, method.table.starts[-1]
    merged, pairs = np.concatenate([np.arange(size) for size in sizes]), np.array([[0, 0], [len(sizes) - 1] * 2])
    asked(method, merged, pairs)
    # A code below 0 lands in an earlier patient's vector: 400 patients' sum moved by 36, or failed if it was the first's.
    for code in (-1, -196 * 5, int(sizes.sum())):
        changed = merged.copy()
        changed[label + 1] = code
        with pytest.raises(ConfigError):
            asked(method, changed, pairs)
    for wrong in (merged.astype(float), merged[:-1], np.append(merged, 0)):
        with pytest.raises(ConfigError):
            asked(method, wrong, pairs)
    for wrong in (pairs - 1, pairs + 1, pairs.astype(float), np.zeros((2, 3), dtype=np.int64)):
        with pytest.raises(ConfigError):
            asked(method, merged, wrong)
    groups = {"round": np.array([2]), "groups": np.where(np.arange(len(merged)) == label + 1, -1, merged)}
    with pytest.raises(ConfigError):
        SumsTask(method).with_question(groups)


class _Mixing(nn.Module):
    """A row's features tell how common the label is among the rows beside it."""

    def __init__(self, columns: int, latent: int, remembers: bool = False) -> None:
        super().__init__()
        self.linear, self.remembers, self.seen = nn.Linear(latent, columns), remembers, torch.zeros(())

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        seen, self.seen = self.seen, label.double().mean()
        return self.linear(latent) + (seen if self.remembers else self.seen).to(latent)


def mixing(remembers: bool) -> Game:
    game = make_game(LAYOUT, "gan")
    return replace(game, core=lambda layout: _Mixing(layout.label.start, game.latent, remembers))


@pytest.mark.parametrize(("remembers", "words"), [(False, "mixes rows"), (True, "mixes rows|remembers rows")])
def test_a_generator_that_mixes_patients_labels_is_refused(remembers: bool, words: str) -> None:
    game = mixing(remembers)
    with pytest.raises(ConfigError, match=words):
        GameTask(game, LAYOUT).with_question(first_state(game, LAYOUT, 0).weights)


@pytest.mark.parametrize("name", ["gan", "dpgan", "wgan"])
def test_generators_that_keep_rows_apart_are_taken(name: str) -> None:
    game = make_game(LAYOUT, name)
    GameTask(game, LAYOUT).with_question(first_state(game, LAYOUT, 0).weights)


def select(hospital: Path, config: RunConfig, judges: int = 3) -> Any:
    sent = message(SelectRequest(run="r", site=0, round=1, selected=1, epsilon=0.5), "query.select")
    arrays = {"weight": np.zeros((judges, 2, 2)), "bias": np.zeros((judges, 2))}
    sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return app(sent, context(hospital, config))


def test_a_choice_is_made_for_a_game_alone_and_of_no_more_than_the_policy_lets_in(tmp_path: Path) -> None:
    # Under another task's name a policy without synthesis answered, even of records that chained equations had mixed.
    game = RunConfig.build({"task": "synthesis", "model": "gan", "synthesis.candidates": 2})
    hospital = make_hospital(tmp_path, f"{POLICY}most-parameters = 17\n")
    mixed = RunConfig.build({"data.imputation": "mice", "privacy.dp": False})
    for config, words in (
        (RunConfig(), "only a game of task 'synthesis'"),
        (mixed, "only a game of task 'synthesis'"),
        (RunConfig.build({"task": "synthesis"}), "only a game of task 'synthesis'"),
        (RunConfig.build({"task": "synthesis", "model": "gan"}), "only a game of task 'synthesis'"),
        (game, "18 parameters"),
    ):
        assert words in (select(hospital, config).error.reason or "")
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert not select(hospital, game, judges=2).has_error()


def test_noise_on_averages_is_never_called_private() -> None:
    config = RunConfig.build(
        {"task": "synthesis", "model": "tests.synthesis.test_attacks:published", "synthesis.kind": "game"}
    )
    with pytest.raises(ConfigError, match="keeps no epsilon"):
        Games(config).game(LAYOUT)


def published(layout: Layout) -> Game:
    return replace(make_game(layout, "gan"), published=AsPublished("", noise=1.0))


def narrow(layout: Layout, bias: float = 0.0) -> Game:
    """A stranger's game that begins as one of ours."""
    return replace(make_game(layout, "gan"), spread=0.9)


def test_a_strangers_game_is_made_again_by_the_stranger() -> None:
    name = "tests.synthesis.test_attacks:narrow"
    config = RunConfig.build(
        {"task": "synthesis", "model": name, "synthesis.kind": "game", "synthesis.options": "bias=0.5"}
    )
    game = Games(config).game(LAYOUT)
    drawn = GeneratedRows(LAYOUT, game, (first_state(game, LAYOUT, 0).weights,), np.ones(LAYOUT.classes))
    assert drawn.options()["game"] == name
    again = GeneratedRows.load(LAYOUT, drawn.arrays(), drawn.options())
    assert again.game.spread == 0.9
    with pytest.raises(TypeError, match="makes no Game"):
        GeneratedRows.load(LAYOUT, drawn.arrays(), {"game": "builtins:repr", "generators": 1})


@dataclass(frozen=True)
class _Ranked:
    """Counts patients before each one: what the first one adds is told by all later ones' vectors."""

    layout: Layout = LAYOUT
    name: str = "ranked"
    rounds: int = 1
    numbers: int = 1

    def size(self, round: int, question: Arrays) -> int:
        return self.numbers

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        return np.arange(patients, dtype=np.float64)[:, None] % 2


def test_a_method_that_mixes_patients_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixes patients"):
        SumsTask(_Ranked()).with_question({"round": np.array([1])})  # type: ignore[arg-type]


def test_a_method_whose_vectors_are_not_of_the_size_that_it_says_is_refused() -> None:
    @dataclass(frozen=True)
    class Ones(_Ranked):
        def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
            return np.ones((patients, 1))

    ones: Any = Ones
    SumsTask(ones()).with_question({"round": np.array([1])})
    with pytest.raises(ConfigError, match="sums 1 numbers, but says that it sums 2"):
        SumsTask(ones(numbers=2)).with_question({"round": np.array([1])})


def test_a_choice_of_single_hospitals_is_not_among_what_noise_in_sums_covers() -> None:
    secure = {"secure.aggregation": True, "secure.noise": 1.0, "privacy.patients-per-site": 100, "privacy.dp": False}
    game = {"task": "synthesis", "model": "gan", "sites": 5} | secure
    RunConfig.build(game)
    with pytest.raises(ConfigError, match="leaves by itself"):
        RunConfig.build(game | {"synthesis.candidates": 2})


@pytest.mark.parametrize("shared", [True, False])
def test_a_certificate_says_on_whom_its_epsilon_rests(shared: bool) -> None:
    private = {"epsilon": 1.0, "delta": 1e-5, "unit": "patient", "relation": "add-remove", "accountant": "pld"}
    summary = {
        "privacy": private | {"composition": "one"},
        "metrics": {"sites": {}},
        "shared_noise": shared,
    }
    said = certificate(summary, "run", {}, {"sets": 1, "inference": {"measured_together": []}})["statement"]
    assert (SHARED in said) is shared


def test_a_games_own_words_never_stand_for_what_the_run_spent() -> None:
    private = {"epsilon": 3.0, "delta": 1e-5, "unit": "patient", "relation": "add-remove", "accountant": "pld"}
    own = {"synthesis": {"guarantee": "epsilon 0.1"}, "metrics": {"sites": {}}}
    summary = {"privacy": private | {"composition": "one"}} | own
    assert "epsilon 3 at" in guarantee_of(summary) and "0.1" not in guarantee_of(summary)
    bare = {"privacy": dict.fromkeys(private) | {"central": None}} | own
    assert guarantee_of(bare).startswith(NO_GUARANTEE)


def test_a_published_game_says_in_the_summary_what_it_really_guarantees() -> None:
    config = RunConfig.build({"task": "synthesis", "model": "wgan-paper", "privacy.dp": False})
    game = wgan(LAYOUT)
    drawn = GeneratedRows(LAYOUT, game, (first_state(game, LAYOUT, 0).weights,), np.ones(LAYOUT.classes))
    said = Games(config).guarantee(drawn, [100])
    assert said and said.startswith("None is claimed.") and "nobody is guaranteed anything" in said


def test_a_patient_with_very_many_rows_takes_no_more_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of: list[int] = []

    class Counted(Moments):
        def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
            asked_of.append(len(z))
            return super().contributions(round, question, z, patient, patients)

    method = Counted(LAYOUT)
    size = method.size(1, {})
    patient = np.repeat(np.arange(12), [1, 2, 300, 0, 1, 1, 1, 1, 7, 1, 1, 20])
    z = rows_of(LAYOUT, mixed(len(patient), 0))
    whole = clipped_total(method, 1, {}, z, patient, 12)
    assert asked_of == [len(z)]
    monkeypatch.setattr(sums, "_AT_ONCE", 5 * size)
    np.testing.assert_allclose(clipped_total(method, 1, {}, z, patient, 12), whole, rtol=1e-9, atol=1e-12)
    assert max(asked_of[1:]) <= 5 and sum(asked_of[1:]) == len(z)
