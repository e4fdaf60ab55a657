"""Tree noise: the lecture's tree of 16 steps, the golden variances and errors, completion and restarts."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp

from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.noise import Participation, error, noise_process
from polyclinic.privacy.noise.tree import Tree
from polyclinic.privacy.streams import keyed_stream

ONCE = Participation(1, 1)


def nodes_of(tree: Tree) -> list[tuple[int, int]]:
    """First and last step (from 1) of every node that is ever complete, virtual steps included."""
    size = 2 ** (tree.levels - 1) if tree.completed else tree.steps
    return [
        (first, first + 2**height - 1)
        for height in range(tree.levels)
        for first in range(1, size - 2**height + 2, 2**height)
    ]


def node_matrix(tree: Tree) -> np.ndarray:
    """(nodes, steps) which steps each node sums."""
    step = np.arange(1, tree.steps + 1)
    return np.array([(first <= step) & (step <= last) for first, last in nodes_of(tree)], dtype=float)


def test_the_lecture_s_tree_of_16_steps_sums_these_nodes_at_steps_11_12_and_13():
    prefix = np.cumsum(noise_process("tree", 16, honaker=False).matrix(), axis=0)
    expected = {11: [(1, 8), (9, 10), (11, 11)], 12: [(1, 8), (9, 12)], 13: [(1, 8), (9, 12), (13, 13)]}
    for step, nodes in expected.items():
        # A draw is the noise of the largest node that ends at its step.
        ends = np.flatnonzero(prefix[step - 1]) + 1
        assert [(end - (end & -end) + 1, end) for end in ends] == nodes
        assert set(prefix[step - 1]) == {0.0, 1.0}


@pytest.mark.parametrize("steps", [1, 4, 7, 15, 16])
@pytest.mark.parametrize("completed", [False, True])
def test_the_honaker_estimate_is_the_best_linear_one_from_the_nodes_so_far(steps, completed):
    tree = Tree(steps, honaker=True, completed=completed)
    for step, variance in enumerate(tree.variances(), 1):
        last = completed and step == steps
        size = 2 ** (tree.levels - 1) if last else step
        known = [(a, b) for a, b in nodes_of(tree) if b <= size]
        # Least squares on the leaves, of which the virtual ones are leaves like any other.
        seen = np.array([[a <= leaf <= b for leaf in range(1, size + 1)] for a, b in known], dtype=float)
        ones = np.ones(size)
        assert variance == pytest.approx(ones @ np.linalg.pinv(seen.T @ seen) @ ones, rel=1e-9)


@pytest.mark.parametrize("honaker", [False, True])
@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("steps", [1, 6, 8, 13])
def test_prefix_sums_covary_as_those_of_a_tree_with_a_draw_for_every_node(steps, honaker, completed):
    tree = Tree(steps, honaker, completed)
    nodes = nodes_of(tree)

    def estimate(first: int, last: int) -> np.ndarray:
        """Weights on all nodes' draws."""
        unit = np.eye(len(nodes))[nodes.index((first, last))]
        height = (last - first + 1).bit_length() - 1
        if not honaker or height == 0:
            return unit
        below = 1 / (2 * (1 - 2.0**-height))
        own = 2 * below / (2 * below + 1)
        middle = (first + last) // 2
        return own * unit + (1 - own) * (estimate(first, middle) + estimate(middle + 1, last))

    rows = []
    for step in range(1, steps + 1):
        if completed and step == steps:
            tiles = [(1, 2 ** (tree.levels - 1))]
        else:
            ends = [step >> bit << bit for bit in range(step.bit_length()) if step >> bit & 1]
            tiles = [(end - (end & -end) + 1, end) for end in ends]
        rows.append(sum(estimate(*tile) for tile in tiles))
    expected = np.array(rows) @ np.array(rows).T
    prefix = np.cumsum(noise_process("tree", steps, honaker=honaker, completed=completed).matrix(), axis=0)
    np.testing.assert_allclose(prefix @ prefix.T, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("steps", "levels", "plain", "honaker", "means", "losses"),
    [
        (4, 3, 2, 1.666667, (1.25, 0.97619), (2.4495, 2.2361, 2)),
        (15, 4, 4, 2.771429, (2.1333, 1.4781), (4.0, 3.3295, 3.8730)),
        (16, 5, 4, 2.771429, (2.0625, 1.4180), (4.4721, 3.7225, 4)),
        (1000, 10, 9, 5.302370, (4.938, 2.8701), (9.4868, 7.2817, 31.6228)),
        (1024, 11, 10, 5.802859, (5.0010, 2.9019), (10.4881, 7.9895, 32)),
    ],
)
def test_golden_levels_variances_and_errors(steps, levels, plain, honaker, means, losses):
    kinds = [noise_process("tree", steps, honaker=False), noise_process("tree", steps)]
    for process, largest, mean, loss in zip(kinds, (plain, honaker), means, losses, strict=False):
        assert process.sensitivity(ONCE) ** 2 == pytest.approx(levels, rel=1e-12)
        assert process.variances().max() == pytest.approx(largest, abs=5e-7)
        assert process.variances().mean() == pytest.approx(mean, abs=5e-5)
        assert error(process, ONCE).rms_max == pytest.approx(loss, abs=5e-5)
    assert error(noise_process("independent", steps), ONCE).rms_max == pytest.approx(losses[2], abs=5e-5)


