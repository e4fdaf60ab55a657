"""All attacks that fit a finished simulated run, with what its epsilon allows beside them.

Members are the training patients of all hospitals, non-members the held-out ones; both are rebuilt from the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from polyclinic.config import train_settings
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.ehr.split import OWN_SPLIT
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.evaluation.attacks import attributes, gradients, identification, inversion, membership
from polyclinic.evaluation.attacks.identification import Table, closest, first_rows, proximity
from polyclinic.evaluation.report import render_report
from polyclinic.files import write_file
from polyclinic.inspection.audits import subject_of_run
from polyclinic.objectives.objective import Objective
from polyclinic.plugins import dataset_of
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.programs import Program, program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.simulation import settle
from polyclinic.runs.summary import Summary
from polyclinic.server.calibration import calibrate
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.shadows import train_shadows
from polyclinic.training.synthesis import SumsTask
from polyclinic.training.task import SiteWork, Task, TrainSettings
from polyclinic.types import Arrays

# Where a run claims no delta, the one at which its lower bound is stated.
_USUAL_DELTA, _CONFIDENCE = 1e-5, 0.95
ROWS, MOST_PATIENTS = 2000, 5000
#: Objectives whose outputs are logits of classes.
_OF_CLASSES = ("classification", "binary")


def attack_run(
    path: Path, *, seed: int = 0, shadows: int = 16, sensitive: Sequence[str] = (), delta: float | None = None,
    canaries: int = 300, on_step: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Make every attack that fits a finished run, and return the content of ``attacks.json``.

    It writes that file into the run's folder and the report anew.

    Args:
        path: The run's folder, or one that holds it alone.
        seed: Of the attacks.
        shadows: Models for LiRA, 0 leaves it out.
        sensitive: Columns to guess; empty chooses them.
        delta: Of the lower bounds; None takes the run's.
        canaries: Of the audit, 0 leaves it out.
        on_step: Called with the name of what is under way.

    Raises:
        ConfigError: As ``read_target`` and for a column that cannot be guessed.
    """
    target = read_target(path, seed, delta, on_step)
    results = _attack_synthetic(target) if target.program.draws else _attack_model(target, shadows, sensitive)
    on_step("canaries")
    audit, privacy = _audit(target, delta, canaries), target.summary.privacy
    whole: dict[str, Any] = {
        "run": str(target.run.path), "dataset": target.program.config.dataset, "seed": seed,
        "members": target.members.patients, "non_members": target.non_members.patients, "unit": privacy.unit,
        "claimed": {"epsilon": privacy.epsilon, "delta": privacy.delta, "relation": privacy.relation},
        "allowed": privacy.risk if privacy.private else None, "audit": audit, "membership": [], "attributes": [],
        "gradients": None, "closest": None, "identification": [], **results,
        "left_out": target.left_out,
    }  # fmt: skip
    write_file(target.run.attacks_file, json.dumps(whole, indent=2, allow_nan=False))
    render_report(target.run.path)
    return whole


