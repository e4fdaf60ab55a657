"""Records out of gradients: what one step's update tells whoever sees it, a server for instance.

Of one patient the first layer's gradient is the record itself, times a number that its bias shows. Of a batch it is a sum,
which is inverted by looking for the records that would give the same gradient (Zhu, Liu and Han 2019; Geiping et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats, Ints, Labels

RECOVERED = 0.05
BATCHES, PATIENTS = (1, 2, 4), 12
_RESTARTS, _ITERATIONS, _MATCHED = 2, 100, 1e-7
#: A batch's rows, whether with privacy, and the batch's number, to the gradient by the arrays' names that the step shows.
Step = Callable[[Rows, bool, int], Mapping[str, Floats]]
Losses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Inverted:
    """Reconstructions from the gradients of batches of ``batch`` patients.

    Attributes:
        batch: Patients of a batch.
        private: Whether the gradients were those of private training.
        error: (patients,) root mean square over features of each reconstruction's error, over that of the best constant
            guess, the mean record. 0 is the record itself, 1 tells nothing that was not known. The records of a batch
            are paired with those reconstructed so that errors are least, which flatters the attack, and more so the
            larger the batch.
        labels: Share of the patients whose label was read off the last layer. None where the label is not a class, and
            was known.
    """

    batch: int
    private: bool
    error: tuple[float, ...]
    labels: float | None

    @property
    def median(self) -> float:
        return float(np.median(self.error))

    @property
    def recovered(self) -> float:
        """Share of records reconstructed to within 5 % of a constant guess's error."""
        return float(np.mean(np.array(self.error) <= RECOVERED))


def from_first_layer(weight: Floats, bias: Floats) -> Floats | None:
    """(D,) the record behind a first linear layer's gradient, weight (H, D) and bias (H,), of one patient with one row.

    The bias shows by what the record was multiplied; the unit with the largest shows it best. Exact without noise. None where
    no unit has a gradient. Geiping et al. 2020, Proposition 3.1.
    """
    unit = int(np.argmax(np.abs(bias)))
    if bias[unit] == 0 or not np.isfinite(bias[unit]):
        return None
    return np.asarray(weight[unit] / bias[unit])


def first_layer(module: nn.Module) -> str | None:
    """The name, with a dot behind it, of the linear layer with a bias that the record itself enters; None where there is none."""
    for name, part in module.named_modules():
        if list(part.children()):
            continue
        if isinstance(part, nn.Linear) and part.bias is not None:
            return f"{name}." if name else ""
        return None
    return None


def last_layer(module: nn.Module) -> str | None:
    """The name, with a dot behind it, of the linear layer with a bias that gives the outputs; None where there is none."""
    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    name, part = leaves[-1]
    return (f"{name}." if name else "") if isinstance(part, nn.Linear) and part.bias is not None else None


def labels_from_last_layer(bias: Floats, chances: Floats, batch: int) -> Ints:
    """Return (batch,) classes behind the mean gradient of a softmax's biases, in no order.

    The gradient is each class's mean probability less its share of the labels. Of one patient only the label's is below
    0 (Zhao, Mopuri and Bilen 2020). Of more it is their probabilities that are estimated: by ``chances``, the model's
    for the mean record (Wainakh et al. 2021).

    Args:
        bias: (C,) mean gradient of the biases. One logit is that of the second class.
        chances: (C,) the model's probabilities for the mean record.
        batch: The number of patients.

    Examples:
        >>> labels_from_last_layer(np.array([0.2, -0.7, 0.5]), np.full(3, 1 / 3), 1)
        array([1])
        >>> labels_from_last_layer(np.array([-0.4, 0.3, 0.1]), np.array([0.35, 0.3, 0.35]), 4)
        array([0, 0, 0, 2])
    """
    slope = np.array([-bias[0], bias[0]]) if len(bias) == 1 else bias
    if batch == 1:
        return np.array([np.argmin(slope)])
    expected, labels = batch * (chances - slope), np.zeros(0, dtype=np.int64)
    for _ in range(batch):
        labels = np.append(labels, np.argmax(expected - np.bincount(labels, minlength=len(slope))))
    return np.sort(labels)


def match(
    module: nn.Module,
    gradient: Mapping[str, Floats],
    y: Labels,
    low: Floats,
    high: Floats,
    losses: Losses,
    seed: int = 0,
) -> Floats:
    """Return (B, D) records whose mean gradient at ``module`` is nearest to ``gradient``.

    The distance is the squared distance of the gradients over the square of their length. It is minimised by L-BFGS
    from several starts, the best of which counts. Zhu, Liu and Han 2019; Zhao, Mopuri and Bilen 2020 (labels apart).

    Args:
        module: The model whose gradient was seen; it becomes float64.
        gradient: The mean gradient, by parameter.
        y: (B, ...) labels of the batch.
        low, high: (D,) bounds within which records are known to lie.
        losses: From outputs and labels to each row's loss.
        seed: Of the starts.
    """
    module = module.double()
    names, parameters = zip(*((n, p) for n, p in module.named_parameters() if p.requires_grad), strict=True)
    wanted = [torch.from_numpy(np.asarray(gradient[name], dtype=np.float64)).reshape(p.shape) for name, p in
              zip(names, parameters, strict=True)]  # fmt: skip
    length = sum(float(part.square().sum()) for part in wanted) or 1.0
    labels, bounds = torch.from_numpy(y), (torch.from_numpy(low), torch.from_numpy(high))
    rng, best = generator(seed, "attacks", "match"), (np.inf, np.zeros((len(y), len(low))))

    def loss(x: Tensor) -> Tensor:
        return losses(module(x), labels).mean()

    for _ in range(_RESTARTS):
        begin = torch.from_numpy(rng.normal(size=(len(y), len(low))) * 0.1)
        distance, rebuilt = _descend(loss, parameters, wanted, length, begin)
        clipped = torch.clamp(rebuilt, *bounds).numpy()
        if distance < best[0]:
            best = distance, clipped
        if distance < _MATCHED:
            break
    return best[1]