def test_row_28_virtual_steps_count_for_the_depth_and_leave_the_root_alone():
    assert Tree(1000).levels == 10 and Tree(1000, completed=True).levels == 11
    assert Tree(1024).levels == Tree(1024, completed=True).levels == 11
    assert Tree(1000, honaker=False).variances()[-1] == (1000).bit_count() == 6
    assert Tree(1000, honaker=False, completed=True).variances()[-1] == 1
    assert Tree(1000, completed=True).variances()[-1] == pytest.approx(0.500244, abs=5e-7)
    paid = [noise_process("tree", 1000, completed=completed).sensitivity(ONCE) ** 2 for completed in (False, True)]
    assert paid == pytest.approx([10, 11], rel=1e-12)


@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 8, 13, 16])
def test_no_participation_moves_the_nodes_further_than_the_sensitivity(steps, completed):
    tree = Tree(steps, completed=completed)
    matrix = node_matrix(tree)
    for separation in (1, 2, 3, 4, 7, 8):
        for times in (1, 2, 3, 16):
            worst = 0.0
            # Node sums do not fall as steps are added, so only full patterns need a look.
            patterns = [(first,) for first in range(steps)]
            while patterns:
                pattern = patterns.pop()
                worst = max(worst, float(np.linalg.norm(matrix[:, list(pattern)].sum(axis=1))))
                if len(pattern) < times:
                    patterns += [(*pattern, step) for step in range(pattern[-1] + separation, steps)]
            bound = tree.sensitivity(Participation(separation, times))
            assert worst <= bound * (1 + 1e-12)
            if separation.bit_count() == steps.bit_count() == 1:
                assert worst == pytest.approx(bound, rel=1e-12)


def test_an_epoch_with_a_restart_is_one_event():
    epochs = noise_process("tree", 4096, restart=1024, honaker=False)
    each_once = Participation(1024, 4)
    assert epochs.event(3.0, each_once) == gaussian_event(3.0, 4)
    assert epochs.sensitivity(each_once) ** 2 == pytest.approx(11, rel=1e-12)
    assert epochs.variances()[1024 * 3 - 1] == 3  # three roots
    # Node noise of 10 clip norms: 4 epochs at 11 levels.
    spent = epsilon(epochs.event(10 / math.sqrt(11), each_once), 1e-5)
    assert spent == pytest.approx(epsilon(gaussian_event(10 / math.sqrt(44)), 1e-5), rel=1e-9)
    assert spent == pytest.approx(2.737785, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "steps", "accountant", "expected"),
    [
        ("tree", 16, "pld", (4.983306, 1.760057, 0.819728)),
        ("tree", 16, "rdp", (5.377728, 1.914250, 0.896960)),
        ("tree", 1024, "pld", (7.955246, 2.737785, 1.264062)),
        ("tree", 1024, "rdp", (8.551898, 2.968009, 1.378497)),
        ("sqrt-toeplitz", 16, "pld", (2.896131, 1.044327, 0.489324)),
        ("sqrt-toeplitz", 1024, "pld", (3.898531, 1.391490, 0.650154)),
    ],
)
def test_golden_epsilon_of_noise_2_5_and_10_on_the_base_draws(name, steps, accountant, expected):
    process = noise_process(name, steps)
    for base, value in zip((2, 5, 10), expected, strict=True):
        event = process.event(base / process.sensitivity(ONCE), ONCE)
        # Ours of "pld" is an upper bound on a grid; the golden values of a Gaussian are exact.
        assert epsilon(event, 1e-5, accountant) == pytest.approx(value, rel=1e-3 if accountant == "pld" else 1e-6)


@pytest.mark.parametrize("base", [2, 5, 10])
@pytest.mark.parametrize("steps", [4, 15, 16, 1000])
def test_the_tree_s_event_costs_what_dp_accounting_s_tree_costs(steps, base):
    theirs = rdp.RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(dpa.SingleEpochTreeAggregationDpEvent(base, steps))
    process = noise_process("tree", steps)
    event = process.event(base / process.sensitivity(ONCE), ONCE)
    assert epsilon(event, 1e-5, "rdp") == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


def test_the_tree_keeps_a_vector_for_each_level():
    process = noise_process("tree", 1000)
    _, state = process.draw(keyed_stream(0, "a"), {}, 999, 4)
    assert state["memory"].shape == (10, 4)
