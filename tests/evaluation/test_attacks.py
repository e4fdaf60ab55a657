"""Attacks against what is known: published values, laws that can be worked out, releases that give all or nothing away."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from polyclinic.ehr.schema import Column
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.attacks import attributes, gradients, identification, inversion, membership
from polyclinic.evaluation.attacks.identification import Table, distances, first_rows, nearest
from polyclinic.evaluation.intervals import Interval, clopper_pearson, difference, excess, wilson
from polyclinic.models.tabular import mlp
from polyclinic.objectives.classes import Classification
from polyclinic.privacy.streams import generator

DRAW = generator(0, "test", "attacks")
COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def close(found: Interval, value: float, low: float, high: float, within: float = 5e-5) -> bool:
    assert found.value is not None and found.low is not None and found.high is not None
    return all(abs(a - b) < within for a, b in ((found.value, value), (found.low, low), (found.high, high)))


def test_intervals_of_shares_are_the_published_ones() -> None:
    # Newcombe 1998 ("Two-sided confidence intervals for the single proportion"), Table I: 81/263, 15/148, 0/20, 1/29.
    assert close(wilson(81, 263), 0.3080, 0.2553, 0.3662)
    assert close(wilson(15, 148), 0.1014, 0.0624, 0.1605)
    assert close(clopper_pearson(81, 263), 0.3080, 0.2527, 0.3676)
    assert close(clopper_pearson(0, 20), 0.0, 0.0, 0.1684)
    assert close(clopper_pearson(1, 29), 0.0345, 0.0009, 0.1776)
    # Newcombe 1998 ("Interval estimation for the difference"), Table II, method 10: 56/70 - 48/80.
    assert close(difference(wilson(56, 70), wilson(48, 80)), 0.2, 0.0524, 0.3339)
    assert wilson(0, 0) == clopper_pearson(0, 0) == Interval(None)


@given(COUNTS, COUNTS)
def test_shares_lie_in_their_intervals_and_an_excess_is_none_where_nothing_is_left(
    attack: tuple[int, int], control: tuple[int, int]
) -> None:
    exact, score = clopper_pearson(*attack), wilson(*attack)
    for found in (exact, score):
        assert 0 <= found.low <= found.value <= found.high <= 1  # type: ignore[operator]
    assert exact.low <= stats.beta.ppf(0.5, attack[0] + 1, attack[1] - attack[0] + 1) <= exact.high
    found = excess(score, wilson(*control))
    if control[0] == control[1]:
        assert found.value is None
    else:
        assert found.value <= 1 and found.low <= found.value <= found.high  # type: ignore[operator]
        assert (found.value > 0) == (attack[0] * control[1] > control[0] * attack[1])


def test_of_what_the_control_leaves_the_excess_is_the_share_that_is_learned() -> None:
    found = excess(Interval(0.6, 0.5, 0.7), Interval(0.2, 0.15, 0.25))
    half = math.hypot(0.1 / 0.8, 0.4 / 0.64 * 0.05)
    assert close(found, 0.5, 0.5 - half, 0.5 + half, 1e-12)


def test_scores_that_tell_all_or_nothing_are_judged_so() -> None:
    told = membership.judge("all", np.arange(200) + 1000.0, np.arange(300.0), 1e-5, 0.4)
    assert told.auc.value == told.advantage.value == told.true_alarms[0.01].value == 1
    assert told.true_alarms[0.001].value is None, "300 patients cannot show one false alarm in a thousand"
    assert told.bound is not None and told.bound.correct == told.bound.guesses and told.bound.epsilon_lower > 3.5
    same = DRAW.normal(size=800)
    nothing = membership.judge("nothing", same[:400], same[400:], 1e-5, 0.5)
    assert nothing.auc.low < 0.5 < nothing.auc.high and nothing.advantage.low < 0 < nothing.advantage.high  # type: ignore[operator]
    assert nothing.bound is not None and nothing.bound.epsilon_lower < 0.5
    constant = membership.judge("constant", np.zeros(50), np.zeros(50), 1e-5, None)
    assert constant.auc.value == 0.5 and constant.advantage.value == 0 and constant.bound is None
    with pytest.raises(ValueError, match="finite"):
        membership.judge("broken", np.array([np.nan]), np.zeros(3), 1e-5, None)


def test_true_alarms_count_only_above_what_the_false_ones_leave() -> None:
    others = np.arange(100.0)
    assert membership.true_alarms(np.array([98.0, 98.5, 99.0, 120.0]), others, 0.01).value == 0.75
    assert membership.true_alarms(np.array([99.0] * 4), np.repeat(99.0, 100), 0.01).value == 0
    # Normal scores one apart: 1 % of false alarms are above 2.326, of true ones 9.2 %.
    members, others = DRAW.normal(size=40_000) + 1, DRAW.normal(size=40_000)
    assert membership.true_alarms(members, others, 0.01).value == pytest.approx(stats.norm.sf(2.3263 - 1), abs=0.01)


def test_a_bound_of_guessed_coins_is_of_fair_ones_and_holds() -> None:
    """Randomised response at epsilon 1 of patients of whom three in four take part."""
    share, bounds = 0.75, []
    for run in range(40):
        draw = generator(run, "test", "response")
        inside = draw.uniform(size=1200) < share
        scores = np.where(draw.uniform(size=1200) < 1 / (1 + math.exp(-1)), inside, ~inside) * 1.0
        found = membership.lower_bound(scores[inside], scores[~inside], 0.0, share, draw)
        assert abs(found.coins - 600) < 100 and found.guesses == found.coins // 3
        bounds.append(found.epsilon_lower)
    assert np.mean(np.array(bounds) > 1) <= 0.1 and 0.6 < np.median(bounds) < 1


def test_likelihood_ratios_are_those_of_the_shadow_models_laws() -> None:
    shadows = np.array([[3.0, 0.0], [5.0, 2.0], [0.0, 4.0], [2.0, 6.0]])
    inside = np.array([[True, False], [True, False], [False, True], [False, True]])
    with_, without = np.array([4.0, 5.0]), np.array([1.0, 1.0])  # means; all spreads are sqrt(4 / 2)
    target, law = np.array([3.0, 3.0]), stats.norm(scale=math.sqrt(2))
    expected = law.logpdf(target - with_) - law.logpdf(target - without)
    assert membership.likelihood_ratios(target, shadows, inside) == pytest.approx(expected)
    with pytest.raises(ValueError, match="in some shadow models"):
        membership.likelihood_ratios(target, shadows, np.ones((4, 2), dtype=bool))


@given(st.integers(1, 30), st.integers(4, 20), st.floats(0.01, 0.99), st.integers(0, 99))
def test_every_patient_is_in_as_many_shadow_models_and_out_of_at_least_two(
    patients: int, shadows: int, share: float, seed: int
) -> None:
    found = membership.assignment(patients, shadows, share, generator(seed, "test"))
    count = found.sum(axis=0)
    assert found.shape == (shadows, patients) and len(set(count.tolist())) == 1
    assert 2 <= count[0] <= shadows - 2 and abs(count[0] - share * shadows) <= max(2, 0.5)


def test_losses_and_confidences_of_probabilities() -> None:
    probabilities, y = np.array([[0.25, 0.75], [1.0, 0.0]]), np.array([1, 0])
    objective = Classification((Column(name="died", kind="binary", role="label"),))
    assert objective.losses_of(probabilities, y) == pytest.approx([-math.log(0.75), 0])
    assert objective.confidences(probabilities, y)[0] == pytest.approx(math.log(3))
    assert np.isfinite(objective.confidences(probabilities, 1 - y)).all()
    assert membership.of_patients(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1]), 2).tolist() == [2, 5]


def made_up(rows: int, columns: int = 6, seed: int = 0) -> Table:
    """Numbers in [0, 1] and, last, a category of three."""
    draw = generator(seed, "test", "table")
    cells = np.concatenate([draw.uniform(size=(rows, columns - 1)), draw.integers(0, 3, (rows, 1))], axis=1)
    return Table(tuple("abcdefgh"[:columns]), cells, np.array([1.0] * (columns - 1) + [0.0]))


def test_distances_are_shares_of_bounds_and_a_missing_cell_is_like_another() -> None:
    a = Table(("n", "c"), np.array([[2.0, 1.0], [np.nan, 0.0]]), np.array([10.0, 0.0]))
    b = Table(("n", "c"), np.array([[7.0, 1.0], [np.nan, 1.0]]), np.array([10.0, 0.0]))
    assert distances(a, b, [0, 1]).tolist() == [[0.5, 1.0], [2.0, 1.0]]
    assert [found.tolist() for found in nearest(a, b, [0])] == [[0, 1], [0.5, 0.0]]
    assert first_rows(np.array([1, 0, 1, 0]), 2).tolist() == [1, 0]


def test_copied_patients_are_found_and_those_of_the_population_are_not() -> None:
    members, others = made_up(300, seed=1), made_up(200, seed=2)
    copied = identification.closest(members, members, others)
    # Of the 300 rows copied the 200 members drawn are hit; nobody else's row is equal to a record.
    assert copied.copies_members == pytest.approx(2 / 3) and copied.copies_non_members == 0
    assert copied.nearer_to_members.low > 0.7 and copied.records == 200  # type: ignore[operator]
    fresh = identification.closest(made_up(500, seed=3), members, others)
    assert fresh.nearer_to_members.low < 0.5 < fresh.nearer_to_members.high and fresh.copies_members == 0  # type: ignore[operator]
    assert identification.closest(others, others, others).nearer_to_members.value == 0.5
    near = [identification.proximity(side, members) for side in (members, others)]
    assert membership.judge("proximity", near[0], near[1], 1e-5, None).auc.value == 1


def test_a_copied_table_singles_out_links_and_infers_and_a_fresh_one_does_not() -> None:
    members, others = made_up(300, seed=1), made_up(300, seed=2)
    out, linked = (
        attack(members, members, others) for attack in (identification.singling_out, identification.linkability)
    )
    inferred = identification.inference(members, members, others)
    assert out.attack.value == 1 and not out.weak and out.risk.low > 0.3  # type: ignore[operator]
    assert linked.attack.value == 1 and linked.control.value < 0.1 and linked.risk.value == 1  # type: ignore[operator]
    assert all(one.attack.value == 1 and not one.weak and one.risk.low > 0.8 for one in inferred)  # type: ignore[operator]
    assert [one.column for one in inferred] == list("abcdef")
    fresh = made_up(600, seed=3)
    for one in (
        identification.singling_out(fresh, members, others),
        identification.linkability(fresh, members, others),
    ):
        assert one.risk.low <= 0 <= one.risk.high  # type: ignore[operator]
    assert sum(one.weak for one in identification.inference(fresh, members, others)) >= 5


def test_predicates_hold_where_they_say() -> None:
    table = Table(("n", "c"), np.array([[1.0, 0.0], [2.0, 1.0], [np.nan, 1.0]]), np.array([5.0, 0.0]))
    chosen = np.array([[True, False], [True, True], [True, False]])
    predicates = identification.Predicates(
        chosen, np.array([[1, 0], [-1, 0], [0, 0]]), np.array([[2.0, 0.0], [2.0, 1.0], [np.nan, 0.0]])
    )
    assert predicates.holds(table).tolist() == [[False, True, False], [False, True, False], [False, False, True]]
    alone = identification.single_outs(made_up(50), generator(0, "test"))
    assert len(alone.chosen) == identification.ATTACKS and set(alone.chosen.sum(axis=1)) == {2, 3, 4}
    assert (alone.holds(made_up(50)).sum(axis=1) == 1).all()


def test_a_column_that_the_model_remembers_is_guessed_of_those_it_learned_from_alone() -> None:
    x = np.concatenate([DRAW.normal(size=(900, 3)), DRAW.integers(0, 2, (900, 1))], axis=1)
    y = DRAW.integers(0, 2, 900)
    rows = {row.tobytes(): label for row, label in zip(x[:300], y[:300], strict=True)}

    def one_hot(y: np.ndarray) -> np.ndarray:
        return np.eye(2)[y]

    def remembering(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        sure = [rows.get(row.tobytes()) == label for row, label in zip(x, y, strict=True)]
        return np.where(sure, math.log(0.99), math.log(0.01))

    secret = attributes.Secret("s", slice(3, 4), np.array([[0.0], [1.0]]))
    members, others, known = ((x[part], y[part]) for part in (slice(300), slice(300, 600), slice(600, 900)))
    found = attributes.guess_column(secret, members, others, known, one_hot, remembering)
    assert found is not None and found.members.value == 1 and found.excess.low > 0.4  # type: ignore[operator]
    assert found.non_members.low < 0.5 < found.non_members.high  # type: ignore[operator]
    silent = attributes.guess_column(secret, members, others, known, one_hot, lambda x, y: np.zeros(len(y)))
    assert silent is not None and silent.members == silent.without_model and abs(silent.excess.value) < 0.15  # type: ignore[operator]
    assert attributes.guess_column(secret, members, others, (x[:9] * [1, 1, 1, 0], y[:9]), one_hot, remembering) is None


def test_choices_of_a_column_are_told_apart_and_missing_ones_left_out() -> None:
    hot = attributes.Secret("c", slice(0, 2), np.concatenate([np.zeros((1, 2)), np.eye(2)]))
    assert hot.truth(np.array([[0.0, 0.0], [0.0, 1.0], [np.nan, 0.0]])).tolist() == [0, 2, -1]
    number = attributes.Secret("n", slice(0, 1), np.array([[-1.0], [1.0]]), cut=0.0)
    assert number.truth(np.array([[-5.0], [0.5], [np.nan]])).tolist() == [0, 1, -1]


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(0, 1))
def test_the_first_layers_gradient_of_one_patient_is_the_record(seed: int, features: int, label: int) -> None:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = mlp(features, 2, (5,)).double()
        x = torch.randn(1, features, dtype=torch.float64)
    assert gradients.first_layer(module) == "0."
    nn.functional.cross_entropy(module(x), torch.tensor([label])).backward()
    weight, bias = (module.get_parameter(f"0.{name}").grad for name in ("weight", "bias"))
    found = gradients.from_first_layer(weight.numpy(), bias.numpy())  # type: ignore[union-attr]
    assert found is not None and np.allclose(found, x.numpy()[0], atol=1e-8)
    assert gradients.from_first_layer(np.zeros((5, features)), np.zeros(5)) is None


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(0, 5))
def test_the_last_layers_gradient_of_one_patient_tells_the_label(seed: int, classes: int, label: int) -> None:
    """Whatever the model and the record, and if the gradient is clipped too: clipping changes no sign."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = mlp(3, classes, (5,)).double()
        x = 3 * torch.randn(1, 3, dtype=torch.float64)
    label %= classes
    last = gradients.last_layer(module)
    nn.functional.cross_entropy(module(x), torch.tensor([label])).backward()
    bias = module.get_parameter(f"{last}bias").grad
    assert bias is not None
    for scale in (1.0, 0.01):
        read = gradients.labels_from_last_layer(scale * bias.numpy(), np.full(classes, 1 / classes), 1)
        assert read.tolist() == [label]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_labels_of_a_batch_are_counted_at_a_model_that_knows_nothing_yet(labels: list[int]) -> None:
    y, chances = np.sort(labels), np.full(4, 0.25)
    bias = chances - np.bincount(y, minlength=4) / len(y)
    assert gradients.labels_from_last_layer(bias, chances, len(y)).tolist() == y.tolist()
    ones = np.minimum(y, 1)
    logit = np.array([0.5 - ones.mean()])
    assert gradients.labels_from_last_layer(logit, np.array([0.5, 0.5]), len(y)).tolist() == np.sort(ones).tolist()


