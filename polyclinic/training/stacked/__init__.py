"""Many simulated hospitals trained at once on stacked tensors: what sites/one_by_one.py does site by site, and as private."""
