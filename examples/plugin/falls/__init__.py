"""Falls of old people at three wards: a dataset, a model and a strategy for Polyclinic."""
