"""Speed, measured against named peers in the same run on the same machine. Results are committed; tests assert none."""
