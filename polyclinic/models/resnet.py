"""A residual network for tables, with an embedding of each column of categories: Gorishniy et al. 2021 (arXiv:2106.11959).

Layer norm stands where the paper has batch norm, which would let one patient's row change another's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyclinic.ehr.encoding import feature_slices
from polyclinic.ehr.schema import Schema


class Embedded(nn.Module):
    """Rows with each column of categories replaced by an embedding: (B, features) to (B, ``width``).

    A one-hot cell becomes its category's vector, a set of codes the sum of its codes' vectors, a missing cell zero. A vector has
    as many numbers as there are categories, ``embedding`` at most. All other features stay as they are, before the embeddings.
    """

    def __init__(self, features: int, schema: Schema, embedding: int) -> None:
        super().__init__()
        self.slices = [at for column, at in feature_slices(schema) if column.kind in ("categorical", "code_set")]
        sizes = [(at.stop - at.start, min(embedding, at.stop - at.start)) for at in self.slices]
        tables = [nn.Linear(categories, numbers, bias=False) for categories, numbers in sizes]
        for table in tables:  # as the paper's code, by the length of a vector
            bound = 1 / math.sqrt(table.out_features)
            nn.init.uniform_(table.weight, -bound, bound)
        self.tables = nn.ModuleList(tables)
        hot = {place for at in self.slices for place in range(at.start, at.stop)}
        self.others = [place for place in range(features) if place not in hot]
        self.width = len(self.others) + sum(numbers for _, numbers in sizes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = [table(x[..., at]) for table, at in zip(self.tables, self.slices, strict=True)]
        return torch.cat([x[..., self.others], *vectors], -1)


class Residual(nn.Module):
    """``x + layers(x)``."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def tabular_resnet(
    features: int, outputs: int, schema: Schema, widths: Sequence[int] = (32,), blocks: int = 2,
    dropout: float = 0.0, embedding: int = 8,
) -> nn.Module:  # fmt: skip
    """(B, features) float to (B, outputs) logits. Gorishniy et al. 2021, Section 3.2.

    Args:
        features: The width of a row.
        outputs: The number of logits.
        schema: The schema of the rows, by which categories have vectors.
        widths: Of the residual stream and of the layers within its blocks, which are twice as wide where they are not given.
        blocks: Residual blocks, of layer norm, a linear layer, ReLU, and one back.
        dropout: Share of units that training leaves out, within blocks and before they are added.
        embedding: The most numbers of a category's vector.

    Raises:
        ValueError: for a number of blocks or an embedding below 1.

    Examples:
        >>> from polyclinic.ehr.schema import Schema
        >>> columns = [{"name": "unit", "kind": "categorical", "categories": ["a", "b", "c"]}, {"name": "sick", "kind": "binary"}]
        >>> label = {"name": "died", "kind": "binary", "role": "label"}
        >>> schema = Schema.from_dict({"name": "ward", "unit": "record", "columns": [*columns, label]})
        >>> tabular_resnet(4, 2, schema)(torch.zeros(5, 4)).shape
        torch.Size([5, 2])
    """
    if blocks < 1 or embedding < 1:
        raise ValueError(f"blocks and embedding must be 1 or more, not {blocks} and {embedding}")
    embedded, width, inner = Embedded(features, schema, embedding), widths[0], [*widths, 2 * widths[0]][1]

    def dropout_layers() -> list[nn.Module]:
        return [nn.Dropout(dropout)] if dropout else []

    stack = [
        Residual(
            nn.LayerNorm(width),
            nn.Linear(width, inner),
            nn.ReLU(),
            *dropout_layers(),
            nn.Linear(inner, width),
            *dropout_layers(),
        )
        for _ in range(blocks)
    ]
    module = nn.Sequential(
        embedded, nn.Linear(embedded.width, width), *stack, nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs)
    )
    module.representation = str(len(module) - 2)  # type: ignore[assignment]
    return module
