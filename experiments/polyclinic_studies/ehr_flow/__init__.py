"""Patients after a right heart catheter, by private normalizing flows (Su et al. 2023)."""
