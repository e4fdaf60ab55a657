"""The posterior of a model of marginals: fields by enumeration, closed forms, files, and how often intervals hold the truth."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.coverage.__main__ import PAGE, RESULT, covered, measured, table
from benchmarks.coverage.population import INTERACTION, LAYOUT, MEANS, SLOPES, Population, counted
from polyclinic.config import RunConfig
from polyclinic.programs import program_of
from polyclinic.synthesis.marginals import NetworkSynthesizer, make
from polyclinic.synthesis.marginals.estimation import Measured, fit
from polyclinic.synthesis.marginals.field import Field
from polyclinic.synthesis.marginals.posterior import Evidence, Posterior
from polyclinic.synthesis.sums import ANSWERED, clipped_total
from polyclinic.synthesis.synthesizer import load, save, unsure
from polyclinic.types import Floats

# A triangle of columns 0, 1 and the label 3 without an interaction of all three, and column 2 with the label alone.
TRIANGLE = Field(np.array([3, 4, 2, 2]), (3, 0, 1, 2), ((), (3,), (0, 3), (3,)), ((3,), (0, 3), (1, 3), (2, 3), (0, 1)))


def enumerated(field: Field, potentials: Floats) -> tuple[Floats, Floats]:
    """(d,) marginals of the cliques and (d, d) covariance of their indicators, over all cells one by one."""
    rows, logs = [], []
    for cell in itertools.product(*map(range, field.sizes)):
        row = []
        for clique in field.cliques:
            table = np.zeros(field.sizes[list(clique)])
            table[tuple(cell[column] for column in clique)] = 1.0
            row.append(table.ravel())
        rows.append(np.concatenate(row))
        logs.append(rows[-1] @ potentials)
    x, shares = np.array(rows), np.exp(np.array(logs))
    shares /= shares.sum()
    mean = shares @ x
    return mean, (x - mean).T @ ((x - mean) * shares[:, None])


def one_column(shares: Floats, patients: float, deviation: float) -> Posterior:
    """Of a single column of cells whose noisy frequencies are ``shares``."""
    noise = np.full(len(shares), deviation)
    evidence = Evidence(patients, (Measured((0,), shares, noise),), shares, noise)
    return Posterior(Field(np.array([len(shares)]), (0,), ((),), ((0,),)), evidence)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_a_field_is_what_enumeration_says(seed: int) -> None:
    potentials = np.random.default_rng(seed).normal(0.0, 2.0, int(TRIANGLE.cells.sum()))
    mean, covariance = enumerated(TRIANGLE, potentials)
    np.testing.assert_allclose(TRIANGLE.marginals(potentials[None])[0], mean, atol=1e-12)
    np.testing.assert_allclose(TRIANGLE.covariance(potentials), covariance, atol=1e-12)
    for conditional in TRIANGLE.conditionals(potentials[None]):
        np.testing.assert_allclose(conditional.sum(axis=-1), 1.0)


def test_a_coin_has_the_posterior_of_the_integral() -> None:
    """One share: p given y ~ N(p, p (1 - p) / n + noise), with a normal prior on the difference of two potentials."""
    for patients, deviation in ((100, 0.05), (1000, 0.001), (200, 0.1)):
        found = one_column(np.array([0.3, 0.7]), patients, deviation)
        drawn = found.field.marginals(found.draw(2000, np.random.default_rng(0)))[:, 0]
        logs = np.linspace(-15, 15, 20001)
        share = 1 / (1 + np.exp(-logs))
        variance = 0.21 / patients + (deviation**2 + (0.3 / patients) ** 2) / 2
        density = np.exp(-0.5 * (share - 0.3) ** 2 / variance - 0.5 * logs**2 / (2 * found.wide**2))
        mean, square = (float((density * value).sum() / density.sum()) for value in (share, share**2))
        spread = np.sqrt(square - mean**2)
        assert abs(drawn.mean() - mean) < 4 * spread / np.sqrt(2000)
        assert 0.94 < drawn.std() / spread < 1.06


def test_of_many_patients_a_column_is_normal_with_both_variances() -> None:
    """The closed form of large samples: (covariance / n)^-1 + noise, on frequencies that sum to 1."""
    shares, patients, deviation = np.array([0.5, 0.3, 0.2]), 20_000.0, 0.004
    found = one_column(shares, patients, deviation)
    drawn = found.field.marginals(found.draw(1000, np.random.default_rng(1)))
    centred = np.eye(3) - 1 / 3
    expected = (np.diag(shares) - np.outer(shares, shares)) / patients + deviation**2 * centred
    np.testing.assert_allclose(drawn.mean(axis=0), shares, atol=4 * deviation / np.sqrt(1000))
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.15 * expected.max())


def test_a_step_beyond_all_numbers_is_shortened_or_not_taken() -> None:
    """An energy that is not a number is no least one."""
    found = one_column(np.array([0.3, 0.7]), 100.0, 0.05)
    precision, place = np.eye(2) * 400.0, np.array([0.1, 0.2])
    with np.errstate(all="ignore"):
        assert np.isnan(found._energy(np.array([[-np.inf, np.inf]]), precision)[0]).all()
    np.testing.assert_array_equal(found._climb(place, np.array([-np.inf, np.inf]), precision), place)


def test_groups_tell_of_sums_alone() -> None:
    """Cells that were asked in one group share what noise leaves of it; the group is as sure as if it were one cell."""
    groups = (np.array([0, 0, 1]),)
    evidence = Evidence(
        5000.0, (Measured((0,), np.array([0.6, 0.4]), np.full(2, 0.01), groups),), np.zeros(3), np.zeros(3)
    )
    found = Posterior(Field(np.array([3]), (0,), ((),), ((0,),)), evidence)
    drawn = found.field.marginals(found.draw(500, np.random.default_rng(2)))
    assert abs(drawn[:, :2].sum(axis=1).mean() - 0.6) < 0.003 and drawn[:, :2].sum(axis=1).std() < 0.013
    assert drawn[:, 0].std() > 0.1


@given(st.floats(0.001, 0.02), st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_more_noise_is_less_sure(deviation: float, seed: int) -> None:
    quiet, loud = (
        one_column(np.array([0.4, 0.35, 0.25]), 5000.0, noise).draw(200, np.random.default_rng(seed))
        for noise in (deviation, 3 * deviation)
    )
    field = one_column(np.ones(3) / 3, 1.0, 1.0).field
    assert field.marginals(loud).std(axis=0).sum() > field.marginals(quiet).std(axis=0).sum()


@pytest.fixture(scope="module")
def model() -> NetworkSynthesizer:
    rng = np.random.default_rng(0)
    return measured(make(LAYOUT, algorithm="mst", rounds=4), Population().patients(2000, rng), 3.0, rng)


def test_models_are_drawn_anew_from_a_file_as_from_memory(model: NetworkSynthesizer, tmp_path: Path) -> None:
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", LAYOUT)
    assert isinstance(again, NetworkSynthesizer) and again.together == model.together
    first, second = (one.anew(3, np.random.default_rng(5)) for one in (model, again))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(
            one.sample(50, np.random.default_rng(6)), other.sample(50, np.random.default_rng(6))
        )
    tables = [one.conditionals[1] for one in first]
    assert len({table.tobytes() for table in tables}) == 3, "each is another model"
    assert unsure(replace(model, evidence=None)) is None and not first[0].together


def test_of_rounds_that_hospitals_missed_the_fewest_patients_count() -> None:
    """A run of 2,000 patients in its first and last round and 1,200 between: what is drawn anew is as unsure as of 1,200."""
    method, rng = make(LAYOUT, algorithm="mst", rounds=4), np.random.default_rng(3)
    z = Population().patients(2000, rng)
    state = {"classes": np.array([0.5, 0.5])}
    for round, count in ((1, 2000), (2, 1200), (3, 1200), (4, 2000)):
        state["patients"] = np.array([float(count)])
        total = clipped_total(method, round, method.question(round, state), z[:count], np.arange(count), count)
        state = method.absorb(round, state, total / count, 0.01)
    assert state[ANSWERED].tolist() == [1200, 2000]
    found = method.synthesizer(state)
    assert isinstance(found, NetworkSynthesizer) and found.patients == 1200
    run = program_of(RunConfig.build({"task": "synthesis", "model": "marginals"}))
    said = [note for note in run.notes({"arrays": state}, False) if "missing in some rounds" in note]
    assert "of 1200 to 2000 patients" in said[0]
    whole = {name: value for name, value in state.items() if name != ANSWERED} | {ANSWERED: np.array([2000.0, 2000.0])}
    assert not any("missing" in note for note in run.notes({"arrays": whole}, False))


def test_pairs_that_were_measured_together_have_names(model: NetworkSynthesizer) -> None:
    with_label = {("decade", "died"), ("diabetes", "died"), ("smokes", "died"), ("stage", "died")}
    assert with_label < set(model.together) and ("smokes", "stage") in model.together
    assert ("decade", "stage") not in model.together


@pytest.mark.slow
def test_the_highest_model_is_the_one_that_is_fitted(model: NetworkSynthesizer) -> None:
    """But for weights by sampling beside noise, and a wide prior: within a deviation of noise in every cell."""
    assert model.evidence is not None and model.posterior is not None
    field, place = model.posterior.field, model.posterior.highest[0]
    fitted, potentials = fit(field.sizes, model.evidence.measured)
    assert fitted.cliques == field.cliques
    noise = max(float(one.deviation.max()) for one in model.evidence.measured)
    assert np.abs(fitted.marginals(potentials[None]) - field.marginals(place[None])).max() < noise


def test_the_page_shows_the_results_that_lie_in_the_repository() -> None:
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    assert table(rows) in PAGE.read_text(encoding="utf-8")
    assert {row["epsilon"] for row in rows} == {0.5, 1.0, 3.0, 10.0} and min(row["trials"] for row in rows) >= 200
    for row in rows:
        if row["epsilon"] >= 1.0 and not row["interaction"]:
            assert min(row["held"]["anew"].values()) > 0.9 > np.mean(list(row["held"]["one set"].values()))


def test_the_populations_coefficients_are_those_that_made_it() -> None:
    truth = dict(zip((*MEANS, *SLOPES), Population().truth, strict=True))
    np.testing.assert_allclose([truth[one] for one in SLOPES[1:]], [0.25, 0.6, 0.5, 0.7], atol=1e-5)
    rng = np.random.default_rng(0)
    counts = counted(Population().patients(200_000, rng))
    assert np.abs(counts / 200_000 - Population().shares).max() < 0.002
    assert abs(Population(2.0).truth[-1] - 2.0) < 1e-4


@pytest.mark.slow
def test_intervals_of_models_drawn_anew_hold_the_truth() -> None:
    """60 trials of nine quantities at epsilon 1: coverage has a standard error of about 1.5 points; naive intervals fail."""
    found = covered(1.0, 0.0, 60)["held"]
    means = {way: np.mean(list(held.values())) for way, held in found.items()}
    assert means["anew"] > 0.91 and min(found["anew"].values()) > 0.83
    assert means["one set"] < 0.83 and means["partial"] < 0.9 < means["real"]


@pytest.mark.slow
def test_an_interaction_that_no_pair_shows_is_lost() -> None:
    """So that it must not be trusted: of 200 trials 25 % of intervals hold it by rule full, and none by another."""
    found = covered(3.0, 2.0, 30)["held"]
    assert found["real"][INTERACTION] > 0.7
    assert found["anew"][INTERACTION] < 0.5 and found["partial"][INTERACTION] < 0.1
