"""Figures: each function takes values and returns a ``matplotlib.figure.Figure``, drawn on ``canvas`` in one style."""
