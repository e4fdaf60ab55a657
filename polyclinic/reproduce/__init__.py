"""Experiments of the literature, done again: each module's ``run(out, quick)`` writes results.json, table.md and a figure."""