def _descend(
    loss: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    wanted: Sequence[Tensor],
    length: float,
    begin: Tensor,
) -> tuple[float, Tensor]:
    x = begin.clone().requires_grad_(True)
    search = torch.optim.LBFGS([x], max_iter=_ITERATIONS, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def distance() -> Tensor:
        own = torch.autograd.grad(loss(x), parameters, create_graph=True)
        return torch.stack([(a - b).square().sum() for a, b in zip(own, wanted, strict=True)]).sum() / length

    def closure() -> Tensor:
        search.zero_grad()
        far = distance()
        far.backward(inputs=[x])  # type: ignore[no-untyped-call]
        return far

    search.step(closure)  # type: ignore[no-untyped-call]
    last = float(distance().detach())
    if not np.isfinite(last) or not bool(torch.isfinite(x).all()):
        return np.inf, torch.zeros_like(begin)
    return last, x.detach()


def errors(truth: Floats, reconstructed: Floats, constant: Floats) -> Floats:
    """Return (B,) root mean square errors of the reconstructions, best paired, over that of the constant guess.

    A record that the constant guess hits counts as 0 where the reconstruction hits it too, else as 1.

    Args:
        truth: (B, D) records.
        reconstructed: (B, D) reconstructions.
        constant: (D,) the constant guess.
    """
    apart = np.sqrt(np.mean((truth[:, None] - reconstructed[None]) ** 2, axis=2))
    row, column = linear_sum_assignment(apart)
    naive = np.sqrt(np.mean((truth - constant) ** 2, axis=1))
    own = apart[row, column]
    return np.asarray(np.where(naive > 0, own / np.where(naive > 0, naive, 1.0), np.where(own > 0, 1.0, 0.0)))


@dataclass(frozen=True, eq=False)
class Attacked:
    """The model whose gradients are inverted.

    layer: As ``first_layer`` says. losses: Of outputs and labels, row by row.
    predict: Of outputs, (n, C) probabilities of classes. last: As ``last_layer`` says, where labels are such classes, to be read
        off it; None where they are known.
    """

    build: Callable[[], nn.Module]
    arrays: Mapping[str, Floats]
    layer: str
    losses: Losses
    predict: Callable[[Tensor], Tensor]
    last: str | None = None


def trials(
    model: Attacked, x: Floats, y: Labels, step: Step, seed: int = 0, batches: Sequence[int] = BATCHES, patients: int = PATIENTS,
) -> list[Inverted]:  # fmt: skip
    """Draw batches of each size, and invert each without privacy and with it.

    The attacker knows the bounds of each feature and the mean record, and the labels where they are no classes.

    Args:
        model: The model whose gradients are inverted.
        x: (n, D) a row of each patient as the module takes it.
        y: (n, ...) labels.
        step: From a batch's rows, whether with privacy, and the batch's number to the gradient that the step shows.
        seed: Of the patients drawn and of the attack's starts.
        batches: The sizes of batches.
        patients: How many patients are drawn; batches of every size are of these.
    """
    drawn = generator(seed, "attacks", "inverted").permutation(len(y))[:patients]
    low, high, constant = x.min(axis=0), x.max(axis=0), x.mean(axis=0)
    chances, inverted = _chances(model, constant), []
    for size in batches:
        for private in (False, True):
            error: list[float] = []
            right = 0
            for number, begin in enumerate(range(0, len(drawn) - size + 1, size)):
                some = drawn[begin : begin + size]
                rows = Rows(x[some], y[some], np.arange(size), size)
                gradient = step(rows, private, 1000 * size + number)
                labels = y[some]
                if chances is not None:
                    labels = labels_from_last_layer(gradient[f"{model.last}bias"], chances, size)
                    right += int(
                        np.minimum(*(np.bincount(of, minlength=len(chances)) for of in (y[some], labels))).sum()
                    )
                guess = (
                    from_first_layer(gradient[f"{model.layer}weight"], gradient[f"{model.layer}bias"])
                    if size == 1
                    else None
                )
                if guess is None:
                    module = load_module(model.build, model.arrays)
                    record = match(module, gradient, labels, low, high, model.losses, seed)
                else:
                    record = np.clip(guess, low, high)[None]
                error += errors(x[some], record, constant).tolist()
            inverted.append(Inverted(size, private, tuple(error), None if chances is None else right / len(error)))
    return inverted


def _chances(model: Attacked, record: Floats) -> Floats | None:
    """(C,) the model's probabilities for a (D,) record; None where labels are known."""
    if model.last is None:
        return None
    with torch.no_grad():
        outputs = load_module(model.build, model.arrays).eval()(torch.from_numpy(record)[None])
    return np.asarray(model.predict(outputs)[0].numpy())


def load_module(build: Callable[[], nn.Module], arrays: Mapping[str, Floats]) -> nn.Module:
    """The module of these arrays, in float64."""
    with torch.random.fork_rng(devices=[]):
        module = build().double()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
    return module
