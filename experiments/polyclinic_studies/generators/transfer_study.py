"""Methods of synthesis side by side, over seeds: what classifiers learn from their patients, and what hangs together in them.

A seed is another simulation of everything: patients, hospitals, noise. Real test rows are patients that trained nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyclinic.evaluation.intervals import Interval
from polyclinic.evaluation.synthetic.classifiers import CLASSIFIERS, REAL, Judged, transfer
from polyclinic.evaluation.synthetic.columns import correlations
from polyclinic.experiments import markdown
from polyclinic_studies.generators.patients import Patients, hospitals_of, real_patients, synthesizer_of, synthetic
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import estimate, mean, spread

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """methods: configuration keys of each beside the ``common`` ones.  measured: feature columns whose means are told.

    rows: synthetic rows drawn of each, 0 for as many as there are real training rows.
    """

    common: Options
    methods: Mapping[str, Options]
    seeds: tuple[int, ...]
    measured: tuple[str, ...] = ()
    rows: int = 0
    classifiers: tuple[str, ...] = tuple(CLASSIFIERS)

    def options(self, method: str, seed: int) -> dict[str, Any]:
        """The configuration of one run."""
        return {**self.common, **self.methods[method], "seed": seed}

    def as_config(self) -> dict[str, Any]:
        """The study as TOML may hold it."""
        return {"seeds": list(self.seeds), "rows": self.rows, "classifiers": list(self.classifiers),
                "common": dict(self.common), "methods": {name: dict(one) for name, one in self.methods.items()}}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One method at one seed.

    real, judged: by classifier, trained on real and on synthetic rows.  spearman: of correlations with those of the real
    training rows.  means, real_means: of the measured columns, in their units.
    """

    method: str
    seed: int
    epsilon: float | None
    seconds: float
    real: Mapping[str, Judged]
    judged: Mapping[str, Judged]
    spearman: float | None
    means: Mapping[str, float]
    real_means: Mapping[str, float]

    def gap(self, classifier: str, metric: str) -> float | None:
        """Score less that of training on real rows."""
        return self.judged[classifier].minus_real[metric].value


def study(parts: Parts, plan: Study) -> list[Found]:
    """Every method at every seed; what is finished in ``parts`` is read from there."""
    found = []
    for seed in plan.seeds:
        real: Patients | None = None
        for method in plan.methods:
            options = plan.options(method, seed)
            result = parts.run(f"{method}-{seed}", options)
            name = f"{method}-{seed}"
            settings = {
                "run": result.path.name,
                "rows": plan.rows,
                "classifiers": list(plan.classifiers),
                "measured": list(plan.measured),
            }

            def judge(result: Any = result, options: Options = options, method: str = method, seed: int = seed) -> Any:
                nonlocal real
                real = real or real_patients(hospitals_of(options))
                return _judged(plan, real, result, method, seed)

            found.append(_read(parts.answer(name, settings, judge)))
            parts.say(f"{name}: {_line(found[-1])}")
    return found


def _judged(plan: Study, real: Patients, result: Any, method: str, seed: int) -> Any:
    records, table = synthetic(synthesizer_of(result, real.layout), plan.rows or len(real.train.y), seed)
    judged = transfer(
        (real.train.x, real.train.y), {method: (table.x, table.y)}, (real.test.x, real.test.y), seed=seed,
        classifiers=plan.classifiers,
    )  # fmt: skip
    original = real.layout.decode(real.layout.rows(real.train.x, real.train.y))
    return asdict(
        Found(
            method, seed, result.summary["privacy"]["epsilon"], float(result.summary["seconds"]), judged[REAL], judged[method],
            correlations(real.train.x, table.x).spearman, _means(records, plan.measured), _means(original, plan.measured),
        )
    )  # fmt: skip


def _means(records: Any, columns: Sequence[str]) -> dict[str, float]:
    """Of a column, or of all the visits of a trajectory."""
    found = {}
    for column in columns:
        names = [name for name in records.columns if name == column or name.startswith(f"{column}_")]
        found[column] = float(np.nanmean(records[names].to_numpy(dtype=float)))
    return found


def _read(answer: Mapping[str, Any]) -> Found:
    tables = {side: {name: read_judged(one) for name, one in answer[side].items()} for side in ("real", "judged")}
    return Found(**{**answer, **tables})


def read_judged(one: Mapping[str, Any]) -> Judged:
    """A judgement from JSON."""
    scores, less = ({name: Interval(**value) for name, value in one[kind].items()} for kind in ("scores", "minus_real"))
    return Judged(scores, less, one["importance"])


