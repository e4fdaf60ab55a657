"""Many simulated hospitals trained at once on stacked tensors: what one_by_one.py does site by site, and as private."""
