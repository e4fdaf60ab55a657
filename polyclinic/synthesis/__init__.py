"""Synthetic patients: how a table becomes numbers, what is learned of them, and how new ones are drawn. Nothing of Flower."""
