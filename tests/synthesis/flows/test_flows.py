"""Flows of tables: coordinates there and back, densities of mixed rows, sensitivity, and moments without privacy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, DataError
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream
from polyclinic.programs import program_of
from polyclinic.synthesis.flows.coordinates import Coordinates
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.training.density import DensityTask, spread
from polyclinic.training.losses import losses_and_gradients, row_losses
from polyclinic.training.stacked.batches import Batch, build_table
from polyclinic.training.stacked.engines import Engine, choose, sums
from polyclinic.training.stacked.trainer import batch_parts
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats
from tests.synthesis.tables import MIXED, mixed, numbers_only, rows_of

LAYOUT = Layout.of(MIXED)


def streams(*key: int) -> tuple[Stream, Stream, Stream]:
    first, second, third = (keyed_stream(0, name, *key) for name in ("batches", "noise", "layers"))
    return first, second, third


def begun(recipe: Recipe) -> Arrays:
    return {name: value.numpy() for name, value in initialise(recipe.module, 0).items()}


def fitted(recipe: Recipe, records: Rows, rounds: int, steps: int) -> Arrays:
    """Trained without privacy."""
    arrays, kept = begun(recipe), {}
    usual = TrainSettings(0.2, steps, 1e-2, 1.0, None, optimizer="adam")
    for round in range(rounds):
        sampling, noise, layers = streams(round)
        work = SiteWork(records, sampling, noise, None, kept, layers)
        update = DensityTask(recipe).train(recipe.module, arrays, [work], usual)[0]
        arrays, kept = update.arrays, dict(update.state)
    return arrays


def records(rows: int, seed: int = 0) -> Rows:
    found = encode(mixed(rows, seed), MIXED)
    assert found.y is not None
    return Rows(found.x, found.y, np.arange(rows), rows)


@pytest.mark.parametrize("bounded", [False, True])
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_coordinates_lead_there_and_back(bounded: bool, seed: int) -> None:
    z = rows_of(LAYOUT, mixed(20, seed))
    there = Coordinates(LAYOUT, bounded)
    v, _ = there.draw(z, np.random.default_rng(seed))
    np.testing.assert_allclose(there.rows(v), z, atol=1e-9)
    assert not np.array_equal(v, there.draw(z, np.random.default_rng(seed + 1))[0])


@pytest.mark.parametrize("bounded", [False, True])
def test_any_numbers_stand_for_a_record_within_bounds(bounded: bool) -> None:
    v = 4 * np.random.default_rng(0).standard_normal((200, LAYOUT.width))
    v[:, LAYOUT.label] = np.eye(3)[np.arange(200) % 3]
    z = Coordinates(LAYOUT, bounded).rows(v)
    low, high = LAYOUT.bounds
    assert (z >= low - 1e-12).all()
    assert (z <= high + 1e-12).all()
    np.testing.assert_allclose(rows_of(LAYOUT, LAYOUT.decode(z)), z, atol=1e-9)


def test_bits_are_spread_over_the_middle_of_their_cells() -> None:
    z = rows_of(LAYOUT, mixed(300, 2))
    there = make(LAYOUT, spread="0.5").coordinates
    v, log_noise = there.draw(z, np.random.default_rng(0))
    _, whole = Coordinates(LAYOUT).draw(z, np.random.default_rng(0))
    bits = ~LAYOUT.numeric[: there._last] & ~there._absent(z)
    moved = (v[:, : there._last] - (2 * z[:, : there._last] - 1))[bits]
    assert np.abs(moved).max() <= 0.5
    assert moved.std() == pytest.approx(1 / np.sqrt(12), abs=0.01)
    np.testing.assert_allclose(log_noise - whole, np.log(2) * bits.sum(1))
    np.testing.assert_allclose(there.rows(v), z, atol=1e-9)


def test_missing_cells_tell_nothing_but_that_they_are_missing() -> None:
    z = rows_of(LAYOUT, mixed(4000, 1))
    v, _ = Coordinates(LAYOUT).draw(z, np.random.default_rng(0))
    lactate = LAYOUT.names.index("lactate")
    absent = z[:, LAYOUT.missing][:, 0] == 1
    assert absent.mean() == pytest.approx(0.2, abs=0.02)
    assert v[absent, lactate].std() == pytest.approx(1.0, abs=0.06)
    assert v[~absent, lactate].std() < 0.6


def test_log_density_of_mixed_rows_is_exact_where_the_flow_is_the_standard_normal() -> None:
    """A flow at its beginning: each number's normal density, each bit's and whole number's mass, half for 0 or 1."""
    schema = Schema(
        name="s", unit="record",
        columns=(
            Column(name="x", kind="continuous", bounds=(-10.0, 10.0), centre=1.0, spread=2.0, nullable=True),
            Column(name="n", kind="integer", bounds=(0.0, 8.0), centre=4.0, spread=2.0),
            Column(name="b", kind="binary"),
            Column(name="y", kind="binary", role="label"),
        ),
    )  # fmt: skip
    layout = Layout.of(schema)
    x = np.array([[0.3, 0.0, 1.0], [np.nan, -0.25, 0.0]])  # encoded: bounds are -1 and 1
    z = layout.rows(x, np.array([1, 0]))
    for bounded in (False, True):
        recipe = make(layout, bounded=bounded, spread=0.5)  # which only training sees
        rows = FlowRows(recipe, begun(recipe), np.array([1.0, 3.0]))
        many = rows.log_density(np.repeat(z, 4000, axis=0), np.random.default_rng(0), draws=1)
        found = np.log(np.exp(many).reshape(2, 4000).mean(1))
        bit = np.log(norm.cdf(2) - norm.cdf(0))
        cells = np.array([[-0.25, 0.25], [-0.75, -0.25]])
        if bounded:
            # v = z only near the centre; the mass of a cell is between its mapped ends.
            low, width, scale, zero = (part[1] for part in recipe.coordinates._map)
            share = (cells - low) / width
            cells = scale * (np.log(share / (1 - share)) - zero)
        whole = np.log(norm.cdf(cells[:, 1]) - norm.cdf(cells[:, 0]))
        number = norm.logpdf((3.0 - 1.0) / 2.0)
        if bounded:
            low, width, scale, zero = (part[0] for part in recipe.coordinates._map)
            share = (1.0 - low) / width
            number = norm.logpdf(scale * (np.log(share / (1 - share)) - zero))
            number += np.log(scale / (width * share * (1 - share)))
        expected = np.array([number + 2 * bit + np.log(0.75), 2 * bit + np.log(0.25)]) + whole
        np.testing.assert_allclose(found, expected, atol=0.03)


