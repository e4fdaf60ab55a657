"""What strategies are made of: their state in checkpoints, a moved mean, a strategy around another, checks of options."""
