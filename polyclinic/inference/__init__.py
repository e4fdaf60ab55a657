"""Inference: likelihoods, and posteriors of their parameters by noisy sums and by normalizing flows."""
