"""Parameters of the circulation from private patients by variational inference (Su et al. 2023)."""
