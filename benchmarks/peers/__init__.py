"""Other projects at the same work, each as its own examples write it; every module prints one JSON object when run."""
