"""Torch modules that hospitals train; they know nothing of records, privacy or Flower."""
