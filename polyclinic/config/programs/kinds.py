"""What a kind of run is to the configuration: which keys it reads, what it takes where nothing is given, what it cannot have.

Each kind that has keys of its own states itself beside its section (``convex``, ``synthesis``, ``posterior``); what it does
is its program's (``polyclinic.programs``). The rest of the configuration asks this value, and never which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig

#: Sections and keys that not every kind of run reads, and in words what does.
READ_BY = {
    "task-options": "an analysis, or a task that another package brings as a program",
    "objective": "the task classification",
    "objective-options": "the task classification, whose optimizer is not newton",
    "synthesis": "the task synthesis",
    "posterior": "the task posterior",
    "convex": "the task output-perturbation or objective-perturbation",
    "evaluation": "a task whose result is judged on held-out patients",
    "synthesis.candidates": "task synthesis with a game, as gan",
    "synthesis.baselines": "task synthesis with a game or a density, as gan or maf",
    "model-options": "a task that trains a network, as classification",
    "hidden": "a classifier that has hidden layers, as mlp",
    "training": "a task that trains in steps, as classification",
}


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    name: Of its program, in ``polyclinic.programs``.
    reads: Those of the keys of ``READ_BY`` that it reads.
    defaults: What it takes where nothing is given, by key.
    settings: What its section adds to the settings of a round, by the names of ``TrainSettings``.
    check: Raises ValueError for keys that are each possible, and not with it.
    steps: Whether hospitals take steps on batches; a round is one release of a minimiser or a sum otherwise.
    bounds_always: Whether ``privacy.max-grad-norm`` has an effect without privacy too.
    counts_patients, counts_exactly: Whether hospitals are asked how many patients they have, also where neither privacy nor masks
        need it; and whether without privacy even a public number does not do.
    shares_noise: Whether hospitals may share the noise of a secure sum.
    server_steps: Whether the server's strategy then takes the steps.
    decays_shared: Whether ``training.weight-decay`` then still has a meaning.
    """

    name: str
    reads: frozenset[str] = frozenset({"evaluation", "hidden", "model-options", "training"})
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[RunConfig], None] = lambda config: None
    settings: Callable[[RunConfig], Mapping[str, Any]] = lambda config: {}
    steps: bool = True
    bounds_always: bool = True
    counts_patients: bool = False
    counts_exactly: bool = False
    shares_noise: bool = False
    server_steps: bool = True
    decays_shared: bool = False


#: Training a classifier.
CLASSIFICATION = Kind(
    "supervised", Kind.reads | {"objective", "objective-options"}, bounds_always=False,
    shares_noise=True,
)  # fmt: skip
