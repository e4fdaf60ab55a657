"""Sequences of longitudinal records: what the models see of a row, what Opacus' and torch's layers make of it, and a signal that
only the order of visits carries."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from opacus import GradSampleModule
from opacus.layers import DPGRU, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.encoding import encode, feature_names
from polyclinic.ehr.imputation import with_indicators
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.models.resnet import Embedded, tabular_resnet
from polyclinic.models.sequences import Attention, Gru, Recurrent, Transformer, Unrolled, gru, transformer
from polyclinic.training.modules import check_behaviour
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.engines import choose, sums

STEPS, MAX_NORM = 6, 0.5
SCHEMA = with_indicators(Schema.from_dict({
    "name": "ward",
    "columns": [
        {"name": "patient", "kind": "integer", "role": "patient_id"},
        {"name": "site", "kind": "integer", "role": "site"},
        {"name": "age", "kind": "integer", "bounds": [0, 100]},
        {"name": "dose", "kind": "trajectory", "bounds": [0, 4], "steps": STEPS, "nullable": True},
        {"name": "unit", "kind": "categorical", "categories": ["a", "b", "c"], "nullable": True},
        {"name": "pulse", "kind": "trajectory", "bounds": [0, 4], "steps": 4},
        {"name": "codes", "kind": "code_set", "categories": ["x", "y"]},
        {"name": "died", "kind": "binary", "role": "label"},
    ],
}))  # fmt: skip
FEATURES = len(feature_names(SCHEMA))


def cohort(patients: int = 1) -> pd.DataFrame:
    """Rows whose dose is 2 at step 1, not seen at step 3, and whose pulse is 1, 2, 3, 4."""
    dose = {f"dose_{step:02d}": [{1: 2.0, 3: np.nan}.get(step, 0.0)] * patients for step in range(STEPS)}
    pulse = {f"pulse_{step:02d}": [step + 1.0] * patients for step in range(4)}
    return pd.DataFrame(
        {"age": [50] * patients, **dose, "unit": ["b"] * patients, **pulse, "codes": ["x;y"] * patients}
    )


def made_up(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(rows, FEATURES, dtype=dtype, generator=torch.Generator().manual_seed(0))
    missing = [place for place, name in enumerate(feature_names(SCHEMA)) if name.endswith("missing")]
    x[:, missing] = (x[:, missing] > 0.5).to(dtype)
    return x


def test_a_row_becomes_its_steps_with_a_mask_and_static_columns_beside() -> None:
    x = torch.from_numpy(np.nan_to_num(encode(cohort(), SCHEMA).x))
    values, seen, static = Unrolled(FEATURES, SCHEMA)(x)
    assert values.shape == seen.shape == (1, STEPS, 2) and static.shape == (1, 1 + 3 + 2)
    assert values[0, :, 0].tolist() == [-1, 0, -1, 0, -1, -1] and seen[0, :, 0].tolist() == [1, 1, 1, 0, 1, 1]
    np.testing.assert_allclose(values[0, :, 1], [-0.5, 0.0, 0.5, 1.0, 0.0, 0.0])
    assert seen[0, :, 1].tolist() == [1, 1, 1, 1, 0, 0]
    assert static[0].tolist() == [0.0, 0, 1, 0, 1, 1]


def test_a_schema_without_trajectories_is_refused() -> None:
    plain = SCHEMA.model_copy(update={"columns": tuple(c for c in SCHEMA.columns if c.kind != "trajectory")})
    with pytest.raises(ConfigError, match="needs a column of kind 'trajectory', and the schema 'ward' has none"):
        gru(6, 2, plain)


def test_the_recurrent_unit_is_torchs_and_skips_steps_at_which_nothing_is_present() -> None:
    ours, theirs = Recurrent(3, 5).double(), nn.GRU(3, 5, batch_first=True).double()
    with torch.no_grad():
        for name, layer in (("ih", ours.input), ("hh", ours.hidden)):
            theirs.get_parameter(f"weight_{name}_l0").copy_(layer.weight)
            theirs.get_parameter(f"bias_{name}_l0").copy_(layer.bias)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x, torch.ones(4, 7)), theirs(x)[1][0])
    present = torch.tensor([1.0, 0, 1, 1, 0, 0, 1])
    torch.testing.assert_close(ours(x, present.expand(4, 7)), theirs(x[:, present.bool()])[1][0])


def test_attention_is_torchs_and_absent_steps_change_nothing() -> None:
    ours, theirs = Attention(8, 2, 5, directed=False).double(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.queries.weight, ours.keys.weight, ours.values.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.queries.bias, ours.keys.bias, ours.values.bias]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, present = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([[1.0, 1, 0, 1, 0]] * 3)
    expected = theirs(x, x, x, key_padding_mask=present == 0)[0]
    torch.testing.assert_close(ours(x, present), expected)
    assert ours(x, torch.zeros(3, 5)).isfinite().all()
    model = transformer(FEATURES, 2, SCHEMA, (8,)).double()
    assert not model(made_up(2)).any()  # it begins at zero
    with_any_head(model)
    absent, rows = made_up(2), made_up(2)
    names = feature_names(SCHEMA)
    gone, value = names.index("dose_05 missing"), names.index("dose_05")
    absent[:, gone], rows[:, gone], rows[:, value] = 1.0, 1.0, 9.0
    torch.testing.assert_close(model(rows), model(absent))


def with_any_head(model: nn.Module) -> nn.Module:
    """The model with a last layer that is not zero."""
    model.get_submodule("head").reset_parameters()  # type: ignore[operator]
    return model


def test_heads_look_before_after_and_everywhere_without_having_learned_it() -> None:
    attention, steps = Attention(4, 4, 5), 5
    with torch.no_grad():
        for layer in (attention.queries, attention.keys):
            layer.weight.zero_(), layer.bias.zero_()
        for layer in (attention.values, attention.out):
            layer.weight.copy_(torch.eye(4)), layer.bias.zero_()
    values = torch.arange(float(steps)).repeat(4, 1).T[None]
    before, after, earlier, everywhere = attention(values, torch.ones(1, steps))[0].T
    torch.testing.assert_close(before, torch.tensor([0.0, 0, 1, 2, 3]), atol=0.2, rtol=0)
    torch.testing.assert_close(after, torch.tensor([1.0, 2, 3, 4, 4]), atol=0.2, rtol=0)
    torch.testing.assert_close(earlier, torch.tensor([0.0, 0, 0.5, 1, 1.5]), atol=1e-3, rtol=0)
    torch.testing.assert_close(everywhere, torch.full((5,), 2.0))


def clipped_by_opacus(module: nn.Module, x: Tensor, y: Tensor, member: Tensor) -> list[Tensor]:
    """The sum over patients of their clipped gradients, a patient's loss the mean of their rows', by Opacus' hooks."""
    hooked = GradSampleModule(module, loss_reduction="sum", strict=False)
    weight = 1.0 / torch.bincount(member)[member]
    (functional.cross_entropy(hooked(x.requires_grad_()), y, reduction="none") * weight).sum().backward()
    parameters = list(module.parameters())
    rows = torch.cat([p.grad_sample.flatten(1) for p in parameters], 1)  # type: ignore[attr-defined]
    patients = rows.new_zeros(int(member.max()) + 1, rows.shape[1]).index_add_(0, member, rows)
    total = (patients * (MAX_NORM / patients.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    return [part.view_as(p) for part, p in zip(total.split([p.numel() for p in parameters]), parameters, strict=True)]


class ByOpacus(nn.Module):
    """Our recurrent unit with Opacus' layer in its place."""

    def __init__(self, ours: Recurrent, inputs: int) -> None:
        super().__init__()
        self.unit = DPGRU(inputs, ours.units, batch_first=True).double()
        self.unit.cells[0].ih.load_state_dict(ours.input.state_dict())
        self.unit.cells[0].hh.load_state_dict(ours.hidden.state_dict())

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        return self.unit(x)[0][:, -1]


class HeadsByOpacus(nn.Module):
    """Our attention with Opacus' layer in its place, which takes steps first."""

    def __init__(self, ours: Attention, width: int) -> None:
        super().__init__()
        self.heads = DPMultiheadAttention(width, ours.heads, batch_first=True).double()
        parts = ((self.heads.qlinear, ours.queries), (self.heads.klinear, ours.keys), (self.heads.vlinear, ours.values))
        for theirs, layer in (*parts, (self.heads.out_proj, ours.out)):
            theirs.load_state_dict(layer.state_dict())
        self.bias = nn.Buffer(ours.bias[0].double())

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        return self.heads(x, x, x, attn_mask=self.bias)[0]


def with_opacus_layers(ours: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """The same model with Opacus' layers, and the names of our parameters by theirs where these differ."""
    theirs = deepcopy(ours)
    if isinstance(theirs, Gru):
        theirs.recurrent = ByOpacus(theirs.recurrent, 4)  # type: ignore[assignment]
        parts = {"ih": "input", "hh": "hidden"}
        kinds = ("weight", "bias")
        return theirs, {
            f"recurrent.unit.{kind}_{a}_l0": f"recurrent.{b}.{kind}" for a, b in parts.items() for kind in kinds
        }
    if isinstance(theirs, Transformer):
        block, inside = theirs.blocks[0], "blocks.0.attention."
        block.attention = HeadsByOpacus(block.attention, 8)  # type: ignore[arg-type]
        parts = {"qlinear": "queries", "klinear": "keys", "vlinear": "values", "out_proj": "out"}
        names = {
            f"{inside}heads.{a}.{kind}": f"{inside}{b}.{kind}" for a, b in parts.items() for kind in ("weight", "bias")
        }
        return theirs, names
    return theirs, {}


@pytest.mark.parametrize("name", ["gru", "transformer", "tabular-resnet"])
@pytest.mark.parametrize("engine", ["layered", "functional", "opacus"])
def test_a_patients_clipped_gradient_is_that_of_opacus_layers(name: str, engine: str) -> None:
    torch.manual_seed(1)
    # Opacus' layers know no absent steps, and its attention confuses heads where the batch comes first.
    schema = Schema.from_dict(SCHEMA.as_dict() | {"columns": [
        {**column, "steps": STEPS} if column["name"] == "pulse" else column for column in SCHEMA.as_dict()["columns"]
    ]})  # fmt: skip
    names = feature_names(schema)
    ours = {
        "gru": gru(len(names), 2, schema, (8,)), "transformer": transformer(len(names), 2, schema, (8,), heads=1),
        "tabular-resnet": tabular_resnet(len(names), 2, schema, (8,)),
    }[name].double()  # fmt: skip
    if name == "transformer":
        with_any_head(ours).double()
    # As many rows as steps: Opacus' check of a mask takes one for the other where the batch comes first.
    x, y = torch.randn(STEPS, len(names), dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    member = torch.tensor([0, 0, 1, 2, 2, 3])
    x[:, [place for place, label in enumerate(names) if label.endswith("missing")]] = 0.0
    theirs, renamed = with_opacus_layers(ours)
    torch.testing.assert_close(ours(x), theirs(x))
    expected = clipped_by_opacus(theirs, x.clone(), y, member)
    by_name = {
        renamed.get(label, label): part for (label, _), part in zip(theirs.named_parameters(), expected, strict=True)
    }
    if engine == "opacus":
        gradients = clipped_by_opacus(ours, x.clone(), y, member)
        computed = {label: part for (label, _), part in zip(ours.named_parameters(), gradients, strict=True)}
    else:
        assert choose(ours, x.shape[1]) == "layered"
        weight = (1.0 / torch.bincount(member)[member]).double()
        batch = Batch(x[None], y[None], weight[None], member[None], 4, False)
        flat = torch.cat([p.detach().flatten() for p in ours.parameters()])[None]
        total, _ = sums(ours, engine, MAX_NORM, 3)(flat, batch)
        pieces = total[0].split([p.numel() for p in ours.parameters()])
        computed = {label: piece.view_as(p) for (label, p), piece in zip(ours.named_parameters(), pieces, strict=True)}
    assert set(computed) == set(by_name)
    for label, part in computed.items():
        torch.testing.assert_close(part, by_name[label], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [gru, transformer, tabular_resnet])
def test_they_keep_patients_apart(make: Callable[..., nn.Module]) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return make(FEATURES, 2, SCHEMA, (8,))

    check_behaviour(build, {name: value.numpy() for name, value in build().state_dict().items()}, FEATURES)
    assert build()(made_up(3, torch.float32)).shape == (3, 2)
    # An audit's canaries have columns of their own behind the schema's.
    assert make(FEATURES + 5, 2, SCHEMA, (8,))(torch.zeros(3, FEATURES + 5)).shape == (3, 2)


def test_embeddings_look_up_categories_and_add_up_codes() -> None:
    embedded = Embedded(FEATURES, SCHEMA, 8)
    hot = torch.from_numpy(np.nan_to_num(encode(cohort(), SCHEMA).x)).float()
    units, codes = embedded.tables
    assert embedded.width == FEATURES - 5 + 3 + 2 and units.weight.shape == (3, 3)
    made = embedded(hot)[0]
    torch.testing.assert_close(made[-5:-2], units.weight[:, 1])
    torch.testing.assert_close(made[-2:], codes.weight.sum(1))


def ordered(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """A dose and a fall of pressure in neighbouring visits, in a circle: only which came first tells who died.

    Each of the two is at any visit as often among those who died as among the others, so that every cell has the same mean in
    both groups, and so has whatever is linear in cells.
    """
    rng = np.random.default_rng(seed)
    died, first = rng.integers(0, 2, patients), rng.integers(0, STEPS, patients)
    second = (first + 1) % STEPS
    values = rng.normal(0.5, 0.3, (2, patients, STEPS))
    rows = np.arange(patients)
    values[0, rows, np.where(died == 1, first, second)] += 2
    values[1, rows, np.where(died == 1, second, first)] += 2
    cells = {
        f"{name}_{step:02d}": np.clip(values[channel, :, step], 0, 4)
        for channel, name in enumerate(("dose", "pulse")) for step in range(STEPS)
    }  # fmt: skip
    return pd.DataFrame(
        {"patient": rows, "site": rows % sites, "age": rng.integers(20, 90, patients), **cells, "died": died}
    )


ORDERED = Schema.from_dict({
    "name": "ordered",
    "columns": [
        {"name": "patient", "kind": "integer", "role": "patient_id"},
        {"name": "site", "kind": "integer", "role": "site"},
        {"name": "age", "kind": "integer", "bounds": [0, 100]},
        *({"name": name, "kind": "trajectory", "bounds": [0, 4], "steps": STEPS} for name in ("dose", "pulse")),
        {"name": "died", "kind": "binary", "role": "label"},
    ],
})  # fmt: skip
dataset = Dataset(
    name="ordered", title="Ordered", description="Made up.", schema=ORDERED, licence="Apache-2.0", citation="none",
    patients=4000, rows=4000, default_sites=2, default_partitioner="natural", natural_sites=("0", "1"),
    load=lambda: ordered(2, 4000, 0), available=lambda: True, simulated=True, generate=ordered,
)  # fmt: skip


@pytest.mark.slow
def test_only_a_model_of_sequences_learns_privately_what_the_order_of_visits_says(
    quick: Callable[..., RunResult],
) -> None:
    settings: dict[str, Any] = {
        "dataset": f"{__name__}:dataset", "sites": 2, "privacy": {"delta": 1e-4}, "rounds": 20,
        "training": {"local_steps": 10, "sample_rate": 0.2, "optimizer": "adam", "learning_rate": 0.02},
    }  # fmt: skip
    flat = quick(model="logistic", **settings)
    assert 0.4 < flat.pooled["auroc"] < 0.65
    for model in ("gru", "transformer"):
        by_order = quick(model=model, hidden=16, **settings)
        assert by_order.pooled["auroc"] > 0.9 and by_order.privacy["epsilon"] <= 3