def _line(one: Found) -> str:
    gaps = ", ".join(f"{kind} {spread([one.gap(kind, 'accuracy')], signed=True)}" for kind in one.judged)
    return f"accuracy less that of real rows: {gaps}; correlations {spread([one.spearman])}"


def of(found: Sequence[Found], method: str) -> list[Found]:
    """The seeds of one method."""
    return [one for one in found if one.method == method]


def gap(found: Sequence[Found], method: str, classifier: str, metric: str) -> float | None:
    """Mean over seeds of score less that of training on real rows."""
    return mean([one.gap(classifier, metric) for one in of(found, method)])


def spearman(found: Sequence[Found], method: str) -> float | None:
    """Mean over seeds of the correlations' rank correlation."""
    return mean([one.spearman for one in of(found, method)])


def gaps_table(found: Sequence[Found], metric: str) -> str:
    """Scores less those of training on real rows, mean and standard error over seeds."""
    kinds = list(found[0].judged)
    rows = [
        [method, str(len(own)), *(estimate([one.gap(kind, metric) for one in own], signed=True) for kind in kinds),
         estimate([one.spearman for one in own])]
        for method in dict.fromkeys(one.method for one in found)
        for own in [of(found, method)]
    ]  # fmt: skip
    return markdown(["trained on", "simulations", *(kind.upper() for kind in kinds), "correlations, Spearman"], rows)


def score_table(found: Sequence[Found], metric: str, published: Sequence[Sequence[str]] = ()) -> str:
    """Scores on real test rows by what trained, mean and deviation over seeds, below what was published."""
    first = found[0]
    kinds = list(first.judged)
    methods = list(dict.fromkeys(one.method for one in found))
    rows = [list(row) for row in published]
    seeds = of(found, methods[0])
    rows.append(
        ["real patients", "", *(spread([_score(one.real[kind], metric) for one in seeds]) for kind in kinds), "1"]
    )
    for method in methods:
        own = of(found, method)
        rows.append([
            method, epsilon(own), *(spread([_score(one.judged[kind], metric) for one in own]) for kind in kinds),
            spread([one.spearman for one in own]),
        ])  # fmt: skip
    return markdown(["trained on", "ε", *(CLASSIFIERS[kind] for kind in kinds), "correlations, Spearman"], rows)


def means_table(found: Sequence[Found], published: Sequence[Sequence[str]] = ()) -> str:
    """Means of the measured columns, real and synthetic."""
    columns = list(found[0].means)
    methods = list(dict.fromkeys(one.method for one in found))
    seeds = of(found, methods[0])
    rows = [list(row) for row in published]
    rows.append(["real patients", *(spread([one.real_means[column] for one in seeds], 2) for column in columns)])
    rows += [
        [method, *(spread([one.means[column] for one in of(found, method)], 2) for column in columns)]
        for method in methods
    ]
    return markdown(["mean of", *columns], rows)


def importance_table(found: Sequence[Found], published: Sequence[Sequence[str]] = ()) -> str:
    """Spearman of what classifiers weigh, learned from synthetic and from real patients, below what was published; mean and
    standard error over seeds. Classifiers without weights are left out."""
    kinds = [kind for kind, judged in found[0].judged.items() if judged.importance is not None]
    methods = dict.fromkeys(one.method for one in found)
    rows = [list(row) for row in published]
    rows += [
        [method, *(estimate([one.judged[kind].importance for one in of(found, method)]) for kind in kinds)]
        for method in methods
    ]
    return markdown(["weights, Spearman", *(CLASSIFIERS[kind] for kind in kinds)], rows)


def epsilon(found: Sequence[Found]) -> str:
    """The largest over seeds; infinite where a run had no privacy."""
    spent = [one.epsilon for one in found]
    known = [value for value in spent if value is not None]
    return f"{max(known):.3g}" if len(known) == len(spent) else "∞"


def _score(one: Judged, metric: str) -> float | None:
    return one.scores[metric].value


def plain(one: Found) -> dict[str, Any]:
    """As JSON."""
    synthetic_scores = {
        kind: {
            "scores": {metric: asdict(value) for metric, value in judged.scores.items()},
            "minus real": {metric: asdict(value) for metric, value in judged.minus_real.items()},
            "importance": judged.importance,
        }
        for kind, judged in one.judged.items()
    }
    real = {
        kind: {metric: asdict(value) for metric, value in judged.scores.items()} for kind, judged in one.real.items()
    }
    return {
        "method": one.method, "seed": one.seed, "epsilon": one.epsilon, "seconds": one.seconds, "real": real,
        "synthetic": synthetic_scores, "spearman": one.spearman, "means": one.means, "real means": one.real_means,
    }  # fmt: skip
