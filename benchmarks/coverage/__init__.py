"""How often intervals from synthetic patients hold the truth."""
