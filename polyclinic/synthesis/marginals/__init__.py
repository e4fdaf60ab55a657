"""Synthetic patients from noisy marginals and a graphical model: MST and AIM."""

from polyclinic.synthesis.marginals.method import Marginals, make
from polyclinic.synthesis.marginals.network import NetworkSynthesizer

__all__ = ["Marginals", "NetworkSynthesizer", "make"]
