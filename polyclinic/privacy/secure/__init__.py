"""Sums that a server learns whole: masks, shares, noise that hospitals share, and what they sign."""
