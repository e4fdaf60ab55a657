"""Simulated patients in the form of published cohorts, and two sets of pictures."""
