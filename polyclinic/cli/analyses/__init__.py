"""Commands of analyses: each makes a run's configuration of its options, and carries it out."""
