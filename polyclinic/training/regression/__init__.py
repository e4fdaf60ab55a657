"""Regressions by sums over patients: a formula and its design by the public schema, exact sums, and private ones."""
