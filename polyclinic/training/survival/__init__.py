"""Survival at a hospital: counts of patients by interval of time, and proportional hazards."""
