"""MST and AIM over noisy sums: exact without noise, better than independence with it, kept in a file, as good as OpenDP's."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import SelfComposedDpEvent
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals import Marginals, NetworkSynthesizer, estimation, make
from polyclinic.synthesis.marginals.estimation import Measured, fit, maximal, model_cells, sum_matrix
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.sums import HIDDEN, SynthesisMethod, clipped_total, fit_centrally
from polyclinic.synthesis.synthesizer import load, save, unsure
from polyclinic.types import Arrays, Floats, Ints


def chain_layout(columns: int) -> Layout:
    features = (Column(name=f"c{place}", kind="categorical", categories=("a", "b", "c")) for place in range(columns))
    label = Column(name="y", kind="binary", role="label")
    return Layout.of(Schema(name="chain", unit="record", columns=(*features, label)))


def chain(columns: int, rows: int, seed: int = 0) -> tuple[Layout, Floats]:
    """The label, column 0, column 1, ...: each depends on the one before it, and on no other given that."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, rows)
    cells, last = [], label
    for _ in range(columns):
        last = np.where(rng.random(rows) < 0.7, last, rng.integers(0, 3, rows))
        cells.append(np.eye(3)[last])
    return chain_layout(columns), np.concatenate([*cells, np.eye(2)[label]], axis=1)


def pair_distances(method: Marginals, first: Floats, second: Floats) -> Floats:
    """Total variation of every pair of columns."""
    sides = [method.table.cells(z) for z in (first, second)]
    found = []
    for a, b in itertools.combinations(range(len(method.table.sizes)), 2):
        bins = [np.arange(method.table.sizes[place] + 1) for place in (a, b)]
        one, other = (np.histogram2d(cells[:, a], cells[:, b], bins=bins)[0] / len(cells) for cells in sides)
        found.append(np.abs(one - other).sum() / 2)
    return np.array(found)


def shuffled(method: Marginals, z: Floats) -> Floats:
    """The same columns, each independent of the others: as good as independence can be."""
    rng, cells = np.random.default_rng(1), method.table.cells(z)
    return method.table.rows(np.stack([rng.permutation(column) for column in cells.T], axis=1), rng)


def run(method: Marginals, z: Floats, noise: float, seed: int = 1) -> Arrays:
    """The last state."""
    rng, patients = np.random.default_rng(seed), len(z)
    state: Arrays = {"classes": np.full(method.layout.classes, 1 / method.layout.classes)}
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        total = clipped_total(method, round, question, z, np.arange(patients), patients)
        state = method.absorb(
            round, state, (total + noise * rng.standard_normal(len(total))) / patients, noise / patients
        )
    return state


def edges(state: Arrays, round: int) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in state[f"pairs {round}"]}


@pytest.mark.parametrize("noise", [0.0, 15.0])
def test_mst_finds_the_chain_and_without_noise_its_pairs_are_the_tables(noise: float) -> None:
    layout, z = chain(3, 4000)
    method = make(layout, algorithm="mst", rounds=3)
    state = run(method, z, noise)
    assert edges(state, 3) == {(0, 3), (1, 3), (2, 3), (3, 3), (0, 1), (1, 2)}
    synthesizer = method.synthesizer(state)
    assert isinstance(synthesizer, NetworkSynthesizer)
    assert synthesizer.order == (3, 0, 1, 2)
    assert synthesizer.parents == ((), (3,), (0, 3), (1, 3))
    if noise == 0.0:
        cells = method.table.cells(z)
        drawn_from = {own: (above, table) for own, above, table in zip(
            synthesizer.order, synthesizer.parents, synthesizer.conditionals, strict=True)}  # fmt: skip
        joint = np.ones((3, 3, 3, 2))  # columns 0, 1, 2 and the label
        for own, (above, table) in drawn_from.items():
            shape = [int(method.table.sizes[place]) if place in (*above, own) else 1 for place in range(4)]
            axes = sorted((*above, own))
            ordered = np.moveaxis(
                table.reshape([int(method.table.sizes[place]) for place in (*above, own)]), -1, axes.index(own)
            )
            joint = joint * ordered.reshape(shape)
        for pair in sorted(edges(state, 3) - {(3, 3)}):
            sizes = [method.table.sizes[place] for place in pair]
            counts = np.histogram2d(*cells[:, list(pair)].T, bins=[np.arange(size + 1) for size in sizes])[0]
            fitted = joint.sum(axis=tuple(place for place in range(4) if place not in pair))
            np.testing.assert_allclose(fitted, counts / counts.sum(), atol=1e-4)
        drawn = synthesizer.sample(40_000, np.random.default_rng(2))
        assert pair_distances(method, z, drawn).max() < 0.03
    else:
        drawn = synthesizer.sample(40_000, np.random.default_rng(2))
        distances = pair_distances(method, z, drawn)
        assert distances.mean() < 0.2 * pair_distances(method, z, shuffled(method, z)).mean()


