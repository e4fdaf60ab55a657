"""The simulation engine: a Flower Grid whose nodes are in this process or in worker processes beside it."""
