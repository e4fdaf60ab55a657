"""Attacks on a finished simulated run: its model or generator, with all patients of its hospitals."""
