"""Games that are trained as they were published, which keeps no epsilon, and what their publications claim."""
