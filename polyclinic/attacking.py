"""What of a finished simulated run is attacked: its released model or generator, with all patients of its hospitals.

Members are the training patients of all hospitals, non-members the held-out ones; both are rebuilt from the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from polyclinic.client.hospital import read_imputer
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.datasets.catalogue import TEST_FRACTION
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.evaluation.attacks import attributes, closest, gradients, identification, membership
from polyclinic.evaluation.attacks.membership import Membership
from polyclinic.evaluation.attacks.section import FILE
from polyclinic.evaluation.attacks.tables import Table, first_rows
from polyclinic.evaluation.report import render_report
from polyclinic.plugins import build_model, dataset_of, layout_of, task_named, task_of
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.server.calibration import calibrate
from polyclinic.server.model import first_arrays
from polyclinic.server.run_folder import RunFolder
from polyclinic.synthesis.synthesizer import load
from polyclinic.training.preparation import imputed, standardised
from polyclinic.training.shadows import joined, train_shadows
from polyclinic.training.task import Arrays, SiteWork, TrainSettings

# Where a run claims no delta, the one at which its lower bound is stated.
_USUAL_DELTA = 1e-5
_SYNTHETIC_ROWS = 2000


@dataclass(frozen=True, eq=False)
class Target:
    """A finished run, and at each hospital its training and its held-out patients, scaled as the model takes them."""

    folder: RunFolder
    config: RunConfig
    summary: dict[str, Any]
    hospitals: list[tuple[Rows, Rows]]
    arrays: Arrays
    seed: int

    @cached_property
    def members(self) -> Rows:
        return joined([train for train, _ in self.hospitals])

    @cached_property
    def non_members(self) -> Rows:
        return joined([test for _, test in self.hospitals])

    @property
    def share(self) -> float | None:
        """With what chance each patient took part, by a coin of its own; None where the split was published."""
        dataset = dataset_of(self.config)
        natural = (self.config.partitioner or dataset.default_partitioner) == "natural"
        return None if natural and dataset.fixed_split else 1 - TEST_FRACTION


def read_target(path: Path, seed: int = 0) -> Target:
    """Raises ConfigError when there is no finished run, and for one of real hospitals or of task posterior."""
    folder = RunFolder.existing(path)
    config, summary = folder.config(), folder.summary()
    if not summary["simulation"]:
        raise ConfigError(
            f"{path} is a run of real hospitals, whose records are not here; attack its configuration in a simulation."
        )
    if config.posterior:
        raise ConfigError(f"{path} is a run of task posterior, which none of the attacks is made for.")
    dataset = dataset_of(config)
    partitioner = config.partitioner or dataset.default_partitioner
    shards = load_shards(dataset, config.sites, partitioner, config.seed, config.alpha)
    imputer = read_imputer(config.imputer_file) if config.imputation == "chained" else None
    arrays = load_file(folder.path / "model.safetensors")
    scale = (arrays.pop("standardiser.mean"), arrays.pop("standardiser.std")) if "standardiser.mean" in arrays else None
    hospitals = []
    for shard in shards:
        train, test = imputed(shard, config.imputation, imputer, config.seed)
        scaled = [part if config.synthesis else standardised(part, scale) for part in (train, test)]
        hospitals.append((scaled[0], scaled[1]))
    return Target(folder, config, summary, hospitals, arrays, seed)


def attack_run(
    path: Path, *, seed: int = 0, shadows: int = 16, sensitive: Sequence[str] = (), delta: float | None = None,
    canaries: int = 300, doing: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Every attack that fits the run; writes ``attacks.json`` into its folder and its report anew, and returns what it wrote.

    shadows: models for LiRA, 0 leaves it out.  sensitive: columns to guess.  delta: of the lower bounds; the run's without.
    canaries: of the audit, 0 leaves it out.  doing: told what is under way.
    Raises ConfigError as ``read_target`` and for a column that cannot be guessed.
    """
    target = read_target(path, seed)
    private = target.summary["privacy"]["epsilon"] is not None
    at = delta or (target.summary["privacy"]["delta"] if private else None) or _USUAL_DELTA
    found: dict[str, Any] = {
        "run": str(target.folder.path), "dataset": target.config.dataset, "seed": seed,
        "members": target.members.patients, "non_members": target.non_members.patients,
        "unit": target.summary["privacy"]["unit"],
        "claimed": {name: target.summary["privacy"][name] for name in ("epsilon", "delta", "relation")},
        "allowed": target.summary["privacy"].get("risk") if private else None,
        "membership": [], "attributes": [], "gradients": [], "closest": None, "identification": [], "left_out": [],
    }  # fmt: skip
    if target.config.synthesis:
        _synthetic(target, at, found, doing)
    else:
        _model(target, at, shadows, sensitive, found, doing)
    doing("canaries")
    found["audit"] = _audit(target, seed, delta, canaries, found["left_out"])
    (target.folder.path / FILE).write_text(json.dumps(found, indent=2, allow_nan=False), encoding="utf-8")
    render_report(target.folder.path)
    return found


