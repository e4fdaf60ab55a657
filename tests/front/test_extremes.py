"""Whatever number is given: an answer, or one sentence; never a traceback."""

import contextlib
import math
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.config import SECTIONS, RunConfig, check_effects, noise_named, put_aside
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.accounting.comparison import SHOWN, shown_epsilon
from polyclinic.privacy.accounting.risk import risk
from polyclinic.privacy.events import dpsgd_event

EDGES = [
    5e-324,
    1e-300,
    1e-160,
    1e-100,
    1e-20,
    1e-12,
    1e-9,
    1e-6,
    0.01,
    0.5,
    1 - 1e-16,
    1.0,
    1e3,
    1e6,
    1e15,
    1e160,
    1.7e308,
]
COUNTS = [1, 2, 1000, 10**6, 10**9, 10**18, 10**400]
NUMBERS = [*EDGES, *(-edge for edge in EDGES), 0.0, math.inf, math.nan, *COUNTS, -1]
NUMERIC = [
    before + name.replace("_", "-")
    for before, keys in (("", RunConfig), *((f"{name}.", section) for name, section in SECTIONS.items()))
    for name, field in keys.model_fields.items()
    if {field.annotation, *get_args(field.annotation)} & {int, float}
]  # fmt: skip
QUICKLY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def one_sentence(error: Exception) -> None:
    said = str(error)
    assert isinstance(error, ConfigError) and said[0].isupper() or said.split()[0].replace("_", "").isalpha()
    assert "\n" not in said and said[-1] in ".?"


@pytest.mark.parametrize("key", NUMERIC)
@pytest.mark.parametrize(
    "beside", [{}, {"training.batching": "cyclic"}, {"secure.aggregation": True}, {"privacy.dp": False}], ids=str
)
def test_every_number_of_a_configuration_is_taken_or_refused(key: str, beside: dict[str, Any]) -> None:
    for value in NUMBERS:
        try:
            config = RunConfig.build(beside, {key: value})
            put_aside(config)
            check_effects(config)
        except ConfigError as error:
            one_sentence(error)
            assert key in str(error)


def test_the_numbers_of_a_configuration_are_found() -> None:
    assert {
        "training.sample-rate",
        "rounds",
        "privacy.epsilon",
        "training.learning-rate",
        "central.delta",
        "gpus",
    } <= set(NUMERIC)
    assert len(NUMERIC) > 40


def test_a_rate_that_makes_no_whole_number_of_cyclic_batches_is_refused() -> None:
    with contextlib.suppress(ConfigError):
        noise_named(RunConfig.build({"training.batching": "cyclic", "training.sample-rate": 1e-9}))
    with pytest.raises(ConfigError, match="'training.sample-rate' has the value 5e-324"):
        RunConfig.build({"training.batching": "cyclic", "training.sample-rate": 5e-324})


@QUICKLY
@given(
    st.sampled_from([name for name in SHOWN if name not in ("prv", "pld")]), st.sampled_from(EDGES), st.sampled_from(EDGES),
    st.sampled_from(COUNTS), st.sampled_from(EDGES), st.sampled_from(["add-remove", "replace-one"]),
)  # fmt: skip
def test_every_accountant_answers_or_refuses(
    accountant: str, rate: float, noise: float, steps: int, delta: float, relation: Any
) -> None:
    try:
        assert shown_epsilon(accountant, rate, noise, steps, delta, relation) >= 0
    except ConfigError as error:
        one_sentence(error)


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-2, 1e6, 1e15])
@pytest.mark.parametrize("rate", [1e-12, 1e-9, 0.5, 1.0])
def test_pld_stays_below_rdp_at_the_edges(rate: float, noise: float) -> None:
    event = dpsgd_event(rate, noise, 10)
    for delta in (1e-100, 1e-5, 0.5):
        assert 0 <= epsilon(event, delta) <= epsilon(event, delta, "rdp")
    learned = risk(event)
    assert 0 <= learned.advantage <= 1 and 0.01 <= learned.tpr_at_1_percent_fpr * (1 + 1e-9) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--noise-multiplier", "1e-160", "noise_multiplier must lie between 1e-09 and 1e+15"),
        ("--noise-multiplier", "1e300", "noise_multiplier must lie between"),
        ("--noise-multiplier", "nan", "noise_multiplier must lie between"),
        ("--sample-rate", "1e-300", "sample_rate must lie between 1e-12 and 1"),
        ("--steps", "1" + "0" * 400, "steps must be a whole number from 1 to 1,000,000,000"),
        ("--delta", "1e-300", "delta must lie in (0, 1) and be at least 1e-100"),
    ],
)
def test_account_refuses_what_it_cannot_tell(flag: str, value: str, words: str) -> None:
    asked = {"--sample-rate": "0.1", "--steps": "10", "--delta": "1e-5", "--noise-multiplier": "1"} | {flag: value}
    done = CliRunner().invoke(app, ["account", *(part for pair in asked.items() for part in pair)])
    assert isinstance(done.exception, ConfigError) and words in str(done.exception)
    one_sentence(done.exception)