def cycle(rows: int) -> tuple[Layout, Floats]:
    """Two columns and the label that each two depend on one another given the third, which no tree can say."""
    rng = np.random.default_rng(0)
    label, first = rng.integers(0, 2, rows), rng.integers(0, 3, rows)
    first = np.where(rng.random(rows) < 0.4, label, first)
    second = np.where(rng.random(rows) < 0.4, first, rng.integers(0, 3, rows))
    second = np.where(rng.random(rows) < 0.3, 2 - 2 * label, second)
    return chain_layout(2), np.concatenate([np.eye(3)[first], np.eye(3)[second], np.eye(2)[label]], axis=1)


@pytest.mark.slow
def test_aim_says_what_no_tree_can_and_keeps_to_its_size() -> None:
    layout, z = cycle(5000)
    aim = make(layout, algorithm="aim", rounds=4)
    found = {}
    for method in (make(layout, algorithm="mst", rounds=3), aim, replace(aim, model=17)):
        synthesizer = method.synthesizer(run(method, z, 4.0))
        assert isinstance(synthesizer, NetworkSynthesizer)
        drawn = synthesizer.sample(40_000, np.random.default_rng(2))
        found[method.algorithm, method.model] = pair_distances(method, z, drawn).max()
        # All three together have 18 cells; the numbers that the last may have are enough for the pairs with the label.
        assert max(table.size for table in synthesizer.conditionals) == (6 if method.model == 17 else 18)
    tree, full, small = found.values()
    assert max(tree, full) < 0.03
    assert small > 2 * full


@pytest.mark.parametrize("algorithm", ["mst", "aim"])
def test_where_nothing_depends_on_anything_columns_are_asked_with_the_label_alone(algorithm: str) -> None:
    method = make(chain_layout(3), algorithm=algorithm, rounds=3)
    cells = np.array(list(itertools.product(range(3), range(3), range(3), range(2))))
    z = method.table.rows(cells, np.random.default_rng(0))
    state = run(method, z, 0.0)
    assert edges(state, 3) == {(place, 3) for place in range(4)} and state[HIDDEN]
    drawn = method.synthesizer(state).sample(20_000, np.random.default_rng(0))
    assert pair_distances(method, z, drawn).max() < 0.03


def test_columns_are_joined_only_as_far_as_a_chordal_graph_needs() -> None:
    sizes = np.array([2, 3, 4, 5])
    assert maximal(sizes, [(0, 1), (1, 2), (2, 3)]) == [(0, 1), (1, 2), (2, 3)]
    # A ring of four needs one more pair: the smaller tables are those of columns 0, 1, 3 and 1, 2, 3 or of 0, 1, 2 and 0, 2, 3.
    assert maximal(sizes, [(0, 1), (1, 2), (2, 3), (0, 3)]) == [(0, 1, 2), (0, 2, 3)]
    assert model_cells(sizes, [(0, 1), (1, 2), (2, 3), (0, 3)]) == 2 * 3 * 4 + 2 * 4 * 5


def measurements(noise: float, patients: int = 4000) -> tuple[Ints, list[Measured]]:
    """Of a chain of three columns and the label: all pairs with the label, and two more that make a clique of four."""
    layout, z = chain(3, patients)
    table, rng = make(layout).table, np.random.default_rng(0)
    cells, sizes = table.cells(z), table.sizes
    found = []
    for clique in [(3,), (0, 3), (1, 3), (2, 3), (0, 1), (1, 2), (0, 2)]:
        codes = np.ravel_multi_index(tuple(cells[:, list(clique)].T), tuple(sizes[list(clique)]))
        shares = np.bincount(codes, minlength=int(np.prod(sizes[list(clique)]))) / patients
        deviation = np.full(len(shares), noise / patients)
        found.append(Measured(clique, shares + deviation * rng.standard_normal(len(shares)), deviation))
    return sizes, found


def test_a_fit_is_the_closest_model_but_for_ten_nats_of_entropy() -> None:
    """At the optimum what is left of each number, by ten variances of its noise, is by how much its cells' potentials rose above
    those of columns that are independent given the label."""
    sizes, measured = measurements(20.0)
    field, potentials = fit(sizes, measured)
    adds = sum_matrix(sizes, measured, field.cliques)
    left = np.concatenate([one.values for one in measured]) - adds @ field.marginals(potentials[None])[0]
    variance = np.concatenate([one.deviation for one in measured]) ** 2
    assert 0.1 < np.mean(left**2 / variance) < 1.5
    start = field.marginals((potentials - adds.T @ (left / (10.0 * variance)))[None])[0]
    tables = dict(zip(field.cliques, np.split(start, np.cumsum(field.cells)[:-1]), strict=True))
    by_class = [tables[column, 3].reshape(3, 2) for column in range(3)]
    for first, second in [(0, 1), (1, 2), (0, 2)]:
        expected = (by_class[first] / tables[(3,)]) @ by_class[second].T
        np.testing.assert_allclose(tables[first, second], expected.ravel(), atol=1e-4)