def _model(
    target: Target,
    delta: float,
    shadows: int,
    sensitive: Sequence[str],
    found: dict[str, Any],
    doing: Callable[[str], None],
) -> None:
    doing("membership by losses")
    task, build = task_of(target.config, dataset_of(target.config).schema), _builder(target)

    def probabilities(rows: Rows, arrays: Arrays = target.arrays) -> np.ndarray:
        return np.asarray(task.evaluate(build, arrays, [rows])[0])

    losses = [
        membership.of_patients(membership.log_losses(probabilities(rows), rows.y), rows.patient, rows.patients)
        for rows in (target.members, target.non_members)
    ]
    found["membership"].append(
        _judged(membership.judge("loss threshold", -losses[0], -losses[1], delta, target.share, target.seed))
    )
    if why := _no_shadows(target.config, shadows):
        found["left_out"].append({"attack": "LiRA", "why": why})
    else:
        doing(f"membership by {shadows} shadow models")
        scores, inside = _lira(target, shadows, probabilities)
        found["membership"].append(
            _judged(membership.judge("LiRA", scores[inside], scores[~inside], delta, target.share, target.seed))
        )
    doing("secret columns")
    found["attributes"] = _attributes(target, sensitive, probabilities)
    doing("gradients")
    found["gradients"] = _gradients(target, found["left_out"])


def _builder(target: Target) -> Callable[[], Any]:
    return build_model(target.config, dataset_of(target.config).schema)


def _no_shadows(config: RunConfig, shadows: int) -> str:
    if not shadows:
        return "no shadow models were asked for"
    if config.shared_noise:
        return "the noise is in the sum of all hospitals, which shadow models of this kind do not have"
    return ""