def test_the_bounded_map_is_the_identity_near_the_centre() -> None:
    there = Coordinates(LAYOUT, bounded=True)
    near = np.full((1, LAYOUT.width), 1e-4)
    mapped, slope = there._forth(near[:, : there._last])
    centred = np.array([column.centre is not None for column, at in LAYOUT.columns for _ in range(at.stop - at.start)])
    numbers = np.flatnonzero(LAYOUT.numeric[: LAYOUT.features] & centred)
    np.testing.assert_allclose(mapped[0, numbers], 1e-4, atol=1e-7)
    np.testing.assert_allclose(slope[0, numbers], 0.0, atol=1e-3)


@pytest.mark.parametrize("name", ["maf", "nsf"])
def test_engines_agree_and_no_patient_moves_the_sum_by_more_than_the_clip(name: str) -> None:
    recipe = make(LAYOUT, name, transforms=2, hidden=8)
    module = recipe.flow_of(
        {
            key: a + 0.3 * np.random.default_rng(1).standard_normal(a.shape).astype(np.float32)
            for key, a in begun(recipe).items()
        }
    ).double()
    assert choose(module, LAYOUT.width) == "linear"
    shown = spread(recipe, records(6), np.random.default_rng(0))
    shown.x[0] *= 30.0  # an outlier
    patient = np.array([0, 1, 1, 2, 2, 2])

    def summed(keep: np.ndarray, clip: float, engine: Engine = "linear") -> Floats:
        _, who = np.unique(patient[keep], return_inverse=True)
        rows = Rows(shown.x[keep], shown.y[keep], who, int(who.max()) + 1)
        table = build_table([SiteWork(rows, *streams()[:2])], torch.float64, "cpu")
        batch = next(batch_parts(table, np.ones(rows.patients, dtype=bool), 64))
        theta = torch.cat([p.detach().flatten() for p in module.parameters()])[None]
        total: Floats = sums(module, engine, clip, 64, "density")(theta, batch)[0][0].numpy()
        return total

    def plain(rows: list[int]) -> Floats:
        losses = row_losses("density", module(torch.from_numpy(shown.x[rows])), torch.zeros(len(rows)))
        found = torch.autograd.grad(losses.mean(), list(module.parameters()))
        return torch.cat([part.flatten() for part in found]).numpy()

    alone = [plain(np.flatnonzero(patient == p).tolist()) for p in range(3)]
    clipped = [g * min(1.0, 0.5 / float(np.linalg.norm(g))) for g in alone]
    whole = summed(np.ones(6, dtype=bool), 0.5)
    np.testing.assert_allclose(whole, np.sum(clipped, axis=0), atol=1e-6)
    np.testing.assert_allclose(whole, summed(np.ones(6, dtype=bool), 0.5, "functional"), atol=1e-12)
    for p in range(3):
        assert np.linalg.norm(whole - summed(patient != p, 0.5)) <= 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["maf", "nsf"])
