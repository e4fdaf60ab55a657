"""What keys ask of one another: each combination that cannot work is refused in one sentence that says what to set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyclinic.config.derived import compression
from polyclinic.config.posterior import check_posterior
from polyclinic.config.synthesis import check_synthesis

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig


def check_together(config: RunConfig) -> None:
    """Raises ValueError for keys that are each possible and not together."""
    for check in (
        _imputation,
        _statistics,
        _steps,
        _upload,
        _secure_sum,
        _shared_noise,
        _central,
        _strategy,
        _workers,
        check_synthesis,
        check_posterior,
    ):
        check(config)


def _imputation(config: RunConfig) -> None:
    if config.imputation == "mice" and config.dp:
        raise ValueError(
            "imputation is 'mice' but dp is true: chained equations fitted to a hospital's own patients make one patient's row "
            "depend on others', so that no epsilon holds; set imputation to 'chained', 'constant', 'indicator' or 'mean'"
        )
    if config.imputation == "chained" and not config.imputer_file:
        raise ValueError(
            "imputation is 'chained' but imputer-file is empty; name what `polyclinic prepare --imputer` wrote"
        )


def _statistics(config: RunConfig) -> None:
    if config.dp and config.asks_statistics and config.statistics_share == 0:
        raise ValueError(
            f"statistics-share is 0 but standardise is {config.standardise!r} and patients-per-site "
            f"{config.patients_per_site}: what is asked of private records must be paid for; give statistics-share a value "
            "above 0 and below 1, or patients-per-site a public number, with standardise 'public' or 'none'"
        )


def _no_statistics(config: RunConfig, key: str) -> None:
    """Raises ValueError where hospitals are asked for what ``key`` does not cover."""
    if config.asks_statistics:
        remedies = ["set standardise to 'public' or 'none'"] if config.standardise == "measured" else []
        remedies += ["give patients-per-site a public number"] if config.dp and config.patients_per_site == 0 else []
        raise ValueError(
            f"{key} is above 0 but standardise is {config.standardise!r} and patients-per-site {config.patients_per_site}: "
            f"statistics of patients tell of whole hospitals, which {key} does not cover; {' and '.join(remedies)}"
        )


def _steps(config: RunConfig) -> None:
    if config.one_release and not config.sums and config.weight_decay == 0:
        raise ValueError(
            f"weight-decay is 0 but task is {config.task!r}: without a regulariser one patient may move the minimiser "
            "anywhere; give weight-decay a value above 0, such as 0.1"
        )
    if config.batching == "cyclic" and abs(1 / config.sample_rate - round(1 / config.sample_rate)) > 1e-9:
        raise ValueError(
            f"sample-rate is {config.sample_rate:g} but batching is cyclic: as many batches as 1/sample-rate take turns, "
            "which must be a whole number"
        )
    if config.noise != "independent" and config.batching != "cyclic":
        raise ValueError(
            f"noise is {config.noise!r} but batching is 'poisson': only where a patient returns after a known number of "
            "steps is the price of such noise known; set batching to 'cyclic'"
        )


def _upload(config: RunConfig) -> None:
    if config.upload_share < 1 and config.upload != "difference":
        raise ValueError(
            "upload-share is below 1 but upload is 'model': only a difference can be sent in part; "
            "set upload to 'difference'"
        )


def _secure_sum(config: RunConfig) -> None:
    if config.secure_aggregation and compression(config).active:
        raise ValueError(
            "secure-aggregation is true but upload or upload-precision asks for compressed uploads, which cannot be "
            "summed under masks; leave upload at 'model' and upload-precision at 'full'"
        )
    if config.secure_aggregation and config.site_sampling == "poisson":
        raise ValueError(
            "secure-aggregation is true but site-sampling is 'poisson': how many may drop out of a round is agreed for "
            "rounds of a fixed size; set site-sampling to 'fixed'"
        )
    if config.secure_noise and not config.secure_aggregation:
        raise ValueError(
            "secure-noise is above 0 but secure-aggregation is false: a hospital's share of noise protects only in a "
            "sum; set secure-aggregation to true"
        )
    if config.secure_noise:
        _no_statistics(config, "secure-noise")
    if config.central and config.secure_aggregation:
        raise ValueError(
            "central-epsilon is above 0 but secure-aggregation is true: central noise is added by a server that sees every "
            "hospital's update; set central-epsilon to 0 and give secure-noise"
        )


def _shared_noise(config: RunConfig) -> None:
    if not config.shared_noise:
        return
    if config.task not in ("classification", "synthesis", "posterior"):
        raise ValueError(
            f"shared-noise is true but task is {config.task!r}: the sum is of patients' clipped vectors; set task to "
            "'classification', 'synthesis' or 'posterior'"
        )
    for key, wanted, why in (
        ("secure-aggregation", True, "a share of the noise protects only in a sum"),
        ("dp", True, "there is no noise to share"),
        ("secure-noise", 0.0, "the sum has one noise"),
        ("local-steps", 1, "a sum is one step"),
        ("sample-rate", 1.0, "a sum is over all patients"),
        ("optimizer", "sgd", "the step is taken on the sum; a server's strategy, as fedadam, may do more with it"),
        ("momentum", 0.0, "the step is taken on the sum; strategy fedavgm has server-momentum"),
        ("proximal-mu", 0.0, "hospitals take no step of their own"),
        ("batching", "poisson", "noise over time is not shared"),
        ("denoise", "none", "no hospital has a noised gradient to filter"),
        ("local-layers", "", "hospitals take no step of their own"),
        ("overlap", 1, "a patient of two hospitals would be in the sum twice, which no composition of single charges covers"),
    ):  # fmt: skip
        value = getattr(config, key.replace("-", "_"))
        if value != wanted:
            raise ValueError(f"shared-noise is true but {key} is {value!r}: {why}; set {key} to {wanted!r}")
    if config.weight_decay and not config.game:
        raise ValueError(
            f"shared-noise is true but weight-decay is {config.weight_decay!r}: the step is taken on the sum; set it to 0.0"
        )
    if config.strategy in ("ditto", "scaffold", "fedbn"):
        raise ValueError(
            f"shared-noise is true but strategy is {config.strategy!r}, which keeps something of each hospital's own; take "
            "fedavgm, fedavg, fedadam, fedyogi or fedadagrad"
        )


def _central(config: RunConfig) -> None:
    if not config.central:
        return
    _no_statistics(config, "central-epsilon")
    if config.site_sampling == "poisson" and config.min_separation > 1:
        raise ValueError(
            f"min-separation is {config.min_separation} but site-sampling is 'poisson' and central-epsilon above 0: "
            "central-epsilon counts on every round's hospitals being sampled independently; set min-separation to 1 "
            "or site-sampling to 'fixed'"
        )
    if config.central_noise == "independent":
        return
    for key, value in (("site-sampling", "fixed"), ("central-clipping", "fixed")):
        if getattr(config, key.replace("-", "_")) != value:
            raise ValueError(
                f"central-noise is {config.central_noise!r} but {key} is not {value!r}: noise over time knows no "
                f"amplification and one clip norm; set {key} to {value!r} or central-noise to 'independent'"
            )


def _strategy(config: RunConfig) -> None:
    if config.strategy == "fedsgd" and (config.local_steps, config.sample_rate) != (1, 1.0):
        raise ValueError(
            f"strategy is 'fedsgd' but local-steps is {config.local_steps} and sample-rate {config.sample_rate:g}: FedSGD is one "
            "step over all patients in every round; set local-steps to 1 and sample-rate to 1, or strategy to 'fedavg'"
        )
    if config.strategy == "qfedavg" and config.dp:
        raise ValueError(
            "strategy is 'qfedavg' but dp is true: it weights hospitals by their training loss, which does not leave a "
            "private run; set dp to false or take another strategy"
        )
    if config.strategy == "scaffold" and (config.optimizer != "sgd" or config.momentum):
        raise ValueError(
            f"strategy is 'scaffold' but optimizer is {config.optimizer!r} with momentum {config.momentum:g}: control variates "
            "correct plain gradient steps; set optimizer to 'sgd' and momentum to 0"
        )
    if config.strategy == "scaffold" and config.secure_aggregation:
        raise ValueError(
            "strategy is 'scaffold' but secure-aggregation is true: the change of a hospital's control variate, from which "
            "its update follows, would leave without masks; set secure-aggregation to false or take another strategy"
        )
    if config.control_variate == "gradient" and config.strategy != "scaffold":
        raise ValueError(
            f"control-variate is 'gradient' but strategy is {config.strategy!r}: only scaffold has control variates; leave "
            "control-variate at 'update'"
        )
    looks_again = config.strategy == "ditto" or config.control_variate == "gradient"
    if looks_again and config.batching == "cyclic":
        raise ValueError(
            f"strategy is {config.strategy!r} but batching is 'cyclic': what it computes of the patients beside the shared "
            "model is charged for Poisson batches only; set batching to 'poisson'"
        )
    if config.one_release and (config.strategy in ("scaffold", "ditto", "fedbn") or config.local_layers):
        raise ValueError(
            f"task is {config.task!r} but strategy is {config.strategy!r} with local-layers {config.local_layers!r}: one release "
            "of a whole model has no steps to correct and no part to keep; take another strategy, without local-layers"
        )
    if config.strategy == "ditto" and config.local_layers:
        raise ValueError(
            "strategy is 'ditto' but local-layers are given: a personal model is a hospital's own as a whole; leave "
            "local-layers empty or take strategy 'fedavg'"
        )


def _workers(config: RunConfig) -> None:
    if config.gpus > config.workers:
        raise ValueError(
            f"gpus is {config.gpus:g} but workers is {config.workers}: a worker uses at most one GPU; "
            "set workers to at least as many"
        )
