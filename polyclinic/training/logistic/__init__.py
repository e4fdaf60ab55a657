"""Logistic regressions by other ways than steps of gradients: one release of a minimiser, and noisy Newton steps."""
