"""How messages go to hospitals and what counts of their replies: whom a round asks, means, secure sums, the noise on them."""
