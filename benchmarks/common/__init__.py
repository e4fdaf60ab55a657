"""What benchmarks share: settings, made-up tables, the machine, how work is timed and reported."""
