"""One noise for the patients of all hospitals, in shares: what a sum costs, what it gives, and who must not take part."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyclinic.client import secure
from polyclinic.client.app import app
from polyclinic.client.calls import Call
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.encoding import public_standardiser
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.federation import Federation
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import zcdp_event
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.secure.distributed import SumTerms, patient_rho
from polyclinic.privacy.streams import keyed_stream
from polyclinic.server.calibration import calibrate
from polyclinic.server.notes import notes
from polyclinic.training import classification
from polyclinic.training.pooled import Pooled
from polyclinic.training.preparation import standardise
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.wire.messages import LOCAL, TrainRequest
from tests.client.test_hospital import STRICT, context, make_hospital, message, model
from tests.secure.test_runs import Quick, recorded
from tests.secure.ward import Ward

SHARED = {"secure.aggregation": True, "secure.shared-noise": True, "training.local-steps": 1}


def terms(**changes: object) -> SumTerms:
    shared = {"size": 40, "clip_norm": 0.7, "bits": 16, "parties": 9, "threshold": 6, "units": 1000, "onlookers": 1}
    return SumTerms(**shared | changes)  # type: ignore[arg-type]


@given(size=st.integers(1, 300), bits=st.integers(8, 28), patients=st.integers(0, 30), seed=st.integers(0))
@settings(max_examples=100)
def test_one_patient_moves_the_rounded_sum_by_no_more_than_the_sensitivity(
    size: int, bits: int, patients: int, seed: int
) -> None:
    agreed, stream = terms(size=size, bits=bits), keyed_stream(seed, "vectors")
    others, patient = (stream.normal(size).astype(np.float64) for _ in range(2))
    others *= patients
    patient *= agreed.clip_norm / np.linalg.norm(patient)
    with_it, without = (agreed.round_update(vector, 1.0, stream) for vector in (others + patient, others))
    moved = with_it - without
    assert float(np.sqrt(float(moved @ moved))) <= agreed.sensitivity * (1 + 1e-12)


def test_a_sum_longer_than_any_hospitals_is_clipped_and_held_by_its_word() -> None:
    agreed = terms(size=2)
    found = agreed.round_update(np.array([0.0, 1e9]), 1.0, keyed_stream(0))
    assert agreed.total(agreed.words(9 * found))[1] == pytest.approx(9 * 1000 * 0.7, rel=1e-9)


def test_the_shares_of_all_but_an_onlooker_make_the_noise_that_is_paid_for() -> None:
    agreed = terms(noise_multiplier=3.0, size=20_000)
    others = agreed.threshold - agreed.onlookers
    noise = sum(
        agreed.add_noise(np.zeros(20_000, dtype=np.int64), keyed_stream(0, str(party))) for party in range(others)
    )
    assert np.std(noise) / agreed.sensitivity == pytest.approx(3.0, rel=0.03)  # type: ignore[arg-type]
    assert agreed.event(agreed.threshold).rho <= patient_rho(3.0)  # type: ignore[attr-defined]
    assert agreed.event(agreed.parties).rho < patient_rho(3.0)  # type: ignore[attr-defined]


def test_a_grid_on_which_noise_would_cost_more_than_is_paid_is_refused() -> None:
    with pytest.raises(ValueError, match="coarse"):
        terms(bits=2, noise_multiplier=0.3, size=1)


def test_masks_of_hospitals_that_were_told_different_noise_or_questions_do_not_cancel() -> None:
    told = [(3.0, b"one"), (2.0, b"one"), (3.0, b"other")]
    purposes = {terms(noise_multiplier=noise).purpose("run", 1, question) for noise, question in told}
    assert len(purposes) == 3


def clipped_sum(patients: int, bias: float) -> np.ndarray:
    """(8,) a hospital's upload before rounding, for a linear model whose two biases the server set."""
    given = {"weight": np.zeros((2, 3)), "bias": np.full(2, bias)}
    x = np.asarray(keyed_stream(0, "rows").normal((patients, 3)), dtype=np.float64)
    rows = Rows(x, np.zeros(patients, dtype=np.int64), np.arange(patients), patients)
    site = SiteWork(rows, keyed_stream(0, "batches"), keyed_stream(0, "noise"), 100.0)
    settings = TrainSettings(1.0, 1, 0.5, 0.7, 2.0, double=True)
    (found,) = Pooled(classification).train(lambda: nn.Linear(3, 2), given, [site], settings)
    return np.concatenate([(found.arrays[name] - given[name]).ravel() for name in given])


