"""Differential privacy: mechanisms, accounting and the ledger. Knows nothing of records, models or messages."""
