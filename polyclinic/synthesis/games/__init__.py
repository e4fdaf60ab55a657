"""Adversarial training: critics that hospitals train on their records, a generator that the server trains against them."""
