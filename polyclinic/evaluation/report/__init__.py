"""The report of a run, and of several beside each other: pages of sections, written from run folders."""

from polyclinic.evaluation.report.comparison import render_comparison
from polyclinic.evaluation.report.run import render_report, write_plots, write_report

__all__ = ["render_comparison", "render_report", "write_plots", "write_report"]
