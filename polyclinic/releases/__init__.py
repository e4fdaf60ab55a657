"""Questions to hospitals that are answered with noise."""
