"""Objectives by themselves: losses by hand, against scikit-learn and against each other; what labels and options they take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, QuantileRegressor
from torch import Tensor
from torch.nn import functional

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError
from polyclinic.objectives.classes import Binary, Classification, Ordinal
from polyclinic.objectives.counts import NegativeBinomial, Poisson
from polyclinic.objectives.numbers import Huber, Quantile, Squared
from polyclinic.objectives.objective import Objective, check_rows_apart, made_up_labels
from polyclinic.objectives.sets import MultiLabel
from polyclinic.objectives.survival import Hazards
from polyclinic.plugins import BUILT_IN, objective_of
from tests.objectives.cohorts import LABELS, records, schema

#: By name: the cohort whose label it takes, and options that make it say something.
TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("grade", {"weights": [1.0, 2.0, 3.0], "focal": 2.0, "smoothing": 0.1}),
    "binary": ("died", {"weights": [1.0, 4.0]}), "ordinal": ("grade", {}), "squared": ("days", {}),
    "huber": ("days", {"threshold": 0.5}), "quantile": ("days", {"levels": [0.1, 0.5, 0.9]}), "poisson": ("visits", {}),
    "negative-binomial": ("visits", {"dispersion": 0.5}), "multi-label": ("codes", {}),
    "hazards": ("survival", {"edges": [10.0, 30.0, 60.0]}),
    "piecewise-exponential": ("survival", {"edges": [10.0, 30.0, 60.0]}),
}  # fmt: skip


def made(name: str, options: dict[str, Any] | None = None, kind: str = "") -> Objective:
    cohort, usual = TAKEN[name]
    config = RunConfig(objective=name, objective_options=usual if options is None else options)
    return objective_of(config, schema(kind or cohort).labels)


def by_interval(x: np.ndarray, y: np.ndarray, ends: tuple[float, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    """Of each interval the rows at risk, whether the event was there, and how much of it each row passed, as in life tables."""
    time, event = y[:, 0], y[:, 1] == 1
    for begin, end in pairwise((-np.inf, *ends)):
        died = event & (time > begin) & (time <= end)
        risk = died | (time >= end) & ~event | (time > end)
        inside = ~event & (time > begin) & (time < end)
        seen = risk | inside
        yield x[seen], died[seen], np.where(inside, 0.5, 1.0)[seen]


def fitted(objective: Objective) -> tuple[np.ndarray, Any, np.ndarray]:
    """Features, labels and predictions of the linear model that minimises the mean loss."""
    kind = TAKEN[objective.name][0]
    encoded = encode(records(kind), schema(kind))
    x, y = torch.from_numpy(encoded.x), torch.from_numpy(encoded.y)
    weight, bias = (
        torch.zeros(3, objective.outputs, dtype=torch.float64),
        torch.zeros(objective.outputs, dtype=torch.float64),
    )
    head = objective.head()
    head = head.double() if head else torch.nn.Identity()
    parameters = [weight.requires_grad_(), bias.requires_grad_(), *head.parameters()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective.losses(head(x @ weight + bias), y).mean()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return encoded.x, encoded.y, objective.predictions(head(x @ weight + bias)).numpy()


def test_every_objective_is_tested_here() -> None:
    assert set(TAKEN) == set(BUILT_IN["objectives"])


@pytest.mark.parametrize("name", TAKEN)
def test_losses_are_of_each_row_alone_and_predictions_fit_their_columns(name: str) -> None:
    objective = made(name)
    check_rows_apart(objective)
    outputs = torch.linspace(1, -1, 5 * objective.logits, dtype=torch.float64).reshape(5, -1)
    predicted = objective.predictions(outputs)
    assert predicted.shape == (5, len(objective.columns)) and predicted.isfinite().all()
    labels = made_up_labels(objective.labels, 5)
    losses = objective.losses_of(predicted.numpy(), labels)
    inside = name not in ("quantile",)  # quantiles that cross are put in order
    assert np.allclose(losses, objective.losses(outputs, torch.from_numpy(labels)).numpy(), atol=1e-9) or not inside


def test_losses_by_hand() -> None:
    los = torch.tensor([18.0, 8.0])  # two spreads above the centre, and the centre
    output = torch.tensor([[0.0], [1.0]])
    assert made("squared").losses(output, los).tolist() == pytest.approx([4 / 8, 1 / 8])
    assert made("huber").losses(output, los).tolist() == pytest.approx([0.5 * (2 - 0.25) / 4, 0.5 * (1 - 0.25) / 4])
    assert made("quantile", {"levels": 0.9}).losses(output, los).tolist() == pytest.approx([0.9 * 2, 0.1 * 1])
    assert made("squared").predictions(output.double()).tolist() == [[8.0], [13.0]]
    zeros = torch.zeros(1, 3)
    assert made("multi-label").losses(zeros, torch.tensor([[1.0, 0.0, 1.0]])).tolist() == pytest.approx(
        [3 * math.log(2)]
    )
    # In even odds: dead in the second interval; censored within the second: the first and half of it; alive to the end.
    seen = torch.tensor([[20.0, 1.0], [20.0, 0.0], [100.0, 0.0]])
    losses = made("hazards").losses(zeros.expand(3, 3), seen).tolist()
    assert losses == pytest.approx([2 * math.log(2), 1.5 * math.log(2), 3 * math.log(2)])
    focal = Classification(schema("died").labels, focal=2.0)
    assert focal.losses(torch.zeros(1, 2), torch.tensor([1])).tolist() == pytest.approx([0.25 * math.log(2)])
    smooth = Classification(schema("died").labels, smoothing=0.2)
    logits, label = torch.tensor([[0.3, -1.2]]), torch.tensor([0])
    assert torch.allclose(smooth.losses(logits, label), functional.cross_entropy(logits, label, label_smoothing=0.2))


def test_the_head_of_two_logits_and_of_one_are_alike() -> None:
    binary, classes = Binary(schema("died").labels), Classification(schema("died").labels)
    output, labels = torch.tensor([[0.7], [-1.3]], dtype=torch.float64), torch.tensor([1, 0])
    both = torch.cat([torch.zeros_like(output), output], 1)
    assert torch.allclose(binary.losses(output, labels), classes.losses(both, labels))
    assert torch.allclose(binary.predictions(output), classes.predictions(both))
    assert binary.loss == classes.loss == "cross-entropy" and binary.allowed == (1, 2)


@pytest.mark.parametrize("name", ["squared", "quantile", "poisson"])
def test_their_minimisers_are_those_of_scikit_learn(name: str) -> None:
    options = {"quantile": {"levels": 0.8}}.get(name, {})
    x, y, predicted = fitted(made(name, options))
    model = {
        "squared": LinearRegression(), "quantile": QuantileRegressor(quantile=0.8, alpha=0),
        "poisson": PoissonRegressor(alpha=0, tol=1e-8, max_iter=1000),
    }[name].fit(x, y)  # fmt: skip
    theirs = model.predict(x).clip(*LABELS[TAKEN[name][0]][0]["bounds"])
    assert np.abs(predicted[:, 0] - theirs).max() < (0.1 if name == "quantile" else 1e-3)


def test_poisson_is_the_limit_of_the_negative_binomial() -> None:
    labels = schema("visits").labels
    output, counts = torch.linspace(-2, 1, 6, dtype=torch.float64)[:, None], torch.arange(6.0, dtype=torch.float64)
    assert torch.allclose(
        NegativeBinomial(labels, dispersion=1e-7).losses(output, counts),
        Poisson(labels).losses(output, counts),
        atol=1e-5,
    )
    far = torch.tensor([[500.0]], dtype=torch.float64, requires_grad=True)
    for objective in (Poisson(labels), NegativeBinomial(labels)):
        losses = objective.losses(far, torch.tensor([1.0], dtype=torch.float64))
        assert (
            torch.isfinite(torch.autograd.grad(losses.sum(), far)[0]).all()
            and float(objective.predictions(far.detach())[0, 0]) == 20
        )


def test_the_curvature_of_losses_at_the_centre_is_a_quarter() -> None:
    for objective, centre in ((made("squared"), 8.0), (made("poisson"), 3.0), (made("negative-binomial"), 3.0)):
        label = torch.tensor([centre], dtype=torch.float64)
        second = torch.autograd.functional.hessian(
            lambda output, o=objective, y=label: o.losses(output[None], y).sum(), torch.zeros(1, dtype=torch.float64)
        )
        assert float(second) == pytest.approx(0.25)


def test_ordered_classes_have_one_slope_and_rising_thresholds() -> None:
    x, y, predicted = fitted(made("ordinal"))
    above = predicted[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    logits = np.log(above / (1 - above))
    apart = logits[:, 0] - logits[:, 1]
    assert apart.min() > 0 and np.ptp(apart) < 1e-6
    shares = [(y == k).mean() for k in range(3)]
    assert np.abs(predicted.mean(axis=0) - shares).max() < 0.02
    # Of two classes it is logistic regression.
    labels = (schema("grade").label.model_copy(update={"categories": ("no", "yes")}),)
    two, output = Ordinal(labels), torch.tensor([[0.4], [-2.0]], dtype=torch.float64)
    expected = functional.binary_cross_entropy_with_logits(
        output[:, 0], torch.tensor([1.0, 0.0]).double(), reduction="none"
    )
    assert torch.allclose(two.losses(output, torch.tensor([1, 0])), expected)


def test_hazards_are_logistic_regression_of_patients_by_interval() -> None:
    ends = (10.0, 30.0, 60.0)
    x, y, predicted = fitted(made("hazards", {"edges": list(ends), "proportional": False}))
    before = np.concatenate([np.ones((len(x), 1)), predicted[:, :-1]], axis=1)
    hazards = 1 - predicted / before
    for number, (own, died, weight) in enumerate(by_interval(x, y, ends)):
        model = LogisticRegression(C=1e9, tol=1e-10, max_iter=10_000).fit(own, died, weight)
        assert np.abs(model.predict_proba(x)[:, 1] - hazards[:, number]).max() < 1e-3


def test_proportional_hazards_are_one_logistic_regression_of_patients_in_all_intervals() -> None:
    x, y, predicted = fitted(made("hazards"))
    parts = [*by_interval(x, y, (10.0, 30.0, 60.0))]
    level = np.concatenate([np.eye(3)[[number] * len(own)] for number, (own, *_) in enumerate(parts)])
    whole, died, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    design = np.hstack([level, whole])
    fit = sm.GLM(died.astype(float), design, sm.families.Binomial(), freq_weights=weight).fit()
    logits = fit.params[:3] + (x @ fit.params[3:])[:, None]
    assert np.cumprod(1 / (1 + np.exp(logits)), axis=1) == pytest.approx(predicted, abs=1e-3)


def test_training_begins_where_half_have_the_event_by_the_last_edge() -> None:
    for name, link in (("hazards", "logistic"), ("hazards", "complementary-log-log"), ("piecewise-exponential", "log")):
        objective = made(name, {"edges": [10.0, 30.0, 60.0], "link": link})
        head = objective.head()
        assert head is not None
        begun = objective.predictions(head(torch.zeros(1, 1)).double())[0]
        assert begun.tolist() == pytest.approx([0.5 ** (1 / 6), 0.5**0.5, 0.5], rel=1e-5)


def test_the_other_link_and_constant_hazards_are_generalised_linear_models_of_patients_by_interval() -> None:
    ends, begins = (10.0, 30.0, 60.0), (0.0, 10.0, 30.0)
    for name, options in (("hazards", {"link": "complementary-log-log"}), ("piecewise-exponential", {})):
        objective = made(name, TAKEN[name][1] | options | {"proportional": False})
        x, y, predicted = fitted(objective)
        hazards = -np.diff(np.log(predicted), axis=1, prepend=0.0)
        for number, (own, died, weight) in enumerate(by_interval(x, y, ends)):
            family: Any = sm.families.Binomial(sm.families.links.CLogLog())
            offset = None
            if name != "hazards":
                family, begin, end = sm.families.Poisson(), begins[number], ends[number]
                seen = y[:, 0] > begin
                own, weight = x[seen], np.ones(seen.sum())
                died = ((y[:, 1] == 1) & (y[:, 0] <= end))[seen]
                offset = np.log(((y[:, 0] - begin) / (end - begin)).clip(0, 1)[seen])
            design = sm.add_constant(own)
            fit = sm.GLM(died.astype(float), design, family, offset=offset, freq_weights=weight).fit()
            assert np.exp(sm.add_constant(x) @ fit.params) == pytest.approx(hazards[:, number], rel=3e-3), (
                name,
                number,
            )


def test_constant_hazards_by_hand() -> None:
    objective = made("piecewise-exponential")
    # One event expected in each whole interval: dead in the middle of the second, censored there, and alive beyond the last edge.
    seen = torch.tensor([[20.0, 1.0], [20.0, 0.0], [80.0, 1.0]])
    outputs = torch.tensor([[0.0, math.log(2), 0.0]]).expand(3, 3)
    assert objective.losses(outputs, seen).tolist() == pytest.approx([2 - math.log(2), 2.0, 4.0])
    assert objective.predictions(outputs.double())[0].tolist() == pytest.approx(
        [math.exp(-1), math.exp(-3), math.exp(-4)]
    )
    # In the second interval one event in two of it that were seen, in the others none.
    assert objective.constant(seen.numpy()).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-0.5)])


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("squared", {}, "died", "'squared', which takes one label of kind 'continuous' or 'integer'; the schema's label is"),
        ("classification", {}, "days", "takes one label of kind 'binary' or 'categorical' or 'ordinal'"),
        ("ordinal", {}, "died", "takes one label of kind 'ordinal'"),
        ("binary", {}, "grade", "takes a label of two classes"),
        ("multi-label", {}, "died", "several labels of kind 'binary' or one of kind 'code_set'"),
        ("hazards", {}, "both", "takes a time with bounds and a 'binary' event"),
        ("classification", {"weights": [1, 2]}, "grade", "must be 3 public numbers above 0"),
        ("classification", {"weights": "balanced"}, "died", "weights is 'balanced'; it must be 2 public numbers"),
        ("classification", {"smoothing": 1.0}, "died", "smoothing is 1.0"),
        ("quantile", {"levels": [0.9, 0.1]}, "days", "rising numbers between 0 and 1"),
        ("huber", {"threshold": 0}, "days", "threshold is 0; it must be above 0"),
        ("negative-binomial", {"dispersion": 0}, "visits", "dispersion is 0; it must be above 0"),
        ("hazards", {"edges": [5, 200]}, "survival", "rising numbers above 0, at most 100"),
        ("hazards", {"edges": [*range(1, 1002)]}, "survival", "edges has 1,001 numbers; allowed are 1,000"),
        ("hazards", {"link": "probit"}, "survival", "link is 'probit'; allowed are logistic, complementary-log-log"),
        ("squared", {"level": 1}, "days", "objective-options do not make an objective 'squared'"),
    ],
)  # fmt: skip
def test_labels_and_options_that_do_not_fit_are_refused_in_a_sentence(
    name: str, options: dict[str, Any], kind: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(name, options, kind)
    assert words in str(refused.value) and str(refused.value).count("\n") == 0


def test_counts_begin_at_zero() -> None:
    labels = (schema("visits").label.model_copy(update={"bounds": (-1.0, 5.0)}),)
    with pytest.raises(ConfigError, match="which takes a label of 0 or more"):
        Poisson(labels)


@pytest.mark.parametrize(("kind", "usual"), [
    ("died", "classification"), ("grade", "classification"), ("days", "squared"), ("visits", "squared"), ("both", "multi-label"),
    ("codes", "multi-label"), ("survival", "hazards"),
])  # fmt: skip
def test_a_run_that_names_no_objective_takes_that_of_its_label(kind: str, usual: str) -> None:
    assert objective_of(RunConfig(), schema(kind).labels).name == usual


@dataclass(frozen=True)
class Mixing(Squared):
    """A loss that looks at the other rows of a batch."""

    name: ClassVar[str] = "mixing"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().losses(outputs - outputs.mean(), labels)


@dataclass(frozen=True)
class Ranked(Squared):
    """Predictions that depend on the other rows."""

    name: ClassVar[str] = "ranked"

    def predictions(self, outputs: Tensor) -> Tensor:
        return super().predictions(outputs - outputs.mean())


@dataclass(frozen=True)
class Remembering(Squared):
    """Predictions that depend on which were computed before."""

    name: ClassVar[str] = "remembering"
    seen: ClassVar[list[float]] = []

    def predictions(self, outputs: Tensor) -> Tensor:
        self.seen.append(float(outputs.abs().max()))
        return super().predictions(outputs * len(self.seen) / sum(self.seen))


@dataclass(frozen=True)
class Drifting(Squared):
    """Losses that depend on which were computed before."""

    name: ClassVar[str] = "drifting"
    seen: ClassVar[list[float]] = []

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(float(outputs.detach().abs().max()))
        return super().losses(outputs, labels) * len(self.seen) / sum(self.seen)


@dataclass(frozen=True)
class Cubic(Squared):
    """The third power of what was missed: a loss of one's own."""

    name: ClassVar[str] = "cubic"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._residuals(outputs, labels)[..., 0].abs() ** 3


