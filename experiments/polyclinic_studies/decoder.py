"""medGAN's decoder, learnt from PUBLIC records: an autoencoder of code sets (Choi et al. 2017, section 3).

Nothing here is private. The published systems pre-train on the hospitals' own records without noise, which no epsilon covers;
here the records must be ones that everybody may see.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.files import write_file
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import generator, torch_seed

HIDDEN = 128


def learn_decoder(
    records: pd.DataFrame, schema: Schema, path: str | Path, *, epochs: int = 100, batch: int = 128, seed: int = 0
) -> float:
    """Train features-128 (tanh)-features (sigmoid) on public ``records`` and write its decoder to ``path``; gives the last
    epoch's mean cross-entropy of a cell.

    Every feature must be 0 or 1, as of code sets and binary columns. The file is what the game ``medgan`` takes as
    ``decoder-file``. Raises DataError for records that the schema does not allow, ConfigError for features of another kind.
    """
    x = encode(records, schema, "public records").x
    if not np.isin(x, (0.0, 1.0)).all():
        raise ConfigError("A decoder of codes needs features that are 0 or 1, such as a code set's; numbers have none.")
    columns = x.shape[1]

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(columns, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, columns)
        )  # fmt: skip

    module = build()
    module.load_state_dict(initialise(build, torch_seed(seed, "decoder")))
    optimizer = torch.optim.Adam(module.parameters())
    rows, order, loss = torch.from_numpy(x).float(), generator(seed, "decoder"), 0.0
    for _ in range(epochs):
        losses = []
        for part in np.array_split(order.permutation(len(rows)), max(1, len(rows) // batch)):
            found = functional.binary_cross_entropy_with_logits(module(rows[part]), rows[part])
            optimizer.zero_grad()
            torch.autograd.backward(found)
            optimizer.step()
            losses.append(float(found.detach()))
        loss = float(np.mean(losses))
    trained = module.state_dict()
    decoder = {"weight": trained["2.weight"].numpy(), "bias": trained["2.bias"].numpy()}
    write_file(Path(path), partial(save_file, decoder))
    return loss