def test_a_fit_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fit(*measurements(20.0))
    fit(*measurements(1e-6))
    assert not caplog.records
    monkeypatch.setitem(estimation._OPTIONS, "maxiter", 2)
    fit(*measurements(20.0))
    (record,) = caplog.records
    assert "stopped after 2 steps" in record.getMessage() and "Fewer bins or columns" in record.getMessage()


@pytest.mark.slow
def test_a_fit_is_that_of_the_papers_package() -> None:
    """mbi, which steps for long without entropy: frequencies agree far within the noise."""
    mbi = pytest.importorskip("mbi")
    sizes, measured = measurements(20.0)
    domain = mbi.Domain([str(column) for column in range(4)], sizes.tolist())
    terms = [
        mbi.LinearMeasurement(one.values, tuple(map(str, one.clique)), stddev=float(one.deviation[0]))
        for one in measured
    ]
    theirs = mbi.estimation.mirror_descent(domain, terms, known_total=1.0, iters=3000)
    field, potentials = fit(sizes, measured)
    ours = np.split(field.marginals(potentials[None])[0], np.cumsum(field.cells)[:-1])
    for one, values in zip(measured, ours, strict=True):
        other = np.asarray(theirs.project(tuple(map(str, one.clique))).values).ravel()
        assert np.abs(values - other).max() < 0.5 * one.deviation[0]


MIXED = Schema(
    name="mixed",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(0.0, 100.0)),
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="codes", kind="code_set", categories=("250", "401")),
        Column(name="died", kind="binary", role="label"),
    ),
)


def mixed(rows: int) -> tuple[Layout, Floats, Ints]:
    layout, rng = Layout.of(MIXED), np.random.default_rng(0)
    y = (rng.random(rows) < 0.2).astype(np.int64)
    age = np.clip(rng.normal(50 + 20 * y, 12), 0, 100) / 50 - 1
    lactate = np.where(rng.random(rows) < 0.3, np.nan, np.clip(rng.gamma(2, 1 + 2 * y), 0, 20) / 10 - 1)
    codes = rng.random((rows, 2)) < np.stack([0.1 + 0.6 * y, np.full(rows, 0.3)], axis=1)
    return layout, layout.rows(np.column_stack([age, lactate, codes]), y), y


def test_a_mixed_table_is_drawn_by_label_and_comes_back_from_its_file(tmp_path: Path) -> None:
    layout, z, y = mixed(4000)
    rng = np.random.default_rng(4)
    method = make(layout, algorithm="mst", rounds=3)
    synthesizer = fit_centrally(method, z, np.arange(4000), 4000, 5.0, np.random.default_rng(1))
    labels = np.repeat([0, 1], 3000)
    drawn = synthesizer.sample(6000, np.random.default_rng(2), labels)
    np.testing.assert_array_equal(layout.labels(drawn), labels)
    for label in (0, 1):
        real, ours = (layout.features_and_labels(rows)[0] for rows in (z[y == label], drawn[labels == label]))
        assert np.abs(real.mean(axis=0) - ours.mean(axis=0))[[0, 2, 3]].max() < 0.06
        assert abs(np.nanmean(real[:, 1]) - np.nanmean(ours[:, 1])) < 0.06
        assert abs(np.isnan(real[:, 1]).mean() - np.isnan(ours[:, 1]).mean()) < 0.05
    assert encode(layout.decode(drawn), MIXED).y is not None
    free = layout.labels(synthesizer.sample(6000, np.random.default_rng(3)))
    assert abs(free.mean() - y.mean()) < 0.03

    able = unsure(synthesizer)
    assert able is not None and able.patients == 4000 and {("age", "died"), ("lactate", "died")} <= set(able.together)
    absent = [np.isnan(layout.features_and_labels(one.sample(4000, rng))[0][:, 1]).mean() for one in able.anew(8, rng)]
    expected = np.isnan(layout.features_and_labels(z)[0][:, 1]).mean()
    assert abs(np.mean(absent) - expected) < 0.03 and np.std(absent) > 0.006, "a set of one model varies by 0.006 alone"

    path = tmp_path / "synthesizer.safetensors"
    save(synthesizer, path)
    again = load(path, layout)
    np.testing.assert_array_equal(
        again.sample(500, np.random.default_rng(4)), synthesizer.sample(500, np.random.default_rng(4))
    )
    with pytest.raises(DataError, match="holds no synthesizer of this schema"):
        load(path, chain_layout(4))


