"""What sections ask of one another: each combination that cannot work is refused in one sentence that says what to set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyclinic.config.derived import compression

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig


def check_together(config: RunConfig) -> None:
    """Raises ValueError for keys that are each possible and not together."""
    for check in (
        _imputation,
        _nobody_held_out,
        _statistics,
        _secure_sum,
        _shared_noise,
        _central,
        _strategy,
        _workers,
        config.kind.check,
    ):
        check(config)


def _imputation(config: RunConfig) -> None:
    if config.data.imputation == "mice" and config.privacy.dp:
        raise ValueError(
            "data.imputation is 'mice' but privacy.dp is true: chained equations fitted to a hospital's own patients "
            "make one patient's row depend on others', so that no epsilon holds; set data.imputation to 'chained', "
            "'constant', 'indicator' or 'mean'"
        )


def _nobody_held_out(config: RunConfig) -> None:
    judged = "evaluation" in config.kind.reads and config.evaluation.metrics != "none"
    if config.split.fraction == 0 and not config.split.folds and not config.split.time and judged:
        raise ValueError(
            f"split.fraction is 0 but evaluation.metrics is {config.evaluation.metrics!r}: nobody is held out on whom the result "
            "could be judged; set evaluation.metrics to 'none', or split.fraction above 0"
        )


def _statistics(config: RunConfig) -> None:
    if config.privacy.dp and config.asks_statistics and config.privacy.statistics_share == 0:
        raise ValueError(
            f"privacy.statistics-share is 0 but data.standardise is {config.data.standardise!r} and "
            f"privacy.patients-per-site {config.privacy.patients_per_site}: what is asked of private records must be "
            "paid for; give privacy.statistics-share a value above 0 and below 1, or privacy.patients-per-site a "
            "public number, with data.standardise 'public' or 'none'"
        )


def _no_statistics(config: RunConfig, key: str) -> None:
    """Raises ValueError where hospitals are asked for what ``key`` does not cover."""
    if not config.asks_statistics:
        return
    privacy, scale = config.privacy, config.data.standardise
    remedies = ["set data.standardise to 'public' or 'none'"] if scale == "measured" else []
    remedies += (
        ["give privacy.patients-per-site a public number"] if privacy.dp and not privacy.patients_per_site else []
    )
    raise ValueError(
        f"{key} is above 0 but data.standardise is {scale!r} and privacy.patients-per-site {privacy.patients_per_site}: "
        f"statistics of patients tell of whole hospitals, which {key} does not cover; {' and '.join(remedies)}"
    )


def _secure_sum(config: RunConfig) -> None:
    if config.secure.aggregation and compression(config).active:
        raise ValueError(
            "secure.aggregation is true but upload.form or upload.precision asks for compressed uploads, which cannot be "
            "summed under masks; leave upload.form at 'model' and upload.precision at 'full'"
        )
    if config.secure.aggregation and config.participation.sampling == "poisson":
        raise ValueError(
            "secure.aggregation is true but participation.sampling is 'poisson': how many may drop out of a round is agreed for "
            "rounds of a fixed size; set participation.sampling to 'fixed'"
        )
    if config.secure.noise:
        _no_statistics(config, "secure.noise")
    if config.central.on and config.secure.aggregation:
        raise ValueError(
            "central.epsilon is above 0 but secure.aggregation is true: central noise is added by a server that sees every "
            "hospital's update; set central.epsilon to 0 and give secure.noise"
        )


def _shared_noise(config: RunConfig) -> None:
    if not config.secure.shared_noise:
        return
    if not config.kind.shares_noise:
        raise ValueError(
            f"secure.shared-noise is true but task is {config.task!r}: the sum is of patients' clipped vectors; set task to "
            "'classification', 'synthesis' or 'posterior'"
        )
    optimizer = "sgd" if config.kind.steps and not config.optimizer_is_open else config.training.optimizer
    for key, wanted, why in (
        ("secure.aggregation", True, "a share of the noise protects only in a sum"),
        ("privacy.dp", True, "without privacy there is no noise to share, so leave secure.shared-noise out"),
        ("secure.noise", 0.0, "the sum has one noise"),
        ("training.local-steps", 1, "a sum is one step"),
        ("training.sample-rate", 1.0, "a sum is over all patients"),
        ("training.optimizer", optimizer, "the step is taken on the sum; a server's strategy, as fedadam, may do more with it"),
        ("training.momentum", 0.0, "the step is taken on the sum; strategy fedavgm has server-momentum"),
        ("training.batching", "poisson", "noise over time is not shared"),
        ("training.denoise", "none", "no hospital has a noised gradient to filter"),
        ("training.radius", 0.0, "the step is taken on the sum"),
        ("privacy.overlap", 1, "a patient of two hospitals would be in the sum twice, which no single charge covers"),
    ):  # fmt: skip
        value = config.value(key)
        if value != wanted:
            raise ValueError(f"secure.shared-noise is true but {key} is {value!r}: {why}; set {key} to {wanted!r}")
    if config.training.weight_decay and not config.kind.decays_shared:
        raise ValueError(
            f"secure.shared-noise is true but training.weight-decay is {config.training.weight_decay!r}: the step is "
            f"taken on the sum; set it to 0.0"
        )


def _central(config: RunConfig) -> None:
    if not config.central.on:
        return
    _no_statistics(config, "central.epsilon")
    if config.participation.sampling == "poisson" and config.participation.min_separation > 1:
        raise ValueError(
            f"participation.min-separation is {config.participation.min_separation} but participation.sampling is "
            "'poisson' and central.epsilon above 0: central.epsilon counts on every round's hospitals being sampled "
            "independently; set participation.min-separation to 1 or participation.sampling to 'fixed'"
        )
    if config.participation.sampling == "poisson" and config.central.noise != "independent":
        raise ValueError(
            f"central.noise is {config.central.noise!r} but participation.sampling is 'poisson': noise over time knows no "
            "amplification; set participation.sampling to 'fixed' or central.noise to 'independent'"
        )


def _strategy(config: RunConfig) -> None:
    if config.strategy == "fedsgd" and (config.training.local_steps, config.training.sample_rate) != (1, 1.0):
        raise ValueError(
            f"strategy is 'fedsgd' but training.local-steps is {config.training.local_steps} and training.sample-rate "
            f"{config.training.sample_rate:g}: FedSGD is one step over all patients in every round; set "
            "training.local-steps to 1 and training.sample-rate to 1, or strategy to 'fedavg'"
        )
    if config.strategy == "qfedavg" and config.privacy.dp:
        raise ValueError(
            "strategy is 'qfedavg' but privacy.dp is true: it weights hospitals by their training loss, which does not leave a "
            "private run; set privacy.dp to false or take another strategy"
        )


def _workers(config: RunConfig) -> None:
    if config.gpus > config.workers:
        raise ValueError(
            f"gpus is {config.gpus:g} but workers is {config.workers}: a worker uses at most one GPU; "
            "set workers to at least as many"
        )
