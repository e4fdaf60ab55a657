"""What a process of a coordinator or hospital says of itself: logs, metrics, and whether all is in order."""
