"""A finished run in Python: its tables, statement, model, predictions, figures and report."""

from __future__ import annotations

import html
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor, nn

from polyclinic.client.own_eyes import own_mapping
from polyclinic.config import RunConfig
from polyclinic.evaluation.figures.results import draw_figure
from polyclinic.evaluation.formats import mark_withheld, metric
from polyclinic.evaluation.judges import headline, in_line, titles
from polyclinic.evaluation.privacy_text import central_sentence
from polyclinic.evaluation.report import render_report
from polyclinic.runs.folder import Run
from polyclinic.runs.predicting import held_out_predictions, predict, withheld_sentence
from polyclinic.runs.shapes import contributions, shape_functions
from polyclinic.runs.tables import table_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RunResult:
    """A finished run, read from its folder: tables, statement, model and report, each by its name."""

    folder: Run
    summary: dict[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> RunResult:
        """Raises ConfigError when ``path`` is not the folder of a finished run."""
        run = Run.open(path)
        return cls(run, run.summary_json())

    @property
    def path(self) -> Path:
        """The run's folder: report, plots, metrics, model, ledgers."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The configuration that the run had, defaults included."""
        return self.folder.config()

    @property
    def rounds(self) -> pd.DataFrame:
        """One row for each round and site (and ``pooled`` and ``macro``): loss, AUROC, epsilon spent, ..."""
        return self.folder.rounds()

    @property
    def strategy_metrics(self) -> pd.DataFrame:
        """Return one row for each round and phase in which there are any, with the metrics of the strategy and of the server.

        The strategy returned those of the phases ``train`` and ``evaluate``. ``evaluation.function`` computed those of
        ``server``, whose round 0 is before training.
        """
        rows = [
            {**row[phase], "round": row["round"], "phase": phase}
            for row in self.summary["strategy_metrics"] for phase in ("train", "evaluate", "server") if phase in row
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=None if rows else ["round", "phase"]).set_index(["round", "phase"])

    @property
    def sites(self) -> pd.DataFrame:
        """One row for each hospital: patients, final metrics, epsilon spent, budget, rounds joined."""
        return pd.DataFrame.from_dict(self.summary["metrics"]["sites"], orient="index").rename_axis("site")

    @property
    def pooled(self) -> dict[str, float | None]:
        """Metrics over all held-out patients together."""
        return dict(self.summary["metrics"]["pooled"])

    @property
    def privacy(self) -> dict[str, Any]:
        """Epsilon (None without privacy), its delta, unit, relation and accountant; ``composition``: over which hospitals."""
        return dict(self.summary["privacy"])

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of an analysis by name, with all digits. Raises PolyclinicError, which says why, where there are none."""
        return {table["name"]: table_frame(table) for table in self.folder.analysis()["tables"]}

    @property
    def numbers(self) -> dict[str, Any]:
        """What an analysis has beside its tables, by name: what figures are drawn from, and of task posterior ``posterior``.

        Raises PolyclinicError, which says why, where there are none.
        """
        return dict(self.folder.analysis()["numbers"])

    @property
    def statement(self) -> dict[str, Any]:
        """What every hospital spent, and on what: whole ledgers in a simulation."""
        return dict(self.summary["statement"])

    @property
    def arrays(self) -> dict[str, Tensor]:
        """Everything in model.safetensors: the model's arrays and the standardiser's mean and std."""
        return {name: torch.from_numpy(value) for name, value in self.folder.stored_arrays().items()}

    @property
    def model(self) -> nn.Module:
        """The trained module; its inputs are encoded rows, standardised with ``arrays["standardiser.mean"]`` and ``std``."""
        return self.folder.model()

    def predict(self, table: pd.DataFrame, hospital: str | Path | None = None) -> pd.DataFrame:
        """(rows, columns) predictions of raw rows with the columns of the run's schema; the label is not read.

        They are probabilities of classes, or what else the run's objective predicts, in the label's unit. A run that made
        sequences of visits takes visits, and gives a row for each patient.

        Args:
            table: Rows as they stood in the run's tables, or as the run's schema or mapping has them.
            hospital: The ``hospital.toml`` by whose mapping the table is read.

        Raises:
            ConfigError: for a run without such a model. DataError: for a cell that the schema does not allow.
        """
        mapping = own_mapping(Path(hospital), self.folder) if hospital else None
        predicted = predict(self.folder, table, mapping=mapping)
        for note in predicted.notes:
            warnings.warn(note, stacklevel=2)
        return predicted.scores

    def contributions(self, table: pd.DataFrame) -> pd.DataFrame:
        """(rows, columns) what each column of raw rows adds to the output, beside ``intercept``; their sum is the output.

        Raises ConfigError for a run whose model is not ``ebm``. DataError: as ``predict``.
        """
        return contributions(self.folder, predict(self.folder, table))

    @property
    def shapes(self) -> pd.DataFrame:
        """The shape functions of a run of model ``ebm`` in the columns' own units, with what noise does to them.

        A row for each stretch of a number and each category (``polyclinic.runs.shapes.shape_functions``). Raises ConfigError for
        another model.
        """
        return shape_functions(self.folder)

    @property
    def predictions(self) -> pd.DataFrame:
        """Held-out predictions, a row each: ``site``, the ``patient``'s number there, ``label``, ``score_CLASS``, ``split``.

        A UserWarning names the hospitals whose policies withhold theirs; ConfigError, with the reason, where all do.
        """
        table, withheld = held_out_predictions(self.folder)
        if withheld:
            warnings.warn(withheld_sentence(withheld, len(self.sites)), stacklevel=2)
        return table

    def plot(self, name: str, ax: Axes | None = None) -> Axes:
        """Draw a figure of the report and return its axes.

        Args:
            name: ``roc``, ``pr``, ``calibration``, ``decision`` or ``sites`` (AUROC of each hospital with its interval), of
                held-out patients of all hospitals; ``rounds`` (AUROC), ``loss`` or ``epsilon`` by round; ``posterior``.
            ax: The matplotlib axes to draw on; a new figure of pyplot without them.

        Raises:
            ConfigError: for another name, and for a figure of which the run recorded nothing, with the reason.
        """
        return draw_figure(self.summary, self.rounds, name, ax)

    def export(self, path: str | Path, force: bool = False) -> Path:
        """Write the model with its preprocessing inside: raw columns in, probabilities out; returns the path.

        The suffix is the format: ``.onnx`` (extra "onnx"), ``.pt`` for TorchScript, ``.pt2`` for torch.export. A file beside it,
        with ``.json`` added to its name, describes the inputs. ``force`` replaces files that exist. Raises ConfigError for a run
        whose predictions no function of one row gives, and for a file that exists.
        """
        from polyclinic.runs.exporting import export  # with torch's exporters

        export(self.folder, Path(path), force)
        return Path(path)

    def report(self) -> Path:
        """Render report.html again and give its path."""
        return render_report(self.path)

    def __repr__(self) -> str:
        spent, (name, value) = self.privacy["epsilon"], self._first_metric()
        epsilon = None if spent is None else float(f"{spent:.4g}")
        pooled = f"pooled_{name}={None if value is None else round(value, 3)}"
        return f"RunResult({self.folder.name!r}, rounds={self.summary['rounds']}, {epsilon=}, {pooled})"

    def _first_metric(self) -> tuple[str, float | None]:
        """The name and the pooled value of the metric that tables show first."""
        name = headline(self.summary)[0]
        return name, self.pooled.get(name)

    def _repr_html_(self) -> str:
        spent, pooled = self.privacy["epsilon"], self.pooled
        amount = "not known" if spent is None else f"{spent:.3f}" if spent < 1e6 else f"{spent:.4g}"
        promise = (
            f"&epsilon; = {amount} at &delta; = {self.privacy['delta']:g} per {self.privacy['unit']} "
            f"({self.privacy['relation']}, {self.privacy['accountant'].upper()})"
            if self.privacy["private"]
            else "no noise at the hospitals"
            if self.privacy.get("central")
            else "no privacy guarantee"
        )
        if central := self.privacy.get("central"):
            promise += f". {html.escape(central_sentence(central))}"
        name = self._first_metric()[0]
        shown, title = metric(mark_withheld(pooled).get(name)), in_line(titles(self.summary)[name])
        head = f"<p><b>{html.escape(self.folder.name)}</b>: pooled {title} {shown}; {promise}</p>"
        return head + str(self.sites.drop(columns="risk", errors="ignore").round(3).to_html())
