"""Private boosting: shape functions of an additive model from rounds of sums over patients."""
