"""Models of longitudinal records: trajectories in the order of their steps, with a mask of missing cells, static columns beside.

Nothing in them looks across rows, and all layers are linear maps, norms and elementwise functions, so that ``torch.func`` gives
each patient's gradient: ``nn.GRU`` and ``nn.MultiheadAttention`` would hide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyclinic.ehr.encoding import feature_slices
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError


class Unrolled(nn.Module):
    """Rows as sequences: (B, features) to values (B, T, C), a mask (B, T, C) that is 1 where a cell was seen, and static (B, S).

    T is the number of steps of the longest trajectory; shorter ones count as not seen after their end. A missing cell counts as
    not seen where its column has an ``indicator``, which ``data.imputation`` at ``indicator`` gives it. Values are 0 where
    nothing was seen. What is in no trajectory is static.

    Raises ConfigError for a schema without trajectories.
    """

    def __init__(self, features: int, schema: Schema) -> None:
        super().__init__()
        paths = [(column, at) for column, at in feature_slices(schema) if column.kind == "trajectory"]
        if not paths:
            raise ConfigError(
                f"A model of sequences needs a column of kind 'trajectory', and the schema {schema.name!r} has none; give "
                "the tables' visits by --time and --steps, or take another model, as mlp."
            )
        self.steps, self.channels = max(column.steps for column, _ in paths), len(paths)
        # Behind the features stand a 0 and a 1, for what is always so.
        at_zero, at_one = features, features + 1
        values = torch.full((self.steps, self.channels), at_zero)
        missing = torch.full((self.steps, self.channels), at_one)
        used = set()
        for channel, (column, at) in enumerate(paths):
            places = range(at.start, at.stop)
            gone = range(at.stop, at.stop + column.steps) if column.indicator else [at_zero] * column.steps
            values[: column.steps, channel] = torch.tensor(places)
            missing[: column.steps, channel] = torch.tensor(gone)
            used |= {*places, *gone}
        self._values, self._missing = values.flatten().tolist(), missing.flatten().tolist()
        self._static = [place for place in range(features) if place not in used]
        self.static = len(self._static)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ends = x.new_tensor([0.0, 1.0]).expand(*x.shape[:-1], 2)
        padded, shape = torch.cat([x, ends], -1), (*x.shape[:-1], self.steps, self.channels)
        seen = 1 - padded[..., self._missing].reshape(shape)
        return padded[..., self._values].reshape(shape) * seen, seen, x[..., self._static]


class Recurrent(nn.Module):
    """A gated recurrent unit, as ``nn.GRU`` of one layer: (B, T, inputs) and (B, T) present to the (B, units) last state.

    A step at which nothing is present leaves the state as it is. Cho et al. 2014 (arXiv:1406.1078), as in torch.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.input, self.hidden = nn.Linear(inputs, 3 * units), nn.Linear(units, 3 * units)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(units), 1 / math.sqrt(units))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        given, state = self.input(x), x.new_zeros(*x.shape[:-2], self.units)
        for step in range(x.shape[-2]):
            reset, update, new = given[..., step, :].split(self.units, -1)
            by_reset, by_update, by_new = self.hidden(state).split(self.units, -1)
            keep = torch.sigmoid(update + by_update)
            fresh = torch.tanh(new + torch.sigmoid(reset + by_reset) * by_new)
            here = present[..., step, None]
            state = here * ((1 - keep) * fresh + keep * state) + (1 - here) * state
        return state


class Attention(nn.Module):
    """Multi-head self-attention over the present steps: (B, T, width) and (B, T) to (B, T, width).

    Vaswani et al. 2017 (arXiv:1706.03762), Section 3.2.2. directed: which steps a head looks at first is fixed by
    ``directions``, not learned.
    """

    def __init__(self, width: int, heads: int, steps: int, directed: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        bias = directions(heads, steps) if directed else torch.zeros(heads, steps, steps)
        self.bias = nn.Buffer(bias, persistent=False)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.queries, self.keys, self.values)
        )
        # Keys before queries: a softmax of few numbers is four times as fast across rows as along them.
        scores = key @ query.mT / math.sqrt(query.shape[-1]) + self.bias.mT
        # Finite, so that a row of which nothing is present gives numbers too.
        weights = torch.softmax(scores - 1e9 * (1 - present)[..., None, :, None], -2)
        out: Tensor = self.out((weights.mT @ value).transpose(-3, -2).flatten(-2))
        return out


