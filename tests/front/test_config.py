"""One configuration for TOML, flags, ``-c`` and Flower; every wrong value is one sentence and costs no privacy."""

from typing import Any

import pytest

from polyclinic import Privacy
from polyclinic.config import RunConfig, parse_assignments
from polyclinic.config.keys import Keys
from polyclinic.config.run import SECTIONS
from polyclinic.errors import ConfigError


def test_dashed_and_underscored_keys_are_the_same_key() -> None:
    assert RunConfig.build({"training.sample_rate": 0.2}) == RunConfig.build({"training.sample-rate": 0.2})


def test_later_layers_win() -> None:
    assert RunConfig.build({"rounds": 1, "seed": 4}, {"rounds": 2}).rounds == 2


@pytest.mark.parametrize(
    ("keys", "values", "sentence"),
    [
        (
            Privacy,
            {"epsilon": -1},
            "Configuration key 'privacy.epsilon' has the value -1, which must be greater than 0.",
        ),
        (Privacy, {"epsilom": 1}, "Unknown configuration key 'privacy.epsilom'. Did you mean 'privacy.epsilon'?"),
        (
            RunConfig,
            {"privacy": {"epsilon": -1}},
            "Configuration key 'privacy.epsilon' has the value -1, which must be",
        ),
        (RunConfig, {"rouns": 1}, "Unknown configuration key 'rouns'. Did you mean 'rounds'?"),
    ],
)
def test_a_class_of_keys_refuses_in_the_same_words(keys: type[Keys], values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        keys(**values)
    assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)


def test_flat_form_round_trips() -> None:
    config = RunConfig.build({"privacy.epsilon": 1.5, "hidden": "8,4", "privacy.dp": True})
    assert RunConfig.build(config.flat()) == config
    assert all(isinstance(value, bool | int | float | str) for value in config.flat().values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epsilon": 1}, "Did you mean 'privacy.epsilon' or 'central.epsilon' or 'evaluation.epsilon'?"),
        ({"privacy.epsilonn": 1}, "Unknown configuration key 'privacy.epsilonn'. Did you mean 'privacy.epsilon'?"),
        (
            {"training": {"clip": 1.0}},
            "Unknown configuration key 'training.clip'. Did you mean 'privacy.max-grad-norm'?",
        ),
        ({"noise_multiplier": 1.0}, "Unknown configuration key 'noise-multiplier'. Did you mean 'privacy.epsilon'?"),
        ({"privacy": {"epsilon": 1}, "privacy.epsilon": 2}, "Configuration key 'privacy.epsilon' is given twice."),
        ({"privacy": 1}, "'privacy' is a section of the configuration and no key; give its keys, as in privacy.dp."),
        ({"privcy": {"epsilon": 1}}, "Unknown configuration key 'privcy'. Did you mean 'privacy'?"),
        ({"privacy": {"epsilon": True}}, "'privacy.epsilon' has the value True, which must be a number."),
        ({"strategy-options": "eta=0.1, eta=0.2", "strategy": {"name": "fedadam"}}, "must be text"),
        ({"privacy": {"epsilon": 0}}, "'privacy.epsilon' has the value 0, which must be greater than 0"),
        ({"privacy.epsilon": float("inf")}, "'privacy.epsilon' has the value inf"),
        ({"privacy.delta": 1.0}, "'privacy.delta' has the value 1.0, which must be less than 1"),
        (
            {"training.sample-rate": 1.5},
            "'training.sample-rate' has the value 1.5, which must be at most 1",
        ),
        ({"rounds": "many"}, "'rounds' has the value 'many', which must be a whole number"),
        ({"rounds": 0}, "'rounds' has the value 0"),
        ({"hidden": "32,x"}, "positive whole numbers"),
        ({"partitioner": "dirichelt"}, "Did you mean 'dirichlet'?"),
        ({"partitioner": "dirichelt"}, "has the value 'dirichelt', which is unknown; allowed are natural"),
        ({"partitioner": "iid+pool:3"}, "which must not pool"),
        (
            {"training.noise": "blts"},
            "'training.noise' has the value 'blts', which must be one of independent, sqrt-toeplitz, banded, blt, dense, tree. "
            "Did you mean 'blt'?",
        ),
        (
            {"central.noise": "white"},
            "'central.noise' has the value 'white', which must be one of independent, sqrt-toeplitz, banded, blt, dense, tree.",
        ),
        (
            {"training.optimizer": "lion"},
            "'training.optimizer' has the value 'lion', which must be 'auto', 'sgd', 'adam', 'adamw', 'rmsprop' or 'newton'",
        ),
        (
            {"privacy.statistics-share": 0},
            "privacy.statistics-share is 0 but data.standardise is 'public' and privacy.patients-per-site 0",
        ),
        (
            {"data.standardise": False},
            "'data.standardise' has the value False, which must be 'public', 'measured' or 'none'",
        ),
    ],
)
def test_wrong_values_are_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.build(values)
    said = str(caught.value)
    assert sentence in said and "\n" not in said and said[-1] in ".?" and said[-2] not in ".?"


def test_assignments() -> None:
    assert parse_assignments("eta=0.1, beta-1='x', flag=true, word=abc") == {
        "eta": 0.1, "beta-1": "x", "flag": True, "word": "abc",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignments("eta")
    with pytest.raises(ConfigError, match="'eta' is given twice"):
        parse_assignments("eta=0.1, eta=0.2")


def test_one_width_may_be_a_number() -> None:
    assert RunConfig.build({"hidden": 16}).widths == (16,)


def test_what_is_usual_for_an_optimizer_gives_way_to_what_is_given() -> None:
    usual = {name: RunConfig.build({"training.optimizer": name}) for name in ("sgd", "adam", "adamw", "rmsprop")}
    assert [config.training.usual_momentum for config in usual.values()] == [0.9, 0.9, 0.9, 0.0]
    for config in usual.values():
        assert RunConfig.build(config.flat()) == RunConfig.build(config.minimal()) == config
    assert RunConfig.build({"training.optimizer": "rmsprop", "training.momentum": 0.9}).training.momentum == 0.9
    assert RunConfig.build(usual["rmsprop"].minimal(), {"training.optimizer": "sgd"}).training.usual_momentum == 0.9


@pytest.mark.parametrize(("model", "rate", "clip"), [("gru", 0.07, 4.0), ("transformer", 0.02, 2.0)])
def test_a_model_of_sequences_has_an_optimizer_of_its_own_that_gives_way_with_its_rate(
    model: str, rate: float, clip: float
) -> None:
    def built(**options: Any) -> RunConfig:
        config = RunConfig.build({"model": model, **options})
        assert RunConfig.build(config.flat()) == RunConfig.build(config.minimal()) == config
        assert RunConfig.from_flower(RunConfig.app_config() | config.for_flower()) == config
        assert (config.data.imputation, config.privacy.max_grad_norm) == ("indicator", clip)
        return config

    usual = built().training
    assert (usual.optimizer, usual.learning_rate) == ("adam", rate)
    assert built(**{"training.learning-rate": 0.1}).training.optimizer == "adam"
    shared = {"secure.aggregation": True, "secure.shared-noise": True}
    for given in ({"training.optimizer": "sgd"}, {"strategy": "scaffold"}, {"strategy": "fedsgd"}, shared):
        other = built(**given).training
        assert (other.optimizer, other.learning_rate) == ("sgd", 0.0)


def test_at_most_twenty_five_keys_stand_outside_sections() -> None:
    assert len(set(RunConfig.model_fields) - set(SECTIONS)) <= 25