RARE = Layout.of(Schema(name="rare", unit="record", columns=(
    *(Column(name=f"x{place}", kind="continuous", bounds=(-5.0, 5.0)) for place in range(6)),
    Column(name="died", kind="binary", role="label"))))  # fmt: skip


def rare(rows: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """An outcome of 7 % that two of six columns tell; the other four hang together far more than anything with the outcome."""
    common = rng.normal(size=(rows, 1))
    others = 0.95 * common + 0.3 * rng.normal(size=(rows, 4))
    telling = rng.normal(size=(rows, 2))
    y = (rng.random(rows) < 1 / (1 + np.exp(3.2 - 1.1 * telling[:, 0] + 0.9 * telling[:, 1]))).astype(np.int64)
    x = np.clip(np.concatenate([telling, others], axis=1), -5, 5) / 5
    return RARE.rows(x, y), y


def taught(method: SynthesisMethod, seed: int, hospitals: int = 4, rows: int = 10_000) -> float:
    """AUROC on real patients of a logistic regression of synthetic ones at epsilon 3, each hospital with its own noise."""
    rng = np.random.default_rng(seed)
    z, (tests, y) = rare(rows, rng)[0], rare(rows, rng)
    releases, noise = method.rounds + 1, 1.8 * np.sqrt(method.rounds + 1)
    assert epsilon(SelfComposedDpEvent(gaussian_event(noise), releases), 1e-5) <= 3.0
    drawn = fit_centrally(method, z, np.arange(rows), rows, noise * np.sqrt(hospitals), rng).sample(rows, rng)
    learned = LogisticRegression(max_iter=1000).fit(drawn[:, :6], RARE.labels(drawn))
    return float(roc_auc_score(y, learned.predict_proba(tests[:, :6])[:, 1]))


def test_a_rare_outcome_is_kept_where_other_columns_hang_together_more() -> None:
    assert taught(make(RARE, rounds=3), 0) > taught(Independent(RARE), 0) - 0.02 > 0.74


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mst", "aim"])
def test_marginals_teach_a_rare_outcome_as_well_as_columns_alone_do(algorithm: str) -> None:
    gains = [taught(make(RARE, algorithm, rounds=4), seed) - taught(Independent(RARE), seed) for seed in range(6)]
    print(f"{algorithm} less independent: {np.mean(gains):.4f} +- {np.std(gains) / np.sqrt(6):.4f}")
    assert np.mean(gains) > -0.01


def test_a_run_says_that_noise_hides_the_outcome_and_only_then() -> None:
    z, _ = rare(10_000, np.random.default_rng(0))
    method = make(RARE, rounds=3)
    first = [run(replace(method, rounds=1), z, noise, seed)[HIDDEN] for noise in (3.0, 3000.0) for seed in range(20)]
    assert not any(first[:20]) and np.mean(first[20:]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mst", "aim"])
def test_as_good_as_opendps_central_release_at_equal_rho(algorithm: str) -> None:
    dp = pytest.importorskip("opendp.prelude")
    pl = pytest.importorskip("polars")
    dp.enable_features("contrib")
    layout, z = chain(4, 2000)
    method, rho = make(layout, algorithm=algorithm), 0.1
    cells = method.table.cells(z)
    names = [f"c{place}" for place in range(cells.shape[1])]
    context = dp.Context.compositor(
        data=pl.DataFrame({name: cells[:, place] for place, name in enumerate(names)}).lazy(),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(rho=rho),
    )
    keys = {name: list(range(size)) for name, size in zip(names, method.table.sizes.tolist(), strict=True)}
    central = dp.mbi.MST() if algorithm == "mst" else dp.mbi.AIM()
    release = context.query(rho=rho).select(*names).contingency_table(keys=keys, algorithm=central).release()
    theirs = release.synthesize().select(names).to_numpy().astype(np.int64)
    # All rounds and the label's counts have the same noise; rho = releases / (2 noise^2).
    noise = np.sqrt((method.rounds + 1) / (2 * rho))
    synthesizer = fit_centrally(method, z, np.arange(2000), 2000, noise, np.random.default_rng(1))
    drawn = synthesizer.sample(len(theirs), np.random.default_rng(2))
    ours = pair_distances(method, z, drawn).mean()
    other = pair_distances(method, z, method.table.rows(theirs, np.random.default_rng(0))).mean()
    print(f"{algorithm}: total variation {ours:.4f}, OpenDP {other:.4f}")
    assert other / 6 < ours < 1.5 * other