@given(power=st.integers(0, 60), bits=st.integers(8, 28), patients=st.integers(1, 400))
@settings(max_examples=60)
def test_one_patient_moves_the_sum_by_no_more_than_the_sensitivity_at_any_model_that_is_taken(
    power: int, bits: int, patients: int
) -> None:
    agreed, stream = terms(size=8, bits=bits), keyed_stream(0)
    if agreed.resolves(np.full(8, 2.0**power)):
        sums = (clipped_sum(n, 2.0**power) for n in (patients, patients + 1))
        moved = np.subtract(*(agreed.round_update(total, 1.0, stream) for total in sums))
        assert float(np.linalg.norm(moved)) <= agreed.sensitivity
    else:
        assert power > 20


def test_a_model_whose_numbers_drown_a_patients_part_is_refused_before_training(tmp_path: Path) -> None:
    """At a bias of 2^60 float64 has steps of 256: one patient would move the sum by 128 or by nothing."""
    sums = np.array([clipped_sum(patients, 2.0**60) for patients in range(150, 350)])
    assert np.linalg.norm(np.diff(sums, axis=0), axis=1).max() > 100
    ward = Ward(tmp_path, np.zeros((3, 8)))
    ward.config = RunConfig.build(SHARED | {"privacy.patients-per-site": 100})
    begun = ward.begin()
    request = TrainRequest(run="run", site=0, round=1, secure_parties=begun.indices, secure_signatures=begun.signatures)
    call = Call(RecordDict(), ward.hospitals[0], request, ward.config)
    secure.check_upload(call, {"w": np.full(8, 1e4)})
    with pytest.raises(PolyclinicError, match="too large"):
        secure.check_upload(call, {"w": np.full(8, 2.0**60)})


def by_hand(config: RunConfig, rate: float) -> np.ndarray:
    """The logistic model of gradient descent with momentum over all hospitals' clipped gradients, (features + 1, 2)."""
    dataset = dataset_named(config.dataset)
    shards = load_shards(dataset, config.sites, dataset.default_partitioner, config.seed, config.alpha)
    rows = [standardise(shard.train, public_standardiser(shard.schema)) for shard in shards]
    assert all(part.patients == len(part.y) for part in rows)
    x = np.concatenate([np.nan_to_num(part.x) for part in rows])
    x, hot = np.concatenate([x, np.ones((len(x), 1))], axis=1), np.eye(2)[np.concatenate([part.y for part in rows])]
    model = velocity = np.zeros((x.shape[1], 2))
    for _ in range(config.rounds):
        scores = np.exp(x @ model)
        gradients = x[:, :, None] * (scores / scores.sum(1, keepdims=True) - hot)[:, None, :]
        norms = np.sqrt((gradients**2).sum((1, 2)))
        total = (gradients * np.minimum(1, config.privacy.max_grad_norm / norms)[:, None, None]).sum(0)
        velocity = 0.9 * velocity + rate * total / (config.privacy.patients_per_site * len(rows))
        model = model - velocity
    return model


def test_an_epsilon_whose_noise_cannot_be_composed_is_refused_in_a_sentence() -> None:
    extras: tuple[dict[str, str], ...] = {}, {"task": "synthesis", "model": "moments"}
    for extra in extras:
        config = RunConfig.build(SHARED | {"privacy.epsilon": 5000.0, "privacy.delta": 1e-5} | extra)
        with pytest.raises(ConfigError, match="'privacy.epsilon' has the value 5000: the noise would be so small"):
            calibrate(config)
        assert calibrate(config.with_values({"privacy.epsilon": 100.0})).epsilon == 100


def test_a_run_is_gradient_descent_on_all_hospitals_patients(tmp_path: Path) -> None:
    """With next to no noise, and with a count of patients that is given, against a few lines of numpy."""
    options = SHARED | {
        "privacy.epsilon": 1e9,
        "privacy.patients-per-site": 100,
        "training.learning-rate": 0.3,
        "rounds": 4,
    }
    _, outcome = recorded(tmp_path, **options)
    config = RunConfig.build(options)
    expected = by_hand(config, 0.3)
    weight, bias = (next(v for k, v in outcome.state.arrays.items() if k.endswith(name)) for name in ("weight", "bias"))
    np.testing.assert_allclose(weight, expected[:-1].T, atol=2e-4)
    np.testing.assert_allclose(bias, expected[-1], atol=2e-4)


def test_every_hospital_is_charged_for_every_sum_and_keeps_to_its_epsilon(tmp_path: Path) -> None:
    _, outcome = recorded(tmp_path, **SHARED, rounds=3, privacy={"epsilon": 2.0, "patients_per_site": 100})
    assert outcome.privacy is not None
    noise = outcome.privacy.noise_multiplier
    ledgers = Ledger.read_all(tmp_path / "sites" / "ledger.sqlite")
    assert len(ledgers) == 4
    for site, found in ledgers.items():
        assert [event["purpose"] for event in found.events()] == ["train"] * 3
        assert 1.9 < outcome.state.epsilon[site] <= 2.0
    assert epsilon(zcdp_event(3 / (2 * noise**2)), outcome.config.privacy.delta) == pytest.approx(2.0, rel=0.01)


