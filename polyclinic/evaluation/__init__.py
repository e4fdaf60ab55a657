"""How good a trained model is, at each hospital and over all, and the report that says so in plain words."""
