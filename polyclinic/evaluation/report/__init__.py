"""The report of a run, and of several beside each other: pages of sections, written from run folders."""

from polyclinic.evaluation.report.comparison import render_comparison
from polyclinic.evaluation.report.run import render_report, stand_by, write_plots, write_report
from polyclinic.evaluation.report.sweep import render_sweep

__all__ = ["render_comparison", "render_report", "render_sweep", "stand_by", "write_plots", "write_report"]