def test_a_loss_of_ones_own_must_be_of_each_row_alone() -> None:
    labels = schema("days").labels
    config = RunConfig(objective="tests.objectives.test_objectives:Cubic")
    check_rows_apart(objective_of(config, labels))
    with pytest.raises(ConfigError, match="losses of a row must be one finite number and depend on that row alone"):
        check_rows_apart(Mixing(labels))
    with pytest.raises(ConfigError, match="losses of a row must be one finite number"):
        check_rows_apart(Drifting(labels))
    for kind in (Ranked, Remembering):
        with pytest.raises(
            ConfigError,
            match="predictions of a row must be finite, one for each of its columns, and depend on that row alone",
        ):
            check_rows_apart(kind(labels))
    with pytest.raises(ConfigError, match="must stand for a subclass of"):
        objective_of(RunConfig(objective="math:sqrt"), labels)


def test_the_classes_of_sets_and_quantiles_have_their_names() -> None:
    assert MultiLabel(schema("both").labels).columns == ("sepsis", "stroke")
    assert Quantile(schema("days").labels, levels=(0.1, 0.9)).columns == ("los at 0.1", "los at 0.9")
    assert Hazards(schema("survival").labels, edges=(30, 60)).columns == ("no died until 30", "no died until 60")
    assert Huber(schema("days").labels).columns == ("los",)
