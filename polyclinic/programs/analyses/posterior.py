"""A posterior of a named likelihood's parameters, by rounds of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from polyclinic.config.programs.posterior import by_flow
from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr.schema import Schema
from polyclinic.errors import DataError
from polyclinic.plugins import resolve
from polyclinic.programs.analyses import Statistic
from polyclinic.programs.building import check_options
from polyclinic.programs.program import Half, State
from polyclinic.programs.sums import SumsHalf
from polyclinic.programs.synthetic import making
from polyclinic.synthesis.layout import Layout

if TYPE_CHECKING:
    from polyclinic.synthesis.synthesizer import Synthesizer
    from polyclinic.training.posterior import PosteriorSums

_POSTERIOR = (
    "A posterior here is Laplace's approximation of the training patients' under the prior; a patient's rows count as one, by "
    "their mean. Held-out patients were not asked for."
)
_FLOW = (
    "This posterior is a flow's by noisy gradient steps (Algorithm 2): its intervals do not count the noise of the steps and may "
    "be far too wide or too narrow; method gauss-newton counts it. A patient's rows count as one, by their mean gradient."
)


@dataclass(frozen=True)
class Posterior(Statistic):
    """A posterior of a named likelihood's parameters under a public normal prior."""

    def method(self, schema: Schema) -> PosteriorSums:
        from polyclinic.training.posterior import chosen_method, posterior_sums

        config = self.config
        make = resolve("likelihoods", config.model)
        method, options = chosen_method(keyword_arguments(config.posterior.options), config.rounds, config.seed)
        check_options(config.model, make, options, ("columns",), "posterior.options")
        with making(config):
            return posterior_sums(
                make,
                Layout.of(schema, label_may_be_number=True),
                config.posterior.columns,
                options,
                config.posterior.prior,
                method,
            )

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Raises ConfigError where the noise would hide the patients' information, or a secure sum would cut sums short."""
        method = self.method(schema)
        method.method.check_noise(noise)
        self.check_length(method.method.width, noise_multiplier, fewest)

    def notes(self, state: State, scored: bool) -> list[str]:
        return [_FLOW if by_flow(self.config.posterior.options) else _POSTERIOR]

    def statement(
        self, half: Half | None, state: State, synthesizer: Synthesizer | None, patients: Sequence[int], stopped: str | None
    ) -> dict[str, Any]:  # fmt: skip
        """The posterior's numbers, or in ``refused`` why there are none."""
        config, method = self.config, cast("PosteriorSums", cast(SumsHalf, half).method)
        refused, numbers = stopped, {}
        if not stopped:
            try:
                numbers = method.result(state["arrays"])
            except DataError as error:
                refused = f"No posterior: {error}"
        return {
            "posterior": {
                "method": method.name, "model": config.model, "options": config.posterior.options,
                "names": list(method.method.likelihood.names), "finished": not refused, "refused": refused,
                "patients": state["patients"], "rows": "mean of a patient's", "missing": config.data.imputation,
                "prior": method.prior(), "columns": method.scales(), **numbers,
            }
        }  # fmt: skip