def directions(heads: int, steps: int) -> Tensor:
    """(heads, steps, steps) what is added to the score of a query (second axis) and a key (third axis), by their distance.

    In turn a head looks at the nearest step before, at the nearest after, at all before, and at all steps. Which visit came first
    is hard to learn from noisy gradients, so that the order needs no parameter. As ALiBi (Press et al. 2022,
    arXiv:2108.12409), in both directions.
    """
    back = (torch.arange(steps)[:, None] - torch.arange(steps)).float()
    nearest, farthest = 2.0, 0.0

    def looking(ahead: Tensor, slope: float) -> Tensor:
        """Where no step lies ahead, the step looks at itself."""
        return torch.where(ahead > 0, -slope * (ahead - 1), torch.where(ahead == 0, -10.0, -20.0))

    kinds = (looking(back, nearest), looking(-back, nearest), looking(back, farthest), torch.zeros_like(back))
    return torch.stack([kinds[head % 4] for head in range(heads)])


class Gru(nn.Module):
    """The last state of a recurrent unit over the steps, and the static columns, to logits."""

    def __init__(self, features: int, outputs: int, schema: Schema, units: int) -> None:
        super().__init__()
        self.unrolled = Unrolled(features, schema)
        self.recurrent = Recurrent(2 * self.unrolled.channels, units)
        self.head = nn.Linear(units + self.unrolled.static, outputs)

    def forward(self, x: Tensor) -> Tensor:
        values, seen, static = self.unrolled(x)
        state = self.recurrent(torch.cat([values, seen], -1), seen.amax(-1))
        out: Tensor = self.head(torch.cat([state, static], -1))
        return out


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, steps: int, directed: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, steps, directed)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), present)
        out: Tensor = x + self.wide(self.between(x))
        return out


class Transformer(nn.Module):
    """The mean over present steps of what blocks of attention make of them, and the static columns, to logits.

    The last layer begins at zero: under clipping a random start is noise that few steps do not forget.
    """

    def __init__(
        self, features: int, outputs: int, schema: Schema, width: int, heads: int, blocks: int, directed: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.unrolled = Unrolled(features, schema)
        self.tokens = nn.Linear(2 * self.unrolled.channels, width)
        self.places = nn.Buffer(_waves(self.unrolled.steps, width), persistent=False)
        steps = self.unrolled.steps
        self.blocks = nn.ModuleList(_Block(width, heads, steps, directed) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width + self.unrolled.static, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        values, seen, static = self.unrolled(x)
        present = seen.amax(-1)
        stream = self.tokens(torch.cat([values, seen], -1)) + self.places
        for block in self.blocks:
            stream = block(stream, present)
        mean = (stream * present[..., None]).sum(-2) / present.sum(-1, keepdim=True).clamp(min=1)
        out: Tensor = self.head(torch.cat([self.norm(mean), static], -1))
        return out


def _waves(steps: int, width: int) -> Tensor:
    """(steps, width) where each step lies, as sines and cosines: no parameters, to which noise would be added.

    Vaswani et al. 2017, Section 3.5, with waves as long as sequences of tens of steps need.
    """
    place = torch.arange(steps)[:, None] / 10.0 ** (torch.arange(0, width, 2) / width)
    return torch.stack([place.sin(), place.cos()], -1).flatten(1)[:, :width]


def gru(features: int, outputs: int, schema: Schema, widths: Sequence[int] = (32,)) -> nn.Module:
    """Return a model of rows with trajectories: (B, features) to (B, outputs) logits.

    Args:
        features: The width of a row.
        outputs: The number of logits.
        schema: The schema of the rows, with trajectories.
        widths: The first is the number of the unit's states.

    Raises:
        ConfigError: For a schema without trajectories.
    """
    return Gru(features, outputs, schema, widths[0])


def transformer(
    features: int, outputs: int, schema: Schema, widths: Sequence[int] = (32,), heads: int = 4, blocks: int = 1,
    directed: bool = True,
) -> nn.Module:  # fmt: skip
    """(B, features) rows with trajectories to (B, outputs) logits, by blocks with the norm first (Xiong et al. 2020,
    arXiv:2002.04745).

    Args:
        features: The width of a row.
        outputs: The number of logits.
        schema: The schema of the rows, with trajectories.
        widths: The first is the width of a step.
        heads: Of which the width must be a multiple.
        blocks: Of attention and a perceptron twice as wide.
        directed: Whether heads look before, after and at all steps by turns (``directions``); else as in the paper.

    Raises:
        ConfigError: for a schema without trajectories. ValueError: for heads that do not divide the width.
    """
    if blocks < 1 or heads < 1 or widths[0] % heads:
        raise ValueError(f"hidden is {widths[0]} with {heads} heads and {blocks} blocks; heads must divide hidden")
    return Transformer(features, outputs, schema, widths[0], heads, blocks, directed)
