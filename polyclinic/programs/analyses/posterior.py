"""A posterior of a named likelihood's parameters, by rounds of sums."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING

from polyclinic.config.programs.posterior import by_flow
from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import resolve
from polyclinic.programs.analyses import Result, Statistic, Table
from polyclinic.programs.building import check_options
from polyclinic.programs.program import State
from polyclinic.programs.synthetic import making
from polyclinic.synthesis.layout import Layout

if TYPE_CHECKING:
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
        from polyclinic.inference.private_flow import OPTIONS
        from polyclinic.training.posterior import chosen_method, posterior_sums

        config = self.config
        make = resolve("likelihoods", config.model)
        method, options = chosen_method(keyword_arguments(config.posterior.options), config.rounds, config.seed)
        own = signature(make).parameters if callable(make) else {}
        of_flow = [key for key in options if key in OPTIONS and key not in own]
        if of_flow and not by_flow(config.posterior.options):
            raise ConfigError(
                f"The model {config.model!r} has no option {of_flow[0]!r}; it is an option of the flow: give method=flow "
                "beside it in posterior.options."
            )
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
        """Check that the noise leaves the patients' information, and that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where the noise would hide the information, or a secure sum would cut sums short.
        """
        method = self.method(schema)
        method.method.check_noise(noise)
        self.check_length(method.method.width, noise_multiplier, fewest)

    def notes(self, state: State, scored: bool) -> list[str]:
        return [_FLOW if by_flow(self.config.posterior.options) else _POSTERIOR]

    def result(self, method: PosteriorSums, state: State) -> Result:
        """Parameters with their intervals; ``posterior`` in the numbers has their correlations and the prior besides."""
        config, made = self.config, method.result(state["arrays"])
        numbers = {
            "method": method.name, "model": config.model, "options": config.posterior.options, "patients": state["patients"],
            "rows": "mean of a patient's", "missing": config.data.imputation, "prior": method.prior(),
            "columns": method.scales(), **made,
        }  # fmt: skip
        headings = {"Mean": "mean", "SD": "sd", "From": "low", "To": "high"}
        note = "By feature as scaled. Intervals hold 95 %. "
        if "not_counted" in made:
            note += f"They do not count {made['not_counted']}."
        else:
            headings["Widened"] = "inflation"
            note += "Widened: how many times privacy made the standard deviation larger."
        parameters = Table(
            "parameters", f"Posterior of {config.model}", ("Parameter", *headings),
            tuple((name, *(row[key] for key in headings.values())) for name, row in made["parameters"].items()),
            dict.fromkeys(headings, ".3f"), note,
        )  # fmt: skip
        scaled = {name: row for name, row in method.scales().items() if (row["centre"], row["scale"]) != (0.0, 1.0)}
        columns = Table(
            "columns", "Columns as scaled", ("Column", "Centre", "Scale", "Unit"),
            tuple((name, row["centre"], row["scale"], row["unit"]) for name, row in scaled.items()),
            {"Centre": ".4g", "Scale": ".4g"}, "A number z of the model stands for centre + scale z in the record.",
        )  # fmt: skip
        return Result(
            f"Posterior of {config.model}",
            (parameters, columns) if scaled else (parameters,),
            {"posterior": numbers},
            ("A missing number stands at its centre, unless the run's imputation filled it.",),
        )
