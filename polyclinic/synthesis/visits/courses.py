"""Rows drawn visit by visit: a vector autoregression of order one on the normals beneath scores and 0/1 numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from polyclinic.synthesis.checks import Numbers
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.covariance import lift
from polyclinic.synthesis.methods.draws import RowsByClass
from polyclinic.synthesis.methods.normal import Places, draw_rows, histograms_of, normals_of
from polyclinic.synthesis.visits.timelines import Timeline, rows_of
from polyclinic.types import Arrays, Bools, Floats, Ints

# A score that varies less than this between rows is taken as constant.
_CONSTANT = 0.02
# Directions of two visits in a row that are flatter than this share of what the noise hides are raised to it.
_FLAT = 0.5
# Variances of classes are taken to differ by so much; where noise is more, they are drawn to 1, that of scores.
_UNLIKE = 0.3
# A cut that no normal reaches.
_NEVER = 9.0


@dataclass(frozen=True, eq=False)
class Parts:
    """Where own columns, the numbers between visits and the visits are, in rows of ``begun`` and of ``step``.

    Indicators of missing cells follow the values. missing: the trajectories that have an indicator.
    """

    begun_own: Ints
    begun_visit: Ints
    own: Ints
    between: Ints
    before: Ints
    now: Ints
    missing: Ints

    @classmethod
    def of(cls, line: Timeline) -> Parts:
        own, measured = line.own.features, len(line.measured)
        own_missing = line.own.missing.stop - line.own.missing.start
        missing = np.flatnonzero([column.nullable for column, _ in line.measured])
        between = line.between.features

        def places(values: int, indicators: int, count: tuple[int, int], apart: int = 1) -> Ints:
            return np.concatenate([values + apart * np.arange(count[0]), indicators + apart * np.arange(count[1])])

        cells, begun, step = (measured, len(missing)), line.begun.missing.start, line.step.missing.start
        return cls(
            places(0, begun, (own, own_missing)), places(own, begun + own_missing, cells), places(0, step, (own, own_missing)),
            own + np.arange(between), places(own + between, step + own_missing, cells, 2),
            places(own + between + 1, step + own_missing + 1, cells, 2), missing,
        )  # fmt: skip


def transitions(line: Timeline, step: Arrays, histograms: Floats, bins: int, hidden: Floats) -> Arrays:
    """The numbers that draw a visit from the one before it, by class.

    ``location``, ``scale``: (K, P), those of rows of ``step``, 0 where a number is constant
    ``weights``: (K, D, G), which give the D numbers of a gap and a visit from the G of own columns, the step and the
        visit before
    ``innovation``: (K, D, D), the root of the covariance of what the weights leave
    ``step_cuts``: (K, P), of 0/1 numbers

    The visits before and now are given the same correlations, with each other column and among themselves (the mean of
    both). So the autoregression is stationary whatever the noise.

    Args:
        line: The trajectories of the layout as visits.
        step: Mean, deviation, root of correlations and cuts, as ``Gaussian`` has them.
        histograms: Of the rows' numbers.
        bins: The number of bins of a numeric column.
        hidden: (K,) standard deviation of the eigenvalues that the noise alone gives each class' covariance.
    """
    numeric = line.step.numeric[: line.step.label.start]
    location, scale = np.where(numeric, step["mean"], 0.0), np.where(numeric, step["deviation"], 1.0)
    at = Parts.of(line)
    # Both kinds of visits are of one course, the visit before a step earlier.
    variance = (scale[:, at.now] ** 2 + scale[:, at.before] ** 2) / 2
    of_noise = (hidden**2 * 2 / len(numeric))[:, None]
    variance = (variance * _UNLIKE**2 + of_noise) / (_UNLIKE**2 + of_noise)
    scale[:, at.now] = scale[:, at.before] = np.sqrt(variance)
    location[:, at.now] = location[:, at.before] = (location[:, at.now] + location[:, at.before]) / 2
    flat = scale < _CONSTANT
    scored = np.flatnonzero(numeric)
    flat[:, scored] |= Bins.of(line.step, bins).constant(histograms)
    weights, innovation, trend = zip(
        *(_transition(root @ root.T, at, *numbers) for root, *numbers in zip(step["root"], flat, hidden, strict=True)),
        strict=True,
    )
    return {
        "trend": np.stack(trend), "location": location, "scale": np.where(flat, 0.0, scale), "weights": np.stack(weights),
        "innovation": np.stack(innovation), "step_cuts": step["cuts"],
    }  # fmt: skip


def _transition(correlations: Floats, at: Parts, still: Bools, hidden: float) -> tuple[Floats, Floats, Floats]:
    """(D, G) weights, (D, D) root of the covariance of what they leave, and (visit,) correlations of visits with their step."""
    before, now, others = at.before, at.now, np.concatenate([at.own, at.between[:1]])
    even = correlations.copy()
    within = (correlations[np.ix_(before, before)] + correlations[np.ix_(now, now)]) / 2
    with_others = (correlations[np.ix_(others, before)] + correlations[np.ix_(others, now)]) / 2
    for visit in (before, now):
        even[np.ix_(visit, visit)], even[np.ix_(others, visit)], even[np.ix_(visit, others)] = (
            within,
            with_others,
            with_others.T,
        )
    even[still], even[:, still] = 0.0, 0.0
    np.fill_diagonal(even, 1.0)
    whole = lift(even, _FLAT * hidden)
    given, wanted = np.concatenate([others, before]), np.concatenate([at.between[1:], now])
    weights = np.linalg.solve(whole[np.ix_(given, given)], whole[np.ix_(given, wanted)]).T
    left = whole[np.ix_(wanted, wanted)] - weights @ whole[np.ix_(given, wanted)]
    values, vectors = np.linalg.eigh((left + left.T) / 2)
    # Without noise, of visits that are all alike, what is lifted may be a little above 1.
    trend = np.clip(whole[at.between[0], now], -1.0, 1.0)
    return weights, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T, trend


@dataclass(frozen=True, eq=False)
class Courses(RowsByClass):
    """Draws own columns and the first visit, then each visit given the one before.

    numbers: those of ``transitions``; those of ``Gaussian`` for rows of ``begun``, each with ``begun_`` before its
        name. Also the histograms ``own``, ``visit``, ``between`` and ``ends``, and ``missing`` (measured,), how often
        cells are missing, 0 where they never are.
    time: the number of the trajectory with the times, -1 where steps are evenly apart.
    """

    bins: int
    time: int

    def allowed_numbers(self) -> dict[str, Numbers]:
        line, at, classes = self._line, Parts.of(self._line), self.layout.classes
        layouts = [("own", line.own), ("visit", line.visit), ("between", line.between)]
        layouts += [("ends", line.ends)] if line.time else []
        wanted, width = len(at.between) - 1 + len(at.now), int(line.step.label.start)
        return {
            **{name: histograms_of(layout, self.bins) for name, layout in layouts},
            **{f"begun_{name}": numbers for name, numbers in normals_of(line.begun).items()},
            "missing": Numbers((len(line.measured),), 0.0),
            "trend": Numbers((classes, len(at.now)), -1.0, 1.0),
            "location": Numbers((classes, width)),
            "scale": Numbers((classes, width), 0.0),
            "step_cuts": Numbers((classes, width)),
            "weights": Numbers((classes, wanted, len(at.own) + 1 + len(at.before))),
            "innovation": Numbers((classes, wanted, wanted)),
        }

    @cached_property
    def _line(self) -> Timeline:
        names = [column.name for column, _ in self.layout.columns if column.kind == "trajectory"]
        return Timeline(self.layout, names[self.time] if self.time >= 0 else "")

    def _fill(self, z: Floats, y: Ints, rng: np.random.Generator) -> None:
        for label in np.unique(y):
            of_class = np.flatnonzero(y == label)
            rows = np.zeros((len(of_class), z.shape[1]))
            self._fill_class(rows, int(label), rng)
            z[of_class] = rows

    def _fill_class(self, z: Floats, label: int, rng: np.random.Generator) -> None:
        line, at, numbers = self._line, Parts.of(self._line), self.numbers
        own, visit, first, last = self._begin(z, label, rng)
        cells, gaps = np.full((len(z), line.steps, len(at.now)), np.nan), np.zeros((len(z), line.steps))
        begun = last >= 0
        cells[begun, first[begun]] = visit[begun]
        location, scale = numbers["location"][label], numbers["scale"][label]
        given = np.concatenate([at.own, at.between[:1], at.before])
        wanted = np.concatenate([at.between[1:], at.now])
        places, between = self._step_scores, at.between[0]
        units = (places - location[between]) / scale[between] if scale[between] > 0 else np.zeros(line.steps)
        for step in range(1, line.steps):
            here = np.flatnonzero((first < step) & (step <= last))
            heights = np.concatenate([own[here], np.full((len(here), 1), places[step]), cells[here, step - 1]], axis=1)
            varies = scale[given] > 0
            heights = np.where(varies, heights - location[given], 0.0) / np.where(varies, scale[given], 1.0)
            # The visit before was a step earlier on the trend.
            heights[:, -len(at.before) :] += numbers["trend"][label] * (units[step] - units[step - 1])
            now = heights @ numbers["weights"][label].T
            now += rng.standard_normal(now.shape) @ numbers["innovation"][label]
            gap, now = np.split(location[wanted] + scale[wanted] * now, [len(at.between) - 1], axis=1)
            cells[here, step] = now
            if line.time:
                gaps[here, step] = gap[:, 0]
        self._write(z, cells, label, (first, last))
        if line.time_at is not None:
            z[:, line.time_at] = self._times(gaps, first, last, rng)

    def _begin(self, z: Floats, label: int, rng: np.random.Generator) -> tuple[Floats, Floats, Ints, Ints]:
        """Draw own columns into ``z``.

        Returns their heights (n, own), those of the first visit, and the (n,) steps of the first and last visits."""
        line, at = self._line, Parts.of(self._line)
        mean, deviation, root, cuts, biases, none = (
            self.numbers[f"begun_{name}"][label] for name in ("mean", "deviation", "root", "cuts", "biases", "none")
        )
        normals = rng.standard_normal((len(z), len(mean))) @ root
        heights = np.where(line.begun.numeric[: len(mean)], mean + deviation * normals, normals)
        numbers = heights.copy()
        scored = np.flatnonzero(line.own.numeric)
        own_bins = Bins.of(line.own, self.bins)
        numbers[:, scored] = own_bins.quantiles(ndtr(heights[:, scored]), self.numbers["own"])
        rows = draw_rows(Places.of(line.begun), normals, numbers, cuts, biases, none, rng)
        whole = np.zeros((len(z), line.own.width))
        whole[:, : len(at.begun_own)] = rows[:, at.begun_own]
        low, high = line.own.bounds
        x, _ = line.own.features_and_labels(np.clip(whole, low, high))
        first, last = (
            np.round((x[:, place] + 1) / 2 * (line.steps - 1 - low) + low).astype(np.int64) for place, low in ((-2, 0), (-1,
            -1))
        )  # fmt: skip
        if line.always:
            first, last = np.zeros(len(z), dtype=np.int64), np.full(len(z), line.steps - 1)
        last = np.where(last < 0, -1, np.maximum(first, last))
        self._write_own(z, whole)
        return heights[:, at.begun_own], heights[:, at.begun_visit], first, last

    def _write_own(self, z: Floats, own: Floats) -> None:
        """Columns without steps, from (n, own) rows."""
        layout, line = self.layout, self._line
        here = self._indicators
        own_missing = line.own.missing.start + np.cumsum(line.own.nullable) - 1
        start = 0
        for column, at in layout.columns:
            if column.kind == "trajectory":
                continue
            end = start + at.stop - at.start
            z[:, at] = own[:, start:end]
            nullable = np.flatnonzero(layout.nullable[at])
            z[:, here[at][nullable]] = own[:, own_missing[start:end][nullable]]
            start = end

    def _write(self, z: Floats, cells: Floats, label: int, span: tuple[Ints, Ints]) -> None:
        """Trajectories, from (n, steps, values and indicators) heights, NaN where there is no visit."""
        line, at, numbers = self._line, Parts.of(self._line), self.numbers
        bins, measured = Bins.of(line.visit, self.bins), len(line.measured)
        begun_cuts, step_cuts = numbers["begun_cuts"][label][at.begun_visit], numbers["step_cuts"][label][at.now]
        for step in range(line.steps):
            here = np.flatnonzero((span[0] <= step) & (step <= span[1]))
            values = bins.quantiles(ndtr(cells[here, step, :measured]), numbers["visit"])
            cuts = np.where((span[0][here] == step)[:, None], begun_cuts, step_cuts)[:, measured:]
            cuts = np.where(numbers["missing"][at.missing] > 0, cuts, _NEVER)
            missing = np.ones((len(z), measured))
            missing[here] = 0.0
            missing[np.ix_(here, at.missing)] = cells[here, step, measured:] > cuts
            for number, (column, where) in enumerate(line.measured):
                z[here, where.start + step] = values[:, number]
                if column.nullable:
                    z[:, self._indicators[where.start + step]] = missing[:, number]
        if line.time_at is not None and self.layout.nullable[line.time_at.start]:
            steps = np.arange(line.steps)
            z[:, self._indicators[line.time_at]] = (steps < span[0][:, None]) | (steps > span[1][:, None])

    def _times(self, gaps: Floats, first: Ints, last: Ints, rng: np.random.Generator) -> Floats:
        """(n, steps) times in the scale of z.

        They count from the first visit where the last visits have the larger times, and otherwise back from the last.
        gaps: (n, steps) scores of the time since the visit before.
        """
        line, numbers, steps = self._line, self.numbers, np.arange(self._line.steps)
        assert line.time_at is not None
        between = Bins.of(line.between, self.bins)
        chances = np.full((gaps.size, 2), 0.5)
        chances[:, 1] = ndtr(gaps).reshape(-1)
        since = _share(line.between, between.quantiles(chances, numbers["between"]), 1).reshape(gaps.shape)
        since *= (first[:, None] < steps) & (steps <= last[:, None])
        ends = Bins.of(line.ends, self.bins)
        drawn_ends = ends.quantiles(rng.random((len(gaps), 2)), numbers["ends"])
        # The visit that times count from is at 0, which the lowest bin stands for.
        drawn_ends = np.where(drawn_ends < ends.low + ends.width, ends.low, drawn_ends)
        middle = numbers["ends"] @ np.arange(numbers["ends"].shape[1])
        if middle[1] >= middle[0]:
            times = _share(line.ends, drawn_ends, 0)[:, None] + np.cumsum(since, axis=1)
        else:
            back = np.cumsum(since[:, ::-1], axis=1)[:, ::-1]
            times = _share(line.ends, drawn_ends, 1)[:, None] + back - since
        at = line.time_at
        return np.asarray((2.0 * np.clip(times, 0.0, 1.0) - 1.0 - self.layout.mean[at]) / self.layout.std[at])

    @cached_property
    def _indicators(self) -> Ints:
        """(F,) where each feature's indicator is, for those that have one."""
        return np.asarray(self.layout.missing.start + np.cumsum(self.layout.nullable) - 1)

    @cached_property
    def _step_scores(self) -> Floats:
        """(steps,) scores of the steps' numbers."""
        line = self._line
        x = np.zeros((line.steps, line.between.features))
        x[:, 0] = np.linspace(-1.0, 1.0, line.steps)
        rows = rows_of(line.between, x, np.eye(self.layout.classes)[np.zeros(line.steps, dtype=np.int64)])
        return Bins.of(line.between, self.bins).scores(rows, self.numbers["between"])[:, 0]


def _share(layout: Layout, z: Floats, column: int) -> Floats:
    """(n,) shares of the time's bounds, from roots in the scale of ``z``."""
    return np.asarray(np.clip((z[:, column] * layout.std[column] + layout.mean[column] + 1) / 2, 0.0, 1.0) ** 2)
