"""Attacks on what a run released: who took part, what their records say, and what synthetic patients give away.

Each is measured on patients who took part and, as its baseline, on patients who did not. An attack that finds nothing proves
nothing: the bound on all attacks is epsilon. Pure functions on arrays; what they return is not private, so real records
are attacked where they lie.
"""
