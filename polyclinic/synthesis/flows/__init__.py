"""Normalizing flows as synthesizers: what stands before a flow, the recipe of one, and rows drawn by it."""
