"""Methods of synthesis whose hospitals answer nothing but sums over their patients."""
