"""Visits over time: followed patients, made up and of two open demos, and how methods of sums do with them."""