def test_masked_layers_have_the_gradients_that_torch_func_builds(name: str, dtype: torch.dtype) -> None:
    """With an activation of each kind, one row a patient or several, clipped or not, a corrected base, and a row whose gradient
    overflows."""
    draw = np.random.default_rng(2)
    free = LAYOUT.width - LAYOUT.classes
    base = (draw.standard_normal(free), np.tril(0.2 * draw.standard_normal((free, free))) + np.eye(free))
    for activation, rows, clip in (("tanh", 1, 0.3), ("elu", 3, 0.3), ("relu", 1, None)):
        recipe = make(LAYOUT, name, transforms=2, hidden=6, bins=4, activation=activation)
        module = replace(recipe, base=base if activation == "elu" else None).module().to(dtype)
        draws = torch.Generator().manual_seed(rows)
        count = sum(p.numel() for p in module.parameters())
        theta = (0.4 * torch.randn(2, count, generator=draws, dtype=torch.float64)).to(dtype)
        x = torch.randn(2, 6, LAYOUT.width, generator=draws, dtype=torch.float64).to(dtype)
        x[0, 0] = 1e25 if clip else 2.0
        member = (torch.arange(6) // rows).repeat(2, 1)
        batch = Batch(x, member, torch.full((2, 6), 1 / rows, dtype=dtype), member, 6 // rows, rows == 1)
        found, loss = sums(module, "linear", clip, 64, "density")(theta, batch)
        expected, same = sums(module, "functional", clip, 64, "density")(theta, batch)
        near = 2e-4 if dtype == torch.float32 else 1e-8
        torch.testing.assert_close(found, expected, rtol=near, atol=near)
        torch.testing.assert_close(loss[1], same[1], rtol=near, atol=near)
        assert found.norm(dim=1).max() <= 6 // rows * (clip or np.inf)


def test_the_closed_form_of_the_loss_is_its_gradient() -> None:
    outputs = torch.randn(7, 1, dtype=torch.float64, requires_grad=True)
    value = row_losses("density", outputs, torch.zeros(7))
    closed, gradient = losses_and_gradients("density", outputs.detach(), torch.zeros(7))
    torch.testing.assert_close(closed, value.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(value.sum(), outputs)[0])
    with pytest.raises(ConfigError, match="takes a model with one output"):
        row_losses("density", torch.zeros(2, 3), torch.zeros(2))


def test_stacked_hospitals_have_what_each_has_alone() -> None:
    recipe = make(LAYOUT, transforms=2, hidden=8)
    usual = TrainSettings(0.5, 3, 1e-2, 1.0, 1.0, optimizer="adam")
    sites = [SiteWork(records(20, s), *streams(s)[:2], 20.0, {}, streams(s)[2]) for s in range(3)]
    together = DensityTask(recipe).train(recipe.module, begun(recipe), sites, usual)
    for number, update in enumerate(together):
        site = SiteWork(records(20, number), *streams(number)[:2], 20.0, {}, streams(number)[2])
        alone = DensityTask(recipe).train(recipe.module, begun(recipe), [site], usual)[0]
        for name, value in alone.arrays.items():
            np.testing.assert_allclose(update.arrays[name], value, atol=2e-5)


def test_a_mixed_table_keeps_its_moments_without_privacy() -> None:
    recipe = make(LAYOUT, hidden=24, transforms=2)
    table = records(1500)
    z = LAYOUT.rows(table.x, table.y)
    rows = FlowRows(recipe, fitted(recipe, table, 3, 60), np.bincount(table.y) / 1500)
    drawn = rows.sample(4000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(0), z.mean(0), atol=0.12)
    np.testing.assert_allclose(drawn.std(0), z.std(0), atol=0.12)
    assert np.abs(np.corrcoef(drawn.T) - np.corrcoef(z.T)).mean() < 0.06
    age, lactate = LAYOUT.names.index("age"), LAYOUT.names.index("lactate")
    assert np.corrcoef(drawn[:, age], drawn[:, lactate])[0, 1] > 0.3
    # The density knows a record from one whose numbers are exchanged among patients.
    other = z.copy()
    other[:, age] = np.random.default_rng(0).permutation(other[:, age])
    rng = np.random.default_rng(0)
    assert rows.log_density(z[:300], rng).mean() > rows.log_density(other[:300], rng).mean() + 0.3


def test_a_flow_is_saved_and_read_again(tmp_path: Path) -> None:
    recipe = make(LAYOUT, "nsf", transforms="1", hidden="4", bounded="true", ema=0.5)
    rows = FlowRows(recipe, begun(recipe), np.array([0.7, 0.2, 0.1]))
    save(rows, tmp_path / "s.safetensors")
    again = load(tmp_path / "s.safetensors", LAYOUT)
    labels = np.array([2, 0, 1, 2])
    drawn = again.sample(4, np.random.default_rng(3), labels)
    np.testing.assert_array_equal(drawn, rows.sample(4, np.random.default_rng(3), labels))
    np.testing.assert_array_equal(LAYOUT.labels(drawn), labels)
    assert again.options() == rows.options()
    with pytest.raises(DataError, match="holds no synthesizer"):
        load(tmp_path / "s.safetensors", Layout.of(numbers_only(2, 2)))


def test_a_flow_that_diverged_draws_nothing() -> None:
    recipe = make(LAYOUT, transforms=1, hidden=4)
    broken = {name: np.full_like(value, np.inf) for name, value in begun(recipe).items()}
    with pytest.raises(DataError, match="has diverged"):
        FlowRows(recipe, broken, np.ones(3)).sample(5, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("maff", {}, "Did you mean 'maf'"),
        ("maf", {"blocks": 3}, "has no option 'blocks'"),
        ("maf", {"hidden": "wide"}, "whole number from 1 to 4096"),
        ("maf", {"transforms": 0}, "whole number from 1 to 50"),
        ("maf", {"transforms": 2.5}, "whole number from 1 to 50"),
        ("maf", {"layers": float("inf")}, "whole number from 0 to 10"),
        ("nsf", {"bins": 1}, "whole number from 2 to 64"),
        ("maf", {"bounded": "perhaps"}, "true or false"),
        ("maf", {"ema": 1}, "from 0 to below 1"),
        ("maf", {"spread": 0}, "above 0 and at most 1"),
    ],
)
def test_bad_options_of_a_flow_are_refused(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(LAYOUT, name, **options)


@pytest.mark.parametrize("hidden", [4, 8, 11, 12, 16])
def test_pairs_that_a_layer_of_few_units_loses_are_counted(hidden: int) -> None:
    """The second derivatives of a transform's log-density that are 0 whatever its numbers."""
    layout = Layout.of(numbers_only(12, 2))
    recipe = make(layout, "maf", transforms="1", hidden=str(hidden))
    module, row = recipe.module().double(), torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    label = torch.tensor([1.0, 0.0], dtype=torch.float64)
    second = torch.autograd.functional.hessian(lambda x: module(torch.cat([x, label])[None]).sum(), row)
    nothing = int((torch.triu(second, 1) == 0).sum() - 12 * 13 // 2)
    assert nothing == recipe.lost == max(12 - hidden, 0) * (max(12 - hidden, 0) + 1) // 2
    said = program_of(RunConfig.build({
        "task": "synthesis", "model": "maf", "synthesis.options": f"hidden={hidden}",
    })).why_model(layout.schema)  # fmt: skip
    assert (f"{recipe.lost} of 66 pairs" in said and "hidden=12" in said) if recipe.lost else not said
    assert make(layout, "maf", layers="0", hidden="1").lost == 0
