"""Runs in a browser while they train: read-only, on this machine."""