def _lira(
    target: Target, shadows: int, probabilities: Callable[[Rows, Arrays], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(n,) scores of all patients, and (n,) who took part."""
    pools = [joined(pair) for pair in target.hospitals]
    rng = generator(target.seed, "attacks", "shadows")
    share = target.members.patients / (target.members.patients + target.non_members.patients)
    inside = [membership.assignment(pool.patients, shadows, share, rng) for pool in pools]
    settings, config = _settings(target), target.config
    begin = first_arrays(config, dataset_of(config).schema)
    models = train_shadows(
        task_named(config.task), _builder(target), begin, pools, inside, settings, target.summary["rounds"], target.seed
    )
    everyone = joined(pools)

    def score(arrays: Arrays) -> np.ndarray:
        values = membership.confidences(probabilities(everyone, arrays), everyone.y)
        return membership.of_patients(values, everyone.patient, everyone.patients)

    ratios = membership.likelihood_ratios(
        score(target.arrays), np.array([score(model) for model in models]), np.concatenate(inside, axis=1)
    )
    took_part = np.concatenate([np.arange(a.patients + b.patients) < a.patients for a, b in target.hospitals])
    return ratios, took_part


def _settings(target: Target) -> TrainSettings:
    settings = train_settings(target.config, target.summary["privacy"]["noise_multiplier"])
    return replace(settings, learning_rate=target.summary["learning_rate"] or 0.1, device="cpu")


def _attributes(
    target: Target, sensitive: Sequence[str], probabilities: Callable[[Rows], np.ndarray]
) -> list[dict[str, Any]]:
    schema = dataset_of(target.config).schema

    def log_likelihood(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -membership.log_losses(probabilities(Rows(x, y, np.arange(len(y)), len(y))), y)

    def table(rows: Rows, patients: np.ndarray) -> attributes.Table:
        at = first_rows(rows.patient, rows.patients)[patients]
        return rows.x[at], rows.y[at]

    own, attacked = attributes.split_known(target.non_members.patients, target.seed)
    some = generator(target.seed, "attacks", "members").permutation(target.members.patients)[: attributes.MOST_PATIENTS]
    known = table(target.non_members, own)
    found = [
        attributes.guess_column(
            secret,
            table(target.members, some),
            table(target.non_members, attacked),
            known,
            schema.num_classes,
            log_likelihood,
        )
        for secret in attributes.secrets(schema, known[0], sensitive)
    ]
    return [asdict(one) for one in found if one is not None]


def _gradients(target: Target, left_out: list[dict[str, str]]) -> list[dict[str, Any]]:
    """One step at the model that the run begins with, of batches of one, two and four patients, without noise and with it."""
    config, build = target.config, _builder(target)
    arrays = first_arrays(config, dataset_of(config).schema)
    layer = gradients.first_layer(build())
    if task_named(config.task).name != "classification" or layer is None:
        why = "it needs steps of gradients, and a model whose first layer is linear with a bias"
        left_out.append({"attack": "gradient inversion", "why": why})
        return []
    settings, rows = _settings(target), target.members
    if settings.noise_multiplier is None:
        settings = replace(
            settings, noise_multiplier=calibrate(config.model_copy(update={"dp": True})).noise_multiplier
        )
    pool = np.nan_to_num(rows.x[first_rows(rows.patient, rows.patients)])
    labels = rows.y[first_rows(rows.patient, rows.patients)]
    return [
        asdict(one) | {"median": one.median, "recovered": one.recovered}
        for one in gradients.trials(
            build,
            arrays,
            layer,
            pool,
            labels,
            partial(_step, task_named(config.task), build, arrays, settings, target.seed),
            target.seed,
        )
    ]


def _step(
    task: Any, build: Callable[[], Any], arrays: Arrays, settings: TrainSettings, seed: int, rows: Rows, private: bool,
    key: int,
) -> Arrays:  # fmt: skip
    """The gradient that one FedSGD step of the hospital's own code shows of a batch."""
    plain = replace(
        settings, learning_rate=1.0, sample_rate=1.0, local_steps=1, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        proximal_mu=0.0, batching="poisson", noise=None, denoise="none", double=True,
        noise_multiplier=settings.noise_multiplier if private else None,
    )  # fmt: skip
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    sampling, noise = (keyed_stream(seed, "attacks", purpose, key) for purpose in ("batches", "noise"))
    update = task.train(build, wide, [SiteWork(rows, sampling, noise, float(rows.patients))], plain)[0]
    return {name: value - update.arrays[name] for name, value in wide.items()}


def _synthetic(target: Target, delta: float, found: dict[str, Any], doing: Callable[[str], None]) -> None:
    doing("synthetic patients")
    schema = dataset_of(target.config).schema
    layout = layout_of(target.config, schema)
    if not target.folder.synthesizer.is_file():
        raise ConfigError(f"{target.folder.path} has no generator: the run stopped before there was one.")
    generated = load(target.folder.synthesizer, layout)
    x, y = layout.encoded(generated.sample(_SYNTHETIC_ROWS, generator(target.seed, "attacks", "synthetic")))
    synthetic = Table.of(x, y, schema)

    def table(rows: Rows) -> Table:
        at = first_rows(rows.patient, rows.patients)
        return Table.of(rows.x[at], rows.y[at], schema)

    members, others = table(target.members), table(target.non_members)
    found["closest"] = asdict(closest.closest(synthetic, members, others, target.seed))
    near = [closest.proximity(side, synthetic) for side in (members, others)]
    found["membership"].append(
        _judged(membership.judge("closest synthetic row", near[0], near[1], delta, target.share, target.seed))
    )
    doing("singling out, linking, inferring")
    risks = [
        identification.singling_out(synthetic, members, others, target.seed),
        identification.linkability(synthetic, members, others, target.seed),
        *identification.inference(synthetic, members, others, target.seed),
    ]
    found["identification"] = [asdict(one) | {"weak": one.weak} for one in risks]


def _judged(found: Membership) -> dict[str, Any]:
    return asdict(found) | {"found": {f"{rate:g}": asdict(share) for rate, share in found.found.items()}}


def _audit(
    target: Target, seed: int, delta: float | None, canaries: int, left_out: list[dict[str, str]]
) -> dict[str, Any] | None:
    from polyclinic.auditing import subject_of_run
    from polyclinic.training.auditing.canaries import guess

    if not canaries:
        left_out.append({"attack": "audit with canaries", "why": "no canaries were asked for"})
        return None
    try:
        subject = subject_of_run(target.folder.path, seed, delta=delta)
        found = guess(subject, canaries, (canaries // 3,), 0.95, white_box=True)
    except PolyclinicError as error:
        left_out.append({"attack": "audit with canaries", "why": str(error)})
        return None
    return asdict(found) | {"epsilon_claimed": subject.epsilon, "delta": subject.delta}
