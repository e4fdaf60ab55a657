"""Visits over time, each drawn given the one before it."""
