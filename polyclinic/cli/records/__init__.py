"""Commands that look at records: their schema, their cohorts, and what may be learned of them."""
