"""One configuration for TOML, flags, ``-c`` and Flower; every wrong value is one sentence and costs no privacy."""

import pytest

from polyclinic.config import RunConfig, parse_assignments
from polyclinic.errors import ConfigError


def test_dashed_and_underscored_keys_are_the_same_key() -> None:
    assert RunConfig.build({"sample-rate": 0.2}) == RunConfig.build({"sample_rate": 0.2})


def test_later_layers_win() -> None:
    assert RunConfig.build({"rounds": 1, "seed": 4}, {"rounds": 2}).rounds == 2


def test_flat_form_round_trips() -> None:
    config = RunConfig.build({"epsilon": 1.5, "hidden": "8,4", "dp": True})
    assert RunConfig.build(config.flat()) == config
    assert all(isinstance(value, bool | int | float | str) for value in config.flat().values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epsilonn": 1}, "Unknown configuration key 'epsilonn'. Did you mean 'epsilon'?"),
        ({"epsilon": 0}, "'epsilon' has the value 0, which must be greater than 0"),
        ({"epsilon": float("inf")}, "'epsilon' has the value inf"),
        ({"delta": 1.0}, "'delta' has the value 1.0, which must be less than 1"),
        ({"sample-rate": 1.5}, "'sample-rate' has the value 1.5, which must be less than or equal to 1"),
        ({"rounds": "many"}, "'rounds' has the value 'many', which must be a valid integer"),
        ({"rounds": 0}, "'rounds' has the value 0"),
        ({"hidden": "32,x"}, "positive whole numbers"),
        ({"partitioner": "dirichelt"}, "Did you mean 'dirichlet'?"),
        ({"partitioner": "dirichelt"}, "has the value 'dirichelt', which is unknown; allowed are natural"),
        ({"partitioner": "iid+pool:3"}, "which must not pool"),
        (
            {"noise": "blts"},
            "'noise' has the value 'blts', which must be one of independent, sqrt-toeplitz, banded, blt, dense, tree. "
            "Did you mean 'blt'?",
        ),
        (
            {"central_noise": "white"},
            "'central-noise' has the value 'white', which must be one of independent, sqrt-toeplitz, banded, blt, dense, tree.",
        ),
        ({"optimizer": "lion"}, "'optimizer' has the value 'lion', which must be 'sgd', 'adam', 'adamw' or 'rmsprop'"),
        ({"statistics-share": 0}, "statistics-share is 0 but standardise is 'public' and patients-per-site 0"),
        ({"standardise": False}, "'standardise' has the value False, which must be 'public', 'measured' or 'none'"),
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


def test_one_width_may_be_a_number() -> None:
    assert RunConfig.build({"hidden": 16}).widths == (16,)


def test_what_is_usual_for_an_optimizer_gives_way_to_what_is_given() -> None:
    usual = {name: RunConfig.build({"optimizer": name}) for name in ("sgd", "adam", "adamw", "rmsprop")}
    assert [config.momentum for config in usual.values()] == [0.9, 0.9, 0.9, 0.0]
    for config in usual.values():
        assert RunConfig.build(config.flat()) == RunConfig.build(config.given()) == config
    assert RunConfig.build({"optimizer": "rmsprop", "momentum": 0.9}).momentum == 0.9
    assert RunConfig.build(usual["rmsprop"].given(), {"optimizer": "sgd"}).momentum == 0.9
