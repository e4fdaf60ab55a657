"""Programs: which one a configuration is of, and halves at the server that change nothing but what they return."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError
from polyclinic.federation import Federation
from polyclinic.inspection.audits import subject_of_config
from polyclinic.plugins import dataset_named
from polyclinic.programs import Program, program_of
from polyclinic.programs.program import Collected, Reply
from polyclinic.server.exchange.learning import Learning
from polyclinic.server.exchange.noise import noise_of_mean
from polyclinic.server.federate import Places, federate
from polyclinic.strategies.base.state import restore_strategy, strategy_state
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.wire.messages import SECURE_KEYS
from polyclinic.wire.passing import PassingGrid

SCHEMA = dataset_named("trial").schema
SYNTHESIS = {"task": "synthesis", "dataset": "trial"}
# Short runs whose half at the server learns something, with what a hospital's reply may hold.
HALVES: dict[str, dict[str, Any]] = {
    "moments": SYNTHESIS,
    "mixture": SYNTHESIS | {"model": "mixture"},
    "posterior": {"task": "posterior", "dataset": "trial", "posterior.columns": "intensive, age, male, controlled"},
    "gan": SYNTHESIS | {"model": "gan", "rounds": 2, "synthesis.candidates": 2},
    "maf": SYNTHESIS | {"model": "maf", "rounds": 2},
}


def program(name: str) -> Program:
    return program_of(RunConfig.build(HALVES[name]))


def begun(name: str) -> tuple[Learning, dict[str, np.ndarray]]:
    """The half of a run around FedAvg, and what hospitals are sent first."""
    from flwr.serverapp.strategy import FedAvg

    found = program(name)
    half = found.half(SCHEMA, [], 0.1)
    assert half is not None
    return Learning(FedAvg(), half), found.first(SCHEMA)


def collected(name: str, learning: Learning, sent: dict[str, np.ndarray]) -> Collected:
    """What might come of a round: the model moved a little, or a small sum."""
    rng, origin = np.random.default_rng(1), program(name).origin(SCHEMA, sent, learning.question(1))
    mean = {name: value + 0.01 * rng.standard_normal(value.shape) for name, value in origin.items()}
    each = {"7": Reply(mean, 50.0, 0.01), "12": Reply(mean, 30.0, 0.02)} if learning.half.separate else {}
    return Collected({} if each else mean, 0.001, 80.0, each)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "Supervised"), ({"task": "output-perturbation"}, "Convex"), ({"task": "synthesis"}, "SyntheticSums"),
        ({"task": "posterior"}, "Posterior"), ({"task": "synthesis", "model": "gan"}, "Games"),
        ({"task": "synthesis", "model": "maf"}, "Densities"), ({"task": "tests.client.test_hospital:OWN"}, "Supervised"),
    ],
)  # fmt: skip
def test_a_configuration_is_of_one_program(options: dict[str, Any], kind: str) -> None:
    assert type(program_of(RunConfig.build(options))).__name__ == kind


@pytest.mark.parametrize("name", HALVES)
def test_a_half_changes_nothing_but_what_it_returns(name: str) -> None:
    learning, sent = begun(name)
    half, state = learning.half, learning.state
    before, given = copy.deepcopy(state), copy.deepcopy(sent)
    half.question(1, state)
    arrived = collected(name, learning, sent)
    first, following = half.absorb(1, state, sent, arrived)
    again, _ = half.absorb(1, state, sent, arrived)
    np.testing.assert_equal(state, before)
    np.testing.assert_equal(sent, given)
    np.testing.assert_equal(first, again)
    assert {key: value.shape for key, value in following.items()}.keys() == sent.keys()
    with pytest.raises(AssertionError):
        np.testing.assert_equal(first, before)


@pytest.mark.parametrize("name", HALVES)
def test_a_checkpoint_holds_all_that_was_learned(name: str) -> None:
    learning, sent = begun(name)
    learning.state, _ = learning.half.absorb(1, learning.state, sent, collected(name, learning, sent))
    other, _ = begun(name)
    restore_strategy(other, strategy_state(learning))
    np.testing.assert_equal(other.state, learning.state)


def test_a_checkpoint_of_another_half_is_refused() -> None:
    learning, other = begun("moments")[0], begun("maf")[0]
    restore_strategy(other, strategy_state(learning))
    with pytest.raises(DataError, match="another version"):
        other.check()
    older = begun("gan")[0]
    vars(older)["generator"] = {}
    with pytest.raises(DataError, match="another version"):
        older.check()


def test_shared_noise_is_measured_by_the_threshold_that_was_agreed() -> None:
    """Four hospitals are asked and three must open the sum; the one that is lost early does not make it two."""
    options = {"secure.aggregation": True, "secure.shared-noise": True, "secure.dropouts": 1, "secure.bits": 28}
    config = RunConfig.build({"task": "synthesis", **options})
    shares = 3 / (3 - 1)  # of three hospitals, of which one may look on
    assert noise_of_mean(config, 2.0, [50.0] * 3, threshold=3) == pytest.approx(2.0 * shares**0.5 / 150, rel=1e-4)


class OneGivesNoKeys(PassingGrid):
    """The last of four hospitals fails where it is asked for its keys."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return [
            Message(Error(0, "no keys"), reply_to=reply)
            if (reply.metadata.message_type, reply.metadata.group_id) == (SECURE_KEYS, "3")
            else reply
            for reply in replies
        ]


def test_a_run_of_sums_outlives_a_hospital_that_is_lost_before_it_shares_keys(tmp_path: Path) -> None:
    options = {
        "secure.aggregation": True,
        "secure.shared-noise": True,
        "secure.dropouts": 1,
        "secure.bits": 28,
        "participation.min-sites": 3,
    }
    config = RunConfig.build({"task": "synthesis", "dataset": "breast-cancer", "sites": 4, "rounds": 1, **options})
    with Federation._grid(config) as grid:
        outcome = federate(OneGivesNoKeys(grid), config, "run", Places(tmp_path))
    assert [drop["site"] for drop in outcome.state.dropouts] == ["hospital-4"] and outcome.synthesizer is not None
    assert outcome.learning is not None and outcome.privacy is not None
    patients = sum(outcome.state.public_patients[f"hospital-{number}"] for number in (1, 2, 3))
    # Three shares, each large enough that two of them are the noise that was paid for.
    expected = outcome.privacy.noise_multiplier * (3 / 2) ** 0.5 / patients
    assert outcome.learning.noise == pytest.approx(expected, rel=1e-3)


def test_an_audit_of_a_classifier_loads_no_records() -> None:
    config = RunConfig.build({"dataset": "nowhere.to.be:found"})
    assert subject_of_config(config, seed=0).patients.patients == 200


def test_sums_take_no_options_of_the_strategy() -> None:
    with pytest.raises(ConfigError, match="strategy-options"):
        RunConfig.build(SYNTHESIS | {"strategy-options": "weighted-by-key=train_loss"})


def test_rows_are_drawn_from_the_generators_that_were_chosen() -> None:
    learning, sent = begun("gan")
    for number in (1, 2):
        learning.state, sent = learning.half.absorb(number, learning.state, sent, collected("gan", learning, sent))
    candidates = learning.half.candidates(learning.state)
    assert [*candidates] == [1, 2]

    def rows(synthesizer: Synthesizer | None) -> np.ndarray:
        assert synthesizer is not None
        return synthesizer.sample(20, np.random.default_rng(0))

    assert not np.array_equal(rows(candidates[1]), rows(learning.synthesizer()))
    learning.choose([1])
    np.testing.assert_array_equal(rows(candidates[1]), rows(learning.synthesizer()))
