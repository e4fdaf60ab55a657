"""What strategies, a scale, smaller updates and private metrics do to federated classification."""