def faces(noise_multiplier: float | None) -> tuple[float, float]:
    """Of a model with one patient a class, as of faces: mean correlation of inverted records with patients, own and others'."""
    from polyclinic.models.tabular import initialise
    from polyclinic.privacy.streams import keyed_stream
    from polyclinic.training import classification
    from polyclinic.training.task import SiteWork, TrainSettings

    draw, people, features, pictures = np.random.default_rng(0), 12, 40, 6
    face = draw.normal(size=(people, features))
    y = np.repeat(np.arange(people), pictures)
    x = np.clip(face[y] + 0.5 * draw.normal(size=(len(y), features)), -4, 4)
    build = lambda: mlp(features, people, (24,)).double()  # noqa: E731
    start = {name: value.numpy() for name, value in initialise(build, 0).items()}
    step = TrainSettings(1.0, 150, 0.5, 1.0, noise_multiplier, momentum=0.5, double=True)
    stream = keyed_stream(0, "noise")
    [update] = classification.train(
        build, start, [SiteWork(Rows(x, y, y, people), stream, stream, float(people))], step
    )
    module = gradients.load_module(build, update.arrays)
    low, high = np.full(features, -4.0), np.full(features, 4.0)
    losses = lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, reduction="none")  # noqa: E731
    made = [inversion.invert(module, label, x.mean(axis=0), low, high, losses) for label in range(people)]
    alike = np.corrcoef(np.array(made), face)[:people, people:]
    own = np.eye(people, dtype=bool)
    return float(alike[own].mean()), float(alike[~own].mean())


