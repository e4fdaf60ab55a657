"""Binary tree aggregation: every node of a binary tree over the steps is a noisy sum of the leaves below it.

A prefix sum adds the largest nodes that tile it, at most log2 T of them. Dwork et al. 2010, Chan et al. 2011; for
training Kairouz et al. 2021. The nodes that a step completes are remembered only as the largest of them. So one draw of
the right variance stands for all of theirs: the released sums are distributed as with a draw for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.noise.sensitivity import Participation
from polyclinic.types import Reals


@dataclass(frozen=True)
class Tree:
    """A tree over ``steps`` steps. Keeps one vector for each level, about log2 T.

    ``honaker``: a node's estimate weighs in the nodes below it (Honaker 2015, the part that a stream knows). Its variance at
    height h is then 1 / (2 (1 - 2^-(h+1))) and not 1.
    ``completed``: the last step fills the tree up to a power of two with steps that add nothing, so that the whole sum
    is the root alone. Those steps are noised as any, and the root is one more level to pay for.
    """

    steps: int
    honaker: bool = True
    completed: bool = False

    def __post_init__(self) -> None:
        for name, value in (("honaker", self.honaker), ("completed", self.completed)):
            if not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, got {value!r}.")

    @property
    def levels(self) -> int:
        """Nodes above a leaf, the leaf included, that are ever complete."""
        return (self.steps - 1).bit_length() + 1 if self.completed else self.steps.bit_length()

    @cached_property
    def node_variances(self) -> Reals:
        """(levels,) variance of a node's estimate by height."""
        height = np.arange(self.levels)
        return 1 / (2 * (1 - 2.0 ** -(height + 1))) if self.honaker else np.ones(self.levels)

    def sensitivity(self, participation: Participation) -> float:
        """sqrt(levels) for one participation; for more, each level's nodes as full as the separation lets them be.

        Exact where the separation is a power of two and the steps are enough, else an upper bound.
        """
        times = participation.within(self.steps)
        squared = 0
        for height in range(self.levels):
            most = min(times, -(-(2**height) // participation.separation))
            full, rest = divmod(times, most)
            squared += full * most**2 + rest**2
        return float(np.sqrt(squared))

    def variances(self) -> Reals:
        done = np.arange(1, self.steps + 1)
        bits = (done[:, None] >> np.arange(self.levels)) & 1
        variances: Reals = bits @ self.node_variances
        if self.completed:
            variances[-1] = self.node_variances[-1]
        return variances

    def rows_kept(self, step: int) -> int:
        return self.levels

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        # Row h of the memory is the complete node of height h that the prefix sum adds, or zeros.
        nodes = memory.copy()
        noise = np.empty_like(draws)
        for row, draw in enumerate(draws):
            height, weights, spread = self._completes(step + row)
            below = nodes[:height].copy()
            nodes[:height] = 0
            nodes[height] = spread * draw + weights.astype(draws.dtype) @ below
            noise[row] = nodes[height] - below.sum(axis=0)
        return noise, nodes

    def _completes(self, step: int) -> tuple[int, Reals, float]:
        """The height of the largest node that the step completes, its weights on the nodes kept below, and its spread.

        The spread is the standard deviation of what is new in it: its own draw and those of its right-hand descendants.
        """
        last = self.completed and step == self.steps - 1
        height = self.levels - 1 if last else (step + 1 & -(step + 1)).bit_length() - 1
        weights, variance = np.zeros(height), 1.0
        for below in range(height):
            # A node of variance 1 and the sum of two children combine to a variance that is the node's own weight.
            own = float(self.node_variances[below + 1]) if self.honaker else 1.0
            bit = step >> below & 1
            weights[below] = bit
            weights[: below + 1] *= 1 - own
            variance = own**2 + (1 - own) ** 2 * (variance + (0.0 if bit else float(self.node_variances[below])))
        return height, weights, float(np.sqrt(variance))