def test_the_notes_say_whom_epsilon_counts_on_and_count_one_hospital_as_one(quick: Quick, tmp_path: Path) -> None:
    trace = tmp_path / "away.csv"
    trace.write_text("round,site\n1,hospital-2\n1,hospital-3\n1,hospital-4\n")
    summary = quick(
        **SHARED,
        simulation={"availability": str(trace)},
        secure={"dropouts": 1},
        privacy={"patients_per_site": 90},
    ).summary
    said = summary["notes"][summary["cautions"] :]
    assert said[0].endswith("in everything that the server learned: each round's sum of updates.")
    assert "as long as the other hospitals add their shares" in said[1]
    assert said[-1].startswith("Round 1: 1 hospital replied") and said[-1].endswith(
        "1 hospital charged its ledger for it."
    )
    assert not any("shares" in note for note in quick(rounds=1, privacy={"patients_per_site": 90}).summary["notes"])


def test_where_all_hospitals_know_each_other_epsilon_does_not_count_on_the_server(tmp_path: Path) -> None:
    _, outcome = recorded(tmp_path, **SHARED, rounds=1, privacy={"patients_per_site": 100})
    assert "and the server keeps to the protocol" in notes(outcome, [], None)[1]
    for knowing in (3, 4):
        sites = [replace(site, knows_others=site.index < knowing) for site in outcome.sites]
        (said,) = [note for note in notes(replace(outcome, sites=tuple(sites)), [], None) if "noise is shared" in note]
        assert ("the server keeps to the protocol" in said) == (knowing < 4)
        assert "as long as the other hospitals add their shares" in said


@pytest.mark.parametrize(
    ("options", "wholes"), [(SHARED, 4 / 3), ({"training.momentum": 0.0, "training.local-steps": 1}, 4)]
)
def test_four_hospitals_shares_are_a_third_more_than_one_noise_and_not_four(
    tmp_path: Path, options: dict[str, object], wholes: float
) -> None:
    """Three shares make the whole. The model begins at zero, and at such an epsilon its first step is noise."""
    known = {"rounds": 1, "privacy.patients-per-site": 100, "training.learning-rate": 1.0, "privacy.epsilon": 0.01}
    _, outcome = recorded(tmp_path, **known | options)
    assert outcome.privacy is not None
    step = np.concatenate([value.ravel() for value in outcome.state.arrays.values()])
    scale = outcome.privacy.noise_multiplier * outcome.config.privacy.max_grad_norm
    assert step.std() * 400 / scale == pytest.approx(math.sqrt(wholes), rel=0.25)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"secure.aggregation": False}, "secure.aggregation"), ({"local_steps": 2}, "training.local-steps"),
        ({"training.momentum": 0.5}, "momentum"), ({"sample_rate": 0.5}, "training.sample-rate"),
        ({"privacy.overlap": 2}, "overlap"),
        ({"privacy.dp": False}, "dp"), ({"training.optimizer": "adam"}, "optimizer"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RunConfig.build(SHARED | options)


def test_a_strategy_that_changes_hospitals_steps_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="they give one sum and take no step"):
        Federation(RunConfig.build(SHARED | {"strategy": "ditto"})).run()


def test_a_real_hospital_takes_part_only_where_its_policy_says_so(tmp_path: Path) -> None:
    config = RunConfig.build(SHARED | {"privacy.delta": 1e-4, "privacy.patients-per-site": 100})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=9.0, public_patients=100.0, learning_rate=0.5)
    for policy, named in (
        (STRICT, "allow-shared-noise"),
        (STRICT + "allow-shared-noise = true\npatients-elsewhere = 1\n", "patients-elsewhere"),
    ):
        hospital = make_hospital(tmp_path, policy)
        assert named in str(app(message(request, "train", model()), context(hospital, config)).error)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_what_would_stay_at_a_hospital_without_noise_is_refused(tmp_path: Path) -> None:
    """A server that names a local array would have the next round's gradients depend on one that nobody noised."""
    config = RunConfig.build(SHARED | {"privacy.delta": 1e-4, "privacy.patients-per-site": 100})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=9.0, public_patients=100.0, learning_rate=0.5)
    hospital = make_hospital(tmp_path, STRICT + "allow-shared-noise = true\n")
    asked = message(request, "train", model())
    name, arrays = next(iter(asked.content.array_records.items()))
    kept = list(arrays)[-1]
    asked.content[LOCAL] = ArrayRecord({kept: arrays.pop(kept)})
    assert name != LOCAL and "stay" in str(app(asked, context(hospital, config)).error)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
