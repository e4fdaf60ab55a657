"""A run's folder as a typed room: ``Run.open(path)`` reads it, and the server writes through it."""