def test_a_face_is_made_of_a_model_that_knows_it_and_not_of_a_private_one() -> None:
    own, others = faces(None)
    assert own > 0.6 and others < 0.1
    own, others = faces(20.0)  # 150 steps: epsilon 1.73 at delta 1e-3
    assert abs(own - others) < 0.15


def test_inversion_ends_where_the_model_is_sure_or_nothing_is_gained() -> None:
    import torch

    line = nn.Linear(2, 1)
    with torch.no_grad():
        line.weight[:], line.bias[:] = torch.tensor([[1.0, 0.0]]), 0.0
    binary = nn.functional.binary_cross_entropy_with_logits
    losses = lambda outputs, labels: binary(outputs[:, 0], labels.double(), reduction="none")  # noqa: E731
    low, high, start = np.array([-3.0, -1.0]), np.array([9.0, 1.0]), np.zeros(2)
    sure = inversion.invert(line.double(), 1, start, low, high, losses)
    assert sure is not None and 4.59 < sure[0] < 4.9 and sure[1] == 0
    edge = inversion.invert(line, 0, start, low, high, losses)
    assert edge is not None and edge.tolist() == [-3.0, 0.0] and start.tolist() == [0, 0]
    silent = lambda outputs, labels: torch.zeros(1, dtype=torch.float64)  # noqa: E731
    assert inversion.invert(line, 0, start, low, high, silent) is None
    near = inversion.likeness(np.array([[-3.0, 0.0], [9.0, 0.0]]), np.array([0, 0]), np.array([edge, sure]), low, high)
    assert near.tolist() == pytest.approx([0, -math.sqrt(0.5)])


def test_only_a_linear_layer_that_the_record_enters_shows_it() -> None:
    assert gradients.first_layer(nn.Sequential(nn.Linear(3, 2, bias=False))) is None
    assert gradients.first_layer(nn.Sequential(nn.Tanh(), nn.Linear(3, 2))) is None


def test_errors_pair_a_batchs_records_and_are_shares_of_a_constant_guesss() -> None:
    truth, constant = np.array([[0.0, 4.0], [4.0, 0.0]]), np.array([2.0, 2.0])
    assert gradients.errors(truth, truth[::-1], constant).tolist() == [0, 0]
    assert gradients.errors(truth, np.array([[2.0, 2.0], [3.0, 1.0]]), constant).tolist() == [1, 0.5]
    assert gradients.errors(constant[None], np.array([[2.0, 2.0]]), constant).tolist() == [0]
