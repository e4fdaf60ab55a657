"""Patients visit by visit: the first visit of each class as a Gaussian copula, then each visit given the one before it.

Round 1 asks for histograms of each column over all patients, of each trajectory over all visits, and of the time between
visits.
Round 2 asks for the moments of normal scores in two kinds of rows: own columns with the first visit, and pairs of successive
visits. A patient adds the mean over its visits, so that the size of the sums does not grow with the number of steps. The
synthesizer is a vector autoregression of order one on the normals beneath the scores. A cell that is missing still has a
normal beneath it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins, distributions
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.methods.options import check_number
from polyclinic.synthesis.visits.courses import Courses, transitions
from polyclinic.synthesis.visits.timelines import Timeline, Visits, rows_of
from polyclinic.types import Arrays, Bools, Floats, Ints

# Of a patient's squared length in round 2, what the first visit has.
_BEGUN = 0.3
# A frequency of missing cells counts where it stands so many standard deviations of its noise above nothing.
_ABOVE_NOISE = 3.0
# So many neighbours may stand out of the noise together: of whole numbers, which have a bin each, and of other bins.
_TOGETHER = (16, 4)
# At least this share of each class is taken to have two visits.
_SELDOM = 0.02


@dataclass(frozen=True, eq=False)
class VisitByVisit:
    """A patient's vector, of L2 length at most 1 whatever the number of visits.

    Round 1: histograms, and by class whether there are two visits. Round 2, in the block of the label: the moments of the
    first visit, and the mean over pairs of successive visits of their moments.

    radius, bins: as in ``Moments``.
    time: the trajectory with the times of visits, counted from the first visit or back from the last. By default ``before
    latest`` where the schema has it; otherwise steps are evenly apart.

    Raises ConfigError for an option out of range, and for a schema without trajectories of one number of steps.
    """

    layout: Layout
    radius: float = 1.0
    bins: int = 32
    time: str = ""
    name: ClassVar[str] = "visits"
    rounds: ClassVar[int] = 2
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "radius", self.radius, 0.1, 10.0)
        check_number(self.name, "bins", self.bins, 2, 1000, whole=True)
        _ = self._begun, self._step  # which refuse a schema that is too wide

    def question(self, round: int, state: Arrays) -> Arrays:
        """Of round 2 the histograms by which numbers become scores."""
        return {name: state[name] for name in self._histograms} if round == 2 else {}

    def size(self, round: int, question: Arrays) -> int:
        return sum(self._sizes) if round == 1 else self._begun.size(2, {}) + self._step.size(2, {})

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold.

        Args:
            round: The round, 1 or 2.
            question: The histograms, in round 2.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: Whatever the rows, the question's arrays are of other shapes.
        """
        visits = self._timeline.visits(z)
        if round == 1:
            return self._columns(visits, patient, patients)
        for name, bins in self._histograms.items():
            if question[name].shape != bins.used.shape:
                raise ConfigError(f"The question's {name} must have shape {bins.used.shape}.")
        return np.concatenate(
            [np.sqrt(_BEGUN) * self._first_visits(visits, question, patient, patients),
             np.sqrt(1.0 - _BEGUN) * self._transitions(visits, question, patient, patients)], axis=1,
        )  # fmt: skip

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if round == 2:
            return {**state, "mean": mean, "noise": np.array([noise])}
        root, changed = float(np.sqrt(self._groups)), dict[str, Floats]()
        parts = np.split(mean * root, np.cumsum(self._sizes)[:-1])
        for (name, bins), part in zip(self._histograms.items(), parts, strict=False):
            means = part.reshape(bins.used.shape)
            blocks = np.where(bins.whole, *_TOGETHER)
            changed[name] = distributions(means, bins.standing_out(means, noise * root, blocks))
        missing = np.where(parts[-2] > _ABOVE_NOISE * noise * root, parts[-2], 0.0)
        classes = np.asarray(state["classes"], dtype=np.float64)
        again = np.clip(parts[-1], _SELDOM * classes, classes)
        return {**state, **changed, "missing": missing, "again": again}

    def synthesizer(self, state: Arrays) -> Courses:
        classes, noise = np.asarray(state["classes"], dtype=np.float64), float(state["noise"][0])
        mean_begun, mean_step = np.split(state["mean"], [self._begun.size(2, {})])
        begun = self._begun.synthesizer({
            "classes": classes, "mean": mean_begun / np.sqrt(_BEGUN), "noise": np.array([noise / np.sqrt(_BEGUN)]),
            "histograms": self._begun_histograms(state),
        }).numbers  # fmt: skip
        again = float(state["again"].sum())
        weight = again * np.sqrt(1.0 - _BEGUN)
        step = self._step.synthesizer({
            "classes": state["again"] / again, "mean": mean_step / weight, "noise": np.array([noise / weight]),
            "histograms": self._step_histograms(state),
        }).numbers  # fmt: skip
        names = "mean", "deviation", "root", "cuts", "biases", "none"
        numbers = {
            "classes": classes, **{name: state[name] for name in self._histograms}, "missing": state["missing"],
            **{f"begun_{name}": begun[name] for name in names},
            **transitions(
                self._timeline, step, self._step_histograms(state), self.bins,
                self._step.hidden(noise / weight, state["again"] / again),
            ),
        }  # fmt: skip
        trajectories = [column.name for column, _ in self.layout.columns if column.kind == "trajectory"]
        time = trajectories.index(self._timeline.time) if self._timeline.time else -1
        # Laid out as in a file: products round by that.
        return Courses(
            self.layout, {name: np.array(value, order="C") for name, value in numbers.items()}, self.bins, time
        )

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline.of(self.layout, self.time, self.name)

    @cached_property
    def _begun(self) -> Moments:
        return Moments(self._timeline.begun, self.radius, self.bins, 2)

    @cached_property
    def _step(self) -> Moments:
        return Moments(self._timeline.step, self.radius, self.bins, 2)

    @cached_property
    def _histograms(self) -> dict[str, Bins]:
        """By the name of their layout."""
        line = self._timeline
        layouts = {"own": line.own, "visit": line.visit, "between": line.between} | (
            {"ends": line.ends} if line.time else {}
        )
        return {name: Bins.of(layout, self.bins) for name, layout in layouts.items()}

    @property
    def _sizes(self) -> list[int]:
        """Of the parts of round 1: histograms, how often cells of trajectories are missing, classes of two visits."""
        return [bins.used.size for bins in self._histograms.values()] + [
            len(self._timeline.measured),
            self.layout.classes,
        ]

    @property
    def _groups(self) -> int:
        """The largest square of the vector of round 1: each histogram, missing cells included, and the classes have 1."""
        return 1 + sum(len(bins.places) for bins in self._histograms.values())

    def _columns(self, visits: Visits, patient: Ints, patients: int) -> Floats:
        line, bins = self._timeline, self._histograms

        def bin_rows(name: str, layout: Layout, x: Floats, rows: Bools) -> Floats:
            histograms = bins[name].histograms(rows_of(layout, x, visits.label[rows]))
            return np.asarray(histograms.reshape(len(x), bins[name].used.size))

        everyone = np.ones(len(visits.x), dtype=bool)
        parts = {"own": mean_of_rows(bin_rows("own", line.own, line.own_x(visits), everyone), patient, patients)}
        seen = (
            (here, np.concatenate([bin_rows("visit", line.visit, x, here), np.isnan(x)], axis=1))
            for here, x in line.each_visit(visits)
        )
        pooled = _mean_of_visits(seen, bins["visit"].used.size + len(line.measured), patient, patients)[0]
        parts["visit"], missing = np.split(pooled, [bins["visit"].used.size], axis=1)
        steps = (
            (here, bin_rows("between", line.between, line.between_x(visits, np.full(len(here), step))[here], here))
            for step in range(1, line.steps)
            for here in [line.goes_on(visits, step)]
        )
        parts["between"], count = _mean_of_visits(steps, bins["between"].used.size, patient, patients)
        if line.time:
            parts["ends"] = mean_of_rows(bin_rows("ends", line.ends, line.ends_x(visits), everyone), patient, patients)
        again = mean_of_rows(visits.label, patient, patients) * (count > 0)[:, None]
        whole = [*(parts[name] for name in bins), missing, again]
        return np.asarray(np.concatenate(whole, axis=1) / np.sqrt(self._groups))

    def _first_visits(self, visits: Visits, question: Arrays, patient: Ints, patients: int) -> Floats:
        line = self._timeline
        x = np.concatenate([line.own_x(visits), line.visit_x(visits, visits.first)], axis=1)
        asked = {"histograms": self._begun_histograms(question)}
        return self._begun.contributions(2, asked, rows_of(line.begun, x, visits.label), patient, patients)

    def _transitions(self, visits: Visits, question: Arrays, patient: Ints, patients: int) -> Floats:
        asked = {"histograms": self._step_histograms(question)}
        vectors = (
            (here, self._step.contributions(
                2, asked, rows_of(self._timeline.step, x, visits.label[here]), np.arange(len(x)), len(x)
            ))
            for here, x in self._timeline.each_step(visits)
        )  # fmt: skip
        return _mean_of_visits(vectors, self._step.size(2, {}), patient, patients)[0]

    def _begun_histograms(self, given: Arrays) -> Floats:
        return _one_below_another([given["own"], given["visit"]], self._begun_bins.most)

    def _step_histograms(self, given: Arrays) -> Floats:
        parts = [given["own"], given["between"], np.repeat(given["visit"], 2, axis=0)]
        return _one_below_another(parts, self._step_bins.most)

    @cached_property
    def _begun_bins(self) -> Bins:
        return Bins.of(self._timeline.begun, self.bins)

    @cached_property
    def _step_bins(self) -> Bins:
        return Bins.of(self._timeline.step, self.bins)


def _one_below_another(parts: list[Floats], most: int) -> Floats:
    return np.concatenate([np.pad(part, ((0, 0), (0, most - part.shape[1]))) for part in parts])


def _mean_of_visits(
    steps: Iterable[tuple[Bools, Floats]], size: int, patient: Ints, patients: int
) -> tuple[Floats, Floats]:
    """(patients, size) means over all visits of all rows of a patient, and (patients,) how many these are.

    steps: by step which (n,) rows have a visit there, and their vectors.
    """
    total, count = np.zeros((len(patient), size)), np.zeros(len(patient))
    for here, vectors in steps:
        total[here] += vectors
        count += here
    rows = np.bincount(patient, minlength=patients)
    visits = np.asarray(np.bincount(patient, weights=count, minlength=patients), dtype=np.float64)
    return mean_of_rows(total, patient, patients) * (rows / np.maximum(visits, 1.0))[:, None], visits
