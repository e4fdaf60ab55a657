"""Inference: posteriors of a model's parameters, by normalizing flows, and what a choice of dissimilarity does to them."""
