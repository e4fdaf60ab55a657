"""Shadow models: each is the federated average of its own patients; and attacks on an overfitted model have power, which
privacy takes from them.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from dp_accounting import SelfComposedDpEvent

from polyclinic.ehr.schema import Column
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.attacks import gradients, membership
from polyclinic.evaluation.attacks.membership import Membership
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.objectives.classes import Classification
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.training import classification
from polyclinic.training.shadows import train_shadows
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays

PLAIN = TrainSettings(1.0, 3, 0.5, 1.0, None)
# Far too many steps of a model that is far too wide, and labels that are noise: nothing but the records can be learned.
OVERFITTED = TrainSettings(1.0, 30, 0.01, 1.0, None, optimizer="adam")
ROUNDS, FEATURES, DELTA = 5, 30, 1e-5


def noise_alone(patients: int, seed: int) -> Rows:
    draw = generator(seed, "test", "noise")
    return Rows(
        draw.normal(size=(patients, FEATURES)), draw.integers(0, 2, patients), np.arange(patients), patients
    )  # fmt: skip


def first(build: partial[object]) -> Arrays:
    return {name: value.numpy() for name, value in initialise(build, 1).items()}  # type: ignore[arg-type]


def test_a_shadow_is_the_average_of_its_hospitals_weighed_by_who_takes_part() -> None:
    build = partial(logistic, FEATURES, 2)
    hospitals = [noise_alone(12, 1), noise_alone(20, 2)]
    inside = [generator(part.patients, "test").uniform(size=(2, part.patients)) < 0.5 for part in hospitals]
    shadows = train_shadows(
        classification, build, first(build), list(zip(hospitals, inside, strict=True)), PLAIN, 2, seed=3
    )
    for shadow, model in enumerate(shadows):
        own = [part.of_patients(mask[shadow]) for part, mask in zip(hospitals, inside, strict=True)]
        arrays = first(build)
        for _ in range(2):
            work = [SiteWork(part, keyed_stream(0), keyed_stream(0)) for part in own]
            updates = [update.arrays for update in classification.train(build, arrays, work, PLAIN)]
            shares = [part.patients / sum(one.patients for one in own) for part in own]
            arrays = {name: sum(s * u[name] for s, u in zip(shares, updates, strict=True)) for name in arrays}
        assert all(np.allclose(model[name], arrays[name], atol=1e-6) for name in arrays)


def test_patients_are_chosen_and_joined_with_all_their_rows() -> None:
    rows = Rows(np.arange(4.0)[:, None], np.array([0, 1, 0, 1]), np.array([0, 1, 2, 1]), 3)
    some = rows.of_patients(np.array([False, True, True]))
    assert some.x.ravel().tolist() == [1, 2, 3] and some.patient.tolist() == [0, 1, 0] and some.patients == 2
    both = Rows.join([rows, some])
    assert both.patient.tolist() == [0, 1, 2, 1, 3, 4, 3] and both.patients == 5


def attacked(settings: TrainSettings, shadows: int) -> list[Membership]:
    """A federated average of two hospitals with half of their patients, attacked by losses and by shadow models."""
    build = partial(mlp, FEATURES, 2, (64,))
    hospitals = [noise_alone(100, 1), noise_alone(100, 2)]
    halves = [np.arange(100)[None] < 50] * 2
    model = train_shadows(
        classification, build, first(build), list(zip(hospitals, halves, strict=True)), settings, ROUNDS, seed=4
    )[0]
    inside = [membership.assignment(100, shadows, 0.5, generator(i, "test", "in")) for i in (5, 6)]
    others = train_shadows(
        classification, build, first(build), list(zip(hospitals, inside, strict=True)), settings, ROUNDS, seed=7
    )
    everyone, took_part = Rows.join(hospitals), np.concatenate(halves, axis=1)[0]

    def probabilities(arrays: Arrays) -> np.ndarray:
        return classification.evaluate(build, arrays, [everyone])[0]

    objective = Classification((Column(name="died", kind="binary", role="label"),))
    score = [objective.confidences(probabilities(arrays), everyone.y) for arrays in (model, *others)]
    ratios = membership.likelihood_ratios(score[0], np.array(score[1:]), np.concatenate(inside, axis=1))
    losses = objective.losses_of(probabilities(model), everyone.y)
    return [
        membership.judge(name, scores[took_part], scores[~took_part], 1e-5, 0.5)
        for name, scores in (("loss", -losses), ("LiRA", ratios))
    ]


def private(settings: TrainSettings, epsilon: float) -> TrainSettings:
    def event(noise: float) -> SelfComposedDpEvent:
        return SelfComposedDpEvent(classification.event(replace(settings, noise_multiplier=noise)), ROUNDS)

    return replace(settings, noise_multiplier=calibrate_noise_multiplier(epsilon, DELTA, event))


def test_an_overfitted_model_tells_who_took_part_and_at_epsilon_one_it_does_not() -> None:
    for found in attacked(OVERFITTED, shadows=8):
        assert found.auc.low > 0.7 and found.advantage.low > 0.3  # type: ignore[operator]
        assert found.bound is not None and found.bound.epsilon_lower > 1
    for found in attacked(private(OVERFITTED, 1.0), shadows=8):
        assert found.auc.low < 0.5 < found.auc.high  # type: ignore[operator]
        assert found.bound is not None and found.bound.epsilon_lower < 1


def test_records_are_made_of_a_steps_gradient_without_privacy_and_not_with_it() -> None:
    build, rows = partial(mlp, FEATURES, 2, (32,)), noise_alone(40, 3)
    arrays = {name: value.astype(np.float64) for name, value in first(build).items()}
    one = replace(OVERFITTED, local_steps=1, optimizer="sgd", learning_rate=1.0, double=True)

    noisy_one = replace(one, noise_multiplier=2.0)  # of one step: an epsilon of about 2 at a delta of 1e-5

    def step(batch: Rows, noisy: bool, number: int) -> Arrays:
        work = SiteWork(batch, keyed_stream(number, "b"), keyed_stream(number, "n"), float(batch.patients))
        update = classification.train(build, arrays, [work], noisy_one if noisy else one)[0]
        return {name: value - update.arrays[name] for name, value in arrays.items()}

    objective = Classification((Column(name="died", kind="binary", role="label"),))
    attacked = gradients.Attacked(build, arrays, "0.", objective.losses, objective.predictions)
    trials = gradients.trials(attacked, rows.x, rows.y, step, batches=(1, 2), patients=2)
    assert [(trial.batch, trial.private) for trial in trials] == [(n, p) for n in (1, 2) for p in (False, True)]
    for one_size in trials:
        if one_size.private:
            assert one_size.recovered == 0 and one_size.median > 0.9
        else:
            assert one_size.recovered > 0.9 and one_size.median < 0.01
