"""A nonlinear regression by flows, and the accounting of published flows (Su et al. 2023)."""
