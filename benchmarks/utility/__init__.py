"""What privacy costs in AUROC, by method, at the same true epsilon. Results are committed; tests assert none."""