def _audit(target: Target, delta: float | None, canaries: int) -> dict[str, Any] | None:
    if not canaries:
        target.leave_out("audit with canaries", "no canaries were asked for")
        return None
    try:
        subject = subject_of_run(target.run.path, target.seed, delta=delta)
        bound = guess(subject, canaries, (canaries // 3,), _CONFIDENCE, white_box=True)
    except PolyclinicError as error:
        target.leave_out("audit with canaries", str(error))
        return None
    return asdict(bound) | {"epsilon_claimed": subject.epsilon, "delta": subject.delta}


@dataclass(frozen=True, eq=False)
class Target:
    """A finished run, and at each hospital its training and its held-out patients, scaled as the model takes them.

    Attributes:
        delta: Of the lower bounds on epsilon.
        on_step: Called with the name of what is under way.
        left_out: Attacks that were not made, and why.
    """

    run: Run
    program: Program
    summary: Summary
    hospitals: list[tuple[Rows, Rows]]
    seed: int
    delta: float
    on_step: Callable[[str], None]
    left_out: list[dict[str, str]] = field(default_factory=list)

    def leave_out(self, attack: str, why: str) -> None:
        self.left_out.append({"attack": attack, "why": why})

    @cached_property
    def members(self) -> Rows:
        return Rows.join([train for train, _ in self.hospitals])

    @cached_property
    def non_members(self) -> Rows:
        return Rows.join([test for _, test in self.hospitals])

    @cached_property
    def arrays(self) -> Arrays:
        return self.run.arrays()

    @cached_property
    def schema(self) -> Schema:
        return self.run.schema()

    @cached_property
    def objective(self) -> Objective:
        """What the model predicts, whose loss of a patient tells who took part."""
        return self.program.objective(self.schema)

    @cached_property
    def build(self) -> Callable[[], nn.Module]:
        """Makes an empty module of the run's model."""
        return self.program.builder(self.schema)

    @cached_property
    def task(self) -> Task:
        return self.program.plain_task(self.schema)

    @cached_property
    def settings(self) -> TrainSettings:
        """Of the run's training, with the noise and the learning rate that it had."""
        settings = train_settings(self.program.config, self.summary.privacy.noise_multiplier)
        rate, momentum = self.summary.learning_rate or 0.1, self.program.momentum(self.schema)
        return replace(settings, learning_rate=rate, momentum=momentum, device="cpu")

    @property
    def share(self) -> float | None:
        """With what chance each patient took part, by a coin of its own; None where the split was published, or by time."""
        config, dataset = self.program.config, dataset_of(self.program.config)
        natural = (config.partitioner or dataset.default_partitioner).startswith("natural")
        split = config.split.rule
        published = natural and dataset.fixed_split and split == OWN_SPLIT
        return None if published or split.time else 1 - split.share


def read_target(
    path: Path, seed: int = 0, delta: float | None = None, on_step: Callable[[str], None] = lambda what: None
) -> Target:
    """Return the run in ``path`` as the target of attacks.

    Args:
        path: The run's folder, or one that holds it alone.
        seed: Of the attacks.
        delta: Of the lower bounds; None takes the run's, or the usual one where the run claims none.
        on_step: Called with the name of what is under way.

    Raises:
        ConfigError: When there is no finished run, and for one of real hospitals or of an analysis.
    """
    run = Run.open(path)
    simulation, summary = run.simulation("attack its configuration in a simulation"), run.summary()
    program = program_of(simulation.config)
    if not program.judged:
        raise ConfigError(f"{path} is a run of task {program.config.task}, which none of the attacks is made for.")
    hospitals = [simulation.rows(site) for site in simulation.shards]
    claimed = summary.privacy.delta if summary.privacy.private else None
    return Target(run, program, summary, hospitals, seed, delta or claimed or _USUAL_DELTA, on_step)


def _attack_model(target: Target, shadows: int, sensitive: Sequence[str]) -> dict[str, Any]:
    """The keys of ``attacks.json`` that a model has; attacks that do not fit are left out.

    Raises ConfigError for a sensitive column that cannot be guessed.
    """
    background, attacked = attributes.split_known(target.non_members.patients, target.seed)
    # Wrong input is told before any work.
    secrets = attributes.secrets(target.schema, _one_each(target.non_members, background)[0], sensitive)
    results: dict[str, Any] = {}
    if target.program.keeps_arrays:
        for attack in ("who took part", "secret columns"):
            target.leave_out(attack, "layers stay at hospitals, and what the server has of them was never trained")
    else:
        results["membership"] = _membership(target, shadows)
        target.on_step("secret columns")
        results["attributes"] = _attributes(target, secrets, background, attacked)
    target.on_step("gradients")
    return results | {"gradients": _gradients(target)}


def _membership(target: Target, shadows: int) -> list[dict[str, Any]]:
    target.on_step("membership by losses")
    losses = [_losses(target, rows) for rows in (target.members, target.non_members)]
    judged = [_judge(target, "loss threshold", -losses[0], -losses[1])]
    judged += _inversion(target)
    if not shadows:
        target.leave_out("LiRA", "no shadow models were asked for")
    elif target.program.config.secure.shared_noise:
        why = "the noise is in the sum of all hospitals, which shadow models of this kind do not have"
        target.leave_out("LiRA", why)
    elif isinstance(target.task, SumsTask):
        target.leave_out(
            "LiRA", "the server makes the model of hospitals' sums, which shadow models of this kind do not"
        )
    else:
        target.on_step(f"membership by {shadows} shadow models")
        scores, inside = _lira(target, shadows)
        judged.append(_judge(target, "LiRA", scores[inside], scores[~inside]))
    return judged


def _judge(target: Target, attack: str, members: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    """An attack on membership as JSON, whose keys are texts."""
    judged = asdict(membership.judge(attack, members, others, target.delta, target.share, target.seed))
    return {key: value for key, value in judged.items() if key != "true_alarms"} | {
        f"tpr_at_{100 * rate:g}_percent_fpr".replace(".", ""): share for rate, share in judged["true_alarms"].items()
    }


def _predictions(target: Target, rows: Rows, arrays: Arrays | None = None) -> np.ndarray:
    return np.asarray(target.task.evaluate(target.build, target.arrays if arrays is None else arrays, [rows])[0])


def _losses(target: Target, rows: Rows) -> np.ndarray:
    losses = target.objective.losses_of(_predictions(target, rows), rows.y)
    return membership.of_patients(losses, rows.patient, rows.patients)


def _inversion(target: Target) -> list[dict[str, Any]]:
    """Membership by how near patients are to the record that the model takes for one of their class, where that can be had."""
    if target.objective.name not in _OF_CLASSES:
        target.leave_out("model inversion", "the label has no classes for which a softmax stands")
        return []
    sides = [_one_each(rows, np.arange(rows.patients)) for rows in (target.members, target.non_members)]
    x = np.nan_to_num(np.concatenate([x for x, _ in sides]))
    low, high, module = x.min(axis=0), x.max(axis=0), gradients.load_module(target.build, target.arrays)
    classes = range(target.objective.label_columns(sides[0][1][:1]).shape[1])
    records = [inversion.invert(module, label, x.mean(axis=0), low, high, target.objective.losses) for label in classes]
    made = [record for record in records if record is not None]
    if len(made) < len(records):
        target.leave_out("model inversion", "the model has no gradient in a record")
        return []
    scores = [inversion.likeness(np.nan_to_num(x), y, np.array(made), low, high) for x, y in sides]
    return [_judge(target, "model inversion", *scores)]


def _lira(target: Target, shadows: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) scores of all patients, hospital by hospital, and (n,) who took part."""
    pools = [Rows.join(pair) for pair in target.hospitals]
    rng = generator(target.seed, "attacks", "shadows")
    share = target.members.patients / (target.members.patients + target.non_members.patients)
    inside = [membership.assignment(pool.patients, shadows, share, rng) for pool in pools]
    models = train_shadows(
        target.task, target.build, target.program.first(target.schema), list(zip(pools, inside, strict=True)), target.settings,
        target.summary.rounds, target.seed,
    )  # fmt: skip
    everyone = Rows.join(pools)

    def score(arrays: Arrays) -> np.ndarray:
        values = target.objective.confidences(_predictions(target, everyone, arrays), everyone.y)
        return membership.of_patients(values, everyone.patient, everyone.patients)

    ratios = membership.likelihood_ratios(
        score(target.arrays), np.array([score(model) for model in models]), np.concatenate(inside, axis=1)
    )
    return ratios, np.concatenate([np.arange(a.patients + b.patients) < a.patients for a, b in target.hospitals])


def _attributes(
    target: Target, secrets: Sequence[attributes.Secret], background: np.ndarray, attacked: np.ndarray
) -> list[dict[str, Any]]:
    some = generator(target.seed, "attacks", "members").permutation(target.members.patients)[: attributes.MOST_PATIENTS]
    members = _one_each(target.members, some)
    own, others = (_one_each(target.non_members, part) for part in (background, attacked))

    def losses(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return target.objective.losses_of(_predictions(target, Rows(x, y, np.arange(len(y)), len(y))), y)

    # A loss is minus a log-likelihood but for its scale, which is that at which errors of the attacker's own patients are usual.
    scale = 1.0 if target.objective.is_likelihood else 0.5 / max(float(losses(*own).mean()), 1e-12)
    guesses = [
        attributes.guess_column(
            secret, members, others, own, target.objective.label_columns, lambda x, y: -scale * losses(x, y)
        )
        for secret in secrets
    ]
    return [asdict(guess) for guess in guesses if guess is not None]


def _one_each(rows: Rows, patients: np.ndarray) -> attributes.Table:
    """The first row of each of the patients, and its label."""
    at = first_rows(rows.patient, rows.patients)[patients]
    return rows.x[at], rows.y[at]


def _gradients(target: Target) -> dict[str, Any] | None:
    """Steps at the model that the run began with; a run without noise is shown what that of its epsilon would do."""
    layer, arrays = gradients.first_layer(target.build()), target.program.first(target.schema)
    if target.task.name != "classification" or isinstance(target.task, SumsTask) or layer is None:
        why = "it needs steps of gradients, and a model whose first layer is linear with a bias"
        target.leave_out("gradient inversion", why)
        return None
    noise = target.settings.noise_multiplier
    if noise is None:
        noise = calibrate(settle(target.program.config.with_values({"privacy.dp": True}))).noise_multiplier
    rows, settings = target.members, replace(target.settings, noise_multiplier=noise)
    x, y = _one_each(rows, np.arange(rows.patients))
    plain = replace(
        settings, learning_rate=1.0, sample_rate=1.0, local_steps=1, optimizer="sgd", momentum=0.0, weight_decay=0.0, radius=0.0,
        batching="poisson", noise=None, denoise="none", double=True,
    )  # fmt: skip
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}

    def step(rows: Rows, private: bool, key: int) -> Arrays:
        """The gradient that one FedSGD step of the hospital's own code shows of a batch."""
        own = replace(plain, noise_multiplier=plain.noise_multiplier if private else None)
        sampling, noise = (keyed_stream(target.seed, "attacks", purpose, key) for purpose in ("batches", "noise"))
        work = SiteWork(rows, sampling, noise, float(rows.patients))
        update = target.task.train(target.build, wide, [work], own)[0]
        return {name: value - update.arrays[name] for name, value in wide.items()}

    last = gradients.last_layer(target.build()) if target.objective.name in _OF_CLASSES else None
    attacked = gradients.Attacked(
        target.build, arrays, layer, target.objective.losses, target.objective.predictions, last
    )
    outcomes = gradients.trials(attacked, np.nan_to_num(x), y, step, target.seed)
    trials = [asdict(row) | {"median": row.median, "recovered": row.recovered} for row in outcomes]
    return {"noise_multiplier": noise, "clip_norm": settings.max_grad_norm, "trials": trials}


def _attack_synthetic(target: Target) -> dict[str, Any]:
    """The keys of ``attacks.json`` that a generator has, by 2000 rows of it and at most 5000 patients of either side.

    Raises ConfigError where there is none."""
    synthesizer, seed = target.run.synthesizer(), target.seed
    target.on_step("synthetic patients")
    drawn = synthesizer.sample(ROWS, generator(seed, "attacks", "synthetic"))
    synthetic = Table.of(*synthesizer.layout.features_and_labels(drawn), target.schema)
    members, others = (_table(rows, target) for rows in (target.members, target.non_members))
    near = [proximity(side, synthetic) for side in (members, others)]
    target.on_step("singling out, linking, inferring")
    risks = [
        identification.singling_out(synthetic, members, others, seed),
        identification.linkability(synthetic, members, others, seed),
        *identification.inference(synthetic, members, others, seed),
    ]
    return {
        "membership": [_judge(target, "closest synthetic row", near[0], near[1])],
        "closest": asdict(closest(synthetic, members, others, seed)),
        "identification": [asdict(risk) | {"weak": risk.weak} for risk in risks],
    }


def _table(rows: Rows, target: Target) -> Table:
    some = generator(target.seed, "attacks", "patients").permutation(rows.patients)[:MOST_PATIENTS]
    at = first_rows(rows.patient, rows.patients)[some]
    return Table.of(rows.x[at], rows.y[at], target.schema)
